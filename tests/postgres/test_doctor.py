"""`duly doctor` on PostgreSQL: every damage is named, a healthy store has none, a server that loses data is told on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import duly
from duly.clock import ClockReading, from_ms
from duly.store.postgres.server import drift
from tests import postgres_schemas
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.skipif(postgres_schemas.why_not() is not None, reason=str(postgres_schemas.why_not()))

Change = Callable[[str], Any]


class Place:
    """A store, and a way to its tables behind its back."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = duly.ManualClock()
        self.q = duly.connect(url, clock=self.clock)
        base, _, schema = url.rpartition("?schema=")
        self.schema = schema
        self.behind = psycopg.connect(base, autocommit=True, options=f"-c search_path={schema}")

    def change(self, statement: str) -> int:
        return self.behind.execute(statement.encode()).rowcount

    def amiss(self) -> list[str]:
        return [found.what for found in self.q.examine() if found.level == "alert"]

    def close(self) -> None:
        self.q.close()
        self.behind.close()


@pytest.fixture
def place() -> Iterator[Place]:
    url = postgres_schemas.schemas().take()
    opened = Place(url)
    yield opened
    opened.close()
    postgres_schemas.schemas().give_back(url)


def fill(place: Place) -> None:
    """Something of everything: long and short blocks, runs, ids, stages, leases, retries, dead letters."""
    q = place.q
    q.create_topic("log", kind="log", partitions=2, lease=30, retention=duly.Retention(age=3600))
    q.create_group("log", "g")
    q.publish("log", [duly.Message(b"%d" % n, key=f"k{n}") for n in range(2000)])
    q.publish("log", b"short")
    q.stage("log", [b"staged"] * 3000, stage="a", number=0)
    q.commit_stages("log", {"a": 3000}, job="j")
    q.stage("log", [b"waits"] * 100, stage="b", number=0)
    q.bury(q.claim("log", group="g", max_messages=10))
    q.claim("log", group="g", max_messages=10).nack(delay=86_400)
    q.create_topic("jobs", kind="queue", lease=30)
    for n in range(12):
        q.publish(
            "jobs", [duly.Message(b"%d" % i, id=f"{n}-{i}", priority=i % 5, lane=f"l{i % 3}") for i in range(1000)]
        )
    q.claim("jobs", max_messages=1000).ack()
    q.claim("jobs", max_messages=100)
    q.bury(q.claim("jobs", max_messages=10))


def test_a_store_with_something_of_everything_is_found_whole(place: Place) -> None:
    fill(place)
    findings = list(place.q.examine())
    assert {found.what for found in findings if found.level != "ok"} == {"fsync is off.", "full_page_writes is off."}
    place.clock.advance(7200)
    place.q.publish("log", b"another")
    assert place.amiss() == []


def test_a_busy_store_is_found_whole(place: Place) -> None:
    q = place.q
    q.create_topic("jobs", kind="queue", lease=30)
    q.create_topic("log", kind="log", retention=duly.Retention(settled=True))
    q.create_group("log", "g")
    stop = threading.Event()

    def work() -> None:
        with duly.connect(place.url, clock=place.clock) as other:
            while not stop.is_set():
                other.publish("jobs", [duly.Message(b"x" * 500, id=None, priority=n % 3) for n in range(3000)])
                other.publish("log", [b"y" * 500] * 500)
                other.claim("jobs", max_messages=2900).ack()
                other.claim("log", group="g", max_messages=1000).ack()
                place.clock.advance(1)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(20):
            assert place.amiss() == []
    finally:
        stop.set()
        worker.join()


