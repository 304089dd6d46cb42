"""Processes on a machine whose wall clock jumps while they run: libfaketime moves it, a file says by how much.

Boot time and the monotonic clock are the machine's own, as they are when somebody sets a real wall clock. All
times below are measured by the monotonic clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

DAY_S = 86_400
# How much later than it could something may be seen: processes on a busy machine. Frozen would be a day.
SLACK_S = 8
WORKER = Path(__file__).with_name("clock_worker.py")


def faketime() -> str:
    """The library to preload."""
    package = find_spec("libfaketime")
    if package is None or package.origin is None:
        pytest.skip("libfaketime is not installed: make setup")
    found = list(Path(package.origin).parent.glob("vendor/libfaketime/src/libfaketime.so*"))
    if not found:
        pytest.skip("libfaketime has no library for this platform")
    return str(found[0])


class Process:
    """One process on the store."""

    def __init__(self, store: Path | str, env: dict[str, str]) -> None:
        command = [sys.executable, str(WORKER), str(store)]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._read() == "ready"

    def _read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def begin(self, action: str, **given: Any) -> None:
        """Tells it what to do; `end` waits for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([action, given]) + "\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        found: dict[str, Any] = self._read()
        return found

    def do(self, action: str, **given: Any) -> Any:
        self.begin(action, **given)
        return self.end()["answer"]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Machine:
    """A machine with a wall clock that can be moved, a store, and processes."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "app.duly"
        self._stamp = folder / "wall"
        self.env = {
            **os.environ,
            "LD_PRELOAD": faketime(),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_TIMESTAMP_FILE": str(self._stamp),
        }
        self.wall(0)
        self._started: list[Process] = []

    def wall(self, seconds: float) -> None:
        """From now on the wall clock is so far off, for everybody."""
        fresh = self._stamp.with_suffix(".new")
        fresh.write_text(f"{seconds:+}")
        os.replace(fresh, self._stamp)

    def start(self) -> Process:
        self._started.append(Process(self.store, self.env))
        return self._started[-1]

    def duly(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from duly.cli.main import app; app()", "--store", str(self.store), *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120, check=False)

    def stop(self) -> None:
        for process in self._started:
            process.kill()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    opened = Machine(tmp_path)
    yield opened
    opened.stop()


def test_a_lease_neither_ends_at_once_nor_freezes_when_the_wall_jumps(machine: Machine) -> None:
    holder, other = machine.start(), machine.start()
    for jump_s in (DAY_S, -DAY_S):
        holder.do("publish", payload="x")
        holder.begin("claim", lease=1.5)
        claimed = holder.end()
        assert claimed["answer"] == ["x"]
        machine.wall(jump_s)
        assert other.do("claim") == [], "it is held"
        other.begin("claim", wait=20)
        taken_over = other.end()
        assert taken_over["answer"] == ["x"]
        assert taken_over["ended"] - claimed["began"] >= 1.5, "it was cut short"
        assert taken_over["ended"] - claimed["ended"] <= 1.5 + SLACK_S, "it was frozen"
        assert holder.do("ack") == 1, "it was lost, and other has it"
        assert other.do("ack") == 0


def test_who_holds_a_lease_through_jumps_can_ack(machine: Machine) -> None:
    holder, other = machine.start(), machine.start()
    holder.do("publish", payload="x")
    # Longer than the test takes on a busy machine.
    assert holder.do("claim", lease=120) == ["x"]
    for jump_s in (DAY_S, -DAY_S, 0):
        machine.wall(jump_s)
        assert other.do("claim") == []
    assert holder.do("ack") == 0


def test_a_claim_that_sleeps_through_a_jump_wakes_at_the_right_moment(machine: Machine) -> None:
    sleeper, other = machine.start(), machine.start()
    for jump_s in (DAY_S, -DAY_S):
        published = time.monotonic()
        other.do("publish", payload="x", due=1.5)
        sleeper.begin("claim", wait=20)
        machine.wall(jump_s)
        other.do("publish", payload="later", due=3600)
        woken = sleeper.end()
        assert woken["answer"] == ["x"]
        assert 1.5 <= woken["ended"] - published <= 1.5 + SLACK_S


def test_a_process_that_starts_with_the_wall_a_day_behind_goes_on_where_the_last_one_was(machine: Machine) -> None:
    first = machine.start()
    published = time.monotonic()
    first.do("publish", payload="due", due=1)
    first.do("publish", payload="held")
    assert first.do("claim", lease=2) == ["held"]
    before = first.do("clock")
    first.kill()
    machine.wall(-DAY_S)
    second = machine.start()
    after = second.do("clock")
    assert after["state"] == "behind"
    assert after["ahead_of_monotonic"] == pytest.approx(before["ahead_of_monotonic"], abs=0.01)
    for payload, due_s in (("due", 1), ("held", 2)):
        second.begin("claim", wait=20)
        got = second.end()
        assert got["answer"] == [payload]
        assert due_s <= got["ended"] - published, "early"
        assert got["ended"] - published <= max(due_s, after["now"] - before["now"]) + SLACK_S, "frozen"


def test_a_leap_ahead_is_refused_until_it_is_confirmed(machine: Machine) -> None:
    process, waiter = machine.start(), machine.start()
    process.do("publish_at", payload="in an hour", ahead=3600)
    machine.wall(2 * 3600)
    assert process.do("claim") == []
    assert process.do("claim", wait=0.2) == []
    assert process.do("told") == ["clock_refused"], "once"
    assert process.do("clock")["state"] == "refused"

    doctor = machine.duly("--json", "doctor")
    assert doctor.returncode == 1
    assert "duly clock --accept" in doctor.stdout
    shown = machine.duly("--json", "clock")
    assert shown.returncode == 1
    assert json.loads(shown.stdout)["state"] == "refused"
    assert json.loads(shown.stdout)["host_ahead_s"] == pytest.approx(7200, abs=0.1)

    waiter.begin("claim", wait=60)
    accepted = machine.duly("clock", "--accept")
    confirmed = time.monotonic()
    assert accepted.returncode == 0
    assert "2 h ahead" in accepted.stdout
    got = waiter.end()
    assert got["answer"] == ["in an hour"]
    assert got["ended"] - confirmed < SLACK_S, "it was woken, wherever it slept"
    assert process.do("claim") == []
    assert process.do("clock")["state"] == "together"
    assert machine.duly("doctor").returncode == 0


def test_confirming_a_wall_clock_that_is_behind_takes_the_store_back(machine: Machine) -> None:
    process = machine.start()
    machine.wall(-3600)
    process.do("publish_at", payload="x", ahead=1)
    assert process.do("clock")["state"] == "behind"
    accepted = machine.duly("clock", "--accept")
    assert "1 h back" in accepted.stdout
    assert process.do("claim", wait=1.5) == [], "it is due in an hour now"
    assert process.do("clock")["state"] == "together"
