"""ack, nack, release, extend, bury: ending a claim, message by message.

A token is a lease id and indexes into it. Whatever it names that is no longer held under that id
is answered as lost, one message at a time, and nothing of it changes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from ..errors import Error
from ..message import Failure
from ..store.contract import LEASED, WAITING, GroupRow, LeaseRow, TopicRow, Transaction
from .agenda import note_settled
from .claim import Claimed, Parcel, Slice, bury, has_expired, tell
from .find import find_group, find_log
from .lease import add_failure, is_live, live_indexes, live_offsets, offset_of, over, settle_bits
from .read import look_up

_draw = random.Random()


class Token(msgspec.Struct, frozen=True):
    """Messages of one lease: these indexes, or all that are left of it."""

    lease_id: int
    indexes: tuple[int, ...] | None = None


class Settle(msgspec.Struct, frozen=True):
    """A verdict on claimed messages. `delay_ms`: for nack the wait, for extend the new lease.

    `incarnation` is that of the store which gave the leases: another one's ids mean nothing here.
    """

    tenant: str
    incarnation: str
    topic: str
    group: str
    verdict: str
    tokens: tuple[Token, ...]
    delay_ms: int | None = None
    reason: str = ""


class Verdicts(msgspec.Struct):
    """How many were settled, and which were not because their lease is lost.

    `renewed` maps (lease, index) to its new (lease, index) where part of a lease was extended:
    that part has a lease of its own from then on.
    """

    done: int = 0
    lost: list[tuple[int, int | None]] = msgspec.field(default_factory=list)
    renewed: dict[tuple[int, int], tuple[int, int]] = msgspec.field(default_factory=dict)
    expires_at: int = 0


def settle(tx: Transaction, commands: Sequence[Settle]) -> list[Verdicts | Exception]:
    """Settles every token of every command."""
    answers: list[Verdicts | Exception] = []
    for command in commands:
        try:
            topic = find_log(tx, command.tenant, command.topic)
            group = find_group(tx, topic, command.group)
        except Error as error:
            answers.append(error)
        else:
            answers.append(_Settling(tx, command, topic, group).run())
    return answers


class _Settling:
    """One settle command at work."""

    def __init__(self, tx: Transaction, command: Settle, topic: TopicRow, group: GroupRow) -> None:
        self.tx = tx
        self.command = command
        self.topic = topic
        self.group = group
        self.retry = group.settings.retry or topic.settings.retry
        self.verdicts = Verdicts()
        self.touched: set[int] = set()

    def run(self) -> Verdicts:
        if self.command.incarnation != self.tx.incarnation:
            for token in self.command.tokens:
                self.verdicts.lost.extend((token.lease_id, index) for index in token.indexes or (None,))
            return self.verdicts
        for token in self.command.tokens:
            if self.command.verdict == "ack" and token.indexes is None:
                self._ack_all(token)
            else:
                self._settle(token)
        if self.command.verdict != "extend":
            for partition in self.touched:
                note_settled(self.tx, self.topic, partition)
        return self.verdicts

    def _ack_all(self, token: Token) -> None:
        """The common case: one statement ends the whole lease."""
        row = self.tx.lease_delete(self.topic.tenant_id, token.lease_id)
        if row is None:
            self.verdicts.lost.append((token.lease_id, None))
        elif not self._mine(row):
            self.tx.lease_insert(row)
            self.verdicts.lost.append((token.lease_id, None))
        else:
            self.touched.add(row.partition)
            self.verdicts.done += row.live

    def _mine(self, row: LeaseRow) -> bool:
        """Whether the row is a lease of the group that the command names."""
        return row.state == LEASED and row.group == self.group.id

    def _settle(self, token: Token) -> None:
        row = self.tx.lease(self.topic.tenant_id, token.lease_id)
        if row is None or not self._mine(row):
            self.verdicts.lost.extend((token.lease_id, index) for index in token.indexes or (None,))
            return
        wanted = live_indexes(row) if token.indexes is None else list(dict.fromkeys(token.indexes))
        held = [index for index in wanted if is_live(row, index)]
        self.verdicts.lost.extend((row.id, index) for index in wanted if not is_live(row, index))
        if not held:
            return
        held.sort()
        self.touched.add(row.partition)
        if self.command.verdict == "extend":
            self._extend(row, held)
        else:
            self._take_out(row, held)
            self._dispose(row, [offset_of(row, index) for index in held])
        self.verdicts.done += len(held)

    def _take_out(self, row: LeaseRow, indexes: list[int]) -> None:
        """Marks the messages done in their lease; the last one deletes it."""
        if len(indexes) == row.live:
            self.tx.lease_delete(row.tenant_id, row.id)
        else:
            self.tx.lease_settle(row, settle_bits(row, indexes), row.live - len(indexes))

    def _dispose(self, row: LeaseRow, offsets: list[int]) -> None:
        """Where messages go that were taken out of their lease."""
        verdict, now = self.command.verdict, self.tx.now_ms
        row = replace(row, state=WAITING, suspect=False, alone=False)
        if verdict == "release":
            self._wait(replace(row, attempts=row.attempts - 1, due_at=now), offsets)
        elif verdict in ("nack", "bury"):
            reason = self.command.reason or ("buried by its consumer" if verdict == "bury" else "")
            failure = Failure(row.attempts, now, verdict, reason, row.consumer)
            row = replace(row, history=add_failure(row.history, failure))
            if verdict == "bury":
                bury(self.tx, self.topic, self.group, row, offsets, reason)
            else:
                self._nack(row, offsets, reason)

    def _nack(self, row: LeaseRow, offsets: list[int], reason: str) -> None:
        """Back with a delay; expired ones are dropped, and after the last attempt they are buried."""
        offsets = self._drop_expired(row, offsets)
        if not offsets:
            return
        if row.attempts >= self.retry.max_attempts:
            bury(self.tx, self.topic, self.group, row, offsets, reason or f"failed {row.attempts} times")
            return
        delay_ms = self.command.delay_ms
        wait_ms = self.retry.delay_ms(row.attempts, _draw) if delay_ms is None else delay_ms
        self._wait(replace(row, due_at=self.tx.now_ms + wait_ms), offsets)

    def _drop_expired(self, row: LeaseRow, offsets: list[int]) -> list[int]:
        found = look_up(self.tx, row.tenant_id, row.partition, offsets)
        past = {offset for offset, block, index in found.readable if has_expired(block, index, self.tx.now_ms)}
        # Whether a message of a corrupt block expired cannot be read; the next claim will report it.
        alive = [offset for offset in offsets if offset not in past]
        if len(alive) < len(offsets):
            tell(
                self.tx,
                self.topic,
                self.group,
                "ttl_expired",
                partition=row.partition,
                offset=offsets[0],
                count=len(offsets) - len(alive),
                facts={},
            )
        return alive

    def _wait(self, row: LeaseRow, offsets: list[int]) -> None:
        self.tx.lease_insert(replace(over(row, offsets), consumer=""))
        self.tx.aftermath.rings.add(row.partition)

    def _extend(self, row: LeaseRow, indexes: list[int]) -> None:
        """Moves the lease's end; a part of a lease gets one of its own."""
        lease_ms = self.command.delay_ms or self.group.settings.lease_ms or self.topic.settings.lease_ms
        self.verdicts.expires_at = self.tx.now_ms + lease_ms
        # A consumer that only renews is at work too.
        self.tx.consumer_seen(row.tenant_id, row.group, row.consumer, active=True)
        if len(indexes) == row.live:
            self.tx.lease_extend(row, self.verdicts.expires_at)
            return
        self._take_out(row, indexes)
        part = over(row, [offset_of(row, index) for index in indexes])
        lease_id = self.tx.lease_insert(replace(part, due_at=self.verdicts.expires_at))
        for new_index, index in enumerate(indexes):
            self.verdicts.renewed[row.id, index] = (lease_id, new_index)


