"""duly.publish() in plain SQL: part of the transaction that calls it, for whoever may call it, whatever its tables."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import duly
from duly.clock import from_ms
from tests.conftest import scaled

from .conftest import Application, Connection


def publish(app: Application, connection: Connection, topic: str = "jobs", **values: Any) -> str:
    """Calls it with the arguments by name."""
    given = {"topic": topic, "payload": b"x", **values}
    casts = {"headers": "jsonb", "due": "timestamptz", "expires_at": "timestamptz", "ttl": "interval"}
    names = ", ".join(f"{name} => %({name})s{'::' + casts[name] if name in casts else ''}" for name in given)
    row = connection.execute(f"SELECT {app.schema}.publish({names})".encode(), given).fetchone()
    assert row is not None
    return str(row[0])


def refused(app: Application) -> list[tuple[Any, ...]]:
    return app.ask("SELECT kind, why FROM duly.refused ORDER BY id")


def test_every_argument_arrives(app: Application, q: duly.Client) -> None:
    moment = datetime.now(UTC) - timedelta(minutes=1)
    ends = datetime.now(UTC) + timedelta(hours=1)
    given: dict[str, Any] = {
        "payload": b"\x00\xff",
        "key": "k",
        "headers": '{"trace": "1", "Ω": ""}',
        "id": "own",
        "due": moment,
    }
    given |= {"priority": 7, "lane": "acme", "expires_at": ends, "publish_id": "once", "tenant": "default"}
    assert publish(app, app.connect(), **given) == "own"
    (got,) = q.claim("jobs")
    assert (got.payload, got.key, got.headers, got.id) == (b"\x00\xff", "k", {"trace": "1", "Ω": ""}, "own")
    assert (got.priority, got.lane) == (7, "acme")
    assert got.due is not None
    assert abs(got.due - moment) < timedelta(milliseconds=2)
    found = q.get("jobs", "own")
    assert found is not None
    assert found.expires_at_ms is not None
    assert abs(from_ms(found.expires_at_ms) - ends) < timedelta(milliseconds=2)


def test_with_a_payload_alone_it_is_as_any_other(app: Application, q: duly.Client) -> None:
    made = [publish(app, app.connect(), payload=payload) for payload in (b"", b"x")]
    got = q.claim("jobs")
    assert [one.id for one in got] == made
    assert all(one.startswith("@") for one in made)
    assert [(one.payload, one.key, one.headers, one.lane, one.priority, one.due) for one in got] == [
        (payload, None, {}, None, 0, None) for payload in (b"", b"x")
    ]


def test_ttl_counts_from_when_it_is_due(app: Application, q: duly.Client) -> None:
    connection = app.connect()
    publish(app, connection, id="now", ttl="1 minute")
    publish(app, connection, id="later", ttl="1 minute", due=datetime.now(UTC) + timedelta(hours=1))
    publish(app, connection, id="gone", ttl="1 millisecond")
    ends = {one.id: one.expires_at_ms or 0 for one in q.browse("jobs")}
    for name, after in (("now", 60), ("later", 3660)):
        assert abs(from_ms(ends[name]) - datetime.now(UTC) - timedelta(seconds=after)) < timedelta(seconds=10)
    assert [one.id for one in q.claim("jobs")] == ["now"]


def test_a_topics_own_ttl_holds(app: Application, q: duly.Client) -> None:
    q.create_topic("short", kind="queue", ttl=60)
    publish(app, app.connect(), "short")
    (one,) = q.browse("short")
    assert one.expires_at_ms is not None


def test_a_log_takes_partition_and_key(app: Application, q: duly.Client) -> None:
    q.create_topic("log", kind="log", partitions=4)
    connection = app.connect()
    for number in range(4):
        publish(app, connection, "log", partition=number, payload=b"%d" % number)
    publish(app, connection, "log", key="same", payload=b"sql")
    q.publish("log", duly.Message(b"python", key="same"))
    stored = {number: [one.payload for one in q.read("log", partition=number)] for number in range(4)}
    assert [stored[number][0] for number in range(4)] == [b"0", b"1", b"2", b"3"]
    assert [b"sql", b"python"] in [found[1:] for found in stored.values()]


def test_lanes_with_limits_hold(app: Application, q: duly.Client) -> None:
    q.create_topic("lined", kind="queue", lanes=duly.Lanes(max_in_flight=1))
    connection = app.connect()
    for number in range(3):
        for lane in ("a", "b"):
            publish(app, connection, "lined", lane=lane, payload=b"%s%d" % (lane.encode(), number))
    order = []
    while batch := q.claim("lined"):
        assert len(batch) == 2
        order.append(sorted(batch.payloads))
        q.ack(batch)
    assert order == [[b"a0", b"b0"], [b"a1", b"b1"], [b"a2", b"b2"]]


REFUSED: dict[str, dict[str, Any]] = {
    "There is no topic 'none'": {"topic": "none"},
    "There is no topic NULL": {"topic": None},
    "There is no topic '$events'": {"topic": "$events"},
    "There is no topic 'jobs'": {"tenant": "others"},
    "The payload is NULL": {"payload": None},
    "The payload has 11 bytes; topic small takes 10": {"topic": "small", "payload": b"x" * 11},
    "due, priority and lane belong to queues": {"topic": "log", "due": "2026-01-01"},
    "priority and lane belong to queues": {"topic": "log", "priority": 0},
    "lane belong to queues": {"topic": "log", "lane": "l"},
    "partition belongs to logs": {"partition": 0},
    "has 2 partitions, numbered from 0": {"topic": "log", "partition": 2},
    "2 partitions, numbered from 0": {"topic": "log", "partition": -1},
    "A priority is 0 to 65535; got 65536": {"priority": 65536},
    "A priority is 0 to 65535; got -1": {"priority": -1},
    "run in order, one at a time": {"topic": "lined", "priority": 1},
    "ttl or expires_at, not both": {"ttl": "1 hour", "expires_at": "2999-01-01"},
    "A ttl is a millisecond to 3653 days; got 00:00:00": {"ttl": "0"},
    "A ttl is a millisecond to 3653 days; got -": {"ttl": "-1 hour"},
    "A ttl is a millisecond to 3653 days; got 11 years": {"ttl": "11 years"},
    "due is more than 3653 days ahead": {"due": "2999-01-01"},
    "got infinity": {"due": "infinity"},
    "are moments; got infinity": {"expires_at": "-infinity"},
    "does not begin with @, a key": {"id": "@mine"},
    "An id has 1 to 512 bytes": {"id": ""},
    "id has 1 to 512 bytes": {"id": "Ω" * 257},
    "a key 1 to 1024 bytes": {"key": "k" * 1025},
    "key 1 to 1024 bytes": {"key": ""},
    "a lane 1 to 256 characters": {"lane": ""},
    "lane 1 to 256 characters": {"lane": "l" * 257},
    "1 to 256 characters.": {"lane": "a\nb"},
    "A publish_id has 1 to 128": {"publish_id": ""},
    "publish_id has 1 to 128": {"publish_id": "p" * 129},
    "and does not begin with ~": {"publish_id": "~mine"},
    "printable characters": {"publish_id": "a\tb"},
    "headers is a JSON object of strings": {"headers": "[]"},
    "is a JSON object of strings": {"headers": '{"a": 1}'},
    "a JSON object of strings": {"headers": '{"a": null}'},
    "JSON object of strings": {"headers": '"text"'},
    "at most 64 headers": {"headers": json.dumps(dict.fromkeys(map(str, range(65)), ""))},
    "of 16384 bytes together": {"headers": json.dumps({"h": "Ω" * 8192})},
}


def test_what_cannot_be_taken_in_is_refused_at_once(app: Application, q: duly.Client) -> None:
    q.create_topic("small", kind="queue", payload_bytes_max=10)
    q.create_topic("log", kind="log", partitions=2)
    q.create_topic("lined", kind="queue", lanes=duly.Lanes(max_in_flight=1))
    connection = app.connect()
    for why, values in REFUSED.items():
        with pytest.raises(psycopg.DatabaseError, match=re.escape(why)):
            publish(app, connection, **values)
    with pytest.raises(psycopg.errors.UndefinedObject):
        publish(app, connection, "none")
    assert app.ask("SELECT count(*) FROM duly.inbox") == [(0,)]


def test_what_is_at_its_limits_is_taken_in(app: Application, q: duly.Client) -> None:
    q.create_topic("log", kind="log", partitions=2)
    connection = app.connect()
    publish(app, connection, id="Ω" * 256, key="k" * 1024, lane="Ω" * 256, publish_id="Ω" * 128, priority=65535)
    publish(app, connection, headers=json.dumps(dict.fromkeys(map(str, range(64)), "")), ttl="3653 days")
    publish(app, connection, headers=json.dumps({"h": "x" * 16383, "": ""}))
    publish(app, connection, due="0044-03-15 BC", expires_at="294276-01-01")
    publish(app, connection, due=datetime.now(UTC) + timedelta(days=3652))
    publish(app, connection, expires_at="0044-03-15 BC")
    publish(app, connection, "log", partition=1, key="k")
    assert len(q.claim("jobs")) == 4
    assert len(q.read("log", partition=1)) == 1
    assert not refused(app)


def test_a_publish_id_is_stored_once(app: Application, q: duly.Client) -> None:
    connection = app.connect()
    for _ in range(3):
        publish(app, connection, publish_id="once")
    q.publish("jobs", b"x", publish_id="once")
    publish(app, connection, publish_id="once")
    assert len(q.browse("jobs")) == 1
    assert not refused(app)


# In triggers

TRIGGER = """
CREATE FUNCTION {own}.tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.publish('jobs', convert_to(NEW.id, 'UTF8'), id => NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER tell AFTER INSERT ON {own}.orders FOR EACH ROW EXECUTE FUNCTION {own}.tell();
"""


@pytest.fixture
def telling(app: Application) -> Connection:
    """A connection on whose table every new order is published."""
    connection = app.connect()
    connection.execute(TRIGGER.format(own=app.own, schema=app.schema).encode())
    return connection


def test_a_trigger_publishes_with_its_row(app: Application, q: duly.Client, telling: Connection) -> None:
    telling.execute("INSERT INTO orders VALUES ('one')")
    with pytest.raises(psycopg.errors.UniqueViolation):
        telling.execute("INSERT INTO orders VALUES ('two'), ('one')")
    with telling.transaction(force_rollback=True):
        telling.execute("INSERT INTO orders VALUES ('three')")
    assert app.orders() == ["one"]
    assert q.claim("jobs").payloads == [b"one"]


def test_a_thousand_rows_publish_a_thousand_messages(app: Application, q: duly.Client, telling: Connection) -> None:
    telling.execute("INSERT INTO orders SELECT to_char(n, 'FM0000') FROM generate_series(1, 1000) AS n")
    got = q.claim("jobs", max_messages=2000)
    assert [payload.decode() for payload in got.payloads] == app.orders()
    assert len(got) == 1000
    assert app.ask("SELECT count(*) FROM duly.inbox") == [(0,)]


def test_many_at_once(app: Application, q: duly.Client, telling: Connection) -> None:
    count, threads = scaled(25, 250), 8

    def insert(name: str) -> None:
        connection = app.connect()
        for number in range(count):
            with connection.transaction(force_rollback=number % 5 == 4):
                connection.execute("INSERT INTO orders VALUES (%s)", (f"{name}-{number}",))

    workers = [threading.Thread(target=insert, args=(f"t{number}",)) for number in range(threads)]
    got: list[str] = []
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) or len(got) < threads * count * 4 // 5:
        batch = q.claim("jobs", wait=1)
        got += [payload.decode() for payload in batch.payloads]
        q.ack(batch)
    assert sorted(got) == app.orders()


# Who may call it, and what it sees


@contextmanager
def role(app: Application, *grants: str) -> Iterator[Connection]:
    """A connection of somebody with these rights and no others."""
    name = f"somebody_{app.schema}"
    connection = app.connect()
    connection.execute(f"CREATE ROLE {name}".encode())
    try:
        for grant in grants:
            connection.execute(f"GRANT {grant} TO {name}".replace("duly", app.schema).encode())
        connection.execute(f"GRANT USAGE, CREATE ON SCHEMA {app.own} TO {name}".encode())
        connection.execute(f"SET ROLE {name}".encode())
        yield connection
    finally:
        connection.rollback()
        connection.autocommit = True
        connection.execute("RESET ROLE")
        connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


CALLER = ("USAGE ON SCHEMA duly", "EXECUTE ON FUNCTION duly.publish")


def test_a_role_needs_no_right_but_to_call_it(app: Application, q: duly.Client) -> None:
    with role(app, *CALLER) as somebody:
        publish(app, somebody, payload=b"mine")
        for forbidden in (
            "SELECT FROM duly.inbox",
            "DELETE FROM duly.topic",
            "INSERT INTO duly.meta VALUES ('a', 'b')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                somebody.execute(forbidden.replace("duly", app.schema).encode())
    assert q.claim("jobs").payloads == [b"mine"]


def test_a_connection_needs_some_rights_to_be_given_as_tx(app: Application, q: duly.Client) -> None:
    """As docs/postgres.md has them."""
    q.publish("jobs", [duly.Message(b"x", id=name) for name in "abc"])
    held = q.claim("jobs", max_messages=1)
    grants = ("SELECT ON ALL TABLES IN SCHEMA duly", "INSERT ON duly.inbox", "UPDATE ON duly.lease")
    with role(app, CALLER[0], *grants) as somebody, somebody.transaction():
        q.publish("jobs", b"mine", tx=somebody)
        q.ack(held, tx=somebody)
        q.move("jobs", "b", due=60, tx=somebody)
        q.cancel("jobs", "c", tx=somebody)
    assert q.claim("jobs").payloads == [b"mine"]
    assert [one.id for one in q.browse("jobs", state="waiting")] == ["b"]
    q.publish("jobs", b"more")
    held = q.claim("jobs")
    with role(app, CALLER[0], *grants[:2]) as somebody:
        somebody.autocommit = False
        q.publish("jobs", b"mine", tx=somebody)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            q.ack(held, tx=somebody)


@pytest.mark.parametrize("grants", [(), CALLER[:1]], ids=["nothing", "usage"])
def test_nobody_else_may_call_it(app: Application, q: duly.Client, grants: tuple[str, ...]) -> None:
    with role(app, *grants) as somebody, pytest.raises(psycopg.errors.InsufficientPrivilege):
        publish(app, somebody)
    assert not q.claim("jobs")


EVIL = """
CREATE FUNCTION {where}.steal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN EXECUTE 'UPDATE {schema}.meta SET value = value'; RETURN NEW; END $$;
CREATE TABLE {where}.inbox (LIKE {schema}.inbox INCLUDING ALL);
CREATE TRIGGER steal BEFORE INSERT ON {where}.inbox FOR EACH ROW EXECUTE FUNCTION {where}.steal();
CREATE TABLE {where}.topic AS SELECT * FROM {schema}.topic;
CREATE TABLE {where}.part AS SELECT * FROM {schema}.part;
CREATE TABLE {where}.tenant AS SELECT * FROM {schema}.tenant;
CREATE FUNCTION {where}.octet_length(bytea) RETURNS int LANGUAGE sql AS 'SELECT 1 / 0';
CREATE FUNCTION {where}.never(text, text) RETURNS bool LANGUAGE sql AS 'SELECT false';
CREATE OPERATOR {where}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = {where}.never);
"""


@pytest.mark.parametrize("where", ["pg_temp", "own"])
def test_what_the_caller_has_of_the_same_name_is_not_used(app: Application, q: duly.Client, where: str) -> None:
    """Not its temporary tables, which PostgreSQL looks for first unless told otherwise, nor those on its path."""
    tables = "SELECT ON duly.inbox, duly.topic, duly.part, duly.tenant"
    with role(app, *CALLER, tables) as somebody:
        place = app.own if where == "own" else where
        made = EVIL.format(where=place, schema=app.schema)
        somebody.execute(made.encode())
        somebody.execute(f"SET search_path = {place}, pg_catalog, {app.schema}".encode())
        publish(app, somebody, payload=b"mine")
        assert somebody.execute(f"SELECT count(*) FROM {place}.inbox".encode()).fetchone() == (0,)
    assert q.claim("jobs").payloads == [b"mine"]


def test_its_search_path_is_dulys_schema_and_temporary_tables_come_last(app: Application, q: duly.Client) -> None:
    asked = "SELECT proconfig, prosecdef FROM pg_proc WHERE proname = 'publish' AND pronamespace = %s::regnamespace"
    assert app.ask(asked, app.schema) == [([f"search_path={app.schema}, pg_temp"], True)]


def test_it_works_whatever_the_session_is_set_to(app: Application, q: duly.Client) -> None:
    with ExitStack() as stack:
        connection = app.connect()
        stack.callback(connection.close)
        connection.execute("SET search_path = ''; SET timezone = 'Asia/Kathmandu'; SET datestyle = 'German'")
        connection.execute("SET intervalstyle = 'iso_8601'; SET bytea_output = 'escape'; SET extra_float_digits = -15")
        connection.execute("SET standard_conforming_strings = off; SET client_encoding = 'LATIN1'")
        publish(app, connection, id="é", due=datetime.now(UTC) - timedelta(seconds=5), ttl="1 hour")
        publish(app, connection, payload=b"not yet", due=datetime.now(UTC) + timedelta(minutes=5))
    (got,) = q.claim("jobs")
    assert got.id == "é"
