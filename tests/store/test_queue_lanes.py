"""Lanes share a queue by weight: a flood in one delays the others by a turn each, and no more (promise 8)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

import duly
from duly.clock import from_ms

QUIET = 100


@pytest.fixture
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue", lease=3600, lanes=duly.Lanes(weights={"heavy": 3, "vip-*": 2, "light": 0.5}))
    return "jobs"


def lane(name: str | None, count: int, **fields: object) -> list[duly.Message]:
    return [duly.Message(b"%d" % n, lane=name, **fields) for n in range(count)]  # type: ignore[arg-type]


def served(q: duly.Client, topic: str, count: int, *, batch: int = 10) -> list[str | None]:
    """The lanes of the next so many messages, in the order of service."""
    found: list[str | None] = []
    while len(found) < count:
        claimed = q.claim(topic, max_messages=min(batch, count - len(found)))
        assert len(claimed), "there should be more"
        found += [delivery.lane for delivery in claimed]
        claimed.ack()
    return found


@pytest.mark.parametrize("flood", ["noisy", None], ids=["a named lane", "the default lane"])
def test_quiet_lanes_are_served_at_once_beside_a_flood(q: duly.Client, jobs: str, flood: str | None) -> None:
    """At most claimers × batch + active lanes messages of others between a quiet message's publish and its claim."""
    for _ in range(10):
        q.publish(jobs, lane(flood, 5000))
    served(q, jobs, 500, batch=50)
    for turn in range(QUIET):
        name = f"quiet{turn}"
        q.publish(jobs, duly.Message(b"q", lane=name))
        others = served(q, jobs, 60, batch=20).index(name)
        assert others <= 20 + 2, f"{others} of others were served first"


def test_a_hundred_quiet_lanes_together_are_each_served_in_a_round(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("noisy", 50_000))
    served(q, jobs, 1000, batch=100)
    for turn in range(QUIET):
        q.publish(jobs, duly.Message(b"q", lane=f"quiet{turn}"))
    order = served(q, jobs, 300, batch=10)
    last = max(order.index(f"quiet{turn}") for turn in range(QUIET))
    # Each of them has at most one message of every other active lane before it, and the batch at hand.
    assert last <= 10 + QUIET + 1


def test_several_claimers_change_nothing_about_it(q: duly.Client, jobs: str) -> None:
    claimers, batch = 4, 25
    q.publish(jobs, lane("noisy", 10_000))
    for turn in range(20):
        name = f"quiet{turn}"
        q.publish(jobs, duly.Message(b"q", lane=name))
        order = [d.lane for _ in range(2) for c in range(claimers) for d in q.claim(jobs, max_messages=batch)]
        assert order.index(name) <= claimers * batch + 2


