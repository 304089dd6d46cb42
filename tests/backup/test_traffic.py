"""A backup in the middle of traffic, restored and accounted for: every message is in exactly one place.

Of each process the backup holds a beginning of what it did, at least all it had finished when the backup was asked
for, and nothing it began after the backup was there. So it is one moment, and nothing in it is half.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import duly
from tests.conftest import scaled
from tests.store.patience import eventually

from .dice import DICE
from .traffic import GROUP, prepare

ROOT = Path(__file__).parents[2]
WORKERS = {"p1": "publish", "p2": "publish", "c1": "consume", "c2": "consume", "b": "books"}


class Run:
    """A store under load, and what its processes noted."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = home / "app.duly"
        prepare(str(self.path))
        self.processes = [self._start(name, what) for name, what in WORKERS.items()]

    def _start(self, name: str, what: str) -> subprocess.Popen[bytes]:
        journal = self.home / f"{name}.journal"
        command = [sys.executable, "-m", "tests.backup.traffic", what, str(self.path), str(journal), name]
        return subprocess.Popen([*command, str(DICE.random())], cwd=ROOT)

    def notes(self, name: str) -> list[dict[str, Any]]:
        path = self.home / f"{name}.journal"
        # A last line without its end is one that is being written.
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def marks(self) -> dict[str, int]:
        """How far each journal has come."""
        return {name: len(self.notes(name)) for name in WORKERS}

    def end(self) -> None:
        for process in self.processes:
            assert process.poll() is None, "a worker failed"
            process.kill()
            process.wait()


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    eventually(lambda: min(made.marks().values()) > 20, within_s=60)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


@pytest.mark.timeout(scaled(300, 3600))
def test_every_message_of_a_restored_store_is_accounted_for(load: Run) -> None:
    folder = load.home / "backups"
    for round_number in range(1, scaled(2, 30) + 1):
        threading.Event().wait(DICE.random())
        before = load.marks()
        with duly.connect(load.path) as q:
            # Slowly, so that much happens meanwhile.
            q.backup(folder, keep=3, rate=6_000_000)
        after = load.marks()
        assert after["p1"] > before["p1"]
        account(load, folder, before, after, round_number)
    load.end()
    with duly.connect(load.path) as q:
        assert [found.what for found in q.examine() if found.level == "alert"] == []


def account(load: Run, folder: Path, before: dict[str, int], after: dict[str, int], number: int) -> None:
    """Compares what a backup holds with what the processes noted."""
    copy = load.home / "copy.duly"
    duly.restore(folder, copy, force=True)
    with duly.connect(copy, consumer="c1") as q:
        assert [found.what for found in q.examine() if found.level == "alert"] == []
        assert not q.claim("queue")
        logged = Counter(text_of(message.payload) for message in every_logged(q, "log"))
        states = {message.id: message.state for message in every_queued(q)}
        published, unsure = published_of(load, logged, states, before, after)
        settled = settled_of(load, states, published, unsure, before, after)
        books_agree(load, copy, q, before, after)
        q.resume_store()
        left = drain(q)
    dead = {body for body, state in states.items() if state == "dead"}
    assert left | dead | settled == published
    assert not left & dead
    assert not left & settled
    print(f"round {number}: {len(published)} published, {len(settled)} acked, {len(dead)} dead, {len(left)} left")


def text_of(payload: bytes) -> str:
    return payload.decode()


def every_logged(q: duly.Client, topic: str) -> Iterator[duly.StoredMessage]:
    at = 0
    while page := q.read(topic, offset=at, max_messages=1000):
        yield from page
        at = page[-1].offset + 1


def every_queued(q: duly.Client) -> Iterator[duly.QueuedMessage]:
    after = (0, -1)
    while page := q.browse("queue", after=after, limit=1000):
        yield from page
        after = page[-1].place


def published_of(
    load: Run, logged: Counter[str], states: dict[str, str], before: dict[str, int], after: dict[str, int]
) -> tuple[set[str], set[str]]:
    """All that was published by then: whole batches, without a gap, as far as the log says or one further.

    And what may have been: a batch on its way from the queue to the log of which nothing is in the queue. It was not
    published yet, or it was acked already.
    """
    published: set[str] = set()
    unsure: set[str] = set()
    for name in ("p1", "p2"):
        notes = load.notes(name)
        sizes = {note["begin"]: note["size"] for note in notes if "begin" in note}
        bodies = {batch: {f"{name}-{batch}-{n}" for n in range(size)} for batch, size in sizes.items()}
        there = [batch for batch in bodies if bodies[batch] & logged.keys()]
        assert there == list(range(len(there))), "a gap"
        for batch in there:
            assert all(logged[body] == 1 for body in bodies[batch]), "half a batch"
            published |= bodies[batch]
        finished = sum("done" in note for note in notes[: before[name]])
        begun = sum("begin" in note for note in notes[: after[name]])
        assert finished <= len(there) <= begun
        # The queue comes first. Whatever is missing of this batch must have been acked: settled_of sees to that.
        ahead = bodies.get(len(there), set())
        (published if ahead & states.keys() else unsure).update(ahead)
    assert logged.keys() <= published
    assert states.keys() <= published
    return published, unsure


def settled_of(
    load: Run,
    states: dict[str, str],
    published: set[str],
    unsure: set[str],
    before: dict[str, int],
    after: dict[str, int],
) -> set[str]:
    """What is gone: of each consumer the beginning of its acks, as far as it can have come."""
    gone = published - states.keys()
    for name in ("c1", "c2"):
        notes = load.notes(name)
        acks = [note["id"] for note in notes if note.get("begin") == "ack" and note["id"] not in unsure]
        reached = [body in gone for body in acks]
        count = sum(reached)
        assert reached == [True] * count + [False] * (len(acks) - count), "an ack is missing between others"
        done = [note["id"] for note in notes[: before[name]] if note.get("done") == "ack"]
        assert len([body for body in done if body not in unsure]) <= count
        assert count <= sum(note.get("begin") == "ack" for note in notes[: after[name]])
        buried = {note["id"] for note in notes[: before[name]] if note.get("done") == "bury"}
        assert {states[body] for body in buried} <= {"dead"}
    acked = {note["id"] for name in ("c1", "c2") for note in load.notes(name) if note.get("begin") == "ack"}
    assert gone <= acked, "gone, though nobody acked it"
    return gone


def books_agree(load: Run, copy: Path, q: duly.Client, before: dict[str, int], after: dict[str, int]) -> None:
    """The application's rows are of the same moment as the messages."""
    sold = [int(message.payload) for message in every_logged(q, "sales")]
    connection = apsw.Connection(str(copy))
    rows = [number for (number,) in connection.execute("SELECT number FROM sale ORDER BY number")]
    balances = [balance for (balance,) in connection.execute("SELECT balance FROM account ORDER BY number")]
    connection.close()
    assert sold == list(range(len(sold)))
    assert rows == list(range(len(rows)))
    assert balances == [-len(rows), len(rows)]
    assert 0 <= len(rows) - len(sold) <= 1
    notes = load.notes("b")
    assert sum("done" in note for note in notes[: before["b"]]) <= len(sold)
    assert len(rows) <= sum("begin" in note for note in notes[: after["b"]])


def drain(q: duly.Client) -> set[str]:
    """Everything that is still delivered, each once."""
    got: list[str] = []
    while batch := q.claim("queue", max_messages=1000, wait=0.3):
        got += [delivery.id for delivery in batch]
        assert q.ack(batch).done == len(batch)
    assert len(got) == len(set(got))
    q.ack(q.claim("log", group=GROUP, max_messages=1000))
    return set(got)
