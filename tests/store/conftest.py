"""The homes that the conformance suite runs in. A new store joins by adding its Home to HOMES.

A test asks for `q` and runs in every home. One that asks for `home` or `reopen` needs several
clients on one store, or one that outlives its client: it runs where the store is shared.
Marked `embedded`, it runs where the store is in this process; marked `sqlite`, where the store is SQLite's; marked
`plain`, where nothing is sealed.

Every test runs on an SQLite file and on PostgreSQL. In memory and behind a broker is the same store as on a file, and
an encrypted tenant is served as any other: in the small scale one test in so many runs there (`one_in`), each home has
its own, and the same ones every time. DULY_TEST_HOME=sealed-postgres runs them in one home alone, all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from inspect import signature
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import psycopg
import pytest

import duly
import duly.engine.fold
import duly.engine.index
from duly.broker.broker import Broker
from duly.client.embedded import Embedded
from duly.engine.tenant_settings import Encrypt, encrypt_tenants
from duly.flight.server import FlightServer
from duly.master import MasterKeys
from duly.store.sqlite.store import SqliteStore
from tests import postgres_schemas
from tests.conftest import FULL


@pytest.fixture(autouse=True)
def early_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue's messages stand in runs from 2,000 on, not only from several thousand: tests need fewer to get there."""
    for module in (duly.engine.fold, duly.engine.index):
        monkeypatch.setattr(module, "ABSORB_FROM", 2_000)


