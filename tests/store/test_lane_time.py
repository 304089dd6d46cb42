"""Lanes share the time that their messages take, and not only turns: a lane of slow messages gets fewer of them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

import duly

from .test_queue_lanes import lane

SLOW_S, FAST_S = 0.05, 0.005


@pytest.fixture
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue", lease=3600)
    return "jobs"


class Worker:
    """A consumer that works message by message, on a clock that goes on meanwhile."""

    def __init__(self, q: duly.Client, clock: duly.ManualClock, takes: dict[str | None, float]) -> None:
        self.q = q
        self.clock = clock
        self.takes = takes

    def work(self, count: int, *, batch: int = 1, again: bool = False) -> dict[str | None, float]:
        """The time that it spent on each lane; `again`: a message comes for each that is done."""
        spent: dict[str | None, float] = dict.fromkeys(self.takes, 0.0)
        for _ in range(count // batch):
            for delivery in self.q.claim("jobs", max_messages=batch):
                self.clock.advance(self.takes[delivery.lane])
                spent[delivery.lane] += self.takes[delivery.lane]
                delivery.ack()
                if again:
                    self.q.publish("jobs", lane(delivery.lane, 1))
        return spent


def share(spent: dict[str | None, float], name: str | None) -> float:
    return spent[name] / sum(spent.values())


@pytest.mark.parametrize("slow", ["slow", None], ids=["a named lane", "the default lane"])
def test_lanes_get_equal_time_as_messages_come(
    q: duly.Client, jobs: str, clock: duly.ManualClock, slow: str | None
) -> None:
    worker = Worker(q, clock, {slow: SLOW_S, "fast": FAST_S})
    q.publish(jobs, lane(slow, 20) + lane("fast", 20))
    worker.work(200, again=True)
    assert 0.4 <= share(worker.work(300, again=True), slow) <= 0.6


def test_lanes_get_equal_time_of_a_backlog_that_stood_before_anything_was_known(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    for _ in range(3):
        q.publish(jobs, lane("slow", 1000) + lane("fast", 1000))
    worker = Worker(q, clock, {"slow": SLOW_S, "fast": FAST_S})
    for _ in range(8):
        worker.work(240, batch=4)
    assert 0.4 <= share(worker.work(400, batch=4), "slow") <= 0.6


def test_weights_are_shares_of_time(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.update_topic(jobs, lanes=duly.Lanes(weights={"slow": 3}))
    worker = Worker(q, clock, {"slow": SLOW_S, "fast": FAST_S})
    q.publish(jobs, lane("slow", 30) + lane("fast", 30))
    worker.work(200, again=True)
    assert 0.67 <= share(worker.work(400, again=True), "slow") <= 0.83


def test_lanes_whose_messages_take_as_long_have_their_turns(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    draw = random.Random(7)
    q.publish(jobs, lane("a", 400) + lane("b", 400))
    turns: Counter[str | None] = Counter()
    for _ in range(200):
        (delivery,) = q.claim(jobs, max_messages=1)
        clock.advance(draw.uniform(0.02, 0.03))
        turns[delivery.lane] += 1
        delivery.ack()
    # Whenever the end of the log is looked at anew, whose turn is next is drawn anew.
    assert abs(turns["a"] - 100) <= 5


def test_a_quiet_lane_is_served_at_once_whatever_it_and_the_others_cost(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    worker = Worker(q, clock, {"slow": SLOW_S, "fast": FAST_S, "quiet": 2 * SLOW_S})
    q.publish(jobs, lane("slow", 600) + lane("fast", 600))
    worker.work(300)
    for _ in range(20):
        q.publish(jobs, duly.Message(b"q", lane="quiet"))
        order = [d.lane for _ in range(2) for d in q.claim(jobs, max_messages=5)]
        assert order.index("quiet") <= 5 + 3
        worker.work(20)
