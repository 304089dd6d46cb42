"""Damage to what a queue has stored: right bytes from the other copy, or CorruptBlock; never wrong ones."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

import duly
from duly.store.sql import examination
from tests.conftest import scaled

pytestmark = pytest.mark.sqlite

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))
BODIES = [f"message{n:05} ".encode() * 3 for n in range(6000)]
COLUMNS = [("duly_run_data", "data"), ("duly_run_block", "entries"), ("duly_block", "data"), ("duly_chunk", "data")]
RUN = ("partition", "run", "idx")
KEYS = {"duly_run_data": RUN, "duly_run_block": RUN, "duly_block": ("partition", "base"), "duly_chunk": ("id",)}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store with a queue whose messages stand in runs, ready and timed, in lanes and not."""
    path = tmp_path / "app.duly"
    with duly.connect(path, clock=duly.ManualClock()) as q:
        q.create_topic("jobs", kind="queue", lease=3600)
        q.create_topic("other", kind="queue")
        messages = [
            duly.Message(body, priority=n % 5, lane=f"l{n % 3}" if n % 2 else None, due=60 if n % 4 == 0 else None)
            for n, body in enumerate(BODIES)
        ]
        q.publish("jobs", messages[:4999])
        q.publish("jobs", messages[4999:])
        q.publish("other", b"in another queue")
        q.claim("jobs", max_messages=10).release()
    return path


def change(path: Path, sql: str, *values: object) -> None:
    """Alters the closed store behind Duly's back."""
    connection = apsw.Connection(str(path))
    connection.execute(sql, values)
    assert connection.changes() > 0
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


def rows(path: Path, table: str, column: str) -> list[tuple[tuple[int, ...], bytes]]:
    """(key, blob) of every row of the queue's tables."""
    connection = apsw.Connection(str(path))
    found = [
        (tuple(row[:-1]), bytes(row[-1]))
        for row in connection.execute(f"SELECT {', '.join(KEYS[table])}, {column} FROM {table} ORDER BY 1, 2")
    ]
    connection.close()
    return found


def replace(path: Path, table: str, column: str, key: tuple[int, ...], blob: bytes) -> None:
    where = " AND ".join(f"{name} = ?" for name in KEYS[table])
    change(path, f"UPDATE {table} SET {column} = ? WHERE {where}", blob, *key)


def outcome(path: Path) -> tuple[list[bytes], bool]:
    """Everything that can be had from the damaged queue, and whether damage was reported."""
    clock = duly.ManualClock(1_700_000_100_000)
    served: list[bytes] = []
    corrupt = False
    with duly.connect(path, clock=clock) as q:
        for _ in range(40):
            try:
                batch = q.claim("jobs", max_messages=700)
            except duly.CorruptBlock:
                corrupt = True
                break
            if not len(batch):
                break
            served += batch.payloads
            batch.ack()
        assert q.claim("other").payloads == [b"in another queue"]
    return served, corrupt


def assert_right_or_reported(path: Path) -> tuple[int, bool]:
    served, corrupt = outcome(path)
    assert not set(served) - set(BODIES), "wrong bytes were served"
    assert len(set(served)) == len(served), "something was served twice"
    assert corrupt or len(served) == len(BODIES), f"only {len(served)} were served, in silence"
    return len(served), corrupt


def test_a_whole_store_is_served_whole(store: Path) -> None:
    assert assert_right_or_reported(store) == (len(BODIES), False)


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=[table for table, _ in COLUMNS])
def test_a_flipped_bit_is_never_served(store: Path, tmp_path: Path, table: str, column: str) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    stored = [(key, blob) for key, blob in rows(store, table, column) if blob]
    assert stored
    for turn in range(scaled(6, 300)):
        path = tmp_path / "flipped" / "app.duly"
        path.parent.mkdir()
        shutil.copy(store, path)
        key, blob = draw.choice(stored)
        at = draw.choice([draw.randrange(len(blob)), draw.randrange(min(70, len(blob)))])
        flipped = bytearray(blob)
        flipped[at] ^= 1 << draw.randrange(8)
        replace(path, table, column, key, bytes(flipped))
        try:
            # The other queue's only block may be hit too.
            if not (table == "duly_block" and b"in another queue" in blob):
                assert_right_or_reported(path)
        except BaseException as error:
            raise AssertionError(f"DULY_TEST_SEED={SEED}, turn {turn}: byte {at} of {table} {key}") from error
        shutil.rmtree(path.parent)


def test_messages_of_a_damaged_run_are_served_from_the_log(store: Path) -> None:
    for key, blob in rows(store, "duly_run_data", "data"):
        replace(store, "duly_run_data", "data", key, blob[:-1] + bytes([blob[-1] ^ 1]))
    assert assert_right_or_reported(store) == (len(BODIES), False)


