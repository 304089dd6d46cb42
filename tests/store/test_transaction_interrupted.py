"""A signal's exception comes up inside, at the beginning and at the end of a transaction: rows and messages agree
after it, and everybody can write.

Python raises it between any two steps of the main thread. Here a tracer does so, at every line of the files that
begin, run and end a transaction, one after the other.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import duly
from tests.conftest import scaled

from .patience import Aside

pytestmark = [pytest.mark.embedded, pytest.mark.sqlite]

ROOT = Path(__file__).parents[2]
FILES = ("application.py", "writer.py", "shield.py")


class Interrupter:
    """Raises KeyboardInterrupt at the Nth line that this thread runs in FILES."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.where = ""

    def __call__(self, frame: FrameType, what: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.endswith(FILES) or "duly/store/sqlite" not in name:
            return None
        if what == "line" and not _is_entry(frame):
            self.left -= 1
            if self.left == 0:
                self.where = f"{Path(name).name}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt(self.where)
        return self

    def run(self, work: Callable[[], None]) -> bool:
        """Whether the work was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            work()
        except (KeyboardInterrupt, duly.StoreError):
            pass
        finally:
            sys.settrace(before)
        return bool(self.where)


def _is_entry(frame: FrameType) -> bool:
    # What comes up before the first line of __exit__, no Python code can answer.
    return frame.f_code.co_name == "__exit__" and frame.f_lineno <= frame.f_code.co_firstlineno + 3


@pytest.fixture
def log(q: duly.Client) -> str:
    assert threading.current_thread() is threading.main_thread()
    q.create_topic("log", kind="log")
    q.create_topic("jobs", kind="queue", lease=3600)
    with q.transaction() as tx:
        tx.execute("CREATE TABLE done (n INTEGER)")
    return "log"


def _swallow(work: Callable[[], object]) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        work()


def _plain(q: duly.Client, n: int) -> None:
    with q.transaction() as tx:
        tx.execute("INSERT INTO done VALUES (?)", (n,))
        q.publish("log", [b"%d" % n, b"%d" % n], tx=tx)


def _caught_inside(q: duly.Client, n: int) -> None:
    """The row is inserted only if publishing came back."""
    with q.transaction() as tx:
        _swallow(lambda: (q.publish("log", [b"%d" % n] * 2, tx=tx), tx.execute("INSERT INTO done VALUES (?)", (n,))))


def _rolled_back(q: duly.Client, n: int) -> None:
    with q.transaction() as tx:
        tx.execute("INSERT INTO done VALUES (?)", (n,))
        q.publish("log", b"%d" % n, tx=tx)
        tx.rollback()


def _messages(q: duly.Client) -> list[int]:
    return [int(one.payload) for one in q.read("log", max_messages=10_000)]


def _rows(q: duly.Client) -> list[int]:
    with q.transaction(timeout=5) as tx:
        return [n for (n,) in tx.execute("SELECT n FROM done ORDER BY rowid")]


def _everywhere(q: duly.Client, work: Callable[[duly.Client, int], None], check: Callable[[int, str], None]) -> int:
    n = 0
    while True:
        n += 1
        interrupter = Interrupter(n)
        interrupted = interrupter.run(lambda n=n: work(q, n))  # type: ignore[misc]
        try:
            # On a thread of its own, soon: nobody is locked out.
            Aside(lambda: q.publish("jobs", b"x", timeout=5)).result()
            check(n, interrupter.where)
        except duly.Error as error:
            pytest.fail(f"after an interruption at {interrupter.where}: {error}")
        if not interrupted:
            return n


def test_interrupted_anywhere_rows_and_messages_agree_and_everybody_can_write(q: duly.Client, log: str) -> None:
    def check(n: int, where: str) -> None:
        assert _rows(q).count(n) * 2 == _messages(q).count(n), where

    points = _everywhere(q, _plain, check)
    assert points > 50
    # The last was not interrupted, and some were when all was done.
    assert _messages(q)[-2:] == [points] * 2
    assert not [finding for finding in q.examine() if finding.level == "alert"]


def test_caught_inside_the_block_half_a_command_is_never_committed(q: duly.Client, log: str) -> None:
    def check(n: int, where: str) -> None:
        rows, messages = _rows(q).count(n), _messages(q).count(n)
        assert messages in (0, 2), where
        assert rows * 2 <= messages, where

    assert _everywhere(q, _caught_inside, check) > 50
    assert not [finding for finding in q.examine() if finding.level == "alert"]


def test_interrupted_anywhere_a_rollback_keeps_nothing(q: duly.Client, log: str) -> None:
    assert _everywhere(q, _rolled_back, lambda *_: None) > 50
    assert _rows(q) == []
    assert _messages(q) == []


def test_deliveries_are_settled_if_and_only_if_the_store_says_so(q: duly.Client, log: str) -> None:
    q.publish("jobs", [b"x"] * 200)
    held: list[duly.Batch] = []

    def work(q: duly.Client, n: int) -> None:
        with q.transaction() as tx:
            tx.execute("INSERT INTO done VALUES (?)", (n,))
            q.ack(held[-1], tx=tx)

    def check(n: int, where: str) -> None:
        settled = held[-1][0].settled
        assert settled == (n in _rows(q)), where
        assert q.ack(held[-1]).done == (0 if settled else 1), where
        held.append(q.claim("jobs", max_messages=1))

    held.append(q.claim("jobs", max_messages=1))
    _everywhere(q, work, check)


@pytest.mark.timeout(scaled(120, 600))
def test_real_signals_at_random_moments(tmp_path: Path) -> None:
    """KeyboardInterrupt on the main thread of a process, from a timer: see SIGNALLED."""
    shots = scaled(150, 5000)
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(tmp_path / "app.duly"), str(shots)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(100, 550),
    )
    print(done.stdout[-2000:], done.stderr[-4000:])
    assert done.returncode == 0


SIGNALLED = """
import random, signal, sys, threading, duly
seed = random.randrange(2**32)
print("seed", seed)
draw = random.Random(seed)
signal.signal(signal.SIGALRM, signal.default_int_handler)
q = duly.connect(sys.argv[1], timeout=5)
q.create_topic("log", kind="log")
with q.transaction() as tx:
    tx.execute("CREATE TABLE done (n INTEGER)")
stop, failed = threading.Event(), []
def others():
    n = 0
    while not stop.wait(0.002):
        n += 1
        try:
            with q.transaction() as tx:
                tx.execute("INSERT INTO done VALUES (?)", (-n,))
                q.publish("log", b"%d" % -n, tx=tx)
        except duly.Error as error:
            failed.append(error)
            return
beside = threading.Thread(target=others)
beside.start()
interrupted = 0
for n in range(1, int(sys.argv[2]) + 1):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.00001, 0.006))
            with q.transaction() as tx:
                tx.execute("INSERT INTO done VALUES (?)", (n,))
                q.publish("log", b"%d" % n, tx=tx)
                if draw.random() < 0.1:
                    tx.rollback()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
stop.set()
beside.join()
assert not failed, failed
with q.transaction() as tx:
    rows = sorted(n for n, in tx.execute("SELECT n FROM done"))
messages, offset = [], 0
while page := q.read("log", offset=offset):
    messages += [int(one.payload) for one in page]
    offset += len(page)
assert rows == sorted(messages), set(rows) ^ set(messages)
assert not [finding for finding in q.examine() if finding.level == "alert"]
print(interrupted, "interrupted,", sum(n > 0 for n in rows), "kept,", sum(n < 0 for n in rows), "by others")
assert interrupted > 10
q.close()
"""
