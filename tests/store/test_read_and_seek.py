"""Read by offset, find an offset by time, move a group's cursor; never a silent skip."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import duly


def at(clock: duly.ManualClock, seconds: float = 0) -> datetime:
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(seconds=seconds)


@pytest.fixture
def hourly(q: duly.Client, orders: str, clock: duly.ManualClock) -> datetime:
    """Ten messages, one an hour; returns the moment of the first."""
    began = at(clock)
    for n in range(10):
        q.publish(orders, b"%d" % n)
        clock.advance(3600)
    return began


# Read


def test_read_gives_messages_from_an_offset_on(q: duly.Client, hourly: datetime) -> None:
    got = q.read("orders", offset=7)
    assert [(m.partition, m.offset, m.payload) for m in got] == [(0, 7, b"7"), (0, 8, b"8"), (0, 9, b"9")]
    assert got[0].published_at == hourly + timedelta(hours=7)


def test_read_begins_at_the_first_offset_by_default(q: duly.Client, hourly: datetime) -> None:
    assert len(q.read("orders")) == 10


def test_read_takes_no_lease_and_moves_no_cursor(q: duly.Client, hourly: datetime) -> None:
    before = q.describe_group("orders", "billing")
    q.read("orders")
    assert q.describe_group("orders", "billing") == before


@pytest.mark.parametrize("offset", [0, 1, 1023, 1024, 1500, 2999])
@pytest.mark.parametrize("count", [1, 2, 1024, 5000])
def test_read_begins_and_ends_anywhere_in_a_block(q: duly.Client, orders: str, offset: int, count: int) -> None:
    q.publish(orders, [b"%d" % n for n in range(3000)])
    got = q.read(orders, offset=offset, max_messages=count)
    assert [int(m.payload) for m in got] == list(range(3000))[offset : offset + count]


def test_read_gives_no_more_than_max_bytes_but_always_one(q: duly.Client, orders: str) -> None:
    q.publish(orders, [bytes(100)] * 10)
    assert len(q.read(orders, max_bytes=350)) == 3
    assert len(q.read(orders, max_bytes=1)) == 1


def test_read_at_the_end_is_empty_and_beyond_it_is_refused(q: duly.Client, hourly: datetime) -> None:
    assert q.read("orders", offset=10) == []
    with pytest.raises(duly.InvalidArgument):
        q.read("orders", offset=11)


@pytest.mark.parametrize(
    "options",
    [{"offset": -1}, {"partition": 1}, {"partition": -1}, {"max_messages": 0}, {"max_bytes": 0}, {"offset": "0"}],
    ids=str,
)
def test_a_bad_read_is_refused(q: duly.Client, hourly: datetime, options: dict[str, object]) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.read("orders", **options)  # type: ignore[arg-type]


def test_every_reader_sees_the_same_order(q: duly.Client, orders: str, reopen: Callable[[], duly.Client]) -> None:
    other = reopen()
    for n in range(20):
        (q if n % 2 else other).publish(orders, b"%d" % n)
    assert [m.payload for m in q.read(orders)] == [m.payload for m in other.read(orders)]
    assert [m.offset for m in q.read(orders)] == list(range(20))


def test_reading_in_pages_reads_everything_once(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"%d" % n for n in range(2500)])
    found: list[bytes] = []
    while page := q.read(orders, offset=len(found), max_messages=97):
        found += [m.payload for m in page]
    assert found == [b"%d" % n for n in range(2500)]


def test_reading_what_the_log_no_longer_has_is_offset_truncated(q: duly.Client, hourly: datetime) -> None:
    q.purge("orders")
    q.publish("orders", b"after")
    for offset in (0, 9):
        with pytest.raises(duly.OffsetTruncated) as caught:
            q.read("orders", offset=offset)
        assert caught.value.first_offset == 10
    assert [m.payload for m in q.read("orders", offset=10)] == [b"after"]


# Offset by time


def test_offset_at_is_the_first_published_at_or_after_a_moment(q: duly.Client, hourly: datetime) -> None:
    hour = timedelta(hours=1)
    for n in range(10):
        assert q.offset_at("orders", hourly + n * hour) == {0: n}
        assert q.offset_at("orders", hourly + n * hour + timedelta(milliseconds=1)) == {0: n + 1}


def test_offset_at_before_the_log_is_its_beginning_and_after_it_its_end(q: duly.Client, hourly: datetime) -> None:
    assert q.offset_at("orders", hourly - timedelta(days=1)) == {0: 0}
    assert q.offset_at("orders", hourly + timedelta(days=1)) == {0: 10}


def test_offset_at_of_an_empty_log(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    assert q.offset_at(orders, at(clock)) == {0: 0}


def test_offset_at_answers_for_every_partition(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("wide", kind="log", partitions=3)
    q.publish("wide", [duly.Message(b"", partition=p) for p in (0, 0, 1)])
    clock.advance(10)
    q.publish("wide", [duly.Message(b"", partition=p) for p in (0, 2)])
    assert q.offset_at("wide", at(clock)) == {0: 2, 1: 1, 2: 0}


def test_offset_at_tells_messages_of_one_batch_from_those_of_the_next(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.publish(orders, [b""] * 1500)
    clock.advance(1)
    q.publish(orders, [b""] * 1500)
    assert q.offset_at(orders, at(clock)) == {0: 1500}


def test_a_time_without_a_zone_is_refused(q: duly.Client, hourly: datetime) -> None:
    for when in (datetime(2026, 1, 1), 5, "now"):  # noqa: DTZ001
        with pytest.raises(duly.InvalidArgument):
            q.offset_at("orders", when)  # type: ignore[arg-type]


def test_a_time_in_any_zone_names_the_same_moment(q: duly.Client, hourly: datetime) -> None:
    from datetime import timezone

    elsewhere = (hourly + timedelta(hours=4)).astimezone(timezone(timedelta(hours=-7)))
    assert q.offset_at("orders", elsewhere) == {0: 4}


# Seek


def take(q: duly.Client) -> list[bytes]:
    return q.claim("orders", group="billing").payloads


def test_seek_moves_back_and_ahead_by_offset(q: duly.Client, hourly: datetime) -> None:
    q.claim("orders", group="billing").ack()
    assert q.seek("orders", "billing", offset=8) == {0: 8}
    assert take(q) == [b"8", b"9"]
    q.seek("orders", "billing", offset={0: 9})
    assert take(q) == [b"9"]


def test_seek_moves_to_a_time(q: duly.Client, hourly: datetime) -> None:
    assert q.seek("orders", "billing", at=hourly + timedelta(hours=7, minutes=30)) == {0: 8}
    assert take(q) == [b"8", b"9"]


def test_seek_moves_to_either_end(q: duly.Client, hourly: datetime) -> None:
    assert q.seek("orders", "billing", to="latest") == {0: 10}
    assert take(q) == []
    assert q.seek("orders", "billing", to="earliest") == {0: 0}
    assert len(take(q)) == 10


def test_seek_fences_open_leases_off(q: duly.Client, hourly: datetime) -> None:
    held = q.claim("orders", group="billing", max_messages=4)
    held[0].nack(delay=0)
    q.seek("orders", "billing", offset=2)
    assert q.ack(held[1:]).done == 0
    with pytest.raises(duly.LeaseLost):
        held[2].extend(10)
    again = q.claim("orders", group="billing")
    assert [(d.offset, d.attempt) for d in again] == [(n, 1) for n in range(2, 10)]


def test_seek_leaves_other_groups_and_dead_letters_alone(q: duly.Client, hourly: datetime) -> None:
    q.create_group("orders", "audit")
    theirs = q.claim("orders", group="audit")
    q.claim("orders", group="billing", max_messages=1)[0].bury("bad")
    q.seek("orders", "billing", to="latest")
    assert q.ack(theirs).done == 10
    assert [letter.payload for letter in q.dead("orders", group="billing")] == [b"0"]


def test_seek_of_one_partition_leaves_the_others_where_they_are(q: duly.Client) -> None:
    q.create_topic("wide", kind="log", partitions=2)
    q.create_group("wide", "g")
    q.publish("wide", [duly.Message(b"%d" % p, partition=p) for p in (0, 0, 1, 1)])
    held = q.claim("wide", group="g")
    q.seek("wide", "g", offset={1: 0})
    again = q.claim("wide", group="g")
    assert [(d.partition, d.offset) for d in again] == [(1, 0), (1, 1)]
    assert q.ack([d for d in held if d.partition == 0]).done == 2
    assert q.ack([d for d in held if d.partition == 1]).done == 0


def test_seek_to_what_is_truncated_is_refused_and_moves_nothing(q: duly.Client, hourly: datetime) -> None:
    q.purge("orders")
    q.publish("orders", b"after")
    with pytest.raises(duly.OffsetTruncated) as caught:
        q.seek("orders", "billing", offset=3)
    assert caught.value.first_offset == 10
    assert take(q) == [b"after"]


@pytest.mark.parametrize(
    "where",
    [{}, {"offset": 11}, {"offset": -1}, {"offset": {5: 0}}, {"to": "middle"}, {"offset": 1, "to": "latest"}],
    ids=str,
)
def test_a_bad_seek_is_refused_and_moves_nothing(q: duly.Client, hourly: datetime, where: dict[str, object]) -> None:
    held = q.claim("orders", group="billing", max_messages=4)
    with pytest.raises(duly.InvalidArgument):
        q.seek("orders", "billing", **where)  # type: ignore[arg-type]
    assert q.describe_group("orders", "billing").cursors == {0: 4}
    assert q.ack(held).done == 4
