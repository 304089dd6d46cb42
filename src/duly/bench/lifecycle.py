"""publish, claim, ack: how many messages a second go through, beside what the disk can do at all.

The floor is a bare loop that writes the same bytes and syncs them, a batch at a time. Both run in
turns, a slice each, so that what else the machine does falls on both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duly
from duly.bench.floor import Floor
from duly.bench.threads import in_threads
from duly.clock import monotonic_s

_SLICES = 20


@dataclass(frozen=True, slots=True)
class Load:
    """What to send through."""

    messages: int
    batch: int
    threads: int
    payload_bytes: int
    claim_batch: int = 1000


def measure(client: duly.Client, folder: Path, load: Load) -> dict[str, float]:
    """Runs the load once and returns rates a second."""
    client.create_topic("bench", kind="log", exist_ok=True)
    client.create_group("bench", "bench", exist_ok=True)
    payloads = [os.urandom(load.payload_bytes) for _ in range(load.batch)]
    batches = max(1, load.messages // load.batch)
    client.publish("bench", payloads)
    with client.claim("bench", group="bench", max_messages=load.batch):
        pass
    publish_s, floor_s = _publish_beside_floor(client, folder, load, payloads, batches)
    claim_s = _timed(lambda: in_threads([lambda: _drain(client, load, batches * load.batch)]))
    messages = batches * load.batch
    return {
        "messages": messages,
        "publish_per_s": round(messages / publish_s),
        "claim_ack_per_s": round(messages / claim_s),
        "lifecycle_per_s": round(messages / (publish_s + claim_s)),
        "floor_publish_per_s": round(messages / floor_s),
        "publish_to_floor": round(floor_s / publish_s, 3),
    }


def _publish_beside_floor(
    client: duly.Client, folder: Path, load: Load, payloads: list[bytes], batches: int
) -> tuple[float, float]:
    publish_s = 0.0
    with Floor(folder, b"".join(payloads)) as floor:
        for number in range(_SLICES):
            count = batches * (number + 1) // _SLICES - batches * number // _SLICES
            publish_s += _timed(lambda n=count: _publish(client, load.threads, payloads, n))  # type: ignore[misc]
            floor.run(count)
    return publish_s, floor.seconds


def _publish(client: duly.Client, threads: int, payloads: list[bytes], batches: int) -> None:
    shares = [batches * (n + 1) // threads - batches * n // threads for n in range(threads)]
    in_threads([partial(_publish_alone, client, payloads, share) for share in shares])


def _publish_alone(client: duly.Client, payloads: list[bytes], batches: int) -> None:
    for _ in range(batches):
        client.publish("bench", payloads)


def _drain(client: duly.Client, load: Load, messages: int) -> None:
    """Claims and acks everything, payloads taken out as Python bytes."""
    got = 0
    while got < messages:
        batch = client.claim("bench", group="bench", max_messages=load.claim_batch)
        got += len(batch.payloads)
        client.ack(batch)
        if not len(batch):
            raise duly.Error(f"Only {got} of {messages} messages came back.")


def _timed(work: Callable[[], None]) -> float:
    began = monotonic_s()
    work()
    return monotonic_s() - began
