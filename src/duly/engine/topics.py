"""Topics: create, update, describe, list, delete, pause, purge, and the archive's watermark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ..errors import (
    InvalidArgument,
    QuotaExceeded,
    StaleVersion,
    TopicExists,
    TopicNotEmpty,
)
from ..grants import NOBODY, By
from ..store.contract import Head, QueueRow, TenantRow, TopicRow, Transaction
from ..tenant import check_name
from ..topic import GroupSettings, PartitionDescription, TopicDescription, TopicSettings
from .agenda import TRUNCATE, note_created, schedule
from .audit import note_done
from .erase import drop_topic
from .fairness import lanes_reweighed
from .find import QUEUE_GROUP, find_group, find_owner, find_topic, head_of, set_cursor, set_head
from .fold import outdate_tags
from .gates import mend_gate
from .inquiry import count_standing
from .limited import breaker_of, is_limited, leave_lanes
from .pause import is_paused
from .read import check_offset, partition_id
from .record import record
from .retain import rehome


class CreateTopic(msgspec.Struct, frozen=True):
    """A new topic."""

    tenant: str
    topic: str
    settings: TopicSettings
    exist_ok: bool
    by: By = NOBODY


class OfTopic(msgspec.Struct, frozen=True):
    """A topic by name."""

    tenant: str
    topic: str


class DescribeTopic(OfTopic, frozen=True):
    """Ask how a topic stands."""


class PurgeTopic(OfTopic, frozen=True):
    """Drop a topic's messages."""

    by: By = NOBODY


class ListTopics(msgspec.Struct, frozen=True):
    """A page of topics, by name."""

    tenant: str
    after: str
    limit: int


class UpdateTopic(msgspec.Struct, frozen=True):
    """Changes to a topic; `version` refuses to overwrite somebody else's change."""

    tenant: str
    topic: str
    changes: Mapping[str, Any]
    paused: bool | None = None
    version: int | None = None
    by: By = NOBODY


class DeleteTopic(msgspec.Struct, frozen=True):
    """A topic to delete; `force` also when it has messages."""

    tenant: str
    topic: str
    force: bool
    by: By = NOBODY


class Archived(msgspec.Struct, frozen=True):
    """A partition has been archived up to an offset: truncation may go so far.

    Whoever read for a while names what was read: under the topic's name there may be another by now.
    """

    tenant: str
    topic: str
    partition: int
    offset: int
    incarnation: str | None = None
    partition_id: int | None = None
    by: By = NOBODY


def create_topic(tx: Transaction, command: CreateTopic) -> TopicDescription:
    """Makes a topic. With `exist_ok` an equal one is left as it is."""
    check_name(command.topic, "topic name")
    if command.topic.startswith("$"):
        raise InvalidArgument("Topic names that begin with '$' are Duly's own.")
    owner = find_owner(tx, command.tenant)
    existing = tx.topic_find(command.tenant, command.topic)
    if existing is None:
        _check_room(tx, owner)
        existing = tx.topic_insert(command.tenant, command.topic, command.settings)
        if command.settings.kind == "queue":
            tx.group_insert(existing, QUEUE_GROUP, GroupSettings())
        note_created(tx, existing)
        record(tx, existing, "topic_created", facts={"kind": command.settings.kind})
        note_done(tx, existing.tenant_id, command)
    elif not command.exist_ok:
        raise TopicExists(f"Topic {command.topic!r} exists. Use update_topic, or pass exist_ok=True.")
    elif existing.settings != command.settings:
        raise TopicExists(
            f"Topic {command.topic!r} exists with other settings "
            f"({_differences(existing.settings, command.settings)}). Use update_topic, or another name."
        )
    return describe(tx, existing)


def _check_room(tx: Transaction, owner: TenantRow | None) -> None:
    most = None if owner is None else owner.settings.topics
    if owner is not None and most is not None and tx.topic_count(owner.id) >= most:
        raise QuotaExceeded(f"The tenant has as many topics as it may: {most}. Delete one, or have the quota raised.")


def _differences(before: TopicSettings, after: TopicSettings) -> str:
    names = [name for name in TopicSettings.__slots__ if getattr(before, name) != getattr(after, name)]
    return ", ".join(f"{name}: {getattr(before, name)} there, {getattr(after, name)} here" for name in names)


