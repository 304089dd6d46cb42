"""Messages as people write them and read them back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from .clock import Duration, from_ms
from .errors import InvalidArgument

# Ids that Duly makes begin with this, so that none of yours can collide with one.
MADE_ID_MARK = "@"
# The header that says which operation a message belongs to (causal.py). Duly's own: it counts in no limit of headers.
OPERATION = "duly-operation"


class Message(msgspec.Struct, frozen=True):
    """An immutable payload and what belongs to it.

    `ttl` counts from the moment it is due (on a log: from publishing), `expires_at` is
    absolute; give one of them. `partition` chooses a partition of a log; without it the key's
    hash does, and without a key any will do. `due`, `priority` and `lane` belong to queues.
    """

    payload: bytes
    id: str | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    ttl: Duration | None = None
    expires_at: datetime | None = None
    partition: int | None = None
    due: datetime | Duration | None = None
    priority: int | None = None
    lane: str | None = None

    @classmethod
    def json(cls, value: Any, **fields: Any) -> Message:
        """A message whose payload is `value` as compact UTF-8 JSON."""
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"The value cannot be written as JSON: {error}.") from error
        return cls(text, **fields)


class StoredMessage(msgspec.Struct, frozen=True):
    """A message as the log holds it, with its place and time."""

    partition: int
    offset: int
    id: str
    payload: bytes
    key: str | None
    headers: Mapping[str, str]
    published_at_ms: int
    expires_at_ms: int | None

    @property
    def published_at(self) -> datetime:
        """When it was stored, by the store's clock."""
        return from_ms(self.published_at_ms)

    @property
    def expires_at(self) -> datetime | None:
        """After this moment it is not delivered."""
        return None if self.expires_at_ms is None else from_ms(self.expires_at_ms)

    def json(self) -> Any:
        """The payload read as JSON."""
        return json.loads(self.payload)


class Admitted(msgspec.Struct, frozen=True):
    """What has been published of a job's stages: messages, those that the queue had already, and those yet to come.

    `duplicate`: all of it was published before; nothing was stored now.
    """

    messages: int
    duplicates: int = 0
    left: int = 0
    duplicate: bool = False


class Replayed(msgspec.Struct, frozen=True):
    """What went back to a group: messages, and how many were in its backlog anyway.

    `duplicate`: this version of the job was done before; nothing was done now.
    """

    messages: int
    pending: int = 0
    duplicate: bool = False


class Failure(msgspec.Struct, frozen=True):
    """One failed attempt in a message's history."""

    attempt: int
    at_ms: int
    what: str
    reason: str
    consumer: str


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that was given up for one group, with why.

    `corrupt` says why its payload cannot be read, if so: it is then empty, and not served as something else.
    """

    message: StoredMessage
    attempts: int
    reason: str
    buried_at_ms: int
    history: tuple[Failure, ...]
    corrupt: str = ""

    @property
    def id(self) -> str:
        """The message's id: what redrive takes."""
        return self.message.id

    @property
    def payload(self) -> bytes:
        """The message's payload."""
        return self.message.payload

    @property
    def buried_at(self) -> datetime:
        """When it was given up."""
        return from_ms(self.buried_at_ms)


class QueuedMessage(msgspec.Struct, frozen=True):
    """A message of a queue as it stands.

    `state`: ready, waiting (not due yet), retrying (failed, due again later), leased, dead, or finished:
    of that nothing is left but that it was there. Priority and due time are the present ones, after moves.
    """

    id: str
    state: str
    partition: int
    offset: int
    payload: bytes | None = None
    key: str | None = None
    headers: Mapping[str, str] = {}
    lane: str | None = None
    priority: int = 0
    due_at_ms: int | None = None
    expires_at_ms: int | None = None
    published_at_ms: int | None = None
    attempts: int = 0
    consumer: str | None = None
    lease_expires_at_ms: int | None = None
    cancelled: bool = False
    history: tuple[Failure, ...] = ()

    @property
    def due(self) -> datetime | None:
        """When it is due."""
        return None if self.due_at_ms is None else from_ms(self.due_at_ms)

    @property
    def place(self) -> tuple[int, int]:
        """Where it is: what browse takes as `after`."""
        return self.partition, self.offset

    def json(self) -> Any:
        """The payload read as JSON."""
        return json.loads(self.payload or b"null")


class Span(msgspec.Struct, frozen=True):
    """Where part of a published batch went: `count` offsets from `first_offset` on."""

    partition: int
    partition_id: int
    first_offset: int
    count: int


class Receipt(msgspec.Struct, frozen=True):
    """What publish answers: the batch is on stable storage.

    `duplicate` says that this publish id had been stored before and nothing was added now.
    """

    publish_id: str
    count: int
    spans: tuple[Span, ...]
    duplicate: bool = False
    # Which span each message went to, in the order given; None when there is only one span.
    routes: tuple[int, ...] | None = None
    given_ids: tuple[str | None, ...] | None = None
    # Messages that were not stored because their id is in use: by index, where the one that has it is.
    duplicates: Mapping[int, tuple[int, int]] = {}

    @property
    def positions(self) -> list[tuple[int, int]]:
        """(partition, offset) of every message, in the order given; of a duplicate, those of the one before it.

        Empty if it was published inside an application's transaction on PostgreSQL: it is placed after the commit.
        """
        if not self.spans and not self.duplicates:
            # Published inside an application's transaction: they are placed when it has committed.
            return []
        following = [span.first_offset for span in self.spans]
        stored: list[tuple[int, int]] = []
        for route in self.routes or (0,) * (self.count - len(self.duplicates)):
            stored.append((self.spans[route].partition, following[route]))
            following[route] += 1
        left = iter(stored)
        return [self.duplicates[at] if at in self.duplicates else next(left) for at in range(self.count)]

    @property
    def ids(self) -> list[str]:
        """The id of every message, in the order given: yours, or the one that Duly made."""
        given = self.given_ids or (None,) * self.count
        known = [own for own in given if own is not None]
        if len(known) == self.count:
            return known
        partition_ids = {span.partition: span.partition_id for span in self.spans}
        return [
            own if own is not None else made_id(partition_ids[partition], offset)
            for own, (partition, offset) in zip(given, self.positions, strict=True)
        ]


def made_id(partition_id: int, offset: int) -> str:
    """The id of a message that was published without one: its place, which is never reused."""
    return f"{MADE_ID_MARK}{partition_id}-{offset}"
