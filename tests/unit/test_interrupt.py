"""An exception raised in another thread: once, while the call is under way, and never inside a shield."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

import duly
from duly.interrupt import SHIELD, Interruptible
from tests.conftest import scaled
from tests.store.patience import Aside


class Ended(Exception):
    """What is raised."""


def loop() -> None:
    while True:
        time.sleep(0.001)


def test_the_call_is_ended_by_the_exception() -> None:
    call = Interruptible(Ended)
    with Aside(lambda: call.run(loop)) as running:
        assert running.still_running_after(0.05)
        call.interrupt()
        with pytest.raises(Ended):
            running.result()


def test_a_call_that_has_ended_is_not_interrupted() -> None:
    call = Interruptible(Ended)
    assert call.run(lambda: 7) == 7
    call.interrupt()
    assert sum(range(1000)) == 499500


def test_the_calls_own_error_comes_through() -> None:
    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        Interruptible(Ended).run(fail)


def test_one_that_comes_too_early_is_not_forgotten() -> None:
    call = Interruptible(Ended)
    call.interrupt()
    with pytest.raises(Ended):
        call.run(loop)


def test_it_is_interrupted_once() -> None:
    caught: list[str] = []

    def stubborn() -> None:
        try:
            loop()
        except Ended:
            caught.append("once")
        time.sleep(0.05)

    call = Interruptible(Ended)
    with Aside(lambda: call.run(stubborn)) as running:
        assert running.still_running_after(0.02)
        for _ in range(20):
            call.interrupt()
        running.result()
    assert caught == ["once"]


def test_inside_a_shield_it_waits_until_the_outermost_is_left() -> None:
    steps: list[str] = []
    inside, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with SHIELD:
            with SHIELD:
                inside.set()
                go_on.wait(10)
                steps.append("inner")
            steps.append("outer")
        steps.append("never")

    call = Interruptible(Ended)
    with Aside(lambda: call.run(work)) as running:
        assert inside.wait(5)
        call.interrupt()
        go_on.set()
        with pytest.raises(Ended):
            running.result()
    assert steps == ["inner", "outer"]


def test_a_shield_is_nothing_to_a_thread_that_nobody_interrupts() -> None:
    with SHIELD:
        pass


def interrupted_at_random(draw: random.Random, body: Callable[[], None]) -> None:
    """Runs the body and interrupts it at some moment, in the first milliseconds."""
    call = Interruptible(Ended)
    pause_s = draw.uniform(0, 0.004)
    with Aside(lambda: call.run(body)) as running:
        time.sleep(pause_s)
        call.interrupt()
        with pytest.raises(Ended):
            running.result()


def test_whenever_it_comes_it_is_never_inside_a_shield() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(scaled(100, 1000)):
        halves: list[int] = []

        def body(halves: list[int] = halves) -> None:
            while True:
                with SHIELD:
                    halves.append(1)
                    for number in range(20):
                        str(number)
                    halves.append(2)

        interrupted_at_random(draw, body)
        assert halves.count(1) == halves.count(2), "it came up between the two"


def test_whenever_it_comes_the_store_goes_on(path: str) -> None:
    """Publishing, reading, claiming and settling, interrupted anywhere: locks are free and nothing is half done."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    with duly.connect(path) as q:
        q.create_topic("t", kind="queue")

        def body() -> None:
            while True:
                q.publish("t", [b"a", b"b"])
                q.list_topics()
                with q.claim("t", max_messages=2) as batch:
                    batch[0].nack(delay=0) if draw.random() < 0.2 else batch[0].ack()

        for _ in range(scaled(60, 500)):
            interrupted_at_random(draw, body)
            q.publish("t", b"c", timeout=5)
        stored = q.describe_topic("t").partitions[0]
        assert stored.next_offset > 0
        assert all(finding.level != "alert" for finding in q.examine())
