"""Thousands of days of schedules in a store: clocks that change and jump, stores that are closed and paused.

What should have come is told by walking through time minute by minute (tests/unit/test_schedule.py) and by the policies
as they are documented, in a few lines that share nothing with the engine.
"""

from __future__ import annotations

import os
import random
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import pytest

import duly
from tests.conftest import scaled
from tests.store.patience import eventually
from tests.unit.test_schedule import DAY, HOUR, MINUTE, Fields, ms, walked

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))
DAYS = scaled(40, 10_000)
# Clocks change in the first weeks, in every zone.
START = ms("2026-03-20T00:00")
ZONES = ("Europe/Berlin", "Australia/Sydney", "Australia/Lord_Howe", "America/Santiago")
LIMIT = 5

pytestmark = pytest.mark.timeout(scaled(120, 3 * 3600))


class Expected:
    """What a schedule should have published."""

    def __init__(self, ticks: list[int], missed: str, now: int) -> None:
        self.ticks = ticks
        self.policy = missed
        # Up to where ticks were judged.
        self.judged = now
        self.paused = False
        self.published: list[int] = []
        self.missed = 0

    def look(self, now: int) -> None:
        """Somebody has the store open, and it is so late."""
        due = self.ticks[bisect_right(self.ticks, self.judged) : bisect_right(self.ticks, now)]
        if self.paused or not due:
            return
        on_time = now - due[-1] <= MINUTE
        taken = {"all": due[-LIMIT:], "latest": due[-1:], "skip": due[-1:] if on_time else []}[self.policy]
        self.published += taken
        self.missed += len(due) - len(taken)
        self.judged = now

    def pause(self, now: int) -> None:
        self.paused = not self.paused
        if not self.paused:
            self.judged = max(self.judged, now)


class Days:
    """A store and its clock, and what should come of it."""

    def __init__(self, path: str, dice: random.Random) -> None:
        self.path = path
        self.dice = dice
        self.clock = duly.ManualClock(START)
        self.schedules: dict[str, Expected] = {}
        self.came: list[str] = []
        self.q = duly.connect(path, clock=self.clock)
        self.q.create_topic("jobs", kind="queue")
        end = START + (DAYS + 60) * DAY
        for zone in ZONES:
            for missed in ("latest", "skip", "all"):
                fields = Fields(dice)
                # At least one a day, or there is little to see.
                fields.days = fields.months = fields.weekdays = None
                fields.minutes = fields.minutes or [0, 30]
                name = f"{zone} {missed}"
                self.q.create_schedule(
                    name, topic="jobs", cron=str(fields), zone=zone, missed=missed, limit=LIMIT, template="${tick_ms}"
                )
                self.schedules[name] = Expected(list(walked(fields, zone, START - DAY, end)), missed, START)

    def settle(self) -> None:
        """Everything that is due is judged, and as it should be."""
        now = self.clock.now_ms()
        for one in self.schedules.values():
            one.look(now)

        def judged() -> list[duly.ScheduleDescription]:
            found = self.q.schedules()
            return [] if any(one.next_ms and one.next_ms[0] <= now for one in found) else found

        for known in eventually(judged):
            wanted = self.schedules[known.name]
            assert (known.published, known.missed) == (len(wanted.published), wanted.missed), (known.name, now)
        while batch := self.q.claim("jobs", max_messages=1000):
            self.came += [d.id for d in batch]
            assert all(d.payload == d.id.rpartition("@")[2].encode() for d in batch)
            self.q.ack(batch)

    def advance(self) -> None:
        self.clock.advance(self.dice.choice([50, HOUR / 1000, *[self.dice.uniform(0, 40) * HOUR / 1000] * 2]))

    def leap(self) -> None:
        """The clock is set back or ahead by up to a day."""
        self.clock.advance(self.dice.uniform(-1, 1) * DAY / 1000)

    def close_for_a_while(self) -> None:
        self.q.close()
        self.advance()
        self.q = duly.connect(self.path, clock=self.clock)

    def pause_store(self) -> None:
        self.q.pause_store()
        self.advance()
        self.q.resume_store()

    def suspend(self) -> None:
        self.q.suspend_tenant("default")
        self.advance()
        self.q.resume_tenant("default")

    def toggle(self) -> None:
        """A schedule is paused, or resumed."""
        name = self.dice.choice(list(self.schedules))
        one = self.schedules[name]
        (self.q.resume_schedule if one.paused else self.q.pause_schedule)(name)
        one.pause(self.clock.now_ms())

    def steps(self) -> list[Callable[[], None]]:
        return [*[self.advance] * 12, self.leap, self.close_for_a_while, self.pause_store, self.suspend, self.toggle]


def test_each_tick_of_many_days_comes_once_as_its_policy_says(tmp_path: Path) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    days = Days(str(tmp_path / "app.duly"), random.Random(SEED))
    try:
        while days.clock.now_ms() < START + DAYS * DAY:
            days.dice.choice(days.steps())()
            days.settle()
        # What was published while the clock was ahead is due by then.
        days.clock.advance(3 * DAY / 1000)
        days.settle()
    finally:
        days.q.close()
    wanted = [f"schedule@{name}@{tick}" for name, one in days.schedules.items() for tick in one.published]
    assert len(days.came) == len(set(days.came))
    assert sorted(days.came) == sorted(wanted)
    print(f"{DAYS} days, {len(wanted)} messages, {sum(one.missed for one in days.schedules.values())} missed")
    assert len(wanted) > DAYS
