"""Leases on a queue that run out: in halves, until the poison stands alone; nobody else is buried."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest

import duly

from .conftest import sharp


@pytest.fixture
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue", lease=30, retry=sharp(10, max_attempts=3))
    return "jobs"


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def crash(q: duly.Client, clock: duly.ManualClock, **options: int) -> list[bytes]:
    """A consumer that claims and is never heard of again; returns what it held."""
    payloads = q.claim("jobs", **options).payloads  # type: ignore[arg-type]
    clock.advance(30)
    return payloads


def test_an_expired_lease_is_delivered_again_with_the_next_attempt(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, b"x")
    crash(q, clock)
    assert [(d.payload, d.attempt) for d in q.claim(jobs)] == [(b"x", 2)]


def test_expiry_needs_nobody_awake(
    q: duly.Client, jobs: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    q.publish(jobs, b"x")
    q.claim(jobs)
    q.close()
    clock.advance(30)
    assert reopen().claim(jobs).payloads == [b"x"]


def test_an_expired_batch_comes_back_in_halves(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, numbered(8))
    crash(q, clock)
    assert [q.claim(jobs).payloads for _ in range(3)] == [numbered(8)[:4], numbered(8)[4:], []]


@pytest.mark.parametrize("where", [0, 57, 99])
def test_of_a_hundred_the_poison_alone_is_buried(
    q: duly.Client, jobs: str, clock: duly.ManualClock, where: int
) -> None:
    q.publish(jobs, numbered(100))
    poison = b"%d" % where
    served: Counter[bytes] = Counter()
    crashes = 0
    for _ in range(400):
        batch = q.claim(jobs)
        if poison in batch.payloads:
            crashes += 1
            clock.advance(30)
        elif not len(batch):
            break
        else:
            served.update(batch.payloads)
            batch.ack()
    assert served == Counter(n for n in numbered(100) if n != poison)
    assert [letter.payload for letter in q.dead(jobs)] == [poison]
    assert crashes <= math.ceil(math.log2(100)) + 3


def test_the_innocent_outlive_any_number_of_crashes_together(q: duly.Client, clock: duly.ManualClock) -> None:
    """With one attempt allowed: they failed, but never alone."""
    q.create_topic("jobs", kind="queue", lease=30, retry=sharp(1, max_attempts=1))
    q.publish("jobs", numbered(6))
    crash(q, clock)
    sizes = []
    while batch := q.claim("jobs"):
        sizes.append(len(batch))
    assert sizes == [3, 3]
    clock.advance(30)
    attempts = []
    while batch := q.claim("jobs"):
        attempts += [d.attempt for d in batch]
        batch.ack()
    assert attempts == [3] * 6
    assert not list(q.dead("jobs"))


def test_what_failed_alone_as_often_as_allowed_is_buried_with_its_history(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, b"poison")
    attempts = []
    for _ in range(3):
        attempts += [d.attempt for d in q.claim(jobs)]
        clock.advance(30)
    assert attempts == [1, 2, 3]
    assert not len(q.claim(jobs))
    (letter,) = q.dead(jobs)
    assert letter.attempts == 3
    assert [(failure.attempt, failure.what) for failure in letter.history] == [(n, "expired") for n in (1, 2, 3)]


def test_a_lone_rest_of_a_batch_has_not_failed_alone(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("jobs", kind="queue", lease=30, retry=sharp(1, max_attempts=1))
    q.publish("jobs", [b"a", b"b"])
    batch = q.claim("jobs")
    batch[0].ack()
    clock.advance(30)
    assert [(d.payload, d.attempt) for d in q.claim("jobs")] == [(b"b", 2)]


def test_one_each_from_two_partitions_have_not_failed_alone(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("jobs", kind="queue", partitions=2, lease=30, retry=sharp(1, max_attempts=1))
    for n in range(20):
        q.publish("jobs", duly.Message(b"%d" % n, lane=f"l{n}"))
    batch = q.claim("jobs")
    keep = {d.partition: d for d in batch}
    assert set(keep) == {0, 1}
    q.release([d for d in batch if keep[d.partition] is not d])
    q.pause("jobs")
    # Two are left of a claim of twenty; then, below, two make up a whole claim.
    clock.advance(30)
    q.resume("jobs")
    while again := q.claim("jobs"):
        again.ack()
    assert not list(q.dead("jobs"))
    for lane in sorted({d.lane for d in keep.values()}, key=str):
        q.publish("jobs", duly.Message(b"one", lane=lane))
    pair = q.claim("jobs")
    assert [d.partition for d in pair] in ([0, 1], [1, 0])
    clock.advance(30)
    back = [d for _ in range(3) for d in q.claim("jobs")]
    assert len(back) == 2
    assert not list(q.dead("jobs"))


def test_one_served_before_expired_messages_and_one_behind_have_not_failed_alone(
    q: duly.Client, clock: duly.ManualClock
) -> None:
    q.create_topic("jobs", kind="queue", lease=30, retry=sharp(1, max_attempts=1))
    q.publish("jobs", [b"a", *[duly.Message(b"gone", ttl=1)] * 5, b"b"])
    clock.advance(2)
    assert crash(q, clock, max_messages=4) == [b"a", b"b"]
    assert [q.claim("jobs").payloads for _ in range(2)] == [[b"a"], [b"b"]]
    assert not list(q.dead("jobs"))


def test_suspects_are_handed_out_by_themselves(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [b"old"] * 4)
    crash(q, clock)
    q.publish(jobs, [b"new"] * 4)
    batches = [q.claim(jobs).payloads for _ in range(4)]
    assert sorted(map(set, filter(None, batches)), key=sorted) == [{b"new"}, {b"old"}, {b"old"}]


def test_suspects_of_two_leases_are_not_mixed(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [b"a"] * 4 + [b"b"] * 4)
    q.claim(jobs, max_messages=4)
    crash(q, clock, max_messages=4)
    batches = [q.claim(jobs).payloads for _ in range(5)]
    assert sorted(filter(None, batches)) == [[b"a"] * 2, [b"a"] * 2, [b"b"] * 2, [b"b"] * 2]


def test_suspects_behind_expired_messages_are_still_by_themselves(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, [duly.Message(b"old", priority=5)] * 4)
    crash(q, clock)
    q.publish(jobs, [duly.Message(b"new", priority=1), *[duly.Message(b"gone", priority=2, ttl=1)] * 9])
    clock.advance(2)
    batches = [q.claim(jobs, max_messages=10).payloads for _ in range(4)]
    assert batches == [[b"new"], [b"old"] * 2, [b"old"] * 2, []]


def test_an_expired_lease_is_due_when_it_ended(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    """A lease is a due time moved into the future: what came due after its end comes after it."""
    q.publish(jobs, b"old")
    q.claim(jobs)
    clock.advance(31)
    q.publish(jobs, b"new")
    clock.advance(10)
    assert q.claim(jobs, max_messages=1).payloads == [b"old"]


def test_a_suspect_that_is_nacked_or_released_is_one_no_more(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, numbered(4))
    crash(q, clock)
    first, second = q.claim(jobs), q.claim(jobs)
    first.release()
    second.nack(delay=0)
    assert sorted(q.claim(jobs).payloads) == numbered(4)


def test_max_messages_bounds_what_comes_back(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, numbered(8))
    crash(q, clock)
    back = [q.claim(jobs, max_messages=1).payloads for _ in range(9)]
    assert back == [[n] for n in numbered(8)] + [[]]


def test_many_expired_leases_all_come_back(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, numbered(250))
    while q.claim(jobs, max_messages=1):
        pass
    clock.advance(30)
    back: list[bytes] = []
    while batch := q.claim(jobs, wait=0.001):
        back += batch.payloads
        batch.ack()
    assert sorted(back) == sorted(numbered(250))


def test_lanes_and_priorities_of_an_expired_batch_are_kept(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [duly.Message(b"%d" % n, priority=n, lane=f"l{n}") for n in range(4)])
    crash(q, clock)
    back = [(d.priority, d.lane) for _ in range(4) for d in q.claim(jobs)]
    assert back == [(n, f"l{n}") for n in range(4)]
