"""From publish in one process to claim in another: how long a message is under way.

The other process publishes at a pace when told how many; both read one monotonic clock. Through a broker and on a file
the two take turns, a slice each, so that what else the machine does falls on both.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duly
from duly.bench.brokers import beside, own_topics, share
from duly.bench.threads import in_threads
from duly.clock import monotonic_s

_STAMP = struct.Struct("<d")
_SLICES = 10
_WARM_UP = 20
_GROUP = "bench"


def measure(path: Path, *, messages: int, per_s: float) -> dict[str, float]:
    """Milliseconds on a file."""
    with duly.connect(path) as client, _producer(str(path), "latency", per_s) as producer:
        run = _Run(client, "latency", producer)
        run.take(messages)
    return run.figures()


def measure_broker(url: str, path: Path, *, messages: int, per_s: float) -> dict[str, float]:
    """Milliseconds through a broker and on a file."""
    with (
        duly.connect(url) as broker,
        duly.connect(path) as embedded,
        own_topics(broker, "latency") as (topic,),
        _producer(url, topic, per_s) as through_broker,
        _producer(str(path), topic, per_s) as beside_us,
    ):
        runs = _Run(broker, topic, through_broker), _Run(embedded, topic, beside_us)
        for number in range(_SLICES):
            for run in runs:
                run.take(len(share(messages, number, _SLICES)))
        through, here = (run.figures() for run in runs)
    return beside(through, here, {"p50_to_embedded": "p50_ms", "p99_to_embedded": "p99_ms"})


def measure_between(publisher: str, consumer: str, *, messages: int, per_s: float) -> dict[str, float]:
    """Milliseconds from a publish at one broker to the claim at another that shares its store."""
    with (
        duly.connect(consumer) as client,
        own_topics(client, "latency") as (topic,),
        _producer(publisher, topic, per_s) as producer,
    ):
        run = _Run(client, topic, producer)
        run.warm_up()
        run.take(messages)
    return run.figures()


class _Run:
    """One topic's messages and how long they were under way."""

    def __init__(self, client: duly.Client, topic: str, producer: subprocess.Popen[bytes]) -> None:
        self._client = client
        self._topic = topic
        self._producer = producer
        self._waits: list[float] = []
        client.create_topic(topic, kind="log")
        client.create_group(topic, _GROUP)

    def warm_up(self) -> None:
        """Has a few go through that do not count."""
        self.take(_WARM_UP)
        self._waits.clear()

    def take(self, messages: int) -> None:
        """Has so many published over there, and claims them here."""
        assert self._producer.stdin is not None
        self._producer.stdin.write(b"%d\n" % messages)
        self._producer.stdin.flush()
        in_threads([lambda: self._consume(len(self._waits) + messages)])

    def _consume(self, until: int) -> None:
        while len(self._waits) < until:
            batch = self._client.claim(self._topic, group=_GROUP, wait=5)
            now = monotonic_s()
            self._waits.extend((now - _STAMP.unpack(payload)[0]) * 1000 for payload in batch.payloads)
            self._client.ack(batch)
            if not len(batch) and self._producer.poll() is not None:
                raise duly.Error(f"Only {len(self._waits)} of {until} messages came.")

    def figures(self) -> dict[str, float]:
        """How long they were under way."""
        waits = sorted(self._waits)
        return {
            "messages": len(waits),
            "p50_ms": round(waits[len(waits) // 2], 3),
            "p99_ms": round(waits[int(len(waits) * 0.99)], 3),
            "max_ms": round(waits[-1], 3),
        }


@contextmanager
def _producer(where: str, topic: str, per_s: float) -> Iterator[subprocess.Popen[bytes]]:
    code = f"from duly.bench.latency import produce; produce({where!r}, {topic!r}, {per_s})"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        # Its standard input ends with the block, and so does it.
        yield process


def produce(where: str, topic: str, per_s: float) -> None:
    """The other process: publishes as many as each line says."""
    pause = threading.Event()

    def work() -> None:
        with duly.connect(where) as client:
            for line in sys.stdin:
                began = monotonic_s()
                for number in range(int(line)):
                    pause.wait(max(0.0, began + number / per_s - monotonic_s()))
                    client.publish(topic, _STAMP.pack(monotonic_s()))

    in_threads([work])
