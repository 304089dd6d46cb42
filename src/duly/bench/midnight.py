"""A hot moment: very many messages that fall due in one millisecond, beside as many that were due at once.

Both queues are emptied in turns, a slice each, so that what else the machine does falls on both.
"""

from __future__ import annotations

import threading

import duly
from duly.bench.queues import drain, queue_table
from duly.bench.threads import in_a_thread
from duly.clock import SystemClock, monotonic_s

_BATCH = 10_000
_SLICES = 20
_MARGIN_MS = 2000


def measure(client: duly.Client, *, messages: int) -> dict[str, float]:
    """Claims and acks a second of either, and the longest call on the hot one."""
    for topic in ("usual", "midnight"):
        client.create_topic(topic, kind="queue", lease=600)
    clock = SystemClock()
    began = monotonic_s()
    _publish(client, "usual", messages, None)
    midnight_ms = clock.now_ms() + round((monotonic_s() - began) * 2000) + _MARGIN_MS
    _publish(client, "midnight", messages, midnight_ms)
    early = len(client.claim("midnight")) if clock.now_ms() < midnight_ms else 0
    threading.Event().wait(max(0, midnight_ms - clock.now_ms()) / 1000)
    took: dict[str, list[float]] = {"usual": [], "midnight": []}
    for number in range(_SLICES):
        count = messages * (number + 1) // _SLICES - messages * number // _SLICES
        for topic, calls in took.items():
            calls += in_a_thread(lambda t=topic, n=count: drain(client, t, n))  # type: ignore[misc]
    usual_s, midnight_s = sum(took["usual"]), sum(took["midnight"])
    return {
        "messages": messages,
        "early": early,
        "usual_per_s": round(messages / usual_s),
        "midnight_per_s": round(messages / midnight_s),
        "ratio": round(usual_s / midnight_s, 3),
        "usual_pause_ms_max": round(max(took["usual"]) * 1000, 2),
        "pause_ms_max": round(max(took["midnight"]) * 1000, 2),
    }


def _publish(client: duly.Client, topic: str, messages: int, due_at_ms: int | None) -> None:
    for seed, first in enumerate(range(0, messages, _BATCH)):
        count = min(_BATCH, messages - first)
        client.publish(topic, queue_table(count, due_at_ms=due_at_ms, seed=seed))
