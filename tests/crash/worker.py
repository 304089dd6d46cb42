"""The other processes of test_processes.py. Each writes what it did, line by line, to a file of its own.

`work`: publishes, claims and settles at random until it is told to stop (or killed).
`wait`: claims blocking, and notes when each message came.  `hold`: claims one, and acks it when told to.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
from typing import Any

import duly

LEASE_S = 1.0
TOPIC, GROUP = "work", "g"


class Notes:
    """Lines in a file, each there before the next thing happens."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._clock = duly.SystemClock()

    def write(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "at": self._clock.now_ms(), **facts})
        os.write(self._fd, line.encode() + b"\n")

    def now_ms(self) -> int:
        return self._clock.now_ms()


def connect(path: str, name: str) -> duly.Client:
    q = duly.connect(path, consumer=name)
    retry = duly.RetryPolicy(max_attempts=10_000, base=0.01, cap=0.1)
    q.create_topic(TOPIC, kind="log", lease=LEASE_S, retry=retry, exist_ok=True)
    q.create_group(TOPIC, GROUP, exist_ok=True)
    return q


def work(path: str, notes: Notes, name: str, seconds: float, seed: int) -> None:
    draw = random.Random(f"{seed} {name}")
    with connect(path, name) as q:
        notes.write("ready")
        until = notes.now_ms() + seconds * 1000
        number = 0
        while notes.now_ms() < until:
            number += 1
            publish(q, notes, f"{name}-{number}", draw.randint(1, 20))
            claim_and_settle(q, notes, draw)
    notes.write("finished")


def publish(q: duly.Client, notes: Notes, batch: str, count: int) -> None:
    notes.write("publish", batch=batch, count=count)
    q.publish(TOPIC, [f"{batch}/{at}".encode() for at in range(count)], publish_id=batch)
    notes.write("published", batch=batch)


def claim_and_settle(q: duly.Client, notes: Notes, draw: random.Random) -> None:
    batch = q.claim(TOPIC, group=GROUP, max_messages=draw.randint(1, 40))
    if not batch:
        return
    ends = [round(delivery.lease_expires_at.timestamp() * 1000) for delivery in batch]
    holds = [(delivery.offset, delivery.payload.decode(), end) for delivery, end in zip(batch, ends, strict=True)]
    notes.write("claimed", holds=holds)
    chance = draw.random()
    cut = draw.randint(0, len(batch))
    if chance < 0.55:
        settle(q, notes, "ack", batch[:])
    elif chance < 0.75:
        settle(q, notes, "ack", batch[:cut])
        settle(q, notes, "nack", batch[cut:])
    elif chance < 0.9:
        settle(q, notes, "release", batch[cut:])
        settle(q, notes, "ack", batch[:cut])
    # Else it forgets them: they come back when the lease ends.


def settle(q: duly.Client, notes: Notes, verdict: str, deliveries: list[duly.Delivery]) -> None:
    if deliveries:
        notes.write(verdict, offsets=[delivery.offset for delivery in deliveries])
        lost = {delivery.offset for delivery in getattr(q, verdict)(deliveries).lost}
        notes.write(f"{verdict} done", offsets=[d.offset for d in deliveries if d.offset not in lost])


def wait(path: str, notes: Notes, name: str, count: int) -> None:
    with connect(path, name) as q:
        notes.write("ready")
        for _ in range(count):
            batch = q.claim(TOPIC, group=GROUP, max_messages=1, wait=30)
            notes.write("woke", payload=batch.payloads[0].decode())
            batch.ack()


def hold(path: str, notes: Notes, name: str) -> None:
    with connect(path, name) as q:
        batch = q.claim(TOPIC, group=GROUP, max_messages=1, lease=0.5)
        notes.write("holds")
        sys.stdin.readline()
        try:
            batch[0].ack()
            notes.write("acked")
        except duly.LeaseLost:
            notes.write("lost")


if __name__ == "__main__":
    logging.disable()
    mode, path, log, name, *rest = sys.argv[1:]
    if mode == "work":
        work(path, Notes(log), name, float(rest[0]), int(rest[1]))
    elif mode == "wait":
        wait(path, Notes(log), name, int(rest[0]))
    else:
        hold(path, Notes(log), name)
