"""Publish: whole or not at all, once per publish id, each message where it belongs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import duly

from .patience import eventually

A_DAY = timedelta(days=1)


@pytest.fixture
def wide(q: duly.Client) -> str:
    """A log of eight partitions with a group."""
    q.create_topic("wide", kind="log", partitions=8)
    q.create_group("wide", "all")
    return "wide"


def payloads(q: duly.Client, topic: str, partition: int = 0) -> list[bytes]:
    return [m.payload for m in q.read(topic, partition=partition, offset=0)]


# What is stored


def test_one_message_may_be_given_as_bytes(q: duly.Client, orders: str) -> None:
    receipt = q.publish(orders, b"one")
    assert (receipt.count, receipt.duplicate) == (1, False)
    assert payloads(q, orders) == [b"one"]


@pytest.mark.parametrize("payload", [bytearray(b"raw"), memoryview(b"raw"), duly.Message(b"raw")])
def test_anything_bytes_like_is_stored_as_bytes(q: duly.Client, orders: str, payload: object) -> None:
    q.publish(orders, payload)
    assert payloads(q, orders) == [b"raw"]


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 1024, 1025, 5000])
def test_a_batch_keeps_its_order_whatever_its_size(q: duly.Client, orders: str, count: int) -> None:
    sent = [b"%d" % n for n in range(count)]
    receipt = q.publish(orders, sent)
    assert receipt.positions == [(0, n) for n in range(count)]
    assert [m.payload for m in q.read(orders, max_messages=10_000)] == sent


def test_an_empty_payload_is_a_message(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"", b"x", b""])
    assert q.claim(orders, group="billing").payloads == [b"", b"x", b""]


def test_key_headers_and_id_come_back_as_given(q: duly.Client, orders: str) -> None:
    q.publish(orders, duly.Message(b"x", id="welcome-42", key="acme", headers={"trace": "0af7", "ü": ""}))
    (read,) = q.read(orders)
    (claimed,) = q.claim(orders, group="billing")
    for message in (read, claimed):
        assert message.id == "welcome-42"
        assert message.key == "acme"
        assert message.headers == {"trace": "0af7", "ü": ""}


def test_a_message_without_key_and_headers_has_none(q: duly.Client, orders: str) -> None:
    q.publish(orders, [duly.Message(b"with", key="k", headers={"a": "b"}), duly.Message(b"without")])
    without = q.read(orders, offset=1)[0]
    assert without.key is None
    assert without.headers == {}


def test_json_messages_are_read_back_as_values(q: duly.Client, orders: str) -> None:
    q.publish(orders, duly.Message.json({"to": 42, "name": "Zoë"}))
    assert q.read(orders)[0].json() == {"to": 42, "name": "Zoë"}
    assert q.claim(orders, group="billing")[0].json() == {"to": 42, "name": "Zoë"}


def test_published_at_is_the_stores_time(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, b"x")
    clock.advance(5)
    (delivery,) = q.claim(orders, group="billing")
    assert delivery.published_at_ms == clock.now_ms() - 5000
    assert delivery.published_at.tzinfo is not None


def test_ids_that_duly_makes_are_unique_and_the_same_for_every_reader(q: duly.Client, wide: str) -> None:
    receipts = [q.publish(wide, [duly.Message(b"x", key=f"{n}{i}") for i in range(10)]) for n in range(10)]
    ids = [one for receipt in receipts for one in receipt.ids]
    read = [m.id for partition in range(8) for m in q.read(wide, partition=partition)]
    claimed = [d.id for d in q.claim(wide, group="all", max_messages=1000)]
    assert len(set(ids)) == 100
    assert sorted(ids) == sorted(read) == sorted(claimed)


def test_the_receipt_tells_where_every_message_went(q: duly.Client, wide: str) -> None:
    sent = [duly.Message(b"%d" % n, key=f"k{n}", id=f"id{n}" if n % 2 else None) for n in range(50)]
    receipt = q.publish(wide, sent)
    for message, own_id, (partition, offset) in zip(sent, receipt.ids, receipt.positions, strict=True):
        (stored,) = q.read(wide, partition=partition, offset=offset, max_messages=1)
        assert (stored.payload, stored.id) == (message.payload, own_id)
        assert message.id in (None, own_id)


# Partitions


def test_a_key_always_goes_to_the_same_partition(q: duly.Client, wide: str, reopen: Callable[[], duly.Client]) -> None:
    keys = [f"customer-{n}" for n in range(100)]
    receipt = q.publish(wide, [duly.Message(b"", key=key) for key in keys])
    first = {key: partition for key, (partition, _) in zip(keys, receipt.positions, strict=True)}
    q.close()
    other = reopen()
    for key in keys:
        ((partition, _),) = other.publish(wide, duly.Message(b"", key=key)).positions
        assert partition == first[key]
    assert len(set(first.values())) == 8, "a hundred keys reach every one of eight partitions"


def test_where_keys_go_never_changes_from_release_to_release(q: duly.Client, wide: str) -> None:
    keys = ["a", "acme", "customer-7", "Zoë", "日本"]
    placed = [p for p, _ in q.publish(wide, [duly.Message(b"", key=k) for k in keys]).positions]
    assert placed == [4, 1, 4, 3, 7]


def test_a_named_partition_wins_over_the_key(q: duly.Client, wide: str) -> None:
    receipt = q.publish(wide, [duly.Message(b"%d" % n, key="same", partition=n) for n in range(8)])
    assert receipt.positions == [(n, 0) for n in range(8)]
    assert payloads(q, wide, partition=5) == [b"5"]


def test_messages_of_one_key_keep_their_order(q: duly.Client, wide: str) -> None:
    for n in range(30):
        q.publish(wide, [duly.Message(b"%d" % n, key="a"), duly.Message(b"", key=f"noise-{n}")])
    got = [d for d in q.claim(wide, group="all", max_messages=1000) if d.key == "a"]
    assert [d.payload for d in got] == [b"%d" % n for n in range(30)]


def test_messages_without_a_key_use_every_partition(q: duly.Client, wide: str) -> None:
    used = {p for _ in range(64) for p, _ in q.publish(wide, b"x").positions}
    assert used == set(range(8))


# All or nothing


BAD = [
    ("text", "str"),
    (None, "NoneType"),
    (7, "int"),
    (duly.Message("text"), "str"),  # type: ignore[arg-type]
    (duly.Message(b"", id=""), "id"),
    (duly.Message(b"", id="@1-1"), "id"),
    (duly.Message(b"", id="x" * 513), "id"),
    (duly.Message(b"", key="x" * 1025), "key"),
    (duly.Message(b"", key=b"bytes"), "key"),  # type: ignore[arg-type]
    (duly.Message(b"", key="\udc80"), "key"),
    (duly.Message(b"", headers={"a": 1}), "headers"),  # type: ignore[dict-item]
    (duly.Message(b"", headers={"a": "x" * 20_000}), "headers"),
    (duly.Message(b"", headers={str(n): "" for n in range(65)}), "headers"),
    (duly.Message(b"", ttl=0), "ttl"),
    (duly.Message(b"", ttl=-1), "ttl"),
    (duly.Message(b"", ttl=5, expires_at=datetime.now(UTC)), "ttl"),
    (duly.Message(b"", expires_at=datetime(2030, 1, 1)), "expires_at"),  # noqa: DTZ001
    (duly.Message(b"", partition=1), "partition"),
    (duly.Message(b"", partition=-1), "partition"),
    (duly.Message(b"", priority=3), "priority"),
    (duly.Message(b"", due=3), "due"),
    (duly.Message(b"", lane="acme"), "lane"),
    (bytes(1024 * 1024 + 1), "payload"),
]


@pytest.mark.parametrize(("bad", "named"), BAD, ids=[f"{n}-{named}" for n, (_, named) in enumerate(BAD)])
@pytest.mark.parametrize("count", [5, 100])
def test_one_bad_message_refuses_the_whole_batch_and_is_named(
    q: duly.Client, orders: str, bad: object, named: str, count: int
) -> None:
    batch: list[object] = [b"good"] * count
    batch[3] = bad
    with pytest.raises(duly.InvalidArgument, match=named) as caught:
        q.publish(orders, batch, publish_id="p")
    assert caught.value.facts["index"] == 3
    assert "3" in str(caught.value)
    assert q.describe_topic(orders).messages == 0
    assert not q.publish(orders, b"good", publish_id="p").duplicate


BAD_IN_A_QUEUE = [
    (duly.Message(b"", due=-1), "due"),
    (duly.Message(b"", due=timedelta(seconds=-1)), "due"),
    (duly.Message(b"", due=timedelta(days=3654)), "due"),
    (duly.Message(b"", due=datetime.max.replace(tzinfo=UTC)), "due"),
    (duly.Message(b"", due=datetime(2030, 1, 1)), "due"),  # noqa: DTZ001
    (duly.Message(b"", due=float("nan")), "due"),
    (duly.Message(b"", due="tomorrow"), "due"),  # type: ignore[arg-type]
    (duly.Message(b"", due=True), "due"),
    (duly.Message(b"", priority=-1), "priority"),
    (duly.Message(b"", priority=65_536), "priority"),
    (duly.Message(b"", priority=1.0), "priority"),  # type: ignore[arg-type]
    (duly.Message(b"", priority="high"), "priority"),  # type: ignore[arg-type]
    (duly.Message(b"", priority=True), "priority"),
    (duly.Message(b"", lane=""), "lane"),
    (duly.Message(b"", lane="x" * 257), "lane"),
    (duly.Message(b"", lane="a\nb"), "lane"),
    (duly.Message(b"", lane="\udc80"), "lane"),
    (duly.Message(b"", lane=7), "lane"),  # type: ignore[arg-type]
    (duly.Message(b"", lane=b"acme"), "lane"),  # type: ignore[arg-type]
    (duly.Message(b"", partition=0), "partition"),
    (duly.Message(b"", id="@1-1"), "id"),
    (bytes(1024 * 1024 + 1), "payload"),
]


@pytest.mark.parametrize(
    ("bad", "named"), BAD_IN_A_QUEUE, ids=[f"{n}-{named}" for n, (_, named) in enumerate(BAD_IN_A_QUEUE)]
)
@pytest.mark.parametrize("count", [5, 100])
def test_one_bad_message_refuses_the_whole_batch_for_a_queue_too(
    q: duly.Client, bad: object, named: str, count: int
) -> None:
    q.create_topic("emails", kind="queue")
    batch: list[object] = [duly.Message(b"good", priority=1, lane="acme", due=0, id=f"m{n}") for n in range(count)]
    batch[3] = bad
    with pytest.raises(duly.InvalidArgument, match=named) as caught:
        q.publish("emails", batch, publish_id="p")
    assert caught.value.facts["index"] == 3
    assert (q.describe_topic("emails").messages, q.browse("emails")) == (0, [])
    assert q.publish("emails", duly.Message(b"good", id="m0"), publish_id="p").duplicates == {}


BAD_TABLES = [
    ("due_at", pa.array([-1], pa.int64())),
    ("due_at", pa.array([2**61], pa.int64())),
    ("due_at", pa.array([datetime(2030, 1, 1)], pa.timestamp("ms"))),  # noqa: DTZ001
    ("due_at", pa.array([5.0])),
    ("due", pa.array([5])),
    ("priority", pa.array([-1])),
    ("priority", pa.array([65_536])),
    ("priority", pa.array([1.0])),
    ("lane", pa.array([""])),
    ("lane", pa.array(["x" * 300])),
    ("lane", pa.array(["a\nb"])),
    ("lane", pa.array([7])),
    ("partition", pa.array([0])),
]


@pytest.mark.parametrize(
    ("column", "values"), BAD_TABLES, ids=[f"{n}-{name}" for n, (name, _) in enumerate(BAD_TABLES)]
)
def test_a_bad_column_refuses_the_table_for_a_queue(q: duly.Client, column: str, values: pa.Array) -> None:
    q.create_topic("emails", kind="queue")
    with pytest.raises(duly.InvalidArgument):
        q.publish("emails", pa.table({"payload": pa.array([b"x"], pa.binary()), column: values}))
    assert q.describe_topic("emails").messages == 0


def test_priorities_and_lanes_at_their_bounds_are_taken(q: duly.Client) -> None:
    q.create_topic("emails", kind="queue")
    lane = "x" * 256
    q.publish("emails", [duly.Message(b"last", priority=65_535, lane=lane), duly.Message(b"first", priority=0, due=0)])
    assert [(d.payload, d.priority, d.lane) for d in q.claim("emails")] == [
        (b"first", 0, None),
        (b"last", 65_535, lane),
    ]


def test_str_is_refused_with_a_hint(q: duly.Client, orders: str) -> None:
    with pytest.raises(duly.InvalidArgument, match="encode"):
        q.publish(orders, "text")


@pytest.mark.parametrize("nothing", [[], {}, None, 3, {"a": b"x"}])
def test_what_is_no_batch_is_refused(q: duly.Client, orders: str, nothing: object) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.publish(orders, nothing)
    assert q.describe_topic(orders).messages == 0


def test_a_topic_may_take_payloads_of_up_to_64_mib(q: duly.Client) -> None:
    q.create_topic("films", kind="log", payload_bytes_max=64 * 1024 * 1024)
    q.create_group("films", "g")
    film = bytes(range(256)) * (32 * 1024 * 4)
    q.publish("films", film)
    assert q.claim("films", group="g").payloads == [film]
    with pytest.raises(duly.LimitExceeded):
        q.create_topic("longer", kind="log", payload_bytes_max=64 * 1024 * 1024 + 1)


def test_a_batch_has_at_most_100000_messages(q: duly.Client, orders: str) -> None:
    with pytest.raises(duly.LimitExceeded):
        q.publish(orders, [b""] * 100_001)
    assert q.describe_topic(orders).messages == 0


# Once


def test_the_same_publish_id_stores_once_and_answers_the_same(q: duly.Client, wide: str) -> None:
    batch = [duly.Message(b"%d" % n, key=f"k{n}", id=f"m{n}" if n else None) for n in range(20)]
    first = q.publish(wide, batch, publish_id="p1")
    again = q.publish(wide, batch, publish_id="p1")
    assert again.duplicate
    assert (again.publish_id, again.count) == ("p1", 20)
    assert again.positions == first.positions
    assert again.ids == first.ids
    assert q.describe_topic(wide).messages == 20


def test_a_publish_id_is_remembered_after_reopening(
    q: duly.Client, orders: str, reopen: Callable[[], duly.Client]
) -> None:
    first = q.publish(orders, [b"a", b"b"], publish_id="p1")
    q.close()
    other = reopen()
    again = other.publish(orders, [b"a", b"b"], publish_id="p1")
    assert again.duplicate
    assert again.positions == first.positions
    assert other.describe_topic(orders).messages == 2


def test_a_publish_id_is_remembered_for_a_day_and_no_longer(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.publish(orders, b"x", publish_id="p1")
    clock.advance(A_DAY - timedelta(milliseconds=1))
    assert q.publish(orders, b"x", publish_id="p1").duplicate
    clock.advance(timedelta(milliseconds=1))
    assert not q.publish(orders, b"x", publish_id="p1").duplicate
    assert q.describe_topic(orders).messages == 2
    clock.advance(A_DAY - timedelta(milliseconds=1))
    assert q.publish(orders, b"x", publish_id="p1").duplicate


def test_a_publish_id_belongs_to_its_topic(q: duly.Client, orders: str, wide: str) -> None:
    q.publish(orders, b"x", publish_id="p1")
    assert not q.publish(wide, b"x", publish_id="p1").duplicate


def test_a_publish_id_that_duly_made_is_stored_once_too(
    q: duly.Client, orders: str, reopen: Callable[[], duly.Client], clock: duly.ManualClock
) -> None:
    first = q.publish(orders, [b"a"] * 3000)
    q.publish(orders, b"between")
    clock.advance(60)
    q.close()
    other = reopen()
    again = other.publish(orders, [b"a"] * 3000, publish_id=first.publish_id)
    assert again.duplicate
    assert again.positions == first.positions
    assert other.describe_topic(orders).messages == 3001


def test_a_repeated_publish_answers_the_same_places_and_ids_over_many_partitions(q: duly.Client, wide: str) -> None:
    batch = [duly.Message(b"%d" % n, key=f"k{n}", id=f"m{n}" if n % 3 else None) for n in range(20)]
    first = q.publish(wide, batch)
    again = q.publish(wide, batch, publish_id=first.publish_id)
    assert again.duplicate
    assert q.describe_topic(wide).messages == 20
    assert again.positions == first.positions
    assert again.ids == first.ids


def test_a_publish_id_that_duly_made_but_never_stored_is_stored_now(q: duly.Client, orders: str) -> None:
    made = q.publish(orders, b"elsewhere").publish_id
    q.create_topic("fresh", kind="log")
    assert not q.publish("fresh", b"x", publish_id=made).duplicate
    assert q.publish("fresh", b"x", publish_id=made).duplicate
    assert q.describe_topic("fresh").messages == 1


@pytest.mark.parametrize("bad", ["", "x" * 129, "line\n", 7, b"p", "~not-ours"])
def test_a_bad_publish_id_is_refused(q: duly.Client, orders: str, bad: object) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.publish(orders, b"x", publish_id=bad)  # type: ignore[arg-type]
    assert q.describe_topic(orders).messages == 0


# Expiry


def test_a_message_is_delivered_until_its_ttl_is_over(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [duly.Message(b"short", ttl=10), duly.Message(b"long", ttl=11), b"for ever"])
    clock.advance(10)
    assert q.claim(orders, group="billing").payloads == [b"long", b"for ever"]


def test_expires_at_is_a_moment(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    at = datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(seconds=10)
    q.publish(orders, duly.Message(b"x", expires_at=at))
    assert q.read(orders)[0].expires_at == at
    clock.advance(9.999)
    assert len(q.claim(orders, group="billing", lease=0.1)) == 1
    clock.advance(0.5)
    assert len(q.claim(orders, group="billing")) == 0


@pytest.mark.parametrize("count", [3, 200])
def test_the_topics_ttl_is_for_messages_that_set_none(q: duly.Client, clock: duly.ManualClock, count: int) -> None:
    q.create_topic("news", kind="log", ttl=10)
    q.create_group("news", "g")
    q.publish("news", [duly.Message(b"%d" % n, ttl=20 if n == 1 else None) for n in range(count)])
    clock.advance(15)
    assert q.claim("news", group="g", max_messages=1000).payloads == [b"1"]


def test_what_expired_is_told_as_an_event_and_is_no_longer_lag(
    q: duly.Client, orders: str, clock: duly.ManualClock, events: list[duly.Event]
) -> None:
    q.publish(orders, [duly.Message(b"x", ttl=1)] * 5)
    clock.advance(2)
    assert len(q.claim(orders, group="billing")) == 0
    assert q.describe_group(orders, "billing").lag == 0
    assert q.describe_group(orders, "billing").pending == 0
    eventually(lambda: sum(event.count for event in events if event.kind == "ttl_expired") == 5)
