"""A host whose clock is off: told once and once when over; nothing new is taken, and what is out is settled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import duly
from duly.broker.broker import Broker
from duly.broker.drift import Drift
from duly.broker.entry import Entry
from duly.client.connect import open_home
from duly.clock import HOST, ClockReading, SystemClock
from tests.broker.conftest import Place

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Readings:
    """A host's clock beside a store's, so many milliseconds apart, one after the other; the last stays."""

    def __init__(self, *drifts: int) -> None:
        self.drifts = list(drifts)

    def __call__(self) -> ClockReading:
        drift = self.drifts.pop(0) if len(self.drifts) > 1 else self.drifts[0]
        return ClockReading(NOON, NOON + timedelta(milliseconds=drift), "together")


def measured(drift: Drift, readings: Readings, ms: int) -> str:
    readings.drifts = [ms]
    drift.measure()
    assert drift.ms == ms
    return drift.reason


@pytest.mark.parametrize("sign", [1, -1])
def test_it_is_told_once_when_past_the_limit_and_once_when_over(sign: int, events: list[duly.Event]) -> None:
    readings = Readings(0)
    drift = Drift(readings, 1000, events.append)
    assert measured(drift, readings, sign * 1000) == ""
    for _ in range(3):
        reason = measured(drift, readings, sign * 1001)
    assert ("ahead of" if sign > 0 else "behind") in reason
    # Not over yet: at the limit it would be told again and again.
    assert measured(drift, readings, sign * 900)
    assert [event.kind for event in events] == ["clock_drift"]
    assert events[0].facts["drift_ms"] == sign * 1001
    assert events[0].alert
    assert measured(drift, readings, sign * 500) == ""
    assert [event.kind for event in events] == ["clock_drift", "clock_drift_over"]
    assert events[1].alert


def test_a_process_that_was_put_aside_between_two_readings_is_no_drift(events: list[duly.Event]) -> None:
    drift = Drift(Readings(9000, -4000, 3), 1000, events.append)
    drift.measure()
    assert (drift.ms, drift.reason, events) == (3, "", [])


class Wall:
    """A wall clock that can be set."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.clock = SystemClock(replace(HOST, wall_ns=lambda: HOST.wall_ns() + int(self.ahead_s * 1e9)))


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def broker(path: str, wall: Wall, events: list[duly.Event]) -> Iterator[Broker]:
    opened = Broker(open_home(path, clock=wall.clock), on_event=events.append)
    yield opened
    opened.shut()


@pytest.mark.parametrize("ahead_s", [-60, 3600])
def test_a_broker_on_a_host_whose_clock_is_off_takes_nothing_new_and_settles(
    broker: Broker, wall: Wall, events: list[duly.Event], ahead_s: float
) -> None:
    q = Entry(broker).client("default")
    q.create_topic("jobs", kind="queue")
    q.publish("jobs", [b"%d" % n for n in range(5)])
    held = list(q.claim("jobs", max_messages=5))
    assert broker.reason() == ""
    wall.ahead_s = ahead_s
    assert "clock" in broker.reason()
    with pytest.raises(duly.NotReady, match="another broker"):
        q.publish("jobs", b"more")
    with pytest.raises(duly.NotReady):
        q.stage("jobs", [b"more"], stage="s", number=0)
    with pytest.raises(duly.NotReady):
        q.claim("jobs")
    held[0].ack()
    held[1].nack()
    held[2].extend(60)
    held[2].release()
    held[3].bury("why")
    assert q.ack([held[4]]).done == 1
    assert q.describe_topic("jobs").kind == "queue"
    assert [event.kind for event in events if "drift" in event.kind] == ["clock_drift"]
    wall.ahead_s = 0
    assert broker.reason() == ""
    assert q.publish("jobs", b"more")
    assert [event.kind for event in events if "drift" in event.kind] == ["clock_drift", "clock_drift_over"]


def test_confirming_the_hosts_clock_makes_it_ready_again(broker: Broker, wall: Wall) -> None:
    wall.ahead_s = -60
    assert broker.reason()
    Entry(broker).client("default").accept_clock()
    assert broker.reason() == ""


def test_the_limit_can_be_chosen(path: str, wall: Wall) -> None:
    broker = Broker(open_home(path, clock=wall.clock), drift_ms_max=90_000)
    wall.ahead_s = -60
    assert broker.reason() == ""
    assert -61_000 < broker.drift.ms < -59_000
    broker.shut()


def test_who_waits_in_the_room_is_turned_away_to_ask_elsewhere(place: Place) -> None:
    guests = [place.wait(f"w{n}") for n in range(3)]
    place.room.turn_away(duly.NotReady)
    for guest in guests:
        assert isinstance(guest.answer(), duly.NotReady)
    assert place.is_deserted()
    late = place.wait("late")
    place.q.publish("jobs", b"one")
    assert late.payloads() == [b"one"]
