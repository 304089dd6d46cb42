"""The scripted life of a store that the crash tests cut short, and the process that runs it.

Every operation is written to a journal (a file that is not part of the store) before it begins and
when it is answered. Run as a module it is a zygote: it reads orders as JSON lines, forks a child for
each, and answers with the child's end; `--once ORDER` runs one order in this process.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import apsw
import numpy  # noqa: F401 - every child would have to import it
import pyarrow  # noqa: F401 - likewise

import duly
from duly.store.sqlite import checkpoint
from duly.store.sqlite.store import SqliteStore
from duly.store.sqlite.writer import Writer

from .power_vfs import Connection, Disk, DiskVFS, sync_failure

ROOT = Path(__file__).parents[2]
LEASE_S = 60
# Checkpoints and WAL resets come every few pages and not every few thousand: their writes are points to fail at, too.
COPY_PAGES = 30

_fork_safe_clock = duly.SystemClock()


class Journal:
    """What was begun and what was answered, in a file that no crash of the store touches."""

    def __init__(self, path: str, disk: Disk | None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._disk = disk
        self._number = 0

    def note(self, **entry: Any) -> None:
        """One line, and a mark in the record."""
        line = json.dumps({"at": _fork_safe_clock.now_ms(), **entry})
        os.write(self._fd, line.encode() + b"\n")
        if self._disk is not None:
            self._disk.mark(line)

    def do(self, what: str, act: Callable[[], Any], **facts: Any) -> Any:
        """Runs an operation between its two lines. None when it was refused."""
        self._number += 1
        number = self._number
        self.note(begin=number, what=what, **facts)
        for _ in range(3):
            try:
                answer = act()
            except duly.PublishUnknown as error:
                self.note(doubt=number, error=repr(error))
                if facts.get("publish_id") is None:
                    return None
            except duly.Error as error:
                # Of a settle "nothing was changed" is said in so many words, or nothing is promised.
                kind = "refused" if what == "publish" or "othing was" in str(error) else "doubt"
                self.note(**{kind: number}, error=repr(error))
                return None
            else:
                self.note(done=number, **_facts(answer))
                return answer
        return None


def _facts(answer: Any) -> dict[str, Any]:
    if isinstance(answer, duly.Receipt):
        return {"positions": answer.positions, "duplicate": answer.duplicate}
    if isinstance(answer, duly.Batch):
        return {"positions": [(d.partition, d.offset) for d in answer]}
    if isinstance(answer, duly.Settled):
        return {"lost": [(d.partition, d.offset) for d in answer.lost]}
    return {}


def payloads(name: str, count: int, *, bytes_each: int = 0) -> list[bytes]:
    """Payloads that say which batch they belong to, which one they are, and of how many."""
    return [f"{name}:{index}:{count}:".encode().ljust(bytes_each, b"x") for index in range(count)]


class Life:
    """The script."""

    def __init__(self, path: str, journal: Journal, *, forking: bool = False) -> None:
        self.path = path
        self.journal = journal
        self.forking = forking
        self.published = 0

    def run(self) -> None:
        opened = self.journal.do("open", lambda: duly.connect(self.path, consumer="script"))
        if opened is None:
            return
        self.q: duly.Client = opened
        self.define()
        self.fill()
        self.work_on_orders()
        self.work_on_parts()
        self.let_retention_drop()
        self.go_on()
        self.journal.do("close", self.q.close)

    def define(self) -> None:
        retry = duly.RetryPolicy(max_attempts=100, base=1)
        self.topic("orders", retry=retry)
        self.topic("parts", retry=retry, partitions=3)
        self.topic("short", retry=retry, retention=duly.Retention(age=0.05))
        for topic, group in (("orders", "a"), ("orders", "b"), ("parts", "a"), ("short", "a")):
            act = lambda topic=topic, group=group: self.q.create_group(topic, group)  # noqa: E731
            self.journal.do("create_group", act, topic=topic, group=group)

    def topic(self, name: str, **settings: Any) -> None:
        act = lambda: self.q.create_topic(name, kind="log", lease=LEASE_S, **settings)  # noqa: E731
        self.journal.do("create_topic", act, topic=name)

    def publish(self, topic: str, count: int = 1, *, named: bool = True, bytes_each: int = 0) -> None:
        self.published += 1
        bodies = payloads(f"batch{self.published}", count, bytes_each=bytes_each)
        messages = [duly.Message(body, key=f"k{at}") for at, body in enumerate(bodies)]
        publish_id = f"p{self.published}" if named else None
        if self.forking:
            _fork_and_forget()
        self.journal.do(
            "publish",
            lambda: self.q.publish(topic, messages, publish_id=publish_id),
            topic=topic,
            batch=f"batch{self.published}",
            count=count,
            bytes_each=bytes_each,
            publish_id=publish_id,
        )

    def claim(self, topic: str, group: str, most: int) -> Sequence[duly.Delivery]:
        act = lambda: self.q.claim(topic, group=group, max_messages=most)  # noqa: E731
        return self.journal.do("claim", act, topic=topic, group=group) or ()

    def settle(self, verdict: str, deliveries: Sequence[duly.Delivery], **how: Any) -> None:
        if deliveries:
            self.journal.do(
                verdict,
                lambda: getattr(self.q, verdict)(deliveries, **how),
                topic=deliveries[0].topic,
                group=deliveries[0].group,
                positions=[(d.partition, d.offset) for d in deliveries],
            )

    def fill(self) -> None:
        self.publish("orders")
        self.publish("orders", 20)
        self.publish("orders", 1, bytes_each=9000)
        self.publish("orders", 3, named=False)
        self.publish("parts", 30)

    def work_on_orders(self) -> None:
        got = self.claim("orders", "a", 12)
        self.settle("ack", got[:4])
        self.settle("nack", got[4:6], delay=5)
        self.settle("release", got[6:7])
        self.settle("bury", got[7:9], reason="bad")
        self.settle("extend", got[9:10])
        self.settle("ack", self.claim("orders", "b", 500))

    def work_on_parts(self) -> None:
        got = self.claim("parts", "a", 30)
        self.settle("ack", got[::2])
        self.settle("nack", got[1::2], delay=0)
        self.settle("bury", self.claim("parts", "a", 3), reason="worse")
        self.publish("parts", 12)
        self.claim("parts", "a", 5)

    def let_retention_drop(self) -> None:
        self.publish("short", 20, bytes_each=1000)
        self.settle("ack", self.claim("short", "a", 15))
        self.settle("ack", self.claim("short", "a", 100))
        deadline = duly.SystemClock().now_ms() + 300
        waiting = threading.Event()
        while duly.SystemClock().now_ms() < deadline and not self.short_is_truncated():
            waiting.wait(0.005)

    def short_is_truncated(self) -> bool:
        try:
            return self.q.describe_topic("short").partitions[0].first_offset > 0
        except duly.Error:
            return True

    def go_on(self) -> None:
        self.publish("orders", 1100)
        got = self.claim("orders", "b", 300)
        self.settle("ack", got[:100])
        self.settle("release", got[100:200])
        act = lambda: self.q.redrive("orders", group="a")  # noqa: E731
        self.journal.do("redrive", act, topic="orders", group="a")
        self.publish("short", 5)
        self.claim("orders", "a", 4)
        self.publish("orders", 7)


def live(order: dict[str, Any]) -> None:
    """Carries out one order in this process."""
    logging.disable()
    disk = None
    if order.get("vfs", True):
        disk = Disk(recording=bool(order.get("record")))
        vfs = DiskVFS(disk)
        apsw.Connection = Connection  # type: ignore[misc]
        disk.kill_at = order.get("kill_at")
        disk.fault = _sync_faults(order.get("fail_syncs", ()), order.get("fail_of", ""))
    checkpoint._COPY_PAGES = COPY_PAGES
    _alter_writer(order.get("pragmas", ()))
    journal = Journal(order["journal"], disk)
    if order.get("sabotage") == "doubts are left":
        setattr(Writer, "_clear_doubt", _leave_the_doubt)  # noqa: B010
    life = Life(order["path"], journal, forking=bool(order.get("forking")))
    if order.get("aside"):
        # Not on the main thread: there, callers may write by themselves.
        with ThreadPoolExecutor(1) as aside:
            aside.submit(life.run).result()
    else:
        life.run()
    if disk is not None:
        journal.note(calls=disk.calls)
        if order.get("record"):
            Path(order["record"]).write_bytes(pickle.dumps(disk.events))
        vfs.unregister()


def _leave_the_doubt(_writer: Writer, error: apsw.Error) -> None:
    raise duly.StoreError("Nothing was changed.") from error


def _fork_and_forget() -> None:
    """Forks a child that does nothing: every connection is closed on the way, the writer's is the next to open."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _alter_writer(pragmas: Sequence[str]) -> None:
    """Lets every write connection begin with these, too."""
    connect = SqliteStore._connect_writer

    def altered(store: SqliteStore) -> apsw.Connection:
        connection = connect(store)
        for pragma in pragmas:
            connection.execute(pragma)
        return connection

    setattr(SqliteStore, "_connect_writer", altered)  # noqa: B010


def _sync_faults(failing: Sequence[int], of: str) -> Callable[[str, str], Exception | None] | None:
    """Fails the syncs with these numbers, counted on files with such a name."""
    if not failing:
        return None
    numbers, seen = set(failing), 0

    def fault(what: str, name: str) -> Exception | None:
        nonlocal seen
        if what != "sync" or not name.endswith(of):
            return None
        seen += 1
        return sync_failure() if seen in numbers else None

    return fault


class Zygote:
    """A process that has everything imported and forks a child for every order."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.crash.workload"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True)

    def run(self, **order: Any) -> int:
        """Runs an order in a new process; returns its exit code, negative for a signal."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Zygote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


def _serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                live(json.loads(line))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        live(json.loads(sys.argv[2]))
    else:
        _serve()
