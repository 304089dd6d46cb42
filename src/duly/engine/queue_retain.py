"""What a queue's log may lose: the blocks that no unsettled message lies in.

Nothing is noted when a message is settled: it is just in no run any more, under no lease and in no row. So
what is still needed is found by looking at what is left. The front of the log goes as soon as nothing left
lies in it; blocks further in are looked for when more than half of the log must be settled, which bounds both
the space and the work. A block in which only a few are left is emptied: they are copied out (`kept`).

A close look takes as long as there is much left, so it is no transaction of the writer's: the caretaker reads, and
has what it found dropped in small steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import msgspec
import numpy as np
from msgspec.structs import replace

from ..store.contract import TIMED, GroupRow, TopicRow, Transaction
from .agenda import GIVE_BACK, TRUNCATE, schedule, schedule_store
from .block import Place
from .bury import tell_expired
from .columns import NEVER, Columns
from .done import note_done
from .entries import Entries, concat
from .find import find_group, head_of, set_head
from .fold import finish
from .gone import remember_gone
from .index import Index
from .lease import live_offsets
from .limited import free
from .lookup import every, keep_message, messages_at
from .views import Stored, walk

# Settled messages that a log may hold besides as many as are not.
_SLACK = 20_000
# Unless the log has more bytes than this.
_BYTES_SLACK = 64 * 1024 * 1024
# Blocks dropped in one transaction.
_BLOCKS_A_SLICE = 24
# A block with no more messages left than one in so many is emptied.
_FEW = 50
# A run that is being folded is looked at again after this.
_FOLDING_MS = 5_000


class Look(msgspec.Struct, frozen=True):
    """A queue partition to be looked at closely; nothing past `bound` may go."""

    tenant: str
    topic: str
    tenant_id: int
    partition: int
    bound: int


class Emptied(msgspec.Struct, frozen=True):
    """What a close look found: blocks that may go, with what has to be copied out of each, and below which offset
    all may; and messages that were copied out before and are settled by now.
    """

    tenant: str
    topic: str
    tenant_id: int
    partition: int
    low: int
    blocks: tuple[tuple[int, tuple[int, ...]], ...]
    kept: tuple[int, ...]


def droppable(tx: Transaction, topic: TopicRow, partition: int, bound: int) -> tuple[int, Look | None]:
    """Below which offset the log may go, by what is known at once; and whether it should be looked at closely.

    That is when more than half of it must be settled, and a quarter of what is left has been since the last time.
    """
    index = Index(tx, topic, partition)
    head = head_of(tx, topic.tenant_id, partition)
    low = min([index.row.absorbed_to, bound, *(run.low for run in index.runs.values()), *_others(tx, topic, partition)])
    live = _live(tx, topic, index)
    settled = head.next_offset - max(low, head.first_offset) - 2 * live
    ended, before = head.next_offset - live, tx.recall(("looked", partition)) or 0
    look = None
    if ended > before and ended - before >= live // 4 and _has_much(tx, topic, partition, settled, low):
        look = Look(topic.tenant, topic.name, topic.tenant_id, partition, bound)
        tx.remember(("looked", partition), ended)
    return max(low, head.first_offset), look


def _has_much(tx: Transaction, topic: TopicRow, partition: int, settled: int, low: int) -> bool:
    if settled > _SLACK or tx.kept_offsets(topic.tenant_id, partition):
        return True
    # How big the log is takes a look at every block: only where it matters.
    return settled > 0 and tx.log_size(topic.tenant_id, partition, low)[1] >= _BYTES_SLACK


def drop_expired(tx: Transaction, topic: TopicRow, partition: int) -> None:
    """Drops runs in which everything has expired; sees to it that those that will are looked at again."""
    index = Index(tx, topic, partition)
    index.sweep()
    group = find_group(tx, topic, "")
    again: list[int] = []
    for run in list(index.runs.values()):
        if run.expires_max is None or run.sources is not None:
            continue
        if run.expires_max > tx.now_ms or run.target:
            again.append(max(run.expires_max, tx.now_ms + _FOLDING_MS))
            continue
        entries = concat(list(_standing(index, run.id)))
        seqs = entries.seq.tolist()
        if seqs:
            note_done(tx, topic, partition, seqs, run.expires_max)
            tx.loose_delete(topic.tenant_id, partition, entries.seq[entries.loose].tolist())
            if run.kind != TIMED:
                free(tx, topic, partition, entries.lane.tolist())
            tell_expired(tx, topic, group, partition, seqs)
        index.drop_run(run.id)
    _drop_young(tx, topic, index, group)
    finish(index, "none")
    if again:
        schedule(tx, topic.tenant_id, partition, TRUNCATE, min(again))


def _drop_young(tx: Transaction, topic: TopicRow, index: Index, group: GroupRow) -> None:
    """Drops what has expired before it came into a run."""
    index.absorb()
    for fresh in index.young:
        columns = fresh.messages(fresh.left)
        if "expires_at" not in columns.names:
            continue
        expires = columns.numbers("expires_at", NEVER)
        past = expires <= tx.now_ms
        if past.any():
            seqs = fresh.peek(fresh.left).seq[past].tolist()
            fresh.drop(past)
            note_done(tx, topic, index.partition, seqs, int(expires[past].max()))
            tell_expired(tx, topic, group, index.partition, seqs)


def _others(tx: Transaction, topic: TopicRow, partition: int) -> Iterator[int]:
    """Offsets of messages that are under a lease, in a row of their own, or dead."""
    group = find_group(tx, topic, "")
    for row in tx.leases(topic.tenant_id, partition, group.id):
        yield from live_offsets(row)
    for fetch in (
        partial(tx.loose_all, topic.tenant_id, partition, limit=1000),
        partial(tx.lane_waits, topic.tenant_id, partition, limit=1000),
        partial(tx.dead, topic.tenant_id, partition, group.id, limit=1000),
    ):
        yield from (row.offset for row in every(fetch))


def _live(tx: Transaction, topic: TopicRow, index: Index) -> int:
    group = find_group(tx, topic, "")
    leased = sum(row.live for row in tx.leases(topic.tenant_id, index.partition, group.id))
    dead = tx.dead_count(topic.tenant_id, index.partition, group.id)
    rows = tx.loose_count(topic.tenant_id, index.partition) + tx.lane_wait_count(topic.tenant_id, index.partition)
    return index.live + leased + dead + rows


def look_closely(tx: Transaction, look: Look) -> Emptied | None:
    """Finds out what a queue's log may lose. In a read transaction, beside everyone else.

    What is needed by nobody now never is again: a message that is settled does not come back, and new ones lie
    behind the end. So it can be acted on later, by `empty`.
    """
    topic = tx.topic_of_partition(look.partition)
    if topic is None:
        return None
    index = Index(tx, topic, look.partition, reading=True)
    head = head_of(tx, topic.tenant_id, look.partition)
    first = head.first_offset
    kept = np.array(tx.kept_offsets(topic.tenant_id, look.partition), np.int64)
    start = min([first, *kept.tolist()])
    needed = np.zeros(head.next_offset - start, bool)
    needed[max(0, index.row.absorbed_to - start) :] = True
    for part in _standing(index):
        needed[part.seq[part.seq >= start] - start] = True
    for offset in _others(tx, topic, look.partition):
        if offset >= start:
            needed[offset - start] = True
    drop: list[tuple[int, tuple[int, ...]]] = []
    low = look.bound
    for meta in tx.block_metas(topic.tenant_id, look.partition, first):
        if meta.end > look.bound:
            low = min(low, meta.base)
            break
        left = np.flatnonzero(needed[meta.base - start : meta.end - start])
        if len(left) * _FEW <= meta.count:
            drop.append((meta.base, tuple((meta.base + left).tolist())))
        else:
            low = min(low, meta.base)
    settled = tuple(kept[~needed[kept - start]].tolist())
    return Emptied(look.tenant, look.topic, topic.tenant_id, look.partition, low, tuple(drop), settled)


def slices_of(emptied: Emptied) -> Iterator[Emptied]:
    """The same in steps of a few milliseconds each; the last one has what the others lack."""
    for at in range(0, len(emptied.blocks), _BLOCKS_A_SLICE):
        yield replace(emptied, low=0, blocks=emptied.blocks[at : at + _BLOCKS_A_SLICE], kept=())
    yield replace(emptied, blocks=())


def empty(tx: Transaction, commands: Sequence[Emptied]) -> list[None]:
    """Drops blocks that a close look found, having copied out what is left in them."""
    for command in commands:
        topic = tx.topic_of_partition(command.partition)
        if topic is not None:
            _empty(tx, topic, command)
    return [None] * len(commands)


def _empty(tx: Transaction, topic: TopicRow, command: Emptied) -> None:
    tenant_id, partition = command.tenant_id, command.partition
    head = head_of(tx, tenant_id, partition)
    for offset in command.kept:
        tx.kept_delete(tenant_id, partition, offset)
    blocks = [block for block in command.blocks if block[0] >= head.first_offset]
    for base, left in blocks:
        remember_gone(tx, tenant_id, partition, islice(tx.block_metas(tenant_id, partition, base), 1))
        for offset in left:
            keep(tx, topic, partition, offset, messages_at(tx, tenant_id, partition, [offset]))
        tx.block_delete(tenant_id, partition, base)
    first = max(head.first_offset, command.low)
    if blocks or first > head.first_offset:
        # The newest block says where the log ends, and it may have gone: then its row has to.
        set_head(tx, tenant_id, partition, replace(head, first_offset=first))
        schedule(tx, tenant_id, partition, TRUNCATE, tx.now_ms)
        schedule_store(tx, GIVE_BACK, tx.now_ms)


def _standing(index: Index, only: int | None = None) -> Iterator[Entries]:
    """Everything in runs, or in one, a block at a time."""
    for run in index.runs.values():
        if run.sources is not None or only not in (None, run.id):
            continue
        holes = np.array(sorted(index.holes.get(run.id, ())), np.int64)
        for _, part in walk(Stored(index, run)):
            yield part.take(~np.isin(part.seq, holes)) if len(holes) else part


def keep(tx: Transaction, topic: TopicRow, partition: int, offset: int, columns: Columns) -> None:
    """Copies a message out of its block."""
    published_at = int(columns.numbers("published_at", 0)[0])
    keep_message(tx, Place(topic.tenant_id, partition, offset), columns, published_at)
