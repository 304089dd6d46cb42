"""The end of a message that failed for good, and telling of what happens to messages."""

from __future__ import annotations

from collections.abc import Sequence

from ..events import Event
from ..limits import LIMITS
from ..store.contract import DeadRow, GroupRow, LeaseRow, TopicRow, Transaction
from .agenda import note_settled


def tell(
    tx: Transaction,
    topic: TopicRow,
    group: GroupRow,
    kind: str,
    *,
    partition: int,
    offset: int,
    count: int,
    facts: dict[str, object],
) -> None:
    """Adds an event to what follows the commit."""
    number = topic.partitions.index(partition)
    event = Event(kind, tx.now_ms, topic.tenant, topic.name, group.name, number, offset, count, facts)
    tx.aftermath.events.append(event)


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
    tell(
        tx,
        topic,
        group,
        "buried",
        partition=row.partition,
        offset=offsets[0],
        count=len(offsets),
        facts=facts,
    )