class Home:
    """A place where a store lives, and the clients that a test opens there."""

    shared = True
    # In the small scale one test in so many runs there.
    one_in = 1

    def __init__(self, folder: Path, clock: duly.ManualClock, events: list[duly.Event]) -> None:
        self.folder = folder
        self.clock = clock
        self.events = events
        self._opened: list[duly.Client] = []
        self._watching: list[apsw.Connection] = []

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
        ((count,),) = self.ask(f"SELECT count(*) FROM {table}")
        return int(count)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Looks into the store's tables, which are called duly_… in every home."""
        with closing(apsw.Connection(str(self.folder / "app.duly"), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            return connection.execute(sql).fetchall()

    def change(self, sql: str) -> None:
        """Writes into the store's tables behind its back."""
        with closing(apsw.Connection(str(self.folder / "app.duly"))) as connection:
            connection.execute(sql)

    def damage(self, table: str, row_id: int) -> None:
        """Overwrites the bytes in a row's `data` with zeros."""
        self.change(f"UPDATE {table} SET data = zeroblob(length(data)) WHERE id = {row_id}")

    def watch(self) -> Callable[[], int]:
        """Gives a function whose answer changes whenever somebody else writes something."""
        connection = apsw.Connection(str(self.folder / "app.duly"), flags=apsw.SQLITE_OPEN_READONLY)
        self._watching.append(connection)
        return lambda: int(connection.execute("PRAGMA data_version").get)

    def close(self) -> None:
        for client in self._opened:
            client.close()
        for connection in self._watching:
            connection.close()


class MemoryHome(Home):
    """A store in memory: every connect opens one of its own."""

    shared = False
    one_in = 6

    @property
    def address(self) -> str:
        return ":memory:"


class BrokerHome(Home):
    """A broker in this process, on a file: clients reach it over Arrow Flight."""

    one_in = 4

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


# A sequence is seen at once by everybody, and counts the rows of this store alone: nothing else there does both.
_NOTICE = """
CREATE FUNCTION duly_notice() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM nextval('duly_rows_written'); RETURN NULL; END $$
"""


class PostgresHome(Home):
    """A schema of its own on this process's PostgreSQL. The tables have their names without duly_."""

    one_in = 2

    def __init__(self, folder: Path, clock: duly.ManualClock, events: list[duly.Event]) -> None:
        super().__init__(folder, clock, events)
        self._url = postgres_schemas.schemas().take()
        self._schema = self._url.rpartition("schema=")[2]
        self._behind: psycopg.Connection[tuple[Any, ...]] | None = None
        # The schema may have been used before: what its tables took then is not this store's.
        self._left_over = 0
        self._left_over = self.bytes_on_device()

    @property
    def address(self) -> str:
        return self._url

    def bytes_on_device(self) -> int:
        """What the store's tables take, with their indexes and what lies outside of rows, more than at the start."""
        sizes = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
        ((total,),) = self.ask(f"{sizes} WHERE relnamespace = '{self._schema}'::regnamespace AND relkind = 'r'")
        return max(0, int(total) - self._left_over)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return self._run(sql).fetchall()

    def change(self, sql: str) -> None:
        self._run(sql)

    def damage(self, table: str, row_id: int) -> None:
        self.change(f"UPDATE {table} SET data = decode(repeat('00', length(data)), 'hex') WHERE id = {row_id}")

    def watch(self) -> Callable[[], int]:
        postgres_schemas.schemas().distrust(self._url)
        self.change("CREATE SEQUENCE duly_rows_written")
        self.change(_NOTICE)
        for (table,) in self.ask(f"SELECT tablename FROM pg_tables WHERE schemaname = '{self._schema}'"):
            self.change(
                f"CREATE TRIGGER noticed AFTER INSERT OR UPDATE OR DELETE ON duly_{table}"
                " FOR EACH ROW EXECUTE FUNCTION duly_notice()"
            )
        return lambda: int(self.ask("SELECT last_value FROM duly_rows_written")[0][0])

    def close(self) -> None:
        super().close()
        if self._behind is not None:
            self._behind.close()
        postgres_schemas.schemas().give_back(self._url)

    def _run(self, sql: str) -> psycopg.Cursor[tuple[Any, ...]]:
        if self._behind is None:
            self._behind = psycopg.connect(postgres_schemas.database(), autocommit=True)
        return self._behind.execute(sql.replace("duly_", f"{self._schema}.").encode())


def encrypt(client: duly.Client, tenant: str) -> None:
    """Has an embedded client's store seal what the tenant stores from now on."""
    store = client._port.store  # type: ignore[attr-defined]
    store.write(encrypt_tenants, Encrypt(tenant), tenant=tenant, cost=0, deadline=None)


class SealedHome(Home):
    """A file whose tenants are encrypted."""

    one_in = 8

    def connect(self, *, consumer: str | None = None, tenant: str = "default") -> duly.Client:
        client = super().connect(consumer=consumer, tenant=tenant)
        encrypt(client, tenant)
        return client


class SealedPostgresHome(PostgresHome):
    """PostgreSQL, with encrypted tenants."""

    one_in = 8

    def connect(self, *, consumer: str | None = None, tenant: str = "default") -> duly.Client:
        name = consumer or f"w{len(self._opened) + 1}"
        client = duly.connect(
            self.address, clock=self.clock, on_event=self.events.append, consumer=name, tenant=tenant, master=_KEYS
        )
        self._opened.append(client)
        encrypt(client, tenant)
        return client


_KEYS = MasterKeys([b"tests only, and thirty-two bytes"])
HOMES: dict[str, type[Home]] = {
    "sqlite": Home,
    "memory": MemoryHome,
    "broker": BrokerHome,
    "postgres": PostgresHome,
    "sealed": SealedHome,
    "sealed-postgres": SealedPostgresHome,
}
if postgres_schemas.why_not():
    del HOMES["postgres"], HOMES["sealed-postgres"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "home" in metafunc.fixturenames:
        metafunc.parametrize("home", [name for name in HOMES if runs_in(name, metafunc)], indirect=True)


def runs_in(name: str, metafunc: pytest.Metafunc) -> bool:
    kind = HOMES[name]
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    needs_shared = not {"home", "reopen"}.isdisjoint(signature(metafunc.function).parameters)
    if (needs_shared and not kind.shared) or ("embedded" in marks and kind is BrokerHome):
        return False
    if "plain" in marks and kind in (SealedHome, SealedPostgresHome):
        return False
    if "sqlite" in marks and issubclass(kind, PostgresHome):
        return False
    # By a hash that is the same in every process: the processes of one run must agree on which tests there are.
    if (alone := os.environ.get("DULY_TEST_HOME")) is not None:
        return name == alone
    return FULL or crc32(f"{name} {metafunc.definition.nodeid}".encode()) % kind.one_in == 0


@pytest.fixture
def home(
    request: pytest.FixtureRequest, tmp_path: Path, clock: duly.ManualClock, events: list[duly.Event]
) -> Iterator[Home]:
    opened = HOMES[request.param](tmp_path, clock, events)
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
