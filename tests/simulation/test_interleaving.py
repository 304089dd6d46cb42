"""Everything interleaved, every message accounted for (DESIGN.md §5, rule 13).

A failure prints its seed: `DULY_TEST_SEED=… pytest tests/simulation/test_interleaving.py` replays it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import duly
from tests.conftest import scaled

from .interleaving import Interleaving

pytestmark = pytest.mark.timeout(scaled(300, 7200))

GIVEN_SEED = os.environ.get("DULY_TEST_SEED")


def seeds(small: int, full: int) -> list[int]:
    """New ones each run, or the one that is to be replayed."""
    if GIVEN_SEED is not None:
        return [int(GIVEN_SEED)]
    return [random.randrange(2**32) for _ in range(scaled(small, full))]


def test_every_message_is_accounted_for_whatever_is_interleaved(tmp_path: Path) -> None:
    for seed in seeds(12, 1000):
        print(f"DULY_TEST_SEED={seed}")
        driver = Interleaving(str(tmp_path / f"{seed}.duly"), seed)
        try:
            driver.run(scaled(120, 250))
            driver.drain()
        finally:
            driver.close()
        for leftover in tmp_path.iterdir():
            leftover.unlink()


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    for seed in seeds(2, 100):
        print(f"DULY_TEST_SEED={seed}")
        folder = tmp_path / str(seed)
        folder.mkdir()
        for life in range(scaled(3, 6)):
            live_and_die(folder, seed + life, str(folder / "app.duly"))
        account(folder, str(folder / "app.duly"))


def live_and_die(folder: Path, seed: int, store: str) -> None:
    """Runs a child until it has done some work, and kills it at a random moment after that."""
    journal = folder / "journal"
    before = journal.stat().st_size if journal.exists() else 0
    child = subprocess.Popen([sys.executable, "-m", "tests.simulation.victim", str(folder), str(seed), store])
    patience = time.monotonic() + 60
    while not journal.exists() or journal.stat().st_size == before:
        assert child.poll() is None, "the child ended by itself"
        assert time.monotonic() < patience
        time.sleep(0.005)
    time.sleep(random.Random(seed).uniform(0.05, 0.4))
    child.send_signal(signal.SIGKILL)
    assert child.wait(30) == -signal.SIGKILL


def account(folder: Path, store: str) -> None:
    """Repeats the publish in doubt, drains, and compares with what the children were told."""
    published: dict[str, list[int]] = {}
    sure: list[int] = []
    doubtful: set[int] = set()
    for line in (folder / "journal").read_text().splitlines():
        if not line.endswith("}"):
            # Killed in the middle of the line: what it announces was never begun.
            continue
        entry = json.loads(line)
        if entry["what"] == "publish":
            published[entry["id"]] = entry["numbers"]
        elif entry["what"] == "acking":
            doubtful.update(entry["numbers"])
        elif entry["what"] == "acked":
            sure.extend(entry["numbers"])
            doubtful.difference_update(entry["numbers"])
    every = sorted(number for numbers in published.values() for number in numbers)
    assert len(sure) == len(set(sure)), "acked twice"
    with duly.connect(store) as q:
        for publish_id, numbers in published.items():
            q.publish("t", [number.to_bytes(8) for number in numbers], publish_id=publish_id)
        assert sorted(_read(q)) == every, "a batch is missing, in part or whole, or stored twice"
        q.release(consumer="victim")
        left = _drain(q)
    assert len(left) == len(set(left)), "delivered twice in one drain"
    assert not set(left) & set(sure), "acked and delivered again"
    assert set(every) - set(left) - set(sure) <= doubtful, "lost"


def _read(q: duly.Client) -> list[int]:
    offset = 0
    numbers: list[int] = []
    while page := q.read("t", offset=offset, max_messages=10_000):
        numbers.extend(int.from_bytes(message.payload) for message in page)
        offset = page[-1].offset + 1
    return numbers


def _drain(q: duly.Client) -> list[int]:
    numbers: list[int] = []
    while batch := q.claim("t", group="g", max_messages=10_000):
        numbers.extend(int.from_bytes(payload) for payload in batch.payloads)
        assert q.ack(batch).lost == ()
    left = q.describe_group("t", "g")
    assert (left.lag, left.pending) == (0, 0)
    return numbers
