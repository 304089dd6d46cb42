"""The SQL files: every query named once, prepared, explained where zero rows have a meaning, and used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import apsw
import pytest

import duly
from duly.store.sqlite.queries import migrations, queries
from duly.store.sqlite.store import SCHEMA

PACKAGE = Path(str(files("duly.store.sqlite")))
SQL_FILES = sorted((PACKAGE / "sql").glob("*.sql"))
NAME = re.compile(r"^-- ([a-z_]+)$", re.MULTILINE)


@pytest.fixture
def connection() -> Iterator[apsw.Connection]:
    """An empty database with the whole schema."""
    opened = apsw.Connection(":memory:")
    for _, script in migrations():
        opened.execute(script)
    yield opened
    opened.close()


def test_every_query_is_named_once() -> None:
    names = [name for path in SQL_FILES for name in NAME.findall(path.read_text())]
    assert len(names) == len(set(names))
    assert sorted(names) == sorted(queries())
    assert len(names) > 40


@pytest.mark.parametrize("name", sorted(queries()))
def test_every_query_is_one_statement_that_prepares(connection: apsw.Connection, name: str) -> None:
    text = queries()[name]
    assert text.endswith(";")
    assert text.count(";") == 1
    connection.execute("EXPLAIN " + text, dict.fromkeys(re.findall(r":(\w+)", text), 1)).fetchall()


@pytest.mark.parametrize("name", sorted(queries()))
def test_every_query_is_used(name: str) -> None:
    used = re.compile(rf'"{name}"')
    shared = PACKAGE.parent / "sql"
    assert any(used.search(path.read_text()) for path in [*PACKAGE.glob("*.py"), *shared.glob("*.py")]), name


@pytest.mark.parametrize("name", sorted(queries()))
def test_queries_name_their_columns_and_parameters(name: str) -> None:
    text = queries()[name]
    assert not re.search(r"SELECT \*", text, re.IGNORECASE)
    assert not re.search(r"\?\d*", text), "parameters are named"


KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        "select insert update delete from where and or order by limit values returning set into join on as in",
    )
)


@pytest.mark.parametrize("name", sorted(queries()))
def test_keywords_are_upper_case(name: str) -> None:
    statement = re.sub(r"'[^']*'|\"[^\"]*\"|:\w+", "", queries()[name])
    words = set(re.findall(r"\b[a-z]+\b", statement))
    assert words & KEYWORDS == set()


LOOKUPS = [name for name, text in sorted(queries().items()) if "LIMIT :limit" in text]


def test_pages_are_ordered() -> None:
    assert LOOKUPS
    for name in LOOKUPS:
        assert "ORDER BY" in queries()[name], f"{name} pages without an order"


# The doctor reads all there is; a chore forgets; receipts are walked by id and end at a LIMIT.
SCAN_ALLOWED = {"block_places", "kept_places", "consumers_forget", "receipt_oldest", "receipts_expire"}


@pytest.mark.parametrize("name", sorted(set(queries()) - SCAN_ALLOWED))
def test_no_query_scans_a_table_that_grows(connection: apsw.Connection, name: str) -> None:
    text = queries()[name]
    bound = dict.fromkeys(re.findall(r":(\w+)", text), 1)
    plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + text, bound)]
    grows = r"SCAN (duly_block|duly_lease|duly_dead|duly_kept|duly_receipt|duly_cursor|duly_consumer)\b(?! USING)"
    assert [step for step in plan if re.search(grows, step)] == []


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))
    assert len(migrations()) == SCHEMA, "a file of the schema before would not be migrated"


def test_opening_a_store_twice_migrates_once(tmp_path: Path) -> None:
    path = tmp_path / "app.duly"
    with duly.connect(path) as q:
        q.create_topic("t", kind="log")
    with duly.connect(path) as q:
        assert q.list_topics() == ["t"]


def test_a_store_of_a_newer_duly_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "app.duly"
    duly.connect(path).close()
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE duly_meta SET value = '9999' WHERE key = 'schema'")
    connection.close()
    with pytest.raises(duly.IncompatibleStore, match="newer"):
        duly.connect(path)


@pytest.mark.parametrize("what", ["text", "other database", "folder"])
def test_what_is_no_duly_store_is_refused_and_left_alone(tmp_path: Path, what: str) -> None:
    path = tmp_path / "notes"
    if what == "text":
        path.write_bytes(b"dear diary, " * 1000)
    elif what == "folder":
        path.mkdir()
    else:
        connection = apsw.Connection(str(path))
        connection.execute("CREATE TABLE diary (entry TEXT); INSERT INTO diary VALUES ('dear')")
        connection.close()
    before = None if path.is_dir() else path.read_bytes()
    with pytest.raises(duly.IncompatibleStore):
        duly.connect(path)
    assert path.is_dir() or path.read_bytes() == before
