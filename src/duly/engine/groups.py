"""Groups: create, describe, update, delete, pause, seek; each topic's consumers' side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import GroupExists, InvalidArgument, LimitExceeded
from ..grants import NOBODY, By
from ..limits import LIMITS
from ..store.contract import LEASED, GroupRow, TopicRow, Transaction
from ..tenant import check_name
from ..topic import ConsumerDescription, GroupDescription, GroupSettings
from .agenda import note_moved
from .audit import note_done
from .broken import broken_lanes
from .find import cursor_of, find_group, find_log, find_topic, head_of, set_cursor
from .gates import describe_gate, mend_gate
from .inquiry import count_standing
from .lease import live_offsets
from .push_ends import end_pushes
from .read import check_offset, offset_at, partition_id
from .record import record, record_some

# A description names no more lanes whose breakers are open.
_LANES_MAX = 100


class Start(msgspec.Struct, frozen=True):
    """Where a group begins or goes: a word (earliest, latest), a moment, or offsets by partition number."""

    word: str | None = None
    at_ms: int | None = None
    offsets: Mapping[int, int] = msgspec.field(default_factory=dict)

    def resolve(self, tx: Transaction, topic: TopicRow) -> dict[int, int]:
        """The offset for each partition id that this names."""
        if self.offsets:
            found: dict[int, int] = {}
            for number, offset in self.offsets.items():
                partition = partition_id(topic, number)
                check_offset(topic, number, head_of(tx, topic.tenant_id, partition), offset)
                found[partition] = offset
            return found
        return {partition: self._one(tx, topic, partition) for partition in topic.partitions}

    def _one(self, tx: Transaction, topic: TopicRow, partition: int) -> int:
        head = head_of(tx, topic.tenant_id, partition)
        if self.at_ms is not None:
            return offset_at(tx, topic.tenant_id, partition, self.at_ms)
        return head.first_offset if self.word == "earliest" else head.next_offset


class CreateGroup(msgspec.Struct, frozen=True):
    """A new group and where it starts."""

    tenant: str
    topic: str
    group: str
    settings: GroupSettings
    start: Start
    exist_ok: bool
    by: By = NOBODY


class OfGroup(msgspec.Struct, frozen=True):
    """A group by name."""

    tenant: str
    topic: str
    group: str


class DescribeGroup(OfGroup, frozen=True):
    """Ask how a group stands."""


class DeleteGroup(OfGroup, frozen=True):
    """Remove a group."""

    by: By = NOBODY


class PurgeGroup(OfGroup, frozen=True):
    """Drop what a group has not settled."""

    by: By = NOBODY


class ListGroups(msgspec.Struct, frozen=True):
    """The groups of a topic."""

    tenant: str
    topic: str


class UpdateGroup(msgspec.Struct, frozen=True):
    """Changes to a group; `paused` None leaves it."""

    tenant: str
    topic: str
    group: str
    changes: Mapping[str, Any]
    paused: bool | None = None
    by: By = NOBODY


class Seek(msgspec.Struct, frozen=True):
    """Where a group's cursor goes."""

    tenant: str
    topic: str
    group: str
    start: Start
    by: By = NOBODY


def create_group(tx: Transaction, command: CreateGroup) -> None:
    """Makes a group. With `exist_ok` an equal one is left as it is, cursor and all."""
    check_name(command.group, "group name")
    topic = find_log(tx, command.tenant, command.topic)
    existing = tx.group_find(topic.id, command.group)
    if existing is not None:
        if command.exist_ok and existing.settings == command.settings:
            return
        why = "exists with other settings" if command.exist_ok else "exists"
        raise GroupExists(f"Group {command.group!r} of topic {topic.name!r} {why}. Use update_group, or another name.")
    if len(tx.group_list(topic.id)) >= LIMITS.groups_per_topic_max:
        raise LimitExceeded(f"A topic has at most {LIMITS.groups_per_topic_max} groups.")
    offsets = command.start.resolve(tx, topic)
    group = tx.group_insert(topic, command.group, command.settings)
    for partition in topic.partitions:
        # Partitions that were not named begin where the log does.
        first = head_of(tx, topic.tenant_id, partition).first_offset
        set_cursor(tx, topic.tenant_id, partition, group.id, offsets.get(partition, first))
    record(tx, topic, "group_created", group=group.name)
    note_done(tx, topic.tenant_id, command)


