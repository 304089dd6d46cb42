"""The history of one message: all that happened to it, and nothing that happened to its neighbours."""

from __future__ import annotations

from datetime import timedelta

import pytest

import duly

from .conftest import sharp
from .telling import history


@pytest.fixture(params=["log", "queue"])
def kind(request: pytest.FixtureRequest) -> str:
    """Both kinds of topic."""
    return str(request.param)


@pytest.fixture
def group(q: duly.Client, kind: str) -> str | None:
    """A topic `t` of either kind with eight messages m0 to m7, and its group; three attempts."""
    q.create_topic("t", kind=kind, lease=30, retry=sharp(10, max_attempts=3))
    if kind == "log":
        q.create_group("t", "g")
    q.publish("t", [duly.Message(b"x", id=f"m{number}") for number in range(8)])
    return "g" if kind == "log" else None


def claim(q: duly.Client, group: str | None, most: int = 100, *, consumer: str | None = None) -> duly.Batch:
    return q.claim("t", group=group, max_messages=most, consumer=consumer)


def test_from_published_to_acked(q: duly.Client, group: str | None) -> None:
    claim(q, group).ack()
    assert history(q, "t", "m3") == ["published", "claimed", "acked"]


def test_an_id_that_nobody_had_has_no_history(q: duly.Client, group: str | None) -> None:
    assert history(q, "t", "nobody") == []


def test_an_id_that_duly_made_has_one(q: duly.Client, kind: str) -> None:
    q.create_topic("t", kind=kind)
    if kind == "log":
        q.create_group("t", "g")
    q.publish("t", [b"x"] * 3)
    batch = claim(q, "g" if kind == "log" else None)
    batch[1].ack()
    assert history(q, "t", batch[1].id) == ["published", "claimed", "acked"]
    assert history(q, "t", batch[2].id) == ["published", "claimed"]


def test_each_verdict_is_in_the_history_of_its_own_messages_alone(q: duly.Client, group: str | None) -> None:
    batch = claim(q, group)
    batch[0].ack()
    batch[1].nack(reason="x")
    batch[2].release()
    batch[3].bury("x")
    q.nack(batch[4:6])
    q.ack(batch)
    ends = [history(q, "t", f"m{number}")[2:] for number in range(8)]
    assert ends == [["acked"], ["nacked"], ["released"], ["buried"], ["nacked"], ["nacked"], ["acked"], ["acked"]]


def test_nacked_claimed_again_and_acked(q: duly.Client, group: str | None, clock: duly.ManualClock) -> None:
    batch = claim(q, group)
    batch[2].nack()
    q.ack(batch)
    clock.advance(10)
    claim(q, group).ack()
    assert history(q, "t", "m2") == ["published", "claimed", "nacked", "claimed", "acked"]
    assert history(q, "t", "m1") == ["published", "claimed", "acked"]


def test_the_last_attempt_has_its_nack_and_its_burial_and_a_redrive_goes_on(
    q: duly.Client, group: str | None, clock: duly.ManualClock
) -> None:
    for _ in range(3):
        claim(q, group).nack()
        clock.advance(10)
    assert q.redrive("t", group=group, ids=["m5"]) == 1
    claim(q, group).ack()
    failed = ["claimed", "nacked"] * 3
    assert history(q, "t", "m5") == ["published", *failed, "buried", "redriven", "claimed", "acked"]
    assert history(q, "t", "m4") == ["published", *failed, "buried"]


def test_halves_after_expiry_are_told_apart(q: duly.Client, group: str | None, clock: duly.ManualClock) -> None:
    claim(q, group)
    clock.advance(31)
    half = claim(q, group, consumer="w2")
    assert len(half) == 4
    inside = {delivery.id for delivery in half}
    half.ack()
    begun = ["published", "claimed", "lease_taken_over"]
    for number in range(8):
        ended = ["claimed", "acked"] if f"m{number}" in inside else []
        assert history(q, "t", f"m{number}") == [*begun, *ended], number


def test_what_was_acked_before_the_lease_ran_out_is_not_taken_over(
    q: duly.Client, group: str | None, clock: duly.ManualClock
) -> None:
    claim(q, group)[2].ack()
    clock.advance(31)
    claim(q, group, consumer="w2")
    assert history(q, "t", "m2") == ["published", "claimed", "acked"]
    assert history(q, "t", "m1") == ["published", "claimed", "lease_taken_over", "claimed"]


def test_a_message_that_kills_its_consumers_is_buried_in_the_end(
    q: duly.Client, group: str | None, clock: duly.ManualClock
) -> None:
    for _ in range(40):
        batch = claim(q, group)
        if not batch and q.describe_topic("t").messages == len(list(q.dead("t", group=group))):
            break
        for delivery in batch:
            if delivery.id != "m6" and not any(other.id == "m6" for other in batch):
                delivery.ack()
        clock.advance(31)
    ended = history(q, "t", "m6")
    assert ended[-1] == "buried"
    assert ended.count("claimed") >= 3
    assert history(q, "t", "m0")[-1] == "acked"


