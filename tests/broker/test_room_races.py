"""Everything in the room at once, on real threads: every message is accounted for, and nobody is left behind.

Leases last an hour and nobody waits for that: a message that stays leased to somebody who is gone is never acked, and
the test fails. So does one that a lost wake-up leaves lying while somebody waits for it.
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import duly
from duly.broker.broker import Broker
from duly.broker.entry import Entry
from duly.client.batch import Batch
from duly.clock import SystemClock, monotonic_s
from duly.engine.claimed import Claim, Claimed
from tests.conftest import scaled
from tests.store.patience import eventually

from .conftest import Place

LONG_S = 60.0
HOUR_S = 3600


@pytest.fixture
def dice() -> random.Random:
    """Chance, from a seed that is printed: DULY_TEST_SEED replays it."""
    seed = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"DULY_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def crowd() -> Iterator[Callable[..., threading.Thread]]:
    """Starts threads; at the end each must be over, and have raised nothing."""
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def start(work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                errors.append(error)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


class Caller:
    """A thread's claims: told through a box, and left when patience ends."""

    def __init__(self, broker: Broker, name: str, topic: str, group: str, dice: random.Random) -> None:
        self.broker = broker
        self.dice = dice
        self.client = Entry(broker).client("default")
        self.box: queue.SimpleQueue[Claimed | Exception] = queue.SimpleQueue()
        self.name, self.topic, self.group = name, topic, group
        self.left = 0

    def claim(self) -> Batch | None:
        """Claims and waits, each for a time of its own choosing. None: it left before it was told."""
        command = Claim("default", self.topic, self.group, self.name, self.dice.randint(1, 4), 1 << 26)
        wait_s = self.dice.choice((None, 0.001, 0.02, 0.2))
        until = None if wait_s is None else monotonic_s() + wait_s
        waiter = self.broker.submit_claim(command, wait_until=until, then=self.box.put)
        try:
            answer = self.box.get(timeout=self.dice.choice((0.0, 0.0005, 0.002, 0.01, LONG_S)))
        except queue.Empty:
            if self.broker.leave(waiter):
                self.left += 1
                return None
            answer = self.box.get(timeout=LONG_S)
        if isinstance(answer, Exception):
            raise answer
        if self.dice.random() < 0.1:
            self.broker.release(command, answer)
            return None
        return Batch(self.client, answer)


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_every_message_is_acked_once_and_nobody_is_left_behind(
    open_place: Callable[..., Place], dice: random.Random, crowd: Callable[..., threading.Thread], kind: str
) -> None:
    place = open_place(SystemClock())
    topics = [f"t{number}" for number in range(3)]
    group = "queue"
    for topic in topics:
        place.q.create_topic(topic, kind=kind, partitions=2, lease=HOUR_S, retry=duly.RetryPolicy(max_attempts=10_000))
        if kind == "log":
            place.q.create_group(topic, group)
    each, publishers, claimers = scaled(150, 2_000), 4, 12
    total = each * publishers
    acked: Counter[bytes] = Counter()
    lock = threading.Lock()
    callers: list[Caller] = []

    def publish(number: int, own: random.Random) -> None:
        names = [b"%d:%d" % (number, index) for index in range(each)]
        while names:
            some = [names.pop() for _ in range(min(len(names), own.randint(1, 5)))]
            place.q.publish(own.choice(topics), [duly.Message(name, key=str(name)) for name in some])
            time.sleep(own.random() * 0.003)

    def consume(caller: Caller) -> None:
        deadline = time.monotonic() + LONG_S
        while acked.total() < total:
            assert time.monotonic() < deadline, f"only {acked.total()} of {total} came"
            caller.topic = caller.dice.choice(topics)
            batch = caller.claim()
            if not batch:
                continue
            verdict = caller.dice.random()
            if verdict < 0.7:
                payloads = batch.payloads
                assert not caller.client.ack(batch).lost
                with lock:
                    acked.update(payloads)
            elif verdict < 0.85:
                assert not caller.client.release(batch).lost
            else:
                assert not caller.client.nack(batch, delay=caller.dice.choice((0, 0.01))).lost

    for number in range(claimers):
        callers.append(Caller(place.broker, f"c{number}", topics[0], group, random.Random(dice.random())))
    threads = [crowd(consume, caller) for caller in callers]
    threads += [crowd(publish, number, random.Random(dice.random())) for number in range(publishers)]
    for thread in threads:
        thread.join(2 * LONG_S)
    assert set(acked.values()) == {1}
    assert acked.total() == total
    eventually(place.is_deserted)
    for topic in topics:
        eventually(lambda topic=topic: place.q.describe_group(topic, group).leased == 0)  # type: ignore[misc]
    # Nobody was told anything after it had left.
    assert all(caller.box.empty() for caller in callers)
    assert sum(caller.left for caller in callers) > 0


