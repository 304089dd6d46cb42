"""health: ok, warn and alert by a topic's thresholds, with reasons and figures."""

from __future__ import annotations

from typing import Any

import pytest

import duly
from duly.health import judge, worst
from tests.store.conftest import Home, sharp


def only(q: duly.Client, topic: str) -> duly.GroupHealth:
    (one,) = q.health(topic)
    return one


def levels(q: duly.Client, topic: str | None = None) -> dict[tuple[str, str], str]:
    return {(one.topic, one.group): one.level for one in q.health(topic)}


def test_a_topic_without_thresholds_is_ok_and_shows_its_figures(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("t", kind="queue")
    q.publish("t", [b"a", b"b"])
    clock.advance(60)
    assert only(q, "t") == duly.GroupHealth("t", "queue", "ok", (), duly.Figures(0, 2, 60.0, 0.0, 0), False)


def test_each_group_of_a_log_is_judged_by_itself(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("orders", kind="log", health=duly.Health(undelivered=(2, 4)))
    for group in ("quick", "slow", "stuck"):
        q.create_group("orders", group)
    q.publish("orders", [b"%d" % n for n in range(5)])
    q.claim("orders", group="quick")
    q.claim("orders", group="slow", max_messages=3)
    assert levels(q) == {("orders", "quick"): "ok", ("orders", "slow"): "warn", ("orders", "stuck"): "alert"}
    stuck = q.health("orders")[2]
    assert stuck.reasons == (
        duly.HealthReason("alert", "undelivered", 5, 4, "5 due messages undelivered: alert from 4 on"),
    )


def test_a_log_without_groups_has_nobody_to_fall_behind(q: duly.Client) -> None:
    q.create_topic("t", kind="log", health=duly.Health(consumers=(1, 0), undelivered=(1, 1)))
    q.publish("t", b"x")
    assert (only(q, "t").group, only(q, "t").level) == ("", "ok")


def test_no_topics_no_health_and_an_unknown_one_is_an_error(q: duly.Client) -> None:
    assert q.health() == []
    with pytest.raises(duly.TopicNotFound):
        q.health("nowhere")


class TestConsumers:
    def test_who_was_not_seen_for_three_minutes_is_not_active(self, q: duly.Client, clock: duly.ManualClock) -> None:
        q.create_topic("t", kind="queue", health=duly.Health(consumers=(1, 0)))
        assert only(q, "t").level == "alert"
        assert only(q, "t").reasons[0].text == "no active consumers: alert at 0 or fewer"
        q.claim("t", consumer="w1")
        assert only(q, "t").reasons[0].text == "1 active consumer: warn at 1 or fewer"
        q.claim("t", consumer="w2")
        assert (only(q, "t").level, only(q, "t").figures.consumers) == ("ok", 2)
        clock.advance(179)
        assert only(q, "t").level == "ok"
        clock.advance(1)
        assert (only(q, "t").level, only(q, "t").figures.consumers) == ("alert", 0)

    def test_who_holds_a_lease_is_active_however_long(self, q: duly.Client, clock: duly.ManualClock) -> None:
        q.create_topic("t", kind="queue")
        q.publish("t", b"x")
        batch = q.claim("t", lease=3600)
        clock.advance(1800)
        assert only(q, "t").figures.consumers == 1
        q.ack(batch)
        assert only(q, "t").figures.consumers == 0


class TestUndelivered:
    def test_what_is_not_due_yet_is_not_undelivered(self, q: duly.Client, clock: duly.ManualClock) -> None:
        """Wherever it stands: fresh, in a run, moved; and what was cancelled is not at all."""
        q.create_topic("t", kind="queue")
        q.publish("t", [duly.Message(b"", id=f"later-{n}", due=3600 + n) for n in range(3000)])
        q.publish("t", [duly.Message(b"", id=f"now-{n}") for n in range(20)])
        q.move("t", "now-1", due=7200)
        q.cancel("t", [f"later-{n}" for n in range(10)] + ["now-2"])
        assert only(q, "t").figures.undelivered == 18
        q.claim("t", max_messages=8)
        assert only(q, "t").figures.undelivered == 10
        clock.advance(3600 + 99)
        assert only(q, "t").figures.undelivered == 10 + 90
        clock.advance(3600 * 2)
        # The one that was moved came due too; the eight whose lease ran out are retrying.
        assert only(q, "t").figures.undelivered == 10 + 2990 + 1

    def test_a_log_counts_from_the_cursor(self, q: duly.Client) -> None:
        q.create_topic("t", kind="log", partitions=2)
        q.create_group("t", "g")
        q.publish("t", [duly.Message(b"", partition=n % 2) for n in range(10)])
        q.claim("t", group="g", max_messages=3)
        assert only(q, "t").figures.undelivered == 7


class TestOldest:
    def test_of_a_log_it_is_what_the_cursor_stands_at(self, q: duly.Client, clock: duly.ManualClock) -> None:
        q.create_topic("t", kind="log", health=duly.Health(oldest_age=(60, 300)))
        q.create_group("t", "g")
        q.publish("t", b"first")
        clock.advance(100)
        q.publish("t", b"second")
        assert only(q, "t").reasons[0].text == "the oldest waits for 100 s: warn from 60 s on"
        clock.advance(260)
        assert only(q, "t").reasons[0].text == "the oldest waits for 6 minutes: alert from 5 minutes on"
        q.ack(q.claim("t", group="g", max_messages=1))
        assert only(q, "t").figures.oldest_age == 260
        q.ack(q.claim("t", group="g"))
        assert (only(q, "t").level, only(q, "t").figures.oldest_age) == ("ok", 0)

    def test_of_a_queue_it_counts_from_the_due_time(self, q: duly.Client, clock: duly.ManualClock) -> None:
        q.create_topic("t", kind="queue")
        q.publish("t", [duly.Message(b"a", due=100, priority=9), duly.Message(b"b", due=150, priority=1)])
        assert only(q, "t").figures.oldest_age == 0
        clock.advance(200)
        assert only(q, "t").figures.oldest_age == 100
        q.ack(q.claim("t", max_messages=1))
        assert only(q, "t").figures.oldest_age == 100
        q.ack(q.claim("t", max_messages=1))
        assert only(q, "t").figures.oldest_age == 0

    def test_a_message_that_starves_behind_thousands_is_found(self, q: duly.Client, clock: duly.ManualClock) -> None:
        q.create_topic("t", kind="queue")
        q.publish("t", duly.Message(b"starving", priority=900))
        clock.advance(1000)
        q.publish("t", [b"urgent"] * 30_000)
        # A claim absorbs and folds: everything is in runs from here on.
        q.ack(q.claim("t", max_messages=10_000))
        clock.advance(5)
        assert only(q, "t").figures.oldest_age == 1005

    @pytest.mark.parametrize("kind", ["log", "queue"])
    def test_what_failed_and_is_due_again_waits_too(self, q: duly.Client, clock: duly.ManualClock, kind: str) -> None:
        q.create_topic("t", kind=kind, retry=sharp(10), lease=50)
        group = None if kind == "queue" else "g"
        if group:
            q.create_group("t", group)
        q.publish("t", [b"a", b"b"])
        (first, _) = q.claim("t", group=group)
        first.nack()
        assert only(q, "t").figures.oldest_age == 0
        clock.advance(15)
        assert only(q, "t").figures.oldest_age == 5
        clock.advance(40)
        # By now the other's lease has run out as well, 5 s ago.
        assert only(q, "t").figures.oldest_age == 45

    def test_what_waits_for_its_lane_waits_too(self, q: duly.Client, clock: duly.ManualClock) -> None:
        q.create_topic("t", kind="queue", lanes=duly.Lanes(max_in_flight=1))
        q.publish("t", [duly.Message(b"%d" % n, lane="a") for n in range(3)])
        assert len(q.claim("t", lease=3600)) == 1
        clock.advance(30)
        assert (only(q, "t").figures.undelivered, only(q, "t").figures.oldest_age) == (2, 30)

    def test_a_cancelled_message_is_not_the_oldest(self, q: duly.Client, clock: duly.ManualClock) -> None:
        """Not even where it leaves a hole, inside a run."""
        q.create_topic("t", kind="queue")
        q.publish("t", duly.Message(b"old", id="old", priority=890))
        clock.advance(50)
        q.publish("t", [duly.Message(b"", priority=n % 900) for n in range(20_000)])
        q.ack(q.claim("t", max_messages=10_000))
        clock.advance(5)
        assert only(q, "t").figures.oldest_age == 55
        assert q.cancel("t", "old") == {"old": "cancelled"}
        assert only(q, "t").figures.oldest_age == 5


class TestRetriesAndDeadLetters:
    @pytest.mark.parametrize("kind", ["log", "queue"])
    def test_the_share_that_failed(self, q: duly.Client, kind: str) -> None:
        q.create_topic("t", kind=kind, retry=sharp(10), health=duly.Health(retry_ratio=(0.25, 0.5)))
        group = None if kind == "queue" else "g"
        if group:
            q.create_group("t", group)
        q.publish("t", [b"%d" % n for n in range(8)])
        batch = q.claim("t", group=group, max_messages=6)
        assert only(q, "t").level == "ok"
        q.nack(batch[:2])
        assert only(q, "t").figures.retry_ratio == 0.25
        assert only(q, "t").reasons[0].text == (
            "25% of the open messages failed and wait for another attempt: warn from 25% on"
        )
        q.ack(batch[2:])
        assert (only(q, "t").level, only(q, "t").figures.retry_ratio) == ("alert", 0.5)

    def test_dead_letters(self, q: duly.Client) -> None:
        q.create_topic("t", kind="queue", health=duly.Health(dead=(1, 3)))
        q.publish("t", [b"%d" % n for n in range(3)])
        batch = q.claim("t")
        q.bury(batch[:1])
        assert only(q, "t").reasons[0].text == "1 dead letter: warn from 1 on"
        q.bury(batch[1:])
        assert only(q, "t").reasons[0].text == "3 dead letters: alert from 3 on"
        q.purge("t", dead=True)
        assert only(q, "t").level == "ok"


def test_the_worst_reason_comes_first_and_makes_the_level(q: duly.Client) -> None:
    q.create_topic("t", kind="queue", health=duly.Health(consumers=(0, 0), undelivered=(1, 10), dead=(1, 1)))
    q.publish("t", [b"a", b"b"])
    q.bury(q.claim("t", max_messages=1))
    one = only(q, "t")
    assert (one.level, [(r.level, r.measure) for r in one.reasons]) == (
        "alert",
        [("alert", "dead"), ("warn", "undelivered")],
    )


def test_a_pause_is_told(q: duly.Client) -> None:
    q.create_topic("t", kind="log")
    q.create_group("t", "g")
    q.pause("t", group="g")
    assert only(q, "t").paused
    q.resume("t", group="g")
    q.pause("t")
    assert only(q, "t").paused


def test_many_topics_come_in_pages(q: duly.Client) -> None:
    for n in range(230):
        q.create_topic(f"t{n:03}", kind="queue" if n % 2 else "log")
    assert [one.topic for one in q.health()] == [f"t{n:03}" for n in range(230)]
    assert [one.topic for one in q.health(limit=2)] == ["t000", "t001"]
    assert [one.topic for one in q.health(after="t227")] == ["t228", "t229"]
    assert len(q.health(after="t100", limit=105)) == 105
    for bad in ({"limit": 0}, {"after": 5}):
        with pytest.raises(duly.InvalidArgument):
            q.health(**bad)  # type: ignore[arg-type]


def test_a_tenants_health_is_its_own(home: Home) -> None:
    q, other = home.connect(), home.connect(tenant="acme")
    q.create_topic("t", kind="queue")
    assert other.health() == []


@pytest.mark.parametrize(
    ("figures", "measure", "bounds", "level"),
    [
        ({"undelivered": 9}, "undelivered", (10, 20), None),
        ({"undelivered": 10}, "undelivered", (10, 20), "warn"),
        ({"undelivered": 20}, "undelivered", (10, 20), "alert"),
        ({"undelivered": 10}, "undelivered", (10, 10), "alert"),
        ({"consumers": 3}, "consumers", (2, 1), None),
        ({"consumers": 2}, "consumers", (2, 1), "warn"),
        ({"consumers": 1}, "consumers", (2, 1), "alert"),
        ({"consumers": 0}, "consumers", None, None),
    ],
)
def test_thresholds_are_reached_exactly(figures: dict[str, Any], measure: str, bounds: Any, level: str | None) -> None:
    whole = duly.Figures(**{"consumers": 5, "undelivered": 0, "oldest_age": 0, "retry_ratio": 0, "dead": 0, **figures})
    reasons = judge(duly.Health(**{measure: bounds}), whole)
    assert [reason.level for reason in reasons] == ([] if level is None else [level])


def test_the_worst_of_levels() -> None:
    assert worst(["ok", "alert", "warn"]) == "alert"
    assert worst(["warn", "ok"]) == "warn"
    assert worst([]) == "ok"
