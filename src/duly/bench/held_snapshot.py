"""Claims while somebody's transaction sits idle with a snapshot: PostgreSQL may then clean up nothing that is dead.

A queue that updates a row a claim gets slower by the second, as every claim reads what the claims before left behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

import duly
from duly.bench.brokers import own_topics
from duly.bench.queues import drain, stand
from duly.bench.threads import in_a_thread
from duly.clock import monotonic_s

_LEASE_S = 600
_WINDOW_S = 5.0
_TRIED = 2000
_REFILL = 20_000


def measure(client: duly.Client, dsn: str, *, hold_s: float, most: int) -> dict[str, float]:
    """Messages claimed and acked a second, `most` at a time: before, and in the last seconds of the snapshot."""
    window_s = min(_WINDOW_S, hold_s / 4)
    with own_topics(client, "snapshot") as (topic,):
        client.create_topic(topic, kind="queue", lease=_LEASE_S)
        stand(client, topic, _TRIED)
        tried_s = sum(in_a_thread(lambda: drain(client, topic, _TRIED, most)))
        # Enough to last, and half as much again.
        stand(client, topic, round(1.5 * (hold_s + 2 * window_s) * _TRIED / tried_s))
        # The first claims after so much was published take up work left behind: counted, they would flatter the ratio.
        in_a_thread(lambda: _rate(client, topic, window_s, most))
        before = in_a_thread(lambda: _rate(client, topic, window_s, most))
        with _snapshot(dsn):
            in_a_thread(lambda: _rate(client, topic, hold_s - window_s, most))
            held = in_a_thread(lambda: _rate(client, topic, window_s, most))
    return {"ratio": round(held / before, 3), "before_per_s": round(before), "after_per_s": round(held)}


@contextmanager
def _snapshot(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as idle:
        idle.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        idle.execute("SELECT count(*) FROM pg_class")
        yield


def _rate(client: duly.Client, topic: str, seconds: float, most: int) -> float:
    """Claims and acks for so long. What is published should it run dry is not counted."""
    count, spent_s = 0, 0.0
    while spent_s < seconds:
        began = monotonic_s()
        batch = client.claim(topic, max_messages=most)
        count += len(batch.payloads)
        client.ack(batch)
        spent_s += monotonic_s() - began
        if not len(batch):
            stand(client, topic, _REFILL)
    return count / spent_s
