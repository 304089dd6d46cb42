"""Gives back what is held, now; no attempt is counted."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ..store.contract import WAITING, GroupRow, LeaseRow, TopicRow, Transaction
from .gates import outcomes
from .lease import live_offsets, over
from .queue_settle import QueueSettling
from .record import of_lease, record
from .verdict import Settle, Token


def release_rows(tx: Transaction, topic: TopicRow, group: GroupRow, rows: Iterable[LeaseRow]) -> int:
    """Frees the messages of these leases of one group. Returns how many."""
    release = _release_queue if topic.settings.kind == "queue" else _release_log
    return sum(release(tx, topic, group, row) for row in rows)


def _release_log(tx: Transaction, topic: TopicRow, group: GroupRow, row: LeaseRow) -> int:
    tx.lease_delete(row.tenant_id, row.id)
    free = replace(row, state=WAITING, attempts=row.attempts - 1, suspect=False, alone=False, consumer="")
    tx.lease_insert(replace(over(free, live_offsets(row)), due_at=tx.now_ms))
    breaker = outcomes(tx, topic, group)
    if breaker is not None:
        breaker.ended(row)
    record(tx, topic, "released", group=group.name, consumer=row.consumer, **of_lease(row))
    tx.aftermath.rings.add(row.partition)
    return row.live


def _release_queue(tx: Transaction, topic: TopicRow, group: GroupRow, row: LeaseRow) -> int:
    command = Settle(topic.tenant, tx.incarnation, topic.name, group.name, "release", (Token(row.id),))
    return QueueSettling(tx, command, topic, group).run().done
