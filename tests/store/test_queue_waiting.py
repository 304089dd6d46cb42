"""A claim on a queue that waits: woken by a publish, and at the millisecond something falls due."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import duly

from .patience import Aside

LONG_S = 30
PROMPT_S = 5.0


@pytest.fixture
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue", lease=30)
    return "jobs"


@pytest.fixture
def waiting(q: duly.Client, jobs: str) -> Iterator[Callable[..., Aside[duly.Batch]]]:
    """Starts claims that wait, in threads; each is seen to wait before the test goes on."""
    started: list[Aside[duly.Batch]] = []

    def start(most: int = 100) -> Aside[duly.Batch]:
        aside = Aside(lambda: q.claim(jobs, max_messages=most, wait=LONG_S, consumer=f"waiter-{len(started)}"))
        started.append(aside)
        assert aside.still_running_after(0.05), "it should wait"
        return aside

    yield start
    q.close()
    for aside in started:
        aside.still_running_after(5)


def test_a_claim_waits_its_time_and_returns_empty(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, duly.Message(b"later", due=3600))
    began = time.monotonic()
    assert not len(q.claim(jobs, wait=0.2))
    assert 0.19 < time.monotonic() - began < 0.2 + PROMPT_S


def test_a_publish_wakes_it(q: duly.Client, jobs: str, waiting: Callable[[], Aside[duly.Batch]]) -> None:
    waiter = waiting()
    q.publish(jobs, b"x")
    assert waiter.result().payloads == [b"x"]


def test_a_publish_by_another_client_wakes_it(
    q: duly.Client, jobs: str, waiting: Callable[[], Aside[duly.Batch]], reopen: Callable[[], duly.Client]
) -> None:
    other = reopen()
    waiter = waiting()
    other.publish(jobs, b"x")
    assert waiter.result().payloads == [b"x"]


def test_it_wakes_at_the_due_millisecond(
    q: duly.Client, jobs: str, clock: duly.ManualClock, waiting: Callable[[], Aside[duly.Batch]]
) -> None:
    q.publish(jobs, duly.Message(b"x", due=10))
    waiter = waiting()
    clock.advance(9.999)
    assert waiter.still_running_after(0.1), "it is not due yet"
    clock.advance(0.001)
    assert waiter.result().payloads == [b"x"]


@pytest.mark.parametrize("many", [1, 6000])
def test_something_due_sooner_that_is_published_meanwhile_is_not_overslept(
    q: duly.Client, jobs: str, clock: duly.ManualClock, waiting: Callable[[], Aside[duly.Batch]], many: int
) -> None:
    q.publish(jobs, duly.Message(b"late", due=100))
    waiter = waiting()
    q.publish(jobs, [duly.Message(b"soon", due=5)] * many)
    clock.advance(4.999)
    assert waiter.still_running_after(0.1), "it is not due yet"
    clock.advance(0.001)
    assert set(waiter.result().payloads) == {b"soon"}


def test_it_wakes_when_a_retry_falls_due(
    q: duly.Client, jobs: str, clock: duly.ManualClock, waiting: Callable[[], Aside[duly.Batch]]
) -> None:
    q.publish(jobs, b"x")
    q.claim(jobs).nack(delay=7)
    waiter = waiting()
    clock.advance(6.999)
    assert waiter.still_running_after(0.1)
    clock.advance(0.001)
    assert waiter.result().payloads == [b"x"]


def test_it_wakes_when_a_lease_ends(
    q: duly.Client, jobs: str, clock: duly.ManualClock, waiting: Callable[[], Aside[duly.Batch]]
) -> None:
    q.publish(jobs, b"x")
    q.claim(jobs)
    waiter = waiting()
    clock.advance(29.999)
    assert waiter.still_running_after(0.1)
    clock.advance(0.001)
    assert waiter.result().payloads == [b"x"]


@pytest.mark.parametrize("verb", ["release", "nack", "redrive", "resume", "free"])
def test_it_wakes_when_something_is_given_back(
    q: duly.Client, jobs: str, waiting: Callable[[], Aside[duly.Batch]], verb: str
) -> None:
    q.publish(jobs, b"x")
    acts: dict[str, Callable[[], Any]]
    if verb == "resume":
        q.pause(jobs)
        acts = {"resume": lambda: q.resume(jobs)}
    else:
        held = q.claim(jobs, consumer="holder")
        if verb == "redrive":
            q.bury(held)
        acts = {
            "release": held.release,
            "nack": lambda: held.nack(delay=0),
            "redrive": lambda: q.redrive(jobs),
            "free": lambda: q.release(consumer="holder"),
        }
    waiter = waiting()
    acts[verb]()
    assert waiter.result().payloads == [b"x"]


def test_by_the_hosts_clock_it_comes_when_it_is_due_and_not_before() -> None:
    with duly.connect(":memory:") as q:
        q.create_topic("t", kind="queue")
        began = time.monotonic()
        q.publish("t", duly.Message(b"x", due=0.3))
        assert q.claim("t", wait=LONG_S).payloads == [b"x"]
        assert 0.299 <= time.monotonic() - began < 0.3 + PROMPT_S


def test_several_waiters_share_what_comes(
    q: duly.Client, jobs: str, waiting: Callable[[int], Aside[duly.Batch]]
) -> None:
    waiters = [waiting(1) for _ in range(4)]
    for n in range(4):
        q.publish(jobs, b"%d" % n)
    assert sorted(p for waiter in waiters for p in waiter.result().payloads) == [b"0", b"1", b"2", b"3"]


def test_a_midnight_bigger_than_a_step_is_served_without_a_pause(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    q.publish(jobs, [duly.Message(b"x", due=60)] * 20_000)
    clock.advance(60)
    served = 0
    began = time.monotonic()
    while served < 20_000:
        batch = q.claim(jobs, max_messages=3000, wait=LONG_S)
        served += len(batch)
        batch.ack()
    assert time.monotonic() - began < LONG_S
