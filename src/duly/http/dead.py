"""Dead letters: look at them, send them back, drop them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..engine.dead import ListDead, PurgeDead, Redrive
from ..limits import LIMITS
from ..message import DeadLetter, Failure
from .endpoint import Call, endpoint
from .fields import WHOLE_MAX, Limit, MessageId, Name, Next, Rate
from .log import LogMessage
from .pages import within_bytes
from .tokens import cursor, read_cursor
from .topics import Dropped

_FOUND = ("topic_not_found", "group_not_found", "invalid_argument")


class DeadMessage(msgspec.Struct):
    """A message that was given up for a group, with why. `corrupt` says why its payload cannot be read, if so."""

    message: LogMessage
    attempts: int
    reason: str
    buried_at_ms: int
    history: tuple[Failure, ...]
    corrupt: str

    @classmethod
    def of(cls, known: DeadLetter) -> DeadMessage:
        message = LogMessage.of(known.message)
        return cls(message, known.attempts, known.reason, known.buried_at_ms, known.history, known.corrupt)


class DeadPage(msgspec.Struct):
    """Some dead letters, oldest offset first. `next` leads to the next page; null: there is none."""

    dead: list[DeadMessage]
    next: str | None


class GroupQuery(msgspec.Struct, forbid_unknown_fields=True):
    group: Name | None = None


class DeadQuery(GroupQuery, forbid_unknown_fields=True):
    limit: Limit = 100
    next: Next | None = None


class WantedRedrive(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters to send back: all, some by id, at most `limit`, so many a second."""

    group: Name | None = None
    ids: Annotated[list[MessageId], Meta(max_length=LIMITS.batch_messages_max)] | None = None
    rate_per_s: Rate | None = None
    limit: Annotated[int, Meta(ge=1, le=WHOLE_MAX)] | None = None


class Redriven(msgspec.Struct):
    """How many were sent back."""

    redriven: int


@endpoint(
    "GET",
    "/v1/topics/{topic}/dead",
    tag="dead letters",
    does=(ListDead,),
    query=DeadQuery,
    answer=DeadPage,
    refuses=_FOUND,
)
def list_dead(call: Call) -> DeadPage:
    """List a group's dead letters, with payload and history."""
    wanted: DeadQuery = call.query
    client, after = call.client, (0, -1)
    if wanted.next is not None:
        after = read_cursor(wanted.next, tuple[int, int])

    def page(after: tuple[int, int], limit: int) -> list[DeadLetter]:
        return list(client.dead(call.topic, group=wanted.group, after=after, limit=limit))

    found, more = within_bytes(client, call.topic, page, _place, after, wanted.limit)
    return DeadPage([DeadMessage.of(letter) for letter in found], cursor(_place(found[-1])) if more else None)


def _place(letter: DeadLetter) -> tuple[int, int]:
    return letter.message.partition, letter.message.offset


@endpoint(
    "POST",
    "/v1/topics/{topic}/redrive",
    tag="dead letters",
    does=(Redrive,),
    body=WantedRedrive,
    body_optional=True,
    answer=Redriven,
    refuses=_FOUND,
)
def redrive(call: Call) -> Redriven:
    """Send dead letters back with fresh attempts."""
    wanted: WantedRedrive = call.body
    sent = call.client.redrive(
        call.topic, group=wanted.group, ids=wanted.ids, rate=wanted.rate_per_s, limit=wanted.limit
    )
    return Redriven(sent)


@endpoint(
    "DELETE",
    "/v1/topics/{topic}/dead",
    tag="dead letters",
    does=(PurgeDead,),
    query=GroupQuery,
    answer=Dropped,
    refuses=_FOUND,
)
def purge_dead(call: Call) -> Dropped:
    """Drop a group's dead letters."""
    return Dropped(call.client.purge(call.topic, group=call.query.group, dead=True))
