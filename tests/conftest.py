"""Fixtures for every test: a fresh store, a clock that stands still, and how big the proofs are."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import duly
from tests import postgres_schemas
from tests.postgres_server import PostgresServer, version_is_here

# A run that was started in the background ignores it, and so would every program that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FULL = os.environ.get("DULY_TEST_SCALE") == "full"


def scaled(small: int, full: int) -> int:
    """A count for `make test`, and the whole one for `make test-all`."""
    return full if FULL else small


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes minutes is left to `make test-all`: it is not skipped, it is not asked for."""
    if not FULL:
        long = [item for item in items if item.get_closest_marker("full") is not None]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left_out = postgres_schemas.why_not()
    if left_out:
        terminalreporter.write_line(f"The conformance suite did not run on PostgreSQL: {left_out}.")


@pytest.fixture
def clock() -> duly.ManualClock:
    return duly.ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "app.duly")


@pytest.fixture
def events() -> list[duly.Event]:
    return []


@pytest.fixture
def q(path: str, clock: duly.ManualClock, events: list[duly.Event]) -> Iterator[duly.Client]:
    """A client on a fresh file, on a manual clock, its events gathered in `events`."""
    with duly.connect(path, clock=clock, on_event=events.append, consumer="w1") as client:
        yield client


@pytest.fixture
def reopen(path: str, clock: duly.ManualClock) -> Iterator[Callable[[], duly.Client]]:
    """Opens further clients on the same file; closes them at the end."""
    opened: list[duly.Client] = []

    def connect() -> duly.Client:
        opened.append(duly.connect(path, clock=clock, consumer=f"w{len(opened) + 2}"))
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


@pytest.fixture
def fresh_store_url() -> Iterator[Callable[[], str]]:
    """Gives URLs of PostgreSQL stores, each as if it had just been made; they are taken back after the test.

    Close every client of theirs first: a schema that somebody still uses is dropped, which takes longer.
    """
    schemas = postgres_schemas.schemas()
    taken: list[str] = []

    def take() -> str:
        taken.append(schemas.take())
        return taken[-1]

    yield take
    for url in taken:
        schemas.give_back(url)


@pytest.fixture
def postgres_server() -> Iterator[Callable[..., PostgresServer]]:
    """Starts PostgreSQL servers for this test alone, to be killed and paused: PostgresServer's arguments, or none."""
    started: list[PostgresServer] = []

    def start(version: int = postgres_schemas.VERSIONS[0], **settings: Any) -> PostgresServer:
        if not version_is_here(version):
            pytest.skip(f"There is no PostgreSQL {version} here.")
        started.append(PostgresServer(version, **settings))
        started[-1].start()
        return started[-1]

    yield start
    for server in started:
        server.close()