def test_lanes_of_equal_weight_take_turns(q: duly.Client, jobs: str) -> None:
    for name in ("a", "b", "c", None):
        q.publish(jobs, lane(name, 100))
    order = served(q, jobs, 400, batch=7)
    for upto in range(4, 401, 4):
        assert set(Counter(order[:upto]).values()) <= {upto // 4 - 1, upto // 4, upto // 4 + 1}


def test_weights_give_shares(q: duly.Client, jobs: str) -> None:
    for name in ("heavy", "other", "light", "vip-1", "vip-2"):
        q.publish(jobs, lane(name, 1000))
    counts = Counter(served(q, jobs, 850, batch=17))
    for name, weight in {"heavy": 3, "other": 1, "light": 0.5, "vip-1": 2, "vip-2": 2}.items():
        assert abs(counts[name] - 100 * weight) <= 4, counts


@pytest.mark.parametrize("batch", [1, 10, 400])
def test_three_to_one_is_three_to_one_all_along(q: duly.Client, jobs: str, batch: int) -> None:
    q.publish(jobs, lane("heavy", 3000))
    q.publish(jobs, lane("other", 3000))
    order = served(q, jobs, 400, batch=batch)
    for upto in range(40, 401, 40):
        assert abs(order[:upto].count("heavy") - 0.75 * upto) <= 3


def test_shares_hold_while_publishing_goes_on(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("heavy", 500) + lane("other", 500))
    counts: Counter[str | None] = Counter()
    for _ in range(60):
        q.publish(jobs, lane("heavy", 30) + lane("other", 30))
        counts.update(served(q, jobs, 20))
    assert abs(counts["heavy"] - 900) <= 10, counts


def test_shares_hold_across_many_runs(q: duly.Client, jobs: str) -> None:
    """Enough publishes for the index to be folded, more than once."""
    draw = random.Random(23)
    names = ["heavy", "other", "vip-1", "light"]
    for _ in range(60):
        q.publish(jobs, [m for name in names for m in lane(name, 300)])
        served(q, jobs, draw.choice([1, 10]))
    counts = Counter(served(q, jobs, 1300, batch=130))
    for name, weight in {"heavy": 3, "other": 1, "vip-1": 2, "light": 0.5}.items():
        assert abs(counts[name] - 200 * weight) <= 4, counts


def test_inside_a_lane_by_due_time_then_arrival(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    dues = [(7 * n) % 50 for n in range(50)]
    q.publish(jobs, [duly.Message(b"%d" % due, lane="a", due=due) for due in dues])
    q.publish(jobs, [duly.Message(b"b%d" % due, lane="b", due=due) for due in dues])
    clock.advance(100)
    batch = q.claim(jobs)
    assert [d.payload for d in batch if d.lane == "a"] == [b"%d" % due for due in sorted(dues)]
    assert [d.payload for d in batch if d.lane == "b"] == [b"b%d" % due for due in sorted(dues)]


def test_shuffled_due_times_that_are_all_overdue_come_in_their_order(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    now = clock.now_ms()
    agos = random.Random(29).sample(range(10_000), 3000)
    q.publish(jobs, [duly.Message(b"%d" % ago, lane=f"l{ago % 3}", due=from_ms(now - ago)) for ago in agos])
    batch = q.claim(jobs, max_messages=3000)
    for name in ("l0", "l1", "l2"):
        own = [int(d.payload) for d in batch if d.lane == name]
        assert own == sorted(own, reverse=True)


def test_what_came_due_first_is_before_what_is_published_now(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, duly.Message(b"due at 10", lane="a", due=10))
    assert not len(q.claim(jobs))
    clock.advance(20)
    q.publish(jobs, duly.Message(b"due at 20", lane="a"))
    assert q.claim(jobs).payloads == [b"due at 10", b"due at 20"]


def test_what_came_due_first_is_before_a_big_batch_published_now(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    """The publisher takes a big batch into the index itself."""
    q.publish(jobs, duly.Message(b"due at 10", lane="a", due=10))
    assert not len(q.claim(jobs))
    clock.advance(20)
    q.publish(jobs, lane("a", 6000))
    assert q.claim(jobs, max_messages=2).payloads == [b"due at 10", b"0"]


def test_what_came_due_first_is_first_after_a_reopen_too(
    q: duly.Client, jobs: str, clock: duly.ManualClock, reopen: Callable[[], duly.Client]
) -> None:
    q.publish(jobs, [duly.Message(b"due at 10", lane="a", due=10), duly.Message(b"due at 30", lane="a", due=30)])
    q.publish(jobs, lane("b", 6000))
    clock.advance(15)
    q.publish(jobs, duly.Message(b"due at 15", lane="a"))
    q.claim(jobs, max_messages=1)
    q.close()
    clock.advance(20)
    client = reopen()
    client.publish(jobs, duly.Message(b"due at 35", lane="a"))
    order = [d.payload for d in client.claim(jobs, max_messages=20) if d.lane == "a"]
    assert order[-2:] == [b"due at 30", b"due at 35"]


def test_priority_comes_before_fairness(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("a", 50, priority=1) + lane("b", 50, priority=2))
    q.publish(jobs, lane(None, 5, priority=0))
    assert served(q, jobs, 105) == [None] * 5 + ["a"] * 50 + ["b"] * 50


def test_shares_are_kept_for_each_priority(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("heavy", 300, priority=5) + lane("other", 300, priority=5))
    first = Counter(served(q, jobs, 100))
    # An interruption by more urgent ones, of the same lanes.
    q.publish(jobs, lane("heavy", 10, priority=1) + lane("other", 10, priority=1))
    served(q, jobs, 20)
    second = Counter(served(q, jobs, 100))
    assert abs(first["heavy"] - 75) <= 2
    assert abs(second["heavy"] - 75) <= 2


def test_what_is_scheduled_for_next_month_costs_nothing_today(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("planner", 10_000, due=30 * 86_400))
    q.publish(jobs, lane("planner", 100) + lane("other", 100))
    order = served(q, jobs, 200)
    assert abs(order[:100].count("planner") - 50) <= 1


def test_what_was_served_last_week_costs_nothing_today(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, lane("early", 5000))
    served(q, jobs, 5000, batch=1000)
    clock.advance(86_400)
    q.publish(jobs, lane("early", 50) + lane("late", 50))
    assert abs(served(q, jobs, 50).count("early") - 25) <= 1


def test_an_idle_lane_saves_up_nothing(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, lane("busy", 2000))
    served(q, jobs, 1000, batch=100)
    q.publish(jobs, lane("idle", 500))
    assert abs(served(q, jobs, 200).count("idle") - 100) <= 3


def test_a_lane_whose_messages_fail_takes_no_more_than_its_share(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, lane("failing", 200) + lane("fine", 200))
    counts: Counter[str | None] = Counter()
    for _ in range(20):
        batch = q.claim(jobs, max_messages=10)
        counts.update(d.lane for d in batch)
        q.nack([d for d in batch if d.lane == "failing"], delay=0)
        q.ack([d for d in batch if d.lane == "fine"])
    assert abs(counts["fine"] - 100) <= 5, counts


def test_a_million_turns_are_not_needed_for_ten_thousand_lanes(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [duly.Message(b"%d" % n, lane=f"l{n}") for n in range(10_000)])
    q.publish(jobs, [duly.Message(b"%d" % n, lane=f"l{n}") for n in range(10_000)])
    order = served(q, jobs, 20_000, batch=1000)
    assert len(set(order[:10_000])) == 10_000
    assert len(set(order[10_000:])) == 10_000


def test_shares_outlive_the_client(q: duly.Client, jobs: str, reopen: Callable[[], duly.Client]) -> None:
    q.publish(jobs, lane("heavy", 600) + lane("other", 600))
    counts: Counter[str | None] = Counter()
    client = q
    for _ in range(10):
        counts.update(served(client, jobs, 20, batch=5))
        client.close()
        client = reopen()
        client.publish(jobs, lane("heavy", 10) + lane("other", 10))
    assert abs(counts["heavy"] - 150) <= 12, counts


def test_a_message_keeps_to_its_lane_in_one_partition(q: duly.Client) -> None:
    q.create_topic("wide", kind="queue", partitions=4)
    for n in range(200):
        q.publish("wide", duly.Message(b"x", lane=f"l{n % 20}"))
    homes: dict[str | None, set[int]] = {}
    for d in q.claim("wide", max_messages=1000):
        homes.setdefault(d.lane, set()).add(d.partition)
    assert len(homes) == 20
    assert all(len(parts) == 1 for parts in homes.values())
    assert len(set.union(*homes.values())) > 1


def test_messages_that_are_gathered_ahead_of_their_turns_are_the_right_ones(q: duly.Client, jobs: str) -> None:
    """Published lane after lane and served in turns: each claim takes one message of each of many blocks."""
    draw = random.Random(11)
    sent: dict[str, bytes] = {}
    cancelled: set[str] = set()
    got: dict[str, bytes] = {}

    def publish(name: str, count: int) -> None:
        # Some are too big to travel with the index.
        bodies = [b"%s %d " % (name.encode(), len(sent) + n) * draw.choice((1, 1, 1, 900)) for n in range(count)]
        ids = [f"{name}-{len(sent) + n}" for n in range(count)]
        q.publish(jobs, [duly.Message(body, lane=name, id=i) for i, body in zip(ids, bodies, strict=True)])
        sent.update(zip(ids, bodies, strict=True))

    for nth in range(60):
        publish(f"l{nth}", 40)
    while True:
        batch = q.claim(jobs, max_messages=draw.choice((1, 20, 60, 90)))
        if not batch:
            break
        for delivery in batch:
            assert delivery.id not in got
            got[str(delivery.id)] = delivery.payload
        if draw.random() < 0.2:
            batch[0].nack(delay=0)
            del got[str(batch[0].id)]
        batch.ack()
        if len(sent) < 5000:
            publish(f"l{draw.randrange(90)}", draw.choice((1, 30)))
        waiting = [i for i in draw.sample(sorted(sent), 3) if i not in got and i not in cancelled]
        cancelled |= {i for i, what in q.cancel(jobs, waiting).items() if what == "cancelled"} if waiting else set()
    assert got == {i: body for i, body in sent.items() if i not in cancelled}
