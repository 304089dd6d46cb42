"""The machine that the model's rules drive: clients, topics, what is held, what must hold after every step."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

import duly

from . import rules
from .model import Group, Held, HeldBatch, Lease, Place, Topic

EXACT = duly.RetryPolicy(max_attempts=3, base=2, cap=6, jitter="none")
JITTERED = duly.RetryPolicy(max_attempts=2, base=4, shape="linear")
GROUPS = {
    ("one", "exact"): (10_000, EXACT, True),
    ("one", "loose"): (5_000, JITTERED, False),
    ("three", "exact"): (10_000, EXACT, True),
    ("three", "loose"): (5_000, JITTERED, True),
}
PARTITIONS = {"one": 1, "three": 3}
TTL_MS = {"one": None, "three": 90_000}


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


def _group(name: str, start: dict[int, int], of: tuple[int, duly.RetryPolicy, bool]) -> Group:
    lease_ms, retry, dead_letters = of
    return Group(name, lease_ms, retry, dead_letters, start)


class Machine(RuleBasedStateMachine):
    """Two clients on one store, and the model beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="duly-model-")
        self.clock = duly.ManualClock()
        self.address = self._new_address()
        self.clients = [self._connect(), self._connect()]
        self.topics: dict[str, Topic] = {}
        self.batches: list[HeldBatch] = []

    def _new_address(self) -> str:
        return str(Path(self.folder.name) / "app.duly")

    def _connect(self) -> duly.Client:
        return duly.connect(self.address, clock=self.clock, consumer="ann")

    @property
    def q(self) -> duly.Client:
        return self.clients[0]

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    @initialize()
    def begin(self) -> None:
        for name, partitions in PARTITIONS.items():
            ttl_ms = TTL_MS[name]
            self.q.create_topic(
                name, kind="log", partitions=partitions, retention=duly.Retention(), ttl=ttl_ms and ttl_ms / 1000
            )
            self.topics[name] = Topic.new(name, partitions, ttl_ms)
        for group in GROUPS:
            self._create_group(group, "earliest", dict.fromkeys(range(PARTITIONS[group[0]]), 0))
        for name in PARTITIONS:
            self._publish(name, [duly.Message(b"%d" % n, key=f"k{n}") for n in range(6)])

    def _publish(self, name: str, batch: list[duly.Message]) -> None:
        self.topics[name].stored(batch, self.q.publish(name, batch), self.now)

    def _create_group(self, name: tuple[str, str], start: str, cursors: dict[int, int]) -> None:
        lease_ms, retry, dead_letters = GROUPS[name]
        self.q.create_group(
            *name,
            start=start,
            lease=lease_ms / 1000,
            retry=retry,
            dead_letters=dead_letters,
        )
        self.topics[name[0]].new_group(_group(name[1], cursors, GROUPS[name]))

    def _of(self, name: tuple[str, str]) -> tuple[Topic, Group] | None:
        topic = self.topics[name[0]]
        return (topic, topic.groups[name[1]]) if name[1] in topic.groups else None

    def _claim(self, name: tuple[str, str], most: int, most_bytes: int | None, lease: float | None, who: str) -> int:
        known = self._of(name)
        if known is None:
            with pytest.raises(duly.GroupNotFound):
                self.q.claim(name[0], group=name[1])
            return 0
        topic, group = known
        batch = self.q.claim(name[0], group=name[1], max_messages=most, max_bytes=most_bytes, lease=lease, consumer=who)
        lease_ms = group.lease_ms if lease is None else round(lease * 1000)
        bytes_max = 2**40 if most_bytes is None else most_bytes
        rules.buried_by_claim(group, self._dead(name), self.now)
        held = rules.claimed(
            topic, group, batch, now=self.now, lease_ms=lease_ms, consumer=who, most=most, most_bytes=bytes_max
        )
        cursors = dict(self.q.describe_group(*name).cursors)
        rules.cursors_moved(topic, group, cursors, held, self.now)
        if held.held:
            self.batches.append(held)
        return len(held.held)

    def _gone(self, batch: HeldBatch) -> bool:
        return batch.group.name not in batch.topic.groups

    def _settle(
        self,
        batch: HeldBatch,
        verdict: str,
        chosen: list[Held],
        given: duly.Batch | list[duly.Delivery],
        delay: float | None,
    ) -> None:
        call: dict[str, Callable[[], duly.Settled]] = {
            "ack": lambda: self.q.ack(given),
            "nack": lambda: self.q.nack(given, delay=delay, reason="no"),
            "release": lambda: self.q.release(given),
            "extend": lambda: self.q.extend(given, delay),
            "bury": lambda: self.q.bury(given, reason="no"),
        }
        if self._gone(batch):
            if isinstance(given, list):
                with pytest.raises(duly.GroupNotFound):
                    call[verdict]()
            return
        done = rules.answered(batch, chosen, call[verdict](), now=self.now)
        rules.apply(batch, verdict, done, now=self.now, delay_ms=None if delay is None else round(delay * 1000))

    def _regain(self, topic: Topic, group: Group, batch: duly.Batch | None, consumer: str) -> None:
        mine: dict[Place, Lease] = {
            place: pending.lease
            for place, pending in group.pending.items()
            if pending.lease is not None and pending.lease.consumer == consumer and pending.lease.due_at > self.now
        }
        got = {(d.partition, d.offset): d for d in batch or ()}
        assert got.keys() == mine.keys()
        if batch is None:
            return
        fresh: dict[Lease, Lease] = {}
        handed: list[Held] = []
        for place, delivery in got.items():
            before = mine[place]
            assert delivery.attempt == group.pending[place].attempts
            due_at = self.now + group.lease_ms
            lease = fresh.setdefault(before, Lease(due_at, consumer, before.attempt, before.alone))
            lease.places.add(place)
            group.pending[place].lease = lease
            handed.append(Held(delivery, place, lease))
        self.batches.append(HeldBatch(batch, topic, group, handed, group.lease_ms))

    def _dead(self, name: tuple[str, str]) -> dict[Place, int]:
        return {
            (letter.message.partition, letter.message.offset): letter.attempts
            for letter in self.q.dead(name[0], group=name[1])
        }

    @invariant()
    def groups_stand_where_the_model_says(self) -> None:
        for topic in self.topics.values():
            assert sorted(self.q.list_groups(topic.name)) == sorted(topic.groups)
            for group in topic.groups.values():
                self._check_group(topic, group)

    def _check_group(self, topic: Topic, group: Group) -> None:
        found = self.q.describe_group(topic.name, group.name)
        assert dict(found.cursors) == group.cursors
        assert dict(found.next_offsets) == dict(enumerate(topic.ends()))
        assert dict(found.first_offsets) == dict(enumerate(topic.firsts))
        low, high = topic.retrying(group, self.now)
        assert (found.lag, found.leased, found.dead) == (topic.lag(group), group.leased(self.now), len(group.dead))
        assert low <= found.retrying <= high, (
            low,
            found.retrying,
            high,
            topic.name,
            group.name,
            self.now,
            group.pending,
        )
        assert found.paused == group.paused
        holding = {consumer.name: consumer.messages for consumer in found.consumers}
        for consumer in ("ann", "bob"):
            assert holding.get(consumer, 0) == group.leased(self.now, consumer)

    @invariant()
    def a_valid_delivery_knows_when_its_lease_ends(self) -> None:
        for batch in self.batches[-3:]:
            for held in batch.held:
                pending = batch.group.pending.get(held.place)
                if pending is not None and pending.lease is held.lease and held.lease.due_at > self.now:
                    assert held.delivery.lease_expires_at == moment(held.lease.due_at)

    def teardown(self) -> None:
        try:
            # After a failure the model is behind, and a drain would only hide what went wrong.
            if self.topics and sys.exc_info()[0] is None:
                self._drain()
        finally:
            for client in self.clients:
                client.close()
            self.folder.cleanup()

    def _drain(self) -> None:
        """Everything is claimed and acked to the end, and every message is accounted for, once, in every group."""
        for name in GROUPS:
            known = self._of(name)
            if known is None:
                continue
            topic, group = known
            self.q.resume(name[0])
            self.q.resume(name[0], group=name[1])
            topic.paused = group.paused = False
            self._drain_group(name, topic, group)

    def _drain_group(self, name: tuple[str, str], topic: Topic, group: Group) -> None:
        idle = 0
        # An empty claim may leave some of the expired where they are; the next one goes on.
        while idle < 5 and (idle == 0 or self._open(name)):
            self.clock.advance(100_000)
            if self._claim(name, 1000, None, None, "ann"):
                batch = self.batches[-1]
                done = rules.answered(batch, batch.held, self.q.ack(batch.batch), now=self.now)
                rules.apply(batch, "ack", done, now=self.now, delay_ms=None)
            else:
                idle += 1
        assert self._open(name) == 0
        for place in list(group.pending):
            assert topic.gone(place, self.now) or group.buried_by_expiry(place, self.now), f"{place} was lost"
            group.end([place], "expired")
        assert topic.unaccounted(group) == []

    def _open(self, name: tuple[str, str]) -> int:
        described = self.q.describe_group(*name)
        return described.lag + described.pending
