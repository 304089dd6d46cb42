"""The processes of test_transactions.py: consumers whose work is rows of their own, in the transaction of the ack.

python -m tests.crash.transaction_worker lives FILE LIVES SEED [SABOTAGE]
python -m tests.crash.transaction_worker points FOLDER

A *life* is a process that claims, works in transactions and ends each as chance has it: it commits, rolls back, raises,
or is killed, at any moment and while others hold theirs open. Several live at once, until so many have been.
Processes are forked from one that has never opened a store.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw

import duly

from .power_vfs import Connection, Disk, DiskVFS

LEASE_S = 0.7
AT_ONCE = 4
TABLES = """
CREATE TABLE IF NOT EXISTS asked (id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS effect (id TEXT PRIMARY KEY, times INTEGER NOT NULL)
"""
COUNT = "INSERT INTO effect VALUES (?, 1) ON CONFLICT DO UPDATE SET times = times + 1"
# Where the work is claimed from, and for which group.
STREAMS: dict[str, str | None] = {"jobs": None, "orders": "billing"}
FOLLOW_UPS = "follow-ups"


class Undone(Exception):
    """Leaves a block so that it is rolled back."""


def connect(path: str | Path, name: str) -> duly.Client:
    q = duly.connect(path, consumer=name)
    retry = duly.RetryPolicy(max_attempts=10_000, base=0.01, cap=0.1)
    q.create_topic("jobs", kind="queue", lease=LEASE_S, retry=retry, exist_ok=True)
    q.create_topic("orders", kind="log", lease=LEASE_S, retry=retry, exist_ok=True)
    q.create_group("orders", "billing", exist_ok=True)
    q.create_topic(FOLLOW_UPS, kind="log", exist_ok=True)
    with q.transaction() as tx:
        tx.execute(TABLES)
    return q


def ask(q: duly.Client, stream: str, ids: Sequence[str], end: Callable[[], None]) -> None:
    """New work: noted in a row and published."""
    with q.transaction() as tx:
        tx.executemany("INSERT INTO asked VALUES (?)", [(one,) for one in ids])
        q.publish(stream, [duly.Message(one.encode(), id=one) for one in ids], tx=tx)
        end()


def work(q: duly.Client, batch: duly.Batch, end: Callable[[], None], sabotage: str = "") -> None:
    """Each delivery has an effect and a follow-up, and is acked, in one transaction."""
    with q.transaction() as tx:
        ids = [delivery.payload.decode() for delivery in batch]
        tx.executemany(COUNT, [(one,) for one in ids])
        if sabotage != "ack outside" and q.ack(batch, tx=tx).lost:
            raise Undone
        follow_ups = [duly.Message(one.encode()) for one in ids]
        if sabotage != "publish outside":
            q.publish(FOLLOW_UPS, follow_ups, tx=tx)
        end()
    if sabotage:
        end()
        q.publish(FOLLOW_UPS, follow_ups) if sabotage == "publish outside" else q.ack(batch)


class Life:
    """A process of this kind, from its first claim to its end."""

    def __init__(self, path: str, name: str, seed: str, sabotage: str) -> None:
        self.name = name
        self.draw = random.Random(seed)
        self.sabotage = sabotage
        if self.draw.random() < 0.25:
            self.doom(self.draw.uniform(0.02, 0.6))
        self.q = connect(path, name)

    def live(self) -> None:
        for number in range(6):
            with contextlib.suppress(Undone):
                self.step(number)
        self.q.close()

    def step(self, number: int) -> None:
        stream = self.draw.choice(list(STREAMS))
        if self.draw.random() < 0.4:
            ids = [f"{self.name}-{number}-{at}" for at in range(self.draw.randint(1, 5))]
            ask(self.q, stream, ids, self.end)
            return
        batch = self.q.claim(stream, group=STREAMS[stream], max_messages=self.draw.randint(1, 8), wait=0.1)
        if batch:
            work(self.q, batch, self.end, self.sabotage)

    def end(self) -> None:
        """How the block goes on: holds the transaction open, is killed now or soon, raises, or commits."""
        chance = self.draw.random()
        if chance < 0.3:
            time.sleep(self.draw.uniform(0, 0.03))
        if chance < 0.05:
            os.kill(os.getpid(), signal.SIGKILL)
        elif chance < 0.15:
            self.doom(self.draw.uniform(0, 0.005))
        elif chance < 0.4:
            raise Undone

    def doom(self, seconds: float) -> None:
        """kill -9 in a moment, wherever it is then."""
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()


def fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    return child


def lives(path: str, count: int, seed: str, sabotage: str = "") -> None:
    """Says how many were killed, how many came to their end, and that none ended otherwise."""
    living: set[int] = set()
    ends = {0: 0, -signal.SIGKILL: 0}
    begun = 0
    while begun < count or living:
        if begun < count and len(living) < AT_ONCE:
            name = f"w{begun}"
            living.add(fork(lambda name=name: Life(path, name, f"{seed} {name}", sabotage).live()))  # type: ignore[misc]
            begun += 1
            continue
        child, status = os.wait()
        living.discard(child)
        ends[os.waitstatus_to_exitcode(status)] += 1
    print(ends[-signal.SIGKILL], ends[0])


def points(folder: Path) -> None:
    """One transaction, killed at its first write call, its second, … until it is not killed any more."""
    with connect(folder / "app.duly", "first") as q:
        ask(q, "jobs", ["a", "b", "c"], lambda: None)
        q.create_topic("side", kind="log")
        q.publish("side", b"before")
    point, status = 0, -1
    while status != 0:
        point += 1
        target = folder / f"{point}"
        target.mkdir()
        shutil.copy(folder / "app.duly", target)
        child = fork(lambda target=target, point=point: killed_at(target / "app.duly", point))  # type: ignore[misc]
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(point)


def killed_at(path: Path, point: int) -> None:
    disk = Disk(recording=False)
    # Kept: it is the default one as long as it lives.
    vfs = DiskVFS(disk)
    apsw.Connection = Connection  # type: ignore[misc]
    q = duly.connect(path, consumer="killed")
    batch = q.claim("jobs", max_messages=2)
    assert len(batch) == 2
    disk.kill_at = disk.calls + point
    work(q, batch, lambda: None)
    with q.transaction() as tx:
        tx.execute("CREATE TABLE big (body)")
        tx.executemany("INSERT INTO big VALUES (?)", [(os.urandom(3000),)] * 5)
        q.publish("side", [b"big"] * 5, tx=tx)
    disk.kill_at = None
    q.close()
    vfs.unregister()


if __name__ == "__main__":
    if sys.argv[1] == "lives":
        lives(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    else:
        points(Path(sys.argv[2]))
