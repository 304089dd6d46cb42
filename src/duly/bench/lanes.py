"""Very many lanes, one of them with a backlog, beside one lane with as many messages.

Publish, claim and ack go on in both, a turn in each, so that what else the machine does falls on both. In the one
messages come to all lanes alike.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

import duly
from duly.bench.threads import in_a_thread
from duly.clock import monotonic_s

_STANDING_BATCH = 10_000
_WARM = 20


def measure(folder: Path, *, lanes: int, messages: int, turns: int, batch: int) -> dict[str, float]:
    """How long claims take in either, and publishes, at the 99th percentile."""
    with duly.connect(folder / "many.duly") as many, duly.connect(folder / "one.duly") as one:
        for client, count in ((many, lanes), (one, 1)):
            client.create_topic("jobs", kind="queue", lease=600)
            _stand(client, count, lanes, messages)
        took: dict[str, list[list[float]]] = {"many": [], "one": []}
        draw = np.random.default_rng(1)
        for turn in range(-_WARM, turns):
            for name, client, count in (("many", many, lanes), ("one", one, 1)):
                table = _table([f"lane-{n}" for n in draw.integers(0, count, batch)])
                calls = in_a_thread(lambda c=client, t=table: _turn(c, t, batch))  # type: ignore[misc]
                if turn >= 0:
                    took[name].append(calls)
    p99 = {name: np.percentile(np.array(calls), 99, axis=0) * 1000 for name, calls in took.items()}
    p50 = {name: np.percentile(np.array(calls), 50, axis=0) * 1000 for name, calls in took.items()}
    return {
        "lanes": lanes,
        "messages": messages,
        "publish_p99_many_ms": round(float(p99["many"][0]), 2),
        "publish_p99_one_ms": round(float(p99["one"][0]), 2),
        "claim_p50_many_ms": round(float(p50["many"][1]), 2),
        "claim_p50_one_ms": round(float(p50["one"][1]), 2),
        "claim_p99_many_ms": round(float(p99["many"][1]), 2),
        "claim_p99_one_ms": round(float(p99["one"][1]), 2),
        "ratio": round(float(p99["many"][1] / p99["one"][1]), 3),
    }


def _stand(client: duly.Client, count: int, lanes: int, messages: int) -> None:
    """A backlog in one lane, and a message for each of the others, or as many more in the one."""
    for first in range(0, messages, _STANDING_BATCH):
        client.publish("jobs", _table(["lane-0"] * min(_STANDING_BATCH, messages - first)))
    for first in range(0, lanes, _STANDING_BATCH):
        stop = min(lanes, first + _STANDING_BATCH)
        client.publish("jobs", _table([f"lane-{n % count}" for n in range(first, stop)]))


def _table(names: list[str]) -> pa.Table:
    return pa.table({"payload": pa.array([b"." * 100] * len(names)), "lane": pa.array(names)})


def _turn(client: duly.Client, table: pa.Table, batch: int) -> list[float]:
    """Publish, claim and ack: how long each took."""
    began = monotonic_s()
    client.publish("jobs", table)
    published = monotonic_s()
    claimed = client.claim("jobs", max_messages=batch)
    got = monotonic_s()
    if client.ack(claimed).done != batch:
        raise duly.Error("A claim brought less than stands there.")
    return [published - began, got - published, monotonic_s() - got]
