"""What a lease on a queue's messages remembers of each: enough to put it back without reading it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ..store.contract import LeaseRow
from .block import Block, Place
from .claimed import Parcel, Slice
from .columns import Columns
from .entries import Entries


class Keys(msgspec.Struct, frozen=True, array_like=True):
    """By message, as arrays in bytes; None where all are the same: lane 0, first attempt, not loose."""

    priorities: bytes
    lanes: bytes | None = None
    attempts: bytes | None = None
    loose: bytes | None = None
    expiries: bytes | None = None

    def priority(self, index: int) -> int:
        """Its priority when it was claimed."""
        return int.from_bytes(self.priorities[2 * index : 2 * index + 2], "little")

    def lane(self, index: int) -> int:
        """Its lane's number."""
        return 0 if self.lanes is None else int.from_bytes(self.lanes[8 * index : 8 * index + 8], "little")

    def attempt(self, index: int) -> int:
        """Which delivery this is."""
        return 1 if self.attempts is None else int.from_bytes(self.attempts[2 * index : 2 * index + 2], "little")

    def is_loose(self, index: int) -> bool:
        """Whether it has a row of its own."""
        return self.loose is not None and bool(self.loose[index])

    def expired(self, index: int, now_ms: int) -> bool:
        """Whether it is past its expiry."""
        if self.expiries is None:
            return False
        return int.from_bytes(self.expiries[8 * index : 8 * index + 8], "little") <= now_ms

    def stretch(self, start: int, stop: int) -> Keys:
        """Those of neighbouring messages."""
        lanes, loose, expiries = self.lanes, self.loose, self.expiries
        return Keys(
            self.priorities[2 * start : 2 * stop],
            None if lanes is None else lanes[8 * start : 8 * stop],
            None if self.attempts is None else self.attempts[2 * start : 2 * stop],
            None if loose is None or not any(loose[start:stop]) else loose[start:stop],
            None if expiries is None else expiries[8 * start : 8 * stop],
        )

    def some(self, indexes: Sequence[int]) -> Keys:
        """Those of some messages."""

        def pick(column: bytes | None, width: int) -> bytes | None:
            return None if column is None else b"".join([column[width * i : width * i + width] for i in indexes])

        return Keys(
            pick(self.priorities, 2) or b"",
            pick(self.lanes, 8),
            pick(self.attempts, 2),
            pick(self.loose, 1),
            pick(self.expiries, 8),
        )


_keys = msgspec.msgpack.Decoder(Keys)
_encode = msgspec.msgpack.Encoder().encode


def make_keys(entries: Entries, expires: np.ndarray[Any, Any] | None) -> Keys:
    """The keys of messages about to be claimed, for the first time as far as is known; `expires` None: none ever."""
    return Keys(
        entries.priority.tobytes(),
        entries.lane.tobytes() if entries.has_lanes else None,
        None,
        entries.loose.tobytes() if entries.has_loose else None,
        None if expires is None else expires.tobytes(),
    )


def encode_keys(keys: Keys, attempts: Sequence[int] | None) -> bytes:
    """The keys as a lease stores them; `attempts` None: the first delivery of all."""
    if attempts is not None:
        keys = replace(keys, attempts=np.array(attempts, np.uint16).tobytes())
    return _encode(keys)


def keys_of(row: LeaseRow) -> Keys:
    """The keys of a lease."""
    assert row.keys is not None
    return _keys.decode(row.keys)


def part_of(row: LeaseRow, indexes: Sequence[int]) -> LeaseRow:
    """The lease made to hold just these of its messages, none settled."""
    assert row.offsets is not None
    offsets = tuple([row.offsets[index] for index in indexes])
    keys = _encode(keys_of(row).some(indexes))
    count = len(offsets)
    return replace(row, id=0, base=min(offsets), count=count, live=count, offsets=offsets, settled=None, keys=keys)


def parcel_of(row: LeaseRow, lease_id: int, number: int, columns: Columns, attempts: Sequence[int] | None) -> Parcel:
    """The messages of a lease as handed to a consumer; `attempts` None: the first delivery of all."""
    block = Block(Place(row.tenant_id, row.partition, row.base), row.count, 0, columns, [])
    each = None if attempts is None else tuple(attempts)
    return Parcel(lease_id, number, row.partition, 1, row.count, (Slice(block, 0, row.count, 0),), each)
