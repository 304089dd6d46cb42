"""A broker on a real store, and clients that do not wait for it but are told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

import duly
from duly.broker.broker import Broker
from duly.broker.desk import Waiter
from duly.broker.entry import Entry
from duly.client.batch import Batch
from duly.client.embedded import Embedded
from duly.clock import Clock, SystemClock, monotonic_s
from duly.engine.claimed import Claim, Claimed
from duly.store.sqlite.store import SqliteStore
from tests.store.patience import eventually

PATIENCE_S = 60.0
Answer = Claimed | Exception


class Place:
    """A broker, with one client for what is done at once and many who wait in its room."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self.clock = clock
        self.home = Embedded(lambda: SqliteStore(path, clock=clock))
        self.broker = Broker(self.home)
        self.room = self.broker.room
        self.q = Entry(self.broker).client("default")
        # Everyone who was told, in that order.
        self.told: list[Guest] = []
        # Claims asked of the store, by consumer.
        self.asked: list[str] = []
        self._count_claims()

    def _count_claims(self) -> None:
        submit = self.home.store.submit

        def counting(verb: Any, command: Any, **how: Any) -> None:
            if isinstance(command, Claim):
                self.asked.append(command.consumer)
            submit(verb, command, **how)

        self.home.store.submit = counting

    def come(
        self, name: str, *, topic: str = "jobs", group: str = "queue", most: int = 1, wait: float | None = PATIENCE_S
    ) -> Guest:
        """Somebody claims; `wait` None will not wait."""
        return Guest(self, name, topic, group, most, wait)

    def wait(self, name: str, **how: Any) -> Guest:
        """Somebody claims, is asked for in vain, and waits."""
        guest = self.come(name, **how)
        self.settle()
        assert not guest.told, f"{name} should wait"
        return guest

    def settle(self) -> None:
        """Waits until nobody is being asked for."""
        eventually(lambda: not any(desk.asking for desk in list(self.room._desks.values())))

    def writing(self) -> AbstractContextManager[Any]:
        """While it is held the writer waits: claims are asked for, and not answered."""
        return self.home.transaction(5)

    def is_deserted(self) -> bool:
        """Whether nothing is left of anybody: no count, no desk, nowhere listened, no alarm."""
        room = self.room
        return not (room.count or room._desks or room._by_slot or room._alarms._moments)

    def close(self) -> None:
        self.broker.shut()


class Guest:
    """One who claims, and what it was told."""

    def __init__(self, place: Place, name: str, topic: str, group: str, most: int, wait: float | None) -> None:
        self.name = name
        self.place = place
        self.told = False
        self._answer: Answer | None = None
        self._telling = threading.Event()
        self.command = Claim("default", topic, group, name, most, 1 << 26)
        until = None if wait is None else monotonic_s() + wait
        self.waiter: Waiter = place.broker.submit_claim(self.command, wait_until=until, then=self._then)

    def _then(self, answer: Answer) -> None:
        assert not self.told, f"{self.name} was told twice"
        self.told = True
        self._answer = answer
        self.place.told.append(self)
        self._telling.set()

    def leave(self) -> bool:
        return self.place.broker.leave(self.waiter)

    def answer(self, within_s: float = 15.0) -> Answer:
        """What it was told; waits for that."""
        assert self._telling.wait(within_s), f"{self.name} was not told within {within_s} s"
        assert self._answer is not None
        return self._answer

    def batch(self) -> Batch:
        answer = self.answer()
        if isinstance(answer, Exception):
            raise answer
        return Batch(self.place.q, answer)

    def payloads(self) -> list[bytes]:
        return [delivery.payload for delivery in self.batch()]


@pytest.fixture
def open_place(path: str) -> Iterator[Callable[[Clock], Place]]:
    opened: list[Place] = []

    def open_one(clock: Clock) -> Place:
        opened.append(Place(path, clock))
        return opened[-1]

    yield open_one
    for place in opened:
        place.close()


@pytest.fixture
def place(open_place: Callable[[Clock], Place], clock: duly.ManualClock) -> Place:
    """A broker on a manual clock, with a queue `jobs`: leases of 30 s."""
    place = open_place(clock)
    place.q.create_topic("jobs", kind="queue", lease=30)
    return place


@pytest.fixture
def live_place(open_place: Callable[[Clock], Place]) -> Place:
    """The same on the host's clock."""
    place = open_place(SystemClock())
    place.q.create_topic("jobs", kind="queue", lease=30)
    return place
