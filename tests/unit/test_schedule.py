"""When schedules tick: expressions, zones whose clocks change, and what becomes of ticks that were missed.

The oracle walks through time minute by minute, looks at the clock on the wall and knows nothing of enumerating.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duly
from duly.clock import from_ms, moment_ms
from duly.schedule import Run, Schedule, Ticks, first, judge, preview, spread_ms, ticks_of
from tests.conftest import scaled

BERLIN, SYDNEY, HOWE, SANTIAGO = "Europe/Berlin", "Australia/Sydney", "Australia/Lord_Howe", "America/Santiago"
ZONES = (BERLIN, SYDNEY, HOWE, SANTIAGO, "Pacific/Apia", "UTC")
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def ms(text: str, zone: str = "UTC", fold: int = 0) -> int:
    return moment_ms(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold), "moment")


def shown(cron: str, zone: str, after: str, count: int) -> list[str]:
    return [tick.isoformat() for tick in preview(cron, zone=zone, count=count, after_ms=ms(after, zone))]


class Fields:
    """An expression as sets, and which local times match it."""

    def __init__(self, dice: random.Random) -> None:
        def some(low: int, high: int, odds: float) -> list[int] | None:
            if dice.random() < odds:
                return None
            return sorted(dice.sample(range(low, high + 1), dice.randint(1, 4)))

        self.minutes = some(0, 59, 0.2)
        # Around the hours in which clocks change, mostly.
        self.hours = some(0, 3, 0.3) if dice.random() < 0.7 else some(0, 23, 0.3)
        self.days = some(1, 31, 0.6)
        self.months = some(1, 12, 0.8)
        self.weekdays = some(0, 6, 0.7)

    def __str__(self) -> str:
        parts = (self.minutes, self.hours, self.days, self.months, self.weekdays)
        return " ".join("*" if part is None else ",".join(map(str, part)) for part in parts)

    def match(self, local: datetime) -> bool:
        day = self.days is None or local.day in self.days
        weekday = self.weekdays is None or local.isoweekday() % 7 in self.weekdays
        either = self.days is not None and self.weekdays is not None
        return (
            (self.minutes is None or local.minute in self.minutes)
            and (self.hours is None or local.hour in self.hours)
            and (self.months is None or local.month in self.months)
            and (day or weekday if either else day and weekday)
        )


def walked(fields: Fields, zone: str, start: int, end: int) -> Iterator[int]:
    """The ticks from `start` to before `end`, by looking at the wall clock once a minute."""
    place, minute = ZoneInfo(zone), timedelta(minutes=1)
    highest: datetime | None = None
    # A day earlier: what was shown before tells what is shown again.
    for at in range(start - DAY, end, MINUTE):
        local = from_ms(at).astimezone(place).replace(tzinfo=None)
        if highest is None:
            highest = local - minute
        if local <= highest:
            continue
        # The minute itself, and those that the clock has skipped to get here.
        passed = (highest + n * minute for n in range(1, (local - highest) // minute + 1))
        if any(fields.match(one) for one in passed) and at >= start:
            yield at
        highest = local


def changes(zone: str, year: int) -> list[int]:
    """The moments of a year at which the clocks of a zone change."""
    place, first_day = ZoneInfo(zone), ms(f"{year}-01-01T00:00")
    hours = range(first_day, first_day + 366 * DAY, HOUR)
    return [b for a, b in pairwise(hours) if from_ms(a).astimezone(place).utcoffset() != _offset(b, place)]


def _offset(at: int, place: ZoneInfo) -> timedelta | None:
    return from_ms(at).astimezone(place).utcoffset()


@given(seed=st.integers(0, 2**32), zone=st.sampled_from(ZONES))
@settings(max_examples=scaled(60, 600), deadline=None)
def test_ticks_are_those_of_the_clock_on_the_wall_forwards_and_backwards(seed: int, zone: str) -> None:
    dice = random.Random(seed)
    fields = Fields(dice)
    around = changes(zone, dice.randint(2009, 2030)) or [ms("2026-05-01T00:00")]
    start = dice.choice(around) - dice.randint(0, 36) * HOUR - dice.randint(0, 59) * MINUTE
    end = start + 3 * DAY
    expected = list(walked(fields, zone, start, end))
    try:
        ticks = ticks_of(str(fields), zone, 0)
    except duly.InvalidArgument:
        assert expected == []
        return
    found = []
    for tick in ticks.after(start - 1):
        if tick >= end:
            break
        found.append(tick)
    assert found == expected, (seed, str(fields))
    backwards = []
    for tick in ticks.back_from(end - 1):
        if tick < start:
            break
        backwards.append(tick)
    assert backwards == expected[::-1], (seed, str(fields))
    # From anywhere in between, a hair before, at and behind a tick.
    for _ in range(20):
        at = dice.choice(expected or [start]) + dice.choice([-1, 0, 1, dice.randint(0, DAY)])
        if start <= at < end:
            assert first(ticks.after(at), 1)[0] == next((tick for tick in expected if tick > at), _beyond(ticks, end))
            before = [tick for tick in expected if tick <= at]
            assert not before or first(ticks.back_from(at), 1) == (before[-1],)


def _beyond(ticks: Ticks, end: int) -> int:
    return first(ticks.after(end - 1), 1)[0]


@pytest.mark.full
@pytest.mark.parametrize("zone", [BERLIN, SYDNEY, HOWE, SANTIAGO])
@pytest.mark.timeout(1800)
def test_ten_thousand_days(zone: str) -> None:
    dice = random.Random(zone)
    start = ms("1999-06-01T00:00")
    for _ in range(4):
        fields = Fields(dice)
        try:
            ticks = ticks_of(str(fields), zone, 0)
        except duly.InvalidArgument:
            continue
        expected = list(walked(fields, zone, start, start + 10_000 * DAY))
        assert list(first(ticks.after(start - 1), len(expected))) == expected, str(fields)


SECONDS = [
    # (zone, six fields, hours around a change, ticks with their local times)
    (BERLIN, "2026-03-29T00:30", "*/20 * * * * *"),
    (BERLIN, "2026-10-24T23:30", "*/20 * * * * *"),
    (HOWE, "2026-10-03T15:00", "0,7 */10 * * * *"),
    (HOWE, "2026-04-04T14:00", "0,7 */10 * * * *"),
    (SANTIAGO, "2026-09-06T03:00", "30 59,0 * * * *"),
    (SANTIAGO, "2026-04-05T02:00", "30 59,0 * * * *"),
]


@pytest.mark.parametrize(("zone", "start", "cron"), SECONDS)
def test_six_fields_tick_by_the_second_over_both_changes(zone: str, start: str, cron: str) -> None:
    place, wanted = ZoneInfo(zone), []
    highest = from_ms(ms(start)).astimezone(place).replace(tzinfo=None)
    second = timedelta(seconds=1)
    for at in range(ms(start) + 1000, ms(start) + 4 * HOUR, 1000):
        local = from_ms(at).astimezone(place).replace(tzinfo=None)
        if local > highest:
            if any(_matches(cron, highest + n * second) for n in range(1, (local - highest) // second + 1)):
                wanted.append(at)
            highest = local
    ticks = ticks_of(cron, zone, 0)
    assert len(wanted) > 4
    assert list(first(ticks.after(ms(start)), len(wanted))) == wanted
    assert list(first(ticks.back_from(wanted[-1]), len(wanted))) == wanted[::-1]


def _matches(cron: str, local: datetime) -> bool:
    def fits(field: str, value: int) -> bool:
        if field.startswith("*"):
            return value % int(field.removeprefix("*/") if "/" in field else 1) == 0
        return str(value) in field.split(",")

    second, minute = cron.split()[:2]
    return fits(second, local.second) and fits(minute, local.minute)


class TestWhereClocksChange:
    def test_a_time_that_does_not_exist_ticks_at_the_end_of_the_gap(self) -> None:
        assert shown("30 2 * * *", BERLIN, "2026-03-28T12:00", 2) == [
            "2026-03-29T03:00:00+02:00",
            "2026-03-30T02:30:00+02:00",
        ]
        # A gap of half an hour, from 2:00 to 2:30; and one that begins at midnight.
        assert shown("15 2 * * *", HOWE, "2026-10-04T00:00", 1) == ["2026-10-04T02:30:00+11:00"]
        assert shown("0 0 * * *", SANTIAGO, "2026-09-05T12:00", 2) == [
            "2026-09-06T01:00:00-03:00",
            "2026-09-07T00:00:00-03:00",
        ]

    def test_several_of_one_gap_are_one_tick_together_with_what_ticks_at_its_end(self) -> None:
        assert shown("*/15 * * * *", BERLIN, "2026-03-29T01:40", 3) == [
            "2026-03-29T01:45:00+01:00",
            "2026-03-29T03:00:00+02:00",
            "2026-03-29T03:15:00+02:00",
        ]

    def test_a_time_that_comes_twice_ticks_the_first_time(self) -> None:
        assert shown("30 2 * * *", SYDNEY, "2026-04-05T00:00", 2) == [
            "2026-04-05T02:30:00+11:00",
            "2026-04-06T02:30:00+10:00",
        ]
        assert shown("45 1 * * *", HOWE, "2026-04-05T00:00", 1) == ["2026-04-05T01:45:00+11:00"]

    def test_the_second_time_round_is_silent(self) -> None:
        second = from_ms(ms("2026-10-25T02:10", BERLIN, fold=1))
        (tick,) = preview("*/5 * * * *", zone=BERLIN, count=1, after_ms=moment_ms(second, "second"))
        assert tick.isoformat() == "2026-10-25T03:00:00+01:00"

    def test_a_day_that_a_zone_left_out_ticks_once(self) -> None:
        # Samoa went from the 29th of December 2011 to the 31st.
        assert shown("0 */6 * * *", "Pacific/Apia", "2011-12-29T17:00", 3) == [
            "2011-12-29T18:00:00-10:00",
            "2011-12-31T00:00:00+14:00",
            "2011-12-31T06:00:00+14:00",
        ]

    def test_utc_and_periods_know_nothing_of_it(self) -> None:
        start = ms("2026-03-28T23:30")
        hours = first(ticks_of("30 * * * *", "UTC", 0).after(start), 100)
        assert {b - a for a, b in pairwise(hours)} == {HOUR}
        periods = first(ticks_of("@every 1h", BERLIN, start).after(start), 100)
        assert {b - a for a, b in pairwise((start, *periods))} == {HOUR}


class TestExpressions:
    @pytest.mark.parametrize(
        ("word", "same"),
        [
            ("@hourly", "0 * * * *"),
            ("@daily", "0 0 * * *"),
            ("@midnight", "0 0 * * *"),
            ("@weekly", "0 0 * * SUN"),
            ("@monthly", "0 0 1 * *"),
            ("@yearly", "0 0 1 JAN *"),
            ("@annually", "0 0 1 1 *"),
            (" @Daily ", "0 0 0 * * *"),
        ],
    )
    def test_words(self, word: str, same: str) -> None:
        assert shown(word, BERLIN, "2026-05-05T05:05", 5) == shown(same, BERLIN, "2026-05-05T05:05", 5)

    @pytest.mark.parametrize(
        ("cron", "period"),
        [("@every 90s", 90_000), ("@every 5m", 300_000), ("@every 1h30m", 5_400_000), ("@every 2d1s", 172_801_000)],
    )
    def test_periods_count_from_where_they_began(self, cron: str, period: int) -> None:
        anchor = ms("2026-05-05T05:05") + 123
        ticks = ticks_of(cron, "UTC", anchor)
        assert first(ticks.after(anchor), 3) == (anchor + period, anchor + 2 * period, anchor + 3 * period)
        assert first(ticks.after(anchor - 10 * period), 1) == (anchor + period,)
        assert first(ticks.after(anchor + period), 1) == (anchor + 2 * period,)
        assert first(ticks.back_from(anchor + 3 * period), 9) == tuple(anchor + n * period for n in (3, 2, 1))
        assert first(ticks.back_from(anchor + period - 1), 1) == ()

    @pytest.mark.parametrize(
        "cron",
        [
            *("", " ", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8"),
            *("*/0 * * * *", "5-1 * * * *", "a * * * *", "@reboot", "@every", "@every 5", "@every 1m1h", "@every -1s"),
            *("@every 1.5s", "@every 0s", "@every 367d", "@every 99999999999s", "* *\n* * *", "٣ * * * *", "1 " * 200),
            *("0 0 30 2 *", "0 0 31 4,6 *", "0 0 */31 * SUN#2", None, 5, b"* * * * *", ["*"]),
        ],
    )
    def test_what_is_none_or_never_ticks_is_refused_with_what_to_write(self, cron: object) -> None:
        with pytest.raises(duly.InvalidArgument, match=r"Write|Correct|takes"):
            ticks_of(cron, "UTC", 0)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "zone", ["", "Nowhere", "Europe/Nowhere", "../../etc/passwd", "/etc/passwd", "Europe", "x" * 999, "\0", None, 5]
    )
    def test_zones_that_there_are_not_are_refused(self, zone: object) -> None:
        with pytest.raises(duly.InvalidArgument, match="zone"):
            ticks_of("@daily", zone, 0)  # type: ignore[arg-type]

    def test_the_29th_of_february_ticks_in_leap_years(self) -> None:
        found = shown("0 0 29 2 *", "UTC", "2096-03-01T00:00", 2)
        assert found == ["2104-02-29T00:00:00+00:00", "2108-02-29T00:00:00+00:00"]

    def test_the_calendar_ends(self) -> None:
        assert len(first(ticks_of("@yearly", "UTC", 0).after(ms("9990-06-01T00:00")), 20)) <= 10


class TestMissed:
    def judged(
        self, missed: str, since: str, now: str, limit: int = 3, cron: str = "0 * * * *"
    ) -> tuple[list[str], int]:
        found = judge(ticks_of(cron, "UTC", 0), since=ms(since), now=ms(now), missed=missed, limit=limit)
        assert found.next_at is not None
        assert found.next_at > ms(now)
        return [f"{from_ms(tick):%H:%M}" for tick in found.publish], found.passed

    @pytest.mark.parametrize("missed", ["latest", "skip", "all"])
    def test_a_lone_one_within_a_minute_is_on_time(self, missed: str) -> None:
        assert self.judged(missed, "2026-05-05T06:00", "2026-05-05T06:01") == (["06:00"], 0)

    def test_a_lone_one_that_is_later_was_missed(self) -> None:
        late = ("2026-05-05T06:00", "2026-05-05T06:01:00.001")
        assert self.judged("skip", *late) == ([], 1)
        assert self.judged("latest", *late) == (["06:00"], 0)
        assert self.judged("all", *late) == (["06:00"], 0)

    def test_of_several_all_but_the_last_were_missed(self) -> None:
        span = ("2026-05-05T06:00", "2026-05-05T11:00:30")
        assert self.judged("skip", *span) == (["11:00"], 5)
        assert self.judged("latest", *span) == (["11:00"], 5)
        assert self.judged("all", *span) == (["09:00", "10:00", "11:00"], 3)
        assert self.judged("all", *span, limit=100)[1] == 0
        assert self.judged("skip", "2026-05-05T06:00", "2026-05-05T11:30") == ([], 6)

    def test_nothing_is_due_before_it_is_time_nor_twice(self) -> None:
        found = judge(
            ticks_of("0 * * * *", "UTC", 0),
            since=ms("2026-05-07T06:00"),
            now=ms("2026-05-05T06:30"),
            missed="all",
            limit=9,
        )
        assert (found.publish, found.passed, found.next_at) == ((), 0, ms("2026-05-07T06:00"))

    @pytest.mark.parametrize("cron", ["* * * * * *", "@every 1s"])
    def test_years_of_seconds_cost_no_more_than_a_thousand(self, cron: str) -> None:
        begun = time.perf_counter()
        ticks = ticks_of(cron, BERLIN, ms("2000-01-01T00:00"))
        found = judge(ticks, since=ms("2010-01-01T00:00"), now=ms("2026-01-01T00:00"), missed="all", limit=100)
        assert time.perf_counter() - begun < 0.5
        assert (len(found.publish), found.passed, found.more) == (100, 901, True)

    @pytest.mark.parametrize("hour", ["2026-03-29T03:00", "2026-10-25T02:00"])
    def test_nor_does_an_hour_that_is_left_out_or_comes_twice(self, hour: str) -> None:
        ticks = ticks_of("* * * * * *", BERLIN, 0)
        begins = ms(hour, BERLIN, fold=1)
        begun = time.perf_counter()
        for n in range(100):
            assert len(first(ticks.after(begins - 2000 + n), 3)) == 3
            assert len(first(ticks.after(begins + 2000 + n), 3)) == 3
            assert len(first(ticks.back_from(begins + 2000 + n), 5)) == 5
        assert time.perf_counter() - begun < 1


class TestSettings:
    def test_a_template_is_filled_in(self) -> None:
        text = "${tick} $tick_ms ${date} ${previous} ${run} ${schedule} $$5"
        filled = Schedule("t", "@daily", BERLIN, template=text)
        tick, before = ms("2026-03-29T01:00"), ms("2026-03-29T00:30")
        assert filled.content(Run("räum auf", tick, before, 7)).decode() == (
            f"2026-03-29T03:00:00+02:00 {tick} 2026-03-29 2026-03-29T01:30:00+01:00 7 räum auf $5"
        )
        assert filled.content(Run("s", tick + 5, None, 1)).decode().split()[0] == "2026-03-29T03:00:00.005+02:00"
        assert filled.content(Run("s", tick, None, 1)).decode().split(" ")[3] == ""

    @pytest.mark.parametrize("text", ["${nothing}", "$unknown", "${tick", "$", "100 $ a day", 5, b"${tick}", "\ud800"])
    def test_a_template_that_names_what_there_is_not_is_refused(self, text: object) -> None:
        with pytest.raises(duly.InvalidArgument, match="template"):
            Schedule("t", "@daily", template=text)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"payload": "text"},
            {"payload": b"x", "template": "y"},
            {"payload": b"x" * 65_537},
            {"headers": {"a": 1}},
            {"headers": ["a"]},
            {"headers": {"duly-operation": "x"}},
            {"key": 5},
            {"priority": -1},
            {"priority": 65_536},
            {"priority": True},
            {"lane": ""},
            {"ttl": 0},
            {"missed": "some"},
            {"missed": None},
            {"limit": 0},
            {"limit": 1001},
            {"jitter": -1},
            {"jitter": 3601},
            {"jitter": None},
            {"topic": ""},
        ],
    )
    def test_settings_out_of_bounds_are_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(duly.InvalidArgument):
            Schedule(**{"topic": "t", "cron": "@daily", **wrong})  # type: ignore[arg-type]

    def test_a_template_takes_the_place_of_a_payload_and_the_other_way_round(self) -> None:
        one = Schedule("t", "@daily", payload=b"x")
        other = one.changed({"template": "${run}"})
        assert (other.payload, other.template) == (b"", "${run}")
        assert other.changed({"payload": b"y"}).template is None
        with pytest.raises(duly.InvalidArgument, match="topic"):
            one.changed({"topic": "u"})
        with pytest.raises(duly.InvalidArgument, match="no setting 'crom'"):
            one.changed({"crom": "@daily"})

    def test_jitter_is_the_same_whoever_asks_and_spread_over_its_span(self) -> None:
        drawn = [spread_ms("acme", "s", tick * DAY, 10_000) for tick in range(2000)]
        assert drawn == [spread_ms("acme", "s", tick * DAY, 10_000) for tick in range(2000)]
        assert min(drawn) >= 0
        assert max(drawn) <= 10_000
        assert 4_700 < sum(drawn) / 2000 < 5_300
        assert drawn != [spread_ms("globex", "s", tick * DAY, 10_000) for tick in range(2000)]
        assert spread_ms("acme", "s", 5, 0) == 0


def test_a_moment_is_told_in_its_zone() -> None:
    (tick,) = preview("@daily", zone=SYDNEY, count=1, after_ms=ms("2026-01-01T00:00"))
    assert tick == datetime(2026, 1, 1, 13, tzinfo=UTC)
    assert tick.isoformat() == "2026-01-02T00:00:00+11:00"