def update_topic(tx: Transaction, command: UpdateTopic) -> TopicDescription:
    """Changes settings, or pauses and resumes."""
    topic = find_topic(tx, command.tenant, command.topic)
    if command.version is not None and command.version != topic.version:
        raise StaleVersion(f"Topic {topic.name!r} is at version {topic.version}, not {command.version}. Read it again.")
    settings = topic.settings.changed(command.changes)
    paused = topic.paused if command.paused is None else command.paused
    changed = tx.topic_update(topic, settings, paused)
    tx.remember(("topic", topic.tenant, topic.name), None)
    tx.aftermath.rings.update(topic.partitions)
    if paused != topic.paused:
        record(tx, topic, "paused" if paused else "resumed")
    if command.changes:
        record(tx, topic, "topic_updated", facts={"changes": sorted(command.changes)})
    if settings.archive and not topic.settings.archive:
        for partition in topic.partitions:
            head = head_of(tx, topic.tenant_id, partition)
            set_head(tx, topic.tenant_id, partition, replace(head, archive_from=head.next_offset))
    if settings.lanes != topic.settings.lanes:
        _change_lanes(tx, topic, changed)
    if settings.breaker != topic.settings.breaker:
        for group in tx.group_list(topic.id):
            if group.settings.breaker is None:
                mend_gate(tx, changed, group)
    if settings.kept != topic.settings.kept:
        for partition in topic.partitions:
            schedule(tx, topic.tenant_id, partition, TRUNCATE, tx.now_ms)
    note_done(tx, topic.tenant_id, command)
    return describe(tx, changed)


def _change_lanes(tx: Transaction, topic: TopicRow, changed: TopicRow) -> None:
    """Other limits hold from now on: what waits for its lane is looked at again, or waits for it no longer.

    Other weights do, too: for what stands ready already as for what comes.
    """
    for partition in topic.partitions:
        tx.lanes_look(topic.tenant_id, partition, tx.now_ms)
        if breaker_of(topic) != breaker_of(changed):
            tx.lanes_mend(topic.tenant_id, partition)
        if is_limited(topic) and not is_limited(changed):
            leave_lanes(tx, topic, partition)
        if _weights(topic) != _weights(changed):
            outdate_tags(tx, changed, partition, lanes_reweighed(_weights(topic), _weights(changed)))


def _weights(topic: TopicRow) -> Mapping[str, float]:
    lanes = topic.settings.lanes
    return {} if lanes is None else lanes.weights


def delete_topic(tx: Transaction, command: DeleteTopic) -> None:
    """Removes a topic with its groups. Its blocks are erased by a chore soon after."""
    topic = find_topic(tx, command.tenant, command.topic, shredded=True)
    if not command.force:
        left = sum(_messages(tx, topic, partition) for partition in topic.partitions)
        if left:
            raise TopicNotEmpty(f"Topic {topic.name!r} has {left} messages. Purge it first, or delete with force=True.")
    drop_topic(tx, topic)
    note_done(tx, topic.tenant_id, command)


def purge_topic(tx: Transaction, command: PurgeTopic) -> int:
    """Drops all messages of a topic, in every group; dead letters stay. Returns how many the log lost."""
    topic = find_topic(tx, command.tenant, command.topic)
    if topic.settings.archive:
        _check_archived(tx, topic)
    dropped = 0
    for partition in topic.partitions:
        head = head_of(tx, topic.tenant_id, partition)
        dropped += head.next_offset - head.first_offset
        for group in tx.group_list(topic.id):
            tx.leases_delete(topic.tenant_id, partition, group.id)
            if topic.settings.kind == "log":
                set_cursor(tx, topic.tenant_id, partition, group.id, head.next_offset)
        if topic.settings.kind == "queue":
            tx.queue_erase(topic.tenant_id, partition)
            tx.queue_put(topic.tenant_id, partition, QueueRow(head.next_offset))
            tx.remember(("queue", partition), None)
        rehome(tx, topic, partition, head.next_offset)
        # The log begins anew at its end; the blocks below are deleted by the chore.
        schedule(tx, topic.tenant_id, partition, TRUNCATE, tx.now_ms)
        set_head(tx, topic.tenant_id, partition, replace(head, first_offset=head.next_offset))
        count = head.next_offset - head.first_offset
        record(tx, topic, "purged", partition=partition, offset=head.first_offset, count=count)
    tx.aftermath.rings.update(topic.partitions)
    note_done(tx, topic.tenant_id, command, messages=dropped)
    return dropped


