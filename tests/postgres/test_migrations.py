"""Stores of earlier schemas are opened and found whole; any number of processes may make or open one at once.

Broken once to see it fail: without the lock in migrate.py those that open an empty schema at once do not all come up;
with its rows of `block` deleted, the frozen store's messages are missed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import duly
from duly.store.postgres.migrate import SCHEMA as NEWEST
from tests import postgres_schemas
from tests.conftest import scaled
from tests.postgres_server import PostgresServer

from .freeze import JOBS, LATER, ORDERS, PUBLISH_ID, SCHEMA

FROZEN = sorted(Path(__file__).parent.glob("schema_*.sql"))


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_store_opens_and_every_message_is_found(
    postgres_server: Callable[..., PostgresServer], frozen: Path
) -> None:
    server = postgres_server(fsync=False)
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(frozen.read_bytes())
        # It is opened soon after it was frozen: days later receipts are forgotten, weeks later logs are cut.
        found = connection.execute(f"SELECT max(published_at_ms) FROM {SCHEMA}.block".encode()).fetchone()
        assert found is not None
    clock = duly.ManualClock(found[0] + 60_000)
    url = f"{server.dsn()}?schema={SCHEMA}"
    with duly.connect(url, consumer="w", clock=clock) as q:
        assert [message.payload for message in q.read("orders", offset=0)] == ORDERS
        assert q.publish("orders", ORDERS[-2:], publish_id=PUBLISH_ID).duplicate
        assert [letter.payload for letter in q.dead("orders", group="g")] == [ORDERS[10]]
        assert len(list(q.dead("jobs"))) == 1
        orders: list[bytes] = []
        while batch := q.claim("orders", group="g", max_messages=100, wait=0.5):
            orders += batch.payloads
            assert not q.ack(batch).lost
        assert sorted(orders) == sorted(ORDERS[11:])
        assert q.redrive("jobs") == 1
        jobs: list[bytes] = []
        while batch := q.claim("jobs", max_messages=100, wait=0.5):
            jobs += batch.payloads
            assert not q.ack(batch).lost
        assert len(jobs) == len(set(jobs)) == len(JOBS) - 5 - 1
        assert set(jobs) < set(JOBS[:-1])
        assert q.describe_topic("jobs").messages == len(LATER)
        assert q.publish("jobs", b"new").positions == [(0, len(JOBS) + len(LATER))]
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        found = connection.execute(f"SELECT value FROM {SCHEMA}.meta WHERE key = 'schema'".encode()).fetchone()
        assert found == (str(NEWEST),)


def test_every_schema_there_ever_was_is_frozen() -> None:
    assert [path.stem for path in FROZEN] == [f"schema_{number}" for number in range(1, NEWEST + 1)]


def test_a_store_of_a_later_schema_is_opened_only_if_that_says_so() -> None:
    url = postgres_schemas.schemas().take_unmade()
    duly.connect(url).close()
    meta = url.rpartition("schema=")[2] + ".meta"
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        connection.execute(f"UPDATE {meta} SET value = '{NEWEST + 1}' WHERE key = 'schema'".encode())
        duly.connect(url).close()
        connection.execute(f"UPDATE {meta} SET value = '{NEWEST + 1}' WHERE key = 'works_from'".encode())
        with pytest.raises(duly.IncompatibleStore, match="newer"):
            duly.connect(url)
        found = connection.execute(f"SELECT value FROM {meta} WHERE key = 'schema'".encode()).fetchone()
        assert found == (str(NEWEST + 1),), "an older Duly changed it"


def test_many_that_open_an_empty_schema_at_once_all_come_up() -> None:
    for _ in range(scaled(3, 50)):
        url = postgres_schemas.schemas().take_unmade()
        together = threading.Barrier(4)
        opened: list[duly.Client] = []
        failed: list[BaseException] = []

        threads = [threading.Thread(target=_open, args=(url, together, opened, failed)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failed
        opened[0].create_topic("jobs", kind="queue")
        for client in opened:
            client.publish("jobs", b"x")
        deadline = time.monotonic() + 10
        while opened[-1].describe_topic("jobs").messages < 4:
            assert time.monotonic() < deadline
        for client in opened:
            client.close()


def _open(url: str, together: threading.Barrier, opened: list[duly.Client], failed: list[BaseException]) -> None:
    try:
        together.wait()
        opened.append(duly.connect(url))
    except BaseException as error:
        failed.append(error)
