"""The end of a message that failed for good, and telling of what happens to messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..limits import LIMITS
from ..store.contract import DeadRow, GroupRow, LeaseRow, TopicRow, Transaction
from .agenda import note_settled
from .record import record, spread


def tell(
    tx: Transaction,
    topic: TopicRow,
    group: GroupRow,
    kind: str,
    *,
    facts: dict[str, object],
    **more: Any,
) -> None:
    """Records an event, and lets whoever listens know of it after the commit."""
    before = len(tx.aftermath.records)
    record(tx, topic, kind, group=group.name, facts=facts, **more)
    tx.aftermath.events.extend(event for _, event in tx.aftermath.records[before:])


def tell_expired(tx: Transaction, topic: TopicRow, group: GroupRow, partition: int, offsets: Sequence[int]) -> None:
    """Tells of messages that were dropped because they had expired."""
    offset, deltas = spread(offsets)
    more = {"partition": partition, "offset": offset, "count": len(offsets), "deltas": deltas}
    tell(tx, topic, group, "ttl_expired", facts={}, **more)


def bury(tx: Transaction, topic: TopicRow, group: GroupRow, row: LeaseRow, offsets: Sequence[int], reason: str) -> None:
    """Moves messages to the group's dead letters, or drops them where it keeps none."""
    reason = reason[: LIMITS.reason_chars_max]
    keep = group.settings.dead_letters
    if topic.settings.dead_letters if keep is None else keep:
        for offset in offsets:
            tx.dead_insert(
                DeadRow(
                    tenant_id=row.tenant_id,
                    partition=row.partition,
                    group=row.group,
                    offset=offset,
                    buried_at=tx.now_ms,
                    attempts=row.attempts,
                    reason=reason,
                    history=row.history,
                )
            )
    note_settled(tx, topic, row.partition)
    facts: dict[str, object] = {"reason": reason, "attempts": row.attempts}
    offset, deltas = spread(offsets)
    tell(
        tx,
        topic,
        group,
        "buried",
        partition=row.partition,
        offset=offset,
        count=len(offsets),
        deltas=deltas,
        consumer=row.consumer,
        facts=facts,
    )
