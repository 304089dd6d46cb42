"""What applications' transactions left is seen by every read, wakes who waits, and is never lost in silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import psycopg
import pytest

import duly
from duly.store.postgres.inbox import _MAILS_A_PAGE
from tests.conftest import scaled
from tests.postgres_server import PostgresServer

from .conftest import Application, Connection, store_of


def leave(q: duly.Client, connection: Connection, topic: str, *messages: duly.Message) -> None:
    with connection.transaction():
        q.publish(topic, list(messages), tx=connection)


def mail(app: Application) -> int:
    ((count,),) = app.ask("SELECT count(*) FROM duly.inbox")
    return int(count)


def refused(app: Application) -> list[tuple[Any, ...]]:
    return app.ask("SELECT kind, why FROM duly.refused ORDER BY id")


def sql_publish(app: Application, topic: str = "jobs", payload: bytes = b"sql") -> None:
    app.ask("SELECT duly.publish(%s, %s)", topic, payload)


READS: dict[str, Callable[[duly.Client], object]] = {
    "get": lambda q: q.get("jobs", "one") is not None,
    "browse": lambda q: len(q.browse("jobs")) == 1,
    "describe": lambda q: q.describe_topic("jobs").messages == 1,
    "coming": lambda q: bool(q.coming("jobs")) or True,
    "claim": lambda q: len(q.claim("jobs")) == 1,
    "move": lambda q: q.move("jobs", "one", due=5) == {"one": "moved"},
    "cancel": lambda q: q.cancel("jobs", "one") == {"one": "cancelled"},
}


@pytest.mark.parametrize("read", READS)
def test_whoever_looks_sees_what_was_committed(app: Application, q: duly.Client, read: str) -> None:
    leave(q, app.connect(), "jobs", duly.Message(b"x", id="one"))
    assert mail(app) == 1
    assert READS[read](q)
    assert mail(app) == 0


def test_whoever_reads_a_log_sees_what_was_committed(app: Application, q: duly.Client) -> None:
    q.create_topic("log", kind="log", partitions=2)
    q.create_group("log", "g")
    connection = app.connect()
    for at in range(1, 4):
        leave(q, connection, "log", duly.Message(b"x", partition=1))
        seen: list[Callable[[], int]] = [
            lambda: len(q.read("log", partition=1)),
            lambda: q.describe_topic("log").messages,
            lambda: q.describe_group("log", "g").lag,
        ]
        assert seen[at - 1]() == at


def test_events_tell_of_what_was_committed(app: Application, q: duly.Client) -> None:
    leave(q, app.connect(), "jobs", duly.Message(b"x", id="one"))
    q.browse("jobs")
    kinds = [event.kind for event in q.events(topic="jobs")]
    assert kinds.count("published") == 1
    assert "moved" not in kinds


def test_what_is_tried_for_an_answer_is_told_by_nobody(
    app: Application, q: duly.Client, events: list[duly.Event]
) -> None:
    q.publish("jobs", [duly.Message(b"x", id="one"), duly.Message(b"x", id="two")])
    connection = app.connect()
    with connection.transaction(force_rollback=True):
        assert q.move("jobs", "one", due=60, tx=connection) == {"one": "moved"}
        assert q.cancel("jobs", "two", tx=connection) == {"two": "cancelled"}
    assert {event.kind for event in q.events(topic="jobs")} & {"moved", "cancelled"} == set()
    assert sorted(one.state for one in q.browse("jobs")) == ["ready", "ready"]


def test_more_mail_than_is_read_at_once(app: Application, q: duly.Client) -> None:
    count = 2 * _MAILS_A_PAGE + 7
    app.ask("SELECT count(duly.publish('jobs', n::TEXT::BYTEA)) FROM generate_series(1, %s) AS n", count)
    assert [int(payload) for payload in q.claim("jobs", max_messages=count).payloads] == list(range(1, count + 1))
    assert mail(app) == 0


def test_more_mail_that_has_to_wait_than_is_read_at_once(
    app: Application, q: duly.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.store.postgres.inbox._MAILS_A_PAGE", 4)
    q.publish("jobs", [duly.Message(b"x", id=f"m{number}") for number in range(15)])
    held = q.claim("jobs")
    open_one, connection = app.connect(autocommit=False), app.connect()
    q.ack([held[0]], tx=open_one)
    for at in range(1, 15):
        with connection.transaction():
            q.ack([held[at]], tx=connection)
            q.publish("jobs", duly.Message(b"new", id=f"n{at}"), tx=connection)
    assert len([one for one in q.browse("jobs") if one.state == "ready"]) == 14
    assert mail(app) == 14
    open_one.rollback()
    assert {one.id for one in q.browse("jobs") if one.state == "leased"} == {"m0"}
    assert mail(app) == 0


def test_a_slow_transaction_is_not_skipped(app: Application, q: duly.Client) -> None:
    """Its number is smaller than those that were taken in, for long, before it committed."""
    slow = app.connect(autocommit=False)
    q.publish("jobs", duly.Message(b"slow", id="slow"), tx=slow)
    slow.execute(f"SELECT {app.schema}.publish('jobs', 'slow sql', id => 'slow sql')".encode())
    quick = app.connect()
    rival = app.elsewhere("w2")
    for number in range(scaled(30, 300)):
        leave(q, quick, "jobs", duly.Message(b"quick", id=f"{number}"))
        assert [one.id for one in (rival if number % 2 else q).claim("jobs")] == [f"{number}"]
    slow.commit()
    assert sorted(one.id for one in q.claim("jobs")) == ["slow", "slow sql"]


# Times


def test_a_delay_counts_from_the_call(app: Application, q: duly.Client) -> None:
    """Nobody may come by for long."""
    q.publish("jobs", [duly.Message(b"x", id="nacked"), duly.Message(b"x", id="moved", due=3600)])
    held = q.claim("jobs")
    connection = app.connect()
    with connection.transaction():
        q.nack(held, delay=1, tx=connection)
        q.move("jobs", "moved", due=1, tx=connection)
        q.publish("jobs", duly.Message(b"x", id="published", due=1), tx=connection)
    began = time.monotonic()
    time.sleep(0.8)
    got: set[str] = set()
    while len(got) < 3:
        got |= {one.id for one in q.claim("jobs", wait=2)}
        assert time.monotonic() - began < 1.7
    assert time.monotonic() - began > 0.95


# Waking


def waiting_s(q: duly.Client, act: Callable[[], None]) -> float:
    """How long a waiting claim takes to hear of what is done meanwhile."""
    got: list[float] = []

    def wait() -> None:
        assert len(q.claim("jobs", wait=20)) == 1
        got.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    act()
    began = time.monotonic()
    thread.join()
    return got[0] - began


@pytest.mark.parametrize("how", ["psycopg", "sql"])
def test_a_waiting_claim_hears_of_it(app: Application, q: duly.Client, how: str) -> None:
    connection = app.connect()

    def act() -> None:
        leave(q, connection, "jobs", duly.Message(b"x")) if how == "psycopg" else sql_publish(app)

    took = sorted(waiting_s(q, act) for _ in range(scaled(3, 20)))
    print(f"heard after {[round(seconds * 1000) for seconds in took]} ms")
    assert took[len(took) // 2] < 0.25
    assert took[-1] < 2


def test_a_claim_in_another_process_hears_of_it(app: Application, q: duly.Client) -> None:
    assert waiting_s(app.elsewhere("w2"), lambda: sql_publish(app)) < 1


def test_nobody_asks_while_nobody_waits(app: Application, q: duly.Client) -> None:
    watch = store_of(q)._mail_watch
    q.publish("jobs", b"x")
    q.ack(q.claim("jobs"))
    time.sleep(0.2)
    assert watch.looks == 0
    q.claim("jobs", wait=0.3)
    # Every 25 ms; and once more, at most, when the last one has gone.
    assert 3 <= watch.looks <= 40
    time.sleep(0.1)
    looks = watch.looks
    sql_publish(app)
    time.sleep(0.3)
    assert watch.looks == looks


def test_mail_that_has_to_wait_does_not_wake_all_the_time(app: Application, q: duly.Client) -> None:
    q.create_topic("log", kind="log")
    q.create_group("log", "g")
    q.publish("log", [b"a", b"b"])
    held = q.claim("log", group="g")
    first, second = app.connect(autocommit=False), app.connect(autocommit=False)
    q.ack([held[0]], tx=first)
    q.ack([held[1]], tx=second)
    second.commit()
    bell = store_of(q)._bell
    rings = 0
    ring = bell.ring_here

    def counted(partitions: Any) -> None:
        nonlocal rings
        rings += 1
        ring(partitions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bell, "ring_here", counted)
        assert not q.claim("log", group="g", wait=1)
    assert 1 <= rings <= 20
    first.commit()
    assert q.describe_group("log", "g").leased == 0


# Refused, and gone


def test_what_new_settings_refuse_is_kept_and_told(app: Application, q: duly.Client, events: list[duly.Event]) -> None:
    connection = app.connect(autocommit=False)
    q.publish("jobs", [duly.Message(b"x" * 100, id="long"), duly.Message(b"x")], tx=connection)
    connection.execute(f"SELECT {app.schema}.publish('jobs', 'x', priority => 5)".encode())
    q.publish("jobs", duly.Message(b"fits", id="fits"), tx=connection)
    q.update_topic("jobs", payload_bytes_max=10)
    app.ask("UPDATE duly.topic SET settings = jsonb_set(settings::JSONB, '{lanes,max_in_flight}', '1')::TEXT")
    app.ask("UPDATE duly.meta SET value = (value::BIGINT + 1)::TEXT WHERE key = 'definitions'")
    connection.commit()
    assert [one.id for one in q.browse("jobs")] == ["fits"]
    assert [kind for kind, _ in refused(app)] == ["publish", "sql"]
    assert "takes 10" in refused(app)[0][1]
    assert [event.kind for event in events].count("mail_refused") == 2
    assert app.ask("SELECT payload FROM duly.refused WHERE kind = 'sql'") == [(b"x",)]
    assert mail(app) == 0


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        *(("publish", b"nonsense"), ("sql", b"nonsense"), ("settle", b"nonsense"), ("move", b"nonsense")),
        *(("cancel", b""), ("unheard of", b""), ("publish", msgspec.msgpack.encode(("id", None, b"no block")))),
        *(("sql", b'{"id": "a", "publish_id": "b", "priority": 70000}'), ("sql", b'{"id": "a"}')),
        *(("settle", msgspec.msgpack.encode((1, {}))), ("sql", b'{"id": "a", "publish_id": "b", "due_at": -5}')),
    ],
)
def test_mail_that_makes_no_sense_is_kept_and_holds_up_nothing(
    app: Application, q: duly.Client, events: list[duly.Event], kind: str, data: bytes
) -> None:
    app.ask("INSERT INTO duly.inbox (topic, kind, data, payload) SELECT id, %s, %s, 'p' FROM duly.topic", kind, data)
    sql_publish(app)
    assert q.claim("jobs").payloads == [b"sql"]
    assert [one for one, _ in refused(app)] == [kind]
    assert [event.kind for event in events].count("mail_refused") == 1
    assert mail(app) == 0


def test_a_verdict_that_came_too_late_is_told(app: Application, q: duly.Client, events: list[duly.Event]) -> None:
    """Twice in two transactions: nobody can know, before both have ended."""
    q.publish("jobs", b"x")
    (held,) = q.claim("jobs")
    first, second = app.connect(autocommit=False), app.connect(autocommit=False)
    q.ack([held], tx=first)
    q.ack([held], tx=second)
    first.commit()
    second.commit()
    assert not q.browse("jobs")
    assert [event.kind for event in events].count("verdict_too_late") == 1


def test_the_mail_of_a_deleted_topic_is_erased(app: Application, q: duly.Client) -> None:
    connection = app.connect(autocommit=False)
    for topic in ("other", "more"):
        q.create_topic(topic, kind="queue")
    sql_publish(app, "other")
    q.publish("other", b"late", tx=connection)
    q.delete_topic("other", force=True)
    assert mail(app) == 0
    connection.commit()
    # It came after its topic was gone: the next that goes takes it along.
    assert mail(app) == 1
    sql_publish(app)
    q.create_topic("other", kind="queue")
    assert not q.claim("other")
    q.delete_topic("more")
    assert mail(app) == 1
    assert q.claim("jobs").payloads == [b"sql"]
    assert not refused(app)


def test_a_topic_that_is_paused_takes_mail_in_and_delivers_nothing(app: Application, q: duly.Client) -> None:
    q.pause("jobs")
    leave(q, app.connect(), "jobs", duly.Message(b"x", id="one"))
    sql_publish(app)
    assert not q.claim("jobs")
    assert len(q.browse("jobs")) == 2
    q.resume("jobs")
    assert len(q.claim("jobs")) == 2


# A server that comes up anew


@pytest.fixture
def forgetful(postgres_server: Callable[..., PostgresServer]) -> PostgresServer:
    """A server that loses what nobody waited for when it is killed."""
    return postgres_server(16, wal_writer_delay="10s", autovacuum="off")


def test_mail_is_found_on_a_server_that_counts_its_transactions_anew(forgetful: PostgresServer) -> None:
    """Numbers of transactions come again that were looked at before, and looked beyond."""
    with duly.connect(f"{forgetful.dsn()}?schema=duly", consumer="w1") as q:
        q.create_topic("jobs", kind="queue")
        q.create_topic("other", kind="queue")
        # Should the server happen to write its log just before it is killed, it remembers.
        while not forgets_its_numbers(forgetful, q):
            pass
        with psycopg.connect(forgetful.dsn(), autocommit=True) as again:
            again.execute("SELECT duly.publish('jobs', 'after')")
        q.publish("other", b"x")
        assert q.claim("jobs").payloads == [b"after"]


def forgets_its_numbers(forgetful: PostgresServer, q: duly.Client) -> bool:
    """Kills the server when it has looked beyond numbers that are not on the disk. Whether they come again."""
    with psycopg.connect(forgetful.dsn(), autocommit=True, options="-c synchronous_commit=off") as connection:
        for _ in range(4):
            for _ in range(300):
                connection.execute("SELECT pg_current_xact_id()")
            before = number_of(connection)
        # Mail alone moves it on; its taking in is the last that is on the disk.
        seat = next(seat for seat in store_of(q)._writer._seats.values() if seat.name == "jobs")
        q.claim("jobs")
        assert seat.memory_at
        seat.mail_floor = before
        forgetful.kill()
        forgetful.start()
    with psycopg.connect(forgetful.dsn(), autocommit=True) as again:
        return number_of(again) < before


def number_of(connection: Connection) -> int:
    row = connection.execute("SELECT pg_current_xact_id()::TEXT").fetchone()
    assert row is not None
    return int(row[0])


def test_what_a_killed_server_forgot_of_a_claim_is_not_remembered(forgetful: PostgresServer) -> None:
    """Claims do not wait for the disk. On one topic nobody notices that the server was away, another one's call did."""
    with duly.connect(f"{forgetful.dsn()}?schema=duly", consumer="w1") as q:
        q.create_topic("other", kind="queue")
        q.create_topic("jobs", kind="queue", lease=3600)
        q.publish("jobs", [b"%d" % number for number in range(40)])
        held = [q.claim("jobs", max_messages=1) for _ in range(20)]
        forgetful.kill()
        forgetful.start()
        q.publish("other", b"x")
        rest: list[bytes] = []
        while batch := q.claim("jobs", max_messages=7):
            rest += batch.payloads
        kept = [batch.payloads[0] for batch in held if q.ack(batch).done]
        print(f"{20 - len(kept)} of 20 claims were forgotten")
        assert len(kept) < 20
        assert sorted([*kept, *rest]) == sorted(b"%d" % number for number in range(40))
