"""What a queue's log may lose: the blocks that no unsettled message lies in.

Nothing is noted when a message is settled: it is just in no run any more, under no lease and in no row. So
what is still needed is found by looking at what is left. The front of the log goes as soon as nothing left
lies in it; blocks further in are looked for when more than half of the log must be settled, which bounds both
the space and the work. A block in which only a few are left is emptied: they are copied out (`kept`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from ..store.contract import TIMED, GroupRow, TopicRow, Transaction
from .agenda import TRUNCATE, schedule
from .block import Place, encode
from .bury import tell
from .columns import NEVER, Columns
from .done import note_done
from .entries import Entries, concat
from .find import find_group, head_of
from .fold import finish
from .index import Index
from .lease import live_offsets
from .limited import free
from .lookup import every, messages_at
from .record import spread
from .views import Stored, walk

# Settled messages that a log may hold besides as many as are not.
_SLACK = 20_000
# Unless the log has more bytes than this.
_BYTES_SLACK = 64 * 1024 * 1024
# A block with no more messages left than one in so many is emptied.
_FEW = 50
# A run that is being folded is looked at again after this.
_FOLDING_MS = 5_000


def droppable(tx: Transaction, topic: TopicRow, partition: int, bound: int) -> tuple[int, list[int]]:
    """Below which offset the log may go, and the bases of blocks further in that may go too; none past `bound`."""
    index = Index(tx, topic, partition)
    head = head_of(tx, topic.tenant_id, partition)
    low = min([index.row.absorbed_to, bound, *(run.low for run in index.runs.values()), *_others(tx, topic, partition)])
    inner: list[int] = []
    count = head.next_offset - max(low, head.first_offset)
    settled = count - 2 * _live(tx, topic, index)
    # How big the log is takes a look at every block: only where it matters.
    if settled > _SLACK or (settled > 0 and tx.log_size(topic.tenant_id, partition, low)[1] >= _BYTES_SLACK):
        low, inner = _look_closely(tx, topic, index, bound)
    return max(low, head.first_offset), inner


def drop_expired(tx: Transaction, topic: TopicRow, partition: int) -> None:
    """Drops runs in which everything has expired; sees to it that those that will are looked at again."""
    index = Index(tx, topic, partition)
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
            _tell_expired(tx, topic, group, partition, seqs)
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
            _tell_expired(tx, topic, group, index.partition, seqs)


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


def _look_closely(tx: Transaction, topic: TopicRow, index: Index, bound: int) -> tuple[int, list[int]]:
    head = head_of(tx, topic.tenant_id, index.partition)
    first = head.first_offset
    needed = np.zeros(head.next_offset - first, bool)
    needed[index.row.absorbed_to - first :] = True
    for part in _standing(index):
        needed[part.seq[part.seq >= first] - first] = True
    for offset in _others(tx, topic, index.partition):
        if offset >= first:
            needed[offset - first] = True
    drop: list[int] = []
    low = bound
    for meta in tx.block_metas(topic.tenant_id, index.partition, first):
        if meta.end > bound:
            low = min(low, meta.base)
            break
        left = np.flatnonzero(needed[meta.base - first : meta.end - first])
        if len(left) * _FEW <= meta.count:
            _keep(tx, topic, index, [meta.base + int(at) for at in left])
            drop.append(meta.base)
        else:
            low = min(low, meta.base)
    return low, [base for base in drop if base > low]


def _standing(index: Index, only: int | None = None) -> Iterator[Entries]:
    """Everything in runs, or in one, a block at a time."""
    for run in index.runs.values():
        if run.sources is not None or only not in (None, run.id):
            continue
        holes = np.array(sorted(index.holes.get(run.id, ())), np.int64)
        for _, part in walk(Stored(index, run)):
            yield part.take(~np.isin(part.seq, holes)) if len(holes) else part


def _keep(tx: Transaction, topic: TopicRow, index: Index, offsets: Iterable[int]) -> None:
    for offset in offsets:
        columns = messages_at(tx, topic.tenant_id, index.partition, [offset])
        keep(tx, topic, index.partition, offset, columns)


def keep(tx: Transaction, topic: TopicRow, partition: int, offset: int, columns: Columns) -> None:
    """Copies a message out of its block."""
    published_at = int(columns.numbers("published_at", 0)[0])
    stored = encode(Place(topic.tenant_id, partition, offset), columns, published_at, [])
    tx.kept_insert(topic.tenant_id, partition, offset, stored)


def needed_kept(tx: Transaction, topic: TopicRow, partition: int) -> set[int]:
    """Which of the messages that were copied out are still unsettled."""
    index = Index(tx, topic, partition)
    found = set(_others(tx, topic, partition))
    kept = np.array(tx.kept_offsets(topic.tenant_id, partition), np.int64)
    for part in _standing(index):
        found.update(part.seq[np.isin(part.seq, kept)].tolist())
    return found


def _tell_expired(tx: Transaction, topic: TopicRow, group: GroupRow, partition: int, seqs: Sequence[int]) -> None:
    offset, deltas = spread(seqs)
    more = {"partition": partition, "offset": offset, "count": len(seqs), "deltas": deltas}
    tell(tx, topic, group, "ttl_expired", facts={}, **more)
