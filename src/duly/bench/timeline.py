"""How late, or early, messages are delivered whose due times are spread over a stretch of time."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import duly
from duly.bench.threads import in_a_thread
from duly.clock import SystemClock, monotonic_s

_DUE = struct.Struct("<q")
_BATCH = 1000
_MARGIN_MS = 500
_GIVE_UP_S = 60


@dataclass(slots=True)
class Lateness:
    """How many milliseconds after their due time messages came; early ones are counted apart."""

    late_ms: list[int]
    early: int = 0


def measure(client: duly.Client, *, messages: int, span_s: float) -> dict[str, float]:
    """Publishes, then consumes with blocking claims; lateness is by the clock that the store goes by."""
    client.create_topic("rehearsal", kind="queue")
    client.create_topic("timeline", kind="queue")
    clock = SystemClock()
    span_ms = round(span_s * 1000)
    # Publishing has to be over when the first falls due: how long that takes is tried out before.
    began = monotonic_s()
    _publish(client, "rehearsal", clock.now_ms() + 3_600_000, span_ms, messages)
    margin_ms = round((monotonic_s() - began) * 2000) + _MARGIN_MS
    _publish(client, "timeline", clock.now_ms() + margin_ms, span_ms, messages)
    found = in_a_thread(lambda: _consume(client, clock, messages, span_s + margin_ms / 1000 + _GIVE_UP_S))
    late = sorted(found.late_ms)
    return {
        "messages": len(late),
        "missing": messages - len(late),
        "early": found.early,
        "late_p50_ms": late[len(late) // 2],
        "late_p99_ms": late[int(len(late) * 0.99)],
        "late_max_ms": late[-1],
    }


def _publish(client: duly.Client, topic: str, from_ms: int, span_ms: int, messages: int) -> None:
    # Not in the order in which they fall due.
    due_at = from_ms + np.random.default_rng(0).permutation(messages) * span_ms // messages
    for first in range(0, messages, _BATCH):
        part = due_at[first : first + _BATCH]
        payloads = [_DUE.pack(due) for due in part.tolist()]
        table = pa.table({"payload": pa.array(payloads, pa.binary()), "due_at": pa.array(part, pa.int64())})
        client.publish(topic, table)


def _consume(client: duly.Client, clock: SystemClock, messages: int, seconds: float) -> Lateness:
    found = Lateness([])
    give_up = monotonic_s() + seconds
    while len(found.late_ms) < messages and monotonic_s() < give_up:
        batch = client.claim("timeline", max_messages=_BATCH, wait=5)
        now_ms = clock.now_ms()
        for payload in batch.payloads:
            late_ms = now_ms - _DUE.unpack(payload)[0]
            found.early += late_ms < 0
            found.late_ms.append(max(0, late_ms))
        client.ack(batch)
    return found
