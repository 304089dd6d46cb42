"""What a claim costs with little and with much standing in the queue, and the memory that much takes.

Two stores, one with each backlog, are asked in turns, so that what else the machine does falls on both. What a
turn takes out is published again afterwards, outside of what is timed: the backlogs stay as long as they are.
"""

from __future__ import annotations

import resource
import statistics
from pathlib import Path

import duly
from duly.bench.queues import drain, queue_table, stand
from duly.bench.threads import in_a_thread

_BATCH = 1000
_TURNS = 10
_CLAIMS_A_TURN = 10


def measure(folder: Path, *, small: int, large: int, turns: int = _TURNS) -> dict[str, float]:
    """Microseconds a message of claim and ack, the median of all batches, at each size."""
    with duly.connect(folder / "small.duly") as few, duly.connect(folder / "large.duly") as many:
        for client in (few, many):
            client.create_topic("backlog", kind="queue", lease=600)
        stand(few, "backlog", small)
        in_a_thread(lambda: _turn(few, min(small, _BATCH)))
        before_mb = _peak_mb()
        stand(many, "backlog", large)
        # The first claim after so much was published takes up work left behind: not what is asked about.
        in_a_thread(lambda: _turn(many, min(large, _BATCH)))
        took: dict[str, list[float]] = {"small": [], "large": []}
        for _ in range(turns):
            took["small"] += in_a_thread(lambda: _turn(few, min(small, _BATCH)))
            took["large"] += in_a_thread(lambda: _turn(many, min(large, _BATCH)))
        grown_mb = _peak_mb() - before_mb
    small_us = statistics.median(took["small"]) * 1_000_000 / min(small, _BATCH)
    large_us = statistics.median(took["large"]) * 1_000_000 / min(large, _BATCH)
    return {
        "small": small,
        "large": large,
        "small_us": round(small_us, 3),
        "large_us": round(large_us, 3),
        "cost_ratio": round(large_us / small_us, 3),
        "pause_ms_max": round(max(took["large"]) * 1000, 2),
        "rss_mb": round(grown_mb),
    }


def _turn(client: duly.Client, batch: int) -> list[float]:
    """Claims and acks some batches, one after the other; the seconds of each. What was taken is put back."""
    took = []
    for seed in range(_CLAIMS_A_TURN):
        took.append(sum(drain(client, "backlog", batch, batch)))
        client.publish("backlog", queue_table(batch, seed=seed))
    return took


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
