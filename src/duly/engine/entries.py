"""The entries of a queue's index: what decides when a message is served, by column.

    priority  0 first
    tag       when its lane's turn comes among lanes of that priority (fairness.py); 0 in the default lane
    due       milliseconds since 1970
    seq       its offset in the log: the order of arrival, and the name that never changes
    lane      hash of its lane's name; 0 for the default lane
    loose     whether it has a row of its own besides (it failed before, or was moved)

Stored as plain arrays behind a checksum, the absent columns left out, small ranges in four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from ..errors import CorruptBlock

_HEADER = struct.Struct("<2sBBIqqQ")
_MAGIC = b"DQ"
_FORMAT = 1
_TAGS, _LANES, _LOOSE, _WIDE_DUE, _WIDE_SEQ = 1, 2, 4, 8, 16

Array = np.ndarray[Any, Any]


class Entries:
    """A stretch of index entries, in some order. A tag, lane or looseness that none of them has is not there at all."""

    __slots__ = ("_lane", "_loose", "_tag", "due", "priority", "seq")

    def __init__(
        self, priority: Array, tag: Array | None, due: Array, seq: Array, lane: Array | None, loose: Array | None
    ) -> None:
        self.priority = priority
        self._tag = tag
        self.due = due
        self.seq = seq
        self._lane = lane
        self._loose = loose

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def tag(self) -> Array:
        """When their lanes' turns come."""
        return np.zeros(len(self.seq), np.float64) if self._tag is None else self._tag

    @property
    def lane(self) -> Array:
        """Their lanes."""
        return np.zeros(len(self.seq), np.uint64) if self._lane is None else self._lane

    @property
    def loose(self) -> Array:
        """Which have rows of their own."""
        return np.zeros(len(self.seq), np.bool_) if self._loose is None else self._loose

    @property
    def has_tags(self) -> bool:
        """Whether any has a tag."""
        return self._tag is not None and bool(self._tag.any())

    @property
    def has_lanes(self) -> bool:
        """Whether any is in a named lane."""
        return self._lane is not None and bool(self._lane.any())

    @property
    def has_loose(self) -> bool:
        """Whether any has a row of its own."""
        return self._loose is not None and bool(self._loose.any())

    def take(self, which: Any) -> Entries:
        """The entries at some indexes, under a mask, or in a slice."""
        tag, lane, loose = self._tag, self._lane, self._loose
        return Entries(
            self.priority[which],
            None if tag is None else tag[which],
            self.due[which],
            self.seq[which],
            None if lane is None else lane[which],
            None if loose is None else loose[which],
        )

    @property
    def bytes(self) -> int:
        """What they take in memory."""
        return len(self.seq) * 35 + 200


def make_entries(
    seq: Any, due: Any, priority: Any = 0, lane: Any = None, tag: Any = None, loose: Any = None
) -> Entries:
    """Entries from columns; a single value stands for all."""
    count = len(seq)
    return Entries(
        _column(priority, np.uint16, count),
        None if tag is None else _column(tag, np.float64, count),
        _column(due, np.int64, count),
        np.asarray(seq, np.int64),
        None if lane is None else _column(lane, np.uint64, count),
        None if loose is None else _column(loose, np.bool_, count),
    )


def _column(values: Any, kind: Any, count: int) -> Array:
    if isinstance(values, (int, float)):
        return np.full(count, values, kind)
    return np.ascontiguousarray(values, kind)


NONE = make_entries(np.zeros(0, np.int64), 0)


