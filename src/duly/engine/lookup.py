"""Messages by their offsets, in any order: from the log, or from where the last ones of old blocks are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import CorruptBlock
from ..store.contract import Transaction
from .block import KEPT, Block, Place, encode
from .columns import Columns, gather
from .publisher import publisher_at


def every(fetch: Callable[[int], Sequence[Any]], after: int = -1) -> Iterator[Any]:
    """All rows that a query gives in pages, each page after the offset of the last row before it."""
    while rows := fetch(after):
        yield from rows
        after = rows[-1].offset


# Of a block of which one message in so many is wanted, or less, only those are touched.
_SPARSE = 4


def messages_at(tx: Transaction, tenant_id: int, partition: int, seqs: Any) -> Columns:
    """The messages at these offsets, in this order, each with its offset and time. Raises CorruptBlock."""
    wanted = np.asarray(seqs, np.int64)
    order = np.argsort(wanted, kind="stable")
    ascending = wanted[order]
    parts: list[Columns] = []
    published_at = np.empty(len(wanted), np.int64)
    # By message: where it is among the parts, laid end to end.
    places = np.empty(len(wanted), np.int64)
    at = laid = 0
    while at < len(ascending):
        block = block_of(tx, tenant_id, partition, int(ascending[at]))
        stop = int(ascending.searchsorted(block.end))
        indexes, own = ascending[at:stop] - block.base, order[at:stop]
        if (stop - at) * _SPARSE >= block.count:
            # Picked once, from all parts together.
            parts.append(block.columns)
            places[own] = indexes + laid
        else:
            parts.append(_some(block, indexes))
            places[own] = np.arange(laid, laid + stop - at)
        laid += parts[-1].count
        published_at[own] = block.published_at
        at = stop
    in_order = laid == len(wanted) and bool((places[1:] > places[:-1]).all())
    return gather(parts, None if in_order else places).having(offset=wanted, published_at=published_at)


def block_of(tx: Transaction, tenant_id: int, partition: int, offset: int) -> Block:
    """The block that holds a message: of the log, or its own."""
    try:
        found: Block = next(iter(tx.blocks(tenant_id, partition, offset, offset + 1)))
    except CorruptBlock:
        if offset not in tx.kept_offsets(tenant_id, partition):
            raise
        found = tx.kept(tenant_id, partition, offset)
    return found


def keep_message(tx: Transaction, place: Place, columns: Columns, published_at: int) -> None:
    """Stores a message of its own, for when its block is gone."""
    who = publisher_at(tx, place.tenant, place.partition, place.base)
    stored = encode(
        place, columns, published_at, [("", 1, who)] if who else [], seal=tx.sealing(place.tenant), bound=KEPT
    )
    tx.kept_insert(place.tenant, place.partition, place.base, stored)


def _some(block: Block, indexes: Any) -> Columns:
    first, count = int(indexes[0]), len(indexes)
    if int(indexes[-1]) - first + 1 == count:
        return block.columns.slice(first, first + count)
    return block.columns.take(indexes)


# Payloads up to this travel with the index; bigger ones are read from the log when they are delivered.
INLINE_MAX = 4096


def without_big(columns: Columns) -> Columns:
    """The messages with big payloads left out."""
    sizes = columns.sizes()
    if not len(sizes) or int(sizes.max()) <= INLINE_MAX:
        return columns
    payloads = columns.values("payload") or []
    return columns.having(payload=[None if len(p or b"") > INLINE_MAX else p for p in payloads])


def light_messages_at(tx: Transaction, tenant_id: int, partition: int, seqs: Any) -> Columns:
    """The messages at these offsets, in this order; of blocks with big payloads only their places, unread."""
    wanted = np.asarray(seqs, np.int64)
    order = np.argsort(wanted, kind="stable")
    big = np.zeros(len(wanted), bool)
    times = np.zeros(len(wanted), np.int64)
    at = 0
    ascending = wanted[order]
    while at < len(order):
        first = int(ascending[at])
        block = tx.block_at_hand(partition, first)
        if block is not None:
            at = int(ascending.searchsorted(block.end))
            continue
        meta = tx.block_before(tenant_id, partition, first)
        stop = at + 1
        if meta is not None and first < meta.end:
            stop = int(ascending.searchsorted(meta.end))
            big[order[at:stop]] = meta.bytes > 2 * INLINE_MAX * meta.count
            times[order[at:stop]] = meta.published_at
        at = stop
    if not big.any():
        return messages_at(tx, tenant_id, partition, wanted)
    stubs, read = np.flatnonzero(big), np.flatnonzero(~big)
    left_out = Columns(
        len(stubs),
        lists={
            "payload": [None] * len(stubs),
            "published_at": times[stubs].tolist(),
            "offset": wanted[stubs].tolist(),
        },
    )
    if not len(read):
        return left_out
    return _put_together(messages_at(tx, tenant_id, partition, wanted[read]), read, left_out, stubs)


def with_big(tx: Transaction, tenant_id: int, partition: int, columns: Columns) -> Columns:
    """The messages with what was left out of them put back."""
    missing = columns.without("payload")
    if not missing:
        return columns
    found = messages_at(tx, tenant_id, partition, columns.numbers("offset", 0)[missing])
    if len(missing) == columns.count:
        return found
    present = np.flatnonzero(~np.isin(np.arange(columns.count), missing))
    return _put_together(columns.take(present), present, found, np.array(missing))


def _put_together(one: Columns, ones: Any, other: Columns, others: Any) -> Columns:
    """Two batches as one, each message at its index."""
    order = np.empty(one.count + other.count, np.int64)
    order[ones] = np.arange(one.count)
    order[others] = one.count + np.arange(other.count)
    return gather([one, other], order)
