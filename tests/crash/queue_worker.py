"""The processes of test_queue_processes.py. Each works on one queue at random, and notes what it did in a file.

python -m tests.crash.queue_worker FILE NOTES NAME SECONDS SEED
"""

from __future__ import annotations

import logging
import random
import signal
import sys
from collections.abc import Sequence

import duly
from duly.clock import from_ms

from .queue_steps import make_small
from .worker import Notes

LEASE_S = 1.0
TOPIC = "jobs"


def connect(path: str, name: str) -> duly.Client:
    q = duly.connect(path, consumer=name)
    retry = duly.RetryPolicy(max_attempts=10_000, base=0.01, cap=0.1)
    q.create_topic(TOPIC, kind="queue", lease=LEASE_S, retry=retry, exist_ok=True, lanes=duly.Lanes(weights={"a": 2}))
    return q


class Worker:
    """Publishes, claims, settles, moves and cancels until its time is over (or it is killed)."""

    def __init__(self, q: duly.Client, notes: Notes, name: str, seed: int) -> None:
        self.q = q
        self.notes = notes
        self.name = name
        self.draw = random.Random(f"{seed} {name}")
        self.number = 0
        # What it published under ids and has neither moved nor cancelled: nobody else touches those.
        self.ids: list[str] = []

    def work(self, seconds: float) -> None:
        until = self.notes.now_ms() + seconds * 1000
        verbs = [self.publish, self.claim, self.claim, self.claim, self.move, self.cancel, self.redrive]
        while self.notes.now_ms() < until:
            self.draw.choice(verbs)()

    def publish(self) -> None:
        draw, now = self.draw, self.notes.now_ms()
        self.number += 1
        batch = f"{self.name}-{self.number}"
        keys = [f"{batch}/{at}" for at in range(draw.choice([1, 3, 10, 30]))]
        dues = [draw.choice([None, None, now + 20, now + 300, now + 1500]) for _ in keys]
        named = [draw.random() < 0.3 for _ in keys]
        messages = [
            duly.Message(
                key.encode(),
                id=key if has_id else None,
                due=None if due is None else from_ms(due),
                priority=draw.choice([None, None, 1, 9]),
                lane=draw.choice([None, None, "a", "b"]),
            )
            for key, due, has_id in zip(keys, dues, named, strict=True)
        ]
        self.notes.write("publish", batch=batch, dues=dict(zip(keys, dues, strict=True)))
        self.q.publish(TOPIC, messages, publish_id=batch)
        self.notes.write("published", batch=batch)
        self.ids += [key for key, has_id in zip(keys, named, strict=True) if has_id]

    def claim(self) -> None:
        draw = self.draw
        batch = self.q.claim(TOPIC, max_messages=draw.randint(1, 40))
        if not batch:
            return
        holds = [(d.payload.decode(), round(d.lease_expires_at.timestamp() * 1000)) for d in batch]
        self.notes.write("claimed", holds=holds)
        chance, cut = draw.random(), draw.randint(0, len(batch))
        if chance < 0.5:
            self.settle("ack", batch[:])
        elif chance < 0.7:
            self.settle("ack", batch[:cut])
            self.settle("nack", batch[cut:], delay=draw.choice([0, 0.05, 0.4]))
        elif chance < 0.85:
            self.settle("release", batch[cut:])
            self.settle("ack", batch[:cut])
        elif chance < 0.93:
            self.settle("bury", batch[:1])
            self.settle("ack", batch[1:])
        # Else it forgets them: they come back when the lease ends.

    def settle(self, verdict: str, deliveries: Sequence[duly.Delivery], **how: float) -> None:
        if deliveries:
            self.notes.write(verdict, keys=[d.payload.decode() for d in deliveries], **how)
            lost = {d.payload for d in getattr(self.q, verdict)(deliveries, **how).lost}
            done = [d.payload.decode() for d in deliveries if d.payload not in lost]
            self.notes.write(f"{verdict} done", keys=done)

    def some_ids(self) -> list[str]:
        chosen = self.draw.sample(self.ids, min(len(self.ids), self.draw.randint(1, 4)))
        self.ids = [text for text in self.ids if text not in chosen]
        return chosen

    def move(self) -> None:
        if ids := self.some_ids():
            due = self.notes.now_ms() + self.draw.choice([0, 100, 900])
            self.notes.write("move", keys=ids, due=due)
            answers = self.q.move(TOPIC, ids, due=from_ms(due), priority=self.draw.choice([None, 0, 5]))
            self.notes.write("move done", answers=answers, due=due)

    def cancel(self) -> None:
        if ids := self.some_ids():
            self.notes.write("cancel", keys=ids)
            self.notes.write("cancel done", answers=self.q.cancel(TOPIC, ids))

    def redrive(self) -> None:
        self.notes.write("redrive")
        self.q.redrive(TOPIC)
        self.notes.write("redrive done")


if __name__ == "__main__":
    logging.disable()
    path, log, name, seconds, seed = sys.argv[1:]
    signal.alarm(int(float(seconds)) + 120)
    make_small()
    own_notes = Notes(log)
    with connect(path, name) as client:
        own_notes.write("ready")
        Worker(client, own_notes, name, int(seed)).work(float(seconds))
    own_notes.write("finished")
