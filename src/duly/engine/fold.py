"""Fold: FAN runs of a size become one of the next, a slice at a time.

The new run is built aside, invisible, from the front of its sources on; they are served meanwhile. When the
last slice is copied the sources go and the new run takes their place, in one transaction, and begins after
what was consumed while it was being built. That is a prefix of it: whoever is served is served in the order
of the entries, so of what the sources held together when the fold began exactly the first so many have been
consumed. How many is counted, by the positions that were copied of each. (Not found by comparing entries: a
message that was moved may stand in two sources, with the same key.) What is a hole when its turn to be copied
comes is left out; what becomes one later is one of the new run too.

Every writer that adds entries folds some more of them than it adds, so runs stay few however fast they
come, and nobody waits for more than a slice. A slice copied is durable: whoever comes next goes on, in this
process or another.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ..errors import CorruptBlock
from ..limits import LIMITS
from ..store.contract import READY, TIMED, RunRow, TopicRow, Transaction
from .agenda import TRUNCATE, schedule
from .find import head_of
from .gates import has_budget
from .ids import index_ids
from .index import ABSORB_FROM, RUN_BLOCK, Index, Progress, coming_together, progress_of
from .views import Proposal, Stored, front, order_of

FAN = 28
# Past so many even those fold who add nothing.
_RUNS_MAX = 64
# The young end of the log has no more bytes than about this, nor blocks, which are small where messages come singly.
_YOUNG_BYTES_MAX = 8 * 1024 * 1024
_YOUNG_BLOCKS_MAX = 2_048
# Entries a slice: ten milliseconds of other people's time.
_SLICE = 12_000
# So much of folding those who write runs put off: they took their time already. Later publishers do it.
_OWED_MAX = 36_000
# Between two steps of giving new tags there is time for others.
_RETAG_AGAIN_MS = 25
# Runs of named lanes are not folded past this: their tails are held in memory (fairness.py).
_LANED_LEVEL_MAX = 2


def finish(index: Index, young: str = "") -> None:
    """Writes what an index holds, folds a little, and remembers it."""
    before = index.row.absorbed_to
    written = index.write(young)
    if index.row.absorbed_to > before:
        index_ids(index.tx, index.topic, index.partition, index.row.absorbed_to)
    owed = _owed(index.tx, index.partition) + 5 * written // 2
    most = owed - _OWED_MAX
    if any(run.target and not run.left for run in index.runs.values()) or len(index.runs) > _RUNS_MAX:
        most = max(most, 500)
    _pay(index, owed, most)
    index.remember()


def _owed(tx: Transaction, partition: int) -> int:
    """How many entries are to be copied for those that were written."""
    return tx.recall(("fold owed", partition)) or 0


def _pay(index: Index, owed: int, most: int) -> None:
    """Folds some of what is owed."""
    if most > 0:
        owed = max(0, owed - _fold_some(index, most))
    index.tx.remember(("fold owed", index.partition), owed or None)


def absorb_some(tx: Transaction, topic: TopicRow, partition: int, size: int) -> None:
    """Called by publishers, with the bytes they bring: keeps the part of the log that is not absorbed short."""
    head = head_of(tx, topic.tenant_id, partition)
    known = tx.recall(("queue", partition))
    absorbed_to = tx.queue(topic.tenant_id, partition).absorbed_to if known is None else known[0].absorbed_to
    start = max(absorbed_to, head.first_offset)
    # Since the last time, as far as this process knows: it need not be exact.
    waiting, blocks = tx.recall(("young", partition)) or (0, 0)
    waiting, blocks = waiting + size, blocks + 1
    if head.next_offset - start < ABSORB_FROM and waiting < _YOUNG_BYTES_MAX and blocks < _YOUNG_BLOCKS_MAX:
        tx.remember(("young", partition), (waiting, blocks))
        owed = _owed(tx, partition)
        if owed >= _SLICE:
            index = Index(tx, topic, partition)
            _pay(index, owed, _SLICE)
            index.remember()
        return
    tx.remember(("young", partition), None)
    try:
        for _ in tx.blocks(topic.tenant_id, partition, start, head.next_offset):
            pass
    except CorruptBlock:
        # Claims will say so; publishing goes on.
        return
    index = Index(tx, topic, partition)
    if has_budget(tx, topic):
        # Claims alone know how many there may be.
        index.retries = 0
    # What came due before it was published goes first in its lane.
    index.promote()
    index.absorb(LIMITS.batch_messages_max)
    finish(index, "all")


def outdate_tags(tx: Transaction, topic: TopicRow, partition: int, lanes: Any) -> None:
    """Some lanes have other weights; `lanes` None: perhaps all. What is ready in named lanes gets other tags: the young
    end when it is next looked at, the rest by and by.
    """
    index = Index(tx, topic, partition)
    index.outdate(lanes)
    finish(index)


def retag_some(tx: Transaction, topic: TopicRow, partition: int) -> bool:
    """A step of a chore: gives new tags to some of what is stale. True if there was any."""
    index = Index(tx, topic, partition)
    if not index.is_stale:
        return False
    index.promote()
    finish(index)
    schedule(tx, topic.tenant_id, partition, TRUNCATE, tx.now_ms + _RETAG_AGAIN_MS)
    return True


def _fold_some(index: Index, most: int) -> int:
    """Copies about so many entries, beginning folds where they are needed. Returns how many; all, if none is left."""
    _begin(index)
    left = most
    while left > 0:
        building = min((run for run in index.runs.values() if run.sources), key=_urgency, default=None)
        if building is None:
            return most
        left -= max(_copy(index, building, min(left, _SLICE)), _SLICE // 8)
        _begin(index)
    return most - left


def _urgency(run: RunRow) -> tuple[int, int]:
    return run.level, run.id


def _begin(index: Index) -> None:
    """Starts a fold wherever enough runs of a size stand."""
    by_size: dict[tuple[int, int], list[RunRow]] = {}
    for run in index.runs.values():
        if not run.sources and not run.target and not _has_many_tails(run):
            by_size.setdefault((run.kind, run.level), []).append(run)
    for (kind, level), runs in by_size.items():
        if len(runs) < FAN:
            continue
        runs = sorted(runs, key=lambda run: run.id)[:FAN]
        progress = msgspec.msgpack.encode([Progress(run.id, run.pos, []) for run in runs])
        target = RunRow(
            partition=index.partition,
            kind=kind,
            level=level + 1,
            count=0,
            pos=0,
            blocks=0,
            block=RUN_BLOCK,
            low=min(run.low for run in runs),
            high=max(run.high for run in runs),
            sources=progress,
            plain=all(run.plain for run in runs),
        )
        target = replace(target, id=index.tx.run_insert(index.topic.tenant_id, target))
        index.runs[target.id] = target
        for run in runs:
            index.runs[run.id] = replace(run, target=target.id)
            index.tx.run_update(index.runs[run.id])


def _has_many_tails(run: RunRow) -> bool:
    return run.kind not in (READY, TIMED) and run.level >= _LANED_LEVEL_MAX


def _copy(index: Index, target: RunRow, most: int) -> int:
    """Copies a slice; when nothing is left, swaps. Returns how many entries were copied."""
    progress = progress_of(target)
    views = [Stored(index, index.runs[p.run], max(p.copied, index.runs[p.run].pos)) for p in progress]
    # Whole blocks, so that all but the last have the same size.
    want = max(target.block, most // target.block * target.block)
    proposal = front(views, want, order_of(target.kind))
    count = len(proposal.entries)
    if count:
        last = count == sum(view.left for view in views)
        target = _append(index, target, proposal, {p.run: p for p in progress}, last=last)
    for source, view in zip(progress, views, strict=True):
        source.copied = view.pos
    target = replace(target, sources=msgspec.msgpack.encode(progress))
    index.runs[target.id] = target
    if count or any(view.left for view in views):
        # Swapped next time: it takes as long as a slice.
        index.tx.run_update(target)
    else:
        _swap(index, target, progress)
    return count


def _append(index: Index, target: RunRow, proposal: Proposal, progress: dict[int, Progress], *, last: bool) -> RunRow:
    """Adds entries and their messages to the new run, in whole blocks, without those that are holes by now."""
    holes = index.is_hole(proposal)
    live = np.arange(len(proposal.entries)) if holes is None else np.flatnonzero(~holes)
    count = len(live) if last else len(live) // target.block * target.block
    passed = len(proposal.entries) if last or count == len(live) else int(live[count])
    if count:
        columns = proposal.messages(passed)
        if count < passed:
            columns = columns.take(live[:count])
        blocks = index.add_blocks(target, target.blocks, proposal.entries.take(live[:count]), columns, soon=False)
        target = replace(target, count=target.count + count, blocks=target.blocks + blocks)
        for n, view in enumerate(proposal.views):
            places = proposal.place[live[:count]][proposal.origin[live[:count]] == n]
            _note(progress[view.run.id].stretches, view.pos + places)
    proposal.consume(passed)
    return target


def _note(stretches: list[list[int]], positions: np.ndarray[Any, Any]) -> None:
    """Adds ascending positions to the stretches copied."""
    if not len(positions):
        return
    whole = int(positions[-1]) - int(positions[0]) + 1 == len(positions)
    parts = [positions] if whole else np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    for part in parts:
        start, stop = int(part[0]), int(part[-1]) + 1
        if stretches and stretches[-1][1] == start:
            stretches[-1][1] = stop
        else:
            stretches.append([start, stop])


def _swap(index: Index, target: RunRow, progress: list[Progress]) -> None:
    """The new run takes the place of those it was made of."""
    tenant_id = index.topic.tenant_id
    sources = [index.runs[source.run] for source in progress]
    pos = sum(_consumed(source, index.runs[source.run].pos) for source in progress)
    for run in sources:
        if run.id in index.late_holes:
            index.tx.holes_move(tenant_id, index.partition, run.id, target.id)
            index.holes[target.id] = index.holes.get(target.id, frozenset()) | index.late_holes[run.id]
        index.drop_run(run.id)
    ends = [run.expires_max for run in sources]
    expires_max = None if None in ends else max(end for end in ends if end is not None)
    if expires_max is not None:
        schedule(index.tx, tenant_id, index.partition, TRUNCATE, expires_max)
    target = replace(target, sources=None, pos=pos, expires_max=expires_max)
    if target.kind == TIMED:
        target = replace(target, coming=coming_together([run.coming for run in sources]))
    index.runs[target.id] = target
    if target.pos >= target.count:
        index.drop_run(target.id)
    else:
        index.tx.run_update(target)


def _consumed(source: Progress, pos: int) -> int:
    """How many of the entries copied of a run lie before a position."""
    return sum(max(0, min(stop, pos) - start) for start, stop in source.stretches)
