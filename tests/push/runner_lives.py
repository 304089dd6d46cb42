"""The processes of test_runners_killed.py: brokers' runners, forwarding from a log over a queue into a log.

python -m tests.push.runner_lives STORE LIVES SEED [SABOTAGE]

A *life* is a process that runs both pushes until it is ended: killed at any moment, or stopped for a while (SIGSTOP)
as if it hung, while others take over, and then let go on; on PostgreSQL its connections are terminated by the server,
too. Transactions are held open now and then, beyond the lease. Several live at once, until so many have been and all is
forwarded. Processes are forked from one that has never opened a store.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

import duly
from duly.broker.pushes import topic_runner
from duly.broker.pushes.topic_runner import TopicRunner
from duly.push import RunningPush, ToTopic

from ..crash.transaction_worker import fork

AT_ONCE = 3
LEASE_MS = 400
PUSHES = [
    RunningPush("default", "inward", "orders", "billing", ToTopic("timeline", due="json.at")),
    RunningPush("default", "outward", "timeline", "", ToTopic("sorted")),
]


def define(store: str, count: int) -> None:
    retry = duly.RetryPolicy(max_attempts=10_000, base=0.01, cap=0.1)
    with duly.connect(store) as q:
        q.create_topic("orders", kind="log", partitions=2, retry=retry)
        q.create_group("orders", "billing")
        q.create_topic("timeline", kind="queue", retry=retry)
        q.create_topic("sorted", kind="log")
        messages = [duly.Message(b'{"n":%d,"at":%d}' % (n, 1_700_000_000_000 + n), key=f"k{n}") for n in range(count)]
        for at in range(0, count, 1000):
            q.publish("orders", messages[at : at + 1000])


def left(q: duly.Client) -> int:
    group = q.describe_group("orders", "billing")
    queue = q.describe_topic("timeline")
    return group.lag + group.pending + queue.messages


class Life:
    """A process of this kind."""

    def __init__(self, store: str, seed: str, sabotage: str) -> None:
        self.draw = random.Random(seed)
        topic_runner._LEASE_MS = LEASE_MS
        self.sabotage = sabotage
        self.q = duly.connect(store)
        port: Any = self.q._alive()
        self.do: Callable[..., Any] = port.do
        port.do = self.slowly

    def slowly(self, command: Any, *, tx: Any = None, **how: Any) -> Any:
        if self.sabotage and type(command).__name__ == "Publish":
            # In a thread of its own: a file's transaction is its thread's, and the other waits for its end.
            threading.Thread(target=self.do, args=(command,), kwargs=how, daemon=True).start()
            return None
        answer = self.do(command, tx=tx, **how)
        # On a file everybody waits for it: there is the lock for ten seconds, and nothing to be won by more.
        if tx is not None and self.draw.random() < 0.05:
            time.sleep(self.draw.choice([0.01, 0.05, LEASE_MS / 1000, 2 * LEASE_MS / 1000]))
        return answer

    def live(self) -> None:
        runners = [TopicRunner(self.q, push, lambda *told: None, batch=self.draw.randint(3, 25)) for push in PUSHES]
        while all(runner.running for runner in runners):
            time.sleep(0.1)


class Fate:
    """What happens to them."""

    def __init__(self, store: str, lives: int, seed: str, sabotage: str) -> None:
        self.store, self.lives, self.seed, self.sabotage = store, lives, seed, sabotage
        self.draw = random.Random(seed)
        self.living: set[int] = set()
        # When one that is stopped goes on.
        self.stopped: dict[int, float] = {}
        self.begun = self.stops = self.terminated = 0
        self.is_postgres = store.startswith("postgres")

    def run(self) -> None:
        deadline = time.monotonic() + 60 + 3 * self.lives
        while self.begun < self.lives or not self._is_done():
            assert time.monotonic() < deadline, "it does not come to an end"
            while len(self.living) < AT_ONCE:
                self._begin()
            time.sleep(self.draw.uniform(0.02, 0.25))
            self._happen()
        for pid in list(self.living):
            self._end(pid)
        print(self.begun, self.stops, self.terminated)

    def _begin(self) -> None:
        self.begun += 1
        seed = f"{self.seed} {self.begun}"
        store = self.store
        if self.is_postgres:
            store = store.replace("?", f"?application_name=life{self.begun}&", 1)
        self.living.add(fork(lambda: Life(store, seed, self.sabotage).live()))

    def _happen(self) -> None:
        self._let_go_on()
        pid = self.draw.choice(sorted(self.living))
        chance = self.draw.random()
        if chance < 0.4:
            self._end(pid)
        elif chance < 0.7 and pid not in self.stopped and len(self.stopped) < AT_ONCE - 1:
            os.kill(pid, signal.SIGSTOP)
            self.stopped[pid] = time.monotonic() + self.draw.choice([0.1, 0.6, 1.5])
            self.stops += 1
        elif self.is_postgres and chance < 0.9:
            self._terminate()

    def _let_go_on(self, *, all_of_them: bool = False) -> None:
        for pid, until in list(self.stopped.items()):
            if all_of_them or time.monotonic() >= until:
                os.kill(pid, signal.SIGCONT)
                del self.stopped[pid]

    def _end(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.living.discard(pid)
        self.stopped.pop(pid, None)

    def _terminate(self) -> None:
        """The server ends one of their connections, whichever it is."""
        with psycopg.connect(self.store.partition("?")[0], autocommit=True) as connection:
            rows = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'life%'").fetchall()
            if rows:
                connection.execute("SELECT pg_terminate_backend(%s)", self.draw.choice(rows))
                self.terminated += 1

    def _is_done(self) -> bool:
        """Asked in a process of its own: this one opens no store. Nobody who is stopped may keep it waiting."""
        self._let_go_on(all_of_them=True)
        child = fork(lambda: _leave(self.store))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status == 7


def _leave(store: str) -> None:
    with contextlib.suppress(duly.Busy), duly.connect(store) as q:
        if left(q) == 0:
            os._exit(7)


if __name__ == "__main__":
    Fate(sys.argv[1], int(sys.argv[2]), sys.argv[3], "".join(sys.argv[4:])).run()
