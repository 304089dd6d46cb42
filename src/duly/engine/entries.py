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
    """A stretch of index entries, in some order."""

    __slots__ = ("due", "lane", "loose", "priority", "seq", "tag")

    def __init__(self, priority: Array, tag: Array, due: Array, seq: Array, lane: Array, loose: Array) -> None:
        self.priority = priority
        self.tag = tag
        self.due = due
        self.seq = seq
        self.lane = lane
        self.loose = loose

    def __len__(self) -> int:
        return len(self.seq)

    def take(self, which: Any) -> Entries:
        """The entries at some indexes, under a mask, or in a slice."""
        return Entries(
            self.priority[which], self.tag[which], self.due[which], self.seq[which], self.lane[which], self.loose[which]
        )

    @property
    def bytes(self) -> int:
        """What they take in memory."""
        return len(self.seq) * 35 + 200


def make_entries(seq: Any, due: Any, priority: Any = 0, lane: Any = 0, tag: Any = 0.0, loose: Any = False) -> Entries:
    """Entries from columns; a single value stands for all."""
    count = len(seq)
    return Entries(
        np.ascontiguousarray(np.broadcast_to(np.asarray(priority, np.uint16), count)),
        np.ascontiguousarray(np.broadcast_to(np.asarray(tag, np.float64), count)),
        np.ascontiguousarray(np.broadcast_to(np.asarray(due, np.int64), count)),
        np.asarray(seq, np.int64),
        np.ascontiguousarray(np.broadcast_to(np.asarray(lane, np.uint64), count)),
        np.ascontiguousarray(np.broadcast_to(np.asarray(loose, np.bool_), count)),
    )


NONE = make_entries(np.zeros(0, np.int64), 0)


def concat(parts: Sequence[Entries]) -> Entries:
    """Several stretches, one after another."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NONE
    return Entries(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))


_COLUMNS = ("priority", "tag", "due", "seq", "lane", "loose")


def order_ready(entries: Entries) -> Array:
    """The indexes in the order of service: priority, tag, due, seq."""
    if entries.tag.any():
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
    for bit, column in ((_TAGS, entries.tag), (_LANES, entries.lane), (_LOOSE, entries.loose)):
        if column.any():
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
    tag = column(np.float64) if mask & _TAGS else np.zeros(count, np.float64)
    lane = column(np.uint64) if mask & _LANES else np.zeros(count, np.uint64)
    loose = column(np.bool_) if mask & _LOOSE else np.zeros(count, np.bool_)
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
