"""A process on a store that does as it is told: a JSON line in, a JSON line out.

    python clock_worker.py STORE

Its wall clock is libfaketime's; its monotonic clock is the machine's own, the same in every process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import duly

held: list[duly.Batch] = []
alerts: list[str] = []


def publish(q: duly.Client, payload: str, due: float = 0) -> None:
    """Due so many seconds from now by the store's clock."""
    q.publish("jobs", duly.Message(payload.encode(), due=timedelta(seconds=due)))


def publish_at(q: duly.Client, payload: str, ahead: float) -> None:
    """Due at a moment: so far ahead of the store's time as it is now."""
    q.publish("jobs", duly.Message(payload.encode(), due=q.clock().now + timedelta(seconds=ahead)))


def claim(q: duly.Client, wait: float = 0, lease: float = 60) -> list[str]:
    batch = q.claim("jobs", wait=wait, lease=lease)
    held.append(batch)
    return [payload.decode() for payload in batch.payloads]


def ack(q: duly.Client) -> int:
    """Settles what it holds; how many of them were lost."""
    return sum(len(q.ack(held.pop()).lost) for _ in range(len(held)))


def clock(q: duly.Client) -> dict[str, Any]:
    """The store's time against the monotonic clock, which all processes share."""
    read = q.clock()
    return {
        "state": read.state,
        "now": read.now.timestamp(),
        # Who is kept waiting between the two looks seems to be behind: of many pairs, the one that was not.
        "ahead_of_monotonic": max(q.clock().now.timestamp() - time.monotonic() for _ in range(20)),
    }


def schedule(q: duly.Client, name: str, **settings: Any) -> int:
    return q.create_schedule(name, topic="ticks", **settings).next_ms[0]


def ticked(q: duly.Client, name: str) -> dict[str, Any]:
    known = q.describe_schedule(name)
    return {"published": known.published, "missed": known.missed, "next_ms": known.next_ms[0]}


def ticks(q: duly.Client) -> list[str]:
    """The ids of all messages that ticks have published, due or not."""
    return [one.id for one in q.browse("ticks", limit=10_000)]


def told(_q: duly.Client) -> list[str]:
    return alerts


ACTIONS: dict[str, Callable[..., Any]] = {
    action.__name__: action for action in (publish, publish_at, claim, ack, clock, schedule, ticked, ticks, told)
}


def main(store: str) -> None:
    with duly.connect(store, on_event=lambda event: alerts.append(event.kind) if event.alert else None) as q:
        for topic in ("jobs", "ticks"):
            q.create_topic(topic, kind="queue", exist_ok=True)
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            name, given = json.loads(line)
            began = time.monotonic()
            answer = ACTIONS[name](q, **given)
            ended = time.monotonic()
            print(json.dumps({"answer": answer, "began": began, "ended": ended}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
