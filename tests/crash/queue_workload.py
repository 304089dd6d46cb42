"""The life of a queue from a seed, that the crash tests cut short, and the process that runs it.

As workload.py, of whose parts it is made: every step is in the journal before it begins and when it is answered.
Time is a clock that the script moves, so that leases end and messages fall due when the seed says so.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import apsw

import duly
from duly.clock import from_ms
from duly.store.sqlite import checkpoint

from .power_vfs import Connection, Disk, DiskVFS, full
from .queue_steps import make_small, watch_phases
from .workload import COPY_PAGES, ROOT, Journal, Zygote, _alter_writer, _sync_faults

LEASE_S = 10
START_MS = 1_700_000_000_000
STEPS = 60
# A process that hangs is ended by this.
PATIENCE_S = 120

LANES: dict[str, duly.Lanes] = {
    "jobs": duly.Lanes(weights={"a": 3}),
    "some": duly.Lanes(max_in_flight=2),
    "one": duly.Lanes(max_in_flight=1),
}
# In milliseconds from now: due, soon, later, and in the past.
_DUE_MS = (None, None, None, None, 0, 300, 2000, 2000, 30_000, 600_000, -5000)
_BIG = 6000


@dataclass(frozen=True)
class Spec:
    """A message as it is published. `due` and `expires` are moments; no due: the moment of publishing."""

    key: str
    size: int = 0
    priority: int = 0
    due: int | None = None
    lane: str | None = None
    id: str | None = None
    expires: int | None = None

    @property
    def payload(self) -> bytes:
        return f"{self.key}|".encode().ljust(self.size, b"x")

    def message(self) -> duly.Message:
        return duly.Message(
            self.payload,
            id=self.id,
            due=None if self.due is None else from_ms(self.due),
            priority=self.priority or None,
            lane=self.lane,
            expires_at=None if self.expires is None else from_ms(self.expires),
        )


def key_of(payload: bytes) -> str:
    """The key of the message that this is the payload of."""
    return payload.partition(b"|")[0].decode()


class QueueJournal(Journal):
    """A journal on the script's clock."""

    def __init__(self, path: str, disk: Disk | None, clock: duly.ManualClock) -> None:
        super().__init__(path, disk)
        self._clock = clock

    def note(self, **entry: Any) -> None:
        super().note(at=self._clock.now_ms(), **entry)

    def do(self, what: str, act: Callable[[], Any], **facts: Any) -> Any:
        """Runs a step between its two lines. None when it was refused, or nobody knows."""
        self._number += 1
        number = self._number
        self.note(begin=number, what=what, **facts)
        for _ in range(3):
            try:
                answer = act()
            except duly.PublishUnknown as error:
                self.note(doubt=number, error=repr(error))
                if facts.get("publish_id") is None:
                    return None
            except duly.Error as error:
                kind = "refused" if what == "publish" or "othing was" in str(error) else "doubt"
                self.note(**{kind: number}, error=repr(error))
                return None
            else:
                self.note(done=number, **_facts(answer))
                return answer
        return None


def _facts(answer: Any) -> dict[str, Any]:
    if isinstance(answer, duly.Receipt):
        return {"absent": list(answer.duplicates), "ids": answer.ids}
    if isinstance(answer, duly.Batch):
        ends = answer.lease_expires_at
        return {
            "keys": [key_of(payload) for payload in answer.payloads],
            "until": 0 if ends is None else round(ends.timestamp() * 1000),
        }
    if isinstance(answer, duly.Settled):
        return {"lost": [key_of(d.payload) for d in answer.lost]}
    return {"answer": answer} if isinstance(answer, (dict, int)) else {}


