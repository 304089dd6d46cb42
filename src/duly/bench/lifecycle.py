"""publish, claim, ack: how many messages a second go through, beside what the disk can do at all.

The floor is a bare loop that writes the same bytes and syncs them, a batch at a time. Both run in
turns, a slice each, so that what else the machine does falls on both; so do a broker and this process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duly
from duly.bench.brokers import SLICES, own_topics, rates_beside, share
from duly.bench.floor import Floor
from duly.bench.threads import in_threads
from duly.clock import monotonic_s

_GROUP = "bench"


@dataclass(frozen=True, slots=True)
class Load:
    """What to send through."""

    messages: int
    batch: int
    threads: int
    payload_bytes: int
    claim_batch: int = 1000

    @property
    def batches(self) -> int:
        """How many publishes."""
        return max(1, self.messages // self.batch)


def measure(client: duly.Client, folder: Path, load: Load) -> dict[str, float]:
    """Runs the load once and returns rates a second."""
    run = _Run(client, load, "bench")
    with Floor(folder, b"".join(run.payloads)) as floor:
        for number in range(SLICES):
            batches = len(share(load.batches, number, SLICES))
            run.publish(batches)
            floor.run(batches)
    run.drain(load.batches)
    figures = run.figures()
    return {
        **figures,
        "floor_publish_per_s": round(figures["messages"] / floor.seconds),
        "publish_to_floor": round(floor.seconds / run.publish_s, 3),
    }


def measure_broker(broker: duly.Client, embedded: duly.Client, load: Load) -> dict[str, float]:
    """Runs the load through a broker and in this process, in turns; rates a second of both."""
    with own_topics(broker, "lifecycle") as (topic,):
        through, here = _in_turns(_Run(broker, load, topic), _Run(embedded, load, topic))
    return rates_beside(through, here)


def measure_encrypted(encrypted: duly.Client, plain: duly.Client, load: Load) -> dict[str, float]:
    """Runs the load for an encrypted tenant and for a plain one, in turns; rates a second of both."""
    sealed, clear = _in_turns(_Run(encrypted, load, "bench"), _Run(plain, load, "bench"))
    figures = rates_beside(sealed, clear, "plain")
    return {**figures, "encrypted_ratio": figures["lifecycle_to_plain"]}


def _in_turns(*runs: _Run) -> list[dict[str, float]]:
    for number in range(SLICES):
        for run in runs:
            batches = len(share(run.batches, number, SLICES))
            run.publish(batches)
            run.drain(batches)
    return [run.figures() for run in runs]


class _Run:
    """A topic, and how long publishing to it and draining it took so far."""

    def __init__(self, client: duly.Client, load: Load, topic: str) -> None:
        self._client = client
        self._load = load
        self._topic = topic
        self.batches = load.batches
        self.payloads = [os.urandom(load.payload_bytes) for _ in range(load.batch)]
        self.publish_s = self.claim_s = 0.0
        client.create_topic(topic, kind="log", exist_ok=True)
        client.create_group(topic, _GROUP, exist_ok=True)
        client.publish(topic, self.payloads)
        with client.claim(topic, group=_GROUP, max_messages=load.batch):
            pass

    def publish(self, batches: int) -> None:
        """Publishes so many batches, from the load's threads."""
        threads = self._load.threads
        shares = [len(share(batches, number, threads)) for number in range(threads)]
        self.publish_s += _timed(lambda: in_threads([partial(self._publish_alone, count) for count in shares]))

    def _publish_alone(self, batches: int) -> None:
        for _ in range(batches):
            self._client.publish(self._topic, self.payloads)

    def drain(self, batches: int) -> None:
        """Claims and acks what so many batches hold, payloads taken out as Python bytes."""
        self.claim_s += _timed(lambda: in_threads([lambda: self._drain(batches * self._load.batch)]))

    def _drain(self, messages: int) -> None:
        got = 0
        while got < messages:
            batch = self._client.claim(self._topic, group=_GROUP, max_messages=self._load.claim_batch)
            got += len(batch.payloads)
            self._client.ack(batch)
            if not len(batch):
                raise duly.Error(f"Only {got} of {messages} messages came back.")

    def figures(self) -> dict[str, float]:
        """Rates a second of all that was published and drained."""
        messages = self._load.batches * self._load.batch
        return {
            "messages": messages,
            "publish_per_s": round(messages / self.publish_s),
            "claim_ack_per_s": round(messages / self.claim_s),
            "lifecycle_per_s": round(messages / (self.publish_s + self.claim_s)),
        }


def _timed(work: Callable[[], None]) -> float:
    began = monotonic_s()
    work()
    return monotonic_s() - began