@pytest.mark.parametrize(("table", "column"), COLUMNS[:2], ids=[table for table, _ in COLUMNS[:2]])
def test_blocks_of_runs_that_changed_places_are_never_served(store: Path, table: str, column: str) -> None:
    (one, first), (two, second) = rows(store, table, column)[:2]
    replace(store, table, column, one, second)
    replace(store, table, column, two, first)
    assert_right_or_reported(store)


@pytest.mark.parametrize("table", [table for table, _ in COLUMNS])
def test_a_missing_block_is_reported_or_made_up_for(store: Path, table: str) -> None:
    key, _ = rows(store, table, "data" if table != "duly_run_block" else "entries")[0]
    change(store, f"DELETE FROM {table} WHERE {' AND '.join(f'{name} = ?' for name in KEYS[table])}", *key)
    assert_right_or_reported(store)


def test_examine_finds_a_damaged_run(store: Path) -> None:
    for table, column in COLUMNS[:2]:
        key, blob = rows(store, table, column)[0]
        replace(store, table, column, key, blob[:-1] + bytes([blob[-1] ^ 1]))
        with duly.connect(store) as q:
            assert [finding for finding in q.examine() if finding.level in ("alert", "error")], f"{table} is damaged"
        replace(store, table, column, key, blob)


@pytest.fixture
def young_damage(store: Path) -> Path:
    """The store with one more block, not in the index yet and damaged."""
    with duly.connect(store, clock=duly.ManualClock()) as q:
        q.publish("jobs", [b"young" * 20] * 100)
    key, blob = rows(store, "duly_chunk", "data")[-1]
    replace(store, "duly_chunk", "data", key, blob[:-1] + bytes([blob[-1] ^ 1]))
    return store


def test_publishing_goes_on_beside_a_damaged_block(young_damage: Path) -> None:
    """A reader meets the damage; whoever publishes is not made to."""
    with duly.connect(young_damage, clock=duly.ManualClock()) as q:
        for _ in range(10):
            assert q.publish("jobs", [b"more"] * 1000).count == 1000


def test_what_stands_before_a_damaged_block_is_served_and_then_the_damage_reported(young_damage: Path) -> None:
    served, corrupt = outcome(young_damage)
    assert corrupt
    assert sorted(served) == BODIES


def test_the_doctor_reports_text_where_a_number_belongs(store: Path) -> None:
    # Found by flipped bits: DULY_TEST_SEED=4095174820 of tests/crash/test_corrupt.py.
    change(store, "UPDATE duly_run SET blocks = 'many'")
    with duly.connect(store, clock=duly.ManualClock()) as q:
        assert "alert" in {found.level for found in q.examine()}


@pytest.mark.parametrize("change", ["DELETE FROM duly_run", "UPDATE duly_run SET blocks = 0"])
def test_what_others_drop_while_the_doctor_looks_is_no_damage(
    store: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    look: Any = vars(examination)["decode_entries"]

    def drop_then_look(_: Any, *place: Any, **more: Any) -> Any:
        connection = apsw.Connection(str(store))
        for statement in (change, "DELETE FROM duly_run_block", "DELETE FROM duly_run_data"):
            connection.execute(statement)
        connection.close()
        return look(None, *place, **more)

    with duly.connect(store, clock=duly.ManualClock()) as q:
        monkeypatch.setattr(examination, "decode_entries", drop_then_look)
        assert [found for found in q.examine() if found.level == "alert"] == []


def test_a_corrupt_block_ahead_does_not_keep_what_comes_before_it(tmp_path: Path) -> None:
    """Messages of many lanes are gathered ahead of their turns: damage is reported when its own turn has come."""
    path = tmp_path / "app.duly"
    with duly.connect(path, clock=duly.ManualClock()) as q:
        q.create_topic("jobs", kind="queue", lease=3600)
        for nth in range(40):
            q.publish("jobs", [duly.Message(b"%d %d" % (nth, n), lane=f"l{nth}") for n in range(20)])
        q.publish("jobs", [duly.Message(b"last %d" % n, lane="late", priority=9) for n in range(20)])
        served = q.claim("jobs", max_messages=5).payloads
        *_, (key, blob) = rows(path, "duly_block", "data")
        replace(path, "duly_block", "data", key, blob[:-3] + bytes([blob[-3] ^ 1]) + blob[-2:])
        # What it has read already it would go on serving, and that is right.
        q._port.store._cache.clear()  # type: ignore[attr-defined]
        while len(served) < 800:
            served += q.claim("jobs", max_messages=min(50, 800 - len(served))).payloads
        assert len(set(served)) == 800
        assert not any(body.startswith(b"last") for body in served)
        with pytest.raises(duly.CorruptBlock):
            q.claim("jobs")
