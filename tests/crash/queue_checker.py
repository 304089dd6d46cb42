"""What must be true of queues after a crash, given the journal of what was answered before it.

`check_queues` opens the store as any client would and raises `Broken` with what it found: every acknowledged batch is
there whole and once, where and until when it was said to be; an unanswered step happened whole or not at all; what was
settled or cancelled does not come again, nothing comes before its time or to two; and in the end every message is
accounted for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import apsw

import duly

from .checker import Broken, check_integrity
from .queue_model import ABSENT, ACKED, DEAD, GONE, OPEN, Doubt, Known, Model
from .queue_steps import small_steps
from .queue_workload import LANES, key_of

LONG_S = 3 * 3600
_PAGE = 1000
# A claim may answer with nothing while it still promotes, or drops what was cancelled or has expired.
_EMPTY_ENOUGH = 8
# So many of the last acknowledged batches are published again.
_REPEATED = 5


def check_queues(path: Path, journal: Iterable[str]) -> Model:
    """Raises Broken unless the store is what the journal allows. Returns what was expected."""
    model = Model(journal)
    check_integrity(path)
    clock = duly.ManualClock(model.at)
    with small_steps(), duly.connect(path, clock=clock, consumer="checker") as q:
        QueueCheck(q, clock, model).run()
    return model


def half_folded(path: Path) -> int:
    """How many folds of a store are under way. As a reader, beside whoever else has it open."""
    if not path.exists():
        return 0
    connection = apsw.Connection(str(path))
    try:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'duly_run'").fetchall():
            return 0
        ((count,),) = connection.execute("SELECT count(*) FROM duly_run WHERE sources IS NOT NULL")
        return int(count)
    finally:
        connection.close()


class QueueCheck:
    """The checks, in turn."""

    def __init__(self, q: duly.Client, clock: duly.ManualClock, model: Model) -> None:
        self.q = q
        self.clock = clock
        self.model = model
        self.topics: list[str] = []
        self.found: dict[str, duly.QueuedMessage] = {}
        # By topic and lane, the keys in the order in which the last messages came.
        self.order: dict[tuple[str, str | None], list[str]] = defaultdict(list)

    def run(self) -> None:
        self.definitions()
        self.no_alert()
        self.scan()
        self.look_at_each()
        for doubt in self.model.doubts:
            self.whole_or_not_at_all(doubt)
        self.by_id()
        self.repeat()
        self.scan()
        self.look_at_each()
        self.no_more_than_lanes_allow(self.hand_out())
        self.clock.advance(3)
        self.no_more_than_lanes_allow(self.hand_out())
        self.clock.advance(LONG_S)
        self.account()
        self.no_alert()

    def definitions(self) -> None:
        self.topics = self.q.list_topics()
        for topic, certain in self.model.topics.items():
            if certain != (topic in self.topics):
                raise Broken(f"topic {topic} should be {'there' if certain else 'absent'}; there are {self.topics}")

    def no_alert(self) -> None:
        if alerts := [finding for finding in self.q.examine() if finding.level == "alert"]:
            raise Broken(f"examine: {alerts}")

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    def known(self, topic: str, payload: bytes) -> Known:
        one = self.model.known.get(key_of(payload))
        if one is None or one.topic != topic or one.spec.payload != payload:
            raise Broken(f"{payload[:40]!r} of {topic} was never published")
        return one

    # Looking, without claiming

    def scan(self) -> None:
        """Pages through everything unsettled."""
        self.found = {}
        for topic in self.topics:
            after = (0, -1)
            while page := self.q.browse(topic, after=after, limit=_PAGE):
                for message in page:
                    assert message.payload is not None
                    key = self.known(topic, message.payload).key
                    if key in self.found:
                        raise Broken(f"{key} stands in {topic} twice: {self.found[key]} and {message}")
                    self.found[key] = message
                after = page[-1].place

    def look_at_each(self) -> None:
        for one in self.model.known.values():
            message = self.found.get(one.key)
            if message is None:
                if one.states == {DEAD} or (one.states == {OPEN} and not one.expired(self.now) and not one.marked):
                    raise Broken(f"{one} is lost: nothing is found")
            elif not one.states & {OPEN, DEAD}:
                raise Broken(f"{one} is still there: {message}")
            elif len(one.states) == 1:
                self.look_at(one, message)

    def look_at(self, one: Known, message: duly.QueuedMessage) -> None:
        if (message.state == "dead") != (one.states == {DEAD}):
            raise Broken(f"{one} is found as {message}")
        held = message.state == "leased" and message.lease_expires_at_ms in (one.held_until, one.held_perhaps)
        if one.held_until > self.now and not held:
            raise Broken(f"{one} is held, and found as {message}")
        if message.state in ("waiting", "retrying") and (message.due_at_ms or 0) < one.due:
            raise Broken(f"{one} is due before its time: {message}")
        if message.state in ("waiting", "retrying", "ready"):
            if one.exact and message.due_at_ms != one.due:
                raise Broken(f"{one} is due at another time: {message}")
            if one.priority not in (-1, message.priority):
                raise Broken(f"{one} has another priority: {message}")

    def whole_or_not_at_all(self, doubt: Doubt) -> None:
        outcomes = {key: self.happened(doubt, key) for key in doubt.keys}
        if len({outcome for outcome in outcomes.values() if outcome is not None}) > 1:
            raise Broken(f"{doubt} happened in part: {outcomes}, {[self.model.known[key] for key in outcomes]}")

    def happened(self, doubt: Doubt, key: str) -> bool | None:
        """Whether a step in doubt was done to a message; None: it cannot be told."""
        message = self.found.get(key)
        state = None if message is None else message.state
        if doubt.what == "publish":
            # One that came later, and was settled, was there.
            return message is not None or ABSENT not in self.model.known[key].states
        if doubt.what in ("ack", "cancel"):
            if message is None:
                # One whose time is over may be gone by itself.
                return None if self.model.known[key].expired(self.now) else True
            # Under a lease of which nobody knows a cancel leaves its mark.
            return doubt.what == "cancel" and message.cancelled
        if doubt.what in ("bury", "redrive"):
            return None if message is None else (state == "dead") == (doubt.what == "bury")
        if not doubt.last or message is None:
            return None
        if doubt.what in ("nack", "release"):
            return state != "leased"
        return self.moved(doubt, key, message) if doubt.what == "move" else None

    def moved(self, doubt: Doubt, key: str, message: duly.QueuedMessage) -> bool | None:
        if message.state not in ("waiting", "retrying", "ready"):
            # A claim in doubt was done: what is under a lease is not moved.
            return None
        signs = set()
        if key in doubt.due_is_news:
            signs.add(message.due_at_ms == doubt.due)
        if key in doubt.priority_is_news:
            signs.add(message.priority == doubt.priority)
        if len(signs) > 1:
            raise Broken(f"{doubt} happened to {key} in part: {message}")
        return signs.pop() if signs else None

    def by_id(self) -> None:
        for topic, ids in self.model.by_id.items():
            # Some of them: each is a transaction.
            for text, key in list(ids.items())[:: max(1, len(ids) // 6)]:
                message, found = self.q.get(topic, text), self.found.get(key)
                one = self.model.known[key]
                if one.expired(self.now):
                    # It may be dropped at any moment.
                    continue
                if one.states == {OPEN} and found is not None:
                    if message is None or (message.state, message.place) != (found.state, found.place):
                        raise Broken(f"{text} leads to {message}, not to {found}")
                elif found is None and message is not None and message.payload is not None:
                    other = self.known(topic, message.payload)
                    if other is not one and other.spec.id == text:
                        # Published with an id that was free again, and in doubt.
                        continue
                    raise Broken(f"{text} leads to {message}, and {one} is not there")

    def repeat(self) -> None:
        """Publishes again, with its id, all that was not refused: it is there once."""
        for number, batch in self.model.batches.items():
            if batch.certain and number <= len(self.model.batches) - _REPEATED:
                continue
            if batch.publish_id is None or batch.refused or batch.topic not in self.topics:
                continue
            there = batch.certain or any(spec.key in self.found for spec in batch.specs)
            receipt = self.q.publish(batch.topic, [spec.message() for spec in batch.specs], publish_id=batch.publish_id)
            if there and not receipt.duplicate:
                raise Broken(f"{batch.publish_id} was stored, and repeated it was stored again")
            if batch.certain:
                continue
            if receipt.duplicate and not there and any(self.must_be_found(spec.key) for spec in batch.specs):
                raise Broken(f"{batch.publish_id} is said to be stored; nothing of it is there")
            batch.certain = True
            for at, spec in enumerate(batch.specs):
                one = self.model.known[spec.key]
                if receipt.duplicate and ABSENT not in one.states:
                    # It has been seen already, and its story is known.
                    continue
                one.states = {ABSENT} if at in receipt.duplicates else {OPEN}
                one.due, one.exact, one.late = min(one.due, self.now), False, True

    def must_be_found(self, key: str) -> bool:
        one = self.model.known[key]
        return one.spec.id is None and OPEN in one.states and not one.expired(self.now)

    # Claiming

    def claims(self, topic: str, lease_s: float) -> Iterator[duly.Batch]:
        """Claims until nothing comes any more."""
        empty = 0
        while empty < _EMPTY_ENOUGH:
            batch = self.q.claim(topic, max_messages=50, lease=lease_s)
            empty = 0 if batch else empty + 1
            if batch:
                yield batch

    def hand_out(self) -> Counter[tuple[str, str | None]]:
        """Claims all that is due and keeps it. Returns how many of each lane are under a valid lease."""
        for topic in self.topics:
            for batch in self.claims(topic, 30):
                for delivery in batch:
                    self.known(topic, delivery.payload)
                    self.model.deliver(key_of(delivery.payload), topic, self.now, self.now + 30_000)
        held = [one for one in self.model.known.values() if one.held_until > self.now and one.states == {OPEN}]
        return Counter((one.topic, one.spec.lane) for one in held)

    def no_more_than_lanes_allow(self, held: Counter[tuple[str, str | None]]) -> None:
        for (topic, lane), count in held.items():
            most = LANES[topic].max_in_flight
            if most is not None and count > most:
                raise Broken(f"{count} of lane {lane} of {topic} are held at once; {most} may be")

    def drain(self) -> Counter[str]:
        """Claims and acks until nothing comes; each message that came, by key."""
        came: Counter[str] = Counter()
        for topic in self.topics:
            for batch in self.claims(topic, 10):
                for delivery in batch:
                    one = self.known(topic, delivery.payload)
                    self.model.deliver(one.key, topic, self.now, self.now)
                    came[one.key] += 1
                    self.order[topic, one.spec.lane].append(one.key)
                if (settled := self.q.ack(batch)).lost:
                    raise Broken(f"the lease of {settled.lost} was lost at once")
        return came

    def account(self) -> None:
        """All leases are over and all is due: what is open comes once, and nothing else does."""
        states = {one.key: set(one.states) for one in self.model.known.values()}
        came = self.drain()
        self.lanes_in_order()
        dead = {key_of(letter.payload) for topic in self.topics for letter in self.q.dead(topic)}
        for one in self.model.known.values():
            self.compare(one, states[one.key], came[one.key], one.key in dead)
        self.redrive(dead)
        for topic in self.topics:
            if left := self.q.browse(topic):
                raise Broken(f"all is settled, and {topic} has {left}")
            group = self.q.describe_group(topic, "queue")
            if any((group.lag, group.leased, group.retrying, group.dead)):
                raise Broken(f"all is settled, and {topic} counts {group}")

    def compare(self, one: Known, states: set[str], came: int, dead: bool) -> None:
        if came > 1:
            raise Broken(f"{one} was delivered {came} times after everything expired")
        if came and dead:
            raise Broken(f"{one} is dead and was delivered")
        if came or dead:
            seen = OPEN if came else DEAD
            if seen not in states:
                raise Broken(f"{one} is {seen}; it should be {states}")
        elif not states & {ACKED, GONE, ABSENT} and not (OPEN in states and (one.marked or one.expired(self.now))):
            raise Broken(f"{one} is neither delivered nor dead; it should be {states}")

    def lanes_in_order(self) -> None:
        """Where a lane runs one at a time: by due time and arrival, behind the one that was under way."""
        for lane in {lane for topic, lane in self.order if topic == "one"}:
            came = [self.model.known[key] for key in self.order["one", lane][1:]]
            came = [one for one in came if not one.late]
            places = [(one.published if one.spec.due is None else one.spec.due, one.number) for one in came]
            if places != sorted(places):
                raise Broken(f"lane {lane} came out of order: {came}")

    def redrive(self, dead: set[str]) -> None:
        for key in dead:
            one = self.model.known[key]
            one.states, one.due, one.held_until = {OPEN}, 0, 0
        sent = sum(self.q.redrive(topic) for topic in self.topics)
        came = self.drain()
        wanted = {key for key in dead if not self.model.known[key].expired(self.now)}
        if sent != len(dead) or came != Counter(wanted):
            raise Broken(f"{sorted(dead)} were dead, {sent} were sent back, {came} came")