def update_group(tx: Transaction, command: UpdateGroup) -> None:
    """Changes a group's settings, or pauses and resumes it."""
    topic = find_topic(tx, command.tenant, command.topic)
    group = find_group(tx, topic, command.group)
    settings = group.settings.changed(command.changes)
    paused = group.paused if command.paused is None else command.paused
    tx.group_update(group, settings, paused)
    if settings.breaker != group.settings.breaker:
        mend_gate(tx, topic, group)
    if paused != group.paused:
        record(tx, topic, "paused" if paused else "resumed", group=group.name)
    if command.changes:
        record(tx, topic, "group_updated", group=group.name, facts={"changes": sorted(command.changes)})
    tx.remember(("group", topic.id, group.name), None)
    tx.aftermath.rings.update(topic.partitions)
    note_done(tx, topic.tenant_id, command)


def delete_group(tx: Transaction, command: DeleteGroup) -> None:
    """Removes a group with its leases, retries, dead letters and push; open leases are lost."""
    topic = find_log(tx, command.tenant, command.topic)
    group = find_group(tx, topic, command.group)
    end_pushes(tx, topic, group.id)
    tx.group_delete(topic, group)
    record(tx, topic, "group_deleted", group=group.name)
    tx.remember(("group", topic.id, group.name), None)
    for partition in topic.partitions:
        tx.remember(("cursor", partition, group.id), None)
    note_moved(tx, topic)
    # Those who wait on it find out that it is gone.
    tx.aftermath.rings.update(topic.partitions)
    note_done(tx, topic.tenant_id, command)


def seek(tx: Transaction, command: Seek) -> dict[int, int]:
    """Moves the cursor. Open leases and pending retries of the partitions moved are fenced off."""
    topic = find_log(tx, command.tenant, command.topic)
    group = find_group(tx, topic, command.group)
    offsets = command.start.resolve(tx, topic)
    for partition, offset in offsets.items():
        tx.leases_delete(topic.tenant_id, partition, group.id)
        set_cursor(tx, topic.tenant_id, partition, group.id, offset)
        record(tx, topic, "sought", group=group.name, partition=partition, offset=offset)
    note_moved(tx, topic)
    tx.aftermath.rings.update(offsets)
    note_done(tx, topic.tenant_id, command)
    return {topic.partitions.index(partition): offset for partition, offset in offsets.items()}


def purge_group(tx: Transaction, command: PurgeGroup) -> int:
    """Drops everything that a group has not settled: what waits, what is leased, what retries."""
    topic = find_log(tx, command.tenant, command.topic)
    group = find_group(tx, topic, command.group)
    dropped = 0
    for partition in topic.partitions:
        head = head_of(tx, topic.tenant_id, partition)
        cursor = max(head.first_offset, cursor_of(tx, topic.tenant_id, partition, group.id))
        begun = [o for row in tx.leases(topic.tenant_id, partition, group.id) for o in live_offsets(row)]
        dropped += head.next_offset - cursor + len(begun)
        record_some(tx, topic, "purged", partition, begun, group=group.name)
        tx.leases_delete(topic.tenant_id, partition, group.id)
        set_cursor(tx, topic.tenant_id, partition, group.id, head.next_offset)
        record(
            tx,
            topic,
            "purged",
            group=group.name,
            partition=partition,
            offset=cursor,
            count=head.next_offset - cursor,
        )
    note_moved(tx, topic)
    note_done(tx, topic.tenant_id, command, messages=dropped)
    return dropped


def list_groups(tx: Transaction, command: ListGroups) -> list[str]:
    """The names of a topic's groups."""
    return [group.name for group in tx.group_list(find_topic(tx, command.tenant, command.topic, suspended=True).id)]