class QueueLife:
    """Random steps, all from the seed."""

    def __init__(self, path: str, journal: QueueJournal, clock: duly.ManualClock, seed: int) -> None:
        self.path = path
        self.journal = journal
        self.clock = clock
        self.draw = random.Random(seed)
        self.batches = 0
        self.held: list[duly.Delivery] = []
        # By topic: ids that were published, and for some the wish to be used again.
        self.ids: dict[str, list[str]] = {topic: [] for topic in LANES}

    def run(self, steps: int = STEPS) -> None:
        if not self.open():
            return
        for topic, lanes in LANES.items():
            retry = duly.RetryPolicy(max_attempts=1000, base=1)
            act = lambda topic=topic, lanes=lanes, retry=retry: self.q.create_topic(  # noqa: E731
                topic, kind="queue", lease=LEASE_S, retry=retry, lanes=lanes
            )
            self.journal.do("create_topic", act, topic=topic)
        verbs = [verb for weight, verb in self.verbs() for _ in range(weight)]
        # A few of each come for certain, so that no seed leaves one out.
        self.publish()
        self.publish()
        for _, verb in self.verbs():
            self.claim()
            verb()
        for _ in range(steps):
            self.draw.choice(verbs)()
        self.journal.do("close", self.q.close)

    def verbs(self) -> list[tuple[int, Callable[[], object]]]:
        return [
            (6, self.publish),
            (6, self.claim),
            (4, self.ack),
            (2, self.nack),
            (1, self.release),
            (1, self.bury),
            (1, self.extend),
            (1, self.redrive),
            (3, self.move),
            (2, self.cancel),
            (3, self.pass_time),
            (1, self.reopen),
        ]

    def open(self) -> bool:
        act = lambda: duly.connect(self.path, clock=self.clock, consumer="script")  # noqa: E731
        opened = self.journal.do("open", act)
        if opened is not None:
            self.q: duly.Client = opened
        return opened is not None

    def reopen(self) -> None:
        """What is remembered between transactions is read again."""
        self.held = []
        self.journal.do("close", self.q.close)
        while not self.open():
            pass

    def topic(self) -> str:
        return self.draw.choice(["jobs", "jobs", "jobs", "some", "one"])

    # Publishing

    def publish(self) -> None:
        draw = self.draw
        self.batches += 1
        topic, count = self.topic(), draw.choice([1, 1, 3, 8, 20])
        specs = [self.spec(topic, f"{self.batches}:{at}") for at in range(count)]
        publish_id = f"p{self.batches}" if draw.random() < 0.7 else None
        messages = [spec.message() for spec in specs]
        receipt = self.journal.do(
            "publish",
            lambda: self.q.publish(topic, messages, publish_id=publish_id),
            topic=topic,
            batch=self.batches,
            publish_id=publish_id,
            specs=[asdict(spec) for spec in specs],
        )
        if receipt is not None:
            self.ids[topic].extend(receipt.ids)

    def spec(self, topic: str, key: str) -> Spec:
        draw, now = self.draw, self.clock.now_ms()
        wait = draw.choice(_DUE_MS)
        due = None if wait is None else now + wait
        own = None
        if draw.random() < 0.4:
            known = [text for text in self.ids[topic][-20:] if not text.startswith("@")]
            own = draw.choice(known) if known and draw.random() < 0.2 else f"id-{key}"
        return Spec(
            key,
            size=_BIG if draw.random() < 0.01 else 0,
            priority=0 if topic == "one" else draw.choice([0, 0, 1, 5, 65_535]),
            due=due,
            lane=draw.choice([None, None, "a", "b"]),
            id=own,
            expires=(due or now) + draw.choice([500, 8000, 20_000]) if draw.random() < 0.08 else None,
        )

    # Claiming and settling

    def claim(self) -> None:
        topic, most = self.topic(), self.draw.choice([1, 2, 5, 12, 40])
        batch = self.journal.do("claim", lambda: self.q.claim(topic, max_messages=most), topic=topic, most=most)
        self.held.extend(batch or ())

    def settle(self, verdict: str, deliveries: Sequence[duly.Delivery], **how: Any) -> None:
        """One topic's: a settlement is one transaction a batch."""
        for batch in dict.fromkeys(delivery._batch for delivery in deliveries):
            chosen = [delivery for delivery in deliveries if delivery._batch is batch]
            act = lambda chosen=chosen: getattr(self.q, verdict)(chosen, **how)  # noqa: E731
            keys = [key_of(delivery.payload) for delivery in chosen]
            self.journal.do(verdict, act, topic=chosen[0].topic, keys=keys, **how)
        if verdict != "extend":
            self.held = [delivery for delivery in self.held if delivery not in deliveries]

    def some(self, most: int) -> list[duly.Delivery]:
        """Some of one batch that is held: all of it, or a part."""
        if not self.held:
            return []
        batch = self.draw.choice(self.held)._batch
        own = [delivery for delivery in self.held if delivery._batch is batch]
        if self.draw.random() < 0.4:
            return own[:most]
        return self.draw.sample(own, self.draw.randint(1, min(most, len(own))))

    def ack(self) -> None:
        self.settle("ack", self.some(100))

    def nack(self) -> None:
        self.settle("nack", self.some(8), delay=self.draw.choice([0, 0.5, 5, 60]))

    def release(self) -> None:
        self.settle("release", self.some(8))

    def bury(self) -> None:
        self.settle("bury", self.some(3), reason="bad")

    def extend(self) -> None:
        self.settle("extend", self.some(8), lease=self.draw.choice([5, 20]))

    def redrive(self) -> None:
        topic = self.topic()
        letters: list[duly.DeadLetter] = []
        with contextlib.suppress(duly.Error):
            letters = list(self.q.dead(topic))
        chosen = self.draw.sample(letters, self.draw.randint(0, len(letters)))
        act = lambda: self.q.redrive(topic, ids=[letter.id for letter in chosen])  # noqa: E731
        if chosen:
            self.journal.do("redrive", act, topic=topic, keys=[key_of(letter.payload) for letter in chosen])

    # By id

    def named(self, topic: str) -> list[str]:
        known = list(dict.fromkeys(self.ids[topic]))
        return self.draw.sample(known, min(len(known), self.draw.choice([1, 2, 6])))

    def move(self) -> None:
        topic = self.draw.choice(["jobs", "jobs", "some"])
        if not (ids := self.named(topic)):
            return
        wait = self.draw.choice([None, 0, 700, 3000, 90_000])
        due = None if wait is None else self.clock.now_ms() + wait
        priority = self.draw.choice([0, 3]) if due is None or self.draw.random() < 0.5 else None
        moment = None if due is None else from_ms(due)
        act = lambda: self.q.move(topic, ids, due=moment, priority=priority)  # noqa: E731
        self.journal.do("move", act, topic=topic, ids=ids, due=due, priority=priority)

    def cancel(self) -> None:
        topic = self.topic()
        if ids := self.named(topic):
            self.journal.do("cancel", lambda: self.q.cancel(topic, ids), topic=topic, ids=ids)

    def pass_time(self) -> None:
        self.clock.advance(self.draw.choice([0.1, 1, 3, 3, 11]))
        self.journal.note(passed=True)


