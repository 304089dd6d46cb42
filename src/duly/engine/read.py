"""read, offset_at and looking messages up: the log without leases."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import CorruptBlock, InvalidArgument, OffsetTruncated
from ..message import StoredMessage, made_id
from ..store.contract import Head, TopicRow, Transaction
from .block import Block
from .find import find_log, find_topic, head_of
from .lookup import block_of


class Read(msgspec.Struct, frozen=True):
    """A stretch of one partition."""

    tenant: str
    topic: str
    partition: int
    offset: int
    max_messages: int
    max_bytes: int


def read(tx: Transaction, command: Read) -> list[StoredMessage]:
    """Messages from an offset on; an empty list at the end of the log.

    Raises OffsetTruncated when the log no longer has the offset and CorruptBlock when the first
    block cannot be trusted; what lies before a corrupt block is still returned.
    """
    topic = find_log(tx, command.tenant, command.topic)
    partition = partition_id(topic, command.partition)
    head = head_of(tx, topic.tenant_id, partition)
    check_offset(topic, command.partition, head, command.offset)
    found: list[StoredMessage] = []
    budget = command.max_bytes
    stop = min(head.next_offset, command.offset + command.max_messages)
    try:
        for block in tx.blocks(topic.tenant_id, partition, command.offset, stop):
            low = max(command.offset, block.base) - block.base
            for message in stored_messages(block, low, min(stop, block.end) - block.base, command.partition):
                if found and len(message.payload) > budget:
                    return found
                budget -= len(message.payload)
                found.append(message)
    except CorruptBlock:
        if not found:
            raise
    return found


class OffsetAt(msgspec.Struct, frozen=True):
    """A moment, to be found in every partition."""

    tenant: str
    topic: str
    at_ms: int


def offsets_at(tx: Transaction, command: OffsetAt) -> dict[int, int]:
    """By partition: the first offset published at or after a moment. Of a queue, in the log beneath."""
    topic = find_topic(tx, command.tenant, command.topic)
    return {
        number: offset_at(tx, topic.tenant_id, partition, command.at_ms)
        for number, partition in enumerate(topic.partitions)
    }


def check_offset(topic: TopicRow, number: int, head: Head, offset: int) -> None:
    """An offset that the partition has, or that comes next."""
    if offset < head.first_offset:
        raise OffsetTruncated(
            f"Partition {number} of {topic.name!r} begins at offset {head.first_offset}; {offset} was truncated. "
            f"Read from {head.first_offset}, or from the archive.",
            first_offset=head.first_offset,
        )
    if offset > head.next_offset:
        raise InvalidArgument(
            f"Partition {number} of {topic.name!r} ends at offset {head.next_offset}; {offset} is beyond it.",
            next_offset=head.next_offset,
        )


def partition_id(topic: TopicRow, number: int) -> int:
    """The partition with that number."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(topic.partitions):
        raise InvalidArgument(f"Topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}; got {number!r}.")
    return topic.partitions[number]


def offset_at(tx: Transaction, tenant_id: int, partition: int, moment: int) -> int:
    """The first offset published at or after a moment; the end of the log when there is none.

    Blocks lie in the order of their times, so this is a binary search over offsets. Of a queue's log some in the
    middle may be gone.
    """
    head = head_of(tx, tenant_id, partition)
    low, high = head.first_offset, head.next_offset
    while low < high:
        middle = (low + high) // 2
        block = tx.block_before(tenant_id, partition, middle)
        if block is None or block.published_at >= moment:
            high = low if block is None else max(low, block.base)
        else:
            low = max(block.end, middle + 1)
    return low


class Found(msgspec.Struct):
    """Messages looked up by offset: (offset, block, index in it); and those in blocks that cannot be trusted."""

    readable: list[tuple[int, Block, int]] = msgspec.field(default_factory=list)
    corrupt: list[int] = msgspec.field(default_factory=list)
    error: CorruptBlock | None = None


def look_up(tx: Transaction, tenant_id: int, partition: int, offsets: Sequence[int]) -> Found:
    """Finds the block of each offset, ascending. A corrupt block spoils only its own messages."""
    head = head_of(tx, tenant_id, partition)
    found = Found()
    block: Block | None = None
    for offset in offsets:
        try:
            if offset < head.first_offset:
                kept: Block = tx.kept(tenant_id, partition, offset)
                found.readable.append((offset, kept, 0))
                continue
            if block is None or not block.base <= offset < block.end:
                block = block_of(tx, tenant_id, partition, offset)
        except CorruptBlock as error:
            found.corrupt.append(offset)
            found.error = error
        else:
            found.readable.append((offset, block, offset - block.base))
    return found


def stored_messages(block: Block, low: int, high: int, number: int) -> list[StoredMessage]:
    """Messages [low, high) of a block as people read them."""
    columns = block.columns
    count = high - low
    none = [None] * count
    rows = zip(
        columns.values("payload", low, high) or [],
        columns.values("id", low, high) or none,
        columns.values("key", low, high) or none,
        columns.values("headers", low, high) or none,
        columns.values("expires_at", low, high) or none,
        strict=True,
    )
    return [
        StoredMessage(
            partition=number,
            offset=offset,
            id=given_id or made_id(block.place.partition, offset),
            payload=payload,
            key=key,
            headers=headers or {},
            published_at_ms=block.published_at,
            expires_at_ms=expires_at,
        )
        for offset, (payload, given_id, key, headers, expires_at) in enumerate(rows, start=block.base + low)
    ]
