"""Expired leases: due again by themselves, in halves, until the poison stands alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

import duly

from .conftest import sharp
from .patience import eventually


def crash(q: duly.Client, clock: duly.ManualClock, **options: int) -> list[bytes]:
    """A consumer that claims and is never heard of again; returns what it held."""
    payloads = q.claim("orders", group="billing", **options).payloads  # type: ignore[arg-type]
    clock.advance(30)
    return payloads


def test_an_expired_lease_is_delivered_again_with_the_next_attempt(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.publish(orders, b"x")
    crash(q, clock)
    (again,) = q.claim(orders, group="billing")
    assert (again.payload, again.attempt) == (b"x", 2)


def test_expiry_needs_nobody_awake(
    q: duly.Client, orders: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    q.publish(orders, b"x")
    q.claim(orders, group="billing")
    q.close()
    clock.advance(30)
    assert reopen().claim(orders, group="billing").payloads == [b"x"]


def test_an_expired_batch_comes_back_in_halves(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [b"%d" % n for n in range(8)])
    crash(q, clock)
    first = q.claim(orders, group="billing").payloads
    second = q.claim(orders, group="billing").payloads
    assert (first, second) == ([b"0", b"1", b"2", b"3"], [b"4", b"5", b"6", b"7"])
    assert len(q.claim(orders, group="billing")) == 0


@pytest.mark.parametrize("count", [2, 3, 5, 7, 8, 100])
def test_halving_ends_with_every_message_alone(
    q: duly.Client, orders: str, clock: duly.ManualClock, count: int
) -> None:
    q.update_topic(orders, retry=sharp(1, max_attempts=100))
    q.publish(orders, [b"%d" % n for n in range(count)])
    sizes = [len(crash(q, clock))]
    for _ in range(math.ceil(math.log2(count))):
        widest = 0
        while batch := q.claim(orders, group="billing"):
            widest = max(widest, len(batch))
        sizes.append(widest)
        clock.advance(30)
    assert sizes[0] == count
    assert all(later <= math.ceil(earlier / 2) for earlier, later in pairwise(sizes))
    assert sizes[-1] == 1


def test_what_may_have_killed_a_consumer_is_handed_out_by_itself(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.publish(orders, [b"old"] * 4)
    crash(q, clock)
    q.publish(orders, [b"new"] * 4)
    batches = [set(q.claim(orders, group="billing").payloads) for _ in range(4)]
    assert {frozenset(batch) for batch in batches if batch} == {frozenset({b"old"}), frozenset({b"new"})}


def test_only_what_was_not_settled_comes_back(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [b"a", b"b", b"c", b"d"])
    batch = q.claim(orders, group="billing")
    q.ack([batch[0], batch[2]])
    clock.advance(30)
    back = [d.payload for _ in range(4) for d in q.claim(orders, group="billing")]
    assert back == [b"b", b"d"]


@pytest.mark.parametrize("count", [1, 2, 10, 64, 100])
@pytest.mark.parametrize("where", [0.0, 0.5, 1.0], ids=["first", "middle", "last"])
def test_a_poison_is_buried_alone_and_its_neighbours_are_all_served(
    q: duly.Client, orders: str, clock: duly.ManualClock, count: int, where: float
) -> None:
    poison = b"%d" % round(where * (count - 1))
    q.publish(orders, [b"%d" % n for n in range(count)])
    served: Counter[bytes] = Counter()
    crashes = 0
    while q.describe_group(orders, "billing").pending or q.describe_group(orders, "billing").lag:
        batch = q.claim(orders, group="billing")
        if poison in batch.payloads:
            crashes += 1
            clock.advance(30)
        else:
            served.update(batch.payloads)
            batch.ack()
        assert crashes < 20
    assert served == Counter(b"%d" % n for n in range(count) if b"%d" % n != poison)
    assert [letter.payload for letter in q.dead(orders, group="billing")] == [poison]
    assert crashes <= math.ceil(math.log2(count)) + 3


def test_a_message_that_failed_alone_is_buried_after_its_last_attempt(
    q: duly.Client, orders: str, clock: duly.ManualClock, events: list[duly.Event]
) -> None:
    q.publish(orders, b"poison")
    attempts = []
    for _ in range(3):
        attempts += [d.attempt for d in q.claim(orders, group="billing")]
        clock.advance(30)
    assert attempts == [1, 2, 3]
    assert len(q.claim(orders, group="billing")) == 0
    (letter,) = q.dead(orders, group="billing")
    assert letter.attempts == 3
    assert [failure.what for failure in letter.history] == ["expired"] * 3
    assert [failure.attempt for failure in letter.history] == [1, 2, 3]
    assert eventually(lambda: [event for event in events if event.kind == "buried"])


def test_messages_that_failed_together_are_not_buried_by_expiry(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("orders", kind="log", lease=30, retry=sharp(1, max_attempts=1))
    q.create_group("orders", "billing")
    q.publish("orders", [b"a", b"b"])
    crash(q, clock)
    for expected in (b"a", b"b"):
        assert q.claim("orders", group="billing").payloads == [expected]
    assert q.describe_group("orders", "billing").dead == 0


def test_a_lone_message_that_was_claimed_with_others_has_not_failed_alone(
    q: duly.Client, clock: duly.ManualClock
) -> None:
    q.create_topic("orders", kind="log", lease=30, retry=sharp(1, max_attempts=1))
    q.create_group("orders", "billing")
    q.publish("orders", [b"a", b"b"])
    batch = q.claim("orders", group="billing")
    batch[0].ack()
    clock.advance(30)
    (again,) = q.claim("orders", group="billing")
    assert (again.payload, again.attempt) == (b"b", 2)
    again.ack()


def test_a_suspect_that_is_acked_is_done_like_any_other(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [b"a", b"b"])
    crash(q, clock)
    q.claim(orders, group="billing").ack()
    q.claim(orders, group="billing").ack()
    clock.advance(3600)
    assert len(q.claim(orders, group="billing")) == 0
    assert q.describe_group(orders, "billing").pending == 0


def test_the_half_of_an_expired_batch_that_is_past_its_ttl_does_not_hide_the_other(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.publish(orders, [*(duly.Message(b"stale", ttl=5) for _ in range(20)), duly.Message(b"good")])
    q.claim(orders, group="billing", max_messages=100, lease=10)
    clock.advance(11)
    assert q.claim(orders, group="billing", max_messages=100).payloads == [b"good"]


def test_max_messages_bounds_what_comes_back(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [b"%d" % n for n in range(8)])
    crash(q, clock)
    back: list[bytes] = []
    while batch := q.claim(orders, group="billing", max_messages=1):
        assert len(batch) == 1
        back += batch.payloads
    assert back == [b"%d" % n for n in range(8)]


def test_takeover_of_an_expired_lease_is_an_alert(
    q: duly.Client, orders: str, clock: duly.ManualClock, events: list[duly.Event]
) -> None:
    q.publish(orders, [b"a", b"b"])
    q.claim(orders, group="billing", consumer="lost")
    clock.advance(30)
    q.claim(orders, group="billing", consumer="heir")
    (event,) = eventually(lambda: [event for event in events if event.kind == "lease_taken_over"])
    assert event.alert
    assert (event.tenant, event.topic, event.group) == ("default", orders, "billing")
    assert (event.partition, event.offset, event.count) == (0, 0, 2)
    assert event.at == clock.now_ms()
    assert (event.facts["from"], event.facts["to"]) == ("lost", "heir")


def test_a_renewed_or_settled_lease_raises_no_alert(
    q: duly.Client, orders: str, clock: duly.ManualClock, events: list[duly.Event]
) -> None:
    q.publish(orders, [b"a", b"b"])
    batch = q.claim(orders, group="billing")
    clock.advance(29)
    batch.extend()
    clock.advance(29)
    batch.nack(delay=1)
    clock.advance(1)
    q.claim(orders, group="billing").ack()
    q.publish(orders, b"flush")
    q.claim(orders, group="billing").ack()
    assert [event for event in events if event.alert] == []


def test_a_consumer_that_settles_late_but_before_anyone_took_over_loses_nothing(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    """Whatever the answer, the message is either done or delivered again: never both, never neither."""
    q.publish(orders, b"x")
    batch = q.claim(orders, group="billing")
    clock.advance(31)
    done = q.ack(batch).done
    assert len(q.claim(orders, group="billing")) == 1 - done


def test_nothing_is_due_before_its_time_even_by_a_millisecond(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.publish(orders, b"x")
    q.claim(orders, group="billing", lease=0.1)
    for _ in range(99):
        clock.advance(0.001)
        assert len(q.claim(orders, group="billing")) == 0
    clock.advance(0.001)
    assert len(q.claim(orders, group="billing")) == 1
