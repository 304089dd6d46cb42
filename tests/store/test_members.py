"""The brokers on a store: who was seen lately, by the store's clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import duly
from duly.member import FORGET_MS, SEEN_MS_MAX
from duly.store.sqlite.store import SqliteStore


def member(name: str, **more: Any) -> duly.Member:
    return duly.Member(name, f"duly://{name}:8471", f"http://{name}:8470", "0.5.0", started_at_ms=1, **more)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, path: str, clock: duly.ManualClock) -> Iterator[SqliteStore]:
    opened = SqliteStore(path if request.param == "file" else ":memory:", clock=clock)
    yield opened
    opened.close()


def names(store: SqliteStore) -> list[str]:
    return [one.name for one in store.members()]


def test_members_are_listed_by_name_as_they_last_were(store: SqliteStore, clock: duly.ManualClock) -> None:
    assert store.members() == []
    for name in ("b", "a"):
        store.member_put(member(name))
    clock.advance(1)
    store.member_put(member("b", drift_ms=-7, ready=False, reason="the clock"))
    a, b = store.members()
    assert (a.name, a.url, a.http_url, a.ready) == ("a", "duly://a:8471", "http://a:8470", True)
    assert (b.name, b.drift_ms, b.ready, b.reason) == ("b", -7, False, "the clock")
    assert (a.seen_at_ms, b.seen_at_ms) == (clock.now_ms() - 1000, clock.now_ms())
    assert b.seen_at.timestamp() * 1000 == clock.now_ms()


def test_one_that_was_not_seen_for_seconds_is_left_out_until_it_is_seen_again(
    store: SqliteStore, clock: duly.ManualClock
) -> None:
    for name in ("a", "b"):
        store.member_put(member(name))
    clock.advance(SEEN_MS_MAX / 1000)
    assert names(store) == ["a", "b"]
    store.member_put(member("b"))
    clock.advance(0.001)
    assert names(store) == ["b"]
    store.member_put(member("a"))
    assert names(store) == ["a", "b"]


def test_one_that_leaves_is_gone_at_once(store: SqliteStore) -> None:
    store.member_put(member("a"))
    for _ in range(2):
        store.member_remove("a")
    assert store.members() == []


def test_one_that_was_killed_leaves_no_row_for_good(path: str, clock: duly.ManualClock) -> None:
    store = SqliteStore(path, clock=clock)
    store.member_put(member("killed"))
    clock.advance(FORGET_MS / 1000 + 1)
    store.member_put(member("b"))
    store.close()
    connection = apsw.Connection(path)
    assert connection.execute("SELECT name FROM duly_member").fetchall() == [("b",)]
    connection.close()


def test_what_a_newer_broker_tells_besides_is_passed_over(path: str, clock: duly.ManualClock) -> None:
    store = SqliteStore(path, clock=clock)
    store.member_put(member("a"))
    connection = apsw.Connection(path)
    connection.execute("UPDATE duly_member SET facts = json_set(facts, '$.mood', 'fine')")
    connection.close()
    assert names(store) == ["a"]
    store.close()


def test_a_client_of_the_store_itself_lists_the_brokers_on_it(q: duly.Client, path: str) -> None:
    assert q.cluster() == []


def test_a_store_of_the_schema_before_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "old.duly"
    duly.connect(path).close()
    connection = apsw.Connection(str(path))
    for table in (
        "member",
        "secret",
        "principal",
        "key",
        "audit",
        "audit_head",
        "gate",
        "operation",
        "schedule",
        "push",
    ):
        connection.execute(f"DROP TABLE duly_{table}")
    for column in ("state", "settings", "version", "created_at_ms"):
        connection.execute(f"ALTER TABLE duly_tenant DROP COLUMN {column}")
    connection.execute("DROP INDEX duly_lane_broken; DROP INDEX duly_loose_fresh")
    for column in ("circuit", "circuit_state"):
        connection.execute(f"ALTER TABLE duly_lane DROP COLUMN {column}")
    connection.execute("UPDATE duly_meta SET value = '5' WHERE key = 'schema'")
    connection.close()
    with duly.connect(path) as q:
        assert q.cluster() == []
