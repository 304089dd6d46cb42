"""Groups: where they start, what they say of themselves, and that none disturbs another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import pytest

import duly
import duly.engine.claim
from duly.limits import LIMITS

from .conftest import sharp
from .patience import eventually


def at(clock: duly.ManualClock) -> datetime:
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC)


def claimed(q: duly.Client, group: str, topic: str = "orders") -> list[bytes]:
    return q.claim(topic, group=group, max_messages=1000).payloads


# Where a group starts


def test_a_group_starts_at_the_earliest_message_by_default(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"a", b"b"])
    q.create_group(orders, "late")
    assert claimed(q, "late") == [b"a", b"b"]


def test_a_group_may_start_at_the_latest(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"a", b"b"])
    q.create_group(orders, "late", start="latest")
    q.publish(orders, b"c")
    assert claimed(q, "late") == [b"c"]


def test_a_group_may_start_at_an_offset(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"a", b"b", b"c"])
    q.create_group(orders, "late", start=1)
    assert claimed(q, "late") == [b"b", b"c"]


def test_a_group_may_start_at_offsets_by_partition(q: duly.Client) -> None:
    q.create_topic("wide", kind="log", partitions=3)
    for partition in range(3):
        q.publish("wide", [duly.Message(b"%d%d" % (partition, n), partition=partition) for n in range(3)])
    q.create_group("wide", "late", start={0: 2, 1: 3})
    assert sorted(claimed(q, "late", "wide")) == [b"02", b"20", b"21", b"22"]


def test_a_group_may_start_at_a_time(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, b"before")
    clock.advance(10)
    q.publish(orders, b"then")
    moment = at(clock)
    clock.advance(10)
    q.publish(orders, b"after")
    q.create_group(orders, "late", start=moment)
    assert claimed(q, "late") == [b"then", b"after"]


@pytest.mark.parametrize("start", [4, {1: 0}, -1, "newest", 1.5, True, {}, {0: "1"}, None])
def test_a_start_that_names_no_place_is_refused(q: duly.Client, orders: str, start: object) -> None:
    q.publish(orders, [b"a", b"b", b"c"])
    with pytest.raises(duly.InvalidArgument):
        q.create_group(orders, "late", start=start)  # type: ignore[arg-type]
    assert q.list_groups(orders) == ["billing"]


def test_a_naive_time_is_refused(q: duly.Client, orders: str) -> None:
    with pytest.raises(duly.InvalidArgument, match="zone"):
        q.create_group(orders, "late", start=datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_start_that_was_truncated_is_offset_truncated(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"a", b"b"])
    q.purge(orders)
    with pytest.raises(duly.OffsetTruncated) as caught:
        q.create_group(orders, "late", start=0)
    assert caught.value.first_offset == 2


# Create, list, update, delete


def test_creating_a_group_twice_is_group_exists(q: duly.Client, orders: str) -> None:
    with pytest.raises(duly.GroupExists):
        q.create_group(orders, "billing")


def test_exist_ok_leaves_an_equal_group_where_it_stands(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"a", b"b"])
    q.claim(orders, group="billing", max_messages=1).ack()
    q.create_group(orders, "billing", start="earliest", exist_ok=True)
    assert claimed(q, "billing") == [b"b"]


def test_exist_ok_with_other_settings_is_group_exists(q: duly.Client, orders: str) -> None:
    with pytest.raises(duly.GroupExists, match="settings"):
        q.create_group(orders, "billing", lease=5, exist_ok=True)
    assert q.describe_group(orders, "billing").settings.lease is None


def test_groups_are_listed_by_name(q: duly.Client, orders: str) -> None:
    q.create_group(orders, "audit")
    assert q.list_groups(orders) == ["audit", "billing"]
    assert q.describe_topic(orders).groups == ("audit", "billing")


def test_a_group_that_does_not_exist_is_group_not_found(q: duly.Client, orders: str) -> None:
    for call in (
        lambda: q.claim(orders, group="none"),
        lambda: q.describe_group(orders, "none"),
        lambda: q.update_group(orders, "none", lease=1),
        lambda: q.delete_group(orders, "none"),
        lambda: q.seek(orders, "none", offset=0),
        lambda: q.pause(orders, group="none"),
        lambda: q.purge(orders, group="none"),
        lambda: q.redrive(orders, group="none"),
        lambda: list(q.dead(orders, group="none")),
    ):
        with pytest.raises(duly.GroupNotFound):
            call()
    assert q.list_groups(orders) == ["billing"]


def test_a_log_is_claimed_through_a_group(q: duly.Client, orders: str) -> None:
    with pytest.raises(duly.InvalidArgument, match="group"):
        q.claim(orders)


def test_a_group_may_have_its_own_lease_and_retries(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.create_group(orders, "quick", lease=5, retry=sharp(1, max_attempts=2))
    q.publish(orders, b"x")
    batch = q.claim(orders, group="quick")
    assert batch.lease_expires_at == at(clock) + timedelta(seconds=5)
    batch.nack()
    clock.advance(1)
    q.claim(orders, group="quick").nack()
    assert q.describe_group(orders, "quick").dead == 1


def test_update_changes_a_group_and_none_takes_the_topics_again(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.publish(orders, [b"a", b"b"])
    q.update_group(orders, "billing", lease=5)
    assert q.describe_group(orders, "billing").settings.lease == 5.0
    batch = q.claim(orders, group="billing", max_messages=1)
    assert batch.lease_expires_at == at(clock) + timedelta(seconds=5)
    q.update_group(orders, "billing", lease=None)
    batch = q.claim(orders, group="billing", max_messages=1)
    assert batch.lease_expires_at == at(clock) + timedelta(seconds=30)


def test_update_refuses_what_a_group_cannot_set(q: duly.Client, orders: str) -> None:
    for change in ({"partitions": 2}, {"lease": 0}, {"retry": 3}, {"dead_letters": 1}):
        with pytest.raises(duly.InvalidArgument):
            q.update_group(orders, "billing", **change)
    assert q.describe_group(orders, "billing").settings == duly.GroupSettings()


def test_a_deleted_group_loses_its_leases_and_leaves_the_log_alone(q: duly.Client, orders: str) -> None:
    q.create_group(orders, "audit")
    q.publish(orders, [b"a", b"b"])
    held = q.claim(orders, group="billing")
    q.delete_group(orders, "billing")
    assert q.list_groups(orders) == ["audit"]
    with pytest.raises(duly.GroupNotFound):
        q.ack(held)
    assert claimed(q, "audit") == [b"a", b"b"]


def test_a_group_made_again_under_the_same_name_starts_anew(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"a", b"b"])
    old = q.claim(orders, group="billing")
    old[0].bury("bad")
    q.delete_group(orders, "billing")
    q.create_group(orders, "billing")
    assert list(q.dead(orders, group="billing")) == []
    assert q.ack(old[1:]).lost == tuple(old[1:])
    again = q.claim(orders, group="billing")
    assert [(d.payload, d.attempt) for d in again] == [(b"a", 1), (b"b", 1)]


# Independence


def test_every_group_gets_its_own_copy_of_everything(q: duly.Client, orders: str) -> None:
    q.create_group(orders, "audit")
    q.publish(orders, [b"a", b"b"])
    q.claim(orders, group="billing").ack()
    assert claimed(q, "audit") == [b"a", b"b"]
    assert claimed(q, "billing") == []


def test_leases_retries_and_dead_letters_are_a_groups_own(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.create_group(orders, "audit")
    q.publish(orders, [b"a", b"b", b"c"])
    one = q.claim(orders, group="billing")
    one[0].ack()
    one[1].nack(delay=5)
    one[2].bury("bad")
    two = q.claim(orders, group="audit")
    assert [(d.payload, d.attempt) for d in two] == [(b"a", 1), (b"b", 1), (b"c", 1)]
    assert q.ack(two).done == 3
    assert list(q.dead(orders, group="audit")) == []
    clock.advance(5)
    assert [(d.payload, d.attempt) for d in q.claim(orders, group="billing")] == [(b"b", 2)]
    assert [letter.payload for letter in q.dead(orders, group="billing")] == [b"c"]


def test_a_delivery_cannot_be_settled_for_another_group(q: duly.Client, orders: str) -> None:
    q.create_group(orders, "audit")
    q.publish(orders, b"a")
    held = q.claim(orders, group="billing")
    held.group = "audit"
    assert q.ack(held).done == 0
    held.group = "billing"
    assert q.describe_group(orders, "billing").leased == 1


# Describe


def offsets(value: int) -> Mapping[int, int]:
    return {0: value}


def test_describe_tells_where_a_group_stands(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [b"%d" % n for n in range(10)])
    batch = q.claim(orders, group="billing", max_messages=6)
    batch[0].ack()
    batch[1].nack(delay=60)
    batch[2].bury("bad")
    group = q.describe_group(orders, "billing")
    assert (group.topic, group.name, group.paused) == (orders, "billing", False)
    assert group.cursors == offsets(6)
    assert group.first_offsets == offsets(0)
    assert group.next_offsets == offsets(10)
    assert (group.lag, group.leased, group.retrying, group.dead) == (4, 3, 1, 1)
    assert group.pending == 4


def test_what_was_settled_is_nowhere_in_the_description(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"a", b"b"])
    q.claim(orders, group="billing").ack()
    group = q.describe_group(orders, "billing")
    assert (group.lag, group.pending, group.dead) == (0, 0, 0)


def test_an_expired_lease_counts_as_due_again_and_not_as_held(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.publish(orders, [b"a", b"b"])
    q.claim(orders, group="billing")
    clock.advance(30)
    group = q.describe_group(orders, "billing")
    assert (group.leased, group.retrying, group.pending) == (0, 2, 2)
    assert [consumer.messages for consumer in group.consumers] == [0]


def test_lag_counts_over_all_partitions(q: duly.Client) -> None:
    q.create_topic("wide", kind="log", partitions=3)
    q.create_group("wide", "g")
    q.publish("wide", [duly.Message(b"", partition=n % 3) for n in range(10)])
    group = q.describe_group("wide", "g")
    assert group.lag == 10
    assert group.next_offsets == {0: 4, 1: 3, 2: 3}


def test_consumers_are_described_with_what_they_hold_and_how_long_they_are_silent(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.publish(orders, [b"%d" % n for n in range(10)])
    q.claim(orders, group="billing", max_messages=3, consumer="ann", lease=1000)
    clock.advance(60)
    q.claim(orders, group="billing", max_messages=2, consumer="bob", lease=1000)
    q.claim(orders, group="billing", max_messages=2, consumer="bob", lease=1000)
    clock.advance(60)
    ann, bob = q.describe_group(orders, "billing").consumers
    assert (ann.name, ann.leases, ann.messages, ann.idle_ms) == ("ann", 1, 3, 120_000)
    assert (bob.name, bob.leases, bob.messages, bob.idle_ms) == ("bob", 2, 4, 60_000)


def test_a_consumer_that_claims_again_is_not_idle(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [b"a", b"b"])
    q.claim(orders, group="billing", max_messages=1)
    clock.advance(300)
    q.claim(orders, group="billing", max_messages=1)
    (consumer,) = q.describe_group(orders, "billing").consumers
    assert consumer.idle_ms == 0


def test_a_topic_has_no_more_consumers_than_it_may(
    q: duly.Client, orders: str, clock: duly.ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = dataclasses.replace(LIMITS, consumers_per_topic_max=2)
    monkeypatch.setattr(duly.engine.claim, "LIMITS", few)
    q.publish(orders, [b"one", b"two"])
    q.create_group(orders, "audit")
    q.claim(orders, group="billing", consumer="ann", max_messages=1)
    q.claim(orders, group="audit", consumer="bob")
    with pytest.raises(duly.LimitExceeded, match="has 2 consumers"):
        q.claim(orders, group="billing", consumer="cyd")
    # Nothing was given to it, and those that are known go on.
    assert [consumer.name for consumer in q.describe_group(orders, "billing").consumers] == ["ann"]
    assert len(q.claim(orders, group="billing", consumer="ann", max_messages=1)) == 1
    # Whoever was not seen for long is forgotten, and gives room.
    clock.advance(timedelta(milliseconds=LIMITS.consumer_forget_ms + 1))
    eventually(lambda: len(q.describe_group(orders, "audit").consumers) == 0)
    q.claim(orders, group="billing", consumer="cyd")


def test_a_consumer_that_asks_in_vain_is_known_too(q: duly.Client, orders: str) -> None:
    q.claim(orders, group="billing", consumer="eve")
    (consumer,) = q.describe_group(orders, "billing").consumers
    assert (consumer.name, consumer.leases, consumer.messages) == ("eve", 0, 0)


def test_groups_and_their_places_survive_the_client(
    q: duly.Client, orders: str, reopen: Callable[[], duly.Client], clock: duly.ManualClock
) -> None:
    q.publish(orders, [b"a", b"b", b"c", b"d"])
    held = q.claim(orders, group="billing", max_messages=3)
    held[0].ack()
    held[1].nack(delay=5)
    held[2].bury("bad")
    before = q.describe_group(orders, "billing")
    q.close()
    other = reopen()
    assert other.describe_group(orders, "billing") == before
    clock.advance(5)
    got = other.claim(orders, group="billing")
    assert sorted((d.payload, d.attempt) for d in got) == [(b"b", 2), (b"d", 1)]
