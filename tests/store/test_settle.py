"""Settle: ack, nack, release, extend, bury; on a batch, a part of it, one delivery; and fencing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import duly
from duly.engine.verdict import Settle, Token

from .patience import eventually


def after(clock: duly.ManualClock, seconds: float) -> datetime:
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(seconds=seconds)


@pytest.fixture
def held(q: duly.Client, orders: str) -> duly.Batch:
    """Four messages, claimed."""
    q.publish(orders, [b"a", b"b", b"c", b"d"])
    return q.claim(orders, group="billing")


def due_now(q: duly.Client) -> list[tuple[bytes, int]]:
    return [(d.payload, d.attempt) for d in q.claim("orders", group="billing")]


# Ack


def test_what_is_acked_never_comes_back(q: duly.Client, held: duly.Batch, clock: duly.ManualClock) -> None:
    assert q.ack(held) == duly.Settled(4)
    clock.advance(3600)
    assert due_now(q) == []
    assert q.describe_group("orders", "billing").pending == 0


def test_a_part_of_a_batch_is_acked_and_the_rest_is_still_held(
    q: duly.Client, held: duly.Batch, clock: duly.ManualClock
) -> None:
    assert q.ack(held[1:3]).done == 2
    assert [d.settled for d in held] == [False, True, True, False]
    assert q.describe_group("orders", "billing").leased == 2
    assert held.ack().done == 2


def test_one_delivery_is_acked_by_itself(q: duly.Client, held: duly.Batch) -> None:
    held[2].ack()
    assert held[2].settled
    assert q.describe_group("orders", "billing").leased == 3


def test_deliveries_of_several_batches_are_settled_together(q: duly.Client, orders: str) -> None:
    q.create_topic("other", kind="log")
    q.create_group("other", "g")
    q.publish(orders, [b"a", b"b"])
    q.publish("other", b"c")
    mixed = [*q.claim(orders, group="billing", max_messages=1), *q.claim(orders, group="billing")]
    mixed += q.claim("other", group="g")
    assert q.ack(mixed) == duly.Settled(3)
    assert q.describe_group(orders, "billing").pending == 0
    assert q.describe_group("other", "g").pending == 0


def test_a_message_that_expires_under_its_lease_may_still_be_acked(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.publish(orders, duly.Message(b"x", ttl=5))
    (delivery,) = q.claim(orders, group="billing")
    clock.advance(10)
    delivery.ack()
    assert q.describe_group(orders, "billing").pending == 0


def test_settling_what_is_no_delivery_is_refused(q: duly.Client, orders: str) -> None:
    for nonsense in ([b"x"], [None], 7, ["id"]):
        with pytest.raises(duly.InvalidArgument):
            q.ack(nonsense)  # type: ignore[arg-type]
    assert q.ack([]) == duly.Settled(0)


# Nack


def test_a_nack_brings_it_back_after_the_back_off_with_the_next_attempt(
    q: duly.Client, held: duly.Batch, clock: duly.ManualClock
) -> None:
    assert q.nack(held).done == 4
    assert due_now(q) == []
    clock.advance(9.999)
    assert due_now(q) == []
    clock.advance(0.001)
    assert due_now(q) == [(b"a", 2), (b"b", 2), (b"c", 2), (b"d", 2)]


def test_a_nack_may_choose_the_delay(q: duly.Client, held: duly.Batch, clock: duly.ManualClock) -> None:
    held[0].nack(delay=60)
    held[1].nack(delay=timedelta(seconds=61))
    held[2].nack(delay=0)
    held[3].ack()
    for wait, payload in ((0, b"c"), (60, b"a"), (1, b"b")):
        clock.advance(wait)
        batch = q.claim("orders", group="billing")
        assert [(d.payload, d.attempt) for d in batch] == [(payload, 2)]
        batch.ack()


@pytest.mark.parametrize("delay", [-1, 11 * 366 * 86400, float("inf"), "soon", True])
def test_a_bad_delay_is_refused_and_changes_nothing(q: duly.Client, held: duly.Batch, delay: object) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.nack(held, delay=delay)  # type: ignore[arg-type]
    assert q.describe_group("orders", "billing").leased == 4


def test_attempts_are_counted_per_message(q: duly.Client, held: duly.Batch, clock: duly.ManualClock) -> None:
    held[1].nack(delay=0)
    q.ack([held[0], held[2], held[3]])
    (again,) = q.claim("orders", group="billing")
    assert (again.payload, again.attempt) == (b"b", 2)
    q.publish("orders", b"e")
    again.nack(delay=0)
    assert sorted(due_now(q)) == [(b"b", 3), (b"e", 1)]


def test_a_nack_drops_what_expired_under_the_lease(
    q: duly.Client, orders: str, clock: duly.ManualClock, events: list[duly.Event]
) -> None:
    q.publish(orders, [duly.Message(b"gone", ttl=5), duly.Message(b"stays")])
    batch = q.claim(orders, group="billing")
    clock.advance(10)
    assert batch.nack(delay=0).done == 2
    assert q.describe_group(orders, "billing").pending == 1
    assert due_now(q) == [(b"stays", 2)]
    assert [event.count for event in events if event.kind == "ttl_expired"] == [1]


def test_what_expired_under_the_lease_is_not_buried_by_its_last_nack(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.publish(orders, duly.Message(b"gone", ttl=5))
    for _ in range(2):
        q.claim(orders, group="billing").nack(delay=0)
    last = q.claim(orders, group="billing")
    clock.advance(10)
    last.nack()
    assert list(q.dead(orders, group="billing")) == []
    assert q.describe_group(orders, "billing").pending == 0


def test_a_reason_must_be_text(q: duly.Client, held: duly.Batch) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.nack(held, reason=b"bytes")  # type: ignore[arg-type]
    assert q.describe_group("orders", "billing").leased == 4


# Release


def test_a_release_brings_it_back_at_once_and_counts_no_attempt(q: duly.Client, held: duly.Batch) -> None:
    assert q.release(held).done == 4
    assert due_now(q) == [(b"a", 1), (b"b", 1), (b"c", 1), (b"d", 1)]


def test_a_release_of_a_part(q: duly.Client, held: duly.Batch) -> None:
    held[0].release()
    q.release(held[2:])
    assert due_now(q) == [(b"a", 1), (b"c", 1), (b"d", 1)]
    assert not held[1].settled


def test_released_for_ever_is_never_buried(q: duly.Client, orders: str) -> None:
    q.publish(orders, b"x")
    for _ in range(20):
        (delivery,) = q.claim(orders, group="billing")
        assert delivery.attempt == 1
        delivery.release()
    assert q.describe_group(orders, "billing").dead == 0


def test_a_hung_consumers_leases_are_freed_now(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"a", b"b", b"c"])
    hung = q.claim(orders, group="billing", max_messages=2, consumer="hung")
    well = q.claim(orders, group="billing", consumer="well")
    assert q.release(consumer="hung").done == 2
    assert [(d.payload, d.attempt) for d in q.claim(orders, group="billing", consumer="well")] == [
        (b"a", 1),
        (b"b", 1),
    ]
    assert q.ack(hung).done == 0
    assert q.ack(well).done == 1


def test_a_hung_consumer_is_freed_in_every_group_or_in_one(q: duly.Client, orders: str) -> None:
    q.create_group(orders, "audit")
    q.create_topic("other", kind="log")
    q.create_group("other", "billing")
    q.publish(orders, [b"a", b"b"])
    q.publish("other", b"c")
    for topic, group in ((orders, "billing"), (orders, "audit"), ("other", "billing")):
        q.claim(topic, group=group, consumer="hung")
    assert q.release(consumer="hung", topic=orders, group="audit").done == 2
    assert q.release(consumer="hung", topic="other").done == 1
    assert q.release(consumer="hung").done == 2
    assert q.release(consumer="hung").done == 0


def test_release_takes_deliveries_or_a_consumer(q: duly.Client, held: duly.Batch) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.release()
    with pytest.raises(duly.InvalidArgument):
        q.release(held, consumer="w1")
    assert q.describe_group("orders", "billing").leased == 4


# Extend


def test_extend_holds_the_whole_batch_for_longer(q: duly.Client, held: duly.Batch, clock: duly.ManualClock) -> None:
    clock.advance(20)
    assert q.extend(held, 60).done == 4
    assert held.lease_expires_at == held[0].lease_expires_at == after(clock, 60)
    clock.advance(59.999)
    assert due_now(q) == []
    assert held.ack().done == 4


def test_extend_without_a_time_holds_as_long_as_at_first(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, b"x")
    batch = q.claim(orders, group="billing", lease=7)
    clock.advance(5)
    batch.extend()
    assert batch.lease_expires_at == after(clock, 7)


def test_extend_of_a_part_leaves_the_rest_to_expire(q: duly.Client, held: duly.Batch, clock: duly.ManualClock) -> None:
    assert q.extend([held[1], held[3]], 100).done == 2
    assert held[1].lease_expires_at == held[3].lease_expires_at == after(clock, 100)
    assert held[0].lease_expires_at == after(clock, 30)
    clock.advance(30)
    taken = [d.payload for _ in range(2) for d in q.claim("orders", group="billing")]
    assert taken == [b"a", b"c"]
    assert q.ack(held) == duly.Settled(2, (held[0], held[2]))


def test_extend_of_one_delivery(q: duly.Client, held: duly.Batch, clock: duly.ManualClock) -> None:
    held[2].extend(100)
    assert held[2].lease_expires_at == after(clock, 100)
    clock.advance(99)
    held[2].ack()
    clock.advance(3600)
    back = {payload for _ in range(5) for payload, _ in due_now(q)}
    assert back == {b"a", b"b", b"d"}


def test_parts_that_were_extended_apart_are_settled_together(
    q: duly.Client, held: duly.Batch, clock: duly.ManualClock
) -> None:
    held[0].extend(50)
    held[1].extend(60)
    q.extend(held[:2], 70)
    assert held[0].lease_expires_at == held[1].lease_expires_at == after(clock, 70)
    assert q.ack(held).done == 4
    assert q.describe_group("orders", "billing").pending == 0


def test_extending_counts_no_attempt(q: duly.Client, held: duly.Batch) -> None:
    held[0].extend(50)
    held[0].nack(delay=0)
    assert due_now(q) == [(b"a", 2)]


def test_extend_may_shorten(q: duly.Client, held: duly.Batch, clock: duly.ManualClock) -> None:
    held.extend(1)
    clock.advance(1)
    assert len(due_now(q)) > 0


@pytest.mark.parametrize("lease", [0, 0.05, -5, 8 * 86400, "long"])
def test_a_bad_lease_is_refused(q: duly.Client, held: duly.Batch, lease: object) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.extend(held, lease)  # type: ignore[arg-type]


# Fencing


VERBS: dict[str, Callable[[duly.Client, duly.Batch], duly.Settled]] = {
    "ack": lambda q, batch: q.ack(batch),
    "nack": lambda q, batch: q.nack(batch, delay=0),
    "release": lambda q, batch: q.release(batch),
    "extend": lambda q, batch: q.extend(batch, 100),
    "bury": lambda q, batch: q.bury(batch),
    "ack listed": lambda q, batch: q.ack(list(batch)),
    "nack listed": lambda q, batch: q.nack(list(batch), delay=0),
    "release listed": lambda q, batch: q.release(list(batch)),
    "extend listed": lambda q, batch: q.extend(list(batch), 100),
    "bury listed": lambda q, batch: q.bury(list(batch)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_old_lease_is_refused_and_changes_nothing(
    q: duly.Client, orders: str, clock: duly.ManualClock, verb: str
) -> None:
    q.publish(orders, b"a")
    old = q.claim(orders, group="billing", consumer="slow")
    clock.advance(30)
    new = q.claim(orders, group="billing", consumer="quick")
    before = q.describe_group(orders, "billing")
    settled = VERBS[verb](q, old)
    assert settled == duly.Settled(0, (old[0],))
    assert q.describe_group(orders, "billing") == before
    assert q.ack(new).done == 1


ONE: dict[str, Callable[[duly.Delivery], None]] = {
    "ack": lambda d: d.ack(),
    "nack": lambda d: d.nack(),
    "release": lambda d: d.release(),
    "extend": lambda d: d.extend(10),
    "bury": lambda d: d.bury("why"),
}


@pytest.mark.parametrize("verb", ONE)
def test_a_delivery_whose_lease_is_lost_raises_lease_lost(
    q: duly.Client, orders: str, clock: duly.ManualClock, verb: str
) -> None:
    q.publish(orders, b"a")
    (old,) = q.claim(orders, group="billing")
    clock.advance(30)
    (new,) = q.claim(orders, group="billing")
    with pytest.raises(duly.LeaseLost):
        ONE[verb](old)
    assert not old.settled
    new.ack()


def test_fencing_is_answered_per_message(q: duly.Client, held: duly.Batch, clock: duly.ManualClock) -> None:
    q.extend(held[2:], 100)
    clock.advance(30)
    first = q.claim("orders", group="billing")
    assert [d.payload for d in first] == [b"a"]
    assert q.ack(list(held)) == duly.Settled(2, (held[0], held[1]))
    assert [d.settled for d in held] == [False, False, True, True]
    assert held.lost


def test_what_is_settled_once_is_not_settled_again(q: duly.Client, held: duly.Batch) -> None:
    q.nack(held[:1], delay=0)
    assert q.ack(held[:1]).done == 0
    assert due_now(q) == [(b"a", 2)]


def test_the_rest_of_a_batch_settles_after_parts_were_lost(
    q: duly.Client, held: duly.Batch, clock: duly.ManualClock
) -> None:
    held[3].extend(100)
    clock.advance(30)
    q.claim("orders", group="billing")
    settled = held.ack()
    assert settled.done == 1
    assert set(settled.lost) == set(held[:3])
    assert held.ack().done == 0


# The batch as a context


def test_leaving_the_block_acks_what_is_not_settled(q: duly.Client, held: duly.Batch) -> None:
    with held as batch:
        batch[0].nack(delay=0)
        batch[1].bury("bad")
    assert due_now(q) == [(b"a", 2)]
    assert [letter.payload for letter in q.dead("orders", group="billing")] == [b"b"]
    assert q.describe_group("orders", "billing").leased == 1


def test_an_error_in_the_block_nacks_what_is_not_settled_and_goes_on(
    q: duly.Client, held: duly.Batch, clock: duly.ManualClock
) -> None:
    def fail_after_the_first() -> None:
        with held as batch:
            batch[0].ack()
            raise ZeroDivisionError("half way")

    with pytest.raises(ZeroDivisionError, match="half way"):
        fail_after_the_first()
    assert due_now(q) == []
    clock.advance(10)
    back = q.claim("orders", group="billing")
    assert [(d.payload, d.attempt) for d in back] == [(b"b", 2), (b"c", 2), (b"d", 2)]
    back[0].bury("enough")
    (letter,) = q.dead("orders", group="billing")
    assert letter.history[0].reason == "ZeroDivisionError: half way"


def test_a_block_that_settled_everything_does_nothing_more(q: duly.Client, held: duly.Batch) -> None:
    with held as batch:
        batch.release()
    assert due_now(q) == [(b"a", 1), (b"b", 1), (b"c", 1), (b"d", 1)]


def test_a_batch_is_renewed_while_inside_the_block(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [b"a", b"b"])
    with q.claim(orders, group="billing", lease=0.3) as batch:
        for _ in range(4):
            clock.advance(0.2)
            eventually(lambda: batch.lease_expires_at == after(clock, 0.3))
            assert due_now(q) == []
        assert batch[0].lease_expires_at == after(clock, 0.3)
    assert q.describe_group(orders, "billing").pending == 0


def test_what_is_settled_inside_the_block_is_not_renewed(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [b"a", b"b"])
    with q.claim(orders, group="billing", lease=0.3) as batch:
        batch[0].nack(delay=0)
        clock.advance(0.2)
        eventually(lambda: batch.lease_expires_at == after(clock, 0.3))
        assert due_now(q) == [(b"a", 2)]
    assert not batch.lost


# Held


def test_a_restarted_consumer_gets_its_leases_back(
    q: duly.Client, held: duly.Batch, reopen: Callable[..., duly.Client], clock: duly.ManualClock
) -> None:
    held[1].ack()
    clock.advance(10)
    reborn = reopen(consumer="w1")
    (batch,) = reborn.held()
    assert (batch.topic, batch.group) == ("orders", "billing")
    assert [(d.payload, d.attempt) for d in batch] == [(b"a", 1), (b"c", 1), (b"d", 1)]
    assert batch.lease_expires_at == after(clock, 30)
    assert batch.ack().done == 3


def test_held_fences_the_former_self_off(q: duly.Client, held: duly.Batch) -> None:
    (regained,) = q.held(consumer="w1")
    assert q.ack(held) == duly.Settled(0, tuple(held))
    assert q.ack(regained).done == 4


def test_held_gives_nothing_of_others_and_nothing_expired(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [b"a", b"b"])
    q.claim(orders, group="billing", max_messages=1, consumer="ann", lease=10)
    q.claim(orders, group="billing", max_messages=1, consumer="bob", lease=20)
    assert q.held(consumer="eve") == []
    clock.advance(10)
    assert q.held(consumer="ann") == []
    (bobs,) = q.held(consumer="bob")
    assert bobs.payloads == [b"b"]


def test_held_gives_a_batch_a_group(q: duly.Client, orders: str) -> None:
    q.create_group(orders, "audit")
    q.publish(orders, [b"a", b"b"])
    q.claim(orders, group="billing", max_messages=1)
    q.claim(orders, group="billing", max_messages=1)
    q.claim(orders, group="audit")
    assert [(batch.group, batch.payloads) for batch in q.held()] == [
        ("audit", [b"a", b"b"]),
        ("billing", [b"a", b"b"]),
    ]
    assert [batch.group for batch in q.held(topic=orders, group="audit")] == ["audit"]


@pytest.mark.parametrize("verdict", ["ack", "nack", "release", "bury", "extend"])
@pytest.mark.parametrize("indexes", [None, (0,)])
def test_a_token_in_the_name_of_another_group_changes_nothing(
    q: duly.Client, orders: str, verdict: str, indexes: tuple[int, ...] | None
) -> None:
    q.create_group(orders, "audit")
    q.publish(orders, [b"a", b"b"])
    held = q.claim(orders, group="billing")
    (token,) = held.open_tokens()
    asked = Settle("default", held.incarnation, orders, "audit", verdict, (Token(token.lease_id, indexes),), 1000)
    assert q._alive().do(asked, deadline=None).lost == [(token.lease_id, indexes and indexes[0])]
    assert held.ack().done == 2
