"""ack, nack, release, extend, bury: ending a claim, message by message.

A token is a lease id and indexes into it. Whatever it names that is no longer held under that id
is answered as lost, one message at a time, and nothing of it changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from ..errors import Error
from ..store.contract import LEASED, GroupRow, LeaseRow, TopicRow, Transaction
from .claimed import Claimed, Parcel, Slice
from .find import find_group, find_topic
from .lease import live_indexes, live_offsets, over
from .lookup import messages_at
from .pause import is_paused
from .queue_lease import keys_of, parcel_of, part_of
from .queue_settle import QueueSettling
from .read import look_up
from .record import record_claim
from .release import release_rows
from .settling import Settling
from .verdict import Settle, Verdicts


def settle(tx: Transaction, commands: Sequence[Settle]) -> list[Verdicts | Exception]:
    """Settles every token of every command."""
    answers: list[Verdicts | Exception] = []
    for command in commands:
        try:
            topic = find_topic(tx, command.tenant, command.topic, suspended=True)
            group = find_group(tx, topic, command.group)
        except Error as error:
            answers.append(error)
        else:
            kind = QueueSettling if topic.settings.kind == "queue" else Settling
            answers.append(kind(tx, command, topic, group).run())
    return answers


class OfConsumer(msgspec.Struct, frozen=True):
    """A consumer, in one group or in all that it was seen in."""

    tenant: str
    consumer: str
    topic: str | None = None
    group: str | None = None

    def groups(self, tx: Transaction, *, suspended: bool = False) -> list[tuple[TopicRow, GroupRow]]:
        """The groups meant. One that is named has to exist."""
        topic = None if self.topic is None else find_topic(tx, self.tenant, self.topic, suspended=suspended)
        if topic is not None and self.group is not None:
            return [(topic, find_group(tx, topic, self.group))]
        names = tx.consumer_groups(self.tenant, self.consumer)
        wanted = [pair for pair in names if self.topic in (None, pair[0]) and self.group in (None, pair[1])]
        topics = [(find_topic(tx, self.tenant, name, suspended=suspended), group) for name, group in wanted]
        return [(topic, find_group(tx, topic, group)) for topic, group in topics]


class ReleaseConsumer(OfConsumer, frozen=True):
    """Free what a consumer holds."""


class Held(OfConsumer, frozen=True):
    """Give a consumer back what it holds."""


def release_consumer(tx: Transaction, command: ReleaseConsumer) -> int:
    """Frees everything that a consumer holds, now; no attempt is counted. Returns how many messages."""
    return sum(
        release_rows(tx, topic, group, _held_rows(tx, topic, group, command.consumer))
        for topic, group in command.groups(tx, suspended=True)
    )


def held(tx: Transaction, command: Held) -> list[Claimed]:
    """Gives a consumer that lost its memory its unexpired leases back, under new ids.

    The old ids are dead from now on: should the consumer's former self still run, it is fenced off.
    """
    if is_paused(tx):
        return []
    found = [_regain(tx, topic, group, command.consumer) for topic, group in command.groups(tx)]
    return [claimed for claimed in found if claimed.parcels]


def _regain(tx: Transaction, topic: TopicRow, group: GroupRow, consumer: str) -> Claimed:
    lease_ms = group.settings.lease_ms or topic.settings.lease_ms
    got = Claimed(topic.name, group.name, tx.incarnation, lease_ms, tx.now_ms + lease_ms, partitions=topic.partitions)
    for row in _held_rows(tx, topic, group, consumer):
        if row.due_at <= tx.now_ms:
            continue
        if topic.settings.kind == "queue":
            got.parcels.append(_regain_queue(tx, topic, group, row, got.expires_at))
            continue
        found = look_up(tx, row.tenant_id, row.partition, live_offsets(row))
        offsets = [offset for offset, _, _ in found.readable]
        if not offsets:
            continue
        tx.lease_delete(row.tenant_id, row.id)
        if found.corrupt:
            tx.lease_insert(over(row, found.corrupt))
        kept = replace(over(row, offsets), due_at=got.expires_at)
        lease_id = tx.lease_insert(kept)
        record_claim(tx, topic, group.name, kept, lease_id)
        slices = tuple(Slice(block, at, at + 1, index) for index, (_, block, at) in enumerate(found.readable))
        number = topic.partitions.index(row.partition)
        got.parcels.append(Parcel(lease_id, number, row.partition, row.attempts, len(offsets), slices))
    return got


def _regain_queue(tx: Transaction, topic: TopicRow, group: GroupRow, row: LeaseRow, expires_at: int) -> Parcel:
    indexes = live_indexes(row)
    part = part_of(row, indexes)
    assert part.offsets is not None
    columns = messages_at(tx, row.tenant_id, row.partition, part.offsets)
    tx.lease_delete(row.tenant_id, row.id)
    lease_id = tx.lease_insert(replace(part, due_at=expires_at))
    record_claim(tx, topic, group.name, part, lease_id)
    keys = keys_of(part)
    attempts = [keys.attempt(index) for index in range(part.count)]
    return parcel_of(part, lease_id, topic.partitions.index(row.partition), columns, attempts)


def _held_rows(tx: Transaction, topic: TopicRow, group: GroupRow, consumer: str) -> list[LeaseRow]:
    return [
        row
        for partition in topic.partitions
        for row in tx.leases(topic.tenant_id, partition, group.id)
        if row.state == LEASED and row.consumer == consumer
    ]
