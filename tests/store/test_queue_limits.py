"""Lanes with limits: so many at once, so many a second; one at a time, a lane keeps its order (promise 6)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duly

from .conftest import sharp
from .patience import Aside


def make(q: duly.Client, limit: int | None = 1, rate: float | None = None, **fields: Any) -> str:
    wanted: dict[str, Any] = {"lease": 30, "retry": sharp(10, max_attempts=3), **fields}
    q.create_topic("jobs", kind="queue", lanes=duly.Lanes(max_in_flight=limit, rate=rate), **wanted)
    return "jobs"


@pytest.fixture
def jobs(q: duly.Client) -> str:
    """One at a time in each lane; leases of 30 s, retries after 10 s sharp, 3 attempts."""
    return make(q)


def lane(name: str | None, count: int, first: int = 0, **fields: Any) -> list[duly.Message]:
    """Messages whose ids tell their lane and their number in it."""
    return [
        duly.Message(b"%d" % n, lane=name, id=f"{name or ''}{n}", **fields) for n in range(first, first + count)
    ]  # fmt: skip


def ids(batch: duly.Batch) -> list[str]:
    return [d.id for d in batch]


def drain(q: duly.Client) -> list[str]:
    """All that comes, acked at once; with limits that takes many claims."""
    found: list[str] = []
    while batch := q.claim("jobs", max_messages=10_000):
        found += ids(batch)
        batch.ack()
    return found


# One at a time


def test_one_of_a_lane_at_a_time_in_order(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("a", 3) + lane("b", 3) + lane(None, 3))
    for n in range(3):
        batch = q.claim(jobs)
        assert sorted(ids(batch)) == [f"{n}", f"a{n}", f"b{n}"]
        assert not len(q.claim(jobs))
        assert batch.ack().done == 3
    assert not len(q.claim(jobs))
    assert q.describe_topic(jobs).messages == 0


def test_by_due_time_then_arrival(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [duly.Message(b"", id=f"a{n}", lane="a", due=n % 5) for n in range(20)])
    clock.advance(10)
    assert drain(q) == [f"a{n}" for n in sorted(range(20), key=lambda n: (n % 5, n))]


def test_a_lane_that_is_held_does_not_hold_the_others(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("a", 10))
    held = q.claim(jobs)
    assert ids(held) == ["a0"]
    q.publish(jobs, lane("b", 2))
    assert drain(q) == ["b0", "b1"]
    held.ack()
    assert drain(q) == [f"a{n}" for n in range(1, 10)]


def test_a_retrying_message_holds_its_lane_and_no_other(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, lane("a", 3) + lane("b", 3))
    q.nack([d for d in q.claim(jobs) if d.id == "a0"])
    assert not len(q.claim(jobs)), "a waits for its retry, b is held"
    clock.advance(9.999)
    assert not len(q.claim(jobs))
    clock.advance(0.001)
    (again,) = q.claim(jobs)
    assert (again.id, again.attempt) == ("a0", 2)
    again.ack()
    assert ids(q.claim(jobs)) == ["a1"]


def test_other_lanes_go_on_while_one_retries(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, lane("a", 2) + lane("b", 5))
    batch = q.claim(jobs)
    q.nack([d for d in batch if d.lane == "a"], delay=100)
    q.ack([d for d in batch if d.lane == "b"])
    assert drain(q) == [f"b{n}" for n in range(1, 5)]
    clock.advance(100)
    assert drain(q) == ["a0", "a1"]


Ending = Callable[[duly.Client, duly.ManualClock, duly.Delivery], None]


def ack(q: duly.Client, clock: duly.ManualClock, d: duly.Delivery) -> None:
    d.ack()


def bury(q: duly.Client, clock: duly.ManualClock, d: duly.Delivery) -> None:
    d.bury()


def last_nack(q: duly.Client, clock: duly.ManualClock, d: duly.Delivery) -> None:
    for _ in range(2):
        d.nack(delay=0)
        (d,) = q.claim("jobs", max_messages=1)
    d.nack()


def cancel_and_nack(q: duly.Client, clock: duly.ManualClock, d: duly.Delivery) -> None:
    assert q.cancel("jobs", d.id) == {d.id: "leased"}
    d.nack()


def cancel_and_release(q: duly.Client, clock: duly.ManualClock, d: duly.Delivery) -> None:
    q.cancel("jobs", d.id)
    d.release()


def cancel_and_ack(q: duly.Client, clock: duly.ManualClock, d: duly.Delivery) -> None:
    q.cancel("jobs", d.id)
    d.ack()


def cancel_and_lose(q: duly.Client, clock: duly.ManualClock, d: duly.Delivery) -> None:
    q.cancel("jobs", d.id)
    clock.advance(30)


def cancel_while_it_retries(q: duly.Client, clock: duly.ManualClock, d: duly.Delivery) -> None:
    d.nack(delay=1000)
    assert q.cancel("jobs", d.id) == {d.id: "cancelled"}


def cancel_when_released(q: duly.Client, clock: duly.ManualClock, d: duly.Delivery) -> None:
    d.release()
    assert q.cancel("jobs", d.id) == {d.id: "cancelled"}


def lose_three_times(q: duly.Client, clock: duly.ManualClock, d: duly.Delivery) -> None:
    for _ in range(2):
        clock.advance(30)
        assert ids(q.claim("jobs", max_messages=1)) == [d.id]
    clock.advance(30)


ENDINGS: dict[str, Ending] = {
    end.__name__.replace("_", " "): end
    for end in (
        ack, bury, last_nack, cancel_and_nack, cancel_and_release, cancel_and_ack, cancel_and_lose,
        cancel_while_it_retries, cancel_when_released, lose_three_times,
    )
}  # fmt: skip


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS.keys())
def test_however_a_message_ends_the_next_of_its_lane_comes_and_one_only(
    q: duly.Client, jobs: str, clock: duly.ManualClock, end: Ending
) -> None:
    q.publish(jobs, lane("a", 4))
    (d,) = q.claim(jobs)
    assert not len(q.claim(jobs))
    end(q, clock, d)
    (d,) = q.claim(jobs)
    assert d.id == "a1"
    assert not len(q.claim(jobs))
    end(q, clock, d)
    assert ids(q.claim(jobs)) == ["a2"]
    assert not len(q.claim(jobs))


def test_a_message_that_expires_in_its_lane_lets_the_next_pass(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, lane("a", 1) + lane("a", 3, 1, ttl=5) + lane("a", 2, 4))
    held = q.claim(jobs)
    clock.advance(6)
    held.ack()
    assert drain(q) == ["a4", "a5"]
    assert q.describe_topic(jobs).messages == 0


def test_the_head_of_a_lane_may_expire_before_it_is_claimed(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, lane("a", 2, ttl=5) + lane("a", 1, 2) + lane("b", 1))
    q.claim(jobs, max_messages=1).release()
    clock.advance(6)
    assert sorted(drain(q)) == ["a2", "b0"]
    assert q.describe_topic(jobs).messages == 0


def test_expired_under_its_lease_and_nacked_it_frees_its_lane(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, lane("a", 1, ttl=5) + lane("a", 2, 1))
    held = q.claim(jobs)
    clock.advance(6)
    held.nack()
    assert drain(q) == ["a1", "a2"]


def test_retrying_and_expired_it_frees_its_lane(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, lane("a", 1, ttl=5) + lane("a", 2, 1))
    q.claim(jobs).nack(delay=10)
    clock.advance(10)
    assert drain(q) == ["a1", "a2"]
    assert q.describe_topic(jobs).messages == 0


def test_a_released_message_is_first_of_its_lane_again(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("a", 3))
    for _ in range(5):
        batch = q.claim(jobs)
        assert [(d.id, d.attempt) for d in batch] == [("a0", 1)]
        batch.release()
    assert drain(q) == ["a0", "a1", "a2"]


def test_a_lost_lease_keeps_the_order(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, lane("a", 3) + lane("b", 3))
    old = q.claim(jobs, consumer="crashed")
    clock.advance(30)
    seen: dict[str | None, list[str]] = {"a": [], "b": []}
    while batch := q.claim(jobs):
        assert all(count == 1 for count in Counter(d.lane for d in batch).values())
        for d in batch:
            seen[d.lane].append(d.id)
        batch.ack()
    assert seen == {name: [f"{name}{n}" for n in range(3)] for name in ("a", "b")}
    assert old.ack().done == 0


def test_what_waits_in_a_lane_is_cancelled_and_the_order_stays(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("a", 6) + lane("a", 1, 6, due=500))
    held = q.claim(jobs)
    assert q.cancel(jobs, ["a2", "a3", "a6"]) == dict.fromkeys(["a2", "a3", "a6"], "cancelled")
    assert q.cancel(jobs, "a2") == {"a2": "finished"}
    held.ack()
    assert drain(q) == ["a1", "a4", "a5"]
    assert q.describe_topic(jobs).messages == 0


def test_a_redriven_message_comes_back_into_its_lane(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("a", 3))
    q.bury(q.claim(jobs))
    held = q.claim(jobs)
    assert ids(held) == ["a1"]
    assert q.redrive(jobs) == 1
    assert not len(q.claim(jobs))
    held.ack()
    assert sorted(drain(q)) == ["a0", "a2"]


def test_states_are_told_in_a_limited_lane(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("a", 3) + lane("a", 1, 3, due=60))
    (d,) = q.claim(jobs)
    assert [(m.id, m.state) for m in q.browse(jobs)] == [
        ("a0", "leased"), ("a1", "ready"), ("a2", "ready"), ("a3", "waiting"),
    ]  # fmt: skip
    d.nack()
    found = [q.get(jobs, f"a{n}") for n in range(4)]
    assert [None if m is None else m.state for m in found] == ["retrying", "ready", "ready", "waiting"]
    assert q.describe_topic(jobs).messages == 4


@pytest.mark.parametrize("messages", [[duly.Message(b"", priority=1)], [b"", duly.Message(b"", lane="a", priority=9)]])
def test_a_priority_is_refused_where_order_is_kept(q: duly.Client, jobs: str, messages: list[Any]) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.publish(jobs, messages)
    assert q.describe_topic(jobs).messages == 0


def test_a_move_is_refused_where_order_is_kept(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("a", 3))
    moves: list[dict[str, Any]] = [{"due": 5}, {"priority": 1}]
    for wanted in moves:
        with pytest.raises(duly.InvalidArgument):
            q.move(jobs, "a0", **wanted)
    assert drain(q) == ["a0", "a1", "a2"]


def test_many_runs_in_few_lanes_keep_their_order(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    for b in range(10):
        q.publish(jobs, [m for name in "abcdefghijklmnopqrst" for m in lane(name, 11, 11 * b)])
    seen: dict[str | None, list[int]] = {}
    while batch := q.claim(jobs, max_messages=1000):
        assert max(Counter(d.lane for d in batch).values()) == 1
        for d in batch:
            seen.setdefault(d.lane, []).append(int(d.payload))
        batch.ack()
    assert seen == {name: list(range(110)) for name in "abcdefghijklmnopqrst"}


# Many lanes, several clients, files opened again


def test_two_thousand_lanes_each_in_its_order(q: duly.Client, jobs: str) -> None:
    for n in range(3):
        q.publish(jobs, [m for at in range(2000) for m in lane(f"l{at}-", 1, n)])
    for n in range(3):
        came: list[str] = []
        batches = []
        while batch := q.claim(jobs, max_messages=700):
            came += ids(batch)
            batches.append(batch)
        assert sorted(came) == sorted(f"l{at}-{n}" for at in range(2000))
        assert sum(batch.ack().done for batch in batches) == 2000
    assert q.describe_topic(jobs).messages == 0


@pytest.mark.parametrize("partitions", [1, 4])
def test_two_clients_never_hold_two_of_a_lane(
    q: duly.Client, reopen: Callable[[], duly.Client], clock: duly.ManualClock, partitions: int
) -> None:
    make(q, partitions=partitions)
    clients = [q, reopen()]
    q.publish("jobs", [m for name in "abcd" for m in lane(name, 15)])
    play(clients, clock, limit=1, seed=partitions, count=60)


@pytest.mark.parametrize("limit", [1, 3])
def test_limits_outlive_reopening(
    q: duly.Client, reopen: Callable[[], duly.Client], clock: duly.ManualClock, limit: int
) -> None:
    make(q, limit)
    q.publish("jobs", lane("a", 10) + lane("b", 10))
    held = q.claim("jobs", max_messages=100)
    assert Counter(d.lane for d in held) == {"a": limit, "b": limit}
    first = next(d for d in held if d.lane == "a")
    first.nack(delay=50)
    q.close()
    again = reopen()
    came = again.claim("jobs", max_messages=100)
    # With one at a time the retry holds its lane; with more its slot is free for another.
    assert Counter(d.lane for d in came) == ({} if limit == 1 else {"a": 1})
    (mine,) = again.held(consumer="w1")
    mine.ack()
    came.ack()
    drained = drain(again)
    clock.advance(50)
    drained += drain(again)
    everything = drained + [d.id for d in [*held, *came] if d is not first]
    assert sorted(everything) == sorted([f"{name}{n}" for name in "ab" for n in range(10)])


def play(clients: list[duly.Client], clock: duly.ManualClock, *, limit: int, seed: int, count: int) -> None:
    """Claims and settles at random until all is done: never more than the limit of a lane, each acked once."""
    draw = random.Random(seed)
    held: dict[str, duly.Delivery] = {}
    done: list[str] = []
    order: dict[str | None, list[int]] = {}
    for _ in range(count * 40):
        if len(done) == count:
            break
        client = draw.choice(clients)
        for d in client.claim("jobs", max_messages=draw.choice([1, 3, 50])):
            assert d.id not in held
            held[d.id] = d
        lanes = Counter(d.lane for d in held.values())
        assert not lanes or max(lanes.values()) <= limit, lanes
        for d in draw.sample(list(held.values()), len(held) // 2 + len(held) % 2):
            del held[d.id]
            what = draw.random()
            if what < 0.6:
                d.ack()
                done.append(d.id)
                order.setdefault(d.lane, []).append(int(d.payload))
            elif what < 0.8:
                d.release()
            elif d.attempt < 3:
                d.nack(delay=draw.choice([0, 1, 5]))
            else:
                d.release()
        clock.advance(draw.choice([0, 0, 1]))
    assert len(done) == len(set(done)) == count
    if limit == 1:
        assert all(numbers == sorted(numbers) for numbers in order.values())


# More than one at a time


def test_three_of_a_lane_at_a_time(q: duly.Client) -> None:
    make(q, 3)
    q.publish("jobs", lane("a", 10) + lane("b", 2))
    batch = q.claim("jobs")
    assert sorted(ids(batch)) == ["a0", "a1", "a2", "b0", "b1"]
    assert not len(q.claim("jobs"))
    q.ack([d for d in batch if d.id in ("a1", "b0")])
    assert ids(q.claim("jobs")) == ["a3"]
    q.bury([d for d in batch if d.id in ("a0", "a2")])
    assert ids(q.claim("jobs")) == ["a4", "a5"]
    assert not len(q.claim("jobs"))


def test_with_three_at_a_time_a_retry_gives_its_slot_to_others(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, 3)
    q.publish("jobs", lane("a", 8))
    q.claim("jobs").nack(delay=10)
    second = q.claim("jobs")
    assert ids(second) == ["a3", "a4", "a5"]
    clock.advance(10)
    assert not len(q.claim("jobs")), "no slot is free"
    second.ack()
    assert len(q.claim("jobs")) == 3
    assert not len(q.claim("jobs"))


def test_with_three_at_a_time_priorities_and_moves_are_taken(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, 3)
    q.publish("jobs", lane("a", 3))
    held = q.claim("jobs")
    q.publish("jobs", lane("a", 6, 3, priority=5))
    assert q.move("jobs", "a8", priority=1) == {"a8": "moved"}
    assert q.move("jobs", ["a3", "a4"], due=60) == {"a3": "moved", "a4": "moved"}
    assert q.cancel("jobs", "a5") == {"a5": "cancelled"}
    assert q.move("jobs", "a0", priority=1) == {"a0": "leased"}
    assert not len(q.claim("jobs"))
    held.ack()
    assert drain(q) == ["a8", "a6", "a7"]
    clock.advance(59.999)
    assert drain(q) == []
    clock.advance(0.001)
    assert drain(q) == ["a3", "a4"]
    assert q.describe_topic("jobs").messages == 0


def test_a_ready_message_that_is_moved_or_cancelled_gives_its_slot_back(
    q: duly.Client, clock: duly.ManualClock
) -> None:
    make(q, 3)
    q.publish("jobs", lane("a", 9))
    q.claim("jobs", max_messages=1).release()
    # Three have slots now, and nobody holds them.
    assert q.cancel("jobs", ["a0", "a1"]) == {"a0": "cancelled", "a1": "cancelled"}
    assert q.move("jobs", "a2", due=60) == {"a2": "moved"}
    assert ids(q.claim("jobs")) == ["a3", "a4", "a5"]
    clock.advance(29)
    assert not len(q.claim("jobs"))


@pytest.mark.parametrize("limit", [2, 5])
def test_never_more_than_the_limit(q: duly.Client, clock: duly.ManualClock, limit: int) -> None:
    make(q, limit)
    q.publish("jobs", [m for name in "abc" for m in lane(name, 20)])
    play([q], clock, limit=limit, seed=limit, count=60)


def test_a_limit_that_is_changed_holds_from_then_on(q: duly.Client) -> None:
    make(q, 2)
    q.publish("jobs", lane("a", 20))
    first = q.claim("jobs")
    assert len(first) == 2
    q.update_topic("jobs", lanes=duly.Lanes(max_in_flight=5))
    first.ack()
    second = q.claim("jobs")
    assert len(second) == 5
    q.update_topic("jobs", lanes=duly.Lanes(max_in_flight=1))
    second.ack()
    third = q.claim("jobs")
    assert len(third) == 1
    third.ack()
    q.update_topic("jobs", lanes=duly.Lanes())
    assert drain(q) == [f"a{n}" for n in range(8, 20)]


def test_a_limit_that_is_raised_lets_more_in_at_once(q: duly.Client) -> None:
    make(q, 2)
    q.publish("jobs", lane("a", 20))
    assert len(q.claim("jobs")) == 2
    q.update_topic("jobs", lanes=duly.Lanes(max_in_flight=5))
    assert len(q.claim("jobs")) == 3
    assert not len(q.claim("jobs"))


def test_what_waits_in_lanes_is_seen_and_served_when_the_limits_are_gone(q: duly.Client) -> None:
    make(q, 2)
    q.publish("jobs", lane("a", 6))
    q.claim("jobs").ack()
    q.update_topic("jobs", lanes=duly.Lanes())
    assert [m.id for m in q.browse("jobs")] == [f"a{n}" for n in range(2, 6)]
    assert q.describe_topic("jobs").messages == 4
    assert q.cancel("jobs", "a3") == {"a3": "cancelled"}
    assert drain(q) == ["a2", "a4", "a5"]


def test_limits_given_later_hold_for_what_is_there(q: duly.Client) -> None:
    make(q, None)
    q.publish("jobs", [m for b in range(3) for m in lane("a", 1000, 1000 * b)])
    held = q.claim("jobs", max_messages=2)
    q.update_topic("jobs", lanes=duly.Lanes(max_in_flight=3))
    held.ack()
    came = drain(q)
    assert sorted(came, key=lambda text: int(text[1:])) == [f"a{n}" for n in range(2, 3000)]
    q.publish("jobs", lane("b", 10))
    assert len(q.claim("jobs")) == 3


def test_a_claim_that_waits_is_woken_when_a_lane_is_free(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("a", 2))
    held = q.claim(jobs)
    with Aside(lambda: ids(q.claim(jobs, wait=10))) as claim:
        assert claim.still_running_after(0.05)
        held.ack()
        assert claim.result() == ["a1"]


# So many a second


@pytest.mark.parametrize("rate", [0.5, 1, 4, 50, 2000])
def test_no_lane_goes_faster_than_its_rate(q: duly.Client, clock: duly.ManualClock, rate: float) -> None:
    make(q, None, rate, lease=3600)
    total = max(10, min(400, int(5 * rate)))
    names = ["a", "b"]
    q.publish("jobs", [m for name in names for m in lane(name, total)])
    start = clock.now_ms()
    came: dict[str | None, list[int]] = {name: [] for name in names}
    draw = random.Random(31)
    for _ in range(4000):
        while batch := q.claim("jobs", max_messages=1000):
            for d in batch:
                came[d.lane].append(clock.now_ms() - start)
            batch.ack()
        if all(len(times) == total for times in came.values()):
            break
        clock.advance(draw.choice([0.001, 0.1, 0.25, 1.5]) if rate >= 1 else draw.choice([0.1, 1, 3]))
    for name, times in came.items():
        assert len(times) == total, name
        # In no window more than one, a little saved up, and the rate for its length.
        for at, first in enumerate(times):
            for many, last in enumerate(times[at:], 1):
                assert many <= 1 + rate * (0.15 + (last - first) / 1000) + 1e-6, (name, first, last, many)


def test_a_lane_gets_its_whole_rate(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, None, 10, lease=3600)
    q.publish("jobs", lane("a", 200))
    came = 0
    for _ in range(100):
        came += len(drain(q))
        clock.advance(0.1)
    assert 100 <= came <= 110


def test_tokens_are_saved_for_a_fraction_of_a_second_and_no_longer(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, None, 50, lease=3600)
    clock.advance(3600)
    q.publish("jobs", lane("a", 30))
    assert len(drain(q)) == 1
    clock.advance(3600)
    assert len(drain(q)) == 7
    clock.advance(0.02)
    assert len(drain(q)) == 1


def test_a_rate_is_each_lanes_own(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, None, 1)
    q.publish("jobs", [m for at in range(100) for m in lane(f"l{at}-", 2)])
    assert sorted(drain(q)) == sorted(f"l{at}-0" for at in range(100))
    clock.advance(0.999)
    assert drain(q) == []
    clock.advance(0.001)
    assert sorted(drain(q)) == sorted(f"l{at}-1" for at in range(100))


def test_a_rate_outlives_reopening(q: duly.Client, clock: duly.ManualClock, reopen: Callable[[], duly.Client]) -> None:
    make(q, None, 0.1)
    q.publish("jobs", lane("a", 3))
    assert drain(q) == ["a0"]
    q.close()
    again = reopen()
    clock.advance(9.999)
    assert drain(again) == []
    clock.advance(0.001)
    assert drain(again) == ["a1"]


def test_a_rate_and_so_many_at_once_hold_together(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, 2, 40)
    q.publish("jobs", lane("a", 20))
    first = list(q.claim("jobs"))
    clock.advance(0.025)
    first += q.claim("jobs")
    assert len(first) == 2
    clock.advance(5)
    assert not len(q.claim("jobs"))
    q.ack(first)
    came = drain(q)
    assert 1 <= len(came) <= 7, "what was saved up"
    clock.advance(0.025)
    assert len(drain(q)) == 1


def test_a_rate_wakes_a_waiting_claim(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, None, 1)
    q.publish("jobs", lane("a", 2))
    assert drain(q) == ["a0"]
    with Aside(lambda: ids(q.claim("jobs", wait=10))) as claim:
        assert claim.still_running_after(0.05)
        clock.advance(1)
        assert claim.result() == ["a1"]


def test_an_expired_message_does_not_stop_a_lane_with_a_rate(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, None, 1)
    q.publish("jobs", lane("a", 5, ttl=1) + lane("a", 2, 5))
    clock.advance(2)
    came: list[str] = []
    for _ in range(8):
        came += drain(q)
        clock.advance(1)
    assert came == ["a5", "a6"]


# Anything, in any order


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "claim", "claim", "ack", "nack", "release", "bury", "cancel", "wait", "lose"]),
        st.integers(0, 1000),
    ),
    max_size=60,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, limit=st.sampled_from([1, 1, 2]))
def test_whatever_is_done_no_lane_has_more_than_its_limit_and_none_is_stuck(
    steps: list[tuple[str, int]], limit: int
) -> None:
    clock = duly.ManualClock()
    with duly.connect(":memory:", clock=clock, consumer="w1") as q:
        make(q, limit, retry=sharp(1, max_attempts=9999), lease=1000)
        open_ids: dict[str, None] = {}
        held: dict[str, duly.Delivery] = {}
        cancelled: set[str] = set()
        made: Counter[str] = Counter()

        def back(d: duly.Delivery) -> None:
            del held[d.id]
            if d.id in cancelled:
                del open_ids[d.id]

        for what, number in steps:
            name = "abc"[number % 3]
            chosen = list(held.values())[: 1 + number % 3]
            if what == "publish":
                fresh = lane(name, 1 + number % 4, made[name], due=number % 2)
                made[name] += len(fresh)
                q.publish("jobs", fresh)
                open_ids.update(dict.fromkeys(m.id or "" for m in fresh))
            elif what == "claim":
                for d in q.claim("jobs", max_messages=1 + number % 5):
                    assert d.id in open_ids
                    assert d.id not in held
                    held[d.id] = d
                lanes = Counter(d.lane for d in held.values())
                assert not lanes or max(lanes.values()) <= limit
            elif what == "ack":
                assert q.ack(chosen).done == len(chosen)
                for d in chosen:
                    del held[d.id]
                    del open_ids[d.id]
            elif what == "bury":
                assert q.bury(chosen).done == len(chosen)
                for d in chosen:
                    del held[d.id]
                    del open_ids[d.id]
            elif what == "nack":
                q.nack(chosen, delay=number % 3)
                for d in chosen:
                    back(d)
            elif what == "release":
                q.release(chosen)
                for d in chosen:
                    back(d)
            elif what == "cancel" and made[name]:
                text = f"{name}{number % made[name]}"
                (answer,) = q.cancel("jobs", text).values()
                assert (answer == "cancelled") == (text in open_ids and text not in held), (text, answer)
                if answer == "cancelled":
                    del open_ids[text]
                elif answer == "leased":
                    cancelled.add(text)
            elif what == "lose" and number % 7 == 0:
                clock.advance(1000)
                for d in list(held.values()):
                    back(d)
            elif what == "wait":
                clock.advance(number % 3)
        q.ack(list(held.values()))
        for text in held:
            del open_ids[text]
        came: list[str] = []
        for _ in range(5):
            clock.advance(10)
            came += drain(q)
        assert sorted(came) == sorted(open_ids)
