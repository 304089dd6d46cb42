"""forecast: what comes, how fast a consumer is, and how many it takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import duly
from tests.store.conftest import Home, sharp
from tests.store.patience import eventually

MINUTE = 60


def work(q: duly.Client, clock: duly.ManualClock, topic: str, leases: int, most: int, seconds: float) -> None:
    """A consumer that holds so many messages for so long, again and again."""
    for _ in range(leases):
        batch = q.claim(topic, max_messages=most)
        clock.advance(seconds)
        q.ack(batch)


def needed(forecast: duly.Forecast) -> list[int | None]:
    return [minute.consumers for minute in forecast.minutes]


def at_a_minutes_beginning(clock: duly.ManualClock) -> None:
    clock.advance((MINUTE * 1000 - clock.now_ms() % (MINUTE * 1000)) / 1000)


def test_a_timeline_takes_so_many_consumers_a_minute(q: duly.Client, clock: duly.ManualClock) -> None:
    at_a_minutes_beginning(clock)
    q.create_topic("jobs", kind="queue", partitions=2)
    q.publish("jobs", [duly.Message(b"%d" % n, due=90 + 60 * (n % 2), key=str(n)) for n in range(5000)])
    q.publish("jobs", [duly.Message(b"%d" % n, key=str(n)) for n in range(40)])
    # 20 messages in 10 seconds: two a second, 120 a minute.
    work(q, clock, "jobs", leases=2, most=10, seconds=5)
    told = q.forecast("jobs", minutes=4)
    assert (told.ready, told.leased, told.active) == (20, 0, 1)
    assert (told.service_rate, told.observed) == (2.0, 20)
    # The topic is younger than ten minutes: one minute counts. What was published for later is not among them.
    assert told.arrival_rate == round(40 / 60, 4)
    assert [minute.timed for minute in told.minutes] == [0, 2500, 2500, 0]
    assert [minute.expected for minute in told.minutes] == [40, 40, 40, 40]
    assert needed(told) == [1, 22, 22, 1]
    assert (told.peak.at_ms, told.peak.coming) == (told.minutes[1].at_ms, 2540)
    assert told.minutes[1].at_ms % 60_000 == 0
    assert told.notes == ()


def test_what_is_ahead_is_counted_wherever_it_stands(q: duly.Client, clock: duly.ManualClock) -> None:
    at_a_minutes_beginning(clock)
    q.create_topic("jobs", kind="queue", retry=sharp(120))
    q.publish("jobs", [duly.Message(b"", id=f"m{n}", due=70) for n in range(3000)])
    q.publish("jobs", [duly.Message(b"", id="ready"), duly.Message(b"", id="fails"), duly.Message(b"", id="held")])
    q.cancel("jobs", ["m0", "m1"])
    q.move("jobs", "m2", due=190)
    fails, _ = q.claim("jobs", max_messages=2)
    fails.nack()
    told = q.forecast("jobs", minutes=4, rate=1)
    assert [minute.timed for minute in told.minutes] == [0, 2997, 1, 1]
    assert (told.ready, told.leased, told.backlog) == (1, 1, 2)
    # A minute later they have fallen due, and are ahead no more.
    clock.advance(80)
    told = q.forecast("jobs", minutes=3, rate=1)
    assert [minute.timed for minute in told.minutes] == [0, 1, 1]
    assert told.backlog == 2999


def test_a_log_is_forecast_by_what_was_published_of_late_for_each_group(
    q: duly.Client, clock: duly.ManualClock, orders: str
) -> None:
    q.create_group(orders, "audit")
    clock.advance(3600)
    for _ in range(10):
        q.publish(orders, [b"x"] * 30)
        clock.advance(MINUTE)
    batch = q.claim(orders, group="billing", max_messages=250)
    clock.advance(25)
    q.ack(batch)
    of_billing, of_audit = q.forecast(orders, group="billing", minutes=3), q.forecast(orders, group="audit", minutes=3)
    assert (of_billing.ready, of_audit.ready) == (50, 300)
    # The first of them was more than ten minutes ago.
    assert of_billing.arrival_rate == of_audit.arrival_rate == 270 / 600
    assert [minute.expected for minute in of_billing.minutes] == [27, 27, 27]
    assert (of_billing.service_rate, needed(of_billing)) == (10.0, [1, 1, 1])
    assert (of_audit.service_rate, needed(of_audit)) == (None, [None] * 3)
    with pytest.raises(duly.InvalidArgument, match="group"):
        q.forecast(orders)


def test_several_leases_at_once_are_one_consumers_time_and_two_consumers_are_two(
    q: duly.Client, reopen: Callable[[], duly.Client], home: Home, clock: duly.ManualClock
) -> None:
    q.create_topic("jobs", kind="queue", lease=600)
    q.publish("jobs", [b"x"] * 100)
    held = [q.claim("jobs", max_messages=10), q.claim("jobs", max_messages=10)]
    clock.advance(10)
    q.ack(held[0])
    q.ack(held[1])
    assert q.forecast("jobs").service_rate == 2.0
    other = reopen()
    held = [q.claim("jobs", max_messages=10), other.claim("jobs", max_messages=10)]
    clock.advance(10)
    q.ack(held[0])
    other.ack(held[1])
    # 40 messages in 20 and 10 seconds.
    assert q.forecast("jobs").service_rate == 1.333
    # What failed took time too; what is held and idles tells nothing yet.
    held = [q.claim("jobs", max_messages=10), other.claim("jobs", max_messages=10)]
    clock.advance(10)
    q.nack(held[0])
    assert q.forecast("jobs").service_rate == 1.0


def test_where_nothing_was_observed_it_says_so_and_a_given_rate_is_taken(q: duly.Client) -> None:
    q.create_topic("jobs", kind="queue")
    q.publish("jobs", [b"x"] * 100)
    told = q.forecast("jobs", minutes=2)
    assert (told.service_rate, told.observed, told.consumers, needed(told)) == (None, 0, None, [None, None])
    assert "not known" in told.notes[0]
    # All that is there now, and as much again: one minute's arrivals.
    assert needed(q.forecast("jobs", minutes=2, rate=2.5)) == [2, 1]
    for wrong in (0, -1, True, "2"):
        with pytest.raises(duly.InvalidArgument):
            q.forecast("jobs", rate=wrong)  # type: ignore[arg-type]


def test_a_rate_caps_what_more_consumers_can_do_and_a_pause_leaves_none_with_anything_to_do(
    q: duly.Client, clock: duly.ManualClock
) -> None:
    q.create_topic("jobs", kind="queue", rate=5)
    q.publish("jobs", [b"x"] * 900)
    clock.advance(700)
    told = q.forecast("jobs", minutes=4, rate=2.5)
    assert (told.arrival_rate, told.rate_max) == (0.0, 5)
    assert needed(told) == [2, 2, 2, 0]
    assert told.notes == ("It delivers at most 5 messages a second: more than 2 consumers have nothing to do.",)
    q.update_topic("jobs", rate=None, max_in_flight=3)
    # Three at a time, 450 in a minute.
    assert needed(q.forecast("jobs", minutes=4, rate=2.5)) == [3, 3, 0, 0]
    q.pause("jobs")
    told = q.forecast("jobs", minutes=2, rate=2.5)
    assert (told.paused, told.ready, needed(told)) == (True, 900, [0, 0])


def test_while_a_breaker_is_open_it_takes_one_for_the_probe(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("jobs", kind="queue", breaker=duly.Breaker(calls=5))
    q.publish("jobs", [b"x"] * 900)
    clock.advance(700)
    assert needed(q.forecast("jobs", minutes=2, rate=1)) == [15, 0]
    q.nack(q.claim("jobs", max_messages=5))
    told = q.forecast("jobs", minutes=2, rate=1)
    assert needed(told) == [1, 1]
    assert "breaker is open" in told.notes[0]


def test_what_a_topic_of_the_same_name_did_before_does_not_count(q: duly.Client, clock: duly.ManualClock) -> None:
    for seconds in (1, 0):
        q.create_topic("jobs", kind="queue")
        q.publish("jobs", [b"x"] * 10)
        if seconds:
            work(q, clock, "jobs", 1, 10, seconds)
            assert q.forecast("jobs").service_rate == 10
            q.delete_topic("jobs", force=True)
            clock.advance(1)
    told = q.forecast("jobs")
    assert (told.service_rate, told.arrival_rate) == (None, round(10 / 60, 4))


def test_all_topics_are_forecast_page_by_page_and_other_tenants_have_no_part_in_it(
    q: duly.Client, home: Home, clock: duly.ManualClock
) -> None:
    home.connect(tenant="other").create_topic("theirs", kind="queue")
    q.create_topic("a", kind="log")
    for group in ("one", "two"):
        q.create_group("a", group)
    q.create_topic("b", kind="queue")
    q.create_topic("c", kind="log")
    q.publish("b", [b"x"] * 8)
    work(q, clock, "b", 1, 4, 2)
    found = q.forecasts(minutes=2)
    assert [(one.topic, one.group) for one in found] == [("a", "one"), ("a", "two"), ("b", "queue"), ("c", "")]
    assert found[2] == q.forecast("b", minutes=2)
    assert (found[2].service_rate, found[3].consumers, len(found[3].notes)) == (2.0, 0, 1)
    assert [one.topic for one in q.forecasts(after="a", limit=1)] == ["b"]
    assert [one.group for one in q.forecasts("a")] == ["one", "two"]
    with pytest.raises(duly.TopicNotFound):
        q.forecast("nowhere")
    with pytest.raises(duly.GroupNotFound):
        q.forecast("a", group="nobody")
    with pytest.raises(duly.InvalidArgument):
        q.forecasts(group="one")


def test_more_than_an_answer_holds_is_refused(q: duly.Client) -> None:
    q.create_topic("a", kind="log")
    for number in range(51):
        q.create_group("a", f"g{number}")
    with pytest.raises(duly.LimitExceeded, match="51 groups"):
        q.forecasts("a", minutes=10_000)
    assert len(q.forecasts("a", minutes=1000)) == 51


def test_it_is_forecast_from_events_that_are_packed_and_from_those_that_are_not(
    q: duly.Client, clock: duly.ManualClock, orders: str
) -> None:
    q.publish(orders, [b"x"] * 30)
    for _ in range(3):
        batch = q.claim(orders, group="billing", max_messages=5)
        # Chores pack what is a moment old.
        clock.advance(10)
        q.ack(batch)
    batch = q.claim(orders, group="billing", max_messages=15)
    clock.advance(10)
    q.ack(batch)
    told = q.forecast(orders, group="billing", minutes=1)
    assert (told.service_rate, told.observed) == (0.75, 30)


@pytest.mark.embedded
@pytest.mark.parametrize("bound", ["_LOOK_BACK", "_LOOK_BACK_EVENTS"])
def test_it_looks_back_at_so_much_and_reckons_from_there(
    q: duly.Client, clock: duly.ManualClock, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr("duly.engine.event_log._SLICE", 3)
    q.create_topic("jobs", kind="queue")
    for many in (500, 500, 500, 60, 60, 60):
        q.publish("jobs", [b"x"] * many)
        clock.advance(30)
    assert len(list(q.events(topic="jobs"))) == 7
    assert q.forecast("jobs", minutes=1).arrival_rate == round(1680 / 180, 4)
    monkeypatch.setattr(f"duly.engine.forecast.{bound}", 3)
    # What chores have packed by now is read three at a time; what they have not, all of it.
    eventually(lambda: q.forecast("jobs", minutes=1).arrival_rate == 180 / 90)
