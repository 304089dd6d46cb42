"""Messages that are settled for good: what remains of them is their id, for the topic's dedupe window."""

from __future__ import annotations

from collections.abc import Iterable

from ..store.contract import TopicRow, Transaction
from .agenda import FORGET, note_settled, schedule_store


def note_done(
    tx: Transaction, topic: TopicRow, partition: int, offsets: Iterable[int], ended_at: int | None = None
) -> None:
    """Messages of a queue were acked, cancelled, dropped or expired: now, or at a moment that has passed unseen."""
    note_settled(tx, topic, partition)
    until = (tx.now_ms if ended_at is None else ended_at) + topic.settings.dedupe_ms
    if not topic.settings.dedupe_ms or until <= tx.now_ms:
        return
    for first, last in _ranges(sorted(offsets)):
        tx.done_insert(topic.tenant_id, partition, first, last, until)
    schedule_store(tx, FORGET, until)


def _ranges(offsets: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] + 1 == offset:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found
