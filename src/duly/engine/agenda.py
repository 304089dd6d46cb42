"""When a partition next needs looking after. One entry a partition, written only when it changes.

Nothing walks over topics: publish and ack note here that something will have to be done, and the
chores (chores.py) sleep until the earliest entry. A topic that keeps everything never has one.
"""

from __future__ import annotations

from ..store.contract import AgendaRow, TopicRow, Transaction

TRUNCATE, ERASE, GIVE_BACK, FORGET = "truncate", "erase", "give_back", "forget"

# Long enough that a busy partition is looked at once a second and not once a batch.
SOON_MS = 1000


def note_published(tx: Transaction, topic: TopicRow, partition: int) -> None:
    """A block was added: it will age, and the log may have grown past its bytes."""
    kept = topic.settings.kept
    if kept.bytes is not None:
        schedule(tx, topic.tenant_id, partition, TRUNCATE, tx.now_ms + SOON_MS)
    elif kept.age_ms is not None:
        schedule(tx, topic.tenant_id, partition, TRUNCATE, tx.now_ms + kept.age_ms)


def note_settled(tx: Transaction, topic: TopicRow, partition: int) -> None:
    """Messages were settled: their blocks may be no longer needed by anyone."""
    if topic.settings.kept.settled:
        schedule(tx, topic.tenant_id, partition, TRUNCATE, tx.now_ms + SOON_MS)


def note_moved(tx: Transaction, topic: TopicRow) -> None:
    """A group went away or ahead: what it held back may go."""
    for partition in topic.partitions:
        schedule(tx, topic.tenant_id, partition, TRUNCATE, tx.now_ms + SOON_MS)


def schedule(tx: Transaction, tenant_id: int, partition: int, chore: str, due_at: int) -> None:
    """Sees to it that the chore is done by `due_at`; an earlier entry stays."""
    key = ("agenda", partition, chore)
    known = tx.recall(key)
    if known is None or due_at < known:
        tx.agenda_put(AgendaRow(tenant_id, partition, chore, due_at))
        tx.remember(key, due_at)
        tx.aftermath.rings.add(0)
