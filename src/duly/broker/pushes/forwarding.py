"""What becomes of a message that is forwarded into another topic: what it takes along and what it is given.

Payload, key, headers and an id that its publisher gave travel as they are. To a queue comes what the push says of due
time, priority and lane, or what the message had of these in a queue before. Two headers are ours:

- `duly-from` says where it was last: topic/partition/offset. A message whose headers are full travels without it.
- A message that was forwarded before, and belongs to no operation yet, gets one made of its place (causal.py). So two
  pushes that lead to each other are stopped by the operation's budget, and one that leads on costs nothing for it.

An expiry is a moment and stays that moment. One that is to be due later than it was lives as much longer: a time to
live counts from the due time, so a delay does not let it expire on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from ...causal import is_operation, operation_at
from ...engine.claimed import Claimed, Parcel
from ...engine.incoming import Checked, check_columns
from ...engine.verdict import Token
from ...expression import Expression, Subject, check_expression
from ...limits import LIMITS
from ...message import MADE_ID_MARK, OPERATION, made_id
from ...push import ToTopic

FROM = "duly-from"
_GIVEN = ("payload", "id", "key", "headers", "expires_at", "lane", "priority", "due_at")
# Where a row has them.
HEADERS = _GIVEN.index("headers")


class Taken(msgspec.Struct, gc=False):
    """A claimed message: where it is held, where it lies, what it is."""

    lease_id: int
    index: int
    partition: int
    partition_id: int
    offset: int
    published_ms: int
    payload: bytes
    given_id: str | None
    key: str | None
    headers: Mapping[str, str] | None
    expires_at: int | None
    lane: str | None
    priority: int | None
    due_at: int | None


def taken_of(claimed: Claimed, *, in_places: bool) -> list[Taken]:
    """The messages of a claim, as they were served or, of a log, in the order of their places."""
    found = [one for parcel in claimed.parcels for one in _unpacked(parcel)]
    if in_places:
        found.sort(key=attrgetter("partition", "offset"))
    return found


def _unpacked(parcel: Parcel) -> Iterable[Taken]:
    lease_id, number, partition_id = parcel.lease_id, parcel.partition, parcel.partition_id
    for part in parcel.slices:
        columns, start, stop = part.block.columns, part.start, part.stop
        none = [None] * (stop - start)
        base = part.block.base
        offsets = columns.values("offset", start, stop) or range(base + start, base + stop)
        moments = columns.values("published_at", start, stop) or [part.block.published_at] * len(none)
        others = [columns.values(name, start, stop) or none for name in _GIVEN]
        for shift, (offset, moment, *row) in enumerate(zip(offsets, moments, *others, strict=True)):
            yield Taken(lease_id, part.first_index + shift, number, partition_id, offset, moment, *row)


def tokens_of(some: Sequence[Taken], sizes: Mapping[int, int]) -> tuple[Token, ...]:
    """What names these messages in a verdict; `sizes` are how many are open of each lease: all of one need no list."""
    by_lease: dict[int, list[int]] = {}
    for one in some:
        by_lease.setdefault(one.lease_id, []).append(one.index)
    return tuple(
        Token(lease, None if len(indexes) == sizes.get(lease) else tuple(indexes))
        for lease, indexes in by_lease.items()
    )


class Forwarding:
    """How messages of one topic become messages of another."""

    def __init__(self, source: str, to: ToTopic, *, into_queue: bool) -> None:
        self._source = source
        self.into_queue = into_queue
        self._due = _read(to.due, "due")
        self._priority = _read(to.priority, "priority")
        self._lane = _read(to.lane, "lane")
        self.asks = self._due is not None or self._priority is not None or self._lane is not None

    def row(self, one: Taken, now_ms: int) -> tuple[Any, ...]:
        """The message as it will be published, in the order of the columns. Raises InvalidArgument."""
        given_id = one.given_id if one.given_id and not one.given_id.startswith(MADE_ID_MARK) else None
        headers = self._headers(one)
        if not self.into_queue:
            return one.payload, given_id, one.key, headers, one.expires_at, None, None, None
        lane, priority, due_at = one.lane, one.priority, one.due_at
        if self.asks:
            subject = self._subject(one, now_ms)
            lane = lane if self._lane is None else self._lane.lane(subject)
            priority = priority if self._priority is None else self._priority.priority(subject)
            due_at = due_at if self._due is None else self._due.due_ms(subject)
        return one.payload, given_id, one.key, headers, _expiry(one, due_at), lane, priority, due_at

    def _subject(self, one: Taken, now_ms: int) -> Subject:
        return Subject(
            one.payload,
            now_ms=now_ms,
            published_ms=one.published_ms,
            topic=self._source,
            id=one.given_id or made_id(one.partition_id, one.offset),
            key=one.key,
            headers=one.headers,
            lane=one.lane,
            priority=one.priority or 0,
            due_ms=one.due_at,
        )

    def _headers(self, one: Taken) -> dict[str, str]:
        place = f"{self._source}/{one.partition}/{one.offset}"
        if not one.headers:
            return {FROM: place}
        headers = dict(one.headers)
        if FROM in headers and not is_operation(headers.get(OPERATION)):
            headers[OPERATION] = operation_at(self._source, one.partition_id, one.offset)
        headers.pop(FROM, None)
        if _have_room(headers, place):
            headers[FROM] = place
        return headers


def _read(text: str | None, what: str) -> Expression | None:
    return None if text is None else check_expression(text, what)


def _have_room(headers: Mapping[str, str], place: str) -> bool:
    own = OPERATION in headers
    if len(headers) - own >= LIMITS.headers_max:
        return False
    taken = sum(len(name.encode()) + len(text.encode()) for name, text in headers.items() if name != OPERATION)
    return taken + len(FROM) + len(place.encode()) <= LIMITS.headers_bytes_max


def _expiry(one: Taken, due_at: int | None) -> int | None:
    if one.expires_at is None or due_at is None:
        return one.expires_at
    counted_from = one.published_ms if one.due_at is None else one.due_at
    return one.expires_at + max(0, due_at - counted_from)


def batch_of(rows: Sequence[tuple[Any, ...]]) -> Checked:
    """Messages as a batch to publish. Raises InvalidArgument, with the index of the one at fault."""
    columns = dict(zip(_GIVEN, map(list, zip(*rows, strict=True)), strict=True))
    used = {name: column for name, column in columns.items() if any(value is not None for value in column)}
    return check_columns({"payload": columns["payload"], **used}, None, relative=False)
