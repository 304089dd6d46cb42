"""What cannot join the application's transaction is refused before anything is written, and that goes on."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import apsw
import psycopg
import pytest

import duly
import duly.aio
from duly.limits import LIMITS

from .conftest import Application
from .test_libraries import django_connection, engine_of, text


def mail(app: Application) -> int:
    ((count,),) = app.ask("SELECT count(*) FROM duly.inbox")
    return int(count)


def test_a_connection_without_a_transaction(app: Application, q: duly.Client) -> None:
    connection = app.connect()
    with pytest.raises(duly.InvalidArgument, match="no transaction open"):
        q.publish("jobs", b"x", tx=connection)
    with connection.pipeline(), pytest.raises(duly.InvalidArgument, match="no transaction open"):
        q.publish("jobs", b"x", tx=connection)
    with (
        engine_of(app, isolation_level="AUTOCOMMIT") as engine,
        engine.connect() as other,
        pytest.raises(duly.InvalidArgument, match="no transaction open"),
    ):
        q.publish("jobs", b"x", tx=other)
    with closing(django_connection(app)) as third, pytest.raises(duly.InvalidArgument, match=r"transaction\.atomic"):
        q.publish("jobs", b"x", tx=third)
    assert not q.claim("jobs")


def test_a_closed_connection(app: Application, q: duly.Client) -> None:
    connection = app.connect()
    connection.close()
    with pytest.raises(duly.InvalidArgument, match="is closed"):
        q.publish("jobs", b"x", tx=connection)
    with engine_of(app) as engine:
        other = engine.connect()
        other.close()
        with pytest.raises(duly.InvalidArgument, match="is closed"):
            q.publish("jobs", b"x", tx=other)


def test_a_transaction_that_has_failed(app: Application, q: duly.Client) -> None:
    connection = app.connect(autocommit=False)
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")
    with pytest.raises(duly.InvalidArgument, match="has failed: roll it back"):
        q.publish("jobs", b"x", tx=connection)
    connection.rollback()
    q.publish("jobs", b"x", tx=connection)
    connection.commit()
    assert len(q.claim("jobs")) == 1


def test_a_transaction_of_sqlalchemy_that_has_failed(app: Application, q: duly.Client) -> None:
    from sqlalchemy.exc import DataError
    from sqlalchemy.orm import Session

    with engine_of(app) as engine, Session(engine) as session:
        with pytest.raises(DataError):
            session.execute(text("SELECT 1 / 0"))
        with pytest.raises(duly.InvalidArgument, match="has failed"):
            q.publish("jobs", b"x", tx=session)
        session.rollback()
        q.publish("jobs", b"x", tx=session)
        session.commit()
    assert len(q.claim("jobs")) == 1


def test_a_transaction_of_django_that_has_failed(app: Application, q: duly.Client) -> None:
    connection = django_connection(app)
    from django.db import DataError, transaction

    with closing(connection), transaction.atomic():
        with pytest.raises(DataError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        q.publish("jobs", b"x", tx=connection)
        transaction.set_rollback(True)
        with pytest.raises(duly.InvalidArgument, match="has failed"):
            q.publish("jobs", b"x", tx=connection)
    assert not q.claim("jobs")


def test_another_database(app: Application, q: duly.Client, fresh_store_url: Callable[[], str]) -> None:
    """Neither one without Duly, nor one with another store of Duly's under the same name; its transaction goes on."""
    app.ask("DROP DATABASE IF EXISTS duly_other")
    app.ask("CREATE DATABASE duly_other")
    dsn = app.dsn.rpartition("/")[0] + "/duly_other"
    try:
        with psycopg.connect(dsn) as connection:
            with pytest.raises(duly.InvalidArgument, match="another database"):
                q.publish("jobs", b"x", tx=connection)
            connection.execute("CREATE TABLE goes_on (id INT)")
        duly.connect(f"{dsn}?schema={app.schema}").close()
        with psycopg.connect(dsn) as connection:
            with pytest.raises(duly.InvalidArgument, match="another database"):
                q.publish("jobs", b"x", tx=connection)
            connection.execute("INSERT INTO goes_on VALUES (1)")
    finally:
        app.ask("DROP DATABASE duly_other WITH (FORCE)")


