"""Worker processes killed at random, under load: every message is handled, twice only after a kill, none is lost.

`duly work` runs eight processes. The test publishes all the while and kills one of them with SIGKILL now and then.
Handlers note their beginning and their end, each in one O_APPEND write, which a kill cannot take back. At the end
the notes have to tell a story in which:

- every published message was handled to its end at least once, and nothing is left in the queue or dead;
- a message was begun again only after the process that had begun it before was killed, and before it had acked it;
- no lease was ever seen to end later than it could when its holder was killed: nobody renews for the dead.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duly
from tests.acceptance.duly_work import Work, notes, work, write_application
from tests.conftest import scaled
from tests.store.patience import eventually

PROCESSES = 8
LEASE_S = 2.5
CLOCK = duly.SystemClock()

APPLICATION = """
import asyncio, random

@workers.on("jobs", concurrency=3)
def handler(d):
    note("begin", d)
    time.sleep(random.choice([0, 0.001, 0.02, 0.05]))
    note("end", d)

@workers.on("tasks", concurrency=3)
async def task(d):
    note("begin", d)
    await asyncio.sleep(random.choice([0, 0.001, 0.02, 0.05]))
    note("end", d)

@workers.on("long", concurrency=2)
def long(d):
    # Longer than its lease: it is renewed, or it would be handled twice without a kill.
    note("begin", d)
    time.sleep(3.5)
    note("end", d)
"""
TOPICS = ("jobs", "tasks", "long")


def children(supervisor: int) -> list[int]:
    """The worker processes that are alive."""
    path = Path(f"/proc/{supervisor}/task/{supervisor}/children")
    return [int(pid) for pid in path.read_text().split()]


@dataclass(frozen=True)
class Kill:
    """When a process was dead for certain, by the clock that handlers note and by the store's."""

    at: float
    at_ms: int


def check_leases(q: duly.Client, killed: dict[int, Kill]) -> None:
    """What the dead still hold ends when it would have ended without them."""
    for topic in TOPICS:
        for message in q.browse(topic, state="leased"):
            pid = int((message.consumer or "").split("-")[-2])
            if pid in killed:
                ends_ms = message.lease_expires_at_ms or 0
                assert ends_ms <= killed[pid].at_ms + LEASE_S * 1000, f"{message} was renewed for the dead"


def publish_and_kill(q: duly.Client, running: Work, seconds: float, draw: random.Random) -> dict[int, Kill]:
    """Publishes and kills for a while; returns when each victim was dead."""
    killed: dict[int, Kill] = {}
    published = 0
    until = time.monotonic() + seconds
    next_kill = time.monotonic() + 0.5
    while time.monotonic() < until:
        many = draw.randint(1, 12)
        q.publish(draw.choice(TOPICS[:2]), [f"{published + at}".encode() for at in range(many)])
        published += many
        if draw.random() < 0.05:
            q.publish("long", f"long-{published}".encode())
        time.sleep(draw.uniform(0, 0.08))
        if time.monotonic() >= next_kill and (alive := children(running.process.pid)):
            victim = draw.choice(alive)
            os.kill(victim, signal.SIGKILL)
            killed[victim] = Kill(time.monotonic(), CLOCK.now_ms())
            check_leases(q, killed)
            next_kill = time.monotonic() + draw.uniform(0.2, 1.2)
    return killed


def all_handled(q: duly.Client, killed: dict[int, Kill]) -> bool:
    check_leases(q, killed)
    return not any(q.browse(topic, limit=1) for topic in TOPICS)


def story(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Every message's notes, in order."""
    told: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for note in notes(folder):
        told[note["payload"]].append(note)
    return told


def check(told: dict[str, list[dict[str, Any]]], killed: dict[int, Kill]) -> int:
    """How often a message was begun again; raises where that was not due to a kill."""
    again = 0
    for payload, happened in told.items():
        begins = [note for note in happened if note["what"] == "begin"]
        assert any(note["what"] == "end" for note in happened), f"{payload} was never handled to its end"
        for before, after in itertools.pairwise(begins):
            again += 1
            assert before["pid"] in killed, f"{payload} was handled twice, and nobody was killed: {happened}"
            died = killed[before["pid"]].at
            assert after["at"] > died, f"{payload} was begun again while its holder lived: {happened}, {died}"
        # The engine counts every one of them, so that a message that kills is found out.
        assert [note["attempt"] for note in begins] == sorted({note["attempt"] for note in begins}), happened
    return again


def test_workers_killed_at_random_lose_nothing_and_repeat_only_what_a_kill_cut_short(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    write_application(tmp_path, APPLICATION)
    with duly.connect(tmp_path / "app.duly") as q:
        for topic in TOPICS:
            q.create_topic(topic, kind="queue", lease=LEASE_S, retry=duly.RetryPolicy(max_attempts=1000))
        with work(tmp_path, "--processes", str(PROCESSES), "--grace", "10s") as running:
            eventually(lambda: len(children(running.process.pid)) == PROCESSES, within_s=60)
            killed = publish_and_kill(q, running, scaled(6, 60), draw)
            eventually(lambda: all_handled(q, killed), within_s=60)
            running.signal()
            assert running.ended(60) == 0
        for topic in TOPICS:
            assert list(q.dead(topic)) == []
        told = story(tmp_path)
        assert sum(q.describe_topic(topic).partitions[0].next_offset for topic in TOPICS) == len(told)
    again = check(told, killed)
    print(f"{len(told)} messages, {len(killed)} kills, {again} begun again")
    assert killed
    assert len(told) > 100
