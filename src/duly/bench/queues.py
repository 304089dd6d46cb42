"""Filling queues and emptying them: what the benchmarks of queues have in common."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa

import duly
from duly.clock import monotonic_s
from duly.limits import LIMITS

_STANDING_BATCH = 10_000


def queue_table(
    count: int, *, payload_bytes: int = 100, lanes: int = 0, due_at_ms: int | None = None, seed: int = 0
) -> pa.Table:
    """`count` messages of random payload and priority; in one of `lanes` lanes each, due at one moment, if told."""
    draw = np.random.default_rng(seed)
    offsets = np.arange(count + 1, dtype=np.int32) * payload_bytes
    data = pa.py_buffer(os.urandom(count * payload_bytes))
    columns: dict[str, pa.Array] = {
        "payload": pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data]),
        "priority": pa.array(draw.integers(0, LIMITS.priority_max + 1, count), pa.uint16()),
    }
    if lanes:
        names = pa.array([f"lane-{number}" for number in range(lanes)])
        columns["lane"] = names.take(pa.array(draw.integers(0, lanes, count)))
    if due_at_ms is not None:
        columns["due_at"] = pa.array(np.full(count, due_at_ms), pa.int64())
    return pa.table(columns)


def as_messages(table: pa.Table) -> list[duly.Message]:
    """A table's rows as a program would publish them one by one."""
    return [duly.Message(**row) for row in table.to_pylist()]


def stand(client: duly.Client, topic: str, messages: int, payload_bytes: int = 100, lanes: int = 0) -> None:
    """Publishes messages of random priority that are ready, in big batches."""
    for seed, first in enumerate(range(0, messages, _STANDING_BATCH)):
        count = min(_STANDING_BATCH, messages - first)
        client.publish(topic, queue_table(count, payload_bytes=payload_bytes, lanes=lanes, seed=seed))


def drain(client: duly.Client, topic: str, messages: int, most: int = 1000) -> list[float]:
    """Claims and acks so many messages of a queue; how long each call took, claims and acks in turns."""
    took: list[float] = []
    got = 0
    while got < messages:
        began = monotonic_s()
        batch = client.claim(topic, max_messages=min(most, messages - got))
        got += len(batch.payloads)
        claimed = monotonic_s()
        client.ack(batch)
        took += [claimed - began, monotonic_s() - claimed]
        if not len(batch):
            raise duly.Error(f"Only {got} of {messages} messages came back.")
    return took
