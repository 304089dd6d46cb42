"""Erasing: topics with all they hold, and tenants with all their topics.

A deleted tenant goes a slice at a time. Its topics are dropped, and their partitions erased like those of any deleted
topic; at last the tenant itself goes, with its principals and events. Its keys went first.
"""

from __future__ import annotations

from ..store.contract import AgendaRow, TopicRow, Transaction
from . import chain
from .agenda import ERASE, ERASE_TENANTS, SOON_MS, schedule, schedule_store
from .audit import audit_key
from .push_ends import end_pushes, lose_target
from .record import record

# Dropped by one transaction, with the lock of each.
_TOPICS_A_SLICE = 20


def drop_topic(tx: Transaction, topic: TopicRow) -> None:
    """Removes a topic, whatever it holds, with its pushes; those that go to it are disabled."""
    end_pushes(tx, topic)
    lose_target(tx, topic)
    for group in tx.group_list(topic.id):
        tx.group_delete(topic, group)
        tx.remember(("group", topic.id, group.name), None)
    tx.topic_delete(topic)
    record(tx, topic, "topic_deleted")
    tx.remember(("topic", topic.tenant, topic.name), None)
    for partition in topic.partitions:
        schedule(tx, topic.tenant_id, partition, ERASE, tx.now_ms)
    tx.aftermath.rings.update(topic.partitions)


def erase_tenants(tx: Transaction, _: AgendaRow) -> None:
    """The chore: goes on with erasing a deleted tenant, a slice at a time."""
    row = tx.tenant_deleting()
    if row is None:
        return
    names = tx.topics_some(row.id, _TOPICS_A_SLICE)
    for name in names:
        topic = tx.topic_find(row.name, name)
        if topic is not None:
            drop_topic(tx, topic)
    # Nobody is there to read of it.
    tx.aftermath.records[:] = [record for record in tx.aftermath.records if record[0] != row.id]
    if names:
        schedule_store(tx, ERASE_TENANTS, tx.now_ms)
    elif tx.tenant_parts(row.id):
        schedule_store(tx, ERASE_TENANTS, tx.now_ms + SOON_MS)
    else:
        chain.end(tx, audit_key(tx), row.id, row.name)
        tx.tenant_erase(row.id)
        schedule_store(tx, ERASE_TENANTS, tx.now_ms)
