"""A claim that waits: woken by whatever makes something claimable, wherever it happens.

Wakes take milliseconds; the bounds here are generous, because what they tell apart is a wake
from a poll or from a wait that runs out.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator

import pytest

import duly

from .conftest import Home
from .patience import Aside, eventually

PROMPT_S = 1.0
LONG_S = 20


@pytest.fixture
def waiting(q: duly.Client, orders: str) -> Iterator[Callable[[], Aside[duly.Batch]]]:
    """Starts claims that wait, in threads; each is seen to wait before the test goes on."""
    started: list[Aside[duly.Batch]] = []

    def start() -> Aside[duly.Batch]:
        aside = Aside(lambda: q.claim(orders, group="billing", wait=LONG_S, consumer=f"waiter-{len(started)}"))
        started.append(aside)
        assert aside.still_running_after(0.05), "it should wait"
        return aside

    yield start
    q.close()
    for aside in started:
        aside.still_running_after(5)


def woken(aside: Aside[duly.Batch], since: float) -> list[bytes]:
    """What the waiter got, promptly."""
    payloads = aside.result().payloads
    assert aside.finished_at - since < PROMPT_S
    return payloads


def test_a_claim_without_wait_returns_at_once(q: duly.Client, orders: str) -> None:
    began = time.monotonic()
    assert len(q.claim(orders, group="billing")) == 0
    assert time.monotonic() - began < PROMPT_S


def test_a_claim_waits_its_time_and_returns_empty(q: duly.Client, orders: str) -> None:
    began = time.monotonic()
    assert len(q.claim(orders, group="billing", wait=0.2)) == 0
    assert 0.19 < time.monotonic() - began < 0.2 + PROMPT_S


def test_a_claim_that_finds_something_does_not_wait(q: duly.Client, orders: str) -> None:
    q.publish(orders, b"x")
    began = time.monotonic()
    assert q.claim(orders, group="billing", wait=LONG_S).payloads == [b"x"]
    assert time.monotonic() - began < PROMPT_S


def test_a_publish_from_another_thread_wakes_it(
    q: duly.Client, orders: str, waiting: Callable[[], Aside[duly.Batch]]
) -> None:
    waiter, began = waiting(), time.monotonic()
    q.publish(orders, b"x")
    assert woken(waiter, began) == [b"x"]


def test_a_publish_by_another_client_on_the_store_wakes_it(
    q: duly.Client,
    orders: str,
    waiting: Callable[[], Aside[duly.Batch]],
    reopen: Callable[[], duly.Client],
) -> None:
    other = reopen()
    waiter, began = waiting(), time.monotonic()
    other.publish(orders, b"x")
    assert woken(waiter, began) == [b"x"]


def test_a_publish_to_any_partition_wakes_it(q: duly.Client) -> None:
    q.create_topic("wide", kind="log", partitions=7)
    q.create_group("wide", "g")
    for partition in range(7):
        waiter = Aside(lambda: q.claim("wide", group="g", wait=LONG_S))
        assert waiter.still_running_after(0.02)
        began = time.monotonic()
        q.publish("wide", duly.Message(b"x", partition=partition))
        assert woken(waiter, began) == [b"x"]


def test_a_retry_that_falls_due_wakes_it(
    q: duly.Client, orders: str, clock: duly.ManualClock, waiting: Callable[[], Aside[duly.Batch]]
) -> None:
    q.publish(orders, b"x")
    q.claim(orders, group="billing").nack(delay=60)
    waiter = waiting()
    clock.advance(59)
    assert waiter.still_running_after(0.05), "it is not due yet"
    began = time.monotonic()
    clock.advance(1)
    assert woken(waiter, began) == [b"x"]


def test_a_retry_that_falls_due_by_the_hosts_clock_wakes_it_then() -> None:
    with duly.connect(":memory:") as q:
        q.create_topic("t", kind="log")
        q.create_group("t", "g")
        q.publish("t", b"x")
        began = time.monotonic()
        q.claim("t", group="g").nack(delay=0.3)
        assert q.claim("t", group="g", wait=LONG_S).payloads == [b"x"]
        assert 0.29 <= time.monotonic() - began < 0.3 + PROMPT_S


def test_a_nack_sooner_than_thought_wakes_it(
    q: duly.Client, orders: str, waiting: Callable[[], Aside[duly.Batch]]
) -> None:
    q.publish(orders, b"x")
    held = q.claim(orders, group="billing")
    waiter, began = waiting(), time.monotonic()
    held.nack(delay=0)
    assert woken(waiter, began) == [b"x"]


def test_a_lease_that_expires_wakes_it(
    q: duly.Client, orders: str, clock: duly.ManualClock, waiting: Callable[[], Aside[duly.Batch]]
) -> None:
    q.publish(orders, b"x")
    q.claim(orders, group="billing")
    waiter = waiting()
    clock.advance(29)
    assert waiter.still_running_after(0.05)
    began = time.monotonic()
    clock.advance(1)
    assert woken(waiter, began) == [b"x"]


@pytest.mark.parametrize("scope", ["topic", "group"])
def test_resume_wakes_it(q: duly.Client, orders: str, waiting: Callable[[], Aside[duly.Batch]], scope: str) -> None:
    group = "billing" if scope == "group" else None
    q.pause(orders, group=group)
    q.publish(orders, b"x")
    waiter, began = waiting(), time.monotonic()
    q.resume(orders, group=group)
    assert woken(waiter, began) == [b"x"]


def test_a_release_wakes_it(q: duly.Client, orders: str, waiting: Callable[[], Aside[duly.Batch]]) -> None:
    q.publish(orders, [b"x", b"y"])
    held = q.claim(orders, group="billing")
    waiter, began = waiting(), time.monotonic()
    held[1].release()
    assert woken(waiter, began) == [b"y"]


def test_freeing_a_hung_consumer_wakes_it(
    q: duly.Client, orders: str, waiting: Callable[[], Aside[duly.Batch]]
) -> None:
    q.publish(orders, b"x")
    q.claim(orders, group="billing", consumer="hung")
    waiter, began = waiting(), time.monotonic()
    q.release(consumer="hung")
    assert woken(waiter, began) == [b"x"]


def test_a_redrive_wakes_it(q: duly.Client, orders: str, waiting: Callable[[], Aside[duly.Batch]]) -> None:
    q.publish(orders, b"x")
    q.claim(orders, group="billing")[0].bury("bad")
    waiter, began = waiting(), time.monotonic()
    q.redrive(orders, group="billing")
    assert woken(waiter, began) == [b"x"]


def test_a_seek_wakes_it(q: duly.Client, orders: str, waiting: Callable[[], Aside[duly.Batch]]) -> None:
    q.publish(orders, b"x")
    q.claim(orders, group="billing").ack()
    waiter, began = waiting(), time.monotonic()
    q.seek(orders, "billing", offset=0)
    assert woken(waiter, began) == [b"x"]


@pytest.mark.parametrize("what", ["topic", "group"])
def test_what_is_deleted_under_a_waiter_tells_it_so(
    q: duly.Client, orders: str, waiting: Callable[[], Aside[duly.Batch]], what: str
) -> None:
    waiter, began = waiting(), time.monotonic()
    if what == "topic":
        q.delete_topic(orders)
    else:
        q.delete_group(orders, "billing")
    with pytest.raises(duly.NotFound):
        waiter.result()
    assert waiter.finished_at - began < PROMPT_S


def test_closing_the_client_ends_the_wait(
    q: duly.Client, orders: str, waiting: Callable[[], Aside[duly.Batch]]
) -> None:
    waiter, began = waiting(), time.monotonic()
    q.close()
    with pytest.raises(duly.Closed):
        waiter.result()
    assert waiter.finished_at - began < PROMPT_S


def test_other_topics_and_groups_do_not_end_the_wait(
    q: duly.Client, orders: str, waiting: Callable[[], Aside[duly.Batch]]
) -> None:
    q.create_topic("other", kind="log")
    q.create_group(orders, "audit")
    q.publish(orders, b"x")
    q.claim(orders, group="billing").ack()
    waiter = waiting()
    q.publish("other", b"y")
    q.claim(orders, group="audit").nack(delay=0)
    assert waiter.still_running_after(0.1)


def test_one_message_goes_to_one_of_many_waiters(
    q: duly.Client, orders: str, waiting: Callable[[], Aside[duly.Batch]]
) -> None:
    waiters = [waiting() for _ in range(4)]
    for n in range(4):
        q.publish(orders, b"%d" % n)
        deadline = time.monotonic() + 5
        while sum(waiter.running for waiter in waiters) > 3 - n:
            assert time.monotonic() < deadline
            waiters[0].still_running_after(0.005)
    got = [payload for waiter in waiters for payload in waiter.result().payloads]
    assert sorted(got) == [b"0", b"1", b"2", b"3"]


def test_no_wake_is_lost_between_looking_and_sleeping(q: duly.Client, orders: str) -> None:
    got: list[bytes] = []

    def consume() -> None:
        while len(got) < 300:
            batch = q.claim(orders, group="billing", wait=5)
            assert batch, "the message was there and nobody was woken"
            got.extend(batch.payloads)
            batch.ack()

    consumer = Aside(consume)
    for n in range(300):
        q.publish(orders, b"%d" % n)
    consumer.result(30)
    assert got == [b"%d" % n for n in range(300)]


def test_waiting_wakes_within_milliseconds_from_another_client(home: Home) -> None:
    reader, writer = home.connect(), home.connect()
    reader.create_topic("t", kind="log")
    reader.create_group("t", "g")
    took: list[float] = []
    for _ in range(30):
        waiter = Aside(lambda: reader.claim("t", group="g", wait=LONG_S))
        waiter.still_running_after(0.01)
        began = time.monotonic()
        writer.publish("t", b"x")
        waiter.result().ack()
        took.append(waiter.finished_at - began)
    median_ms = sorted(took)[len(took) // 2] * 1000
    print(f"median wake-up: {median_ms:.2f} ms")
    assert median_ms < 50


def test_waiting_costs_nothing_while_nothing_happens(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="log")
    q.create_group("t", "g")
    waiters = [Aside(lambda: q.claim("t", group="g", wait=1.5)) for _ in range(20)]
    assert waiters[0].still_running_after(0.4), "let them settle down"
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert waiters[0].still_running_after(0.8)
    after = resource.getrusage(resource.RUSAGE_SELF)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert busy < 0.2, f"{busy:.3f} s of CPU in 0.8 s of waiting"
    for waiter in waiters:
        assert len(waiter.result()) == 0


def test_a_listener_may_write(home: Home) -> None:
    """From whichever thread it is told: the caller's, or the writer's for the main thread."""
    told: list[str] = []

    def listen(event: duly.Event) -> None:
        if event.kind == "buried":
            told.append(q.publish("alerts", event.topic.encode()).publish_id)

    q = duly.connect(home.address, clock=home.clock, on_event=listen, timeout=10)
    with q:
        q.create_topic("jobs", kind="queue")
        q.create_topic("alerts", kind="queue")
        q.publish("jobs", [b"one", b"two"])
        first, second = q.claim("jobs")
        first.bury("bad")
        Aside(lambda: second.bury("bad")).result()
        eventually(lambda: len(told) == 2)
        assert q.claim("alerts").payloads == [b"jobs", b"jobs"]
