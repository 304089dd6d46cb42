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
from duly.bench.brokers import SLICES, own_topics, rates_beside, share
from duly.bench.floor import Floor, Logical, device_bytes
from duly.bench.queues import as_messages, queue_table, stand
from duly.bench.threads import in_threads
from duly.clock import monotonic_s
from duly.engine.columns import ARROW_FROM

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

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
    tables = _tables(load)
    run = _Run(client, load, "bench", tables)
    with Floor(folder, b"".join(tables[0].column("payload").to_pylist())) as floor, Logical() as logical:
        before = device_bytes()
        for number in range(SLICES):
            turns = share(load.rounds, number, SLICES)
            run.take(turns)
            floor.run(len(turns) * load.batches_a_turn * load.threads)
        written = device_bytes() - before - floor.bytes
    payload_bytes = run.messages * load.payload_bytes
    return {
        **run.figures(),
        "floor_publish_per_s": round(run.messages / floor.seconds),
        "publish_to_floor": round(floor.seconds / run.seconds["publish"], 3),
        "logical_bytes_per_byte": round(logical.bytes / payload_bytes, 2),
        "device_bytes_per_byte": round(max(0, written) / payload_bytes, 2),
    }


def measure_broker(broker: duly.Client, embedded: duly.Client, load: QueueLoad) -> dict[str, float]:
    """Runs the load through a broker and in this process, in turns; rates a second of both."""
    tables = _tables(load)
    with own_topics(broker, "lifecycle") as (topic,):
        runs = _Run(broker, load, topic, tables), _Run(embedded, load, topic, tables)
        through, here = _in_turns(load, *runs)
    return rates_beside(through, here)


def measure_encrypted(encrypted: duly.Client, plain: duly.Client, load: QueueLoad) -> dict[str, float]:
    """Runs the load for an encrypted tenant and for a plain one, in turns; rates a second of both."""
    tables = _tables(load)
    sealed, clear = _in_turns(load, *(_Run(client, load, "bench", tables) for client in (encrypted, plain)))
    figures = rates_beside(sealed, clear, "plain")
    return {**figures, "encrypted_ratio": figures["lifecycle_to_plain"]}


def _in_turns(load: QueueLoad, *runs: _Run) -> list[dict[str, float]]:
    for number in range(SLICES):
        for run in runs:
            run.take(share(load.rounds, number, SLICES))
    return [run.figures() for run in runs]


def _tables(load: QueueLoad) -> list[pa.Table]:
    return [
        queue_table(load.batch, payload_bytes=load.payload_bytes, lanes=load.lanes, seed=seed)
        for seed in range(min(_TABLES, load.rounds))
    ]


class _Run:
    """A queue, and the threads, in step with each other."""

    def __init__(self, client: duly.Client, load: QueueLoad, topic: str, tables: list[pa.Table]) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.longest = [0.0] * load.threads
        self._client = client
        self._load = load
        self._topic = topic
        # Few messages are what a program has as Messages, not as a table.
        self._batches = [as_messages(table) if load.batch < ARROW_FROM else table for table in tables]
        self._step = threading.Barrier(load.threads, action=self._stamp)
        self._stamps: list[float] = []
        client.create_topic(topic, kind="queue", lease=_LEASE_S)
        stand(client, topic, load.standing, load.payload_bytes, load.lanes)
        client.publish(topic, tables[0])
        client.ack(client.claim(topic, max_messages=load.batch))

    @property
    def messages(self) -> int:
        """How many go through in all."""
        return self._load.rounds * self._load.threads * self._load.messages_a_turn

    def figures(self) -> dict[str, float]:
        """Rates a second of all turns."""
        spent, messages = self.seconds, self.messages
        claim_ack_s = spent["claim"] + spent["ack"]
        return {
            "messages": messages,
            "standing": self._load.standing,
            "publish_per_s": round(messages / spent["publish"]),
            "claim_ack_per_s": round(messages / claim_ack_s),
            "lifecycle_per_s": round(messages / (spent["publish"] + claim_ack_s)),
            "claim_per_s": round(messages / spent["claim"]),
            "pause_ms_max": round(max(self.longest) * 1000, 2),
        }

    def take(self, turns: range) -> None:
        """Has every thread take these turns."""
        in_threads([partial(self._work, number, turns) for number in range(self._load.threads)])

    def _work(self, number: int, turns: range) -> None:
        """What one thread does."""
        try:
            for turn in turns:
                self._turn(number, turn)
        except BaseException:
            # The others would wait for this one for ever.
            self._step.abort()
            raise

    def _turn(self, number: int, turn: int) -> None:
        self._step.wait()
        for nth in range(self._load.batches_a_turn):
            batch = self._batches[(turn + nth) % len(self._batches)]
            self._call(number, partial(self._client.publish, self._topic, batch))
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
            batch = self._call(number, partial(self._client.claim, self._topic, max_messages=most))
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