def concat(parts: Sequence[Entries]) -> Entries:
    """Several stretches, one after another."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NONE
    return Entries(
        np.concatenate([part.priority for part in parts]),
        None if all(part._tag is None for part in parts) else np.concatenate([part.tag for part in parts]),
        np.concatenate([part.due for part in parts]),
        np.concatenate([part.seq for part in parts]),
        None if all(part._lane is None for part in parts) else np.concatenate([part.lane for part in parts]),
        None if all(part._loose is None for part in parts) else np.concatenate([part.loose for part in parts]),
    )


def order_ready(entries: Entries) -> Array:
    """The indexes in the order of service: priority, tag, due, seq."""
    if entries.has_tags:
        return np.lexsort((entries.seq, entries.due, entries.tag, entries.priority))
    if not len(entries):
        return entries.seq
    due, seq, due_bits, seq_bits = _spans(entries)
    if due_bits + seq_bits > 47:
        return np.lexsort((entries.seq, entries.due, entries.priority))
    # All in one number: it is sorted ten times faster than three columns are.
    return np.argsort(entries.priority.astype(np.int64) << 47 | due << seq_bits | seq)


def order_waiting(entries: Entries) -> Array:
    """The indexes in the order in which they fall due; of those that do together, in the order of service."""
    if not len(entries):
        return entries.seq
    due, seq, due_bits, seq_bits = _spans(entries)
    if due_bits + seq_bits > 47:
        return np.lexsort((entries.seq, entries.priority, entries.due))
    return np.argsort(due << 16 + seq_bits | entries.priority.astype(np.int64) << seq_bits | seq)


def _spans(entries: Entries) -> tuple[Array, Array, int, int]:
    """Due times and seqs, each from its least on, and how many bits they take."""
    due, seq = entries.due - entries.due.min(), entries.seq - entries.seq.min()
    return due, seq, int(due.max()).bit_length(), int(seq.max()).bit_length()


def encode_entries(entries: Entries, place: int) -> bytes:
    """Their bytes. `place` (run and block) goes into the checksum: moved elsewhere they are corrupt."""
    count = len(entries)
    due_low = int(entries.due.min(initial=2**62)) if count else 0
    seq_low = int(entries.seq.min(initial=2**62)) if count else 0
    mask = 0
    arrays = [entries.priority]
    for base, column, wide in ((due_low, entries.due, _WIDE_DUE), (seq_low, entries.seq, _WIDE_SEQ)):
        shifted = column - base
        if count and int(shifted.max()) >= 2**32:
            mask |= wide
            arrays.append(shifted)
        else:
            arrays.append(shifted.astype(np.uint32))
    for bit, used, column in (
        (_TAGS, entries.has_tags, entries.tag),
        (_LANES, entries.has_lanes, entries.lane),
        (_LOOSE, entries.has_loose, entries.loose),
    ):
        if used:
            mask |= bit
            arrays.append(column)
    body = b"".join([array.tobytes() for array in arrays])
    head = _HEADER.pack(_MAGIC, _FORMAT, mask, count, due_low, seq_low, 0)
    check = xxhash.xxh3_64_intdigest(head + body, place)
    return _HEADER.pack(_MAGIC, _FORMAT, mask, count, due_low, seq_low, check) + body


def decode_entries(stored: object, place: int, *, partition: int, run: int) -> Entries:
    """Reads them back. Raises CorruptBlock unless every bit is right."""
    if not isinstance(stored, bytes) or len(stored) < _HEADER.size or stored[:2] != _MAGIC:
        raise _corrupt(partition, run)
    magic, version, mask, count, due_low, seq_low, check = _HEADER.unpack_from(stored)
    head = _HEADER.pack(magic, version, mask, count, due_low, seq_low, 0)
    if xxhash.xxh3_64_intdigest(head + stored[_HEADER.size :], place) != check:
        raise _corrupt(partition, run)
    at = _HEADER.size

    def column(kind: Any) -> Array:
        nonlocal at
        found: Array = np.frombuffer(stored, kind, count, at)
        at += found.nbytes
        return found

    priority = column(np.uint16)
    due = column(np.int64 if mask & _WIDE_DUE else np.uint32).astype(np.int64) + due_low
    seq = column(np.int64 if mask & _WIDE_SEQ else np.uint32).astype(np.int64) + seq_low
    tag = column(np.float64) if mask & _TAGS else None
    lane = column(np.uint64) if mask & _LANES else None
    loose = column(np.bool_) if mask & _LOOSE else None
    return Entries(priority, tag, due, seq, lane, loose)


def place_of(run: int, index: int) -> int:
    """The place of a run's block."""
    return run << 20 | index


def _corrupt(partition: int, run: int) -> CorruptBlock:
    return CorruptBlock(
        f"Run {run} of partition {partition} is corrupt. It is not served. Run `duly doctor`; restore a backup.",
        partition_id=partition,
        base=0,
    )


def lane_hash(name: str) -> int:
    """A lane's number: never 0, which is the default lane's."""
    return (xxhash.xxh3_64_intdigest(name.encode()) & 2**63 - 1) or 1
