"""What the application's transaction refuses, with the reason; and how long it keeps the others waiting."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import duly

from .patience import Aside, eventually

pytestmark = [pytest.mark.embedded, pytest.mark.sqlite]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue", lease=30)
    with q.transaction() as tx:
        tx.execute("CREATE TABLE done (id TEXT PRIMARY KEY)")
    return "jobs"


def ids(q: duly.Client) -> set[str]:
    return {one.id for one in q.browse("jobs")}


# Statements

REFUSED = {
    "BEGIN": "begins and ends with the block",
    "COMMIT": "begins and ends with the block",
    "END": "begins and ends with the block",
    "ROLLBACK": "begins and ends with the block",
    "SAVEPOINT a": "begins and ends with the block",
    "RELEASE duly": "begins and ends with the block",
    "ROLLBACK TO duly": "begins and ends with the block",
    "SELECT 1; COMMIT": "begins and ends with the block",
    "ATTACH ':memory:' AS other": "other files",
    "DETACH main": "other files",
    "PRAGMA synchronous = OFF": "PRAGMA synchronous",
    "PRAGMA journal_mode = DELETE": "PRAGMA journal_mode",
    "PRAGMA wal_checkpoint": "PRAGMA wal_checkpoint",
    "PRAGMA user_version = 3": "PRAGMA user_version",
    "PRAGMA writable_schema = ON": "PRAGMA writable_schema",
    "DELETE FROM duly_lease": "are Duly's",
    "delete from DULY_LEASE": "are Duly's",
    "UPDATE main.duly_queue SET absorbed_to = 0": "are Duly's",
    "INSERT INTO duly_meta VALUES ('a', 'b')": "are Duly's",
    "REPLACE INTO \"duly_meta\" VALUES ('schema', '9')": "are Duly's",
    "WITH a AS (SELECT 1) DELETE FROM duly_lease": "are Duly's",
    "DROP TABLE duly_lease": "are Duly's",
    "ALTER TABLE duly_lease ADD COLUMN mine": "are Duly's",
    "ALTER TABLE duly_lease RENAME TO mine": "are Duly's",
    "CREATE TABLE duly_mine (a)": "are Duly's",
    "CREATE TABLE duly_mine AS SELECT 1": "are Duly's",
    "CREATE TEMP TABLE duly_lease (a)": "are Duly's",
    "CREATE TEMP VIEW duly_lease AS SELECT 1": "are Duly's",
    "CREATE VIEW duly_mine AS SELECT 1": "are Duly's",
    "CREATE INDEX mine ON duly_lease (consumer)": "are Duly's",
    "CREATE INDEX duly_mine ON done (id)": "are Duly's",
    "CREATE TRIGGER t AFTER INSERT ON duly_lease BEGIN SELECT 1; END": "are Duly's",
    "CREATE TEMP TRIGGER t AFTER INSERT ON duly_lease BEGIN SELECT 1; END": "are Duly's",
    "CREATE TRIGGER IF NOT EXISTS t AFTER INSERT ON done BEGIN DELETE FROM duly_lease; END;"
    "INSERT INTO done VALUES ('t')": "are Duly's",
    "ANALYZE": "analyze your own tables",
    "ANALYZE duly_lease": "analyze your own tables",
}


def test_statements_that_would_break_the_other_half_are_refused_and_the_transaction_goes_on(
    q: duly.Client, jobs: str
) -> None:
    q.publish(jobs, duly.Message(b"x", id="x"))
    held = q.claim(jobs)
    with q.transaction() as tx:
        tx.execute("INSERT INTO done VALUES ('before')")
        for sql, reason in REFUSED.items():
            for act in (lambda sql=sql: tx.execute(sql), lambda sql=sql: tx.executemany(sql, [()])):
                with pytest.raises(duly.InvalidArgument) as caught:
                    act()
                assert reason in str(caught.value), sql
            # Nothing of it happened.
            assert tx.execute("SELECT id FROM done") == [("before",)]
            q.publish(jobs, duly.Message(b"y", id=sql[:40]), tx=tx)
        q.ack(held, tx=tx)
    assert ids(q) == {sql[:40] for sql in REFUSED}
    assert not [finding for finding in q.examine() if finding.level == "alert"]


@pytest.mark.parametrize("sql", ["PRAGMA table_info(done)", "PRAGMA table_list", "SELECT count(*) FROM duly_lease"])
def test_looking_is_allowed(q: duly.Client, jobs: str, sql: str) -> None:
    with q.transaction() as tx:
        assert tx.execute(sql)


def test_rows_for_executemany_cannot_come_from_the_transaction_itself(q: duly.Client, jobs: str) -> None:
    """What they did in the middle of a statement would go unwatched."""
    with q.transaction() as tx:

        def own(act: Any) -> Any:
            act()
            yield ("x", 1)

        for act in (
            lambda: tx.execute("SELECT 1"),
            lambda: q.publish(jobs, b"x", tx=tx),
            tx.rollback,
        ):
            with pytest.raises(duly.InvalidArgument, match="Make a list"):
                tx.executemany("INSERT INTO duly_meta VALUES (?, ?)", own(act))
    assert ids(q) == set()


# Where it may be used


def test_a_write_without_it_on_its_thread_is_refused_at_once(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, duly.Message(b"x", id="x"))
    held = q.claim(jobs)
    began = time.monotonic()
    with q.transaction() as tx:
        for act in (
            lambda: q.publish(jobs, b"y"),
            lambda: q.claim(jobs),
            lambda: q.claim(jobs, wait=20),
            lambda: q.ack(held),
            lambda: held[0].nack(),
            held.extend,
            lambda: q.cancel(jobs, "x"),
            lambda: q.move(jobs, "x", due=5),
            lambda: q.create_topic("t", kind="log"),
            lambda: q.pause(jobs),
            lambda: q.held(),
        ):
            with pytest.raises(duly.InvalidArgument, match="tx=tx"):
                act()
        q.publish(jobs, duly.Message(b"z", id="z"), tx=tx)
    assert time.monotonic() - began < 5
    assert ids(q) == {"x", "z"}


def test_another_client_of_the_file_is_refused_on_the_thread_too(q: duly.Client, jobs: str, reopen: Any) -> None:
    other = reopen()
    with q.transaction() as tx:
        with pytest.raises(duly.InvalidArgument, match="tx=tx"):
            other.publish(jobs, b"x")
        with pytest.raises(duly.InvalidArgument, match="do not nest"), other.transaction():
            pass
        with pytest.raises(duly.InvalidArgument, match="Leave its block"):
            other.close()
        other.publish(jobs, duly.Message(b"x", id="joined"), tx=tx)
    assert ids(other) == {"joined"}


def test_the_same_file_under_another_name_is_the_same_file(
    home: Any, q: duly.Client, jobs: str, tmp_path: Path
) -> None:
    (tmp_path / "link.duly").symlink_to(home.address)
    with duly.connect(tmp_path / "link.duly") as other, q.transaction() as tx:
        with pytest.raises(duly.InvalidArgument, match="tx=tx"):
            other.publish(jobs, b"x")
        other.publish(jobs, duly.Message(b"x", id="joined"), tx=tx)
    assert ids(q) == {"joined"}


def test_transactions_do_not_nest_and_are_used_once(q: duly.Client, jobs: str) -> None:
    with q.transaction() as tx:
        with pytest.raises(duly.InvalidArgument, match="do not nest"), q.transaction():
            pass
        with pytest.raises(duly.InvalidArgument, match="used once"), tx:
            pass
        q.publish(jobs, duly.Message(b"x", id="x"), tx=tx)
    with pytest.raises(duly.InvalidArgument, match="used once"), tx:
        pass
    assert ids(q) == {"x"}


def test_it_is_not_used_before_its_block_nor_after_it(q: duly.Client, jobs: str) -> None:
    tx = q.transaction()
    for state in ("not open", "committed"):
        for act in (
            lambda: tx.execute("SELECT 1"),
            lambda: tx.executemany("SELECT 1", [()]),
            lambda: q.publish(jobs, b"x", tx=tx),
            tx.rollback,
        ):
            with pytest.raises(duly.InvalidArgument, match=state):
                act()
        if state == "not open":
            with tx:
                pass
    assert ids(q) == set()


def test_it_belongs_to_its_thread(q: duly.Client, jobs: str) -> None:
    with q.transaction() as tx:
        for act in (
            lambda: tx.execute("SELECT 1"),
            lambda: q.publish(jobs, b"x", tx=tx),
            tx.rollback,
            lambda: tx.__exit__(None, None, None),
            lambda: tx.__exit__(ValueError, ValueError(), None),
        ):
            with pytest.raises(duly.InvalidArgument, match="thread"):
                Aside(act).result()
        q.publish(jobs, duly.Message(b"x", id="x"), tx=tx)
    assert ids(q) == {"x"}


def test_transactions_on_two_stores_are_open_at_once_and_not_taken_for_each_other(q: duly.Client, jobs: str) -> None:
    with duly.connect(":memory:") as other:
        other.create_topic(jobs, kind="queue")
        with q.transaction() as tx, other.transaction() as second:
            with pytest.raises(duly.InvalidArgument, match="another store"):
                other.publish(jobs, b"x", tx=tx)
            with pytest.raises(duly.InvalidArgument, match="another store"):
                q.publish(jobs, b"x", tx=second)
            q.publish(jobs, duly.Message(b"x", id="here"), tx=tx)
            other.publish(jobs, duly.Message(b"x", id="there"), tx=second)
        assert (ids(q), ids(other)) == ({"here"}, {"there"})


@pytest.mark.parametrize("tx", [0, False, "tx", object(), duly.Transaction], ids=lambda tx: type(tx).__name__)
def test_what_is_no_transaction_is_refused(q: duly.Client, jobs: str, tx: Any) -> None:
    with pytest.raises(duly.InvalidArgument, match=r"what q.transaction\(\) gives"):
        q.publish(jobs, b"x", tx=tx)
    assert ids(q) == set()


def test_a_connection_of_the_standard_library_is_refused_with_the_reason(q: duly.Client, jobs: str) -> None:
    class Own(sqlite3.Connection):
        pass

    connection = sqlite3.connect(":memory:", factory=Own)
    for tx in (connection, connection.cursor()):
        with pytest.raises(duly.InvalidArgument, match="another copy of the SQLite library"):
            q.publish(jobs, b"x", tx=tx)
    connection.close()
    assert ids(q) == set()


def test_closing_inside_the_block_is_refused_and_changes_nothing(q: duly.Client, jobs: str) -> None:
    with q.transaction() as tx:
        with pytest.raises(duly.InvalidArgument, match="Leave its block"):
            q.close()
        q.publish(jobs, duly.Message(b"x", id="x"), tx=tx)
    assert ids(q) == {"x"}
    q.close()
    with pytest.raises(duly.Closed), q.transaction():
        pass


def test_closing_from_another_thread_waits_for_the_end_of_the_block(q: duly.Client, jobs: str, reopen: Any) -> None:
    other = reopen()
    with q.transaction() as tx:
        closing = Aside(q.close)
        assert closing.still_running_after(0.1)
        tx.execute("INSERT INTO done VALUES ('kept')")
    closing.result()
    with other.transaction() as tx:
        assert tx.execute("SELECT id FROM done") == [("kept",)]


# How long others wait


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> float:
    """The ten seconds that others wait, made short."""
    monkeypatch.setattr("duly.store.sqlite.writer._BUSY_S", 0.5)
    return 0.5


def test_writers_on_other_threads_wait_and_go_on_after_it(q: duly.Client, jobs: str) -> None:
    with q.transaction() as tx:
        writers = [Aside(partial(q.publish, jobs, duly.Message(b"x", id=f"{n}"))) for n in range(4)]
        other = Aside(lambda: _insert(q, "second"))
        assert all(writer.still_running_after(0.05) for writer in writers)
        assert other.still_running_after(0.05)
        q.publish(jobs, duly.Message(b"x", id="inside"), tx=tx)
    assert all(writer.result().count == 1 for writer in writers)
    other.result()
    assert ids(q) == {"0", "1", "2", "3", "inside"}


def _insert(q: duly.Client, name: str, timeout: float | None = None) -> None:
    with q.transaction(timeout=timeout) as tx:
        tx.execute("INSERT INTO done VALUES (?)", (name,))


def test_one_that_is_left_open_is_busy_for_the_others_and_nothing_of_theirs_is_done(
    q: duly.Client, jobs: str, short: float
) -> None:
    with q.transaction() as tx:
        began = time.monotonic()
        writers = [Aside(partial(q.publish, jobs, duly.Message(b"x", id=f"{n}"))) for n in range(3)]
        for writer in writers:
            with pytest.raises(duly.Busy, match="transaction has been open"):
                writer.result()
        with pytest.raises(duly.Busy):
            Aside(lambda: _insert(q, "second", 0.1)).result()
        assert short <= time.monotonic() - began < short + 5
        q.publish(jobs, duly.Message(b"x", id="inside"), tx=tx)
    assert ids(q) == {"inside"}
    _insert(q, "after")
    with q.transaction() as tx:
        assert tx.execute("SELECT id FROM done") == [("after",)]


WRITER = """
import sys, time, duly, duly.store.sqlite.writer as writer
writer._BUSY_S = 1.0
with duly.connect(sys.argv[1]) as q:
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    try:
        q.publish("jobs", duly.Message(b"x", id=sys.argv[2]))
        print("done", flush=True)
    except duly.Busy:
        print("busy", time.monotonic() - began, flush=True)
    sys.stdin.readline()
    q.publish("jobs", duly.Message(b"x", id=sys.argv[2] + " again"))
