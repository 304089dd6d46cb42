"""Time: durations and moments in, whole milliseconds inside, and clocks that never run back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import duly
from duly.clock import from_ms, milliseconds, moment_ms


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        (0, 0),
        (1, 1000),
        (0.5, 500),
        (0.0004, 0),
        (0.0006, 1),
        (1.1, 1100),
        (-2, -2000),
        (timedelta(milliseconds=7), 7),
        (timedelta(days=1), 86_400_000),
        (timedelta(microseconds=600), 1),
    ],
)
def test_durations_become_whole_milliseconds(duration: Any, ms: int) -> None:
    assert milliseconds(duration, "wait") == ms


@pytest.mark.parametrize("bad", ["1", None, True, float("nan"), float("inf"), -float("inf"), [1], 1j])
def test_what_is_no_duration_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(duly.InvalidArgument, match="wait"):
        milliseconds(bad, "wait")


def test_moments_need_a_time_zone() -> None:
    with pytest.raises(duly.InvalidArgument, match="time zone"):
        moment_ms(datetime(2026, 1, 1), "when")  # noqa: DTZ001
    for bad in (5, "2026-01-01", None, timedelta(1)):
        with pytest.raises(duly.InvalidArgument):
            moment_ms(bad, "when")  # type: ignore[arg-type]


@given(st.integers(0, 4_000_000_000_000))
def test_a_moment_and_its_milliseconds_are_the_same(ms: int) -> None:
    assert moment_ms(from_ms(ms), "when") == ms
    assert from_ms(ms).tzinfo is UTC


@given(st.integers(0, 4_000_000_000_000), st.integers(-14 * 60, 14 * 60))
def test_the_zone_does_not_matter(ms: int, minutes: int) -> None:
    elsewhere = from_ms(ms).astimezone(timezone(timedelta(minutes=minutes)))
    assert moment_ms(elsewhere, "when") == ms


def test_fractions_of_a_millisecond_are_cut_before_and_after_1970() -> None:
    assert moment_ms(datetime(1970, 1, 1, 0, 0, 0, 1999, UTC), "when") == 1
    assert moment_ms(datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), "when") == -1


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = duly.ManualClock(5000)
    assert (clock.now_ms(), clock.now_ms()) == (5000, 5000)
    clock.advance(timedelta(seconds=2))
    clock.advance(0.5)
    assert clock.now_ms() == 7500


def test_a_manual_clock_wakes_those_who_wait_for_it() -> None:
    clock = duly.ManualClock(0)
    heard: list[int] = []
    clock.on_change(lambda: heard.append(clock.now_ms()))
    clock.advance(1)
    clock.advance(1)
    assert heard == [1000, 2000]
    assert clock.wait_s(2000) == 0.0
    assert clock.wait_s(2001) is None


def test_the_hosts_clock_never_runs_backwards() -> None:
    clock = duly.SystemClock()
    seen = [clock.now_ms() for _ in range(10_000)]
    assert seen == sorted(seen)


def test_the_hosts_clock_tells_the_hosts_time() -> None:
    clock = duly.SystemClock()
    assert abs(clock.now_ms() - datetime.now(UTC).timestamp() * 1000) < 1000
    wait = clock.wait_s(clock.now_ms() + 500)
    assert wait is not None
    assert 0.4 < wait < 0.6
    assert clock.wait_s(0) == pytest.approx(0, abs=0.01)
