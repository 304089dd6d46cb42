"""A store on PostgreSQL; an application beside it, with a table and connections of its own; brokers on it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

import duly
from tests import postgres_schemas

from .brokers import BrokerProcess

Connection = psycopg.Connection[tuple[Any, ...]]
_numbers = itertools.count(1)


class Application:
    """An application that has its table in the store's database. Everything that it opens is closed after the test."""

    def __init__(self, url: str, stack: ExitStack, events: list[duly.Event]) -> None:
        self.url = url
        self.schema = url.rpartition("schema=")[2]
        self.dsn = postgres_schemas.database()
        self.events = events
        self._stack = stack
        self.own = f"app_{next(_numbers)}"
        self._behind = self.connect()
        self._behind.execute(f"CREATE SCHEMA {self.own} CREATE TABLE orders (id TEXT PRIMARY KEY)".encode())
        stack.callback(self._drop)

    def _drop(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True, options="-c lock_timeout=5s") as connection:
            connection.execute(f"DROP SCHEMA {self.own} CASCADE".encode())

    def connect(self, *, autocommit: bool = True, **settings: Any) -> Connection:
        """A connection of the application's, on which `orders` is its table. Nobody waits for a lock for long there."""
        options = f"-c search_path={self.own} -c lock_timeout=2s -c statement_timeout=20s"
        connection = psycopg.connect(self.dsn, autocommit=autocommit, options=options, **settings)
        self._stack.callback(connection.close)
        return connection

    def client(self, consumer: str = "w1", **settings: Any) -> duly.Client:
        """Another client. All with the same URL have one store open in this process."""
        client = duly.connect(self.url, consumer=consumer, on_event=self.events.append, **settings)
        self._stack.callback(client.close)
        return client

    def elsewhere(self, consumer: str) -> duly.Client:
        """A client with a store of its own, as in another process."""
        client = duly.connect(f"{self.dsn}?application_name={consumer}&schema={self.schema}", consumer=consumer)
        self._stack.callback(client.close)
        return client

    def ask(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._behind.execute(sql.replace("duly.", f"{self.schema}.").encode(), values)
        return cursor.fetchall() if cursor.description else []

    def orders(self) -> list[str]:
        return [name for (name,) in self.ask("SELECT id FROM orders ORDER BY id")]


def store_of(q: duly.Client) -> Any:
    """The store that a client has open: to watch it at work."""
    port: Any = q._alive()
    return port.store


@pytest.fixture
def app(fresh_store_url: Callable[[], str], events: list[duly.Event]) -> Iterator[Application]:
    with ExitStack() as stack:
        yield Application(fresh_store_url(), stack, events)


@pytest.fixture
def q(app: Application) -> duly.Client:
    """A client called w1, by PostgreSQL's clock, with a queue `jobs`."""
    client = app.client()
    client.create_topic("jobs", kind="queue", lease=30)
    return client


@pytest.fixture
def complaints(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged as a warning or worse."""
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., list[BrokerProcess]]]:
    """Starts brokers on stores, one a URL; whatever still runs at the end of the test is killed."""
    started: list[BrokerProcess] = []

    def start(*stores: str, env: dict[str, str] | None = None) -> list[BrokerProcess]:
        new = [BrokerProcess(store, tmp_path, len(started) + at, env) for at, store in enumerate(stores)]
        started.extend(new)
        for broker in new:
            broker.begin()
        for broker in new:
            broker.listens()
        return new

    yield start
    for broker in started:
        broker.kill()