def test_nothing_is_lost_between_a_look_and_the_wait(live_place: Place, crowd: Callable[..., threading.Thread]) -> None:
    """One message, one who waits, over and over: each publish meets the look at another moment."""
    place = live_place
    turns = scaled(300, 5_000)
    told: queue.SimpleQueue[Claimed | Exception] = queue.SimpleQueue()
    command = Claim("default", "jobs", "queue", "a", 1, 1 << 26)

    def publish() -> None:
        for _ in range(turns):
            place.q.publish("jobs", b"x")

    crowd(publish)
    for _ in range(turns):
        place.broker.submit_claim(command, wait_until=monotonic_s() + LONG_S, then=told.put)
        answer = told.get(timeout=10)
        assert isinstance(answer, Claimed)
        assert answer.count == 1
    assert place.is_deserted()


def test_nothing_is_lost_when_another_store_on_the_file_publishes(
    live_place: Place, crowd: Callable[..., threading.Thread]
) -> None:
    place = live_place
    turns = scaled(100, 500)
    told: queue.SimpleQueue[Claimed | Exception] = queue.SimpleQueue()
    command = Claim("default", "jobs", "queue", "a", 1, 1 << 26)

    def publish() -> None:
        with duly.connect(place.path) as other:
            for _ in range(turns):
                other.publish("jobs", b"x")

    crowd(publish)
    for _ in range(turns):
        place.broker.submit_claim(command, wait_until=monotonic_s() + LONG_S, then=told.put)
        answer = told.get(timeout=10)
        assert isinstance(answer, Claimed)
        assert answer.count == 1


def test_a_topic_that_comes_and_goes_leaves_nobody_waiting_in_vain(
    live_place: Place, dice: random.Random, crowd: Callable[..., threading.Thread]
) -> None:
    """Whoever waits is told of a message, or that the topic is gone, soon; never only when its time is over."""
    place = live_place
    over = threading.Event()
    gone = Counter[str]()

    def consume(name: str) -> None:
        told: queue.SimpleQueue[Claimed | Exception] = queue.SimpleQueue()
        command = Claim("default", "fleeting", "queue", name, 1, 1 << 26)
        while not over.is_set():
            place.broker.submit_claim(command, wait_until=monotonic_s() + 2 * LONG_S, then=told.put)
            answer = told.get(timeout=LONG_S)
            gone[type(answer).__name__] += 1
            if isinstance(answer, duly.TopicNotFound):
                time.sleep(0.001)
            else:
                assert isinstance(answer, Claimed)
                assert answer.count == 1

    for number in range(6):
        crowd(consume, f"c{number}")
    for turn in range(scaled(25, 300)):
        place.q.create_topic("fleeting", kind="queue", partitions=dice.randint(1, 4))
        time.sleep(dice.random() * 0.01)
        place.q.publish("fleeting", [duly.Message(b"x", key=str(turn + index)) for index in range(dice.randint(1, 8))])
        time.sleep(dice.random() * 0.01)
        place.q.delete_topic("fleeting", force=True)
    over.set()
    eventually(place.is_deserted, within_s=LONG_S)
    assert gone["Claimed"] > 0
    assert gone["TopicNotFound"] > 0


class Restless:
    """A thread's claims until the room is closed; some are left at once. It remembers what it was told of which."""

    def __init__(self, place: Place, name: str, dice: random.Random) -> None:
        self.place = place
        self.dice = dice
        self.command = Claim("default", "jobs", "queue", name, 1, 1 << 26)
        self.came = 0
        self.left: set[int] = set()
        self.told: list[int] = []

    def run(self) -> None:
        try:
            while True:
                self._claim()
                time.sleep(self.dice.random() * 0.001)
        except duly.Closed:
            # The last one was not taken in.
            self.came -= 1

    def _claim(self) -> None:
        self.came += 1
        number = self.came
        wait = self.dice.choice((None, 0.001, LONG_S))
        until = None if wait is None else monotonic_s() + wait
        waiter = self.place.broker.submit_claim(self.command, wait_until=until, then=lambda _: self.told.append(number))
        if self.dice.random() < 0.3 and self.place.broker.leave(waiter):
            self.left.add(number)


def test_closing_in_the_middle_of_everything_tells_everybody_once(
    path: str, dice: random.Random, crowd: Callable[..., threading.Thread]
) -> None:
    for turn in range(scaled(10, 100)):
        place = Place(f"{path}.{turn}", SystemClock())
        place.q.create_topic("jobs", kind="queue", lease=HOUR_S)
        everybody = [Restless(place, f"c{number}", random.Random(dice.random())) for number in range(6)]
        threads = [crowd(one.run) for one in everybody]
        place.q.publish("jobs", [b"x"] * 20)
        time.sleep(dice.random() * 0.03)
        place.broker.drain()
        for thread in threads:
            thread.join(LONG_S)
        eventually(place.is_deserted)
        for one in everybody:
            assert sorted([*one.told, *one.left]) == list(range(1, one.came + 1))
        place.close()
