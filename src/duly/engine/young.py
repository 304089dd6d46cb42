"""The young end of a queue's log: what was published and is in no run yet, as it is looked at and remembered."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ..store.contract import QueueRow, Transaction
from .block import Block
from .entries import Entries, concat, lane_hash, make_entries
from .views import order_of


def entries_of(tx: Transaction, partition: int, block: Block) -> Entries:
    """The entries of a log block. The young end is looked at again whenever somebody else had a turn: kept."""
    key = ("young entries", partition, block.base)
    known: tuple[Block, Entries] | None = tx.cached(key)
    # The very same block: of a transaction that is undone, another one may get the offsets.
    if known is not None and known[0] is block:
        return known[1]
    entries = _make_entries_of(block)
    tx.cache(key, (block, entries), entries.bytes + block.columns.bytes)
    return entries


def _make_entries_of(block: Block) -> Entries:
    columns = block.columns
    names = columns.names
    lane: Any = None
    if "lane" in names:
        codes, distinct = columns.coded("lane")
        hashes = np.array([*(lane_hash(name) for name in distinct), 0], np.uint64)
        lane = hashes[codes]
    return make_entries(
        np.arange(block.base, block.end, dtype=np.int64),
        columns.numbers("due_at", block.published_at) if "due_at" in names else block.published_at,
        columns.numbers("priority", 0) if "priority" in names else 0,
        lane,
    )


class Outlook(msgspec.Struct, frozen=True):
    """What was prepared for the next claims: good after somebody else's turn as well, less what that one took."""

    absorbed_to: int
    # How far the young end was looked at, and what was left of it; None: not to be used.
    seen_to: int | None
    young: tuple[tuple[int, Entries], ...]
    # By kind: the serial of what was merged ahead, and the runs in it.
    ahead: dict[int, tuple[int, tuple[int, ...]]]


def young_after(outlook: Outlook | None, row: QueueRow) -> tuple[int | None, tuple[tuple[int, Entries], ...]]:
    """How far the young end was looked at before, and what is left of it by the bits of those that were served."""
    if outlook is None or outlook.seen_to is None or outlook.absorbed_to != row.absorbed_to:
        return None, ()
    left = [(kind, entries.take(~is_taken(row, entries.seq))) for kind, entries in outlook.young]
    return outlook.seen_to, tuple((kind, entries) for kind, entries in left if len(entries))


def is_taken(row: QueueRow, seqs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which of the messages at the young end have been served."""
    bits = np.unpackbits(np.frombuffer(row.taken, np.uint8), bitorder="little")
    at = seqs - row.absorbed_to
    inside = (at >= 0) & (at < len(bits))
    found = np.zeros(len(seqs), bool)
    found[inside] = bits[at[inside]] == 1
    return found


def packed(bits: np.ndarray[Any, Any]) -> bytes:
    """Bits as a row has them; none, if none is set."""
    return np.packbits(bits, bitorder="little").tobytes() if bits.any() else b""


def few(young: list[tuple[int, Entries]]) -> tuple[tuple[int, Entries], ...]:
    """Stretches of entries as one of each kind, when they have become many."""
    if len(young) <= 3:
        return tuple(young)
    together = []
    for kind in sorted({kind for kind, _ in young}):
        entries = concat([entries for of_kind, entries in young if of_kind == kind])
        together.append((kind, entries.take(order_of(kind)(entries))))
    return tuple(together)
