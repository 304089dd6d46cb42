"""The public API against a model of it, on a manual clock: Hypothesis looks for a sequence that breaks a promise.

Two clients have the same file open and take turns, so that each finds what the other has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

import duly
from tests.conftest import scaled

from . import rules
from .machine import GROUPS, PARTITIONS, Machine, moment
from .model import Group, Place

# Hypothesis takes up to five minutes to shrink what it has found.
pytestmark = pytest.mark.timeout(scaled(600, 7200))

CONSUMERS = ("ann", "bob")
VERDICTS = ("ack", "nack", "release", "extend", "bury")

T = TypeVar("T")

# Drawn whatever state the store is in, and taken modulo what there is: jitter and chores must not steer the draws.
numbers = st.integers(0, 9999)

which = st.sampled_from(sorted(GROUPS))
topic_names = st.sampled_from(sorted(PARTITIONS))
consumers = st.sampled_from(CONSUMERS)


@st.composite
def messages(draw: st.DrawFn, partitions: int) -> list[duly.Message]:
    """A small batch of mixed messages, or one big enough to be stored as Arrow."""
    made = draw(st.lists(st.builds(_message, *_message_parts(partitions)), min_size=1, max_size=5))
    return made * 20 if draw(st.integers(0, 9)) == 0 else made


def _message_parts(partitions: int) -> tuple[st.SearchStrategy[object], ...]:
    return (
        st.binary(max_size=12),
        st.none() | st.sampled_from(["a", "id-2", "ü"]),
        st.none() | st.sampled_from(["k1", "k2", "k3"]),
        st.none() | st.dictionaries(st.sampled_from(["h", "trace"]), st.text("xyz", max_size=3), max_size=2),
        st.none() | st.none() | st.sampled_from([1, 3.5, 40]),
        st.none() | st.none() | st.integers(0, partitions - 1),
    )


def _message(
    payload: bytes, own_id: str | None, key: str | None, headers: dict[str, str] | None, ttl: float, partition: int
) -> duly.Message:
    return duly.Message(payload, own_id, key, headers, ttl, None, partition)


def _pick(number: int, among: Sequence[T]) -> T:
    return among[number % len(among)]


class DulyModel(Machine):
    """Every public verb as a rule; what is promised as invariants."""

    # Publish and read

    @rule(name=topic_names, data=st.data())
    def publish(self, name: str, data: st.DataObject) -> None:
        self._publish(name, data.draw(messages(PARTITIONS[name])))

    @rule(name=topic_names, payloads=st.lists(st.binary(max_size=5), min_size=1, max_size=4))
    def publish_bytes(self, name: str, payloads: list[bytes]) -> None:
        self.topics[name].stored([duly.Message(p) for p in payloads], self.q.publish(name, payloads), self.now)

    @rule(name=topic_names, own=st.sampled_from(["p1", "p2"]), payload=st.binary(max_size=3))
    def publish_with_id(self, name: str, own: str, payload: bytes) -> None:
        topic = self.topics[name]
        batch = [duly.Message(payload), duly.Message(b"second", key="k1")]
        receipt = self.q.publish(name, batch, publish_id=own)
        at, places = topic.publish_ids.get(own, (-(10**15), []))
        if self.now < at + duly.LIMITS.publish_id_ms:
            assert receipt.duplicate
        if receipt.duplicate:
            assert receipt.positions == places
        else:
            topic.stored(batch, receipt, self.now)
            topic.publish_ids[own] = (self.now, receipt.positions)

    @rule(name=topic_names, data=st.data())
    def publish_repeated(self, name: str, data: st.DataObject) -> None:
        """An id that Duly made, as PublishUnknown gives it, stores once."""
        batch = data.draw(messages(PARTITIONS[name]))
        first = self.q.publish(name, batch)
        self.topics[name].stored(batch, first, self.now)
        again = self.clients[1].publish(name, batch, publish_id=first.publish_id)
        assert again.duplicate
        assert (again.positions, again.ids) == (first.positions, first.ids)

    @rule(name=topic_names, of=numbers, at=numbers, most=st.integers(1, 8))
    def read(self, name: str, of: int, at: int, most: int) -> None:
        topic = self.topics[name]
        partition = _pick(of, range(PARTITIONS[name]))
        log, first = topic.logs[partition], topic.firsts[partition]
        offset = _pick(at, range(len(log) + 1))
        if offset < first:
            with pytest.raises(duly.OffsetTruncated) as caught:
                self.q.read(name, partition=partition, offset=offset)
            assert caught.value.first_offset == first
            return
        found = self.q.read(name, partition=partition, offset=offset, max_messages=most)
        assert [(m.offset, m.id, m.payload, m.key, dict(m.headers), m.expires_at_ms) for m in found] == [
            (s.place[1], s.id, s.payload, s.key, s.headers, s.expires_at) for s in log[offset : offset + most]
        ]

    @rule(name=topic_names, back_ms=st.integers(-1000, 60_000))
    def offset_at(self, name: str, back_ms: int) -> None:
        topic = self.topics[name]
        found = self.q.offset_at(name, moment(self.now - back_ms))
        assert found == {p: topic.offset_at(p, self.now - back_ms) for p in range(PARTITIONS[name])}

    # Claim and settle

    @rule(name=which, most=st.integers(1, 8), most_bytes=st.none() | st.integers(1, 30), consumer=consumers)
    def claim(self, name: tuple[str, str], most: int, most_bytes: int | None, consumer: str) -> None:
        self._claim(name, most, most_bytes, None, consumer)

    @rule(name=which, lease=st.sampled_from([0.1, 3, 100, 200_000]), consumer=consumers)
    def claim_many(self, name: tuple[str, str], lease: float, consumer: str) -> None:
        self._claim(name, 1000, None, lease, consumer)

    @rule(
        name=which,
        verdict=st.sampled_from(VERDICTS),
        delay=st.none() | st.sampled_from([0.5, 4]),
        seconds=st.sampled_from([0, 0.4, 1.9, 2, 3.9, 4, 5, 10]),
        most=st.integers(1, 6),
    )
    def work(self, name: tuple[str, str], verdict: str, delay: float | None, seconds: float, most: int) -> None:
        """The usual round: claim, settle what comes, and look again a little before or after it is due."""
        self._publish(name[0], [duly.Message(b"work"), duly.Message(b"more", key="k2")])
        if self._claim(name, most, None, None, "bob"):
            batch = self.batches[-1]
            self._settle(batch, verdict, batch.held, batch.batch, delay)
            self.clock.advance(seconds)
            self._claim(name, most, None, None, "ann")

    @rule(
        at=numbers,
        some=st.lists(numbers, min_size=1, max_size=6),
        verdict=st.sampled_from(VERDICTS),
        delay=st.none() | st.sampled_from([0.5, 4]),
    )
    def settle_some(self, at: int, some: list[int], verdict: str, delay: float | None) -> None:
        """Some deliveries of any batch, old or new, some of them twice."""
        if self.batches:
            batch = _pick(at, self.batches[-8:])
            chosen = [_pick(number, batch.held) for number in some]
            self._settle(batch, verdict, chosen, [held.delivery for held in chosen], delay)

    @rule(at=numbers, verdict=st.sampled_from(VERDICTS), delay=st.none() | st.sampled_from([0.5, 4]))
    def settle_batch(self, at: int, verdict: str, delay: float | None) -> None:
        """All that is left of a batch."""
        if self.batches:
            batch = _pick(at, self.batches[-4:])
            left = [held for held in batch.held if not held.settled]
            self._settle(batch, verdict, left, batch.batch, delay)

    @rule(at=numbers, which=numbers, verdict=st.sampled_from(VERDICTS))
    def settle_one(self, at: int, which: int, verdict: str) -> None:
        """One delivery, by its own method, which raises LeaseLost."""
        if not self.batches:
            return
        batch = _pick(at, self.batches[-8:])
        held = _pick(which, batch.held)
        if batch.batch.client not in self.clients or self._gone(batch):
            return
        try:
            getattr(held.delivery, verdict)()
            answer = duly.Settled(1)
        except duly.LeaseLost:
            answer = duly.Settled(0, (held.delivery,))
        done = rules.answered(batch, [held], answer, now=self.now)
        rules.apply(batch, verdict, done, now=self.now, delay_ms=None)

    @rule(consumer=consumers)
    def release_consumer(self, consumer: str) -> None:
        places = [
            (group, place, pending.attempts)
            for topic in self.topics.values()
            for group in topic.groups.values()
            for place, pending in group.pending.items()
            if pending.lease is not None and pending.lease.consumer == consumer
        ]
        if not any(self._uncertain(group, place) for group, place, _ in places):
            assert self.q.release(consumer=consumer).done == len(places)
            for group, place, attempts in places:
                group.wait(place, attempts - 1, self.now, self.now)

    def _uncertain(self, group: Group, place: Place) -> bool:
        """Whether a lease may be gone by now: taken over unseen, or its consumer forgotten long after it ended."""
        lease = group.pending[place].lease
        return lease is not None and (lease.doubtful or lease.due_at < self.now - 80_000_000)

    @rule(consumer=consumers)
    def held(self, consumer: str) -> None:
        """A restarted consumer gets its unexpired leases back; its former self is fenced off."""
        found = {(batch.topic, batch.group): batch for batch in self.q.held(consumer=consumer)}
        for topic in self.topics.values():
            for group in topic.groups.values():
                batch = found.pop((topic.name, group.name), None)
                self._regain(topic, group, batch, consumer)
        assert not found

    # Dead letters

    @rule(name=which, limit=st.none() | st.integers(1, 3), rate=st.none() | st.just(0.5), some=st.booleans())
    def redrive(self, name: tuple[str, str], limit: int | None, rate: float | None, some: bool) -> None:
        known = self._of(name)
        if known is None:
            return
        topic, group = known
        letters = list(self.q.dead(name[0], group=name[1]))
        ids = [letter.id for letter in letters[::2]] if some else None
        sent = self.q.redrive(name[0], group=name[1], ids=ids, rate=rate, limit=limit)
        left = self._dead(name)
        gone = [place for place in sorted(group.dead) if place not in left]
        assert sent <= (len(gone) if limit is None else min(limit, len(gone)))
        wanted = [place for place in sorted(group.dead) if ids is None or topic.sent(place).id in ids]
        assert gone == (wanted if limit is None else wanted[:limit])
        for step, place in enumerate(gone):
            del group.dead[place]
            # One that a seek has put ahead of the cursor again, or that is held again, has its place already.
            if place not in group.pending and place[1] < group.cursors[place[0]]:
                most = 0 if rate is None else int(step * 1000 / rate)
                group.wait(place, 0, self.now + (most if sent == len(gone) else 0), self.now + most)

    @rule(name=which)
    def purge_dead(self, name: tuple[str, str]) -> None:
        if known := self._of(name):
            _, group = known
            assert self.q.purge(name[0], group=name[1], dead=True) == len(group.dead)
            for place in group.dead:
                if place not in group.pending and place[1] < group.cursors[place[0]]:
                    group.fate.setdefault(place, "purged")
            group.dead.clear()

    # Groups and topics

    @rule(name=which, choice=st.sampled_from(["earliest", "latest", "offset", "at"]), of=numbers, at=numbers)
    def seek(self, name: tuple[str, str], choice: str, of: int, at: int) -> None:
        known = self._of(name)
        if known is None:
            return
        topic, group = known
        if choice == "offset":
            partition = _pick(of, range(PARTITIONS[name[0]]))
            offset = _pick(at, range(topic.firsts[partition], len(topic.logs[partition]) + 1))
            offsets = self.q.seek(*name, offset={partition: offset})
            assert offsets == {partition: offset}
        elif choice == "at":
            since = self.now - at * 3
            offsets = self.q.seek(*name, at=moment(since))
            assert offsets == {p: topic.offset_at(p, since) for p in range(PARTITIONS[name[0]])}
        else:
            offsets = self.q.seek(*name, to=choice)
            bounds = topic.firsts if choice == "earliest" else topic.ends()
            assert offsets == dict(enumerate(bounds))
        topic.moved(group, offsets)
        self._dead_after_seek(name, group)

    def _dead_after_seek(self, name: tuple[str, str], group: Group) -> None:
        """Dead letters stay, or those that lie ahead again may go."""
        left = self._dead(name)
        for place in [place for place in group.dead if place not in left]:
            assert place[1] >= group.cursors[place[0]], f"a seek lost the dead letter {place}"
            del group.dead[place]

    @rule(name=which, whole=st.booleans(), pause=st.booleans())
    def pause(self, name: tuple[str, str], whole: bool, pause: bool) -> None:
        known = self._of(name)
        if known is None:
            return
        topic, group = known
        (self.q.pause if pause else self.q.resume)(name[0], group=None if whole else name[1])
        if whole:
            topic.paused = pause
        else:
            group.paused = pause

    @rule(name=which, whole=st.sampled_from([False, False, True]))
    def purge(self, name: tuple[str, str], whole: bool) -> None:
        known = self._of(name)
        if known is None:
            return
        topic, group = known
        if not whole:
            low, high = topic.retrying(group, self.now)
            sure = topic.lag(group) + group.leased(self.now)
            assert sure + low <= self.q.purge(name[0], group=name[1]) <= sure + high
            topic.purged(group)
            return
        assert self.q.purge(name[0]) == sum(topic.ends()) - sum(topic.firsts)
        topic.firsts = topic.ends()
        for every in topic.groups.values():
            topic.purged(every)

    @rule(name=which, delete=st.booleans(), start=st.sampled_from(["earliest", "latest"]))
    def recreate_group(self, name: tuple[str, str], delete: bool, start: str) -> None:
        topic = self.topics[name[0]]
        if name[1] in topic.groups:
            if delete:
                self.q.delete_group(*name)
                # Whoever still holds something of it holds nothing, also of a new group of that name.
                topic.groups.pop(name[1]).pending.clear()
            return
        bounds = topic.firsts if start == "earliest" else topic.ends()
        self._create_group(name, start, dict(enumerate(bounds)))

    # Time and processes

    @rule(seconds=st.sampled_from([0.1, 0.5, 1, 2, 4, 5, 6, 10, 11, 50, 100]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def a_day_passes(self) -> None:
        self.clock.advance(86_400)

    @rule()
    def swap_clients(self) -> None:
        self.clients.reverse()

    @rule()
    def reopen(self) -> None:
        self.clients[0].close()
        self.clients[0] = self._connect()


TestDulyModel = DulyModel.TestCase
TestDulyModel.settings = settings(
    max_examples=scaled(80, 3000),
    stateful_step_count=scaled(40, 80),
    deadline=None,
    print_blob=True,
    derandomize=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
