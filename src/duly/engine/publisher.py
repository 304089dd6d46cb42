"""Who published a message: it stands in its block beside the publish id, and beside a message that is kept alone.

Only publishes through a broker with keys have a publisher. What has none is nobody's own.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from ..store.contract import TopicRow, Transaction
from .block import Publishes, publishes_of


def publisher_at(tx: Transaction, tenant_id: int, partition: int, offset: int) -> str:
    """The principal who published the message at an offset; "" where nobody knows."""
    block = tx.block_at_hand(partition, offset)
    if block is not None:
        return _who(block.publishes, offset - block.base)
    meta = tx.block_before(tenant_id, partition, offset)
    if meta is not None and offset < meta.end:
        return _who(publishes_of(partial(tx.block_head, tenant_id, partition, meta.base)), offset - meta.base)
    if offset in tx.kept_offsets(tenant_id, partition):
        return _who(tx.kept(tenant_id, partition, offset).publishes, 0)
    return ""


def own_alone(
    tx: Transaction, topic: TopicRow, places: Collection[tuple[int, int]], own: str | None
) -> set[tuple[int, int]]:
    """Of places (partition number, offset), those whose message `own` published; None: all."""
    return {
        (number, offset)
        for number, offset in places
        if own is None or publisher_at(tx, topic.tenant_id, topic.partitions[number], offset) == own
    }


def _who(publishes: Publishes, index: int) -> str:
    at = 0
    for _, count, *who in publishes:
        at += count
        if index < at:
            return who[0] if who else ""
    return ""
