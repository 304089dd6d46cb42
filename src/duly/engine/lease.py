"""Leases as values: which messages, which are done, how an expired one is cut.

    claim ─▶ LEASED ──ack──▶ gone
               │ nack (back-off, attempt kept) ─▶ WAITING ─ due ─▶ claim
               │ release (at once, attempt given back) ─▶ WAITING
               │ expiry: due again by itself; handed out in halves, by itself, until the poison
               │         stands alone; only what failed alone is buried by expiry
               └ last attempt ─▶ dead letter

A row's id is its fencing epoch: whoever takes a row over deletes it and inserts another, so an
old token names nothing and is refused. Ids are never reused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from ..limits import LIMITS
from ..message import Failure
from ..store.contract import LeaseRow

_history = msgspec.msgpack.Decoder(tuple[Failure, ...])


def offset_of(row: LeaseRow, index: int) -> int:
    """The log offset of the lease's message number `index`."""
    return row.base + index if row.offsets is None else row.offsets[index]


def live_indexes(row: LeaseRow) -> list[int]:
    """The messages that are not settled yet, by index."""
    if row.settled is None:
        return list(range(row.count))
    return [index for index in range(row.count) if not _bit(row.settled, index)]


def live_offsets(row: LeaseRow) -> list[int]:
    """The messages that are not settled yet, by offset."""
    return [offset_of(row, index) for index in live_indexes(row)]


def is_live(row: LeaseRow, index: int) -> bool:
    """Whether the index is one of the lease's and not settled."""
    return 0 <= index < row.count and not (row.settled is not None and _bit(row.settled, index))


def settle_bits(row: LeaseRow, indexes: Iterable[int]) -> bytes:
    """The row's bitmap with these messages done."""
    bits = bytearray(row.settled or bytes((row.count + 7) // 8))
    for index in indexes:
        bits[index // 8] |= 1 << index % 8
    return bytes(bits)


def _bit(bits: bytes, index: int) -> int:
    return bits[index // 8] >> index % 8 & 1


def over(row: LeaseRow, offsets: Sequence[int]) -> LeaseRow:
    """The row made to hold just these offsets, ascending, none settled; compact when contiguous."""
    first, count = offsets[0], len(offsets)
    contiguous = offsets[-1] - first + 1 == count
    return replace(
        row,
        id=0,
        base=first,
        count=count,
        live=count,
        offsets=None if contiguous else tuple(offsets),
        settled=None,
    )


def read_history(stored: bytes | None) -> tuple[Failure, ...]:
    """What went wrong so far, oldest first."""
    return () if stored is None else _history.decode(stored)


def add_failure(stored: bytes | None, failure: Failure) -> bytes:
    """The history with one more failure; the oldest go when there are too many."""
    kept = (*read_history(stored), failure)[-LIMITS.history_entries_max :]
    return msgspec.msgpack.encode(kept)
