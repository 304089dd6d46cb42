"""How late, or early, messages are delivered whose due times are spread over a stretch of time.

Lateness is by this machine's clock, which the store goes by, in this process or in a broker here; between brokers,
whose store may be elsewhere, by the store's clock as a client can tell it.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

import duly
from duly.bench.brokers import beside, own_topics, share
from duly.bench.threads import in_threads
from duly.clock import SystemClock, monotonic_s

_DUE = struct.Struct("<q")
_BATCH = 1000
_MARGIN_MS = 500
_GIVE_UP_S = 60
_SLICES = 4
_ASKED = 20


def measure(client: duly.Client, *, messages: int, span_s: float) -> dict[str, float]:
    """Publishes, then consumes with blocking claims."""
    run = _Run(client, client, "timeline", "rehearsal")
    run.take(messages, span_s)
    return run.figures()


def measure_broker(broker: duly.Client, embedded: duly.Client, *, messages: int, span_s: float) -> dict[str, float]:
    """The same through a broker and in this process, in turns: a part of the messages and of the span in each."""
    with own_topics(broker, "timeline", "rehearsal") as topics:
        runs = _Run(broker, broker, *topics), _Run(embedded, embedded, *topics)
        for number in range(_SLICES):
            for run in runs:
                run.take(len(share(messages, number, _SLICES)), span_s / _SLICES)
        through, here = (run.figures() for run in runs)
    return beside(through, here, {"late_p99_to_embedded": "late_p99_ms"})


def measure_between(publisher: duly.Client, consumer: duly.Client, *, messages: int, span_s: float) -> dict[str, float]:
    """The same, published at one broker and consumed at another that shares its store."""
    with own_topics(publisher, "timeline", "rehearsal") as (topic, rehearsal):
        run = _Run(publisher, consumer, topic, rehearsal, ahead_ms=_ahead_ms(consumer))
        run.take(messages, span_s)
    return run.figures()


def _ahead_ms(client: duly.Client) -> int:
    """By how much the store's clock is ahead of this host's; 0 if that is less than asking for it can tell."""
    asked = []
    for _ in range(_ASKED):
        before_ms, began = SystemClock().now_ms(), monotonic_s()
        told_ms = round(client.clock().now.timestamp() * 1000)
        took_ms = (monotonic_s() - began) * 1000
        asked.append((took_ms, told_ms - before_ms - took_ms / 2))
    took_ms, ahead_ms = min(asked)
    return 0 if abs(ahead_ms) <= took_ms + 1 else round(ahead_ms)


class _Run:
    """A queue, and how many milliseconds after their due time its messages came; early ones are counted apart."""

    def __init__(
        self, client: duly.Client, consumer: duly.Client, topic: str, rehearsal: str, *, ahead_ms: int = 0
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._topic = topic
        self._rehearsal = rehearsal
        self._clock = SystemClock()
        self._ahead_ms = ahead_ms
        self._late_ms: list[int] = []
        self._asked = self._early = 0
        client.create_topic(rehearsal, kind="queue")
        client.create_topic(topic, kind="queue")

    def take(self, messages: int, span_s: float) -> None:
        """Publishes so many that fall due over a span, and consumes them."""
        span_ms = round(span_s * 1000)
        # Publishing has to be over when the first falls due: how long that takes is tried out before.
        began = monotonic_s()
        self._publish(self._rehearsal, self._now_ms() + 3_600_000, span_ms, messages)
        margin_ms = round((monotonic_s() - began) * 2000) + _MARGIN_MS
        self._publish(self._topic, self._now_ms() + margin_ms, span_ms, messages)
        self._asked += messages
        in_threads([lambda: self._consume(span_s + margin_ms / 1000 + _GIVE_UP_S)])

    def _now_ms(self) -> int:
        return self._clock.now_ms() + self._ahead_ms

    def _publish(self, topic: str, from_ms: int, span_ms: int, messages: int) -> None:
        # Not in the order in which they fall due.
        due_at = from_ms + np.random.default_rng(0).permutation(messages) * span_ms // messages
        for first in range(0, messages, _BATCH):
            part = due_at[first : first + _BATCH]
            payloads = [_DUE.pack(due) for due in part.tolist()]
            table = pa.table({"payload": pa.array(payloads, pa.binary()), "due_at": pa.array(part, pa.int64())})
            self._client.publish(topic, table)

    def _consume(self, seconds: float) -> None:
        give_up = monotonic_s() + seconds
        while len(self._late_ms) < self._asked and monotonic_s() < give_up:
            batch = self._consumer.claim(self._topic, max_messages=_BATCH, wait=5)
            now_ms = self._now_ms()
            for payload in batch.payloads:
                late_ms = now_ms - _DUE.unpack(payload)[0]
                self._early += late_ms < 0
                self._late_ms.append(max(0, late_ms))
            self._consumer.ack(batch)

    def figures(self) -> dict[str, float]:
        """How late they came."""
        late = sorted(self._late_ms)
        return {
            "messages": len(late),
            "missing": self._asked - len(late),
            "early": self._early,
            "late_p50_ms": late[len(late) // 2],
            "late_p99_ms": late[int(len(late) * 0.99)],
            "late_max_ms": late[-1],
        }
