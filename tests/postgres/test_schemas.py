"""The schemas that tests put their stores in: each as if nobody had used it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.postgres_schemas import Schemas, database

TABLES = 31


def make_tables(url: str) -> None:
    """What a store does when it is opened first."""
    schema = name_of(url)
    with psycopg.connect(database()) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        connection.execute(f"CREATE TABLE {schema}.meta (key text PRIMARY KEY, value text)".encode())
        connection.execute(f"INSERT INTO {schema}.meta VALUES ('schema', '1'), ('incarnation', 'abc')".encode())
        connection.execute(f"CREATE TABLE {schema}.tenant (id serial PRIMARY KEY, name text)".encode())
        connection.execute(f"INSERT INTO {schema}.tenant (name) VALUES ('default')".encode())
        for number in range(TABLES - 2):
            made = f"CREATE TABLE {schema}.t{number} (id bigserial PRIMARY KEY, tenant int, data bytea)"
            connection.execute(made.encode())
        connection.execute(f"ALTER TABLE {schema}.t0 ADD FOREIGN KEY (tenant) REFERENCES {schema}.tenant".encode())


def name_of(url: str) -> str:
    return url.rpartition("schema=")[2]


@pytest.fixture
def schemas() -> Iterator[Schemas]:
    opened = Schemas(database(), make_tables)
    opened._made = time.monotonic_ns()
    yield opened
    opened.close()


def ask(url: str, what: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database(), options=f"-c search_path={name_of(url)}") as connection:
        cursor = connection.execute(what.encode())
        return cursor.fetchall() if cursor.description else []


def test_a_schema_given_back_is_as_it_was_born_except_for_who_it_is(schemas: Schemas) -> None:
    url = schemas.take()
    ask(url, "INSERT INTO tenant (name) VALUES ('two')")
    ask(url, "INSERT INTO t0 (tenant) SELECT 2 FROM generate_series(1, 10)")
    ask(url, "INSERT INTO t1 (data) SELECT sha512(g::text::bytea) FROM generate_series(1, 20000) g")
    ask(url, "UPDATE meta SET value = '2' WHERE key = 'schema'")
    schemas.give_back(url)
    assert schemas.take() == url
    assert ask(url, "SELECT * FROM tenant") == [(1, "default")]
    assert ask(url, "INSERT INTO tenant (name) VALUES ('two') RETURNING id") == [(2,)]
    assert ask(url, "SELECT value FROM meta WHERE key = 'schema'") == [("1",)]
    assert ask(url, "SELECT value FROM meta WHERE key = 'incarnation'") != [("abc",)]
    assert ask(url, "SELECT (SELECT count(*) FROM t0) + (SELECT count(*) FROM t1)") == [(0,)]
    assert ask(url, "SELECT pg_table_size('t1') < 20000") == [(True,)]
    assert ask(url, "INSERT INTO t1 (data) VALUES ('x') RETURNING id") == [(1,)]
    schemas.give_back(url)


@pytest.mark.parametrize(
    "change", ["CREATE TABLE mine (id int)", "DROP TABLE t1", "ALTER TABLE meta RENAME value TO v"]
)
def test_one_whose_tables_changed_is_dropped(schemas: Schemas, change: str) -> None:
    url = schemas.take()
    ask(url, change)
    schemas.give_back(url)
    assert not ask(url, f"SELECT 1 FROM pg_namespace WHERE nspname = '{name_of(url)}'")
    assert schemas.take() != url


def test_one_that_somebody_is_still_connected_to_is_not_given_again(schemas: Schemas) -> None:
    url = schemas.take()
    with psycopg.connect(database()) as left_open:
        left_open.execute(f"SELECT * FROM {name_of(url)}.meta".encode())
        schemas.give_back(url)
        assert schemas.take() != url


def test_one_is_given_again_though_somebody_is_busy_with_another(schemas: Schemas) -> None:
    other = schemas.take()
    with psycopg.connect(database()) as busy:
        busy.execute(f"SELECT * FROM {name_of(other)}.meta".encode())
        url = schemas.take()
        schemas.give_back(url)
        assert schemas.take() == url


def test_one_that_is_not_made_is_dropped_after_its_use(schemas: Schemas) -> None:
    url = schemas.take_unmade()
    make_tables(url)
    schemas.give_back(url)
    assert not ask(url, f"SELECT 1 FROM pg_namespace WHERE nspname = '{name_of(url)}'")
    schemas.give_back(schemas.take_unmade())


def test_giving_one_back_costs_less_than_making_one(schemas: Schemas) -> None:
    began = time.perf_counter()
    url = schemas.take()
    made = time.perf_counter() - began
    spent = []
    for _ in range(20):
        ask(url, "INSERT INTO t1 (data) VALUES ('x')")
        began = time.perf_counter()
        schemas.give_back(url)
        url = schemas.take()
        spent.append(time.perf_counter() - began)
    print(f"made in {made * 1000:.1f} ms, recycled in {sorted(spent)[10] * 1000:.1f} ms")
    assert min(spent) < made
