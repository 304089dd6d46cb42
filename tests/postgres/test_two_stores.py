"""SQLite and PostgreSQL answer alike: the same seeded script, on a manual clock, word by word.

Left out are what is made up (publish ids, incarnations), and what Duly may choose: which partition of a log comes
first, and whose turn it is among lanes when a chore, in its own time, has dropped what expired. Broken once to see it
fail: one attempt too many remembered of a lease, in one of the two, is noticed within the first seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import duly
from tests.conftest import scaled
from tests.simulation.test_interleaving import seeds

RETRY = duly.RetryPolicy(max_attempts=3, base=2, shape="exponential", jitter="none")
PAYLOADS = ("a", "bb", "ccc")


class Script:
    """Draws operations by a seed and does them, on a client; everything that is answered is told."""

    def __init__(self, q: duly.Client, clock: duly.ManualClock, seed: int) -> None:
        self.q = q
        self.clock = clock
        self.draw = random.Random(seed)
        self.told: list[Any] = []
        self.batches: list[duly.Batch] = []
        self.number = 0

    def run(self, steps: int) -> list[Any]:
        self.q.create_topic("jobs", kind="queue", lease=5, retry=RETRY)
        self.q.create_topic("orders", kind="log", lease=5, retry=RETRY)
        self.q.create_group("orders", "g")
        verbs = [
            *[self.publish] * 4,
            *[self.claim] * 5,
            *[self.settle] * 5,
            *[self.pass_time] * 3,
            self.move,
            self.cancel,
            self.look,
            self.dead,
            self.redrive,
            self.repeat,
            self.seek,
            self.wrong,
            self.delete,
        ]
        for _ in range(steps):
            verb = self.draw.choice(verbs)
            try:
                self.tell(verb.__name__, verb())
            except duly.Error as error:
                self.tell(verb.__name__, type(error).__name__, str(error))
        return self.told

    def tell(self, *what: Any) -> None:
        self.told.append((len(self.told), *what))

    def publish(self) -> Any:
        draw = self.draw
        if draw.random() < 0.5:
            count = draw.choice([1, 2, 7, 70])
            keys = [draw.choice([None, "k1", "k2"]) for _ in range(count)]
            messages = [duly.Message(self.body(), key=key) for key in keys]
            receipt = self.q.publish("orders", messages)
        else:
            receipt = self.q.publish("jobs", [self.job() for _ in range(draw.choice([1, 3, 70]))])
        return receipt.positions, receipt.duplicate, receipt.ids

    def body(self) -> bytes:
        self.number += 1
        return f"{self.number} {self.draw.choice(PAYLOADS)}".encode()

    def job(self) -> duly.Message:
        draw = self.draw
        return duly.Message(
            self.body(),
            id=draw.choice([None, None, f"id{draw.randrange(40)}"]),
            priority=draw.choice([None, 1, 5]),
            due=draw.choice([None, None, timedelta(seconds=2), timedelta(seconds=20)]),
        )

    def claim(self) -> Any:
        topic, group = self.draw.choice([("jobs", None), ("orders", "g")])
        most = self.draw.choice([1, 5, 100])
        batch = self.q.claim(topic, group=group, max_messages=most, consumer=self.draw.choice(["w1", "w2"]))
        if len(batch):
            self.batches.append(batch)
        return [(d.id, d.payload, d.attempt, d.lease_expires_at, d.key, d.priority, d.lane) for d in batch]

    def settle(self) -> Any:
        if not self.batches:
            return None
        batch = self.batches.pop(self.draw.randrange(len(self.batches)))
        part = self.draw.sample(list(batch), self.draw.randint(0, len(batch)))
        verdict = self.draw.choice(["ack", "ack", "nack", "release", "extend", "bury"])
        settled = getattr(self.q, verdict)(part)
        if self.draw.random() < 0.7:
            self.batches.append(batch)
        return verdict, settled.done, [d.id for d in settled.lost]

    def pass_time(self) -> None:
        self.clock.advance(self.draw.choice([0.1, 1, 3, 6, 40]))

    def ids(self) -> list[str]:
        return [f"id{self.draw.randrange(40)}" for _ in range(3)]

    def move(self) -> Any:
        return self.q.move("jobs", sorted(set(self.ids())), due=timedelta(seconds=self.draw.choice([0, 4])))

    def cancel(self) -> Any:
        return self.q.cancel("jobs", sorted(set(self.ids())))

    def look(self) -> Any:
        jobs, orders = self.q.describe_topic("jobs"), self.q.describe_group("orders", "g")
        found = self.q.get("jobs", self.ids()[0])
        seen = [(message.id, message.state) for message in self.q.browse("jobs", limit=20)]
        read = [(m.offset, m.payload, m.key) for m in self.q.read("orders", offset=0, max_messages=5)]
        return (jobs.messages, orders.lag, orders.leased, orders.retrying, orders.dead, found, seen, read)

    def dead(self) -> Any:
        groups = [("jobs", None), ("orders", "g")]
        return [[(d.id, d.attempts, d.reason) for d in self.q.dead(topic, group=group)] for topic, group in groups]

    def redrive(self) -> Any:
        return self.q.redrive("jobs"), self.q.redrive("orders", group="g")

    def repeat(self) -> Any:
        publish_id = f"p{self.draw.randrange(3)}"
        receipt = self.q.publish("orders", [b"again", b"and again"], publish_id=publish_id)
        return receipt.positions, receipt.duplicate

    def seek(self) -> Any:
        return self.q.seek("orders", "g", to=self.draw.choice(["earliest", "latest"]))

    def wrong(self) -> Any:
        wrongs: list[Callable[[], Any]] = [
            lambda: self.q.publish("nowhere", b"x"),
            lambda: self.q.claim("orders", group="nobody"),
            lambda: self.q.publish("orders", duly.Message(b"x", partition=9)),
            lambda: self.q.publish("orders", duly.Message(b"x", due=5)),
            lambda: self.q.create_topic("jobs", kind="log"),
            lambda: self.q.read("jobs", offset=0),
        ]
        return self.draw.choice(wrongs)()

    def delete(self) -> Any:
        self.q.create_topic("passing", kind="queue")
        self.q.publish("passing", b"x")
        before = self.q.list_topics()
        self.q.delete_topic("passing", force=True)
        return sorted(str(each) for each in before), sorted(str(each) for each in self.q.list_topics())


@pytest.mark.timeout(scaled(120, 3600))
def test_the_same_script_gets_the_same_answers(fresh_store_url: Callable[[], str], tmp_path: Path) -> None:
    for seed in seeds(4, 300):
        print(f"DULY_TEST_SEED={seed}")
        told = []
        for store in (str(tmp_path / f"{seed}.duly"), fresh_store_url()):
            clock = duly.ManualClock()
            with duly.connect(store, clock=clock, consumer="w1") as q:
                told.append(Script(q, clock, seed).run(scaled(150, 300)))
        for one, other in zip(*told, strict=True):
            assert one == other
