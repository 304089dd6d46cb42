"""health: how the groups of topics do, by their topics' thresholds.

It reads what describe_group reads, and for the oldest message a little more: a log's is at its group's cursor. A
queue's could be anywhere in a run, for runs are in the order of delivery; of each run the next and the last
thousand are looked at (the last are those of the least priority, where messages starve) and not all of them. What is
not due yet is not undelivered: a timed run is in the order of due times, and the border is found by halving.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ..errors import CorruptBlock
from ..health import ACTIVE_MS, Figures, GroupHealth, HealthReason, judge, worst
from ..store.contract import TIMED, GroupRow, TopicRow, Transaction
from ..topic import GroupDescription
from .find import cursor_of, find_topic, head_of
from .groups import DescribeGroup, describe_group
from .index import Index
from .inquiry import EVERYTHING, first_from
from .lookup import every
from .views import Fresh, Stored

_LOOKED_AT = 1000
_NOTHING = Figures(0, 0, 0.0, 0.0, 0)


class CheckHealth(msgspec.Struct, frozen=True):
    """A topic's groups, or those of a page of topics after a name."""

    tenant: str
    topic: str | None
    after: str
    limit: int


def check_health(tx: Transaction, command: CheckHealth) -> list[GroupHealth]:
    """Every group of the topics asked for, by topic; each topic is there at least once."""
    if command.topic is not None:
        names = [command.topic]
    else:
        names = tx.topic_list(command.tenant, command.after, command.limit)
    return [one for name in names for one in _of_topic(tx, find_topic(tx, command.tenant, name, suspended=True))]


def _of_topic(tx: Transaction, topic: TopicRow) -> list[GroupHealth]:
    groups = tx.group_list(topic.id)
    if not groups:
        return [GroupHealth(topic.name, "", "ok", (), _NOTHING, topic.paused)]
    return [_of_group(tx, topic, group) for group in groups]


def _of_group(tx: Transaction, topic: TopicRow, group: GroupRow) -> GroupHealth:
    paused = topic.paused or group.paused
    try:
        figures = _figures(tx, topic, group)
    except CorruptBlock as error:
        # One that cannot be read must not hide how the others do.
        reasons: tuple[HealthReason, ...] = (HealthReason("alert", "corrupt", 1, 1, str(error)),)
        return GroupHealth(topic.name, group.name, "alert", reasons, _NOTHING, paused)
    reasons = judge(topic.settings.health, figures)
    return GroupHealth(topic.name, group.name, worst(r.level for r in reasons), reasons, figures, paused)


def _figures(tx: Transaction, topic: TopicRow, group: GroupRow) -> Figures:
    stands = describe_group(tx, DescribeGroup(topic.tenant, topic.name, group.name))
    waits = [_waits(tx, topic, group, partition) for partition in topic.partitions]
    undelivered = stands.lag - sum(wait.ahead for wait in waits)
    due_since = [wait.oldest for wait in waits if wait.oldest is not None]
    tried = undelivered + stands.leased + stands.retrying
    return Figures(
        consumers=_active(stands),
        undelivered=undelivered,
        oldest_age=max(0, tx.now_ms - min(due_since, default=tx.now_ms)) / 1000,
        retry_ratio=stands.retrying / tried if tried else 0.0,
        dead=stands.dead,
    )


def _active(stands: GroupDescription) -> int:
    return sum(consumer.idle_ms < ACTIVE_MS or consumer.messages > 0 for consumer in stands.consumers)


class _Waits(msgspec.Struct):
    """Of one partition: what was never claimed and is not due yet, and since when the oldest has been due."""

    ahead: int = 0
    oldest: int | None = None

    def note(self, due_at: int | None, now_ms: int) -> None:
        if due_at is not None and due_at <= now_ms and (self.oldest is None or due_at < self.oldest):
            self.oldest = due_at


def _waits(tx: Transaction, topic: TopicRow, group: GroupRow, partition: int) -> _Waits:
    waits = _Waits()
    # Leases that ran out, and on a log also what failed and is due again.
    waits.note(tx.lease_next_due(topic.tenant_id, partition, group.id), tx.now_ms)
    if topic.settings.kind == "log":
        _wait_at_cursor(tx, topic, group, partition, waits)
    else:
        _wait_in_queue(tx, topic, partition, waits)
    return waits


def _wait_at_cursor(tx: Transaction, topic: TopicRow, group: GroupRow, partition: int, waits: _Waits) -> None:
    head = head_of(tx, topic.tenant_id, partition)
    cursor = max(head.first_offset, cursor_of(tx, topic.tenant_id, partition, group.id))
    if cursor < head.next_offset and (block := tx.block_before(topic.tenant_id, partition, cursor)) is not None:
        waits.note(block.published_at, tx.now_ms)


def _wait_in_queue(tx: Transaction, topic: TopicRow, partition: int, waits: _Waits) -> None:
    index = Index(tx, topic, partition, reading=True)
    index.absorb(EVERYTHING)
    timed: set[int] = set()
    for kind, view in index.all_views():
        if kind == TIMED:
            _wait_in_timed(index, view, waits)
            timed.update([view.run.id] if isinstance(view, Stored) else [])
        else:
            _wait_in_ready(index, view, waits)
    holes = tx.holes(topic.tenant_id, partition)
    waits.ahead -= sum(hole.run in timed and hole.due_at > tx.now_ms for hole in holes)
    for row in every(lambda after: tx.loose_all(topic.tenant_id, partition, after, 1000)):
        if row.waits:
            waits.ahead += bool(not row.attempts and row.due_at > tx.now_ms)
            waits.note(row.due_at, tx.now_ms)
    for waiting in tx.lane_waits(topic.tenant_id, partition, -1, _LOOKED_AT):
        waits.note(waiting.due_at, tx.now_ms)


def _wait_in_timed(index: Index, view: Stored | Fresh, waits: _Waits) -> None:
    now = index.tx.now_ms
    if isinstance(view, Fresh):
        due = view.peek(view.left).due
        waits.ahead += int((due > now).sum())
        waits.note(int(due.min()) if len(due) else None, now)
        return
    due_to = max(view.pos, first_from(Stored(view.index, view.run, 0), now + 1))
    waits.ahead += view.run.count - due_to
    _note_oldest(index, view, min(_LOOKED_AT, due_to - view.pos), waits)


def _wait_in_ready(index: Index, view: Stored | Fresh, waits: _Waits) -> None:
    _note_oldest(index, view, _LOOKED_AT, waits)
    if isinstance(view, Stored) and view.left > _LOOKED_AT:
        last = Stored(view.index, view.run, max(view.pos, view.run.count - _LOOKED_AT))
        _note_oldest(index, last, _LOOKED_AT, waits)


def _note_oldest(index: Index, view: Stored | Fresh, count: int, waits: _Waits) -> None:
    """Looks at the next entries of a view, without those that were taken out."""
    if not min(count, view.left):
        return
    entries = view.peek(view.left if isinstance(view, Fresh) else count)
    due = entries.due
    if isinstance(view, Stored) and (holes := index.holes.get(view.run.id)):
        due = due[~np.isin(entries.seq, list(holes))]
    waits.note(int(due.min()) if len(due) else None, index.tx.now_ms)
