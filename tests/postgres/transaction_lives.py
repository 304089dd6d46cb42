"""The processes of test_transactions.py: applications whose work is rows of their own, in the transaction of a publish
or an ack.

python -m tests.postgres.transaction_lives URL DSN LIVES SEED [SABOTAGE]

A *life* is a process that asks for work and does work, in transactions of its own that end as chance has it: committed,
rolled back, their connection terminated by the server, the process killed; at once, or long after others that began
later. Beside that it claims what it gives back, as any consumer may. Several live at once, until so many have been.
Processes are forked from one that has never opened a store.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

import duly

from ..crash.transaction_worker import Undone, fork

LEASE_S = 0.3
AT_ONCE = 8
TABLES = """
CREATE TABLE IF NOT EXISTS asked (id TEXT PRIMARY KEY, stream TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS effect (id TEXT PRIMARY KEY, times INTEGER NOT NULL);
"""
COUNT = "INSERT INTO effect VALUES (%s, 1) ON CONFLICT (id) DO UPDATE SET times = effect.times + 1"
# Where the work is claimed from, and for which group.
STREAMS: dict[str, str | None] = {"jobs": None, "orders": "billing"}
FOLLOW_UPS = "follow-ups"
Connection = psycopg.Connection[tuple[Any, ...]]


def connect(url: str, name: str) -> duly.Client:
    return duly.connect(url, consumer=name)


def define(url: str, connection: Connection) -> None:
    retry = duly.RetryPolicy(max_attempts=10_000, base=0.01, cap=0.1)
    with connect(url, "first") as q:
        q.create_topic("jobs", kind="queue", lease=LEASE_S, retry=retry)
        q.create_topic("orders", kind="log", partitions=2, lease=LEASE_S, retry=retry)
        q.create_group("orders", "billing")
        q.create_topic(FOLLOW_UPS, kind="log")
    connection.execute(TABLES.encode())


def ask(
    q: duly.Client, connection: Connection, stream: str, ids: Sequence[str], end: Callable[[], None], *, sql: str = ""
) -> None:
    """New work: noted in rows and published; by a call in SQL, if a schema is given."""
    with connection.transaction():
        for one in ids:
            connection.execute("INSERT INTO asked VALUES (%s, %s)", (one, stream))
            if sql:
                connection.execute(f"SELECT {sql}.publish(%s, %s, id => %s)".encode(), (stream, one.encode(), one))
        if not sql:
            q.publish(stream, [duly.Message(one.encode(), id=one) for one in ids], tx=connection)
        end()


def work(
    q: duly.Client, connection: Connection, some: Sequence[duly.Delivery], end: Callable[[], None], sabotage: str = ""
) -> None:
    """Each delivery has an effect and a follow-up, and is acked, in one transaction."""
    with connection.transaction():
        ids = [delivery.payload.decode() for delivery in some]
        for one in sorted(ids):
            connection.execute(COUNT, (one,))
        if sabotage != "ack outside" and q.ack(some, tx=connection).lost:
            raise Undone
        if sabotage != "publish outside":
            q.publish(FOLLOW_UPS, [duly.Message(one.encode()) for one in ids], tx=connection)
        end()
    if sabotage:
        end()
        q.publish(FOLLOW_UPS, [one.encode() for one in ids]) if sabotage == "publish outside" else q.ack(some)


class Life:
    """A process of this kind, from its first claim to its end."""

    def __init__(self, url: str, dsn: str, name: str, seed: str, sabotage: str) -> None:
        self.url, self.dsn, self.name = url, dsn, name
        self.schema = url.rpartition("schema=")[2]
        self.draw = random.Random(seed)
        self.sabotage = sabotage
        if self.draw.random() < 0.25:
            self.doom(self.draw.uniform(0.02, 0.8))
        self.q = connect(url, name)
        self.connection = self.open()

    def open(self) -> Connection:
        return psycopg.connect(self.dsn, autocommit=True)

    def live(self) -> None:
        for number in range(5):
            try:
                self.step(number)
            except Undone:
                pass
            except psycopg.OperationalError:
                # Its connection was terminated.
                self.connection.close()
                self.connection = self.open()
        self.connection.close()
        self.q.close()

    def step(self, number: int) -> None:
        stream = self.draw.choice(list(STREAMS))
        if self.draw.random() < 0.4:
            ids = [f"{self.name}-{number}-{at}" for at in range(self.draw.randint(1, 5))]
            sql = self.schema if self.draw.random() < 0.4 else ""
            ask(self.q, self.connection, stream, ids, self.end, sql=sql)
            return
        batch = self.q.claim(stream, group=STREAMS[stream], max_messages=self.draw.randint(1, 8), wait=0.2)
        if self.draw.random() < 0.1:
            self.q.extend(batch[:1])
            self.q.nack(batch[:1], delay=0)
            self.q.release(batch)
        elif self.draw.random() < 0.3 and len(batch) > 1:
            self.share(batch)
        elif batch:
            work(self.q, self.connection, batch, self.end, self.sabotage)

    def share(self, batch: duly.Batch) -> None:
        """Two transactions at once, each with a part of the same leases."""
        half = len(batch) // 2
        with contextlib.closing(self.open()) as other:
            thread = threading.Thread(target=self.aside, args=(other, batch[half:]))
            thread.start()
            try:
                work(self.q, self.connection, batch[:half], self.end, self.sabotage)
            finally:
                thread.join()

    def aside(self, connection: Connection, some: Sequence[duly.Delivery]) -> None:
        with contextlib.suppress(Undone, psycopg.OperationalError):
            work(self.q, connection, some, lambda: time.sleep(0.05), self.sabotage)

    def end(self) -> None:
        """How the block goes on: holds the transaction open, perhaps beyond the lease, and then whatever chance has."""
        chance = self.draw.random()
        if chance < 0.4:
            time.sleep(self.draw.choice([0.0, 0.01, 0.05, LEASE_S - 0.01, LEASE_S, LEASE_S + 0.05, 2 * LEASE_S]))
        if chance < 0.05:
            os.kill(os.getpid(), signal.SIGKILL)
        elif chance < 0.12:
            self.doom(self.draw.uniform(0, 0.005))
        elif chance < 0.2:
            self.terminate()
        elif chance < 0.4:
            raise Undone

    def terminate(self) -> None:
        """The server ends the application's connection: at once, or about when it commits."""
        pid = self.connection.info.backend_pid
        timer = threading.Timer(self.draw.choice([0.0, 0.001, 0.003]), self._terminate, (pid,))
        timer.start()
        if self.draw.random() < 0.5:
            timer.join()

    def _terminate(self, pid: int) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))

    def doom(self, seconds: float) -> None:
        """kill -9 in a moment, wherever it is then."""
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()


def lives(url: str, dsn: str, count: int, seed: str, sabotage: str = "") -> None:
    """Says how many were killed, how many came to their end, and that none ended otherwise."""
    living: set[int] = set()
    ends = {0: 0, -signal.SIGKILL: 0}
    begun = 0
    while begun < count or living:
        if begun < count and len(living) < AT_ONCE:
            name = f"w{begun}"
            life = (url, dsn, name, f"{seed} {name}", sabotage)
            living.add(fork(lambda life=life: Life(*life).live()))  # type: ignore[misc]
            begun += 1
            continue
        child, status = os.wait()
        living.discard(child)
        ends[os.waitstatus_to_exitcode(status)] += 1
    print(ends[-signal.SIGKILL], ends[0])


if __name__ == "__main__":
    lives(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
