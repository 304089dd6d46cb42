"""Every state change is recorded, once and in order, with what it is about."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import duly

from .conftest import sharp
from .patience import eventually
from .telling import kinds, only, told

GROUP = {"log": "g", "queue": "queue"}


@pytest.fixture(params=["log", "queue"])
def kind(request: pytest.FixtureRequest) -> str:
    """Both kinds of topic, `t`."""
    return str(request.param)


@pytest.fixture
def group(q: duly.Client, kind: str) -> str:
    """A topic `t` of either kind with six messages m0 to m5 and one group, whose name this is; two attempts."""
    make(q, kind)
    publish(q, 6)
    return GROUP[kind]


def make(q: duly.Client, kind: str, *, attempts: int = 2) -> None:
    q.create_topic("t", kind=kind, lease=30, retry=sharp(10, max_attempts=attempts))
    if kind == "log":
        q.create_group("t", "g")


def publish(q: duly.Client, count: int, first: int = 0) -> None:
    q.publish("t", [duly.Message(b"x", id=f"m{number}") for number in range(first, first + count)])


def claim(q: duly.Client, group: str, most: int = 100) -> duly.Batch:
    return q.claim("t", group=None if group == "queue" else group, max_messages=most)


# Publishing


def test_a_batch_is_one_event_with_its_range_and_its_moment(q: duly.Client, kind: str, clock: duly.ManualClock) -> None:
    make(q, kind)
    publish(q, 3)
    clock.advance(0.5)
    publish(q, 2, first=3)
    first, second = only(q, "published")
    assert (first.tenant, first.topic, first.group, first.partition) == ("default", "t", "", 0)
    assert (list(first.offsets), list(second.offsets)) == ([0, 1, 2], [3, 4])
    assert (first.at, second.at) == (clock.now_ms() - 500, clock.now_ms())
    assert first.when.timestamp() * 1000 == first.at


def test_a_batch_over_several_partitions_is_an_event_in_each(q: duly.Client) -> None:
    q.create_topic("t", kind="log", partitions=3)
    q.publish("t", [duly.Message(b"x", partition=partition) for partition in (2, 0, 2, 2)])
    assert sorted(told(q, "t")) == [("published", "", 0, [0]), ("published", "", 2, [0, 1, 2])]


def test_an_arrow_table_is_recorded_as_any_batch(q: duly.Client, kind: str) -> None:
    make(q, kind)
    q.publish("t", pa.table({"payload": [bytes(10)] * 5000}))
    assert told(q, "t") == [("published", "", 0, list(range(5000)))]


def test_a_repeated_publish_is_not_recorded_again(q: duly.Client, kind: str) -> None:
    make(q, kind)
    for _ in range(2):
        q.publish("t", b"x", publish_id="once")
    assert told(q, "t") == [("published", "", 0, [0])]


def test_an_id_that_is_taken_is_not_recorded_again(q: duly.Client) -> None:
    make(q, "queue")
    publish(q, 2)
    publish(q, 2, first=1)
    assert told(q, "t") == [("published", "", 0, [0, 1]), ("published", "", 0, [2])]


# Claiming


def test_a_claim_of_a_log_is_a_range_with_consumer_and_lease(q: duly.Client) -> None:
    make(q, "log")
    publish(q, 6)
    claim(q, "g", 4)
    (claimed,) = only(q, "claimed")
    assert (claimed.group, claimed.offset, claimed.count, claimed.deltas) == ("g", 0, 4, ())
    assert (claimed.consumer, claimed.lease > 0, claimed.facts) == ("w1", True, {})


def test_a_claim_of_a_queue_that_is_no_range_is_told_by_differences(q: duly.Client) -> None:
    make(q, "queue")
    q.publish("t", [duly.Message(b"x", priority=1 if number % 3 else 9) for number in range(7)])
    claim(q, "queue", 4)
    (claimed,) = only(q, "claimed")
    assert (claimed.offset, claimed.deltas, list(claimed.offsets)) == (1, (1, 2, 1), [1, 2, 4, 5])


def test_the_claim_of_a_retry_tells_which_attempt_it_is(q: duly.Client, group: str, clock: duly.ManualClock) -> None:
    claim(q, group).nack()
    clock.advance(10)
    claim(q, group)
    assert [event.facts for event in only(q, "claimed")] == [{}, {"attempts": 2}]


def test_a_claim_that_finds_nothing_is_not_recorded(q: duly.Client, kind: str) -> None:
    make(q, kind)
    claim(q, GROUP[kind])
    assert told(q, "t") == []


def test_every_group_of_a_log_is_told_apart(q: duly.Client) -> None:
    make(q, "log")
    q.create_group("t", "h")
    publish(q, 2)
    first, second = claim(q, "g"), claim(q, "h")
    second.ack()
    first.ack()
    assert told(q, "t")[1:] == [
        ("claimed", "g", 0, [0, 1]),
        ("claimed", "h", 0, [0, 1]),
        ("acked", "h", 0, [0, 1]),
        ("acked", "g", 0, [0, 1]),
    ]


# Settling


def test_an_ack_of_a_whole_lease_is_one_event_that_names_it(q: duly.Client, group: str) -> None:
    claim(q, group).ack()
    (acked,) = only(q, "acked")
    assert (acked.consumer, acked.count, acked.lease) == ("w1", 6, only(q, "claimed")[0].lease)
    assert told(q, "t")[-1] == ("acked", group, 0, list(range(6)))


def test_acks_of_parts_and_of_single_deliveries_tell_which(q: duly.Client, group: str) -> None:
    batch = claim(q, group)
    q.ack(batch[1:5:2])
    batch[0].ack()
    q.ack(batch)
    assert told(q, "t")[2:] == [
        ("acked", group, 0, [1, 3]),
        ("acked", group, 0, [0]),
        ("acked", group, 0, [2, 4, 5]),
    ]
    assert only(q, "acked")[-1].whole


def test_a_lost_delivery_is_not_recorded_as_acked(q: duly.Client, group: str) -> None:
    batch = claim(q, group)
    batch[0].ack()
    q.release(consumer="w1")
    assert q.ack(batch[:]).lost
    assert told(q, "t")[2:] == [("acked", group, 0, [0]), ("released", group, 0, [1, 2, 3, 4, 5])]


def test_a_nack_has_its_reason(q: duly.Client, group: str) -> None:
    batch = claim(q, group)
    batch[2].nack(reason="no such street")
    batch.nack()
    assert [event.facts for event in only(q, "nacked")] == [{"reason": "no such street"}, {}]
    assert told(q, "t")[2:] == [("nacked", group, 0, [2]), ("nacked", group, 0, [0, 1, 3, 4, 5])]


def test_a_release_is_recorded_by_delivery_by_batch_and_by_consumer(q: duly.Client, group: str) -> None:
    first, second = claim(q, group, 3), claim(q, group, 3)
    first[1].release()
    first.release()
    assert q.release(consumer="w1").done == len(second)
    assert told(q, "t")[3:] == [
        ("released", group, 0, [1]),
        ("released", group, 0, [0, 2]),
        ("released", group, 0, [3, 4, 5]),
    ]
    assert [event.consumer for event in only(q, "released")] == ["w1"] * 3


def test_a_renewal_is_not_recorded_but_a_part_that_gets_a_lease_of_its_own_is(q: duly.Client, group: str) -> None:
    batch = claim(q, group)
    batch.extend(60)
    q.extend(batch[2:4], 90)
    batch[2].ack()
    q.ack(batch)
    assert told(q, "t")[2:] == [
        ("extended", group, 0, [2, 3]),
        ("acked", group, 0, [2]),
        ("acked", group, 0, [0, 1, 4, 5]),
        ("acked", group, 0, [3]),
    ]
    assert only(q, "extended")[0].lease not in {event.lease for event in only(q, "claimed")}


def test_what_a_restarted_consumer_gets_back_is_claimed_under_a_new_lease(q: duly.Client, group: str) -> None:
    claim(q, group)[1].ack()
    (again,) = q.held()
    again.ack()
    assert told(q, "t")[3:] == [("claimed", group, 0, [0, 2, 3, 4, 5]), ("acked", group, 0, [0, 2, 3, 4, 5])]
    first, second = only(q, "claimed")
    assert first.lease != second.lease


# Failing for good


def buried(q: duly.Client) -> list[int]:
    return sorted(offset for event in only(q, "buried") for offset in event.offsets)


def test_a_burial_by_its_consumer_has_reason_and_offsets(q: duly.Client, group: str) -> None:
    q.bury(claim(q, group)[1:4:2], reason="broken")
    assert buried(q) == [1, 3]
    assert {event.facts["reason"] for event in only(q, "buried")} == {"broken"}
    assert "nacked" not in kinds(q)


def test_the_last_attempt_is_recorded_as_nacked_and_then_as_buried(
    q: duly.Client, group: str, clock: duly.ManualClock
) -> None:
    claim(q, group).nack()
    clock.advance(10)
    claim(q, group).nack(reason="again")
    assert buried(q) == list(range(6))
    assert only(q, "buried")[0].facts == {"reason": "again", "attempts": 2}
    last = kinds(q)
    assert last.index("buried") > len(last) - 1 - last[::-1].index("nacked")


def test_a_burial_by_expiry_is_recorded(q: duly.Client, kind: str, clock: duly.ManualClock) -> None:
    make(q, kind)
    publish(q, 1)
    for _ in range(2):
        claim(q, GROUP[kind])
        clock.advance(31)
    assert not claim(q, GROUP[kind])
    assert buried(q) == [0]
    assert only(q, "buried")[0].facts == {"reason": "the lease expired 2 times", "attempts": 2}


def test_a_takeover_is_recorded_with_who_and_before_the_claim(
    q: duly.Client, group: str, clock: duly.ManualClock
) -> None:
    claim(q, group)[0].ack()
    clock.advance(31)
    q.claim("t", group=None if group == "queue" else group, max_messages=100, consumer="w2")
    assert told(q, "t")[3:] == [("lease_taken_over", group, 0, [1, 2, 3, 4, 5]), ("claimed", group, 0, [1, 2, 3])]
    assert only(q, "lease_taken_over")[0].facts == {"from": "w1", "to": "w2", "attempts": 1}


def test_messages_that_expire_are_told_by_their_offsets(q: duly.Client, kind: str, clock: duly.ManualClock) -> None:
    make(q, kind)
    q.publish("t", [duly.Message(b"x", ttl=5 if number % 2 else None) for number in range(6)])
    clock.advance(6)
    claim(q, GROUP[kind])
    expired = [offset for event in only(q, "ttl_expired") for offset in event.offsets]
    assert sorted(expired) == [1, 3, 5]
    assert told(q, "t")[-1] == ("claimed", GROUP[kind], 0, [0, 2, 4])


def test_retries_that_expire_are_told_by_their_offsets(q: duly.Client, kind: str, clock: duly.ManualClock) -> None:
    make(q, kind)
    q.publish("t", [duly.Message(b"x", ttl=5 if number % 2 else None) for number in range(6)])
    claim(q, GROUP[kind]).nack()
    clock.advance(10)
    claim(q, GROUP[kind])
    assert sorted(offset for event in only(q, "ttl_expired") for offset in event.offsets) == [1, 3, 5]


def test_what_is_nacked_past_its_expiry_is_nacked_and_then_expired(
    q: duly.Client, kind: str, clock: duly.ManualClock
) -> None:
    make(q, kind)
    q.publish("t", [duly.Message(b"x", ttl=5), duly.Message(b"y")])
    batch = claim(q, GROUP[kind])
    clock.advance(6)
    batch.nack()
    assert told(q, "t")[2:] == [("nacked", GROUP[kind], 0, [0, 1]), ("ttl_expired", GROUP[kind], 0, [0])]


def test_a_redrive_tells_which_and_a_purge_of_dead_letters_how_many(q: duly.Client, group: str) -> None:
    q.bury(claim(q, group))
    assert q.redrive("t", group=group, ids=["m1", "m4"]) == 2
    assert told(q, "t")[-1] == ("redriven", group, 0, [1, 4])
    assert q.purge("t", group=group, dead=True) == 4
    (purged,) = only(q, "dead_purged")
    assert (purged.group, purged.facts) == (group, {"messages": 4})


# A queue's messages by id


def test_moved_and_cancelled_tell_which_and_only_what_was(q: duly.Client) -> None:
    make(q, "queue")
    publish(q, 6)
    claim(q, "queue", 1)
    q.move("t", ["m0", "m2", "m4", "nobody"], due=60)
    q.cancel("t", ["m0", "m4", "m5"])
    assert told(q, "t")[2:] == [("moved", "", 0, [2, 4]), ("cancelled", "", 0, [4, 5])]


@pytest.mark.parametrize("verdict", ["nack", "release"])
def test_what_is_cancelled_under_a_lease_is_recorded_when_the_lease_gives_it_up(q: duly.Client, verdict: str) -> None:
    make(q, "queue")
    publish(q, 3)
    batch = claim(q, "queue")
    assert q.cancel("t", ["m1"]) == {"m1": "leased"}
    assert "cancelled" not in kinds(q)
    getattr(q, verdict)(batch)
    assert ("cancelled", "queue", 0, [1]) in told(q, "t")


def test_what_is_cancelled_under_a_lease_is_recorded_when_the_lease_runs_out(
    q: duly.Client, clock: duly.ManualClock
) -> None:
    make(q, "queue")
    publish(q, 3)
    claim(q, "queue")
    q.cancel("t", ["m1"])
    clock.advance(31)
    claim(q, "queue")
    assert told(q, "t")[2:4] == [("lease_taken_over", "queue", 0, [0, 1, 2]), ("cancelled", "queue", 0, [1])]


# Topics and groups


def test_topics_and_groups_are_recorded_from_their_making_to_their_end(q: duly.Client) -> None:
    q.create_topic("t", kind="log")
    q.create_topic("t", kind="log", exist_ok=True)
    q.create_group("t", "g")
    q.create_group("t", "g", exist_ok=True)
    q.update_topic("t", lease=60, ttl=5)
    q.update_group("t", "g", lease=10)
    q.pause("t")
    q.pause("t")
    q.pause("t", group="g")
    q.resume("t")
    q.resume("t", group="g")
    q.delete_group("t", "g")
    q.delete_topic("t")
    assert [(event.kind, event.group, event.facts) for event in q.events(topic="t")] == [
        ("topic_created", "", {"kind": "log"}),
        ("group_created", "g", {}),
        ("topic_updated", "", {"changes": ["lease", "ttl"]}),
        ("group_updated", "g", {"changes": ["lease"]}),
        ("paused", "", {}),
        ("paused", "g", {}),
        ("resumed", "", {}),
        ("resumed", "g", {}),
        ("group_deleted", "g", {}),
        ("topic_deleted", "", {}),
    ]


def test_a_seek_is_recorded_by_partition(q: duly.Client) -> None:
    q.create_topic("t", kind="log", partitions=2)
    q.create_group("t", "g")
    q.publish("t", [duly.Message(b"x", partition=number % 2) for number in range(6)])
    q.seek("t", "g", offset={1: 2})
    assert [(e.group, e.partition, e.offset) for e in only(q, "sought")] == [("g", 1, 2)]


def test_a_purge_of_a_topic_tells_the_range(q: duly.Client, group: str) -> None:
    q.purge("t")
    assert told(q, "t")[-1] == ("purged", "", 0, list(range(6)))


def test_a_purge_of_a_group_tells_what_it_had_begun_and_what_it_had_not(q: duly.Client) -> None:
    make(q, "log")
    publish(q, 6)
    batch = claim(q, "g", 4)
    batch[0].ack()
    batch[2].nack()
    assert q.purge("t", group="g") == 5
    purged = [event for event in only(q, "purged") if event.group == "g"]
    assert sorted(offset for event in purged for offset in event.offsets) == [1, 2, 3, 4, 5]


def test_truncation_of_a_log_tells_the_range(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("t", kind="log", retention=duly.Retention(age=60))
    q.publish("t", [b"x"] * 4)
    clock.advance(61)
    eventually(lambda: only(q, "truncated"))
    assert told(q, "t")[-1] == ("truncated", "", 0, [0, 1, 2, 3])


# What is asked for


def test_one_topic_alone(q: duly.Client) -> None:
    for name in ("a", "b"):
        q.create_topic(name, kind="queue")
        q.publish(name, b"x")
    assert {event.topic for event in q.events(topic="a")} == {"a"}
    assert kinds(q, topic="b") == ["topic_created", "published"]
    assert len(kinds(q)) == 4
    assert kinds(q, topic="never") == []


def test_since_a_moment_that_moment_included(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, "queue")
    for number in range(5):
        clock.advance(10)
        publish(q, 1, first=number)
    since = only(q, "published")[2].when
    eventually(lambda: q.describe_topic("$events").messages)
    assert [event.offset for event in only(q, "published", since=since)] == [2, 3, 4]


def test_the_history_of_a_message_needs_its_topic(q: duly.Client) -> None:
    with pytest.raises(duly.InvalidArgument):
        list(q.events(message="m1"))
    with pytest.raises(duly.TopicNotFound):
        list(q.events(topic="t", message="m1"))


def test_another_tenant_sees_nothing_of_it(q: duly.Client, reopen: Callable[..., duly.Client]) -> None:
    other = reopen(tenant="other")
    make(q, "queue")
    publish(q, 3)
    assert kinds(other) == []
    other.create_topic("mine", kind="queue")
    assert kinds(other) == ["topic_created"]
    assert {event.topic for event in q.events()} == {"t"}
    assert {event.tenant for event in other.events()} == {"other"}


# What is not stored did not happen


def test_a_refused_command_leaves_no_event(q: duly.Client) -> None:
    make(q, "queue")
    publish(q, 1)
    before = kinds(q)
    for refused in (
        lambda: q.publish("t", [duly.Message(b"x"), duly.Message(b"x", partition=1)]),
        lambda: q.publish("t", [b"x", bytes(2_000_000)]),
        lambda: q.create_topic("t", kind="log"),
        lambda: q.delete_topic("t"),
        lambda: q.update_topic("t", lease=5, version=99),
    ):
        with pytest.raises(duly.Error):
            refused()
    assert kinds(q) == before


@pytest.mark.embedded
@pytest.mark.sqlite
def test_what_a_transaction_rolls_back_leaves_no_event(q: duly.Client, reopen: Callable[..., duly.Client]) -> None:
    make(q, "queue")
    publish(q, 3)
    batch = claim(q, "queue")
    before = kinds(q)

    def work() -> None:
        with q.transaction() as tx:
            q.publish("t", b"x", tx=tx)
            q.ack(batch, tx=tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert kinds(q) == before


@pytest.mark.embedded
@pytest.mark.sqlite
def test_what_a_transaction_commits_is_recorded_in_its_order(
    q: duly.Client, reopen: Callable[..., duly.Client]
) -> None:
    make(q, "queue")
    publish(q, 3)
    batch = claim(q, "queue")
    with q.transaction() as tx:
        q.publish("t", b"x", tx=tx)
        q.ack(batch, tx=tx)
        q.publish("t", b"x", tx=tx)
    assert told(q, "t")[2:] == [
        ("published", "", 0, [3]),
        ("acked", "queue", 0, [0, 1, 2]),
        ("published", "", 0, [4]),
    ]


@pytest.mark.embedded
@pytest.mark.sqlite
def test_a_command_refused_inside_a_transaction_leaves_the_events_of_the_others(
    q: duly.Client, reopen: Callable[..., duly.Client]
) -> None:
    make(q, "queue")
    with q.transaction() as tx:
        q.publish("t", b"x", tx=tx)
        with pytest.raises(duly.Error):
            q.publish("t", [b"x", bytes(2_000_000)], tx=tx)
        q.publish("t", b"x", tx=tx)
    assert told(q, "t") == [("published", "", 0, [0]), ("published", "", 0, [1])]