class OfConsumer(msgspec.Struct, frozen=True):
    """A consumer, in one group or in all that it was seen in."""

    tenant: str
    consumer: str
    topic: str | None = None
    group: str | None = None

    def groups(self, tx: Transaction) -> list[tuple[TopicRow, GroupRow]]:
        """The groups meant. One that is named has to exist."""
        topic = None if self.topic is None else find_log(tx, self.tenant, self.topic)
        if topic is not None and self.group is not None:
            return [(topic, find_group(tx, topic, self.group))]
        names = tx.consumer_groups(self.tenant, self.consumer)
        wanted = [pair for pair in names if self.topic in (None, pair[0]) and self.group in (None, pair[1])]
        topics = [(find_log(tx, self.tenant, name), group) for name, group in wanted]
        return [(topic, find_group(tx, topic, group)) for topic, group in topics]


class ReleaseConsumer(OfConsumer, frozen=True):
    """Free what a consumer holds."""


class Held(OfConsumer, frozen=True):
    """Give a consumer back what it holds."""


def release_consumer(tx: Transaction, command: ReleaseConsumer) -> int:
    """Frees everything that a consumer holds, now; no attempt is counted. Returns how many messages."""
    freed = 0
    for topic, group in command.groups(tx):
        for row in _held_rows(tx, topic, group, command.consumer):
            tx.lease_delete(row.tenant_id, row.id)
            free = replace(row, state=WAITING, attempts=row.attempts - 1, suspect=False, alone=False, consumer="")
            tx.lease_insert(replace(over(free, live_offsets(row)), due_at=tx.now_ms))
            tx.aftermath.rings.add(row.partition)
            freed += row.live
    return freed


def held(tx: Transaction, command: Held) -> list[Claimed]:
    """Gives a consumer that lost its memory its unexpired leases back, under new ids.

    The old ids are dead from now on: should the consumer's former self still run, it is fenced off.
    """
    found = [_regain(tx, topic, group, command.consumer) for topic, group in command.groups(tx)]
    return [claimed for claimed in found if claimed.parcels]


def _regain(tx: Transaction, topic: TopicRow, group: GroupRow, consumer: str) -> Claimed:
    lease_ms = group.settings.lease_ms or topic.settings.lease_ms
    got = Claimed(topic.name, group.name, tx.incarnation, lease_ms, tx.now_ms + lease_ms, partitions=topic.partitions)
    for row in _held_rows(tx, topic, group, consumer):
        if row.due_at <= tx.now_ms:
            continue
        found = look_up(tx, row.tenant_id, row.partition, live_offsets(row))
        offsets = [offset for offset, _, _ in found.readable]
        if not offsets:
            continue
        tx.lease_delete(row.tenant_id, row.id)
        if found.corrupt:
            tx.lease_insert(over(row, found.corrupt))
        lease_id = tx.lease_insert(replace(over(row, offsets), due_at=got.expires_at))
        slices = tuple(Slice(block, at, at + 1, index) for index, (_, block, at) in enumerate(found.readable))
        number = topic.partitions.index(row.partition)
        got.parcels.append(Parcel(lease_id, number, row.partition, row.attempts, len(offsets), slices))
    return got


def _held_rows(tx: Transaction, topic: TopicRow, group: GroupRow, consumer: str) -> list[LeaseRow]:
    return [
        row
        for partition in topic.partitions
        for row in tx.leases(topic.tenant_id, partition, group.id)
        if row.state == LEASED and row.consumer == consumer
    ]
