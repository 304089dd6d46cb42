"""The store's clock in a file: what is written of it, who hears of it, and that sleepers keep up with it.

The clock itself is tests/unit/test_store_clock.py; real processes are tests/acceptance/test_clock.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest

import duly
from duly.client import embedded
from duly.limits import DAY_MS
from duly.store.sqlite.store_clock import Mark, decode_mark
from tests.unit.machine import Host

from .patience import Aside

pytestmark = pytest.mark.sqlite

HOUR_MS = 3_600_000


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def no_chores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds later a chore is due, which writes, and takes the mark along."""
    monkeypatch.setattr(embedded.Caretaker, "_loop", lambda _: None)


@pytest.fixture
def q(path: str, host: Host, events: list[duly.Event]) -> Iterator[duly.Client]:
    with duly.connect(path, clock=duly.SystemClock(host.sources()), on_event=events.append) as client:
        client.create_topic("jobs", kind="queue", lease=30)
        yield client


def mark(path: str) -> Mark:
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        ((text,),) = connection.execute("SELECT value FROM duly_meta WHERE key = 'clock'")
        return decode_mark(text)
    finally:
        connection.close()


@pytest.mark.usefixtures("no_chores")
def test_what_is_written_takes_the_mark_along_and_what_only_looks_does_not(
    q: duly.Client, path: str, host: Host
) -> None:
    q.claim("jobs")
    before = mark(path)
    host.true_ms += 5000
    q.claim("jobs")
    assert mark(path) == before
    q.publish("jobs", b"x")
    assert mark(path).at_ms == host.true_ms
    host.true_ms += 999
    q.publish("jobs", b"y")
    assert mark(path).at_ms == host.true_ms - 999, "once a second is enough"


@pytest.mark.usefixtures("no_chores")
def test_a_refused_command_beside_good_ones_leaves_the_mark_right(q: duly.Client, path: str, host: Host) -> None:
    host.true_ms += 5000
    with pytest.raises(duly.TopicExists):
        q.create_topic("jobs", kind="log")
    q.publish("jobs", b"x")
    assert mark(path).at_ms == host.true_ms


def test_a_machine_that_starts_with_its_wall_clock_behind_keeps_its_leases(path: str, host: Host) -> None:
    with duly.connect(path, clock=duly.SystemClock(host.sources())) as q:
        q.create_topic("jobs", kind="queue", lease=30)
        q.publish("jobs", b"x")
        assert q.claim("jobs").payloads == [b"x"]
    host.reboot(off_ms=10_000)
    host.wrong_ms = -DAY_MS
    with duly.connect(path, clock=duly.SystemClock(host.sources())) as q:
        host.true_ms += 28_000
        assert q.claim("jobs").payloads == [], "held"
        host.true_ms += 3000
        assert q.claim("jobs").payloads == [b"x"], "and not frozen"
        assert q.clock().state == "behind"


def test_a_leap_is_heard_of_once_and_changes_nothing(q: duly.Client, host: Host, events: list[duly.Event]) -> None:
    q.publish("jobs", duly.Message(b"tomorrow", due=86_400))
    host.wrong_ms = 2 * DAY_MS
    for _ in range(3):
        assert q.claim("jobs").payloads == []
    assert [event.kind for event in events if event.alert] == ["clock_refused"]
    findings = list(q.examine())
    assert [found.level for found in findings if "leapt" in found.what] == ["alert"]
    assert q.accept_clock().state == "together"
    assert q.claim("jobs").payloads == [b"tomorrow"]


def test_who_sleeps_while_the_machine_does_is_woken_soon_after(
    path: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_LOOK_AGAIN_S", 0.1)
    with duly.connect(path, clock=duly.SystemClock(host.sources())) as q:
        q.create_topic("jobs", kind="queue")
        q.publish("jobs", duly.Message(b"in an hour", due=3600))
        sleeper = Aside(lambda: q.claim("jobs", wait=60))
        assert sleeper.still_running_after(0.3)
        host.true_ms += HOUR_MS
        assert sleeper.result(10).payloads == [b"in an hour"]


def test_a_confirmation_wakes_who_sleeps_in_another_client(q: duly.Client, path: str, host: Host) -> None:
    q.publish("jobs", duly.Message(b"x", due=3600))
    with duly.connect(path, clock=duly.SystemClock(host.sources())) as other:
        sleeper = Aside(lambda: other.claim("jobs", wait=60))
        assert sleeper.still_running_after(0.1)
        host.wrong_ms = 2 * HOUR_MS
        q.accept_clock()
        assert sleeper.result(10).payloads == [b"x"]


def test_a_damaged_mark_is_reported(path: str) -> None:
    with duly.connect(path) as q:
        q.create_topic("jobs", kind="queue")
    connection = apsw.Connection(path)
    connection.execute("UPDATE duly_meta SET value = 'x' WHERE key = 'clock'")
    connection.close()
    with pytest.raises(duly.StoreError, match="clock"):
        duly.connect(path)


def test_a_manual_clock_is_its_own_affair(path: str, clock: duly.ManualClock) -> None:
    with duly.connect(path, clock=clock) as q:
        q.create_topic("jobs", kind="queue")
        assert q.clock() == duly.ClockReading(q.clock().now, q.clock().now, "together")
        assert q.accept_clock().state == "together"
    connection = apsw.Connection(path)
    assert connection.execute("SELECT 1 FROM duly_meta WHERE key = 'clock'").fetchall() == []
    connection.close()


def test_a_store_in_memory_has_the_same_clock(host: Host) -> None:
    with duly.connect(":memory:", clock=duly.SystemClock(host.sources())) as q:
        q.create_topic("jobs", kind="queue")
        host.wrong_ms = -DAY_MS
        q.publish("jobs", duly.Message(b"x", due=5))
        host.true_ms += 5000
        assert q.claim("jobs").payloads == [b"x"]
        assert q.clock().state == "behind"


def test_a_process_learns_of_a_step_from_what_another_wrote(q: duly.Client, path: str, host: Host) -> None:
    with duly.connect(path, clock=duly.SystemClock(host.sources())) as other:
        other.publish("jobs", b"x")
        host.wrong_ms = 500
        q.publish("jobs", b"y")
        host.wrong_ms = 0
        other.publish("jobs", b"z")
        assert other.clock().now == q.clock().now > other.clock().host


def test_going_back_on_confirmation_is_recorded_as_such(q: duly.Client, path: str, host: Host) -> None:
    q.publish("jobs", b"x")
    host.wrong_ms = -DAY_MS
    host.true_ms += 5000
    assert q.accept_clock().now == q.clock().host
    assert mark(path).at_ms == host.wall_ms
    with duly.connect(path, clock=duly.SystemClock(host.sources())) as other:
        assert other.clock().state == "together"
