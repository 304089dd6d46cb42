"""When a partition next needs looking after. One entry a partition, written only when it changes.

Nothing walks over topics: publish and ack note here that something will have to be done, and the
chores (retain.py) sleep until the earliest entry. A topic is given its first one when it is made, so that
the first publish to each of a hundred thousand has nothing to write but its block; a look that finds an
empty log leaves none.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..store.contract import AgendaRow, TopicRow, Transaction
from .find import head_of

TRUNCATE, ERASE, GIVE_BACK, FORGET, PACK, ADMIT = "truncate", "erase", "give_back", "forget", "pack", "admit"
ERASE_TENANTS = "erase_tenants"

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


def note_created(tx: Transaction, topic: TopicRow) -> None:
    """A topic was made: what will be published will age."""
    age_ms = topic.settings.kept.age_ms
    for partition in topic.partitions if age_ms is not None else ():
        schedule(tx, topic.tenant_id, partition, TRUNCATE, tx.now_ms + (age_ms or 0))


def schedule(tx: Transaction, tenant_id: int, partition: int, chore: str, due_at: int) -> None:
    """Sees to it that a partition is looked at by `due_at`; an earlier entry stays."""
    head = head_of(tx, tenant_id, partition)
    if head.look_at is None or due_at < head.look_at:
        tx.agenda_put(AgendaRow(tenant_id, partition, chore, due_at))
        tx.remember(("head", partition), replace(head, look_at=due_at))
        tx.aftermath.rings.add(0)


def schedule_store(tx: Transaction, chore: str, due_at: int) -> None:
    """Sees to it that a chore of the store itself is done by `due_at`; an earlier entry stays."""
    known = tx.recall(("agenda", chore))
    # One that has come may have been done by somebody else.
    if known is None or due_at < known or known <= tx.now_ms:
        tx.agenda_put(AgendaRow(0, 0, chore, due_at))
        tx.remember(("agenda", chore), due_at)
        tx.aftermath.rings.add(0)
