"""Several processes on one queue, some of them killed: nothing is lost, held twice, early or brought back."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import duly
from tests.conftest import scaled

from .checker import check_integrity
from .queue_steps import small_steps
from .queue_worker import LEASE_S, TOPIC, connect
from .test_processes import read_notes, until
from .workload import ROOT

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))
PROCESSES = scaled(4, 8)
started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _nobody_stays_behind() -> Iterator[None]:
    """Kills what a test that failed has left."""
    yield
    while started:
        with started.pop() as process:
            process.kill()


def start(path: Path | str, log: Path, seconds: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.crash.queue_worker", str(path), str(log), log.stem, str(seconds), str(SEED)]
    started.append(subprocess.Popen(command, cwd=ROOT))
    return started[-1]


@dataclass
class Hold:
    """One delivery of one message: when its lease began and ended, and how its holder settled it."""

    who: str
    begins: int
    ends: int
    # When the claim was answered. Its time is when its transaction began, which takes in what is asked a moment later.
    came: int
    # When a settlement was asked for, its verdict, and whether it was answered.
    asked: int | None = None
    verdict: str = ""
    done: bool = False
    delay: int = 0

    def over_for(self, other: Hold, *, moved: bool) -> bool:
        """Whether somebody else may have the message then. A move may end the wait after a nack."""
        if self.verdict == "ack" and self.done:
            return False
        given_back = self.verdict in ("nack", "release", "bury") and self.asked is not None
        back_at = (self.asked or 0) + (0 if moved else self.delay)
        return other.begins >= self.ends or (given_back and back_at <= other.came)


@dataclass
class Story:
    """What all processes wrote, put together, by message."""

    published: set[str] = field(default_factory=set)
    in_doubt: list[list[str]] = field(default_factory=list)
    dues: dict[str, int | None] = field(default_factory=dict)
    holds: dict[str, list[Hold]] = field(default_factory=lambda: defaultdict(list))
    acked: Counter[str] = field(default_factory=Counter)
    perhaps_acked: set[str] = field(default_factory=set)
    # When it was answered that a message is cancelled.
    cancelled: dict[str, int] = field(default_factory=dict)
    perhaps_cancelled: set[str] = field(default_factory=set)
    # (answered, due) of a move; and those that nobody knows of.
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)
    perhaps_moved: set[str] = field(default_factory=set)


def tell(logs: list[Path]) -> Story:
    story = Story()
    for log in logs:
        _Teller(story, log.stem).tell(read_notes(log))
    return story


class _Teller:
    def __init__(self, story: Story, who: str) -> None:
        self.story = story
        self.who = who
        self.asked: dict[str, list[str]] = {}
        self.own: dict[str, Hold] = {}
        self.changing: list[str] = []

    def tell(self, notes: list[dict[str, Any]]) -> None:
        story = self.story
        last = ""
        for note in notes:
            last = note["what"]
            self.add(note)
        story.in_doubt.extend(self.asked.values())
        story.perhaps_acked.update(key for key, hold in self.own.items() if hold.verdict == "ack" and not hold.done)
        self.leave_in_doubt(last)

    def leave_in_doubt(self, what: str) -> None:
        """Nobody knows whether it was done."""
        if what == "cancel":
            self.story.perhaps_cancelled.update(self.changing)
        if what == "move":
            self.story.perhaps_moved.update(self.changing)

    def add(self, note: dict[str, Any]) -> None:
        story, what = self.story, note["what"]
        if what == "publish":
            self.asked[note["batch"]] = list(note["dues"])
            story.dues.update(note["dues"])
        elif what == "published":
            story.published.update(self.asked.pop(note["batch"]))
        elif what == "claimed":
            for key, ends in note["holds"]:
                self.own[key] = Hold(self.who, ends - round(LEASE_S * 1000), ends, note["at"])
                story.holds[key].append(self.own[key])
        elif what in ("ack", "nack", "release", "bury"):
            for key in note["keys"]:
                hold = self.own[key]
                hold.asked, hold.verdict, hold.delay = note["at"], what, round(note.get("delay", 0) * 1000)
        elif what in ("move", "cancel"):
            self.changing = note["keys"]
        elif what == "failed":
            self.leave_in_doubt(note["verb"])
        elif what == "cancel done":
            for key, answer in note["answers"].items():
                if answer == "cancelled":
                    story.cancelled[key] = note["at"]
                elif answer == "leased":
                    story.perhaps_cancelled.add(key)
        elif what == "move done":
            story.moved.update({k: (note["at"], note["due"]) for k, a in note["answers"].items() if a == "moved"})
        elif what.endswith(" done") and "keys" in note:
            for key in note["keys"]:
                self.own[key].done = True
            if what == "ack done":
                story.acked.update(note["keys"])


def two_valid_leases(story: Story) -> list[str]:
    """Messages that somebody was given while somebody else held them, or after they were acked."""
    found = []
    for key, holds in story.holds.items():
        holds.sort(key=lambda hold: (hold.begins, hold.ends))
        moved = key in story.moved or key in story.perhaps_moved
        found += [
            f"{key}: {first} and {second}"
            for first, second in itertools.pairwise(holds)
            if not first.over_for(second, moved=moved)
        ]
    return found


def too_early(story: Story) -> list[str]:
    """Messages that came before they were due, or after they were cancelled."""
    found = []
    for key, holds in story.holds.items():
        first = min(hold.begins for hold in holds)
        due = story.dues[key]
        if due is not None and key not in story.moved and key not in story.perhaps_moved and first < due:
            found.append(f"{key} is due at {due} and came at {first}")
        if key in story.moved:
            answered, due = story.moved[key]
            found += [f"{key} was moved to {due}: {hold}" for hold in holds if answered < hold.begins < due]
        if key in story.cancelled:
            found += [f"{key} was cancelled: {hold}" for hold in holds if story.cancelled[key] < hold.begins]
    return found


def drain(path: Path | str, wait_s: float) -> tuple[Counter[str], int]:
    """Redrives what is dead and claims and acks what is left, when all leases are over. Also counts the dead."""
    left: Counter[str] = Counter()
    with small_steps(), duly.connect(path, consumer="drain") as q:
        assert not [finding for finding in q.examine() if finding.level == "alert"]
        dead = len(list(q.dead(TOPIC)))
        assert q.redrive(TOPIC) == dead
        while batch := q.claim(TOPIC, max_messages=1000, wait=wait_s):
            left.update(payload.decode() for payload in batch.payloads)
            assert not q.ack(batch).lost
        assert not q.browse(TOPIC)
        assert not [finding for finding in q.examine() if finding.level == "alert"]
    return left, dead


def account(path: Path | str, logs: list[Path], wait_s: float = LEASE_S * 2) -> tuple[Story, int]:
    """Every message is acked once, or cancelled, or comes when the rest is drained."""
    story = tell(logs)
    left, dead = drain(path, wait_s)
    assert not [key for key, times in left.items() if times > 1], "a message came twice while draining"
    seen = set(left) | set(story.holds)
    for keys in story.in_doubt:
        there = sum(key in seen for key in keys)
        assert there in (0, len(keys)), f"{keys} are there in part"
    doubtful = {key for keys in story.in_doubt for key in keys}
    assert seen <= story.published | doubtful, "a message came that nobody published"
    assert not set(story.acked) & set(left), "an acked message was delivered again"
    assert max(story.acked.values(), default=0) <= 1, "a message was acked twice"
    assert not set(story.cancelled) & (set(left) | set(story.acked)), "a cancelled message was delivered"
    gone = set(story.acked) | story.perhaps_acked | set(story.cancelled) | story.perhaps_cancelled
    missing = (story.published | (seen & doubtful)) - gone - set(left)
    some = {key: (story.moved.get(key), story.holds.get(key)) for key in sorted(missing)[:5]}
    assert not missing, f"{len(missing)} are neither acked, cancelled nor delivered: {some}"
    assert not (found := two_valid_leases(story)), f"two_valid_leases: {found[:3]}"
    assert not (found := too_early(story)), f"too_early: {found[:3]}"
    print(
        f"{len(logs)} processes: {len(story.published)} messages published,"
        f" {sum(map(len, story.holds.values()))} deliveries, {len(story.acked)} acked,"
        f" {len(story.cancelled)} cancelled, {len(story.moved)} moved, {dead} dead; 0 lost, 0 under two leases, 0 early"
    )
    return story, dead


@pytest.mark.timeout(scaled(300, 900))
def test_processes_work_on_one_queue_while_some_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "app.duly"
    logs = work_and_kill(path, tmp_path, PROCESSES, scaled(4, 100), scaled(3, 40))
    check_integrity(path)
    assert len(account(path, logs)[0].acked) > 100


def work_and_kill(path: Path | str, folder: Path, processes: int, seconds: float, kills: int) -> list[Path]:
    """Has processes work on one queue, kills some and starts others. Returns what they wrote."""
    print(f"DULY_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    logs = [folder / f"w{number}.notes" for number in range(processes)]
    # All open the store at once, and it is not there yet.
    running = {log: start(path, log, seconds) for log in logs}
    for log in logs:
        until(log, "ready")
    for _ in range(kills):
        time.sleep(seconds / (kills + 1))
        process = running.pop(draw.choice(list(running)))
        process.kill()
        process.communicate(timeout=30)
        logs.append(folder / f"w{len(logs)}.notes")
        running[logs[-1]] = start(path, logs[-1], seconds / 2)
    for process in running.values():
        assert process.wait(90) == 0
    return logs


SABOTAGES = {
    "lost": "neither acked, cancelled nor delivered",
    "acked again": "an acked message was delivered again",
    "half a batch": "there in part",
    "cancelled": "a cancelled message was delivered",
    "early": "too_early",
    "two leases": "two_valid_leases",
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_the_account_notices(tmp_path: Path, sabotage: str) -> None:
    path, log = tmp_path / "app.duly", tmp_path / "w0.notes"
    notes: list[dict[str, Any]] = [
        {"what": "publish", "at": 0, "batch": "x-1", "dues": {"x-1/0": None, "x-1/1": None}},
        {"what": "published", "at": 0, "batch": "x-1"},
    ]
    claimed = {"what": "claimed", "at": 0, "holds": [["x-1/0", 1000]]}
    acked = [{"what": "ack", "at": 10, "keys": ["x-1/0"]}, {"what": "ack done", "at": 11, "keys": ["x-1/0"]}]
    stored = ["x-1/0", "x-1/1"]
    if sabotage == "lost":
        stored = ["x-1/0"]
    elif sabotage == "acked again":
        notes += [claimed, *acked]
    elif sabotage == "half a batch":
        del notes[1]
        stored = ["x-1/1"]
    elif sabotage == "cancelled":
        notes += [{"what": "cancel done", "at": 5, "answers": {"x-1/0": "cancelled"}}]
    elif sabotage == "early":
        notes[0]["dues"]["x-1/0"] = 500
        notes += [claimed]
    else:
        notes += [claimed, claimed | {"holds": [["x-1/0", 1500]]}]
    log.write_text("".join(json.dumps(note) + "\n" for note in notes))
    with connect(str(path), "test") as q:
        q.publish(TOPIC, [key.encode() for key in stored])
    with pytest.raises(AssertionError, match=SABOTAGES[sabotage]):
        account(path, [log], 0.05)
