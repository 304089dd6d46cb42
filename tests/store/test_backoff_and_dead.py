"""Retries wait as the policy says; after the last attempt a message is buried, with its history."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import duly

from .conftest import sharp
from .patience import eventually


def make(q: duly.Client, retry: duly.RetryPolicy, **settings: Any) -> None:
    q.create_topic("t", kind="log", retry=retry, **settings)
    q.create_group("t", "g")


def bury_some(q: duly.Client, count: int, topic: str = "t", group: str = "g") -> list[str]:
    ids = q.publish(topic, [b"%d" % n for n in range(count)]).ids
    q.bury(q.claim(topic, group=group, max_messages=count), reason="bad")
    return ids


# Back-off


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (sharp(1, shape="exponential"), [1, 2, 4, 8, 16]),
        (sharp(1, shape="linear"), [1, 2, 3, 4, 5]),
        (sharp(7, shape="fixed"), [7, 7, 7, 7, 7]),
        (duly.RetryPolicy(base=1, cap=5, jitter="none"), [1, 2, 4, 5, 5]),
        (duly.RetryPolicy(base=10, cap=1, jitter="none"), [1, 1, 1, 1, 1]),
        (duly.RetryPolicy(base=0, jitter="none"), [0, 0, 0, 0, 0]),
    ],
    ids=["exponential", "linear", "fixed", "capped", "base above cap", "at once"],
)
def test_the_wait_grows_as_the_policy_says(
    q: duly.Client, clock: duly.ManualClock, policy: duly.RetryPolicy, waits: list[float]
) -> None:
    make(q, policy)
    q.publish("t", b"x")
    for wait in waits:
        q.claim("t", group="g").nack()
        if wait:
            clock.advance(wait - 0.001)
            assert len(q.claim("t", group="g")) == 0
            clock.advance(0.001)
    assert [d.attempt for d in q.claim("t", group="g")] == [len(waits) + 1]


def test_full_jitter_spreads_a_crowd_over_the_whole_wait(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, duly.RetryPolicy(base=100, cap=100))
    q.publish("t", [b""] * 300)
    for delivery in q.claim("t", group="g", max_messages=300):
        delivery.nack()
    came = []
    for _ in range(4):
        clock.advance(25)
        batch = q.claim("t", group="g", max_messages=300)
        came.append(len(batch))
        batch.ack()
    assert sum(came) == 300, "nobody waits longer than the cap"
    assert min(came) > 35, f"a quarter of them is due in every quarter of the wait: {came}"


def test_a_nack_of_the_first_attempt_is_not_the_last(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, sharp(1, max_attempts=2))
    q.publish("t", b"x")
    q.claim("t", group="g").nack()
    assert q.describe_group("t", "g").dead == 0
    clock.advance(1)
    q.claim("t", group="g").nack()
    assert q.describe_group("t", "g").dead == 1
    clock.advance(3600)
    assert len(q.claim("t", group="g")) == 0


def test_a_chosen_delay_does_not_add_attempts(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, sharp(1, max_attempts=3))
    q.publish("t", b"x")
    for expected in (1, 2, 3):
        (delivery,) = q.claim("t", group="g")
        assert delivery.attempt == expected
        delivery.nack(delay=0)
    assert q.describe_group("t", "g").dead == 1


# Burial


def test_a_dead_letter_tells_the_message_and_its_history(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, sharp(5, max_attempts=3))
    q.publish("t", duly.Message(b"x", id="order-7", key="k", headers={"h": "v"}))
    began = clock.now_ms()
    for n, consumer in enumerate(("ann", "bob", "eve")):
        q.claim("t", group="g", consumer=consumer).nack(reason=f"why {n}")
        clock.advance(5)
    (letter,) = q.dead("t", group="g")
    assert (letter.id, letter.payload, letter.attempts) == ("order-7", b"x", 3)
    assert (letter.message.key, letter.message.headers) == ("k", {"h": "v"})
    assert (letter.message.partition, letter.message.offset) == (0, 0)
    assert letter.reason == "why 2"
    assert letter.buried_at == datetime.fromtimestamp((began + 10_000) / 1000, UTC)
    assert letter.history == tuple(
        duly.Failure(n + 1, began + n * 5000, "nack", f"why {n}", consumer)
        for n, consumer in enumerate(("ann", "bob", "eve"))
    )


def test_a_consumer_may_bury_at_once(q: duly.Client, events: list[duly.Event], clock: duly.ManualClock) -> None:
    make(q, sharp(1))
    q.publish("t", [b"a", b"b", b"c"])
    batch = q.claim("t", group="g")
    batch[1].bury("cannot be parsed")
    q.ack([batch[0], batch[2]])
    (letter,) = q.dead("t", group="g")
    assert (letter.payload, letter.attempts, letter.reason) == (b"b", 1, "cannot be parsed")
    (event,) = eventually(lambda: [event for event in events if event.kind == "buried"])
    assert event.alert
    assert (event.topic, event.group, event.offset, event.count) == ("t", "g", 1, 1)


def test_history_keeps_the_last_failures(q: duly.Client) -> None:
    make(q, sharp(0, max_attempts=40))
    q.publish("t", b"x")
    for n in range(40):
        q.claim("t", group="g").nack(reason=str(n))
    (letter,) = q.dead("t", group="g")
    assert [failure.reason for failure in letter.history] == [str(n) for n in range(24, 40)]
    assert letter.attempts == 40


def test_a_very_long_reason_is_cut(q: duly.Client) -> None:
    make(q, sharp(0, max_attempts=1))
    q.publish("t", b"x")
    q.claim("t", group="g").nack(reason="x" * 100_000)
    (letter,) = q.dead("t", group="g")
    assert len(letter.history[0].reason) == 1000
    assert len(letter.reason) <= 1000


@pytest.mark.parametrize("who", ["topic", "group"])
def test_without_dead_letters_a_failed_message_is_dropped(
    q: duly.Client, who: str, events: list[duly.Event], clock: duly.ManualClock
) -> None:
    q.create_topic("t", kind="log", retry=sharp(0, max_attempts=1), dead_letters=who == "group")
    q.create_group("t", "g", dead_letters=None if who == "topic" else False)
    q.publish("t", b"x")
    q.claim("t", group="g").nack()
    clock.advance(3600)
    assert list(q.dead("t", group="g")) == []
    assert len(q.claim("t", group="g")) == 0
    assert q.describe_group("t", "g").pending == 0
    assert eventually(lambda: [event for event in events if event.kind == "buried"])


def test_dead_letters_are_listed_oldest_offset_first_in_pages(q: duly.Client) -> None:
    make(q, sharp(1), partitions=2)
    q.publish("t", [duly.Message(b"%d" % n, partition=n % 2) for n in range(300)])
    while batch := q.claim("t", group="g", max_messages=300):
        q.bury(batch)
    places = [(letter.message.partition, letter.message.offset) for letter in q.dead("t", group="g")]
    assert places == [(partition, offset) for partition in range(2) for offset in range(150)]
    assert [letter.message.offset for letter in q.dead("t", group="g", limit=3)] == [0, 1, 2]
    later = q.dead("t", group="g", after=(0, 148), limit=2)
    assert [(letter.message.partition, letter.message.offset) for letter in later] == [(0, 149), (1, 0)]


def test_dead_letters_survive_the_client(q: duly.Client, reopen: Callable[[], duly.Client]) -> None:
    make(q, sharp(1))
    bury_some(q, 3)
    before = list(q.dead("t", group="g"))
    q.close()
    assert list(reopen().dead("t", group="g")) == before


def test_dead_letters_are_purged(q: duly.Client) -> None:
    make(q, sharp(1))
    bury_some(q, 3)
    assert q.purge("t", group="g", dead=True) == 3
    assert list(q.dead("t", group="g")) == []
    assert q.redrive("t", group="g") == 0
    assert q.describe_group("t", "g").dead == 0


# Redrive


def test_redrive_sends_all_back_with_fresh_attempts(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, sharp(1, max_attempts=2))
    q.publish("t", [b"a", b"b"])
    for _ in range(2):
        q.claim("t", group="g").nack()
        clock.advance(1)
    assert q.redrive("t", group="g") == 2
    assert list(q.dead("t", group="g")) == []
    back = q.claim("t", group="g")
    assert sorted((d.payload, d.attempt) for d in back) == [(b"a", 1), (b"b", 1)]
    back.nack()
    assert q.describe_group("t", "g").dead == 0
    clock.advance(1)
    q.claim("t", group="g").nack()
    assert q.describe_group("t", "g").dead == 2


def test_redrive_sends_some_back_by_id(q: duly.Client) -> None:
    make(q, sharp(1))
    ids = bury_some(q, 5)
    assert q.redrive("t", group="g", ids=[ids[1], ids[3], "unknown"]) == 2
    assert sorted(q.claim("t", group="g").payloads) == [b"1", b"3"]
    assert [letter.id for letter in q.dead("t", group="g")] == [ids[0], ids[2], ids[4]]


def test_redrive_sends_no_more_back_than_the_limit(q: duly.Client) -> None:
    make(q, sharp(1))
    bury_some(q, 5)
    assert q.redrive("t", group="g", limit=2) == 2
    assert sorted(q.claim("t", group="g").payloads) == [b"0", b"1"]
    assert q.describe_group("t", "g").dead == 3


def test_redrive_sends_back_so_many_a_second(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, sharp(1), lease=3600)
    bury_some(q, 10)
    assert q.redrive("t", group="g", rate=2) == 10
    came: list[int] = []
    for _ in range(10):
        came.append(len(q.claim("t", group="g")))
        clock.advance(0.5)
    assert came == [1] * 10


def test_a_redrive_at_a_rate_is_not_held_up_by_anything_running(
    q: duly.Client, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    make(q, sharp(1), lease=3600)
    bury_some(q, 4)
    q.redrive("t", group="g", rate=1)
    q.close()
    clock.advance(2)
    assert len(reopen().claim("t", group="g")) == 3


@pytest.mark.parametrize("rate", [0, -1, float("nan"), "fast"])
def test_a_bad_rate_is_refused_and_sends_nothing_back(q: duly.Client, rate: object) -> None:
    make(q, sharp(1))
    bury_some(q, 2)
    with pytest.raises(duly.InvalidArgument):
        q.redrive("t", group="g", rate=rate)  # type: ignore[arg-type]
    with pytest.raises(duly.InvalidArgument):
        q.redrive("t", group="g", ids="one-id")
    assert q.describe_group("t", "g").dead == 2


def test_redrive_goes_to_its_own_group_alone(q: duly.Client) -> None:
    make(q, sharp(1))
    q.create_group("t", "other")
    bury_some(q, 2)
    q.claim("t", group="other").ack()
    q.redrive("t", group="g")
    assert len(q.claim("t", group="other")) == 0
    assert len(q.claim("t", group="g")) == 2


def test_history_goes_on_after_a_redrive(q: duly.Client) -> None:
    make(q, sharp(0, max_attempts=1))
    q.publish("t", b"x")
    q.claim("t", group="g").nack(reason="first life")
    q.redrive("t", group="g")
    q.claim("t", group="g").nack(reason="second life")
    (letter,) = q.dead("t", group="g")
    assert [failure.reason for failure in letter.history] == ["first life", "second life"]
