"""Publish ids of blocks that are gone, as long as somebody may repeat them.

A client of a broker repeats a publish whose answer it did not get: the broker died, or the connection. Its id is looked
for in the blocks since it was made (publish.py). But by then its messages may have been consumed and their block
dropped. So the ids of a block that is dropped young are kept, those that such clients made: eight bytes of hash and
four of count each, in one row a block. Ids of embedded clients are not: whoever would repeat them died with the store's
process, or was told the outcome.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import partial

import xxhash

from ..limits import MINUTE_MS
from ..store.contract import BlockMeta, Transaction
from .agenda import FORGET, schedule_store
from .block import publishes_of

# Longest time between the making of a publish id and its commit; also the longest timeout.
PUBLISH_MS_MAX = 60 * MINUTE_MS
# Ends the ids that are made by clients of a broker.
REPEATABLE_MARK = "-"

_ENTRY = struct.Struct("<QI")


def remember_gone(tx: Transaction, tenant_id: int, partition: int, blocks: Iterable[BlockMeta]) -> None:
    """Keeps the publish ids of blocks that are about to be dropped, if they may still be repeated."""
    for block in blocks:
        until = block.published_at + PUBLISH_MS_MAX
        if until <= tx.now_ms:
            continue
        known = tx.block_at_hand(partition, block.base)
        head = partial(tx.block_head, tenant_id, partition, block.base)
        publishes = publishes_of(head) if known is None else known.publishes
        if any(publish_id.endswith(REPEATABLE_MARK) for publish_id, *_ in publishes):
            entries = b"".join(_ENTRY.pack(_hash(publish_id), count) for publish_id, count, *_ in publishes)
            tx.gone_insert(tenant_id, partition, block.base, until, entries)
            schedule_store(tx, FORGET, until)


def find_gone(tx: Transaction, tenant_id: int, partition: int, publish_id: str) -> Iterator[tuple[int, int]]:
    """Where messages of a publish lay that are gone: (first offset, how many)."""
    if not publish_id.endswith(REPEATABLE_MARK):
        return
    wanted = _hash(publish_id)
    for base, entries in tx.gone(tenant_id, partition):
        at = base
        for found, count in _ENTRY.iter_unpack(entries):
            if found == wanted:
                yield at, count
            at += count


def _hash(publish_id: str) -> int:
    return xxhash.xxh3_64_intdigest(publish_id.encode())