def _check_archived(tx: Transaction, topic: TopicRow) -> None:
    for number, head in enumerate(_heads(tx, topic)):
        if head.archived_to < head.next_offset:
            raise InvalidArgument(
                f"Partition {number} of {topic.name!r} is archived up to {head.archived_to} of {head.next_offset}. "
                "Archive it first, or turn archiving off."
            )


def archived(tx: Transaction, command: Archived) -> None:
    """Moves a partition's archive watermark ahead; it never moves back."""
    topic = find_topic(tx, command.tenant, command.topic)
    partition = partition_id(topic, command.partition)
    _check_same(tx, command, partition)
    head = head_of(tx, topic.tenant_id, partition)
    check_offset(topic, command.partition, head, max(command.offset, head.first_offset))
    if command.offset > head.archived_to:
        set_head(tx, topic.tenant_id, partition, replace(head, archived_to=command.offset))
        schedule(tx, topic.tenant_id, partition, TRUNCATE, tx.now_ms)
        note_done(tx, topic.tenant_id, command)


def _check_same(tx: Transaction, command: Archived, partition: int) -> None:
    """Refuses a watermark that belongs to a topic of that name that is gone, or to the store as it was."""
    if command.incarnation not in (None, tx.incarnation):
        raise StaleVersion("The store was restored since it was read. Archive it as it is now.")
    if command.partition_id not in (None, partition):
        raise StaleVersion(f"Topic {command.topic!r} was deleted and made again since it was read. Read it again.")


def _messages(tx: Transaction, topic: TopicRow, partition: int) -> int:
    """How many messages a partition holds: what the log of a log has, what is unsettled in a queue."""
    head = head_of(tx, topic.tenant_id, partition)
    if topic.settings.kind == "log":
        return head.next_offset - head.first_offset
    group = find_group(tx, topic, "")
    leased = sum(row.live for row in tx.leases(topic.tenant_id, partition, group.id))
    return sum(count_standing(tx, topic, partition)) + leased + tx.dead_count(topic.tenant_id, partition, group.id)


def _heads(tx: Transaction, topic: TopicRow) -> list[Head]:
    return [head_of(tx, topic.tenant_id, partition) for partition in topic.partitions]


def describe_topic(tx: Transaction, command: DescribeTopic) -> TopicDescription:
    """A topic as it stands."""
    return describe(tx, find_topic(tx, command.tenant, command.topic, suspended=True, shredded=True))


def list_topics(tx: Transaction, command: ListTopics) -> list[str]:
    """Names of topics after a name, in order."""
    return tx.topic_list(command.tenant, command.after, command.limit)


def describe(tx: Transaction, topic: TopicRow) -> TopicDescription:
    """A topic's definition with the size of each partition."""
    parts = []
    for number, partition in enumerate(topic.partitions):
        head = head_of(tx, topic.tenant_id, partition)
        blocks, size = tx.log_size(topic.tenant_id, partition, head.first_offset)
        parts.append(
            PartitionDescription(
                partition=number,
                id=partition,
                first_offset=head.first_offset,
                next_offset=head.next_offset,
                messages=_messages(tx, topic, partition),
                bytes=size,
                blocks=blocks,
                archived_to=head.archived_to,
                archive_from=head.archive_from,
            )
        )
    return TopicDescription(
        incarnation=tx.incarnation,
        tenant=topic.tenant,
        name=topic.name,
        kind=topic.settings.kind,
        settings=topic.settings,
        paused=topic.paused or is_paused(tx),
        version=topic.version,
        created_at_ms=topic.created_at,
        groups=tuple(group.name for group in tx.group_list(topic.id)),
        partitions=tuple(parts),
    )
