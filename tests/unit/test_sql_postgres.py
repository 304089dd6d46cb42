"""PostgreSQL's SQL files: the same names as SQLite's, each used, and what differs says why it is there."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from duly.store.postgres.statements import migrations, queries, statements
from duly.store.sqlite.queries import queries as sqlite_queries

PACKAGE = Path(str(files("duly.store.postgres")))

# SQLite keeps its clock in the file, counts definitions where it reads them, ends a lease in one statement, updates
# the positions of runs (here they are appended with the queue's row), and its doctor has questions of its own.
ONLY_SQLITE = {
    *("clock_mark", "clock_mark_put", "definitions", "lease_end", "run_move"),
    *("run_still", "block_data", "block_places", "kept_places"),
}
# Turns, locks, ids by the thousand, the server's clock; mail from applications; what is appended is deleted, too; what
# only looks takes no row locks; a repetition writes.
ONLY_POSTGRES = {
    *("enter", "guard", "lock", "keep", "unlock", "unlock_all", "turn_put", "turn_forget", "topic_by_name", "now"),
    *("a_thousand_ids", "inbox", "inbox_delete", "inbox_erase", "has_mail", "mail_of", "mail_refuse", "refused_erase"),
    *(
        "inbox_put",
        "tenant_of_topic",
        "inbox_verdicts",
        "own_leases",
        "leases_shared",
        "leases_lock",
        "report_dead",
        "any_event",
    ),
    *("cursor_forget", "gate_forget", "queue_forget", "lease_looking", "leases_due_looking", "receipt_touch"),
}


def test_both_stores_define_the_same_queries_but_for_what_only_one_has() -> None:
    assert set(sqlite_queries()) - set(queries()) == ONLY_SQLITE
    assert set(queries()) - set(sqlite_queries()) == ONLY_POSTGRES


@pytest.mark.parametrize("name", sorted(queries()))
def test_every_query_is_used(name: str) -> None:
    used = re.compile(rf'"{name}"')
    shared = PACKAGE.parent / "sql"
    assert any(used.search(path.read_text()) for path in [*PACKAGE.glob("*.py"), *shared.glob("*.py")]), name


@pytest.mark.parametrize("name", sorted(queries()))
def test_queries_name_their_columns_and_values(name: str) -> None:
    text = queries()[name]
    assert text.endswith(";")
    assert text.count(";") == 1
    assert not re.search(r"SELECT \*", text, re.IGNORECASE)
    assert "$" not in text.replace("'$'", ""), "values are named"


def test_pages_are_ordered() -> None:
    for name, text in queries().items():
        if "LIMIT :limit" in text:
            assert "ORDER BY" in text, f"{name} pages without an order"


def test_a_statement_numbers_its_names_once_and_leaves_casts_alone() -> None:
    statement = statements()["guard"]
    assert statement.names == ("space", "topic", "n", "session", "definitions", "floor", "at_ms")
    assert b"$1::INTEGER" in statement.text
    assert b":" not in statement.text.replace(b"::", b"")


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))
