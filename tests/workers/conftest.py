"""Workers under test: they run in a thread of their own, on a real store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import duly
from duly.broker.broker import Broker
from duly.client.connect import open_home
from duly.flight.server import FlightServer
from tests.store.patience import Aside


@pytest.fixture(params=["embedded", "broker"])
def address(request: pytest.FixtureRequest, path: str) -> Iterator[str]:
    """Where workers find their store: a fresh file, or a broker on it."""
    if request.param == "embedded":
        yield path
        return
    broker = Broker(open_home(path))
    server = FlightServer(broker, "127.0.0.1", 0)
    yield f"duly://127.0.0.1:{server.port}"
    # Who waits idly is told first: a stream of Flight's ends only when its thread does.
    broker.drain()
    server.shutdown()
    broker.shut()


@pytest.fixture
def q(address: str) -> Iterator[duly.Client]:
    """A client of a fresh store, by the host's clock, with a queue of short leases and one attempt more than one."""
    with duly.connect(address, consumer="w1") as client:
        client.create_topic("emails", kind="queue", lease=30, retry=duly.RetryPolicy(base=0.01, jitter="none"))
        client.create_topic("other", kind="queue", lease=30, retry=duly.RetryPolicy(base=0.01, jitter="none"))
        yield client


@pytest.fixture
def workers() -> duly.Workers:
    return duly.Workers()


@contextmanager
def working(workers: duly.Workers, q: duly.Client, **options: Any) -> Iterator[Aside[None]]:
    """Runs them in a thread while inside; their error is raised at the end."""
    run = Aside(lambda: workers.run(q, **options))
    try:
        yield run
    finally:
        workers.stop()
        run.result()


class Gate:
    """A handler's body that waits until it is let through, and counts who is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = threading.Semaphore(0)
        self.inside: list[bytes] = []
        self.passed: list[bytes] = []
        self.most = 0

    def __call__(self, d: duly.Delivery) -> None:
        with self._lock:
            self.inside.append(d.payload)
            self.most = max(self.most, len(self.inside))
        let = self._open.acquire(timeout=20)
        with self._lock:
            self.inside.remove(d.payload)
            self.passed.append(d.payload)
        assert let, "nobody let it through"

    def let(self, count: int) -> None:
        for _ in range(count):
            self._open.release()


def held(q: duly.Client, topic: str = "emails") -> int:
    """How many messages of a queue are under a lease."""
    return len(q.browse(topic, state="leased"))


def unsettled(q: duly.Client, topic: str = "emails") -> list[duly.QueuedMessage]:
    return q.browse(topic)


Wait = Callable[[], bool]