def live(order: dict[str, Any]) -> None:
    """Carries out one order in this process."""
    logging.disable()
    signal.alarm(PATIENCE_S)
    make_small()
    clock = duly.ManualClock(START_MS)
    disk = None
    if order.get("vfs", True):
        disk = Disk(recording=bool(order.get("record")))
        vfs = DiskVFS(disk)
        apsw.Connection = Connection  # type: ignore[misc]
        disk.kill_at = order.get("kill_at")
        disk.fault = _sync_faults(order.get("fail_syncs", ()), order.get("fail_of", "")) or _full_at(order)
    checkpoint._COPY_PAGES = COPY_PAGES
    _alter_writer(order.get("pragmas", ()))
    journal = QueueJournal(order["journal"], disk, clock)
    phases: dict[str, int] = {}

    def tell(phase: str, times: int) -> None:
        phases[phase] = times
        if disk is not None and [phase, times] == order.get("kill_in"):
            disk.kill_at = disk.calls + order["kill_after"]

    watch_phases(tell)
    life = QueueLife(order["path"], journal, clock, order["seed"])
    if order.get("aside"):
        with ThreadPoolExecutor(1) as aside:
            aside.submit(life.run).result()
    else:
        life.run()
    if disk is not None:
        journal.note(calls=disk.calls, phases=phases)
        if order.get("record"):
            Path(order["record"]).write_bytes(pickle.dumps(disk.events))
        vfs.unregister()


def _full_at(order: dict[str, Any]) -> Callable[[str, str], Exception | None] | None:
    """No room for so many writes, from the nth on."""
    if "full_from" not in order:
        return None
    first, many, seen = order["full_from"], order["full_for"], 0

    def fault(what: str, name: str) -> Exception | None:
        nonlocal seen
        if what != "write":
            return None
        seen += 1
        return full() if first <= seen < first + many else None

    return fault


class QueueZygote(Zygote):
    """A process that has everything imported and forks a child for every order."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.crash.queue_workload"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True)

    def __enter__(self) -> QueueZygote:
        return self


def _serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                live(json.loads(line))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        live(json.loads(sys.argv[2]))
    else:
        _serve()
