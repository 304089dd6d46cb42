"""The order of a queue: priority first, then due time, then arrival; never early, whatever the size."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

import pyarrow as pa
import pytest

import duly
from duly.clock import from_ms
from tests.conftest import scaled

Row = tuple[int, int, int]


@pytest.fixture
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue", lease=30)
    return "jobs"


def table(rows: list[Row]) -> pa.Table:
    """(priority, due, number) as a batch; the number is the payload."""
    return pa.table(
        {
            "payload": pa.array([b"%d" % number for _, _, number in rows], pa.binary()),
            "priority": pa.array([priority for priority, _, _ in rows], pa.int32()),
            "due_at": pa.array([due for _, due, _ in rows], pa.int64()),
        }
    )


def drain(q: duly.Client, topic: str, most: int = 1000) -> list[bytes]:
    """Claims and acks until nothing comes."""
    found: list[bytes] = []
    while batch := q.claim(topic, max_messages=most):
        found += batch.payloads
        batch.ack()
    return found


def test_the_smallest_priority_comes_first(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [duly.Message(b"%d" % p, priority=p) for p in (5, 65_535, 0, 1, 256, 255)])
    q.publish(jobs, b"default")
    assert drain(q, jobs) == [b"0", b"default", b"1", b"5", b"255", b"256", b"65535"]


def test_among_equal_priorities_the_earlier_due_comes_first(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [duly.Message(b"%d" % s, due=s) for s in (30, 10, 20)])
    q.publish(jobs, [duly.Message(b"%d" % s, due=timedelta(seconds=s)) for s in (25, 5)])
    clock.advance(60)
    q.publish(jobs, b"now")
    assert drain(q, jobs, 2) == [b"5", b"10", b"20", b"25", b"30", b"now"]


def test_among_equal_due_times_the_first_to_arrive_comes_first(q: duly.Client, jobs: str) -> None:
    for n in range(0, 30, 3):
        q.publish(jobs, [b"%d" % (n + k) for k in range(3)])
    assert drain(q, jobs, 7) == [b"%d" % n for n in range(30)]


def test_overdue_messages_published_late_come_by_their_due_time(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    now = clock.now_ms()
    dues = random.Random(3).sample(range(1, 1000), 200)
    for some in (dues[:50], dues[50:51], dues[51:120], dues[120:]):
        q.publish(jobs, [duly.Message(b"%d" % ago, due=from_ms(now - ago)) for ago in some])
    assert drain(q, jobs, 33) == [b"%d" % ago for ago in sorted(dues, reverse=True)]


def test_what_is_claimed_between_does_not_disturb_the_order(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    """Each claim brings exactly the front of what is standing then."""
    draw = random.Random(11)
    standing: list[Row] = []
    number = 0
    for _ in range(60):
        rows = [
            (draw.choice([0, 1, 2, 9]), clock.now_ms() - draw.randrange(5000), number + at)
            for at in range(draw.choice([1, 5, 40]))
        ]
        number += len(rows)
        q.publish(jobs, table(rows))
        standing = sorted(standing + rows)
        clock.advance(draw.choice([0, 0.001, 1]))
        batch = q.claim(jobs, max_messages=draw.choice([1, 3, 10, 50]))
        assert batch.payloads == [b"%d" % n for _, _, n in standing[: len(batch)]]
        standing = standing[len(batch) :]
        batch.ack()
    assert drain(q, jobs) == [b"%d" % n for _, _, n in standing]


def test_hundreds_of_batches_of_a_thousand_come_in_exact_order(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    """Past what fits into fresh entries, past sixteen runs, with claims between and more urgent ones after them."""
    draw = random.Random(5)
    standing: list[Row] = []
    number = 0
    for turn in range(scaled(100, 200)):
        now = clock.now_ms()
        rows = [(draw.randrange(1000), now - draw.randrange(1000), number + at) for at in range(1000)]
        number += 1000
        q.publish(jobs, table(rows))
        standing += rows
        clock.advance(0.01)
        if turn % 5 == 4:
            standing.sort()
            want = draw.choice([1, 500, 2500])
            batch = q.claim(jobs, max_messages=want)
            assert batch.payloads == [b"%d" % n for _, _, n in standing[:want]]
            standing = standing[want:]
            batch.ack()
    assert drain(q, jobs, 10_000) == [b"%d" % n for _, _, n in sorted(standing)]


def test_each_batch_more_urgent_than_the_last_and_nothing_is_lost(q: duly.Client, jobs: str) -> None:
    """Runs are served from, then newer ones sort before them: folding must not take those for served."""
    served = []
    batches = 40
    for urgency in range(batches, 0, -1):
        q.publish(jobs, [duly.Message(b"%d-%d" % (urgency, at), priority=urgency) for at in range(1200)])
        batch = q.claim(jobs, max_messages=100)
        served += batch.payloads
        batch.ack()
    served += drain(q, jobs, 5000)
    assert len(served) == batches * 1200
    assert len(set(served)) == batches * 1200


# Due times


def test_nothing_is_delivered_before_its_millisecond(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [duly.Message(b"%d" % ms, due=ms / 1000) for ms in (1, 2, 50, 1000, 86_400_000)])
    seen = []
    for step in (0, 1, 1, 47, 1, 949, 1, 86_398_999, 1):
        clock.advance(step / 1000)
        seen.append(drain(q, jobs))
    assert seen == [[], [b"1"], [b"2"], [], [b"50"], [], [b"1000"], [], [b"86400000"]]


def test_a_due_moment_in_the_past_is_due_now_and_says_so(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    moment = from_ms(clock.now_ms() - 3_600_000)
    q.publish(jobs, duly.Message(b"x", due=moment))
    (delivery,) = q.claim(jobs)
    assert delivery.due == moment


def test_a_delivery_says_priority_lane_and_due(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    due = from_ms(clock.now_ms() + 1000)
    q.publish(jobs, duly.Message(b"x", id="a", key="k", headers={"h": "1"}, due=due, priority=7, lane="acme"))
    clock.advance(1)
    (d,) = q.claim(jobs)
    assert (d.id, d.key, dict(d.headers), d.priority, d.lane, d.due, d.attempt) == (
        "a", "k", {"h": "1"}, 7, "acme", due, 1,
    )  # fmt: skip
    assert d.payload == b"x"


def test_a_plain_message_has_priority_nought_and_no_lane(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, b"x")
    (d,) = q.claim(jobs)
    assert (d.priority, d.lane, d.key, dict(d.headers)) == (0, None, None, {})


def test_what_waits_comes_due_whatever_was_published_since(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    draw = random.Random(7)
    waiting: list[Row] = []
    for n in range(500):
        due = clock.now_ms() + draw.randrange(60_000)
        waiting.append((draw.randrange(3), due, n))
    for at in range(0, 500, 25):
        q.publish(jobs, table(waiting[at : at + 25]))
    for _ in range(30):
        clock.advance(2)
        ready = sorted(row for row in waiting if row[1] <= clock.now_ms())
        waiting = [row for row in waiting if row[1] > clock.now_ms()]
        assert drain(q, jobs, 20) == [b"%d" % n for _, _, n in ready]
    assert not waiting


def test_more_than_one_step_of_promotion_in_one_millisecond(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    """A midnight: all come, by and by, and in their order as far as they are equal."""
    count = 20_000
    midnight = clock.now_ms() + 3_600_000
    for at in range(0, count, 5000):
        q.publish(jobs, table([(3, midnight, n) for n in range(at, at + 5000)]))
    clock.advance(3599.999)
    assert not len(q.claim(jobs))
    clock.advance(0.001)
    assert drain(q, jobs, 999) == [b"%d" % n for n in range(count)]


def test_at_midnight_urgent_ones_pass_the_crowd(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    midnight = clock.now_ms() + 1000
    q.publish(jobs, table([(9, midnight, n) for n in range(20_000)]))
    clock.advance(1)
    assert q.claim(jobs, max_messages=5).payloads == [b"%d" % n for n in range(5)]
    q.publish(jobs, duly.Message(b"urgent", priority=1))
    assert q.claim(jobs, max_messages=1).payloads == [b"urgent"]


# Reopening


def test_order_outlives_the_client(
    q: duly.Client, jobs: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    draw = random.Random(13)
    standing: list[Row] = []
    number = 0
    client = q
    for _ in range(12):
        rows = [
            (draw.randrange(4), clock.now_ms() + draw.choice([-500, 0, 700]), number + at)
            for at in range(draw.choice([3, 700, 4500]))
        ]
        number += len(rows)
        client.publish(jobs, table(rows))
        standing += rows
        clock.advance(0.3)
        client.close()
        client = reopen()
        ready = sorted(row for row in standing if row[1] <= clock.now_ms())
        want = draw.choice([1, 400, 3000])
        batch = client.claim(jobs, max_messages=want)
        assert batch.payloads == [b"%d" % n for _, _, n in ready[:want]]
        taken = set(ready[:want])
        standing = [row for row in standing if row not in taken]
        batch.ack()
    clock.advance(10)
    assert drain(client, jobs, 5000) == [b"%d" % n for _, _, n in sorted(standing)]


def test_two_clients_take_turns_from_one_order(q: duly.Client, jobs: str, reopen: Callable[[], duly.Client]) -> None:
    other = reopen()
    numbers = list(range(300))
    random.Random(17).shuffle(numbers)
    for client, part in ((q, numbers[:150]), (other, numbers[150:])):
        client.publish(jobs, [duly.Message(b"%d" % n, priority=n) for n in part])
    got: list[bytes] = []
    for turn in range(30):
        batch = (q, other)[turn % 2].claim(jobs, max_messages=10)
        got += batch.payloads
        (other, q)[turn % 2].ack(batch)
    assert got == [b"%d" % n for n in range(300)]
    assert not len(q.claim(jobs))


# Bounds


def test_max_bytes_bounds_a_claim_but_one_message_always_fits(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [bytes(400), bytes(400), bytes(400), bytes(5000), b"small"])
    sizes = []
    while batch := q.claim(jobs, max_bytes=1000):
        sizes.append([len(payload) for payload in batch.payloads])
        batch.ack()
    assert sizes == [[400, 400], [400], [5000], [5]]


def test_max_bytes_never_skips_to_a_smaller_one(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [b"a" * 10, bytes(2000), b"b" * 10])
    assert [len(p) for p in q.claim(jobs, max_bytes=100).payloads] == [10]
    assert [len(p) for p in q.claim(jobs, max_bytes=100).payloads] == [2000]


def test_big_payloads_come_back_whole(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    draw = random.Random(19)
    bodies = [draw.randbytes(size) for size in (0, 1, 4095, 4096, 4097, 100_000, 1_000_000)]
    messages = [duly.Message(body, priority=n, due=n % 3) for n, body in enumerate(bodies)]
    q.publish(jobs, messages)
    q.publish(jobs, [duly.Message(b"filler", priority=100)] * 5000)
    clock.advance(5)
    assert q.claim(jobs, max_messages=len(bodies)).payloads == bodies


@pytest.mark.parametrize("many", [63, 64, 65, 1000, 1001, 4095, 4096, 4097, 16_385])
def test_batches_around_every_border(q: duly.Client, jobs: str, many: int) -> None:
    q.publish(jobs, [b"%d" % n for n in range(many)])
    assert drain(q, jobs, 4000) == [b"%d" % n for n in range(many)]
    q.publish(jobs, b"more")
    assert drain(q, jobs) == [b"more"]
