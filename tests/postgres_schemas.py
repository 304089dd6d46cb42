"""Schemas for tests to put a PostgreSQL store in, each as if nobody had used it.

    DULY_TEST_POSTGRES=18         the version to start, 16 unless said. Of "16,18" the first; some tests take them all
    DULY_TEST_DSN=postgresql://…  start none, use this one. Its user may create databases, and should be a superuser

A test process has one server, started when the first schema is asked for, and a database of its own on it.

To make a store's tables and to drop them takes longer than most tests of the conformance suite. So a schema that a test
gives back is made as it was born, and given to the next: what it held on the day it was made is remembered, its tables
are emptied and those rows written back. This takes a few milliseconds, and knows nothing of the store but that opening
it makes its tables (`prepare`) and that no two stores are the same (`_renew`). Whenever a schema cannot be trusted with
that, because a client is still there or its tables changed, it is dropped and a new one is made.
"""

from __future__ import annotations

import atexit
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

import duly
from tests.postgres_server import PostgresServer, version_is_here

VERSIONS = tuple(int(version) for version in os.environ.get("DULY_TEST_POSTGRES", "16").split(","))
GIVEN = os.environ.get("DULY_TEST_DSN")

# Beyond this a table is truncated, at 2 ms; below, its rows are deleted, at a tenth of that.
_BYTES_TO_TRUNCATE = 256 * 1024

_Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True)
class Birth:
    """What a schema held when the store was first opened in it: rows as COPY writes them, and where sequences stood."""

    rows: dict[str, bytes]
    sequences: dict[str, tuple[int, bool]]


class Schemas:
    """Gives out schemas of one database and takes them back. `prepare` opens a store at a URL once, and closes it."""

    def __init__(self, database: str, prepare: Callable[[str], None]) -> None:
        self._database = database
        self._prepare = prepare
        self._connection = psycopg.connect(database, autocommit=True, options="-c lock_timeout=2s")
        self._births: dict[str, Birth] = {}
        self._there_before: dict[str, set[int]] = {}
        self._free: list[str] = []
        self._made = 0

    def take(self) -> str:
        """The URL of a store that is made and was never used."""
        if not self._free:
            name = self._name()
            self._prepare(self.url(name))
            self._births[name] = _birth(self._connection, name)
            self._free.append(name)
        name = self._free.pop()
        self._there_before[name] = self._others()
        return self.url(name)

    def take_unmade(self) -> str:
        """The URL of a store that is not made yet: whoever connects first makes it."""
        return self.url(self._name())

    def give_back(self, url: str) -> None:
        """Ends the use of a schema. What is still connected to it loses it."""
        name = url.rpartition("schema=")[2]
        birth = self._births.get(name)
        if birth is not None and self._is_left(name) and recycle(self._connection, name, birth):
            self._free.append(name)
        else:
            self._births.pop(name, None)
            drop(self._connection, name)

    def distrust(self, url: str) -> None:
        """Says that a schema was changed in ways that emptying its tables does not undo: it will be dropped."""
        self._births.pop(url.rpartition("schema=")[2], None)

    def url(self, schema: str) -> str:
        return f"{self._database}?schema={schema}"

    def close(self) -> None:
        self._connection.close()

    def _name(self) -> str:
        self._made += 1
        return f"test_{self._made}"

    def _is_left(self, name: str) -> bool:
        """Whether nobody is connected who came after the schema was taken. Who has just left takes a moment to go."""
        deadline = time.monotonic() + 1
        while self._others() - self._there_before[name]:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def _others(self) -> set[int]:
        """The sessions in the database, by process number."""
        others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return {pid for (pid,) in self._connection.execute(f"{others} AND backend_type = 'client backend'".encode())}


def recycle(connection: _Connection, schema: str, birth: Birth) -> bool:
    """Makes a schema as it was born. False, and nothing is changed, when that cannot be done."""
    try:
        with connection.transaction():
            # Neither triggers nor foreign keys have a say in this.
            connection.execute("SET LOCAL session_replication_role = replica")
            if _tables(connection, schema) != sorted(birth.rows):
                return False
            _empty(connection, schema)
            for table, rows in birth.rows.items():
                if rows:
                    _write(connection, schema, table, rows)
            for sequence, (value, called) in birth.sequences.items():
                connection.execute("SELECT setval(%s::regclass, %s, %s)", (f"{schema}.{sequence}", value, called))
            _renew(connection, schema)
            return True
    except psycopg.Error:
        return False


