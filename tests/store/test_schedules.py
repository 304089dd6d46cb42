"""Schedules: one message a tick, whatever becomes of the process, the store, the tenant, the topic or the clock.

Ticks come by themselves: the clock is moved, and the caretaker of the store that is open has them tick.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

import duly
from duly.client.client import Client
from duly.schedule import spread_ms

from .conftest import Home
from .patience import eventually

HOUR = 3600
# A minute past midnight, UTC.
MIDNIGHT = datetime(2026, 5, 5, 0, 0, tzinfo=UTC)
HOURLY = [MIDNIGHT + timedelta(hours=n) for n in range(200)]


@pytest.fixture
def clock() -> duly.ManualClock:
    return duly.ManualClock(int(MIDNIGHT.timestamp() * 1000) + 60_000)


@pytest.fixture
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue")
    return "jobs"


def make(q: duly.Client, name: str = "s", **given: Any) -> duly.ScheduleDescription:
    return q.create_schedule(name, **{"topic": "jobs", "cron": "@hourly", **given})


def settle(q: duly.Client, clock: duly.ManualClock, name: str = "s") -> duly.ScheduleDescription:
    """What there is when nothing is due any more."""

    def is_settled() -> bool:
        ahead = q.describe_schedule(name).next_ms
        return not ahead or ahead[0] > clock.now_ms()

    eventually(is_settled)
    return q.describe_schedule(name)


def after(q: duly.Client, clock: duly.ManualClock, hours: float, name: str = "s") -> duly.ScheduleDescription:
    clock.advance(hours * HOUR)
    return settle(q, clock, name)


def came(q: duly.Client, topic: str = "jobs") -> list[str]:
    """The ids of messages that are due, which are acked; without the name of their schedule in front."""
    batch = q.claim(topic, max_messages=1000)
    ids = [d.id for d in batch]
    q.ack(batch)
    return [_shown(id) for id in ids]


def _shown(id: str) -> str:
    _, name, tick = id.split("@")
    at = datetime.fromtimestamp(int(tick) / 1000, UTC)
    assert at.second == at.microsecond == 0
    return f"{name} {at:%H:%M}"


def _has(q: duly.Client, topic: str, messages: int) -> bool:
    return q.describe_topic(topic).messages == messages


def kinds(q: duly.Client) -> list[str]:
    return [event.kind for event in q.events() if "schedule" in event.facts]


# Ticking


def test_a_tick_publishes_one_message_that_is_due_at_it(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    made = make(q, payload=b"hello", key="k", headers={"a": "b"}, priority=7, lane="acme", ttl=600)
    assert made.next[:2] == (HOURLY[1], HOURLY[2])
    assert (made.published, made.missed, made.runs, made.version, made.paused) == (0, 0, (), 1, False)
    clock.advance(HOUR - 60.001)
    assert not q.claim(jobs)
    clock.advance(0.001)
    (d,) = eventually(lambda: q.claim(jobs))
    assert (d.payload, d.id, d.key, d.headers) == (b"hello", f"schedule@s@{clock.now_ms()}", "k", {"a": "b"})
    assert (d.priority, d.lane) == (7, "acme")
    known = settle(q, clock)
    assert known.next[0] == HOURLY[2]
    assert [(run.tick, run.late_ms, run.id) for run in known.runs] == [(HOURLY[1], 0, d.id)]
    assert q.get(jobs, d.id).expires_at_ms == clock.now_ms() + 600_000  # type: ignore[union-attr]
    assert not q.claim(jobs)


def test_templates_tell_the_tick_the_one_before_and_their_number(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    make(q, zone="Europe/Berlin", template='{"at": "${tick}", "ms": ${tick_ms}, "before": "${previous}", "n": ${run}}')
    after(q, clock, 1)
    after(q, clock, 3)
    first, second = (d.json() for d in sorted(q.claim(jobs, max_messages=9), key=lambda d: d.id))
    tick_ms = int(HOURLY[1].timestamp() * 1000)
    assert first == {"at": "2026-05-05T03:00:00+02:00", "ms": tick_ms, "before": "", "n": 1}
    assert (second["at"][11:16], second["before"][11:16], second["n"]) == ("06:00", "03:00", 2)


def test_a_message_of_a_tick_is_found_moved_and_cancelled_as_any_other(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    make(q)
    tick = after(q, clock, 1).runs[0].id
    assert [one.id for one in q.browse(jobs, state="ready")] == [tick]
    assert q.move(jobs, tick, due=timedelta(hours=5)) == {tick: "moved"}
    assert q.cancel(jobs, tick) == {tick: "cancelled"}
    assert came(q) == []
    history = [event.kind for event in q.events(topic=jobs, message=tick)]
    assert history == ["published", "moved", "cancelled"]


def test_jitter_moves_the_due_time_and_not_the_tick(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    make(q, jitter=600)
    known = after(q, clock, 1)
    tick = known.runs[0]
    assert tick.tick == HOURLY[1]
    found = q.get(jobs, tick.id)
    assert found is not None
    assert found.due_at_ms == tick.tick_ms + spread_ms("default", "s", tick.tick_ms, 600_000)


def test_many_schedules_of_many_topics_tick_together(q: duly.Client, clock: duly.ManualClock) -> None:
    topics = [f"t{n}" for n in range(5)]
    for topic in topics:
        q.create_topic(topic, kind="queue")
        for n in range(30):
            make(q, f"{topic}-{n}", topic=topic)
    clock.advance(HOUR)
    for topic in topics:
        eventually(partial(_has, q, topic, 30))
        assert sorted(came(q, topic)) == sorted(f"{topic}-{n} 01:00" for n in range(30))
    assert [one.published for one in q.schedules()] == [1] * 150
    assert [one.name for one in q.schedules(after="t3-9", limit=2)] == ["t4-0", "t4-1"]


# Missed


@pytest.mark.parametrize(
    ("given", "expected", "missed"),
    [
        ({}, ["s 05:00"], 4),
        ({"missed": "latest"}, ["s 05:00"], 4),
        ({"missed": "skip"}, [], 5),
        ({"missed": "all", "limit": 3}, ["s 03:00", "s 04:00", "s 05:00"], 2),
        ({"missed": "all"}, ["s 01:00", "s 02:00", "s 03:00", "s 04:00", "s 05:00"], 0),
    ],
)
def test_what_nobody_was_there_for_is_judged_by_the_policy(
    q: duly.Client, jobs: str, clock: duly.ManualClock, given: dict[str, Any], expected: list[str], missed: int
) -> None:
    make(q, **given)
    # Half past five.
    known = after(q, clock, 5.5 - 1 / 60)
    assert sorted(came(q)) == expected
    assert (known.published, known.missed, known.next[0]) == (len(expected), missed, HOURLY[6])
    told = [event.facts["missed"] for event in q.events() if event.kind == "tick_missed"]
    assert told == ([missed] if missed else [])
    after(q, clock, 0.5)
    assert came(q) == ["s 06:00"]


def test_the_last_one_is_on_time_if_it_is_less_than_a_minute_late(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    make(q, missed="skip")
    known = after(q, clock, 5)
    assert (came(q), known.missed) == (["s 05:00"], 4)


def test_years_of_seconds_are_caught_up_with_at_once(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    make(q, cron="* * * * * *", missed="all", limit=50, payload=b"x")
    known = after(q, clock, 24 * 365)
    assert known.published == 50
    assert known.missed >= 950
    assert len(q.claim(jobs, max_messages=1000)) == 50


def test_what_is_too_much_for_one_transaction_is_published_in_several(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    make(q, cron="* * * * *", missed="all", limit=200, payload=b"x" * 65_536)
    known = after(q, clock, 4)
    ticks = [d.id for _ in range(4) for d in q.claim(jobs, max_messages=60)]
    assert (len(ticks), len(set(ticks)), known.published, known.missed) == (200, 200, 200, 40)


# Made, changed, paused, deleted


def test_a_paused_one_ticks_no_more_and_does_not_catch_up(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    make(q, missed="all")
    assert q.pause_schedule("s").next_ms == ()
    known = after(q, clock, 3.5)
    assert (known.paused, known.published, known.missed) == (True, 0, 0)
    assert q.resume_schedule("s").next[0] == HOURLY[4]
    after(q, clock, 0.5)
    assert came(q) == ["s 04:00"]
    assert kinds(q) == ["schedule_created", "schedule_paused", "schedule_resumed"]


def test_one_may_be_made_paused(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    assert make(q, paused=True).next_ms == ()
    after(q, clock, 2)
    assert came(q) == []
    q.resume_schedule("s")
    after(q, clock, 1)
    assert came(q) == ["s 03:00"]


def test_changes_hold_from_the_next_tick_on_and_are_refused_over_somebody_elses(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    made = make(q, payload=b"one")
    changed = q.update_schedule("s", version=made.version, cron="30 * * * *", template="${run}", lane="acme")
    assert (changed.version, changed.next[0].minute) == (2, 30)
    assert (changed.settings.payload, changed.settings.template, changed.settings.lane) == (b"", "${run}", "acme")
    for stale in (
        lambda: q.update_schedule("s", version=1, lane=None),
        lambda: q.pause_schedule("s", version=1),
        lambda: q.delete_schedule("s", version=1),
    ):
        with pytest.raises(duly.StaleVersion):
            stale()
    after(q, clock, 0.5)
    with q.claim(jobs) as batch:
        assert batch.payloads == [b"1"]
    q.update_schedule("s", lane=None, template="two")
    after(q, clock, 1)
    assert q.claim(jobs).payloads == [b"two"]


def test_a_period_counts_from_when_it_was_set(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    began = clock.now_ms()
    assert make(q, cron="@every 7m").next_ms[0] == began + 420_000
    clock.advance(1000)
    settle(q, clock)
    q.pause_schedule("s")
    clock.advance(1000)
    assert (q.resume_schedule("s").next_ms[0] - began) % 420_000 == 0
    assert q.update_schedule("s", cron="@every 90s").next_ms[0] == clock.now_ms() + 90_000


def test_a_deleted_one_is_gone_and_leaves_its_messages(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    make(q)
    after(q, clock, 1)
    q.delete_schedule("s")
    clock.advance(5 * HOUR)
    assert came(q) == ["s 01:00"]
    for call in (q.describe_schedule, q.delete_schedule, q.pause_schedule, q.resume_schedule):
        with pytest.raises(duly.ScheduleNotFound, match="'s'"):
            call("s")
    with pytest.raises(duly.ScheduleNotFound):
        q.update_schedule("s", lane="a")
    assert q.schedules() == []


def test_a_name_is_had_once(q: duly.Client, jobs: str) -> None:
    made = make(q, lane="a")
    assert make(q, lane="a", exist_ok=True) == made
    with pytest.raises(duly.ScheduleExists, match="exist_ok"):
        make(q, lane="a")
    with pytest.raises(duly.ScheduleExists, match="lane"):
        make(q, lane="b", exist_ok=True)
    q.create_topic("others", kind="queue")
    with pytest.raises(duly.ScheduleExists, match="topic"):
        make(q, lane="a", topic="others", exist_ok=True)


def test_a_log_is_refused_with_why(q: duly.Client, orders: str) -> None:
    with pytest.raises(duly.InvalidArgument, match=r"is a log.*queue"):
        make(q, topic=orders)
    with pytest.raises(duly.TopicNotFound):
        make(q, topic="nowhere")


@pytest.mark.parametrize(
    "wrong",
    [
        {"cron": "0 0 30 2 *"},
        {"cron": "@every 1h", "zone": "Mars/Olympus"},
        {"template": "${what}"},
        {"lanes": 5},
        {"name": "x" * 257},
        {"name": ""},
        {"name": "€" * 200},
        {"name": 5},
        {"headers": {"k": "v" * 20_000}},
        {"key": "k" * 2000},
        {"key": ""},
        {"paused": "yes"},
        {"ttl": "1h"},
        {"payload": b"x" * 100_000},
    ],
)
def test_what_is_wrong_is_refused_when_it_is_made(q: duly.Client, jobs: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(duly.InvalidArgument):
        make(q, **{"name": "s", **wrong})
    assert q.schedules() == []


def test_what_its_topic_would_refuse_is_refused_too(q: duly.Client, jobs: str) -> None:
    q.create_topic("in-order", kind="queue", lanes=duly.Lanes(max_in_flight=1), payload_bytes_max=10)
    with pytest.raises(duly.InvalidArgument, match="priorities"):
        make(q, topic="in-order", priority=5)
    with pytest.raises(duly.LimitExceeded, match="payload"):
        make(q, topic="in-order", payload=b"x" * 11)
    make(q, topic="in-order", payload=b"x" * 10)
    with pytest.raises(duly.LimitExceeded, match="payload"):
        q.update_schedule("s", payload=b"x" * 11)
    assert q.describe_schedule("s").version == 1


def test_updates_that_say_nothing_or_nonsense_change_nothing(q: duly.Client, jobs: str) -> None:
    make(q)
    for wrong in ({}, {"topic": "other"}, {"crom": "@daily"}, {"cron": "never"}, {"limit": 0}, {"missed": None}):
        with pytest.raises(duly.InvalidArgument):
            q.update_schedule("s", **wrong)
    assert q.describe_schedule("s").version == 1


def test_a_preview_takes_no_schedule(q: duly.Client) -> None:
    found = q.preview_schedule("30 2 * * *", zone="Europe/Berlin", count=2, after=datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert [tick.isoformat() for tick in found] == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    assert len(q.preview_schedule("@every 5s", count=7)) == 7
    refused: list[dict[str, Any]] = [{"cron": "no"}, {"cron": "@daily", "count": 0}, {"cron": "@daily", "zone": "no"}]
    for wrong in refused:
        with pytest.raises(duly.InvalidArgument):
            q.preview_schedule(**wrong)
    with pytest.raises(duly.InvalidArgument, match="time zone"):
        q.preview_schedule("@daily", after=datetime(2026, 1, 1))  # noqa: DTZ001


# What stands in its way


def test_a_paused_store_ticks_when_it_is_resumed_by_the_policy(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    make(q, "latest")
    make(q, "skip", missed="skip")
    make(q, "all", missed="all", limit=2)
    q.pause_store()
    clock.advance(3.5 * HOUR)
    # Others go on with what a paused store does.
    eventually(lambda: not q.claim(jobs, wait=0.2))
    assert [one.published for one in q.schedules()] == [0, 0, 0]
    q.resume_store()
    for name in ("latest", "skip", "all"):
        settle(q, clock, name)
    assert sorted(came(q)) == ["all 02:00", "all 03:00", "latest 03:00"]


def test_a_suspended_tenants_tick_when_it_goes_on_by_the_policy(
    home: Home, q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    other = home.connect(tenant="other")
    other.create_topic("jobs", kind="queue")
    make(other, "theirs")
    make(q)
    q.suspend_tenant("default")
    after(other, clock, 3, "theirs")
    after(other, clock, 2, "theirs")
    assert sorted(came(other)) == ["theirs 03:00", "theirs 05:00"], "nobody waits for the one that is suspended"
    q.resume_tenant("default")
    settle(q, clock)
    assert came(q) == ["s 05:00"]


def test_a_paused_topic_gets_its_messages_and_delivers_them_later(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    make(q)
    q.pause(jobs)
    after(q, clock, 1)
    after(q, clock, 1)
    assert came(q) == []
    q.resume(jobs)
    assert sorted(came(q)) == ["s 01:00", "s 02:00"]


@pytest.mark.parametrize(("missed", "expected"), [("latest", ["s 01:00"]), ("skip", []), ("all", ["s 01:00"])])
def test_what_a_quota_refuses_is_tried_again_told_once_and_judged_then(
    q: duly.Client,
    jobs: str,
    clock: duly.ManualClock,
    events: list[duly.Event],
    missed: str,
    expected: list[str],
) -> None:
    make(q, missed=missed, payload=b"more than a byte")
    make(q, "other", cron="@daily")
    q.update_tenant("default", stored_bytes=1)
    clock.advance(HOUR - 60)
    trouble = eventually(lambda: q.describe_schedule("s").trouble)
    assert "more than 1 bytes" in str(trouble)
    tick = q.describe_schedule("s").next[0]
    assert tick == HOURLY[1]
    for _ in range(8):
        clock.advance(5)
        assert q.describe_schedule("s").next[0] == tick
    if missed != "skip":
        # A minute later it was missed; what is to be published in any case is still tried.
        for _ in range(5):
            clock.advance(60)
            assert q.describe_schedule("s").next[0] == tick
    assert [event.facts["schedule"] for event in q.events() if event.kind == "tick_failed"] == ["s"]
    assert [event.kind for event in events if event.kind == "tick_failed"] == ["tick_failed"]
    clock.advance(60)
    if missed == "skip":
        settle(q, clock)
    q.update_tenant("default", stored_bytes=None)
    clock.advance(60)
    known = settle(q, clock)
    assert (came(q), known.trouble, known.missed) == (expected, None, 1 - len(expected))


def test_what_is_refused_and_changed_is_tried_at_once(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    make(q, payload=b"x" * 50)
    make(q, "fine")
    q.update_topic(jobs, payload_bytes_max=10)
    clock.advance(HOUR)
    eventually(lambda: q.describe_schedule("s").trouble)
    settle(q, clock, "fine")
    assert came(q) == ["fine 01:00"]
    q.update_schedule("s", payload=b"x")
    assert settle(q, clock).trouble is None
    assert came(q) == ["s 01:00"]


def test_a_deleted_topic_takes_its_schedules_with_it(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.create_topic("others", kind="queue")
    make(q)
    make(q, "other", topic="others")
    q.delete_topic(jobs, force=True)
    assert [one.name for one in q.schedules()] == ["other"]
    q.create_topic(jobs, kind="queue")
    after(q, clock, 1, "other")
    assert came(q) == []


def test_a_deleted_tenants_are_erased(home: Home, q: duly.Client, clock: duly.ManualClock) -> None:
    other = home.connect(tenant="other")
    other.create_topic("jobs", kind="queue")
    make(other)
    q.delete_tenant("other", force=True)

    def erased() -> bool:
        clock.advance(2)
        return home.rows("duly_schedule") == 0

    eventually(erased)


# Whose it is


def test_tenants_do_not_see_each_others(home: Home, q: duly.Client, jobs: str) -> None:
    make(q, payload=b"secret")
    other = home.connect(tenant="other")
    assert other.schedules() == []
    with pytest.raises(duly.ScheduleNotFound):
        other.describe_schedule("s")
    other.create_topic("jobs", kind="queue")
    make(other)
    assert q.describe_schedule("s").settings.payload == b"secret"


def test_what_is_done_is_in_the_audit_and_what_is_said_is_not(q: duly.Client, jobs: str) -> None:
    make(q, template="secret ${run}", headers={"h": "secret"}, key="secret")
    q.update_schedule("s", payload=b"secret")
    q.pause_schedule("s")
    q.delete_schedule("s")
    entries = [entry for entry in q.audit() if "schedule" in entry.action]
    assert [entry.action for entry in entries] == [
        "create_schedule",
        "update_schedule",
        "update_schedule",
        "delete_schedule",
    ]
    assert all(entry.topic == jobs and entry.facts["schedule"] == "s" for entry in entries)
    assert entries[0].facts["cron"] == "@hourly"
    assert entries[1].facts["changed"] == ["payload"]
    assert "secret" not in repr(entries)


# Clocks and processes


def test_a_clock_that_leaps_a_day_and_comes_back_makes_no_tick_twice(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    make(q, "latest")
    make(q, "all", missed="all", limit=1000)
    after(q, clock, 2, "all")
    settle(q, clock, "latest")
    seen = came(q)
    for leap in (24, -24, 48, -24, 3, 24):
        clock.advance(leap * HOUR)
        known = settle(q, clock, "all")
        settle(q, clock, "latest")
        assert known.next_ms[0] > clock.now_ms()
        q.update_schedule("latest", lane="a")
        q.pause_schedule("all")
        assert q.resume_schedule("all").next_ms[0] == known.next_ms[0]
    # Until what was published ahead is due.
    clock.advance(200 * HOUR)
    settle(q, clock, "all")
    batch = q.claim(jobs, max_messages=1000)
    ids = [d.id for d in batch]
    assert len(ids) == len(set(ids))
    ticks = sorted(int(id.split("@")[2]) for id in ids if "@all@" in id)
    assert {later - earlier for earlier, later in pairwise(ticks)} == {3_600_000}
    assert len(seen) == 3


def test_whoever_opens_the_store_next_goes_on(home: Home, q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    make(q, missed="all")
    after(q, clock, 2)
    again = home.connect()
    clock.advance(HOUR)
    eventually(lambda: again.describe_schedule("s").published == 3)
    assert came(again) == ["s 01:00", "s 02:00", "s 03:00"]


@pytest.fixture
def reopened(path: str, clock: duly.ManualClock) -> Callable[[], Client]:
    def connect() -> Client:
        return duly.connect(path, clock=clock)

    return connect


def test_what_was_missed_while_nobody_had_it_open_is_judged_when_somebody_does(
    reopened: Callable[[], Client], clock: duly.ManualClock
) -> None:
    with reopened() as q:
        q.create_topic("jobs", kind="queue")
        make(q, "all", missed="all", limit=3)
        make(q, "latest")
    clock.advance(30.5 * HOUR)
    with reopened() as q:
        assert settle(q, clock, "all").missed == 27
        settle(q, clock, "latest")
        assert sorted(came(q)) == ["all 04:00", "all 05:00", "all 06:00", "latest 06:00"]


def test_an_idle_store_writes_nothing_for_its_schedules(
    home: Home, q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    make(q, cron="@yearly")
    make(q, "other", cron="@every 1s", paused=True)
    changed = home.watch()

    def chores() -> int:
        due = f"<= {clock.now_ms()}"
        (agenda,), (parts,) = home.ask(
            f"SELECT count(*) FROM duly_agenda WHERE due_at_ms {due} "
            f"UNION ALL SELECT count(*) FROM duly_part WHERE look_at_ms {due}"
        )
        return int(agenda) + int(parts)

    def is_quiet() -> bool:
        """Whether an hour passes without a write, once what others left to be done is done."""
        eventually(lambda: not chores())
        before = changed()
        for _ in range(4):
            clock.advance(900)
            q.describe_schedule("s")
            eventually(lambda: not chores())
        return changed() == before

    eventually(is_quiet)
    assert all(is_quiet() for _ in range(5))
