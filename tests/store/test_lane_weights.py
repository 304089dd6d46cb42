"""Weights changed while a backlog stands hold for it at once; nothing is lost, and no lane loses its order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

import duly
import duly.engine.fold
import duly.engine.index
from duly.clock import from_ms
from tests.conftest import scaled

from .conftest import Home
from .test_queue_lanes import lane, served
from .test_queue_space import chores

STALE_RUNS = "SELECT count(*) FROM duly_run WHERE kind >= 3"


@pytest.fixture
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue", lease=3600, retry=duly.RetryPolicy(base=1, shape="fixed", jitter="none"))
    return "jobs"


def weigh(q: duly.Client, **weights: float) -> None:
    q.update_topic("jobs", lanes=duly.Lanes(weights=weights))


def smaller_steps(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """As if the backlog were so much bigger."""
    for verb in (duly.engine.index.Index.promote, duly.engine.index.Index.retag):
        monkeypatch.setattr(verb, "__defaults__", (most,))


def backlog(q: duly.Client, count: int, *names: str | None, step: int = 2_000) -> None:
    """So many messages of each lane in runs, numbered lane by lane."""
    for start in range(0, count, step):
        for name in names:
            q.publish("jobs", [duly.Message(b"%d" % n, lane=name) for n in range(start, start + step)])


def test_other_weights_hold_for_a_backlog_at_once_and_nothing_of_it_is_lost(q: duly.Client, jobs: str) -> None:
    backlog(q, 20_000, "a", "b", step=4_000)
    numbers: dict[str | None, list[int]] = {"a": [], "b": []}

    def take(count: int) -> Counter[str | None]:
        batch = q.claim(jobs, max_messages=count)
        for delivery in batch:
            numbers[delivery.lane].append(int(delivery.payload))
        batch.ack()
        return Counter(delivery.lane for delivery in batch)

    assert abs(take(1000)["a"] - 500) <= 2
    weigh(q, a=3)
    for _ in range(4):
        assert abs(take(250)["a"] - 187.5) <= 3
    weigh(q, b=9)
    assert abs(take(1000)["b"] - 900) <= 3
    while take(5_000):
        pass
    assert numbers == {"a": [*range(20_000)], "b": [*range(20_000)]}


def test_what_is_young_gets_other_tags_too(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("a", 800) + lane("b", 800))
    served(q, jobs, 100)
    weigh(q, a=3)
    assert abs(served(q, jobs, 400).count("a") - 300) <= 3


def test_what_came_overdue_stays_behind_what_stood_in_its_lane(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    backlog(q, 2_000, "a", "b")
    q.publish(jobs, [duly.Message(b"overdue", lane="a", due=from_ms(clock.now_ms() - 60_000))] * 5)
    q.publish(jobs, lane("b", 2_000))
    weigh(q, a=3)
    payloads = [d.payload for d in q.claim(jobs, max_messages=6_005) if d.lane == "a"]
    assert payloads[-5:] == [b"overdue"] * 5


def test_a_weight_for_a_lane_that_has_nothing_ready_leaves_a_backlog_as_it_is(
    q: duly.Client, jobs: str, home: Home
) -> None:
    backlog(q, 2_000, "a", "b")
    weigh(q, c=5)
    assert home.ask(STALE_RUNS) == [(0,)]
    weigh(q, c=5, b=2)
    assert home.ask(STALE_RUNS) != [(0,)]
    q.publish(jobs, lane("c", 1_000))
    shares = Counter(served(q, jobs, 800))
    assert all(abs(shares[name] - 100 * weight) <= 3 for name, weight in {"a": 1, "b": 2, "c": 5}.items())


def test_beside_a_backlog_that_waits_for_new_tags_a_quiet_lane_is_served_at_once(
    q: duly.Client, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller_steps(monkeypatch, 100)
    backlog(q, 10_000, "a", "b")
    weigh(q, a=0.5, b=2)
    batch = 20
    for turn in range(30):
        for quiet in (f"quiet{turn}", None):
            q.publish(jobs, duly.Message(b"q", lane=quiet))
            # What was published in busy lanes meanwhile waits behind what stands there.
            q.publish(jobs, lane("a", 5) + lane("b", 5))
            others = served(q, jobs, 60, batch=batch).index(quiet)
            assert others <= batch + 4, f"{others} of others were served first"


def test_smaller_priorities_come_first_whatever_waits_for_new_tags(
    q: duly.Client, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller_steps(monkeypatch, 50)
    for priority in (5, 1):
        for _ in range(2):
            q.publish(jobs, lane("a", 1_100, priority=priority) + lane("b", 1_100, priority=priority))
    q.publish(jobs, lane(None, 500, priority=3))
    weigh(q, a=2)
    served(q, jobs, 100)
    weigh(q, a=7)
    q.publish(jobs, lane("c", 500, priority=4))
    found: list[int] = []
    while batch := q.claim(jobs, max_messages=700):
        found += [delivery.priority for delivery in batch]
        batch.ack()
    assert found == sorted(found)
    assert Counter(found) == {1: 4_300, 3: 500, 4: 500, 5: 4_400}


def test_a_chore_ends_it_though_nobody_claims(
    q: duly.Client, jobs: str, home: Home, clock: duly.ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller_steps(monkeypatch, 700)
    backlog(q, 6_000, "a", "b")
    weigh(q, a=3)
    assert home.ask(STALE_RUNS) != [(0,)]
    chores(clock, lambda: home.ask(STALE_RUNS) == [(0,)])
    assert abs(served(q, jobs, 400).count("a") - 300) <= 3


def test_whatever_happens_to_messages_meanwhile_each_is_accounted_for(
    q: duly.Client,
    jobs: str,
    clock: duly.ManualClock,
    reopen: Callable[[], duly.Client],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights changed again before the backlog has its tags; beside cancels, moves, failures, folds, other clients."""
    smaller_steps(monkeypatch, 60)
    monkeypatch.setattr(duly.engine.fold, "FAN", 3)
    monkeypatch.setattr(duly.engine.fold, "_SLICE", 100)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    clients = [q, reopen()]
    left: set[int] = set()
    touched: set[int] = set()
    order: dict[str | None, list[int]] = {}
    number = 0

    def publish(count: int) -> None:
        nonlocal number
        made = range(number, number + count)
        number += count
        messages = [duly.Message(b"%d" % n, id=f"m{n}", lane=draw.choice(["a", "b", "c", None])) for n in made]
        draw.choice(clients).publish(jobs, messages)
        left.update(made)

    def claim(count: int) -> int:
        client = draw.choice(clients)
        batch = client.claim(jobs, max_messages=count)
        failed = [delivery for delivery in batch if draw.random() < 0.02]
        for delivery in batch:
            n = int(delivery.payload)
            assert n in left, f"{n} was delivered, and it was settled or cancelled before"
            if n not in touched:
                order.setdefault(delivery.lane, []).append(n)
        touched.update(int(delivery.payload) for delivery in failed)
        left.difference_update(int(delivery.payload) for delivery in batch if delivery not in failed)
        client.nack(failed, delay=draw.choice([0, 1]))
        client.ack([delivery for delivery in batch if delivery not in failed])
        return len(batch)

    publish(5_000)
    for _ in range(scaled(40, 300)):
        weigh(draw.choice(clients), a=draw.choice([0.01, 1, 50]), **{"b*": draw.choice([0.5, 7])})
        for _ in range(draw.randrange(4)):
            claim(draw.choice([1, 40, 200]))
        publish(draw.choice([1, 100, 300]))
        for n in draw.sample(sorted(left), min(3, len(left))):
            client = draw.choice(clients)
            found = client.get(jobs, f"m{n}")
            assert found is not None
            assert found.state in ("ready", "retrying")
            if draw.random() < 0.5:
                assert client.cancel(jobs, [f"m{n}"]) == {f"m{n}": "cancelled"}
                left.remove(n)
            else:
                assert client.move(jobs, f"m{n}", due=0) in ("moved", {f"m{n}": "moved"})
            touched.add(n)
        if draw.random() < 0.1:
            clients.append(reopen())
            clients.pop(1).close()
        clock.advance(0.5)
        described = draw.choice(clients).describe_topic(jobs)
        assert described.messages == len(left)
    clock.advance(10)
    while claim(1_000):
        pass
    clock.advance(10)
    while claim(1_000):
        clock.advance(10)
    assert not left
    for name, numbers in order.items():
        kept = [n for n in numbers if n not in touched]
        assert kept == sorted(kept), f"lane {name} lost its order"
