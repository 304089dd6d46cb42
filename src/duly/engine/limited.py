"""Lanes with limits: so many at once (`max_in_flight`), so many a second (`rate`).

A message that falls due in such a queue first waits in its lane, as a row in the lane's order; only as many
heads as the lane has free slots and tokens enter what is ready. From then on a message holds its slot until it
is settled. The lane's row counts slots, says when the next token is there, and when somebody should look at
it again; a lane with nothing to say has no row.

With `max_in_flight=1` a message that failed keeps its slot while it waits for its next attempt, so the lane's
order stands. With more, it gives the slot back and waits in its lane like any other.

Tokens: a lane saves up at most a second's worth, and at least one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from ..store.contract import LaneRow, LooseRow, TopicRow, Transaction, WaitRow
from .entries import Entries, make_entries


def is_limited(topic: TopicRow) -> bool:
    """Whether the topic's lanes have limits."""
    lanes = topic.settings.lanes
    return lanes is not None and (lanes.max_in_flight is not None or lanes.rate is not None)


def keeps_slot(topic: TopicRow) -> bool:
    """Whether a failed message holds its lane until it is settled."""
    lanes = topic.settings.lanes
    return lanes is not None and lanes.max_in_flight == 1


def enter(tx: Transaction, topic: TopicRow, partition: int, entries: Entries) -> None:
    """Messages that are due take their places in their lanes."""
    tenant_id = topic.tenant_id
    rows = zip(
        entries.lane.tolist(),
        entries.priority.tolist(),
        entries.due.tolist(),
        entries.seq.tolist(),
        entries.loose.tolist(),
        strict=True,
    )
    for lane, priority, due, seq, loose in rows:
        tx.lane_wait_insert(tenant_id, WaitRow(partition, lane, priority, due, seq, loose))
    for lane in np.unique(entries.lane).tolist():
        _look(tx, tenant_id, partition, lane, freed=0)


def leave_lanes(tx: Transaction, topic: TopicRow, partition: int) -> None:
    """There are no limits any more: what waits for its lane becomes loose, and due."""
    tenant_id = topic.tenant_id
    while waits := tx.lane_waits(tenant_id, partition, -1, 1000):
        known = {row.offset: row for row in tx.loose(tenant_id, partition, [wait.offset for wait in waits])}
        for wait in waits:
            row = known.get(wait.offset) or LooseRow(partition, wait.offset, 0, True, wait.priority, wait.lane)
            tx.loose_put(tenant_id, replace(row, waits=True, due_at=wait.due_at, slot=False))
            tx.lane_wait_delete(tenant_id, wait)


def _look(tx: Transaction, tenant_id: int, partition: int, lane: int, *, freed: int) -> None:
    """Sees to it that a lane is looked at; some of its slots may have become free."""
    row = tx.lane(tenant_id, partition, lane) or LaneRow(partition, lane)
    # No sooner than its next token: that moment it has already.
    look_at = tx.now_ms if row.look_at is None or freed else min(row.look_at, tx.now_ms)
    tx.lane_put(tenant_id, replace(row, in_flight=max(0, row.in_flight - freed), look_at=look_at))


def free(tx: Transaction, topic: TopicRow, partition: int, lanes: Iterable[int]) -> None:
    """Messages of these lanes no longer hold their slots."""
    if not is_limited(topic):
        return
    for lane, count in Counter(lanes).items():
        _look(tx, topic.tenant_id, partition, lane, freed=count)
    tx.aftermath.rings.add(partition)


def admit(tx: Transaction, topic: TopicRow, partition: int, most: int) -> Entries | None:
    """The heads of lanes that have slots and tokens for them, up to a bound."""
    taken: list[WaitRow] = []
    for row in tx.lanes_to_look(topic.tenant_id, partition, tx.now_ms, most):
        taken.extend(_admit_lane(tx, topic, partition, row))
        if len(taken) >= most:
            break
    if not taken:
        return None
    return make_entries(
        [wait.offset for wait in taken],
        [wait.due_at for wait in taken],
        [wait.priority for wait in taken],
        [wait.lane for wait in taken],
        loose=[wait.loose for wait in taken],
    )


def _admit_lane(tx: Transaction, topic: TopicRow, partition: int, row: LaneRow) -> list[WaitRow]:
    lanes = topic.settings.lanes
    assert lanes is not None
    slots = 1000 if lanes.max_in_flight is None else lanes.max_in_flight - row.in_flight
    gap_ms = 0.0 if lanes.rate is None else 1000.0 / lanes.rate
    next_at = row.next_at
    if lanes.rate is not None:
        next_at = max(next_at, tx.now_ms - max(0.0, 1000.0 - gap_ms))
        tokens = int((tx.now_ms - next_at) // gap_ms) + 1 if next_at <= tx.now_ms else 0
        slots = min(slots, tokens)
    heads = tx.lane_wait_heads(topic.tenant_id, partition, row.lane, min(max(slots, 0), 1000) + 1)
    taken, more = heads[: max(slots, 0)], len(heads) > max(slots, 0)
    for wait in taken:
        tx.lane_wait_delete(topic.tenant_id, wait)
    next_at += gap_ms * len(taken)
    in_flight = row.in_flight + (len(taken) if lanes.max_in_flight is not None else 0)
    look_at = None
    if more and (lanes.max_in_flight is None or in_flight < lanes.max_in_flight):
        look_at = max(tx.now_ms, -int(-next_at // 1))
    if look_at is None and not in_flight and not heads and next_at <= tx.now_ms:
        tx.lane_delete(topic.tenant_id, partition, row.lane)
    elif look_at is None and not in_flight and not more and lanes.rate is not None:
        # Looked at once more when its tokens are full again, to be forgotten.
        tx.lane_put(
            topic.tenant_id, replace(row, in_flight=0, next_at=next_at, look_at=int(max(next_at, tx.now_ms)) + 1000)
        )
    else:
        tx.lane_put(topic.tenant_id, replace(row, in_flight=in_flight, next_at=next_at, look_at=look_at))
    return taken
