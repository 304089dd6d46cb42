"""Claim: what comes, how much of it, in which order, and that nobody else gets it meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import duly

from .conftest import sharp


def test_a_claim_gives_what_was_published_in_order(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"a", b"b"])
    q.publish(orders, b"c")
    batch = q.claim(orders, group="billing")
    assert (batch.topic, batch.group, len(batch)) == (orders, "billing", 3)
    assert [(d.offset, d.payload, d.attempt) for d in batch] == [(0, b"a", 1), (1, b"b", 1), (2, b"c", 1)]
    assert batch.payloads == [b"a", b"b", b"c"]


def test_a_claim_of_nothing_is_an_empty_batch(q: duly.Client, orders: str) -> None:
    batch = q.claim(orders, group="billing")
    assert len(batch) == 0
    assert list(batch) == []
    assert batch.lease_expires_at is None
    with batch:
        pass


@pytest.mark.parametrize("count", [1, 2, 99, 1023, 1024, 1025, 2500])
def test_a_claim_gives_no_more_than_max_messages(q: duly.Client, orders: str, count: int) -> None:
    q.publish(orders, [b"%d" % n for n in range(3000)])
    first = q.claim(orders, group="billing", max_messages=count)
    second = q.claim(orders, group="billing", max_messages=count)
    assert [d.offset for d in first] == list(range(count))
    assert [d.offset for d in second] == list(range(count, min(3000, 2 * count)))


def test_a_claim_gives_no_more_than_max_bytes(q: duly.Client, orders: str) -> None:
    q.publish(orders, [bytes(100)] * 10)
    q.publish(orders, [bytes(100)] * 10)
    assert len(q.claim(orders, group="billing", max_bytes=350)) == 3
    assert len(q.claim(orders, group="billing", max_bytes=1000)) == 10
    assert [d.offset for d in q.claim(orders, group="billing", max_bytes=400)] == [13, 14, 15, 16]


def test_max_bytes_never_holds_back_the_first_message(q: duly.Client, orders: str) -> None:
    q.publish(orders, [bytes(1000), b"small"])
    assert q.claim(orders, group="billing", max_bytes=10).payloads == [bytes(1000)]
    assert q.claim(orders, group="billing", max_bytes=10).payloads == [b"small"]


def test_max_bytes_counts_over_retries_and_new_messages(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [bytes(100)] * 4)
    q.claim(orders, group="billing").nack(delay=1)
    q.publish(orders, [bytes(100)] * 4)
    clock.advance(1)
    batch = q.claim(orders, group="billing", max_bytes=450)
    assert sum(map(len, batch.payloads)) <= 450
    assert len(batch) == 4


def test_max_bytes_counts_over_partitions(q: duly.Client) -> None:
    q.create_topic("wide", kind="log", partitions=4)
    q.create_group("wide", "g")
    q.publish("wide", [duly.Message(bytes(100), partition=n % 4) for n in range(20)])
    sizes = []
    while batch := q.claim("wide", group="g", max_bytes=750):
        sizes.append(sum(map(len, batch.payloads)))
    assert max(sizes) <= 750
    assert sum(sizes) == 2000


def test_what_is_claimed_is_nobody_elses_until_the_lease_ends(
    q: duly.Client, orders: str, clock: duly.ManualClock
) -> None:
    q.publish(orders, [b"a", b"b"])
    q.claim(orders, group="billing", consumer="ann")
    clock.advance(29.999)
    assert len(q.claim(orders, group="billing", consumer="bob")) == 0
    clock.advance(0.001)
    assert len(q.claim(orders, group="billing", consumer="bob")) >= 1


def test_another_client_on_the_store_gets_only_what_is_left(
    q: duly.Client, orders: str, reopen: Callable[[], duly.Client]
) -> None:
    other = reopen()
    q.publish(orders, [b"%d" % n for n in range(6)])
    a = q.claim(orders, group="billing", max_messages=2).payloads
    b = other.claim(orders, group="billing", max_messages=2).payloads
    c = q.claim(orders, group="billing", max_messages=10).payloads
    assert a + b + c == [b"%d" % n for n in range(6)]


def test_the_lease_lasts_as_long_as_the_claim_asks(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, [b"a", b"b", b"c"])
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    for lease, seconds in ((None, 30.0), (5, 5.0), (timedelta(minutes=2), 120.0)):
        batch = q.claim(orders, group="billing", max_messages=1, lease=lease)
        assert batch.lease_expires_at == batch[0].lease_expires_at == now + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "options",
    [
        {"max_messages": 0},
        {"max_messages": -1},
        {"max_messages": 100_001},
        {"max_messages": 1.5},
        {"max_bytes": 0},
        {"lease": 0},
        {"lease": 0.099},
        {"lease": 8 * 24 * 3600},
        {"wait": -1},
        {"wait": float("nan")},
        {"timeout": 0},
        {"consumer": ""},
        {"consumer": "x" * 257},
    ],
    ids=str,
)
def test_a_bad_claim_is_refused_and_takes_nothing(q: duly.Client, orders: str, options: dict[str, object]) -> None:
    q.publish(orders, b"a")
    with pytest.raises(duly.InvalidArgument):
        q.claim(orders, group="billing", **options)  # type: ignore[arg-type]
    group = q.describe_group(orders, "billing")
    assert (group.lag, group.leased, group.consumers) == (1, 0, ())


def test_a_claim_takes_from_every_partition(q: duly.Client) -> None:
    q.create_topic("wide", kind="log", partitions=4)
    q.create_group("wide", "g")
    q.publish("wide", [duly.Message(b"%d" % n, partition=n % 4) for n in range(40)])
    batch = q.claim("wide", group="g", max_messages=100)
    assert sorted(int(p) for p in batch.payloads) == list(range(40))
    for partition in range(4):
        assert [d.offset for d in batch if d.partition == partition] == list(range(10))


def test_small_claims_do_not_forget_a_partition(q: duly.Client) -> None:
    q.create_topic("wide", kind="log", partitions=4)
    q.create_group("wide", "g")
    q.publish("wide", [duly.Message(b"", partition=n % 4) for n in range(400)])
    seen = {d.partition for _ in range(4) for d in q.claim("wide", group="g", max_messages=10)}
    assert seen == {0, 1, 2, 3}


def test_a_partition_has_one_order_for_every_group_and_reader(q: duly.Client) -> None:
    q.create_topic("wide", kind="log", partitions=3)
    for n in range(60):
        q.publish("wide", [duly.Message(b"%d" % n, key=f"k{n % 11}")])
    read = {p: [m.payload for m in q.read("wide", partition=p)] for p in range(3)}
    for group, step in (("a", 1), ("b", 7), ("c", 1000)):
        q.create_group("wide", group)
        got: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        while batch := q.claim("wide", group=group, max_messages=step):
            for delivery in batch:
                got[delivery.partition].append(delivery.payload)
            batch.ack()
        assert got == read


def test_a_failing_message_stalls_nobody_behind_it(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("orders", kind="log", retry=sharp(0, max_attempts=1000))
    q.create_group("orders", "g")
    q.publish("orders", [b"poison"] + [b"%d" % n for n in range(50)])
    done: list[bytes] = []
    for _ in range(60):
        for delivery in q.claim("orders", group="g", max_messages=2):
            if delivery.payload == b"poison":
                delivery.nack()
            else:
                delivery.ack()
                done.append(delivery.payload)
    assert done == [b"%d" % n for n in range(50)]


def test_a_storm_of_retries_and_a_flood_of_new_messages_share_every_claim(q: duly.Client) -> None:
    q.create_topic("orders", kind="log", retry=sharp(0, max_attempts=1000))
    q.create_group("orders", "g")
    q.publish("orders", [b"old"] * 100)
    q.claim("orders", group="g", max_messages=100).nack()
    q.publish("orders", [b"new"] * 100)
    for _ in range(5):
        got = q.claim("orders", group="g", max_messages=10).payloads
        assert got.count(b"old") == 5
        assert got.count(b"new") == 5


def test_threads_share_the_work_and_hold_nothing_twice(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"%d" % n for n in range(2000)])
    got: list[bytes] = []
    lock = threading.Lock()

    def work() -> None:
        while batch := q.claim(orders, group="billing", max_messages=7):
            with lock:
                got.extend(batch.payloads)
            batch.ack()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(map(int, got)) == list(range(2000))
    assert q.describe_group(orders, "billing").pending == 0


def test_a_closed_client_says_so(q: duly.Client, orders: str) -> None:
    q.publish(orders, b"x")
    batch = q.claim(orders, group="billing")
    q.close()
    q.close()
    for call in (
        lambda: q.claim(orders, group="billing"),
        lambda: q.publish(orders, b"x"),
        lambda: q.read(orders),
        lambda: q.ack(batch),
        lambda: q.list_topics(),
    ):
        with pytest.raises(duly.Closed):
            call()
