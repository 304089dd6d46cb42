"""A full or failing disk under an application's transaction: neither its rows nor its messages; the next one works."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

import duly

from .power_vfs import Connection, Disk, DiskVFS, Fault, full
from .test_disk import failing, no_room

REFUSALS = (duly.StoreFull, duly.StoreError)
BIG = os.urandom(1 << 20)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A disk under every store that the test opens."""
    made = Disk(recording=False)
    vfs = DiskVFS(made)
    monkeypatch.setattr(apsw, "Connection", Connection)
    yield made
    made.fault = None
    vfs.unregister()


@pytest.fixture
def q(path: str, disk: Disk, clock: duly.ManualClock) -> Iterator[duly.Client]:
    with duly.connect(path, clock=clock) as client:
        client.create_topic("jobs", kind="queue", lease=60)
        client.create_topic("log", kind="log")
        client.publish("jobs", duly.Message(b"x", id="first"))
        with client.transaction() as tx:
            tx.execute("CREATE TABLE done (id TEXT)")
        yield client
        disk.fault = None


def picture(q: duly.Client) -> tuple[list[str], list[bytes], dict[str, str]]:
    """The application's rows, the log, and the queue."""
    with q.transaction() as tx:
        rows = [one for (one,) in tx.execute("SELECT id FROM done ORDER BY rowid")]
    log = [one.payload[:8] for one in q.read("log", max_messages=10_000)]
    return rows, log, {one.id: one.state for one in q.browse("jobs")}


NOTHING: tuple[list[str], list[bytes], dict[str, str]] = ([], [], {"first": "leased"})
FAULTS: dict[str, Callable[[], Fault]] = {
    "no room": no_room,
    "a sync fails": lambda: failing(1, "-wal"),
    "a write fails": lambda: failing(1, "-wal", "write"),
    "every sync fails": lambda: failing(-1),
    "every write fails": lambda: failing(-1, what="write"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_commit_that_fails_leaves_neither_and_the_next_transaction_works(
    q: duly.Client, disk: Disk, clock: duly.ManualClock, path: str, tmp_path: Path, fault: str
) -> None:
    held = q.claim("jobs")

    def work(name: str) -> None:
        with q.transaction() as tx:
            tx.execute("INSERT INTO done VALUES (?)", (name,))
            q.publish("log", [name.encode()] * 3, tx=tx)
            q.ack(held, tx=tx)
            if name == "refused":
                disk.fault = FAULTS[fault]()

    with pytest.raises(REFUSALS):
        work("refused")
    disk.fault = None
    assert not held[0].settled
    assert picture(q) == NOTHING
    assert _after_a_crash(path, tmp_path / "left", clock) == NOTHING
    work("again")
    assert picture(q) == (["again"], [b"again"] * 3, {})
    assert not [finding for finding in q.examine() if finding.level == "alert"]


def _after_a_crash(path: str, folder: Path, clock: duly.ManualClock) -> tuple[list[str], list[bytes], dict[str, str]]:
    """What a new process would find if this one were killed now."""
    folder.mkdir()
    for suffix in ("", "-wal"):
        if os.path.exists(path + suffix):
            shutil.copy(path + suffix, folder / ("app.duly" + suffix))
    with duly.connect(folder / "app.duly", clock=clock) as q:
        return picture(q)


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize("by", ["publish", "rows"])
def test_the_disk_is_full_in_the_middle_of_the_block(q: duly.Client, disk: Disk, by: str, caught: bool) -> None:
    """More than the page cache holds is written before the commit. What was done before it is kept whole, or undone."""
    q.claim("jobs")
    refused: list[duly.Error] = []

    def work() -> None:
        with q.transaction() as tx:
            tx.execute("INSERT INTO done VALUES ('small')")
            q.publish("log", b"small", tx=tx)
            disk.fault = no_room()
            try:
                if by == "publish":
                    q.publish("log", [BIG] * 40, tx=tx)
                else:
                    tx.executemany("INSERT INTO done VALUES (?)", [(BIG,)] * 40)
            except REFUSALS as error:
                refused.append(error)
                disk.fault = None
                if not caught:
                    raise

    with contextlib.suppress(*REFUSALS):
        work()
    disk.fault = None
    assert [type(error) for error in refused] == [duly.StoreFull]
    assert picture(q) in (NOTHING, (["small"], [b"small"], {"first": "leased"}))
    with q.transaction() as tx:
        q.publish("log", b"after", tx=tx)
    assert q.read("log")[-1].payload == b"after"
    assert not [finding for finding in q.examine() if finding.level == "alert"]


def test_no_transaction_begins_on_a_disk_in_doubt_and_one_does_when_it_is_well_again(
    q: duly.Client, disk: Disk
) -> None:
    q.claim("jobs")
    disk.fault = failing(-1)
    for _ in range(3):
        with pytest.raises(REFUSALS), q.transaction() as tx:
            q.publish("log", b"refused", tx=tx)
    disk.fault = lambda what, name: full() if what == "write" and name.endswith("-wal") else None
    with pytest.raises(REFUSALS), q.transaction() as tx:
        q.publish("log", b"refused", tx=tx)
    disk.fault = None
    assert picture(q) == NOTHING
