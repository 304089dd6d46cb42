"""From publish in one process to claim in another: how long a message is under way."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
from pathlib import Path

import duly
from duly.bench.threads import in_threads
from duly.clock import monotonic_s

_STAMP = struct.Struct("<d")


def measure(path: Path, *, messages: int, per_s: float) -> dict[str, float]:
    """Publishes at a pace from a second process and claims here; both read one monotonic clock."""
    with duly.connect(path) as client:
        client.create_topic("latency", kind="log", exist_ok=True)
        client.create_group("latency", "bench", start="latest", exist_ok=True)
        code = f"from duly.bench.latency import produce; produce({str(path)!r}, {messages}, {per_s})"
        producer = subprocess.Popen([sys.executable, "-c", code])
        waits: list[float] = []

        def consume() -> None:
            while len(waits) < messages and (waits or producer.poll() is None):
                batch = client.claim("latency", group="bench", wait=5)
                now = monotonic_s()
                waits.extend((now - _STAMP.unpack(payload)[0]) * 1000 for payload in batch.payloads)
                client.ack(batch)

        in_threads([consume])
        producer.wait()
    waits.sort()
    return {
        "messages": len(waits),
        "p50_ms": round(waits[len(waits) // 2], 3),
        "p99_ms": round(waits[int(len(waits) * 0.99)], 3),
        "max_ms": round(waits[-1], 3),
    }


def produce(path: str, messages: int, per_s: float) -> None:
    """The other process."""
    pause = threading.Event()

    def work() -> None:
        with duly.connect(path) as client:
            began = monotonic_s()
            for number in range(messages):
                pause.wait(max(0.0, began + number / per_s - monotonic_s()))
                client.publish("latency", _STAMP.pack(monotonic_s()))

    in_threads([work])
