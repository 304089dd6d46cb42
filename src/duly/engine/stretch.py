"""A stretch of a log as columns, a piece at a time: what DoGet and Spark read."""

from __future__ import annotations

import msgspec

from ..store.contract import Transaction
from .claimed import Slice
from .find import find_log, head_of
from .read import check_offset, partition_id

# Read in one transaction; the next piece begins where this one ends.
_PIECE_BYTES = 8 * 1024 * 1024


class Stretch(msgspec.Struct, frozen=True):
    """Offsets [offset, end) of one partition; without an end, up to what is there when it is read."""

    tenant: str
    topic: str
    partition: int
    offset: int
    end: int | None = None


class Piece(msgspec.Struct, frozen=True):
    """The next messages of a stretch, and where the rest of it begins; None: there is no rest."""

    partition_id: int
    slices: tuple[Slice, ...]
    rest: int | None


def read_piece(tx: Transaction, stretch: Stretch) -> Piece:
    """Messages from the beginning of a stretch on. Raises OffsetTruncated, CorruptBlock; never skips in silence."""
    topic = find_log(tx, stretch.tenant, stretch.topic)
    partition = partition_id(topic, stretch.partition)
    head = head_of(tx, topic.tenant_id, partition)
    check_offset(topic, stretch.partition, head, stretch.offset)
    stop = head.next_offset if stretch.end is None else min(stretch.end, head.next_offset)
    slices: list[Slice] = []
    at, size = stretch.offset, 0
    if at < stop:
        for block in tx.blocks(topic.tenant_id, partition, at, stop):
            low, high = at - block.base, min(stop, block.end) - block.base
            slices.append(Slice(block, low, high, 0))
            at, size = block.base + high, size + block.columns.bytes
            if size >= _PIECE_BYTES:
                break
    return Piece(partition, tuple(slices), at if at < stop else None)