def test_what_is_no_connection_to_postgresql(app: Application, q: duly.Client) -> None:
    with closing(sqlite3.connect(":memory:")) as lite, closing(apsw.Connection(":memory:")) as other:
        for tx in (lite, other, object(), "tx", 1, True, psycopg, psycopg.Connection, app.dsn):
            with pytest.raises(duly.InvalidArgument, match="tx must be your open transaction"):
                q.publish("jobs", b"x", tx=tx)
    from sqlalchemy import create_engine

    engine = create_engine("sqlite://")
    with engine.begin() as connection, pytest.raises(duly.InvalidArgument, match="on sqlite; this store is on"):
        q.publish("jobs", b"x", tx=connection)
    engine.dispose()
    django_connection(app).close()
    from django.db import connections, transaction

    with transaction.atomic("other"), pytest.raises(duly.InvalidArgument, match="on sqlite; this store is on"):
        q.publish("jobs", b"x", tx=connections["other"])
    connections["other"].close()


def test_an_asyncio_connection_without_asyncio(app: Application, q: duly.Client) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(app.dsn) as connection:
            with pytest.raises(duly.InvalidArgument, match=r"use it with duly\.aio"):
                q.publish("jobs", b"x", tx=connection)

    asyncio.run(main())


def test_a_file_takes_no_postgresql_transaction(app: Application, path: str) -> None:
    with duly.connect(path) as lite:
        lite.create_topic("jobs", kind="queue")
        connection = app.connect()
        with connection.transaction(), pytest.raises(duly.InvalidArgument):
            lite.publish("jobs", b"x", tx=connection)


def test_there_is_no_transaction_of_dulys_own(q: duly.Client) -> None:
    with pytest.raises(duly.InvalidArgument, match="the transaction is your own"):
        q.transaction().__enter__()


Ask = Callable[[duly.Client, Any], Any]
REFUSED: dict[str, tuple[type[Exception], Ask]] = {
    "unknown topic": (duly.TopicNotFound, lambda q, tx: q.publish("none", b"x", tx=tx)),
    "unknown topic, moved": (duly.TopicNotFound, lambda q, tx: q.move("none", "x", due=1, tx=tx)),
    "another tenant's": (duly.TopicNotFound, lambda q, tx: q.publish("theirs", b"x", tx=tx)),
    "of Duly's own": (duly.Error, lambda q, tx: q.publish("$events", b"x", tx=tx)),
    "text": (duly.InvalidArgument, lambda q, tx: q.publish("jobs", "x", tx=tx)),
    "nothing": (duly.InvalidArgument, lambda q, tx: q.publish("jobs", [], tx=tx)),
    "too big": (duly.LimitExceeded, lambda q, tx: q.publish("small", b"x" * 11, tx=tx)),
    "one too big": (duly.LimitExceeded, lambda q, tx: q.publish("small", [b"x", b"x" * 11], tx=tx)),
    "due on a log": (duly.InvalidArgument, lambda q, tx: q.publish("log", duly.Message(b"x", due=1), tx=tx)),
    "lane on a log": (duly.InvalidArgument, lambda q, tx: q.publish("log", duly.Message(b"x", lane="l"), tx=tx)),
    "partition on a queue": (
        duly.InvalidArgument,
        lambda q, tx: q.publish("jobs", duly.Message(b"x", partition=0), tx=tx),
    ),
    "no such partition": (duly.InvalidArgument, lambda q, tx: q.publish("log", duly.Message(b"x", partition=2), tx=tx)),
    "priority in order": (
        duly.InvalidArgument,
        lambda q, tx: q.publish("lined", duly.Message(b"x", priority=1), tx=tx),
    ),
    "too far ahead": (
        duly.LimitExceeded,
        lambda q, tx: q.publish("jobs", duly.Message(b"x", due=datetime(2999, 1, 1, tzinfo=UTC)), tx=tx),
    ),
    "half a character": (duly.Error, lambda q, tx: q.publish("jobs", duly.Message(b"x", id="\ud800"), tx=tx)),
    "long id": (duly.Error, lambda q, tx: q.publish("jobs", duly.Message(b"x", id="i" * 513), tx=tx)),
    "made id": (duly.Error, lambda q, tx: q.publish("jobs", duly.Message(b"x", id="@1"), tx=tx)),
    "bad publish id": (duly.InvalidArgument, lambda q, tx: q.publish("jobs", b"x", publish_id="", tx=tx)),
    "move in a log": (duly.InvalidArgument, lambda q, tx: q.move("log", "x", due=1, tx=tx)),
    "a consumer's": (duly.InvalidArgument, lambda q, tx: q.release(consumer="w1", tx=tx)),
    "no delivery": (duly.InvalidArgument, lambda q, tx: q.ack([tx], tx=tx)),
}


