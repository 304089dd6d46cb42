"""Giving freed space back to the device: at once, or as soon as the last reader that needs the log has gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import duly
from duly.store.sqlite.checkpoint import Checkpointer


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[apsw.Connection]:
    opened = apsw.Connection(str(tmp_path / "file"))
    for statement in ("PRAGMA auto_vacuum = INCREMENTAL", "PRAGMA journal_mode = WAL", "CREATE TABLE t (b)"):
        opened.execute(statement).fetchall()
    opened.execute("INSERT INTO t VALUES (randomblob(1000000))")
    yield opened
    opened.close()


def test_a_reader_that_stays_puts_it_off(writer: apsw.Connection, tmp_path: Path) -> None:
    file, wal = tmp_path / "file", tmp_path / "file-wal"
    checkpointer = Checkpointer()
    checkpointer.watch(writer)
    reader = apsw.Connection(str(file))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM t").fetchall()
    writer.execute("DELETE FROM t")
    writer.execute("PRAGMA incremental_vacuum").fetchall()
    checkpointer.after_commit(writer, freed=True)
    assert os.path.getsize(wal) > 0
    reader.close()
    writer.execute("INSERT INTO t VALUES (1)")
    checkpointer.after_commit(writer, freed=False)
    assert os.path.getsize(wal) == 0
    assert os.path.getsize(file) < 100_000


def test_without_a_reader_it_is_done_at_once(writer: apsw.Connection, tmp_path: Path) -> None:
    checkpointer = Checkpointer()
    checkpointer.watch(writer)
    writer.execute("DELETE FROM t")
    writer.execute("PRAGMA incremental_vacuum").fetchall()
    checkpointer.after_commit(writer, freed=True)
    assert os.path.getsize(tmp_path / "file-wal") == 0
    assert os.path.getsize(tmp_path / "file") < 100_000


def test_a_client_that_only_read_leaves_no_log_behind(tmp_path: Path) -> None:
    path = tmp_path / "app.duly"
    with duly.connect(path) as q:
        q.create_topic("orders", kind="log")
    with duly.connect(path) as q:
        assert q.list_topics() == ["orders"]
    assert not {"app.duly-wal", "app.duly-shm"} & {found.name for found in tmp_path.iterdir()}
