"""When a message is due, as people type it: in the local zone, around changes of clocks, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer

from duly.cli.moments import ACCEPTED, due, resolve
from duly.clock import SystemClock, from_ms

from .test_cli import folder, ok, run

__all__ = ["folder"]

Zone = Callable[[str], None]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zone]:
    """Moves this process to a time zone; back afterwards."""

    def move(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def berlin(zone: Zone) -> datetime:
    """Now, in Berlin: Wednesday, 2026-11-18, 14:30, an hour ahead of UTC."""
    zone("Europe/Berlin")
    return datetime(2026, 11, 18, 13, 30, tzinfo=UTC).astimezone()


def at(text: str, now: datetime) -> str:
    found = resolve(text, now)
    assert isinstance(found, datetime)
    return found.isoformat()


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("+90s", 90),
        ("+ 90s", 90),
        ("+2h", 7200),
        ("1.5h", 5400),
        ("in 3 days", 3 * 86_400),
        ("In  90 Seconds", 90),
        ("in 1 week", 7 * 86_400),
        ("in 5 min", 300),
        ("250 milliseconds", 0.25),
        ("0", 0),
    ],
)
def test_from_now_on(berlin: datetime, typed: str, seconds: float) -> None:
    assert resolve(typed, berlin) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("typed", "moment"),
    [
        ("14:31", "2026-11-18T14:31:00+01:00"),
        ("14:30", "2026-11-19T14:30:00+01:00"),
        ("9:05", "2026-11-19T09:05:00+01:00"),
        ("0:00", "2026-11-19T00:00:00+01:00"),
        ("today 18:30", "2026-11-18T18:30:00+01:00"),
        ("TODAY at 23:59:59", "2026-11-18T23:59:59+01:00"),
        ("tomorrow 9:00", "2026-11-19T09:00:00+01:00"),
        ("  tomorrow   at 09:00:30 ", "2026-11-19T09:00:30+01:00"),
        ("monday 8:00", "2026-11-23T08:00:00+01:00"),
        ("wednesday 15:00", "2026-11-18T15:00:00+01:00"),
        ("wednesday 14:30", "2026-11-25T14:30:00+01:00"),
        ("tuesday 0:00", "2026-11-24T00:00:00+01:00"),
        ("2027-01-31T12:00:00Z", "2027-01-31T12:00:00+00:00"),
        ("2027-01-31 12:00+02:00", "2027-01-31T12:00:00+02:00"),
    ],
)
def test_a_day_and_a_time(berlin: datetime, typed: str, moment: str) -> None:
    assert at(typed, berlin) == moment


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "soon",
        "tomorrow",
        "monday",
        "9",
        "9:00 pm",
        "9am",
        "in 3",
        "in days",
        "3 moons",
        "+",
        "-5m",
        "in -5m",
        "1h30",
        "next monday 8:00",
        "mon 8:00",
        "yesterday 9:00",
        "24:00",
        "12:60",
        "12:00:60",
        "tomorrow 9",
        "٣:30",
        "noon",
        "31.1. 12:00",
        "2027-01-31",
        "2027-01-31T12:00:00",
        "2027-13-01T00:00Z",
        "x" * 1000,
        "9" * 500,
    ],
)
def test_what_is_not_understood_is_refused(berlin: datetime, typed: str) -> None:
    if typed == "9":
        assert resolve(typed, berlin) == 9, "a bare number is seconds, as everywhere"
        return
    with pytest.raises(typer.BadParameter):
        resolve(typed, berlin)


@pytest.mark.parametrize("typed", ["soon", "in 3", "2027-01-31T12:00:00", "x" * 1000])
def test_a_refusal_says_what_is_accepted(berlin: datetime, typed: str) -> None:
    with pytest.raises(typer.BadParameter) as refusal:
        resolve(typed, berlin)
    assert ACCEPTED in refusal.value.message
    assert len(refusal.value.message) < 500


def test_a_time_of_today_that_is_over_is_refused(berlin: datetime) -> None:
    with pytest.raises(typer.BadParameter, match=r"over: it is 14:30:00"):
        resolve("today 14:30", berlin)


# A zone, a moment before clocks change, a time that there is not, one that comes twice.
AHEAD = [
    ("Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC), "tomorrow 2:30", "03:30"),
    ("Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC), "sunday 2:00", "03:00"),
    ("America/New_York", datetime(2026, 3, 7, 17, tzinfo=UTC), "tomorrow 2:59:59", "03:59"),
    ("America/New_York", datetime(2026, 3, 8, 5, 30, tzinfo=UTC), "2:15", "03:15"),
]
BACK = [
    ("Europe/Berlin", datetime(2026, 10, 24, 12, tzinfo=UTC), "tomorrow 2:30", "02:30:00+02:00", "02:30:00+01:00"),
    ("Europe/Berlin", datetime(2026, 10, 24, 12, tzinfo=UTC), "sunday 2:00", "02:00:00+02:00", "02:00:00+01:00"),
    ("America/New_York", datetime(2026, 10, 31, 17, tzinfo=UTC), "sunday 1:30", "01:30:00-04:00", "01:30:00-05:00"),
    ("America/New_York", datetime(2026, 11, 1, 5, 15, tzinfo=UTC), "1:30", "01:30:00-04:00", "01:30:00-05:00"),
]


@pytest.mark.parametrize(("name", "now", "typed", "instead"), AHEAD)
def test_a_time_that_clocks_go_ahead_over_is_refused(
    zone: Zone, name: str, now: datetime, typed: str, instead: str
) -> None:
    zone(name)
    with pytest.raises(typer.BadParameter, match=rf"no \S+ on \S+ here.*Write {instead}"):
        resolve(typed, now.astimezone())


@pytest.mark.parametrize(("name", "now", "typed", "first", "second"), BACK)
def test_a_time_that_comes_twice_is_refused_and_both_are_named(
    zone: Zone, name: str, now: datetime, typed: str, first: str, second: str
) -> None:
    zone(name)
    with pytest.raises(typer.BadParameter) as refusal:
        resolve(typed, now.astimezone())
    for one in (first, second):
        assert one in refusal.value.message
    written = [word.rstrip(".") for word in refusal.value.message.split() if word.count("-") >= 2 and "T" in word]
    moments = [resolve(word, now.astimezone()) for word in written]
    assert len(moments) == 2, "and what it says can be written"
    assert moments[1] - moments[0] == timedelta(hours=1)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "now", "typed", "moment"),
    [
        ("Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC), "tomorrow 1:59:59", "2026-03-29T01:59:59+01:00"),
        ("Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC), "tomorrow 3:00", "2026-03-29T03:00:00+02:00"),
        ("Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC), "tomorrow 9:00", "2026-03-29T09:00:00+02:00"),
        ("Europe/Berlin", datetime(2026, 10, 24, 12, tzinfo=UTC), "tomorrow 1:59", "2026-10-25T01:59:00+02:00"),
        ("Europe/Berlin", datetime(2026, 10, 24, 12, tzinfo=UTC), "tomorrow 3:00", "2026-10-25T03:00:00+01:00"),
        ("America/New_York", datetime(2026, 3, 7, 17, tzinfo=UTC), "sunday 9:00", "2026-03-08T09:00:00-04:00"),
        ("America/New_York", datetime(2026, 10, 31, 17, tzinfo=UTC), "tomorrow 9:00", "2026-11-01T09:00:00-05:00"),
        # The hour that comes twice is running for the first time.
        ("America/New_York", datetime(2026, 11, 1, 5, 15, tzinfo=UTC), "2:30", "2026-11-01T02:30:00-05:00"),
        ("Asia/Kolkata", datetime(2026, 11, 18, 20, tzinfo=UTC), "tomorrow 9:00", "2026-11-20T09:00:00+05:30"),
        ("UTC", datetime(2026, 12, 31, 23, 59, tzinfo=UTC), "0:00", "2027-01-01T00:00:00+00:00"),
    ],
)
def test_beside_a_change_of_clocks_the_offset_is_the_right_one(
    zone: Zone, name: str, now: datetime, typed: str, moment: str
) -> None:
    zone(name)
    assert at(typed, now.astimezone()) == moment


def test_a_day_from_now_on_is_24_hours_over_a_change_of_clocks(zone: Zone) -> None:
    zone("Europe/Berlin")
    assert resolve("in 1 day", datetime(2026, 3, 28, 12, tzinfo=UTC).astimezone()) == 86_400


def test_every_local_time_of_a_year_is_resolved_or_refused_rightly(zone: Zone) -> None:
    zone("Europe/Berlin")
    refused: dict[str, int] = {}
    for day in range(365):
        now = (datetime(2026, 1, 1, 11, tzinfo=UTC) + timedelta(days=day)).astimezone()
        for hour in range(24):
            try:
                found = resolve(f"tomorrow {hour}:30", now)
            except typer.BadParameter as error:
                kind = "twice" if "twice" in error.message else "none"
                refused[kind] = refused.get(kind, 0) + 1
                continue
            assert isinstance(found, datetime)
            local = found.astimezone(UTC).astimezone()
            assert (local.hour, local.minute) == (hour, 30)
            assert local.date() == now.date() + timedelta(days=1)
    assert refused == {"twice": 1, "none": 1}


class TestTyped:
    def test_publish_says_what_it_understood(self, folder: Path, zone: Zone) -> None:
        zone("Europe/Berlin")
        ok("topics", "create", "mail", "--kind", "queue")
        outcome = ok("publish", "mail", "x", "--id", "x", "--due", "tomorrow 9:00")
        due_at = datetime.fromisoformat(ok("get", "mail", "x", "--json").document["due"])
        local = due_at.astimezone()
        tomorrow = from_ms(SystemClock().now_ms()).astimezone().date() + timedelta(days=1)
        assert (local.date(), local.hour, local.minute) == (tomorrow, 9, 0)
        assert local.isoformat(timespec="seconds") in outcome.err
        assert f"{local:%A}" in outcome.err
        assert local.isoformat(timespec="seconds") not in outcome.out

    def test_move_says_what_it_understood(self, folder: Path, zone: Zone) -> None:
        zone("America/New_York")
        ok("topics", "create", "mail", "--kind", "queue")
        ok("publish", "mail", "x", "--id", "x", "--due", "in 3 days")
        outcome = ok("move", "mail", "x", "--due", "monday 8:00")
        local = datetime.fromisoformat(ok("get", "mail", "x", "--json").document["due"]).astimezone()
        assert (local.weekday(), local.hour) == (0, 8)
        assert "Monday" in outcome.err

    def test_programs_are_told_nothing_beside_the_result(self, folder: Path) -> None:
        ok("topics", "create", "mail", "--kind", "queue")
        outcome = ok("publish", "mail", "x", "--due", "tomorrow 9:00", "--json")
        assert outcome.err == ""
        json.loads(outcome.out)

    def test_what_is_not_understood_exits_with_2_and_stores_nothing(self, folder: Path) -> None:
        ok("topics", "create", "mail", "--kind", "queue")
        outcome = run("publish", "mail", "x", "--due", "sometime")
        assert outcome.code == 2
        assert "tomorrow 9:00" in " ".join(outcome.err.split())
        assert ok("browse", "mail", "--json").out == ""


def test_now_is_a_moment() -> None:
    found = due("now")
    assert isinstance(found, datetime)
    assert abs(found.timestamp() * 1000 - SystemClock().now_ms()) < 1000
