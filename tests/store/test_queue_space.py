"""What a queue takes on the device: what is settled goes, what is not stays, and no offset is given twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import duly
import duly.engine.index
from duly.engine.publish import make_publish_id
from duly.store.sqlite.transaction import SqliteTransaction

from .conftest import Home, sharp
from .patience import eventually

# What is sealed is compressed before: it has other sizes.
pytestmark = pytest.mark.plain


@pytest.fixture
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue", lease=3600, retry=sharp(10, max_attempts=3))
    return "jobs"


def part(q: duly.Client) -> duly.PartitionDescription:
    (found,) = q.describe_topic("jobs").partitions
    return found


def work(q: duly.Client, rounds: int, size: int = 1000, payload: bytes = b"x" * 100) -> None:
    """Publishes, claims and acks."""
    for _ in range(rounds):
        q.publish("jobs", [duly.Message(payload, priority=n % 3 + 1) for n in range(size)])
        assert q.claim("jobs", max_messages=size).ack().done == size


def chores(clock: duly.ManualClock, done: Callable[[], bool]) -> None:
    """Lets time pass until the caretaker has seen to something."""

    def look() -> bool:
        clock.advance(1)
        return done()

    assert eventually(look)


def test_what_is_settled_leaves_the_log(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    work(q, 10)
    chores(clock, lambda: part(q).blocks == 0)
    assert part(q).first_offset == part(q).next_offset == 10_000
    assert part(q).bytes == 0


def test_what_is_not_settled_stays(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    for start in range(0, 50_000, 5000):
        q.publish(jobs, [duly.Message(b"%d" % n) for n in range(start, start + 5000)])
    first = q.claim(jobs, max_messages=5000)
    while len(batch := q.claim(jobs, max_messages=5000)) and batch[-1].offset < 44_999:
        batch.ack()
    batch.ack()
    clock.advance(5)
    assert part(q).first_offset == 0, "the first five thousand are under a lease"
    assert first.ack().done == 5000
    # Settled messages may stay for a while, but no more of them than of the others and twenty thousand.
    chores(clock, lambda: part(q).messages <= 2 * 5000 + 20_000 + 1024)
    assert q.claim(jobs, max_messages=10_000).payloads == [b"%d" % n for n in range(45_000, 50_000)]


@pytest.mark.parametrize("what", ["timed", "leased", "retrying", "dead", "ready"])
def test_one_old_message_pins_nothing_and_is_kept(
    q: duly.Client, jobs: str, clock: duly.ManualClock, what: str
) -> None:
    """Beside it, in its own block, ninety-nine others that are settled."""
    old: duly.Delivery | None = None
    if what == "timed":
        q.publish(jobs, duly.Message(b"old", id="old", due=86_400, lane="l"))
        q.publish(jobs, [b"x"] * 99)
        q.claim(jobs, max_messages=99).ack()
    else:
        last = what == "ready"
        q.publish(jobs, [duly.Message(b"old", id="old", lane="l", priority=9 if last else 0), *[b"x"] * 99])
        batch = q.claim(jobs, max_messages=99 if last else 100)
        q.ack([d for d in batch if d.payload != b"old"])
        old = next((d for d in batch if d.payload == b"old"), None)
        if old is not None and what == "leased":
            old.extend(86_400 * 2)
        elif old is not None and what == "retrying":
            old.nack(delay=86_400)
        elif old is not None and what == "dead":
            old.bury("bad")
    work(q, 60)
    chores(clock, lambda: part(q).blocks < 30)
    clock.advance(86_400)
    if what == "dead":
        assert [(letter.id, letter.payload) for letter in q.dead(jobs)] == [("old", b"old")]
        q.redrive(jobs)
    if what == "leased":
        assert old is not None
        old.release()
    assert [(d.id, d.payload, d.lane) for d in q.claim(jobs)] == [("old", b"old", "l")]


def test_offsets_are_never_given_twice(
    q: duly.Client, jobs: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    """The newest blocks may all be gone while an old one is not."""
    q.publish(jobs, duly.Message(b"next month", due=30 * 86_400))
    work(q, 30)
    chores(clock, lambda: part(q).blocks < 30)
    clock.advance(120)
    assert part(q).next_offset == 30_001
    q.close()
    client = reopen()
    assert client.publish(jobs, b"new").positions == [(0, 30_001)]
    assert client.claim(jobs).payloads == [b"new"]
    clock.advance(30 * 86_400)
    assert sorted(client.claim(jobs).payloads + client.claim(jobs).payloads) == [b"new", b"next month"]


def test_offsets_go_on_after_everything_is_gone(
    q: duly.Client, jobs: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    work(q, 3)
    chores(clock, lambda: part(q).blocks == 0)
    q.close()
    client = reopen()
    assert client.publish(jobs, b"x").positions == [(0, 3000)]
    assert client.claim(jobs).payloads == [b"x"]


def test_a_thin_scatter_of_living_messages_does_not_hold_the_whole_log(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    kept = []
    for n in range(40):
        q.publish(jobs, [duly.Message(b"%d" % n, due=86_400), *[b"x"] * 999])
        q.claim(jobs, max_messages=999).ack()
        kept.append(b"%d" % n)
    chores(clock, lambda: part(q).blocks <= 25)
    clock.advance(86_400)
    assert q.claim(jobs, max_messages=1000).payloads == kept


def test_space_returns_to_the_device(home: Home, q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    work(q, 1)
    before = home.bytes_on_device()
    q.publish(jobs, [duly.Message(bytes(2000), priority=n % 7) for n in range(20_000)])
    full = home.bytes_on_device()
    while batch := q.claim(jobs, max_messages=5000):
        batch.ack()
    chores(clock, lambda: home.bytes_on_device() < before + (full - before) / 4)


def test_the_same_file_serves_any_number_of_messages(
    home: Home, q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    """A queue that is kept up with does not grow."""
    first = 0
    for _ in range(5):
        work(q, 20)
        chores(clock, lambda: part(q).blocks <= 40)
        first = first or home.bytes_on_device()
    # PostgreSQL makes room of what was dropped a moment later.
    eventually(lambda: home.bytes_on_device() <= first * 2 + 1_000_000)


def test_truncation_never_passes_what_stands_in_runs(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    draw = random.Random(31)
    standing: dict[bytes, int] = {}
    for n in range(20):
        body = [b"%d-%d" % (n, at) for at in range(2000)]
        priorities = [draw.randrange(100) for _ in body]
        q.publish(jobs, [duly.Message(b, priority=p) for b, p in zip(body, priorities, strict=True)])
        standing.update(zip(body, priorities, strict=True))
        batch = q.claim(jobs, max_messages=1500)
        for d in batch:
            del standing[d.payload]
        batch.ack()
        clock.advance(2)
    left: list[bytes] = []
    while batch := q.claim(jobs, max_messages=5000):
        left += batch.payloads
        batch.ack()
        clock.advance(2)
    assert sorted(left) == sorted(standing)
    assert [standing[b] for b in left] == sorted(standing.values())


def test_retention_by_age_never_drops_what_is_queued(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("jobs", kind="queue", lease=30, retention=duly.Retention(age=10, bytes=1000))
    q.publish("jobs", [duly.Message(b"%d" % n, due=3600) for n in range(100)])
    q.publish("jobs", [b"x"] * 100)
    q.claim("jobs").ack()
    clock.advance(3600)
    assert q.claim("jobs").payloads == [b"%d" % n for n in range(100)]


def test_a_store_with_a_queue_is_found_whole(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [duly.Message(b"x" * 50, priority=n % 9, due=n % 3, lane=f"l{n % 5}") for n in range(9000)])
    clock.advance(1)
    q.claim(jobs, max_messages=500)
    q.claim(jobs, max_messages=500).nack()
    q.bury(q.claim(jobs, max_messages=10))
    assert not [finding for finding in q.examine() if finding.level in ("alert", "error")]


@pytest.mark.sqlite
def test_a_big_run_that_is_consumed_goes_in_steps_and_wholly(
    home: Home, q: duly.Client, jobs: str, clock: duly.ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    for name in ("run_delete", "run_trim"):
        monkeypatch.setattr(SqliteTransaction, name, counting(getattr(SqliteTransaction, name), steps))
    monkeypatch.setattr(duly.engine.index, "SWEEP_BLOCKS", 5)
    q.publish(jobs, [b"x" * 100] * 30_000)
    while q.claim(jobs, max_messages=7_000).ack().done:
        assert [finding for finding in q.examine() if finding.level == "alert"] == []
    chores(clock, lambda: home.rows("duly_run") == home.rows("duly_run_block") == home.rows("duly_run_data") == 0)
    assert len(steps) > 5
    assert max(steps) <= 5
    q.publish(jobs, b"another")
    assert q.claim(jobs)[0].payload == b"another"


def counting(real: Callable[..., None], steps: list[int]) -> Callable[..., None]:
    """Counts the blocks that go by each call."""

    def call(tx: SqliteTransaction, *args: Any) -> None:
        ((before,),) = tx._connection.execute("SELECT count(*) FROM duly_run_block")
        real(tx, *args)
        ((after,),) = tx._connection.execute("SELECT count(*) FROM duly_run_block")
        steps.append(before - after)

    return call


def repeatable(clock: duly.ManualClock) -> str:
    """A publish id as clients of a broker make them."""
    return make_publish_id(clock.now_ms(), repeatable=True)


def test_a_publish_is_not_stored_again_though_its_messages_are_gone(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    one, many = repeatable(clock), repeatable(clock)
    first = q.publish(jobs, b"one", publish_id=one)
    q.publish(jobs, b"another")
    others = q.publish(jobs, [b"%d" % n for n in range(3000)], publish_id=many)
    assert q.claim(jobs, max_messages=4000).ack().done == 3002
    chores(clock, lambda: part(q).blocks == 0)
    again = q.publish(jobs, b"one", publish_id=one)
    assert again.duplicate
    assert again.positions == first.positions
    assert q.publish(jobs, [b"%d" % n for n in range(3000)], publish_id=many).positions == others.positions
    assert q.describe_topic(jobs).messages == 0


def test_nor_are_those_whose_block_went_from_the_middle_of_the_log(
    q: duly.Client, jobs: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    q.publish(jobs, duly.Message(b"next year", due=86_400 * 365))
    clock.advance(600)
    ids = [repeatable(clock) for _ in range(30)]
    for publish_id in ids:
        q.publish(jobs, [b"x" * 100] * 1000, publish_id=publish_id)
        q.claim(jobs, max_messages=1000).ack()
    chores(clock, lambda: part(q).blocks <= 2)
    q.close()
    q = reopen()
    assert all(q.publish(jobs, [b"x" * 100] * 1000, publish_id=publish_id).duplicate for publish_id in ids)
    assert q.describe_topic(jobs).messages == 1


def test_publishes_that_are_gone_are_forgotten_after_an_hour(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    publish_id = repeatable(clock)
    q.publish(jobs, b"one", publish_id=publish_id)
    q.claim(jobs).ack()
    chores(clock, lambda: part(q).blocks == 0)
    clock.advance(3700)
    chores(clock, lambda: not q.publish(jobs, b"one", publish_id=publish_id).duplicate)