ZEROS = "decode(repeat('00', octet_length({0})), 'hex')"


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("UPDATE block SET data = overlay(data placing '\\x00'::bytea from 60) WHERE base = 0", "partition"),
        ("UPDATE block SET base = base + 1 WHERE base = 0 AND partition = (SELECT min(id) FROM part)", "partition"),
        ("DELETE FROM block WHERE base = 0 AND partition = (SELECT min(id) FROM part)", "are missing"),
        (f"UPDATE chunk SET data = {ZEROS.format('data')}", "lie apart"),
        ("DELETE FROM chunk WHERE id = (SELECT chunk FROM staged LIMIT 1)", "staged refer to messages that are gone"),
        (f"UPDATE run_block SET entries = {ZEROS.format('entries')} WHERE idx = 1", "Run "),
        ("UPDATE run_data SET data = substr(data, 1, 100) WHERE idx = 1", "length is wrong"),
        ("DELETE FROM run_data WHERE idx = 1", "no block header"),
        ("DELETE FROM run_block WHERE idx = 1", "Run "),
        (f"UPDATE id_block SET data = {ZEROS.format('data')}", "index of ids"),
        ("DELETE FROM id_block", "has no blocks"),
        ("UPDATE queue SET positions = '\\xc1'", "state of the queue"),
        ("UPDATE part SET first_offset = 1000000, next_offset = 1000000", "dead refer to messages that are gone"),
        ("DELETE FROM cursor", "has no cursor"),
        ("UPDATE cursor SET next_offset = 1000000", "a group has read up to 1000000"),
        ("DELETE FROM part WHERE number = 0", "Partitions of topic 'jobs' are missing"),
        ("DELETE FROM topic WHERE name = 'log'", "partitions belong to no topic"),
    ],
)
def test_damage_is_named(place: Place, damage: str, named: str) -> None:
    fill(place)
    assert place.change(damage)
    assert any(named in what for what in place.amiss()), place.amiss()


def test_a_damaged_message_that_was_copied_out_is_named(place: Place) -> None:
    q = place.q
    q.create_topic("log", kind="log", retention=duly.Retention(age=60))
    q.create_group("log", "g")
    q.publish("log", b"old")
    q.bury(q.claim("log", group="g"))
    place.clock.advance(3600)
    pause = threading.Event()
    while not place.change("UPDATE kept SET data = substr(data, 1, 70)"):
        pause.wait(0.01)
    assert any("length is wrong" in what for what in place.amiss())


def test_a_transaction_left_open_is_told_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.store.postgres.server._IDLE_S_WARN", 0)
    with place.behind.transaction():
        place.behind.execute("SELECT pg_current_xact_id()")
        findings = [found for found in place.q.examine() if "transaction open" in found.what]
    ending = f"pg_terminate_backend({place.behind.info.backend_pid})"
    assert [found.level for found in findings if ending in found.advice] == ["warn"]


@contextmanager
def connected(server: PostgresServer) -> Iterator[duly.Client]:
    with duly.connect(server.dsn() + "?schema=duly") as q:
        yield q


def levels(q: duly.Client) -> dict[str, str]:
    return {found.what: found.level for found in q.examine()}


def test_a_server_that_loses_what_it_acknowledged_is_an_alert() -> None:
    server = PostgresServer(postgres_schemas.VERSIONS[0])
    server.start()
    try:
        with connected(server) as q:
            assert set(levels(q).values()) == {"ok"}
        server.configure(fsync="off", full_page_writes="off", synchronous_commit="off", autovacuum="off")
        with connected(server) as q:
            found = levels(q)
            assert [found[f"{name} is off."] for name in ("fsync", "full_page_writes", "synchronous_commit")] == [
                "alert"
            ] * 3
            assert found["autovacuum is off."] == "warn"
    finally:
        server.close()


def test_a_standby_that_is_waited_for_and_not_there_is_an_alert() -> None:
    server = PostgresServer(postgres_schemas.VERSIONS[0])
    server.start()
    try:
        with connected(server) as q:
            q.create_topic("t", kind="log")
            server.configure(synchronous_standby_names="nobody")
            found = levels(q)
            assert found["Commits wait for a standby (nobody), and none is attached."] == "alert"
            server.configure(synchronous_standby_names="")
    finally:
        server.close()


@pytest.mark.parametrize(("seconds", "said"), [(3, "3.0 s ahead of"), (-3, "3.0 s behind")])
def test_a_host_whose_clock_is_off_is_told(seconds: int, said: str) -> None:
    now = from_ms(1_000_000)
    (found,) = drift(ClockReading(now, now + timedelta(seconds=seconds), "together"))
    assert found.level == "warn"
    assert said in found.what
