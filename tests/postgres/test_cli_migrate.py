"""duly migrate from a shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import psycopg
import pytest

import duly
import duly.store.sqlite.departure
from tests import postgres_schemas
from tests.surface.test_cli import (
    COMMANDS,
    examples_of,
    folder,
    ok,
    refused,
    run,
    run_example,
    shop,
    stocked,
    words,
)
from tests.surface.test_cli_process import run as run_process
from tests.surface.test_cli_process import terminal

__all__ = ["folder", "shop", "stocked"]

pytestmark = pytest.mark.skipif(postgres_schemas.why_not() is not None, reason=str(postgres_schemas.why_not()))


@pytest.fixture
def there() -> Iterator[str]:
    """The address of a schema that is not made yet."""
    url = postgres_schemas.schemas().take_unmade()
    yield url
    with psycopg.connect(postgres_schemas.database(), autocommit=True) as connection:
        postgres_schemas.drop(connection, url.rpartition("=")[2])


def test_move_and_compare(shop: Path, there: str) -> None:
    moved = ok("migrate", "app.duly", there)
    assert "app.duly has moved to postgresql://127.0.0.1/" in moved.out
    assert "MB/s. The file is paused." in moved.out
    assert moved.err == ""
    assert "are the same" in ok("migrate", "app.duly", there, "--verify").out
    with duly.connect(there) as q:
        assert len(q.claim("emails")) == 1
    differing = run("migrate", "app.duly", there, "--verify", "--json")
    assert differing.code == 1
    assert "lease" in differing.document["differing"]


def test_the_examples_run_one_after_the_other(shop: Path, there: str) -> None:
    examples = examples_of(COMMANDS["migrate"])
    addresses = [words(example)[3] for example in examples]
    assert all(address.startswith("postgresql://app@db/shop") for address in addresses)
    for example, address in zip(examples, addresses, strict=True):
        assert run_example(example.replace(address, there)).code == 0


def test_programs_get_a_document(shop: Path, there: str) -> None:
    document = ok("migrate", "app.duly", there, "--json").document
    assert document["source"] == str(shop / "app.duly")
    assert document["destination"].startswith("postgresql://127.0.0.1/")
    assert document["messages"] > 0
    assert document["rows"] > 0
    assert document["bytes"] > 0
    assert (document["resumed"], document["differing"], document["left_behind"]) == (False, [], [])
    assert abs(document["clock_ahead_s"]) < 1
    assert ok("migrate", "app.duly", there, "--json").document["resumed"]


def test_what_has_to_be_known_is_said(shop: Path, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(apsw.Connection("app.duly")) as application:
        application.execute("CREATE TABLE orders (id INTEGER); CREATE TABLE bills (id INTEGER)")
    now_ms = duly.store.sqlite.departure.Departure.now_ms
    monkeypatch.setattr(duly.store.sqlite.departure.Departure, "now_ms", lambda self: now_ms(self) + 90_000)
    said = ok("migrate", "app.duly", there).err
    assert "Your own bills, orders stay in the file: move them yourself." in said
    assert "PostgreSQL's clock is 90.0 s behind the file's" in said
    assert "later" in said


def test_a_bar_is_drawn_on_a_terminal_alone(shop: Path, there: str) -> None:
    with terminal() as (ours, theirs):
        run_process("migrate", "app.duly", there, stderr=theirs)
        assert b"Moving" in os.read(ours, 65536)
    assert run_process("migrate", "app.duly", there, "--verify").stderr == b""


def test_a_move_that_is_not_wanted_is_refused(shop: Path, there: str) -> None:
    assert "to PostgreSQL" in refused("migrate", "app.duly", "other.duly").err
    assert "no store at" in refused("migrate", "missing.duly", there).err
    assert "not on its way" in refused("migrate", "app.duly", there, "--give-up").err
    with duly.connect("app.duly"):
        assert "is open" in refused("migrate", "app.duly", there).err


def test_the_file_says_where_the_store_went(shop: Path, there: str) -> None:
    ok("migrate", "app.duly", there)
    assert "moved to postgresql://" in refused("publish", "emails", "too late").err
    assert "paused" in ok("stats").out


def test_a_move_is_given_up(shop: Path, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Callable[..., None]:
        raise duly.Unavailable("The line broke.")

    with monkeypatch.context() as patch:
        patch.setattr("duly.store.postgres.arrival.Arrival.put", broken)
        assert "The line broke" in refused("migrate", "app.duly", there).err
    assert "duly migrate" in refused("topics", "list").err
    assert "is the store again" in ok("migrate", "app.duly", there, "--give-up").out
    assert len(ok("claim", "emails", "--json").lines) == 1