def test_what_a_restarted_consumer_got_back_and_settled(q: duly.Client, group: str | None) -> None:
    claim(q, group)[0].ack()
    (again,) = q.held()
    again[0].nack()
    again.ack()
    assert history(q, "t", "m0") == ["published", "claimed", "acked"]
    assert history(q, "t", "m1") == ["published", "claimed", "claimed", "nacked"]
    assert history(q, "t", "m2") == ["published", "claimed", "claimed", "acked"]


def test_a_part_that_was_extended_ends_by_its_own_lease(q: duly.Client, group: str | None) -> None:
    batch = claim(q, group)
    part = batch[1:4:2]
    q.extend(part, 60)
    rest = [delivery for delivery in batch if delivery not in part]
    q.release(rest)
    q.extend(part[:1], 90)
    q.ack(part)
    assert history(q, "t", "m1") == ["published", "claimed", "extended", "extended", "acked"]
    assert history(q, "t", "m3") == ["published", "claimed", "extended", "acked"]
    assert history(q, "t", "m2") == ["published", "claimed", "released"]


def test_a_lease_that_another_group_holds_ends_for_itself(q: duly.Client) -> None:
    q.create_topic("t", kind="log")
    for name in ("g", "h"):
        q.create_group("t", name)
    q.publish("t", [duly.Message(b"x", id=f"m{number}") for number in range(3)])
    first, second = claim(q, "g"), claim(q, "h")
    first[0].ack()
    second[0].ack()
    second.nack()
    first.ack()
    assert [(event.kind, event.group) for event in q.events(topic="t", message="m1")] == [
        ("published", ""),
        ("claimed", "g"),
        ("claimed", "h"),
        ("nacked", "h"),
        ("acked", "g"),
    ]


def test_moved_and_cancelled_are_part_of_it(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("t", kind="queue", lease=30)
    q.publish("t", [duly.Message(b"x", id=f"m{number}") for number in range(4)])
    q.move("t", ["m1", "m3"], due=60)
    claim(q, None).ack()
    q.move("t", "m3", priority=5)
    clock.advance(60)
    batch = claim(q, None, 1)
    q.cancel("t", ["m1", "m3"])
    batch.nack()
    leased, waiting = ("m1", "m3") if batch[0].id == "m1" else ("m3", "m1")
    assert history(q, "t", leased)[-3:] == ["claimed", "nacked", "cancelled"]
    assert history(q, "t", waiting)[-2:] == ["moved", "cancelled"]
    assert history(q, "t", "m0") == ["published", "claimed", "acked"]


def test_what_was_cancelled_under_a_lease_has_nothing_of_what_the_lease_came_to(q: duly.Client) -> None:
    q.create_topic("t", kind="queue", lease=30)
    q.publish("t", [duly.Message(b"x", id=f"m{number}") for number in range(3)])
    batch = claim(q, None)
    q.cancel("t", "m1")
    next(delivery for delivery in batch if delivery.id == "m1").bury("too late")
    batch.ack()
    assert history(q, "t", "m1") == ["published", "claimed", "cancelled"]
    assert history(q, "t", "m2") == ["published", "claimed", "acked"]


def test_messages_of_another_partition_have_a_history_of_their_own(q: duly.Client) -> None:
    q.create_topic("t", kind="log", partitions=2)
    q.create_group("t", "g")
    q.publish("t", [duly.Message(b"x", id=f"m{number}", partition=number % 2) for number in range(4)])
    for delivery in claim(q, "g"):
        if delivery.partition:
            delivery.ack()
    assert history(q, "t", "m2") == ["published", "claimed"]
    assert history(q, "t", "m3") == ["published", "claimed", "acked"]


def test_since_a_moment_it_still_knows_what_the_message_was_claimed_under(
    q: duly.Client, group: str | None, clock: duly.ManualClock
) -> None:
    batch = claim(q, group)
    batch[0].ack()
    clock.advance(10)
    batch.ack()
    acked = list(q.events(topic="t", message="m1"))[-1]
    assert history(q, "t", "m1", since=acked.when) == ["acked"]
    assert history(q, "t", "m0", since=acked.when) == []
    assert history(q, "t", "m1", since=acked.when + timedelta(seconds=1)) == []


def test_a_topic_that_had_the_name_before_is_not_part_of_it(q: duly.Client, group: str | None, kind: str) -> None:
    claim(q, group).ack()
    q.delete_topic("t", force=True)
    q.create_topic("t", kind=kind)
    q.publish("t", duly.Message(b"x", id="m0"))
    assert history(q, "t", "m0") == ["published"]


def test_an_id_that_is_used_again_has_the_history_of_its_newest_message(q: duly.Client) -> None:
    q.create_topic("t", kind="queue")
    for _ in range(2):
        q.publish("t", [duly.Message(b"x", id="m"), duly.Message(b"y")])
        q.claim("t", max_messages=2).ack()
    (published, _, _) = q.events(topic="t", message="m")
    assert list(published.offsets) == [2, 3]