def test_wrong_arguments_leave_the_transaction_usable(app: Application, q: duly.Client) -> None:
    q.create_topic("small", kind="queue", payload_bytes_max=10)
    q.create_topic("log", kind="log", partitions=2)
    q.create_topic("lined", kind="queue", lanes=duly.Lanes(max_in_flight=1))
    app.client(tenant="others").create_topic("theirs", kind="queue")
    connection = app.connect()
    with connection.transaction():
        for kind, ask in REFUSED.values():
            with pytest.raises(kind):
                ask(q, connection)
        connection.execute("INSERT INTO orders VALUES ('goes on')")
        q.publish("small", b"x" * 10, tx=connection)
    assert app.orders() == ["goes on"]
    assert mail(app) == 1
    assert q.claim("small").payloads == [b"x" * 10]


def test_what_is_unusual_and_allowed(app: Application, q: duly.Client) -> None:
    q.create_topic("log", kind="log", partitions=3)
    q.create_group("log", "g", start="earliest")
    strange = "Ω % :name %(x)s '\"; \\ \x00 ☃ 100%"
    messages = [
        duly.Message(b"", id=strange, key=strange, headers={strange: strange, "": ""}),
        duly.Message(b"\x00" * 1000, id="i" * LIMITS.id_bytes_max),
    ]
    connection = app.connect()
    with connection.transaction():
        receipt = q.publish("log", messages, publish_id="% :x %s", tx=connection)
        more = q.publish("log", [duly.Message(b"%d" % n, partition=n % 3) for n in range(2000)], tx=connection)
    assert receipt.ids == [one.id for one in messages]
    stored = {one.id: one for number in range(3) for one in q.read("log", partition=number, max_messages=5000)}
    assert (stored[strange].payload, stored[strange].key) == (b"", strange)
    assert stored[strange].headers == {strange: strange, "": ""}
    assert stored["i" * LIMITS.id_bytes_max].payload == b"\x00" * 1000
    assert [stored[name].payload for name in more.ids] == [b"%d" % n for n in range(2000)]
    assert [stored[name].partition for name in more.ids] == [n % 3 for n in range(2000)]


def test_made_ids_are_ids(app: Application, q: duly.Client) -> None:
    """What publish answers is what the message is called: by get, move, cancel and its delivery."""
    connection = app.connect()
    with connection.transaction():
        first, second, third = q.publish("jobs", [b"a", b"b", b"c"], tx=connection).ids
    assert first.startswith("@")
    found = q.get("jobs", first)
    assert found is not None
    assert found.payload == b"a"
    assert q.cancel("jobs", second) == {second: "cancelled"}
    assert q.move("jobs", third, due=60) == {third: "moved"}
    assert [delivery.id for delivery in q.claim("jobs")] == [first]


