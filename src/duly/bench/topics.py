"""What many topics cost: publishing to one of a hundred thousand beside publishing to one."""

from __future__ import annotations

import os
import random
import resource
import threading

import duly
from duly.clock import monotonic_s

_ROUNDS = 10


def measure(client: duly.Client, *, topics: int, publishes: int, batch: int, threads: int) -> dict[str, float]:
    """Publishes to one topic and to random ones in turns; memory is the whole process at its peak."""
    client.create_topic("one", kind="log")
    _in_threads(8, lambda worker: _create(client, range(worker, topics, 8)))
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
    _in_threads(threads, lambda worker: [client.publish(name, payloads) for name in names[worker::threads]])
    return monotonic_s() - began


def _in_threads(threads: int, work: object) -> None:
    assert callable(work)
    running = [threading.Thread(target=work, args=(worker,)) for worker in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
