"""Very many lanes, one of them with a backlog, beside one lane with as many messages.

Claim and ack go on in both, a turn in each, so that what else the machine does falls on both: at first of what stands
there, and then while messages come to all lanes alike.
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
    """How long claims take in either at the 99th percentile: of what stands there, and while more comes."""
    figures: dict[str, float] = {"lanes": lanes, "messages": messages}
    with duly.connect(folder / "many.duly") as many, duly.connect(folder / "one.duly") as one:
        for client, count in ((many, lanes), (one, 1)):
            client.create_topic("jobs", kind="queue", lease=600)
            _stand(client, count, lanes, messages)
        for prefix, publishing in (("", False), ("busy_", True)):
            took: dict[str, list[float]] = {"many": [], "one": []}
            draw = np.random.default_rng(1)
            for turn in range(-_WARM, turns):
                for name, client, count in (("many", many, lanes), ("one", one, 1)):
                    if publishing:
                        client.publish("jobs", _table([f"lane-{n}" for n in draw.integers(0, count, batch)]))
                    claim_s = in_a_thread(lambda c=client: _claim(c, batch))  # type: ignore[misc]
                    took[name] += [claim_s] if turn >= 0 else []
            p50 = {name: 1000 * float(np.percentile(calls, 50)) for name, calls in took.items()}
            p99 = {name: 1000 * float(np.percentile(calls, 99)) for name, calls in took.items()}
            figures |= {
                f"{prefix}claim_p50_many_ms": round(p50["many"], 2),
                f"{prefix}claim_p50_one_ms": round(p50["one"], 2),
                f"{prefix}claim_p99_many_ms": round(p99["many"], 2),
                f"{prefix}claim_p99_one_ms": round(p99["one"], 2),
                f"{prefix}ratio": round(p99["many"] / p99["one"], 3),
            }
    return figures


def _stand(client: duly.Client, count: int, lanes: int, messages: int) -> None:
    """A backlog in one lane, and a message for each of the others, or as many more in the one."""
    for first in range(0, messages, _STANDING_BATCH):
        client.publish("jobs", _table(["lane-0"] * min(_STANDING_BATCH, messages - first)))
    for first in range(0, lanes, _STANDING_BATCH):
        stop = min(lanes, first + _STANDING_BATCH)
        client.publish("jobs", _table([f"lane-{n % count}" for n in range(first, stop)]))


def _table(names: list[str]) -> pa.Table:
    return pa.table({"payload": pa.array([b"." * 100] * len(names)), "lane": pa.array(names)})


def _claim(client: duly.Client, batch: int) -> float:
    """Claims and acks: how long the claim took."""
    began = monotonic_s()
    claimed = client.claim("jobs", max_messages=batch)
    took_s = monotonic_s() - began
    if client.ack(claimed).done != batch:
        raise duly.Error("A claim brought less than stands there.")
    return took_s
