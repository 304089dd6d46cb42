"""Long blocks lie outside the table of blocks: found as fast as short ones, and gone when they go."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import duly
from duly.store.sqlite import doctor
from duly.store.sqlite.queries import queries
from tests.store.patience import eventually

pytestmark = pytest.mark.sqlite

LONG = [os.urandom(100) for _ in range(3000)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.duly"


@pytest.fixture
def ask(path: Path) -> Callable[[str], Any]:
    """Looks at the file behind Duly's back."""

    def answer(sql: str) -> Any:
        connection = apsw.Connection(str(path))
        connection.set_busy_timeout(10_000)
        try:
            return connection.execute(sql).get
        finally:
            connection.close()

    return answer


def chunks(ask: Callable[[str], Any]) -> int:
    return int(ask("SELECT count(*) FROM duly_chunk"))


def wrong(q: duly.Client) -> list[duly.Finding]:
    """What the doctor finds amiss with the store; how full the machine's disk is does not matter here."""
    return [found for found in q.examine() if found.level != "ok" and "device is nearly full" not in found.what]


def test_no_row_of_the_table_is_long(path: Path, ask: Callable[[str], Any]) -> None:
    with duly.connect(path) as q:
        q.create_topic("t", kind="log")
        q.publish("t", LONG)
        q.publish("t", b"short")
        assert [message.payload for message in q.read("t", max_messages=5000)] == [*LONG, b"short"]
        assert q.describe_topic("t").partitions[0].bytes > 300_000
    assert ask("SELECT max(length(data)) FROM duly_block") < 1000
    assert chunks(ask) == ask("SELECT count(*) FROM duly_block WHERE chunk IS NOT NULL") >= 3
    assert ask("SELECT count(*) FROM duly_block WHERE chunk IS NULL AND length(data) > 0") >= 1


def test_blocks_of_a_duly_that_kept_them_inside_are_served(path: Path, ask: Callable[[str], Any]) -> None:
    with duly.connect(path) as q:
        q.create_topic("t", kind="log")
        q.publish("t", LONG)
    ask(
        "UPDATE duly_block SET data = (SELECT data FROM duly_chunk WHERE id = chunk), chunk = NULL"
        " WHERE chunk IS NOT NULL"
    )
    ask("DELETE FROM duly_chunk")
    assert ask("SELECT max(length(data)) FROM duly_block") > 50_000
    with duly.connect(path) as q:
        assert [message.payload for message in q.read("t", max_messages=5000)] == LONG
        q.publish("t", LONG)
        assert [message.payload for message in q.read("t", max_messages=9000)] == LONG * 2
        assert not wrong(q)


@pytest.mark.parametrize("kind", ["log", "queue"])
@pytest.mark.parametrize("how", ["over", "purged", "deleted"])
def test_what_lies_outside_goes_with_its_block(path: Path, ask: Callable[[str], Any], kind: Any, how: str) -> None:
    with duly.connect(path) as q:
        q.create_topic("t", kind=kind)
        q.publish("t", LONG)
        assert chunks(ask) >= 3
        if how == "over" and kind == "log":
            q.update_topic("t", retention=duly.Retention(age=0.001))
        elif how == "over":
            while len(batch := q.claim("t", max_messages=1000)):
                batch.ack()
        elif how == "purged":
            q.purge("t")
        else:
            q.delete_topic("t", force=True)
        # What the events of it were packed into stays.
        eventually(lambda: chunks(ask) == ask("SELECT count(*) FROM duly_block WHERE chunk IS NOT NULL") <= 1)
        assert not [finding for finding in q.examine() if finding.level == "warn" and "belong" in finding.what]


def test_a_lost_chunk_is_said_and_stops_nobody_else(path: Path, ask: Callable[[str], Any]) -> None:
    with duly.connect(path) as q:
        for topic in ("t", "other"):
            q.create_topic(topic, kind="log")
            q.publish(topic, LONG)
    ask("DELETE FROM duly_chunk WHERE id = 1")
    with duly.connect(path) as q:
        with pytest.raises(duly.CorruptBlock):
            q.read("t")
        assert [finding for finding in q.examine() if finding.level == "alert"]
        q.purge("t")
        q.purge("other")
        eventually(lambda: ask("SELECT count(*) FROM duly_block WHERE chunk IS NOT NULL") <= 1)
        assert not [finding for finding in q.examine() if finding.level == "alert"]


def test_the_doctor_says_what_belongs_to_nobody(path: Path, ask: Callable[[str], Any]) -> None:
    with duly.connect(path) as q:
        q.create_topic("t", kind="log")
        q.publish("t", LONG)
        assert not wrong(q)
        ask("INSERT INTO duly_chunk (tenant, data) VALUES (1, zeroblob(2000000))")
        (found,) = wrong(q)
        assert "1 pieces of the log, 2.0 MB, belong to no block" in found.what


def test_the_doctor_leaves_a_tree_that_leads_in_circles(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a flipped bit can make of it: a scan of such a tree may never end."""
    circle = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 1, 1, i % 7 FROM n"
    monkeypatch.setattr(doctor, "queries", lambda: {**queries(), "block_places": circle})
    with duly.connect(path) as q:
        q.create_topic("t", kind="log")
        q.publish("t", LONG)
        found = [finding.what for finding in q.examine() if finding.level == "alert"]
        assert [what for what in found if "out of order, from (1, 1, 0) on" in what]
        assert len(found) < 20
