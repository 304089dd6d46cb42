"""A stretch of a topic's log, a piece at a time: what `read_arrow`, DoGet and Spark read.

The log of a log has no gaps: an offset that it should have and has not is said (OffsetTruncated, CorruptBlock). That of
a queue has, where all was settled; what was still needed there was copied out, and is read in its place. With archiving
on nothing above the watermark may be dropped: a gap that reaches above it, and above where the log ended when archiving
was turned on, is said as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from ..errors import InvalidArgument, OffsetTruncated
from ..store.contract import BlockMeta, Head, TopicRow, Transaction
from .block import Block
from .claimed import Slice
from .find import find_topic, head_of
from .read import check_offset, partition_id

# A piece is read in one transaction, and becomes one record batch; the next begins where it ends.
_PIECE_BYTES = 8 * 1024 * 1024
_PIECE_MESSAGES = 64 * 1024

# What can be read of a message, in order; stretch_arrow.py has their types.
READ_COLUMNS = (
    "partition",
    "offset",
    "published_at",
    "id",
    "key",
    "headers",
    "expires_at",
    "payload",
    "lane",
    "priority",
    "due_at",
)


class Stretch(msgspec.Struct, frozen=True):
    """Offsets [offset, end) of one partition; without an end, up to what is there when it is read.

    `columns` are those that are wanted; none: all. With `missing_ok` a queue's gaps are passed wherever they are: what
    was dropped before archiving was turned on is not to be had.
    """

    tenant: str
    topic: str
    partition: int
    offset: int
    end: int | None = None
    columns: tuple[str, ...] = ()
    missing_ok: bool = False


class Piece(msgspec.Struct, frozen=True):
    """The next messages of a stretch, where the rest of it begins (None: there is no rest), and where it ends."""

    partition_id: int
    queue: bool
    slices: tuple[Slice, ...]
    rest: int | None
    end: int


def check_columns(names: Iterable[str]) -> None:
    """Columns that can be read. Raises InvalidArgument."""
    for name in names:
        if name not in READ_COLUMNS:
            raise InvalidArgument(f"There is no column {name!r} to read. There are {', '.join(READ_COLUMNS)}.")


def read_piece(tx: Transaction, stretch: Stretch) -> Piece:
    """Messages from the beginning of a stretch on. Raises OffsetTruncated, CorruptBlock; never skips in silence."""
    topic = find_topic(tx, stretch.tenant, stretch.topic)
    partition = partition_id(topic, stretch.partition)
    head = head_of(tx, topic.tenant_id, partition)
    queue = topic.settings.kind == "queue"
    check_offset(topic, stretch.partition, head, max(stretch.offset, head.first_offset) if queue else stretch.offset)
    stop = head.next_offset if stretch.end is None else min(stretch.end, head.next_offset)
    found = _left(tx, topic, stretch, stop) if queue else tx.blocks(topic.tenant_id, partition, stretch.offset, stop)
    slices: list[Slice] = []
    at, size, count = stretch.offset, 0, 0
    if at < stop:
        for block in found:
            low, high = max(at, block.base) - block.base, min(stop, block.end) - block.base
            slices.append(Slice(block, low, high, 0))
            at, size, count = block.base + high, size + block.columns.bytes, count + high - low
            if size >= _PIECE_BYTES or count >= _PIECE_MESSAGES:
                break
        else:
            at = stop
    return Piece(partition, queue, tuple(slices), at if at < stop else None, stop)


def _left(tx: Transaction, topic: TopicRow, stretch: Stretch, stop: int) -> Iterator[Block]:
    """What is left of a queue's log, and what was copied out of it, in order."""
    partition = partition_id(topic, stretch.partition)
    head = head_of(tx, topic.tenant_id, partition)
    kept = iter([o for o in tx.kept_offsets(topic.tenant_id, partition) if stretch.offset <= o < stop])
    lonely = next(kept, stop)
    at = stretch.offset
    for low, high in _runs(tx, topic, partition, max(at, head.first_offset), stop):
        if not stretch.missing_ok:
            _check_gap(topic, stretch.partition, head, at, low)
        while lonely < low:
            yield tx.kept(topic.tenant_id, partition, lonely)
            lonely = next(kept, stop)
        if low < high:
            yield from tx.blocks(topic.tenant_id, partition, low, high)
        at = high


def _runs(tx: Transaction, topic: TopicRow, partition: int, at: int, stop: int) -> Iterator[tuple[int, int]]:
    """Where blocks lie without a gap between them, about a piece at a time; the last is empty, at the end."""
    before = tx.block_before(topic.tenant_id, partition, at)
    metas: Iterator[BlockMeta] = tx.block_metas(topic.tenant_id, partition, at + 1 if before is not None else at)
    if before is not None and before.end > at:
        metas = chain([before], metas)
    low = high = at
    size = 0
    for meta in metas:
        if meta.base >= stop:
            break
        if low < high and (meta.base != high or size >= _PIECE_BYTES):
            yield low, high
            low = high
            size = 0
        if low == high:
            low = max(at, meta.base)
        high, size = min(meta.end, stop), size + meta.bytes
    if low < high:
        yield low, high
    yield stop, stop


def _check_gap(topic: TopicRow, number: int, head: Head, low: int, high: int) -> None:
    kept_from = max(head.archived_to, head.archive_from)
    if low < high and topic.settings.archive and high > kept_from:
        raise OffsetTruncated(
            f"Offsets {max(low, kept_from)} to {high - 1} of partition {number} of {topic.name!r} are not in "
            f"its log, and above what is archived ({head.archived_to}). Run `duly doctor`; read from {high}.",
            first_offset=high,
        )