def test_a_publish_id_is_stored_once(app: Application, q: duly.Client) -> None:
    connection = app.connect()
    for _ in range(2):
        with connection.transaction():
            q.publish("jobs", b"x", publish_id="once", tx=connection)
            # Not known yet: it is left out when it is taken in.
            q.publish("jobs", b"x", publish_id="once", tx=connection)
    q.publish("jobs", b"x", publish_id="once")
    with connection.transaction():
        again = q.publish("jobs", b"x", publish_id="once", tx=connection)
    assert again.duplicate
    assert len(q.claim("jobs")) == 1


def test_an_id_in_use_is_left_out(app: Application, q: duly.Client) -> None:
    q.publish("jobs", duly.Message(b"first", id="one"))
    connection = app.connect()
    with connection.transaction():
        q.publish("jobs", [duly.Message(b"second", id="one"), duly.Message(b"other", id="two")], tx=connection)
    assert {d.id: d.payload for d in q.claim("jobs")} == {"one": b"first", "two": b"other"}


def test_a_message_is_replaced_in_one_transaction(app: Application, q: duly.Client) -> None:
    """What one transaction asks is done in its order."""
    q.publish("jobs", duly.Message(b"old", id="one"))
    connection = app.connect()
    with connection.transaction():
        assert q.cancel("jobs", "one", tx=connection) == {"one": "cancelled"}
        q.publish("jobs", duly.Message(b"new", id="one"), tx=connection)
    assert q.claim("jobs").payloads == [b"new"]


def test_leases_of_another_store_and_lost_ones_are_lost(
    app: Application, q: duly.Client, fresh_store_url: Callable[[], str]
) -> None:
    connection = app.connect()
    with duly.connect(fresh_store_url()) as other:
        other.create_topic("jobs", kind="queue")
        other.publish("jobs", b"x")
        strange = other.claim("jobs")
        strange[0]._batch.client = q
        with connection.transaction():
            assert q.ack(strange, tx=connection).done == 0
    q.publish("jobs", [b"a", b"b"])
    held = q.claim("jobs")
    q.ack([held[0]])
    with connection.transaction():
        assert q.ack([held[1]], tx=connection).done == 1
        held[0]._settled = False
        with pytest.raises(duly.LeaseLost):
            held[0].ack(tx=connection)
    assert not q.browse("jobs")
    assert mail(app) == 0


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_what_was_claimed_after_the_transactions_sight_is_not_called_lost(
    app: Application, q: duly.Client, level: psycopg.IsolationLevel
) -> None:
    q.publish("jobs", [b"a", b"b"])
    before = q.claim("jobs", max_messages=1)
    connection = app.connect()
    connection.isolation_level = level
    with connection.transaction():
        connection.execute("SELECT count(*) FROM orders")
        held = q.claim("jobs")
        with pytest.raises(duly.InvalidArgument, match="Claim before the transaction begins"):
            q.ack(held, tx=connection)
        assert q.ack(before, tx=connection).done == 1
    assert q.ack(held).done == 1
    assert not q.browse("jobs")


def test_transactions_that_are_serializable_do_not_fail_for_each_other(app: Application, q: duly.Client) -> None:
    q.publish("jobs", [b"x"] * 20)
    held = q.claim("jobs")
    connections = [app.connect() for _ in range(5)]
    for connection in connections:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        connection.autocommit = False
    for at, connection in enumerate(connections):
        q.publish("jobs", b"new", publish_id=f"p{at}", tx=connection)
        q.ack(held[at * 4 : at * 4 + 4], tx=connection)
        connection.execute("INSERT INTO orders VALUES (%s)", (f"{at}",))
    for connection in connections:
        connection.commit()
    assert len(app.orders()) == 5
    assert [one.state for one in q.browse("jobs")] == ["ready"] * 5


def test_a_transaction_that_only_reads_says_so(app: Application, q: duly.Client) -> None:
    connection = app.connect()
    connection.read_only = True
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), connection.transaction():
        q.publish("jobs", b"x", tx=connection)
