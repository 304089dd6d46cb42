"""What giving space back costs a busy store on PostgreSQL, and what it is without.

    PYTHONPATH=. python bench/space.py [version] [megabytes] [seconds]

Four threads publish to and consume from four queues, a hundred messages of 1,000 bytes at a time, while nine tenths of
a log are dropped. Once with the sweeper (store/postgres/space.py), once with autovacuum alone.
"""

from __future__ import annotations

import sys
import threading
from time import monotonic

import psycopg

import duly
from duly.store.postgres.space import Sweeper
from tests.postgres_server import PostgresServer

TOPICS = 4


def measure(version: int, megabytes: int, seconds: float, name: str) -> None:
    server = PostgresServer(version, shared_buffers="256MB")
    server.start()
    try:
        with duly.connect(server.dsn() + "?schema=duly") as q, psycopg.connect(server.dsn(), autocommit=True) as beside:
            q.create_topic("log", kind="log", retention=duly.Retention())
            for _ in range(megabytes):
                q.publish("log", [bytes(range(256)) * 64] * 64)
            traffic = Traffic(q)
            traffic.rate(3)
            report(name, "before", traffic.rate(seconds), beside)
            q.update_topic("log", retention=duly.Retention(bytes=megabytes * 100_000))
            for _ in range(3):
                report(name, "dropping", traffic.rate(seconds), beside)
            traffic.stop()
            threading.Event().wait(10)
            report(name, "at rest", (0.0, [0.0]), beside)
    finally:
        server.close()


class Traffic:
    """Publishes and consumes; `rate` is messages a second, and how long each publish took."""

    def __init__(self, q: duly.Client) -> None:
        self._stopping = threading.Event()
        self._passed = [0] * TOPICS
        self._took: list[float] = []
        for number in range(TOPICS):
            q.create_topic(f"q{number}", kind="queue")
        self._threads = [threading.Thread(target=self._work, args=(q, number)) for number in range(TOPICS)]
        for thread in self._threads:
            thread.start()

    def _work(self, q: duly.Client, number: int) -> None:
        while not self._stopping.is_set():
            began = monotonic()
            q.publish(f"q{number}", [b"x" * 1000] * 100)
            self._took.append(monotonic() - began)
            self._passed[number] += q.claim(f"q{number}", max_messages=100).ack().done

    def rate(self, seconds: float) -> tuple[float, list[float]]:
        self._took = []
        before, began = sum(self._passed), monotonic()
        threading.Event().wait(seconds)
        return (sum(self._passed) - before) / (monotonic() - began), sorted(self._took)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


def report(name: str, when: str, rate: tuple[float, list[float]], beside: psycopg.Connection[tuple[int]]) -> None:
    asked = "SELECT sum(pg_total_relation_size(oid))::BIGINT FROM pg_class"
    row = beside.execute(f"{asked} WHERE relnamespace = 'duly'::regnamespace AND relkind = 'r'".encode()).fetchone()
    assert row is not None
    passed, took = rate
    print(
        f"{name:10} {when:9} {passed:8,.0f} messages/s, publish p50 {took[len(took) // 2] * 1e3:5.1f} ms"
        f" p99 {took[len(took) * 99 // 100] * 1e3:6.1f} max {took[-1] * 1e3:6.1f}; {row[0] / 1e6:6.0f} MB"
    )


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    version, megabytes, seconds = (*given, *(16, 200, 8)[len(given) :])
    measure(version, megabytes, seconds, "swept")
    setattr(Sweeper, "owe", lambda _: None)  # noqa: B010
    measure(version, megabytes, seconds, "not swept")
