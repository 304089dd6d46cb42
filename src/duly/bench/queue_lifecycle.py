"""publish, claim, ack on a queue, in turns: how many messages a second, beside what the disk can do at all.

Every thread publishes its share of a round, claims as many messages as it published, and acks them; the three are timed
apart, from the first thread's beginning to the last one's end. A single thread's round is one batch, so that
publish and claim interleave batch by batch; many threads' are longer, as they have to wait for each other in between.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import duly
from duly.bench.floor import Floor, Logical, device_bytes
from duly.bench.queues import as_messages, queue_table, stand
from duly.bench.threads import in_threads
from duly.clock import monotonic_s
from duly.engine.columns import ARROW_FROM

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_SLICES = 20
_TABLES = 64
_LEASE_S = 600


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """What to send through, and what stands in the queue all the while."""

    messages: int
    batch: int
    claim_batch: int
    threads: int
    payload_bytes: int
    standing: int
    lanes: int

    @property
    def batches_a_turn(self) -> int:
        """How many batches a thread publishes before it claims."""
        return 1 if self.threads == 1 else max(1, 20 // self.batch)

    @property
    def rounds(self) -> int:
        """How often every thread has its turn."""
        return max(1, self.messages // (self.batch * self.batches_a_turn * self.threads))

    @property
    def messages_a_turn(self) -> int:
        """How many messages a thread publishes, claims and acks in its turn."""
        return self.batch * self.batches_a_turn


def measure(client: duly.Client, folder: Path, load: QueueLoad) -> dict[str, float]:
    """Runs the load once and returns rates a second."""
    client.create_topic("bench", kind="queue", lease=_LEASE_S)
    stand(client, "bench", load.standing, load.payload_bytes, load.lanes)
    tables = [
        queue_table(load.batch, payload_bytes=load.payload_bytes, lanes=load.lanes, seed=seed)
        for seed in range(min(_TABLES, load.rounds))
    ]
    client.publish("bench", tables[0])
    client.ack(client.claim("bench", max_messages=load.batch))
    with Floor(folder, b"".join(tables[0].column("payload").to_pylist())) as floor, Logical() as logical:
        run = _Run(client, load, tables, floor)
        before = device_bytes()
        in_threads([partial(run.work, number) for number in range(load.threads)])
        written = device_bytes() - before - floor.bytes
    return _figures(load, run, floor, written, logical.bytes)


def _figures(load: QueueLoad, run: _Run, floor: Floor, written: int, logical: int) -> dict[str, float]:
    messages = load.rounds * load.threads * load.messages_a_turn
    spent = run.seconds
    claim_ack_s = spent["claim"] + spent["ack"]
    return {
        "messages": messages,
        "standing": load.standing,
        "publish_per_s": round(messages / spent["publish"]),
        "claim_ack_per_s": round(messages / claim_ack_s),
        "lifecycle_per_s": round(messages / (spent["publish"] + claim_ack_s)),
        "claim_per_s": round(messages / spent["claim"]),
        "pause_ms_max": round(max(run.longest) * 1000, 2),
        "floor_publish_per_s": round(messages / floor.seconds),
        "publish_to_floor": round(floor.seconds / spent["publish"], 3),
        "logical_bytes_per_byte": round(logical / (messages * load.payload_bytes), 2),
        "device_bytes_per_byte": round(max(0, written) / (messages * load.payload_bytes), 2),
    }


class _Run:
    """The threads, in step with each other."""

    def __init__(self, client: duly.Client, load: QueueLoad, tables: list[pa.Table], floor: Floor) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.longest = [0.0] * load.threads
        self._client = client
        self._load = load
        # Few messages are what a program has as Messages, not as a table.
        self._batches = [as_messages(table) if load.batch < ARROW_FROM else table for table in tables]
        self._floor = floor
        self._step = threading.Barrier(load.threads, action=self._stamp)
        self._stamps: list[float] = []

    def work(self, number: int) -> None:
        """What one thread does."""
        try:
            for turn in range(self._load.rounds):
                self._turn(number, turn)
                if number == 0:
                    self._measure_floor(turn)
        except BaseException:
            # The others would wait for this one for ever.
            self._step.abort()
            raise

    def _turn(self, number: int, turn: int) -> None:
        self._step.wait()
        for nth in range(self._load.batches_a_turn):
            batch = self._batches[(turn + nth) % len(self._batches)]
            self._call(number, partial(self._client.publish, "bench", batch))
        self._step.wait()
        held = self._claim(number)
        self._step.wait()
        for batch in held:
            self._call(number, partial(self._client.ack, batch))
        self._step.wait()

    def _claim(self, number: int) -> list[duly.Batch]:
        held: list[duly.Batch] = []
        left = self._load.messages_a_turn
        while left:
            most = min(left, self._load.claim_batch)
            batch = self._call(number, partial(self._client.claim, "bench", max_messages=most))
            # As Python bytes: what a consumer works with.
            left -= len(batch.payloads)
            held.append(batch)
            if not len(batch):
                raise duly.Error(f"{left} messages did not come back.")
        return held

    def _call(self, number: int, call: Callable[[], T]) -> T:
        began = monotonic_s()
        answer = call()
        self.longest[number] = max(self.longest[number], monotonic_s() - began)
        return answer

    def _stamp(self) -> None:
        """Called once whenever all threads have come to a step."""
        self._stamps.append(monotonic_s())
        if len(self._stamps) == 4:
            for name, began, ended in zip(("publish", "claim", "ack"), self._stamps, self._stamps[1:], strict=False):
                self.seconds[name] += ended - began
            self._stamps.clear()

    def _measure_floor(self, turn: int) -> None:
        """Its part of the floor, every so often: what else the machine does falls on both."""
        rounds = self._load.rounds
        done, now = turn * _SLICES // rounds, (turn + 1) * _SLICES // rounds
        if now > done:
            turns = rounds * now // _SLICES - rounds * done // _SLICES
            self._floor.run(turns * self._load.batches_a_turn * self._load.threads)
