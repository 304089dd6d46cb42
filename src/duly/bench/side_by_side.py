"""publish, claim, ack in Duly and in the baseline (skip_locked.py), in one PostgreSQL, in turns.

A turn is the same for both: so many clients, threads of this process, each of which publishes a batch, claims as many
messages and acks them, over and over, until the turn's messages went through. Duly's clients share one `duly.connect`,
as an application's threads would; the baseline's have a connection each. What they publish is made before, in the form
either takes best: Arrow tables, and lists. Both hand payloads out as Python bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import duly
from duly.bench.brokers import own_topics
from duly.bench.queues import as_messages, queue_table, stand
from duly.bench.skip_locked import SkipLocked, Table
from duly.bench.threads import in_threads
from duly.clock import monotonic_s
from duly.engine.columns import ARROW_FROM
from duly.limits import LIMITS

if TYPE_CHECKING:
    import pyarrow as pa

PAYLOAD_BYTES = 100
_GROUP = "bench"
_LEASE_S = 600
_TABLES = 16
_WARM_UP = 10
_GIVE_UP_S = 60


@dataclass(frozen=True, slots=True)
class Load:
    """What goes through in a turn; `key` is what the ratio is called."""

    key: str
    kind: str
    batch: int
    messages: int
    clients: int
    standing: int = 0

    @property
    def rounds(self) -> int:
        """How many batches a client sends through."""
        return max(1, self.messages // (self.batch * self.clients))


class Seat(Protocol):
    """One client's place on one side."""

    def publish(self, nth: int) -> None:
        """Publishes a batch: the nth of those that were made."""

    def take(self, most: int) -> int:
        """Claims up to so many and acks them; how many they were."""


def measure(client: duly.Client, dsn: str, schema: str, load: Load, *, pairs: int) -> dict[str, float]:
    """Messages a second of both, the medians of their turns, and Duly's beside the baseline's."""
    tables = [queue_table(load.batch, payload_bytes=PAYLOAD_BYTES, seed=seed) for seed in range(_TABLES)]
    with (
        _duly_seats(client, load, tables) as of_duly,
        _baseline_seats(Table(dsn, schema, load.key, fifo=load.kind == "log"), load, tables) as of_baseline,
    ):
        sides = {"duly": of_duly, "baseline": of_baseline}
        for seats in sides.values():
            _turn(seats, replace(load, messages=load.messages // _WARM_UP))
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(pairs):
            for name, seats in sides.items():
                rates[name].append(_turn(seats, load))
    found = {name: statistics.median(measured) for name, measured in rates.items()}
    return {
        load.key: round(found["duly"] / found["baseline"], 3),
        **{load.key.replace("ratio", f"{name}_per_s"): round(rate) for name, rate in found.items()},
    }


def _turn(seats: Sequence[Seat], load: Load) -> float:
    """Has every client send its share through; messages a second."""
    began = monotonic_s()
    in_threads([partial(_work, seat, number, load) for number, seat in enumerate(seats)])
    return load.rounds * load.clients * load.batch / (monotonic_s() - began)


def _work(seat: Seat, number: int, load: Load) -> None:
    for nth in range(load.rounds):
        seat.publish(number + nth)
        _take(seat, load.batch)


def _take(seat: Seat, messages: int) -> None:
    """Takes so many messages: those of others too, who have to take these, then."""
    give_up = monotonic_s() + _GIVE_UP_S
    while messages:
        messages -= seat.take(messages)
        if monotonic_s() > give_up:
            raise duly.Error(f"{messages} messages did not come back.")


@contextmanager
def _duly_seats(client: duly.Client, load: Load, tables: list[pa.Table]) -> Iterator[list[Seat]]:
    batches: list[pa.Table | list[duly.Message]] = []
    for table in tables:
        columns = table.select(["payload"]) if load.kind == "log" else table
        batches.append(as_messages(columns) if load.batch < ARROW_FROM else columns)
    with own_topics(client, load.kind) as (topic,):
        client.create_topic(topic, kind=load.kind, lease=_LEASE_S)
        if load.kind == "log":
            client.create_group(topic, _GROUP)
        stand(client, topic, load.standing, PAYLOAD_BYTES)
        yield [_DulySeat(client, topic, _GROUP if load.kind == "log" else None, batches)] * load.clients


@dataclass(frozen=True, slots=True)
class _DulySeat:
    client: duly.Client
    topic: str
    group: str | None
    batches: list[pa.Table | list[duly.Message]]

    def publish(self, nth: int) -> None:
        self.client.publish(self.topic, self.batches[nth % len(self.batches)])

    def take(self, most: int) -> int:
        batch = self.client.claim(self.topic, group=self.group, max_messages=most, wait=1)
        payloads = batch.payloads
        if payloads and self.client.ack(batch).lost:
            raise duly.LeaseLost
        return len(payloads)


@contextmanager
def _baseline_seats(table: Table, load: Load, tables: list[pa.Table]) -> Iterator[list[Seat]]:
    batches = [(made["priority"].to_pylist(), made["payload"].to_pylist()) for made in tables]
    with ExitStack() as stack:
        stack.callback(table.drop)
        table.create()
        table.stand(load.standing, payload_bytes=PAYLOAD_BYTES, priorities=LIMITS.priority_max + 1)
        yield [_BaselineSeat(stack.enter_context(table.client()), batches) for _ in range(load.clients)]


@dataclass(frozen=True, slots=True)
class _BaselineSeat:
    client: SkipLocked
    batches: list[tuple[list[int], list[bytes]]]

    def publish(self, nth: int) -> None:
        self.client.publish(*self.batches[nth % len(self.batches)])

    def take(self, most: int) -> int:
        claimed = self.client.claim(most)
        if claimed:
            self.client.ack([id for id, _ in claimed])
        return len(claimed)
