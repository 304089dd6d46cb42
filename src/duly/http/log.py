"""A log by partition and offset, without leases: read it, find a moment in it, wait at its end."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from ..clock import from_ms, monotonic_s
from ..engine.read import OffsetAt, Read
from ..engine.tail import Tail, Tailed
from ..errors import InvalidArgument, MessageNotFound
from ..limits import LIMITS
from ..message import StoredMessage
from ..tenant import check_name
from .body import Left, left
from .endpoint import OCTETS, Call, endpoint
from .fields import Bytes, Moment, Offsets, Payload, Texts, Wait, Whole
from .groups import PlacedAt, by_partition, partitions_of
from .messages import raw
from .reply import Reply

_PATH = "/v1/topics/{topic}/partitions/{partition}/messages"
_FOUND = ("topic_not_found", "invalid_argument")
_READ = (*_FOUND, "offset_truncated", "corrupt_block")

# Who waits at the end of a log shares a few threads: each waits there for a short while, in turn.
_WATCH_S = 0.25


class LogMessage(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A message as the log holds it."""

    partition: int
    offset: int
    id: str
    payload_base64: Payload
    key: str | None = None
    headers: Texts = {}
    published_at_ms: int
    expires_at_ms: int | None = None

    @classmethod
    def of(cls, known: StoredMessage) -> LogMessage:
        return cls(
            partition=known.partition,
            offset=known.offset,
            id=known.id,
            payload_base64=known.payload,
            key=known.key,
            headers=dict(known.headers),
            published_at_ms=known.published_at_ms,
            expires_at_ms=known.expires_at_ms,
        )


class LogPage(msgspec.Struct):
    """Messages of a partition, in order. `next_offset` is where to read on."""

    messages: list[LogMessage]
    next_offset: int


class ReadQuery(msgspec.Struct, forbid_unknown_fields=True):
    offset: Whole = 0
    limit: Annotated[int, Meta(ge=1, le=LIMITS.read_messages_max)] = 1000
    max_bytes: Bytes = LIMITS.http_bytes_default


class MomentQuery(msgspec.Struct, forbid_unknown_fields=True):
    at_ms: Moment


class Ends(msgspec.Struct, forbid_unknown_fields=True):
    """A place in each partition that is waited for, by partition, and how long to wait."""

    offsets: Offsets
    wait_ms: Wait = 0


class Grown(msgspec.Struct):
    """The partitions that have a message there."""

    partitions: tuple[int, ...]


@endpoint("GET", _PATH, tag="log", does=(Read,), query=ReadQuery, answer=LogPage, refuses=_READ)
def read(call: Call) -> LogPage:
    """Read a log from an offset on, without a lease. What is no longer there is never skipped in silence."""
    wanted: ReadQuery = call.query
    found = call.client.read(
        call.topic,
        partition=call.number("partition"),
        offset=wanted.offset,
        max_messages=wanted.limit,
        max_bytes=wanted.max_bytes,
    )
    following = found[-1].offset + 1 if found else wanted.offset
    return LogPage([LogMessage.of(message) for message in found], following)


@endpoint(
    "GET",
    _PATH + "/{offset}",
    tag="log",
    does=(Read,),
    answer=LogMessage,
    refuses=(*_READ, "message_not_found"),
)
def read_one(call: Call) -> LogMessage:
    """Read one message of a log."""
    return LogMessage.of(_one(call))


@endpoint(
    "GET",
    _PATH + "/{offset}/payload",
    tag="log",
    does=(Read,),
    kind=OCTETS,
    refuses=(*_READ, "message_not_found"),
)
def read_payload(call: Call) -> Reply:
    """The payload of one message of a log, as raw bytes."""
    return raw(_one(call).payload)


def _one(call: Call) -> StoredMessage:
    offset = call.number("offset")
    found = call.client.read(call.topic, partition=call.number("partition"), offset=offset, max_messages=1)
    if not found:
        raise MessageNotFound("The log has no such offset yet.")
    return found[0]


@endpoint(
    "GET",
    "/v1/topics/{topic}/offsets",
    tag="log",
    does=(OffsetAt,),
    query=MomentQuery,
    answer=PlacedAt,
    refuses=_FOUND,
)
def offset_at(call: Call) -> PlacedAt:
    """By partition, the first offset that was published at or after a moment."""
    return PlacedAt(by_partition(call.client.offset_at(call.topic, from_ms(call.query.at_ms))))


@endpoint(
    "POST",
    "/v1/topics/{topic}/await_messages",
    tag="log",
    does=(Tail,),
    body=Ends,
    answer=Grown,
    refuses=_FOUND,
)
async def await_messages(call: Call) -> Grown:
    """Wait at the end of a log until a partition has a message at the place named, or the time is over."""
    command = Tail(call.tenant, check_name(call.topic, "name"), tuple(partitions_of(call.body.offsets).items()))
    if not command.places:
        raise InvalidArgument("offsets names no partition to wait for.")
    until = monotonic_s() + call.body.wait_ms / 1000
    leaving = asyncio.ensure_future(left(call.receive))
    try:
        while True:
            tailed: Tailed = await call.home.watchers.run(call.whose, _look, call, command, until)
            if leaving.done():
                raise Left()
            if tailed.grown or monotonic_s() >= until:
                return Grown(tailed.grown)
            call.broker.check_open()
    finally:
        leaving.cancel()


def _look(call: Call, command: Tail, until: float) -> Tailed:
    return call.entry.tail(command, wait_until=min(until, monotonic_s() + _WATCH_S))
