"""The homes that the conformance suite runs in. A new store joins by adding its Home to HOMES.

A test asks for `q` and runs in every home. One that asks for `home` or `reopen` needs several
clients on one store, or one that outlives its client: it runs where the store is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path

import apsw
import pytest

import duly
import duly.engine.fold
import duly.engine.index
from duly.broker.broker import Broker
from duly.client.embedded import Embedded
from duly.flight.server import FlightServer
from duly.store.sqlite.store import SqliteStore


@pytest.fixture(autouse=True)
def early_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue's messages stand in runs from 2,000 on, not only from several thousand: tests need fewer to get there."""
    for module in (duly.engine.fold, duly.engine.index):
        monkeypatch.setattr(module, "ABSORB_FROM", 2_000)


class Home:
    """A place where a store lives, and the clients that a test opens there."""

    shared = True

    def __init__(self, folder: Path, clock: duly.ManualClock, events: list[duly.Event]) -> None:
        self.folder = folder
        self.clock = clock
        self.events = events
        self._opened: list[duly.Client] = []

    @property
    def address(self) -> str:
        return str(self.folder / "app.duly")

    def connect(self, *, consumer: str | None = None, tenant: str = "default") -> duly.Client:
        """Another client on the same store; closed at the end of the test, if not before."""
        name = consumer or f"w{len(self._opened) + 1}"
        client = duly.connect(self.address, clock=self.clock, on_event=self.events.append, consumer=name, tenant=tenant)
        self._opened.append(client)
        return client

    def bytes_on_device(self) -> int:
        """What the store takes, with its side files."""
        return sum(path.stat().st_blocks * 512 for path in self.folder.glob("app.duly*"))

    def rows(self, table: str) -> int:
        """How many rows a table of the store has."""
        connection = apsw.Connection(str(self.folder / "app.duly"), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            ((count,),) = connection.execute(f"SELECT count(*) FROM {table}")
            return int(count)
        finally:
            connection.close()

    def close(self) -> None:
        for client in self._opened:
            client.close()


class MemoryHome(Home):
    """A store in memory: every connect opens one of its own."""

    shared = False

    @property
    def address(self) -> str:
        return ":memory:"


class BrokerHome(Home):
    """A broker in this process, on a file: clients reach it over Arrow Flight."""

    def __init__(self, folder: Path, clock: duly.ManualClock, events: list[duly.Event]) -> None:
        super().__init__(folder, clock, events)
        path = str(folder / "app.duly")
        self._broker = Broker(Embedded(lambda: SqliteStore(path, clock=clock, listener=events.append)))
        self._server = FlightServer(self._broker, "127.0.0.1", 0)

    def connect(self, *, consumer: str | None = None, tenant: str = "default") -> duly.Client:
        name = consumer or f"w{len(self._opened) + 1}"
        client = duly.connect(f"duly://127.0.0.1:{self._server.port}", consumer=name, tenant=tenant)
        self._opened.append(client)
        return client

    def close(self) -> None:
        super().close()
        self._server.shutdown()
        self._broker.shut()


HOMES = {"sqlite": Home, "memory": MemoryHome, "broker": BrokerHome}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "home" in metafunc.fixturenames:
        needs_shared = not {"home", "reopen"}.isdisjoint(signature(metafunc.function).parameters)
        embedded = metafunc.definition.get_closest_marker("embedded") is not None
        names = [
            name
            for name, kind in HOMES.items()
            if (kind.shared or not needs_shared) and not (embedded and kind is BrokerHome)
        ]
        metafunc.parametrize("home", names, indirect=True)


@pytest.fixture
def home(
    request: pytest.FixtureRequest, tmp_path: Path, clock: duly.ManualClock, events: list[duly.Event]
) -> Iterator[Home]:
    kind: type[Home] = HOMES[request.param]
    opened = kind(tmp_path, clock, events)
    yield opened
    opened.close()


@pytest.fixture
def q(home: Home) -> duly.Client:
    """A client called w1 on a fresh store, on a manual clock, its events gathered in `events`."""
    return home.connect(consumer="w1")


@pytest.fixture
def reopen(home: Home) -> Callable[[], duly.Client]:
    """Opens further clients on the same store."""
    return home.connect


@pytest.fixture
def orders(q: duly.Client) -> str:
    """A log of one partition with one group, `billing`; leases of 30 s, retries after 10 s sharp, 3 attempts."""
    q.create_topic("orders", kind="log", lease=30, retry=sharp(10, max_attempts=3))
    q.create_group("orders", "billing")
    return "orders"


def sharp(base: float, *, max_attempts: int = 8, shape: str = "fixed") -> duly.RetryPolicy:
    """A retry policy without jitter, so that a manual clock can meet it exactly."""
    return duly.RetryPolicy(max_attempts=max_attempts, base=base, shape=shape, jitter="none")
