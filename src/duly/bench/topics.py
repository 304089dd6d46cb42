"""What many topics cost: publishing to one of a hundred thousand beside publishing to one."""

from __future__ import annotations

import os
import random
import resource
from functools import partial

import duly
from duly.bench.threads import in_threads
from duly.clock import monotonic_s

_ROUNDS = 10


def measure(client: duly.Client, *, topics: int, publishes: int, batch: int, threads: int) -> dict[str, float]:
    """Publishes to one topic and to random ones in turns; memory is the whole process at its peak."""
    client.create_topic("one", kind="log")
    in_threads([partial(_create, client, range(worker, topics, 8)) for worker in range(8)])
    payloads = [os.urandom(100) for _ in range(batch)]
    names = [f"topic-{number:06}" for number in range(topics)]
    one_s = many_s = 0.0
    share = publishes // _ROUNDS
    for seed in range(_ROUNDS):
        draw = random.Random(seed)
        one_s += _publish(client, ["one"] * share, payloads, threads)
        many_s += _publish(client, [draw.choice(names) for _ in range(share)], payloads, threads)
    return {
        "topics": topics,
        "one_per_s": round(publishes * batch / one_s),
        "many_per_s": round(publishes * batch / many_s),
        "cost_ratio": round(many_s / one_s, 3),
        "rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _create(client: duly.Client, numbers: range) -> None:
    for number in numbers:
        client.create_topic(f"topic-{number:06}", kind="log")


def _publish(client: duly.Client, names: list[str], payloads: list[bytes], threads: int) -> float:
    began = monotonic_s()
    in_threads([partial(_publish_alone, client, names[worker::threads], payloads) for worker in range(threads)])
    return monotonic_s() - began


def _publish_alone(client: duly.Client, names: list[str], payloads: list[bytes]) -> None:
    for name in names:
        client.publish(name, payloads)
