"""Schedules in processes on one file: wall clocks that jump a day, processes that are killed.

The processes of test_clock.py, whose wall clock libfaketime moves.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import duly
from tests.conftest import scaled
from tests.store.patience import eventually

from .test_clock import DAY_S, SLACK_S, Machine, Process

pytestmark = pytest.mark.timeout(scaled(180, 3600))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    opened = Machine(tmp_path)
    yield opened
    opened.stop()


def once_each(process: Process) -> dict[str, list[int]]:
    """The ticks of which there are messages, by schedule; there are no two of one tick."""
    found: dict[str, list[int]] = defaultdict(list)
    ids = process.do("ticks")
    assert len(ids) == len(set(ids))
    for id in ids:
        _, name, tick = id.split("@")
        found[name].append(int(tick))
    return {name: sorted(ticks) for name, ticks in found.items()}


def test_ticks_neither_stop_nor_come_twice_when_the_wall_jumps_a_day(machine: Machine) -> None:
    maker, other = machine.start(), machine.start()
    maker.do("schedule", name="s", cron="* * * * * *", missed="all", limit=1000)
    for leap_s in (DAY_S, -DAY_S, 0):
        machine.wall(leap_s)
        before = other.do("ticked", name="s")["published"]
        began = time.monotonic()
        while other.do("ticked", name="s")["published"] < before + 3:
            assert time.monotonic() - began < 3 + SLACK_S, "it was frozen"
            time.sleep(0.05)
    ticks = once_each(maker)["s"]
    # The store's time went on by the machine's monotonic clock all along.
    assert {later - earlier for earlier, later in pairwise(ticks)} == {1000}
    assert maker.do("ticked", name="s")["missed"] == 0


def test_a_leap_that_is_accepted_and_taken_back_is_judged_by_the_policy_and_ticks_nothing_twice(
    machine: Machine,
) -> None:
    process, other = machine.start(), machine.start()
    # Half an hour off, so that no tick of its own comes between.
    hourly = f"{(time.localtime().tm_min + 30) % 60} * * * *"
    process.do("schedule", name="latest", cron=hourly)
    process.do("schedule", name="all", cron=hourly, missed="all", limit=5)
    machine.wall(DAY_S)
    assert machine.duly("clock", "--accept").returncode == 0
    eventually(lambda: process.do("ticked", name="latest")["published"] and other.do("ticked", name="all")["published"])
    ahead = process.do("ticked", name="all")
    assert (ahead["published"], ahead["missed"]) == (5, 19)
    machine.wall(0)
    assert machine.duly("clock", "--accept").returncode == 0
    time.sleep(0.5)
    # What was judged stays judged: the next tick is where it was.
    assert process.do("ticked", name="all") == ahead
    machine.wall(2 * DAY_S)
    assert machine.duly("clock", "--accept").returncode == 0
    eventually(lambda: other.do("ticked", name="all")["published"] == 10)
    assert process.do("ticked", name="all")["missed"] == 19 + 19
    assert {name: len(ticks) for name, ticks in once_each(process).items()} == {"latest": 2, "all": 10}


def test_processes_killed_again_and_again_publish_each_tick_once_and_the_others_take_over(machine: Machine) -> None:
    draw = random.Random(11)
    processes = [machine.start() for _ in range(3)]
    for n in range(3):
        processes[0].do("schedule", name=f"fields {n}", cron="* * * * * *", missed="all", limit=1000)
        processes[0].do("schedule", name=f"period {n}", cron="@every 1s", missed="all", limit=1000)
    # The one that made them goes first, and has told nobody.
    victim = 0
    for _ in range(scaled(5, 100)):
        processes[victim].kill()
        time.sleep(draw.uniform(0.1, 1.5))
        processes[victim] = machine.start()
        victim = draw.randrange(3)
    before = processes[0].do("ticked", name="period 2")["published"]
    eventually(lambda: processes[0].do("ticked", name="period 2")["published"] > before + 1)
    ticks = once_each(processes[1])
    assert len(ticks) == 6
    for name, some in ticks.items():
        assert {later - earlier for earlier, later in pairwise(some)} == {1000}, name
        assert len(some) > 4


def test_ticks_come_on_time(tmp_path: Path) -> None:
    with duly.connect(tmp_path / "app.duly") as q:
        q.create_topic("jobs", kind="queue")
        q.create_schedule("s", topic="jobs", cron="* * * * * *")
        eventually(lambda: q.describe_schedule("s").published >= scaled(5, 60), within_s=120)
        late = sorted(run.late_ms for run in q.describe_schedule("s").runs)
    print(f"late by {late} ms")
    assert late[0] >= 0
    assert late[len(late) // 2] < 100


def test_who_is_left_learns_of_a_schedule_and_has_it_tick_on_time(machine: Machine) -> None:
    maker, other = machine.start(), machine.start()
    # Until nobody has chores to do any more, for which it would look.
    time.sleep(4)
    first = maker.do("schedule", name="s", cron="@every 6s")
    maker.kill()
    began = time.time()
    eventually(lambda: other.do("ticked", name="s")["published"], within_s=20)
    # Six seconds are enough to hear of it: it is on time.
    assert abs(time.time() - first / 1000) < 1.5
    assert time.time() - began < 8