"""


def test_other_processes_all_get_busy_after_the_stated_time_and_go_on_after_the_end(
    home: Any, q: duly.Client, jobs: str
) -> None:
    """However many wait: not one after the other's patience."""
    command = [sys.executable, "-c", WRITER, home.address]
    started = [
        subprocess.Popen([*command, f"p{n}"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        with q.transaction() as tx:
            q.publish(jobs, duly.Message(b"x", id="inside"), tx=tx)
            _say(started)
            answers = [process.stdout.readline().split() for process in started if process.stdout is not None]
            assert [answer[0] for answer in answers] == ["busy"] * 3
            assert max(float(answer[1]) for answer in answers) < 2.5
        _say(started)
        assert [process.wait(30) for process in started] == [0] * 3
    finally:
        for process in started:
            with process:
                process.kill()
    assert ids(q) == {"inside", *(f"p{n} again" for n in range(3))}


def _say(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def test_publishers_without_pause_do_not_keep_a_transaction_from_beginning(q: duly.Client, jobs: str) -> None:
    """It begins after few commits of others, not when they tire."""
    q.create_topic("flood", kind="log")
    stop = threading.Event()

    def flood() -> int:
        count = 0
        while not stop.is_set():
            q.publish("flood", b"x")
            count += 1
        return count

    writers = [Aside(flood) for _ in range(4)]
    try:
        eventually(lambda: q.describe_topic("flood").messages > 20)
        passed = []
        for _ in range(10):
            before = q.describe_topic("flood").messages
            with q.transaction():
                passed.append(q.describe_topic("flood").messages - before)
    finally:
        stop.set()
    assert sum(writer.result() for writer in writers) > 20
    # A commit takes at most one message of each; some come while the transaction is being asked for.
    assert sorted(passed)[5] < 40, passed


# Fork


@pytest.mark.parametrize("leaves", ["returns", "raises"])
def test_a_fork_inside_the_block_leaves_the_transaction_to_the_parent(
    home: Any, q: duly.Client, jobs: str, leaves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.store.sqlite.store._FORK_WAIT_S", 0.05)
    answer, tell = os.pipe()
    child = 0
    try:
        with q.transaction() as tx:
            tx.execute("INSERT INTO done VALUES ('parent')")
            q.publish(jobs, duly.Message(b"x", id="parent"), tx=tx)
            child = os.fork()
            if child == 0:
                os.write(tell, _what_a_child_may_do(q, tx))
                if leaves == "raises":
                    raise KeyError("child")
    except KeyError:
        os.write(tell, b"raised ")
    except duly.InvalidArgument:
        os.write(tell, b"refused ")
    finally:
        if child == 0:
            os._exit(0)
    os.close(tell)
    with os.fdopen(answer, "rb") as told:
        said = told.read()
    os.waitpid(child, 0)
    assert said == (b"process process store raised " if leaves == "raises" else b"process process store refused ")
    assert ids(q) == {"parent"}
    _insert(q, "later")
    with q.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM done") == [(2,)]
    assert not [finding for finding in q.examine() if finding.level == "alert"]


def _what_a_child_may_do(q: duly.Client, tx: duly.Transaction) -> bytes:
    said = []
    for act in (lambda: tx.execute("INSERT INTO done VALUES ('child')"), tx.rollback, lambda: q.publish("jobs", b"x")):
        try:
            act()
            said.append("done")
        except duly.Error as error:
            said.append("process" if "process that opened" in str(error) else "store")
    return " ".join([*said, ""]).encode()