def drop(connection: _Connection, schema: str) -> None:
    """Removes a schema; one that somebody holds stays until the database is dropped."""
    with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def _renew(connection: _Connection, schema: str) -> None:
    """The next store in this schema is another one: leases and receipts of the last do not fit it."""
    incarnation = secrets.token_hex(8)
    renewed = sql.SQL("UPDATE {} SET value = %s WHERE key = 'incarnation'").format(sql.Identifier(schema, "meta"))
    connection.execute(renewed, (incarnation,))


def _birth(connection: _Connection, schema: str) -> Birth:
    rows = {table: _read(connection, schema, table) for table in _tables(connection, schema)}
    sequences = {}
    for (name,) in connection.execute("SELECT sequencename FROM pg_sequences WHERE schemaname = %s", (schema,)):
        stands = sql.SQL("SELECT last_value, is_called FROM {}").format(sql.Identifier(schema, name))
        ((value, called),) = connection.execute(stands).fetchall()
        sequences[name] = (value, called)
    return Birth(rows, sequences)


def _tables(connection: _Connection, schema: str) -> list[str]:
    named = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"
    return sorted(name for (name,) in connection.execute(named, (schema,)))


def _empty(connection: _Connection, schema: str) -> None:
    measured = (
        "SELECT relname, pg_table_size(oid) > %s FROM pg_class"
        " WHERE relnamespace = %s::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0"
    )
    found = connection.execute(measured, (_BYTES_TO_TRUNCATE, schema)).fetchall()
    long = [sql.Identifier(schema, table) for table, is_long in found if is_long]
    short = [sql.Identifier(schema, table) for table, is_long in found if not is_long]
    if long:
        connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(sql.SQL(", ").join(long)))
    if short:
        connection.execute(sql.SQL("").join(sql.SQL("DELETE FROM {};").format(table) for table in short))


def _read(connection: _Connection, schema: str, table: str) -> bytes:
    asked = sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(schema, table))
    with connection.cursor().copy(asked) as copy:
        return b"".join(bytes(part) for part in copy)


def _write(connection: _Connection, schema: str, table: str, rows: bytes) -> None:
    asked = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(schema, table))
    with connection.cursor().copy(asked) as copy:
        copy.write(rows)


def why_not() -> str | None:
    """Why there can be no tests on PostgreSQL here; None when there can."""
    # The store itself: its package may be there before it.
    if find_spec("duly.store.postgres") is None or find_spec("duly.store.postgres.store") is None:
        return "Duly has no PostgreSQL store here"
    if GIVEN is None and not version_is_here(VERSIONS[0]):
        return f"there is no PostgreSQL {VERSIONS[0]} here"
    return None


def schemas(version: int = VERSIONS[0]) -> Schemas:
    """Those of this process on its server of that version."""
    return _schemas(version)


def database(version: int = VERSIONS[0]) -> str:
    """The URL of this process's own database: on the server in DULY_TEST_DSN, or else on its own of that version."""
    return server(version).dsn() if GIVEN is None else _database_there(GIVEN)


def server(version: int = VERSIONS[0]) -> PostgresServer:
    """The server of this process of that version, started. For tests that do it no harm."""
    return _server(version)


@cache
def _schemas(version: int) -> Schemas:
    opened = Schemas(database(version), lambda url: duly.connect(url, clock=duly.ManualClock()).close())
    # Before the server is stopped, and before the database is dropped.
    atexit.register(opened.close)
    return opened


@cache
def _server(version: int) -> PostgresServer:
    # Space that comes back by itself within a minute comes back within a test.
    started = PostgresServer(version, fsync=False, autovacuum_naptime="1s")
    started.start()
    return started


@cache
def _database_there(given: str) -> str:
    parts = urlsplit(given)
    if parts.query:
        raise ValueError("DULY_TEST_DSN must be a URL without parameters.")
    name = f"duly_test_{secrets.token_hex(6)}"
    with psycopg.connect(given, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    atexit.register(_drop_database, given, name, os.getpid())
    return urlunsplit(parts._replace(path=f"/{name}"))


def _drop_database(given: str, name: str, owner: int) -> None:
    # A child that a test forked runs the handlers of its parent, whose database this is.
    if os.getpid() == owner:
        with psycopg.connect(given, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
