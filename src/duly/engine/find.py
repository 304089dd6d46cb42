"""Finding a topic or a group by name, remembered inside write transactions."""

from __future__ import annotations

from ..errors import GroupNotFound, InvalidArgument, TenantNotFound, TenantSuspended
from ..grants import no_topic
from ..store.contract import GroupRow, Head, TenantRow, TopicRow, Transaction
from ..tenant import DELETING, SUSPENDED
from .secrets import Shredded

# The one group of a queue.
QUEUE_GROUP = "queue"


def find_topic(tx: Transaction, tenant: str, name: str, *, suspended: bool = False, shredded: bool = False) -> TopicRow:
    """The topic, or TopicNotFound. Of a tenant that is suspended, or whose data keys were shredded, only if so said."""
    key = ("topic", tenant, name)
    topic: TopicRow | None = tx.recall(key)
    if topic is None:
        topic = tx.topic_find(tenant, name)
        if topic is None:
            raise no_topic(name)
        tx.remember(key, topic)
    if topic.tenant_state and not suspended:
        raise TenantSuspended() if topic.tenant_state == SUSPENDED else no_topic(name)
    if topic.shredded and not shredded:
        raise Shredded()
    return topic


def find_owner(tx: Transaction, tenant: str) -> TenantRow | None:
    """The tenant, which may do something; None: it is not there yet. Raises TenantSuspended, TenantNotFound."""
    owner = tx.tenant_find(tenant)
    if owner is not None and owner.state == SUSPENDED:
        raise TenantSuspended()
    if owner is not None and owner.state == DELETING:
        raise TenantNotFound(f"Tenant {tenant!r} is being deleted. Wait until it is gone, or use another name.")
    return owner


def find_log(tx: Transaction, tenant: str, name: str) -> TopicRow:
    """The topic, which has to be a log."""
    topic = find_topic(tx, tenant, name)
    if topic.settings.kind != "log":
        raise InvalidArgument(f"{name!r} is a queue: it has no offsets to read or seek, and no groups. Claim from it.")
    return topic


def find_queue(tx: Transaction, tenant: str, name: str) -> TopicRow:
    """The topic, which has to be a queue."""
    topic = find_topic(tx, tenant, name)
    if topic.settings.kind != "queue":
        raise InvalidArgument(f"{name!r} is a log: its messages cannot be moved, cancelled or browsed. Read it.")
    return topic


def find_group(tx: Transaction, topic: TopicRow, name: str) -> GroupRow:
    """The topic's group, or GroupNotFound. A queue has one, which needs no name."""
    queue = topic.settings.kind == "queue"
    if not name:
        if not queue:
            raise InvalidArgument("A log is consumed through a group: pass group=.")
        name = QUEUE_GROUP
    key = ("group", topic.id, name)
    group: GroupRow | None = tx.recall(key)
    if group is None:
        group = tx.group_find(topic.id, name)
        if group is None and queue:
            raise GroupNotFound(f"{topic.name!r} is a queue, whose consumers are one group: leave group= out.")
        if group is None:
            raise GroupNotFound(f"Topic {topic.name!r} has no group {name!r}. Call create_group first.")
        tx.remember(key, group)
    return group


def head_of(tx: Transaction, tenant_id: int, partition: int) -> Head:
    """The partition's bounds, remembered."""
    key = ("head", partition)
    head: Head | None = tx.recall(key)
    if head is None:
        head = tx.head(tenant_id, partition)
        tx.remember(key, head)
    return head


def cursor_of(tx: Transaction, tenant_id: int, partition: int, group: int) -> int:
    """The offset that the group claims next, remembered."""
    key = ("cursor", partition, group)
    offset: int | None = tx.recall(key)
    if offset is None:
        offset = tx.cursor(tenant_id, partition, group)
        tx.remember(key, offset)
    return offset


def set_cursor(tx: Transaction, tenant_id: int, partition: int, group: int, offset: int) -> None:
    """Moves the group's cursor."""
    tx.cursor_update(tenant_id, partition, group, offset)
    tx.remember(("cursor", partition, group), offset)


def set_head(tx: Transaction, tenant_id: int, partition: int, head: Head) -> None:
    """Writes a partition's bounds."""
    tx.head_update(tenant_id, partition, head)
    tx.remember(("head", partition), head)
