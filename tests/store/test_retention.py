"""Retention: what is dropped and when, what holds it back, and what outlives it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import duly

from .conftest import sharp
from .patience import eventually

# What is sealed is compressed before: it has other sizes.
pytestmark = pytest.mark.plain

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
_numbers = itertools.count()


def log(q: duly.Client, retention: duly.Retention | None, *groups: str, **settings: Any) -> None:
    """A log `t` with groups that start at its beginning."""
    q.create_topic("t", kind="log", retention=retention, retry=sharp(1, max_attempts=3), **settings)
    for group in groups:
        q.create_group("t", group)


def blocks(q: duly.Client, clock: duly.ManualClock, count: int, *, each: int = 10, apart: timedelta = HOUR) -> None:
    """Publishes blocks of `each` messages, some time apart; the clock ends at the last one."""
    for n in range(count):
        if n:
            clock.advance(apart)
        q.publish("t", [bytes(1000)] * each)


def first(q: duly.Client, partition: int = 0) -> int:
    return q.describe_topic("t").partitions[partition].first_offset


def truncated_to(q: duly.Client, offset: int) -> None:
    eventually(lambda: first(q) >= offset)
    assert first(q) == offset


def settled_down(q: duly.Client, clock: duly.ManualClock) -> None:
    """Returns when the caretaker has done every chore that was due: it does them in the order of their time."""
    canary = f"canary-{next(_numbers)}"
    q.create_topic(canary, kind="log", retention=duly.Retention())
    q.publish(canary, b"x")
    clock.advance(0.005)
    q.update_topic(canary, retention=duly.Retention(age=0.001))
    eventually(lambda: q.describe_topic(canary).messages == 0)


# By age


def test_blocks_older_than_the_age_are_dropped_and_no_others(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(age=2 * HOUR))
    blocks(q, clock, 5)
    clock.advance(2 * MINUTE)
    truncated_to(q, 30)
    clock.advance(HOUR - 3 * MINUTE)
    settled_down(q, clock)
    assert first(q) == 30
    clock.advance(3 * MINUTE)
    truncated_to(q, 40)
    clock.advance(10 * HOUR)
    truncated_to(q, 50)
    assert q.describe_topic("t").bytes == 0


def test_a_log_keeps_a_week_by_default(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, None)
    blocks(q, clock, 1)
    clock.advance(timedelta(days=7) - timedelta(seconds=1))
    settled_down(q, clock)
    assert first(q) == 0
    clock.advance(2 * MINUTE)
    truncated_to(q, 10)


def test_a_log_without_bounds_keeps_everything(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention())
    blocks(q, clock, 3)
    clock.advance(timedelta(days=10_000))
    settled_down(q, clock)
    assert first(q) == 0


def test_offsets_go_on_and_readers_are_told(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(age=HOUR))
    blocks(q, clock, 3)
    clock.advance(2 * MINUTE)
    truncated_to(q, 20)
    with pytest.raises(duly.OffsetTruncated) as caught:
        q.read("t", offset=0)
    assert caught.value.first_offset == 20
    assert [m.offset for m in q.read("t", offset=20)] == list(range(20, 30))
    assert q.publish("t", b"next").positions == [(0, 30)]


def test_an_empty_log_goes_on_where_it_ended(
    q: duly.Client, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    log(q, duly.Retention(age=HOUR))
    blocks(q, clock, 1)
    clock.advance(2 * HOUR)
    truncated_to(q, 10)
    q.close()
    other = reopen()
    assert other.publish("t", b"next").positions == [(0, 10)]


def test_retention_catches_up_when_the_store_is_opened_again(
    q: duly.Client, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    log(q, duly.Retention(age=HOUR))
    blocks(q, clock, 1)
    q.close()
    clock.advance(2 * HOUR)
    truncated_to(reopen(), 10)


def test_a_changed_retention_takes_effect_on_what_is_there(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention())
    blocks(q, clock, 5)
    q.update_topic("t", retention=duly.Retention(age=2.5 * 3600))
    truncated_to(q, 20)


def test_partitions_are_truncated_each_by_itself(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(age=HOUR), partitions=2)
    q.publish("t", [duly.Message(b"", partition=0)] * 5)
    clock.advance(HOUR)
    q.publish("t", [duly.Message(b"", partition=1)] * 5)
    clock.advance(MINUTE)
    eventually(lambda: first(q, 0) == 5)
    settled_down(q, clock)
    assert first(q, 1) == 0


# By bytes


def test_a_log_is_kept_to_its_bytes_newest_last(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(bytes=35_000))
    blocks(q, clock, 10, apart=MINUTE)
    clock.advance(MINUTE)
    truncated_to(q, 70)
    assert 10_000 < q.describe_topic("t").bytes <= 35_000


def test_the_newest_block_may_go_when_it_alone_is_too_big(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(bytes=5000))
    blocks(q, clock, 2, apart=MINUTE)
    clock.advance(MINUTE)
    eventually(lambda: first(q) >= 10)
    assert q.describe_topic("t").bytes <= 15_000


def test_age_and_bytes_bound_a_log_together(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(age=10 * HOUR, bytes=35_000))
    blocks(q, clock, 10, apart=MINUTE)
    clock.advance(MINUTE)
    truncated_to(q, 70)
    clock.advance(11 * HOUR)
    truncated_to(q, 100)


# When settled


def test_what_every_group_has_settled_is_dropped(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(settled=True), "a", "b")
    blocks(q, clock, 3, apart=MINUTE)
    q.claim("t", group="a", max_messages=30).ack()
    q.claim("t", group="b", max_messages=15).ack()
    clock.advance(MINUTE)
    truncated_to(q, 10)
    q.claim("t", group="b", max_messages=5).ack()
    clock.advance(MINUTE)
    truncated_to(q, 20)
    q.claim("t", group="b", max_messages=10).ack()
    clock.advance(MINUTE)
    truncated_to(q, 30)


@pytest.mark.parametrize("left", ["leased", "retrying"])
def test_what_is_leased_or_retrying_is_not_lost_when_all_around_it_is_settled(
    q: duly.Client, clock: duly.ManualClock, left: str
) -> None:
    log(q, duly.Retention(settled=True), "a")
    q.publish("t", [b"%d" % n for n in range(30)])
    batch = q.claim("t", group="a", lease=86_400)
    q.ack([d for d in batch if d.offset != 12])
    if left == "retrying":
        batch[12].nack(delay=3600)
    for _ in range(5):
        clock.advance(MINUTE)
    settled_down(q, clock)
    if left == "leased":
        batch[12].nack(delay=0)
    else:
        clock.advance(HOUR)
    (again,) = q.claim("t", group="a")
    assert (again.offset, again.payload, again.attempt) == (12, b"12", 2)
    again.ack()
    clock.advance(5 * MINUTE)
    truncated_to(q, 30)


def test_without_a_group_nothing_is_settled(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(settled=True))
    blocks(q, clock, 2)
    clock.advance(timedelta(days=100))
    settled_down(q, clock)
    assert first(q) == 0


# What a group still needs


@pytest.mark.parametrize("bound", [duly.Retention(age=HOUR), duly.Retention(bytes=5000)], ids=["age", "bytes"])
def test_nothing_is_dropped_that_a_group_still_needs(
    q: duly.Client, clock: duly.ManualClock, bound: duly.Retention
) -> None:
    log(q, bound, "slow", "quick")
    blocks(q, clock, 3)
    q.claim("t", group="quick", max_messages=30).ack()
    q.claim("t", group="slow", max_messages=10).ack()
    clock.advance(timedelta(days=30))
    truncated_to(q, 10)
    settled_down(q, clock)
    assert q.describe_group("t", "slow").lag == 20
    assert [d.offset for d in q.claim("t", group="slow", max_messages=100)] == list(range(10, 30))


def test_a_group_that_pins_the_log_past_its_retention_is_an_alert(
    q: duly.Client, clock: duly.ManualClock, events: list[duly.Event]
) -> None:
    log(q, duly.Retention(age=HOUR), "slow")
    blocks(q, clock, 2, apart=MINUTE)
    q.claim("t", group="slow", max_messages=4).ack()
    clock.advance(2 * HOUR)
    pins = eventually(lambda: [event for event in events if event.kind == "group_pins_log"])
    assert pins[-1].alert
    assert (pins[-1].tenant, pins[-1].topic, pins[-1].group, pins[-1].partition) == ("default", "t", "slow", 0)
    assert (pins[-1].offset, pins[-1].count) == (4, 16)


def test_a_group_that_keeps_up_raises_no_alert(
    q: duly.Client, clock: duly.ManualClock, events: list[duly.Event]
) -> None:
    log(q, duly.Retention(age=HOUR, bytes=25_000), "quick")
    for _ in range(6):
        q.publish("t", [bytes(1000)] * 10)
        q.claim("t", group="quick").ack()
        clock.advance(HOUR)
    eventually(lambda: first(q) > 0)
    settled_down(q, clock)
    assert [event for event in events if event.kind == "group_pins_log"] == []


RELIEF: dict[str, Callable[[duly.Client], object]] = {
    "settles": lambda q: q.claim("t", group="slow", max_messages=100).ack(),
    "is deleted": lambda q: q.delete_group("t", "slow"),
    "is purged": lambda q: q.purge("t", group="slow"),
    "seeks ahead": lambda q: q.seek("t", "slow", to="latest"),
}


@pytest.mark.parametrize(
    "bound",
    [duly.Retention(age=HOUR), duly.Retention(bytes=5000), duly.Retention(settled=True)],
    ids=["age", "bytes", "settled"],
)
@pytest.mark.parametrize("relief", RELIEF)
def test_the_log_is_truncated_soon_after_a_pinning_group(
    q: duly.Client, clock: duly.ManualClock, bound: duly.Retention, relief: str
) -> None:
    log(q, bound, "slow", "quick")
    blocks(q, clock, 3)
    q.claim("t", group="quick", max_messages=30).ack()
    clock.advance(timedelta(days=1))
    settled_down(q, clock)
    assert first(q) == 0
    RELIEF[relief](q)
    for _ in range(5):
        clock.advance(MINUTE)
    truncated_to(q, 30)


def test_drop_unsettled_drops_it_and_the_group_goes_on_from_there(
    q: duly.Client, clock: duly.ManualClock, events: list[duly.Event]
) -> None:
    log(q, duly.Retention(age=HOUR, drop_unsettled=True), "slow")
    blocks(q, clock, 3)
    clock.advance(MINUTE)
    truncated_to(q, 20)
    assert q.describe_group("t", "slow").lag == 10
    assert [d.offset for d in q.claim("t", group="slow")] == list(range(20, 30))
    skipped = eventually(lambda: [event for event in events if event.kind == "skipped"])
    assert (skipped[0].group, skipped[0].offset, skipped[0].count) == ("slow", 0, 20)
    assert [event for event in events if event.kind == "group_pins_log"] == []


# What outlives its block


def test_a_message_under_a_lease_outlives_its_block(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(age=HOUR, drop_unsettled=True), "g")
    q.publish("t", [b"a", b"b", b"c"])
    batch = q.claim("t", group="g", lease=86_400)
    clock.advance(2 * HOUR)
    truncated_to(q, 3)
    batch[0].ack()
    batch[1].nack(delay=0, reason="again")
    assert [(d.payload, d.attempt) for d in q.claim("t", group="g")] == [(b"b", 2)]
    clock.advance(86_400)
    back = [d.payload for _ in range(3) for d in q.claim("t", group="g")]
    assert sorted(back) == [b"b", b"c"]


@pytest.mark.parametrize("how", ["leased", "retrying", "dead", "redriven"])
def test_one_old_message_pins_nothing(
    q: duly.Client, clock: duly.ManualClock, how: str, events: list[duly.Event]
) -> None:
    log(q, duly.Retention(age=HOUR), "g")
    q.publish("t", [b"old", *[b"x"] * 9])
    batch = q.claim("t", group="g", lease=86_400)
    q.ack(batch[1:])
    if how == "retrying":
        batch[0].nack(delay=86_400)
    if how in ("dead", "redriven"):
        batch[0].bury("bad")
    if how == "redriven":
        clock.advance(2 * HOUR)
        truncated_to(q, 10)
        q.redrive("t", group="g")
        batch = q.claim("t", group="g", lease=86_400)
    blocks(q, clock, 2, apart=MINUTE)
    q.claim("t", group="g", max_messages=20).ack()
    clock.advance(2 * HOUR)
    truncated_to(q, 30)
    assert [event for event in events if event.kind == "group_pins_log"] == []
    if how == "dead":
        assert q.redrive("t", group="g") == 1
    elif how == "retrying":
        clock.advance(86_400)
    else:
        batch[0].nack(delay=0)
    assert q.claim("t", group="g").payloads == [b"old"]


@pytest.mark.parametrize("end", ["truncated", "purged"])
def test_dead_letters_outlive_the_log(
    q: duly.Client, clock: duly.ManualClock, end: str, reopen: Callable[[], duly.Client]
) -> None:
    log(q, duly.Retention(age=HOUR), "g")
    q.publish("t", [duly.Message(b"%d" % n, id=f"m{n}", key="k", headers={"h": str(n)}) for n in range(100)])
    batch = q.claim("t", group="g")
    q.bury([batch[3], batch[77]], reason="bad")
    batch.ack()
    before = list(q.dead("t", group="g"))
    if end == "purged":
        q.purge("t")
    clock.advance(2 * HOUR)
    truncated_to(q, 100)
    settled_down(q, clock)
    assert list(q.dead("t", group="g")) == before
    q.close()
    other = reopen()
    assert list(other.dead("t", group="g")) == before
    assert other.redrive("t", group="g", ids=["m77"]) == 1
    (back,) = other.claim("t", group="g")
    assert (back.payload, back.id, back.key, back.headers) == (b"77", "m77", "k", {"h": "77"})
    assert (back.offset, back.attempt) == (77, 1)
    back.nack(delay=0)
    assert [(d.payload, d.attempt) for d in other.claim("t", group="g")] == [(b"77", 2)]


def test_dead_letters_of_one_group_do_not_outlive_their_purge(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(age=HOUR), "a", "b")
    q.publish("t", [b"x"] * 10)
    for group in ("a", "b"):
        q.bury(q.claim("t", group=group))
    clock.advance(2 * HOUR)
    truncated_to(q, 10)
    q.purge("t", group="a", dead=True)
    settled_down(q, clock)
    assert list(q.dead("t", group="a")) == []
    assert [letter.payload for letter in q.dead("t", group="b")] == [b"x"] * 10


# The archive


def test_nothing_is_dropped_before_it_is_archived(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(age=HOUR), archive=True)
    blocks(q, clock, 3)
    clock.advance(timedelta(days=1))
    settled_down(q, clock)
    assert first(q) == 0
    q.archived("t", offset=15)
    truncated_to(q, 10)
    assert q.describe_topic("t").partitions[0].archived_to == 15
    q.archived("t", partition=0, offset=30)
    truncated_to(q, 30)


def test_not_even_drop_unsettled_passes_the_archive(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(age=HOUR, bytes=1, settled=True, drop_unsettled=True), "g", archive=True)
    blocks(q, clock, 3)
    q.claim("t", group="g", max_messages=30).ack()
    q.archived("t", offset=20)
    clock.advance(timedelta(days=1))
    truncated_to(q, 20)
    settled_down(q, clock)
    assert first(q) == 20


def test_the_watermark_of_a_topic_that_is_gone_is_not_that_of_its_successor(q: duly.Client) -> None:
    q.create_topic("t", kind="log", archive=True)
    q.publish("t", [b"x"] * 5)
    read = q.describe_topic("t")
    q.delete_topic("t", force=True)
    q.create_topic("t", kind="log", archive=True)
    q.publish("t", [b"y"] * 5)
    with pytest.raises(duly.StaleVersion, match="made again"):
        q.archived("t", offset=5, of=(read.incarnation, read.partitions[0].id))
    now = q.describe_topic("t")
    with pytest.raises(duly.StaleVersion, match="restored"):
        q.archived("t", offset=5, of=("another", now.partitions[0].id))
    assert q.describe_topic("t").partitions[0].archived_to == 0
    q.archived("t", offset=5, of=(now.incarnation, now.partitions[0].id))
    assert q.describe_topic("t").partitions[0].archived_to == 5


def test_what_is_archived_is_kept_as_long_as_the_retention_says(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(age=10 * HOUR), archive=True)
    blocks(q, clock, 3)
    q.archived("t", offset=30)
    settled_down(q, clock)
    assert first(q) == 0


def test_the_watermark_never_moves_back(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(), archive=True)
    blocks(q, clock, 2)
    q.archived("t", offset=20)
    q.archived("t", offset=5)
    assert q.describe_topic("t").partitions[0].archived_to == 20


@pytest.mark.parametrize("bad", [{"offset": 21}, {"offset": -1}, {"offset": 1, "partition": 1}], ids=str)
def test_the_watermark_names_a_place_in_the_log(q: duly.Client, clock: duly.ManualClock, bad: dict[str, Any]) -> None:
    log(q, duly.Retention(), archive=True)
    blocks(q, clock, 2)
    with pytest.raises(duly.InvalidArgument):
        q.archived("t", **bad)
    assert q.describe_topic("t").partitions[0].archived_to == 0


def test_turning_archiving_off_lets_the_log_go(q: duly.Client, clock: duly.ManualClock) -> None:
    log(q, duly.Retention(age=HOUR), archive=True)
    blocks(q, clock, 3)
    clock.advance(timedelta(days=1))
    settled_down(q, clock)
    q.update_topic("t", archive=False)
    for _ in range(3):
        clock.advance(MINUTE)
    truncated_to(q, 30)
