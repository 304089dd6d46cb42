"""What recording events costs: publish, claim, ack in slices that record and slices that do not, in turns, in one run.

To not record, `write_records` of the writer is replaced by one that forgets what was recorded. That is for measuring
and nothing else: a store that was written to so has no history. Two slices that follow each other make a pair, and the
overhead is that of the middle pair, so that what else the machine does falls on both or is left out. The chore that
packs events runs about a second later, whoever's turn it is then: its time is taken out of the slice and
counted as part of the recording.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from unittest.mock import patch

import duly
from duly.bench.threads import in_a_thread
from duly.clock import monotonic_s
from duly.engine import retain
from duly.engine.agenda import PACK
from duly.store.contract import AgendaRow, Transaction

_PAIRS = 40
_LEASE_S = 600
# By name: nobody but the composition root imports a store.
_WRITES = "duly.store.sqlite.writer.write_records"


def measure(client: duly.Client, *, messages: int, batch: int, singles: int, payload_bytes: int) -> dict[str, float]:
    """The shares of throughput that recording takes: of logs and queues in batches, and of a queue one by one."""
    client.create_topic("log", kind="log", lease=_LEASE_S)
    client.create_group("log", "bench")
    for topic in ("queue", "single"):
        client.create_topic(topic, kind="queue", lease=_LEASE_S)
    payloads = [os.urandom(payload_bytes) for _ in range(batch)]
    figures: dict[str, float] = {"messages": messages, "singles": singles}
    for name, topic, each, count in (
        ("log", "log", payloads, messages),
        ("queue", "queue", payloads, messages),
        ("single", "single", payloads[:1], singles),
    ):
        figures |= _overhead(name, partial(_live, client, topic, each), max(1, count // (2 * _PAIRS * len(each))))
    return figures


def _overhead(name: str, live: Callable[[int], None], rounds: int) -> dict[str, float]:
    """Runs pairs of slices of so many rounds each."""
    live(1)
    on: list[float] = []
    off: list[float] = []
    with _timed_packing() as packing:
        for pair in range(_PAIRS):
            # Who goes first has the worse caches: in turns.
            for recording in (True, False) if pair % 2 else (False, True):
                spent = in_a_thread(partial(_slice, live, rounds, recording, packing))
                (on if recording else off).append(spent)
    slower = median(one / other for one, other in zip(on, off, strict=True)) + sum(packing) / sum(off)
    return {
        f"{name}_overhead": round(1 - 1 / slower, 3),
        f"{name}_slice_ms": round(1000 * median(off), 2),
        f"{name}_packing_ms": round(1000 * sum(packing), 2),
    }


def _slice(live: Callable[[int], None], rounds: int, recording: bool, packing: list[float]) -> float:
    before, began = sum(packing), monotonic_s()
    if recording:
        live(rounds)
    else:
        with patch(_WRITES, _forget):
            live(rounds)
    return monotonic_s() - began - (sum(packing) - before)


def _live(client: duly.Client, topic: str, payloads: list[bytes], rounds: int) -> None:
    group = "bench" if topic == "log" else None
    for _ in range(rounds):
        client.publish(topic, payloads)
        batch = client.claim(topic, group=group, max_messages=len(payloads))
        if len(batch.payloads) != len(payloads):
            raise duly.Error(f"Only {len(batch)} of {len(payloads)} messages came back.")
        client.ack(batch)


def _forget(tx: Transaction) -> None:
    tx.aftermath.records.clear()


@contextmanager
def _timed_packing() -> Iterator[list[float]]:
    """Notes how long each step of packing takes, its commit apart."""
    spent: list[float] = []
    pack = retain._CHORES[PACK]

    def timed(tx: Transaction, row: AgendaRow) -> None:
        began = monotonic_s()
        pack(tx, row)
        spent.append(monotonic_s() - began)

    retain._CHORES[PACK] = timed
    try:
        yield spent
    finally:
        retain._CHORES[PACK] = pack