def describe_group(tx: Transaction, command: DescribeGroup) -> GroupDescription:
    """Where a group stands and who works for it."""
    topic = find_topic(tx, command.tenant, command.topic, suspended=True)
    group = find_group(tx, topic, command.group)
    if topic.settings.kind == "queue":
        return _describe_queue(tx, topic, group)
    heads = {number: head_of(tx, topic.tenant_id, pid) for number, pid in enumerate(topic.partitions)}
    cursors = {
        number: max(heads[number].first_offset, cursor_of(tx, topic.tenant_id, pid, group.id))
        for number, pid in enumerate(topic.partitions)
    }
    work = _Work(tx, topic, group)
    return GroupDescription(
        topic=topic.name,
        name=group.name,
        settings=group.settings,
        paused=group.paused,
        cursors=cursors,
        first_offsets={number: head.first_offset for number, head in heads.items()},
        next_offsets={number: head.next_offset for number, head in heads.items()},
        lag=sum(heads[number].next_offset - cursor for number, cursor in cursors.items()),
        leased=work.leased,
        retrying=work.retrying,
        dead=work.dead,
        consumers=work.consumers,
        gate=describe_gate(tx, topic, group, in_flight=work.leased, lanes=broken_lanes(tx, topic, _LANES_MAX)),
    )


class _Work:
    """What the consumers of a group have in hand."""

    def __init__(self, tx: Transaction, topic: TopicRow, group: GroupRow) -> None:
        self.leased = self.retrying = self.dead = 0
        held: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for partition in topic.partitions:
            self.dead += tx.dead_count(topic.tenant_id, partition, group.id)
            for row in tx.leases(topic.tenant_id, partition, group.id):
                if row.state == LEASED and row.due_at > tx.now_ms:
                    self.leased += row.live
                    held[row.consumer][0] += 1
                    held[row.consumer][1] += row.live
                else:
                    self.retrying += row.live
        self.consumers = tuple(
            ConsumerDescription(name, max(0, tx.now_ms - seen_at), *held.get(name, (0, 0)))
            for name, seen_at in tx.consumers(topic.tenant_id, group.id)
        )


def _describe_queue(tx: Transaction, topic: TopicRow, group: GroupRow) -> GroupDescription:
    """A queue's consumers: what was never claimed is their lag."""
    work = _Work(tx, topic, group)
    standing = [count_standing(tx, topic, partition) for partition in topic.partitions]
    return GroupDescription(
        topic=topic.name,
        name=group.name,
        settings=group.settings,
        paused=group.paused,
        cursors={},
        first_offsets={},
        next_offsets={},
        lag=sum(never for never, _ in standing),
        leased=work.leased,
        retrying=work.retrying + sum(failed for _, failed in standing),
        dead=work.dead,
        consumers=work.consumers,
        gate=describe_gate(tx, topic, group, in_flight=work.leased, lanes=broken_lanes(tx, topic, _LANES_MAX)),
    )


def start_from(given: object, at_ms: int | None = None) -> Start:
    """Reads `start=` or `offset=` as callers give them; `at_ms` is set when they gave a moment."""
    if at_ms is not None:
        return Start(at_ms=at_ms)
    if isinstance(given, str):
        if given not in ("earliest", "latest"):
            raise InvalidArgument(f"A group starts at 'earliest', 'latest', an offset or a time; got {given!r}.")
        return Start(word=given)
    if isinstance(given, bool) or not isinstance(given, (int, Mapping)):
        raise InvalidArgument(f"A group starts at 'earliest', 'latest', an offset or a time; got {given!r}.")
    offsets = {0: given} if isinstance(given, int) else dict(given)
    for number, offset in offsets.items():
        if any(isinstance(part, bool) or not isinstance(part, int) or part < 0 for part in (number, offset)):
            raise InvalidArgument(f"Offsets are whole numbers from 0 on, by partition; got {number!r}: {offset!r}.")
    if not offsets:
        raise InvalidArgument("No offset is given.")
    return Start(offsets=offsets)
