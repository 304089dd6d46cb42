"""Pushes to a topic: how many messages a second go from a log into another log, and into a queue by an expression."""

from __future__ import annotations

import threading

import duly
from duly.bench.brokers import own_topics
from duly.broker.pushes.topic_runner import TopicRunner
from duly.clock import SystemClock, monotonic_s
from duly.push import RunningPush, ToTopic

_BATCH = 1_000
_PATIENCE_S = 600.0


def measure(client: duly.Client, *, messages: int, payload_bytes: int) -> dict[str, float]:
    """Both ways, one after the other; what was published is forwarded whole."""
    with own_topics(client, "source", "log", "queue") as (source, log, queue):
        client.create_topic(source, kind="log")
        client.create_topic(log, kind="log")
        client.create_topic(queue, kind="queue")
        for group in ("log", "queue"):
            client.create_group(source, group)
        at_ms, filler = SystemClock().now_ms(), b"x" * max(0, payload_bytes - 28)
        for start in range(0, messages, _BATCH):
            numbers = range(start, min(start + _BATCH, messages))
            some = [duly.Message(b'{"at":%d,"of":"%s"}' % (at_ms + n, filler), key=f"k{n % 100}") for n in numbers]
            client.publish(source, some)
        return {
            "messages": messages,
            "log_per_s": _forwarded(client, source, "log", ToTopic(log), messages),
            "queue_per_s": _forwarded(
                client, source, "queue", ToTopic(queue, due="json.at + 30s", lane="key"), messages
            ),
        }


def _forwarded(client: duly.Client, source: str, group: str, to: ToTopic, messages: int) -> float:
    began = monotonic_s()
    push = RunningPush(client.tenant or "default", f"bench-{group}", source, group, to)
    runner = TopicRunner(client, push, _say_nothing)
    pause = threading.Event()
    while runner.forwarded < messages:
        if monotonic_s() > began + _PATIENCE_S or not runner.running:
            raise duly.Timeout(f"Only {runner.forwarded} of {messages} were forwarded.")
        pause.wait(0.002)
    took = monotonic_s() - began
    runner.stop(10)
    return round(messages / took)


def _say_nothing(*_: object) -> None:
    """Nobody keeps this push."""
