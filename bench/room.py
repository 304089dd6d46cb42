"""The waiting room: how long after a publish a waiter is told, and how many claims of one message a second it serves.

    .venv/bin/python bench/room.py

Clients are callbacks here: no surface and no thread each, so this is what the room and the store cost.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from duly.broker.broker import Broker
from duly.client.embedded import Embedded
from duly.clock import SystemClock, monotonic_s
from duly.engine.claimed import Claim, Claimed
from duly.engine.settling import Settle, Token
from duly.store.sqlite.store import SqliteStore


class Crowd:
    """So many who claim one message, ack it, and come again."""

    def __init__(self, broker: Broker, many: int) -> None:
        self.broker = broker
        self.served = 0
        self.stopped = False
        self.told_at = 0.0
        self.told = threading.Event()
        for number in range(many):
            self.come(Claim("default", "jobs", "queue", f"w{number}", 1, 1 << 26))

    def come(self, command: Claim) -> None:
        if not self.stopped:
            self.broker.submit_claim(
                command, wait_until=monotonic_s() + 3600, then=lambda answer: self.take(command, answer)
            )

    def take(self, command: Claim, answer: Claimed | Exception) -> None:
        if not isinstance(answer, Claimed) or self.stopped:
            return
        self.served += 1
        self.told_at = time.perf_counter()
        self.told.set()
        tokens = tuple(Token(parcel.lease_id) for parcel in answer.parcels)
        ack = Settle("default", answer.incarnation, "jobs", "queue", "ack", tokens)
        self.broker.submit(ack, then=lambda _: self.come(command))


@contextmanager
def opened() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("DULY_BENCH_DIR")) as folder:
        home = Embedded(lambda: SqliteStore(os.path.join(folder, "app.duly"), clock=SystemClock()))
        broker = Broker(home)
        broker.client("default").create_topic("jobs", kind="queue")
        try:
            yield broker
        finally:
            broker.shut()


def latency(many: int, turns: int = 500) -> None:
    """From the return of a publish (after its commit) to `then`. Below zero: told before the publisher was."""
    with opened() as broker:
        crowd, q = Crowd(broker, many), broker.client("default")
        time.sleep(1)
        took: list[float] = []
        for _ in range(turns):
            crowd.told.clear()
            q.publish("jobs", b"x")
            published_at = time.perf_counter()
            crowd.told.wait(10)
            took.append((crowd.told_at - published_at) * 1000)
            time.sleep(0.005)
        took.sort()
        crowd.stopped = True
    print(
        f"{many:5} wait: told {statistics.median(took):.2f} ms after the publish, p99 {took[turns * 99 // 100]:.2f} ms"
    )


def throughput(many: int, seconds: float = 5) -> None:
    """Claims of one message and their acks, from a backlog that does not end."""
    with opened() as broker:
        q = broker.client("default")
        q.publish("jobs", [b"x" * 100] * 100_000)
        began, crowd = time.perf_counter(), Crowd(broker, many)
        time.sleep(seconds)
        rate = crowd.served / (time.perf_counter() - began)
        crowd.stopped = True
    print(f"{many:5} claim: {rate:,.0f} claims of one message a second, each acked")


def profile(many: int) -> None:
    """Where the writer's thread spends its time."""
    with opened() as broker:
        broker.client("default").publish("jobs", [b"x" * 100] * 100_000)
        profiler = cProfile.Profile()
        writer = broker._home.store._writer
        transact = writer._transact
        writer._transact = lambda *given, **named: profiler.runcall(transact, *given, **named)
        crowd = Crowd(broker, many)
        time.sleep(5)
        crowd.stopped = True
        writer._transact = transact
        time.sleep(0.1)
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    if sys.argv[1:] == ["profile"]:
        profile(100)
    else:
        for many in (1, 100, 2_000):
            latency(many)
        for many in (100, 2_000):
            throughput(many)
