"""What a process holds: never a message that is not running in a handler."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import duly
from tests.store.patience import Aside, eventually

from .conftest import Gate, held, unsettled, working


def test_no_more_is_held_than_runs(q: duly.Client, workers: duly.Workers) -> None:
    gate = Gate()
    workers.on("emails", concurrency=3)(gate)
    q.publish("emails", [b"%d" % n for n in range(10)])
    with working(workers, q):
        for passed in range(8):
            eventually(lambda passed=passed: len(gate.passed) == passed and len(gate.inside) == 3)  # type: ignore[misc]
            assert held(q) == 3
            gate.let(1)
        gate.let(2)
        eventually(lambda: not unsettled(q))
    assert gate.most == 3


def test_free_slots_are_filled_by_one_claim_and_each_message_is_settled_by_itself(
    q: duly.Client, workers: duly.Workers
) -> None:
    gate = Gate()
    workers.on("emails", concurrency=4)(gate)
    q.publish("emails", [b"1", b"2", b"3", b"4"])
    with working(workers, q):
        eventually(lambda: len(gate.inside) == 4)
        (consumer,) = q.describe_group("emails", q.list_groups("emails")[0]).consumers
        assert (consumer.leases, consumer.messages) == (1, 4)
        gate.let(1)
        eventually(lambda: held(q) == 3)
        assert [m.payload for m in unsettled(q)] == sorted(gate.inside)
        gate.let(3)
        eventually(lambda: not unsettled(q))


def test_async_handlers_run_as_many_tasks_on_one_thread(q: duly.Client, workers: duly.Workers) -> None:
    inside: set[bytes] = set()
    most: list[int] = []
    threads: set[int] = set()

    @workers.on("emails", concurrency=5)
    async def handler(d: duly.Delivery) -> None:
        inside.add(d.payload)
        most.append(len(inside))
        threads.add(threading.get_ident())
        await asyncio.sleep(0.02)
        inside.remove(d.payload)

    @workers.on("other", concurrency=5)
    async def another(d: duly.Delivery) -> None:
        threads.add(threading.get_ident())

    q.publish("emails", [b"%d" % n for n in range(20)])
    q.publish("other", [b"x"] * 5)
    workers.run(q, drain=True)
    assert max(most) == 5
    assert len(threads) == 1
    assert unsettled(q) == unsettled(q, "other") == []


def test_threads_cap_the_sync_handlers_of_all_topics_together(q: duly.Client, workers: duly.Workers) -> None:
    gate = Gate()
    workers.on("emails", concurrency=4)(gate)
    workers.on("other", concurrency=4)(gate)
    q.publish("emails", [b"e%d" % n for n in range(6)])
    q.publish("other", [b"o%d" % n for n in range(6)])
    with working(workers, q, threads=3):
        for _ in range(10):
            eventually(lambda: len(gate.inside) == 3)
            # No message waits for a thread under a lease; one that is done may still be on its way to its ack.
            eventually(lambda: held(q) + held(q, "other") <= 3)
            gate.let(1)
        gate.let(2)
        eventually(lambda: not unsettled(q) and not unsettled(q, "other"))
    assert gate.most == 3


def test_an_idle_handler_keeps_no_thread_from_a_busy_one(q: duly.Client, workers: duly.Workers) -> None:
    gate = Gate()
    workers.on("emails", concurrency=2)(gate)
    workers.on("other", concurrency=2)(lambda d: None)
    q.publish("emails", [b"1", b"2"])
    with working(workers, q, threads=2):
        eventually(lambda: len(gate.inside) == 2)
        gate.let(2)


def test_handlers_with_work_take_turns_at_the_threads(q: duly.Client, workers: duly.Workers) -> None:
    """One with a long backlog leaves every second thread that becomes free to one that has little."""
    order: list[str] = []
    first = threading.Event()

    def note(d: duly.Delivery) -> None:
        order.append(d.topic)
        first.wait(10)

    workers.on("emails", concurrency=8)(note)
    workers.on("other", concurrency=8)(note)
    q.publish("emails", [b"x"] * 40)
    with working(workers, q, threads=1):
        eventually(lambda: order == ["emails"])
        q.publish("other", [b"x"] * 5)
        # The other one's claimer is in line before a thread becomes free.
        time.sleep(0.2)
        first.set()
        eventually(lambda: len(order) == 45)
    assert order[:12].count("other") == 5, order


def test_a_message_published_by_another_process_of_the_store_is_started_at_once(
    q: duly.Client, workers: duly.Workers, path: str
) -> None:
    started = threading.Event()
    workers.on("emails")(lambda d: started.set())
    with duly.connect(path) as other, working(workers, q) as run:
        assert run.still_running_after(0.2)
        other.publish("emails", b"1")
        assert started.wait(2)


def test_a_retry_is_started_when_it_falls_due(q: duly.Client, workers: duly.Workers) -> None:
    at: list[float] = []

    @workers.on("emails")
    def handler(d: duly.Delivery) -> None:
        at.append(time.monotonic())
        if d.attempt == 1:
            raise duly.RetryLater(0.3)

    q.publish("emails", b"1")
    with working(workers, q):
        eventually(lambda: len(at) == 2)
    assert 0.29 < at[1] - at[0] < 2


def test_leases_are_renewed_while_the_handler_runs(q: duly.Client, workers: duly.Workers, path: str) -> None:
    gate = Gate()
    workers.on("emails", lease=0.3, concurrency=2)(gate)
    q.publish("emails", [b"1", b"2"])
    with duly.connect(path) as thief, working(workers, q):
        eventually(lambda: len(gate.inside) == 2)
        gate.let(1)
        assert len(thief.claim("emails", wait=1.2)) == 0, "four times the lease"
        gate.let(1)
        eventually(lambda: not unsettled(q))
    assert len(gate.passed) == 2


def test_a_handler_sees_that_its_message_was_cancelled_or_lost(
    q: duly.Client, workers: duly.Workers, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    deliveries: list[duly.Delivery] = []

    @workers.on("emails", lease=0.3, concurrency=2)
    def handler(d: duly.Delivery) -> None:
        if d.payload == b"cancelled":
            eventually(lambda: d.cancelled)
        elif not deliveries:
            deliveries.append(d)
            eventually(lambda: d.lost)
        seen.append(d.payload.decode())

    q.publish("emails", [duly.Message(b"cancelled", id="c")])
    with working(workers, q):
        eventually(lambda: held(q) == 1)
        assert q.cancel("emails", "c") == {"c": "leased"}
        eventually(lambda: seen == ["cancelled"] and not unsettled(q))
        q.publish("emails", [b"lost"])
        eventually(lambda: held(q) == 1)
        q.release(consumer="w1")
        # Given back by hand, it is delivered again, to the other slot.
        eventually(lambda: seen == ["cancelled", "lost", "lost"] and not unsettled(q))
    assert "came to nothing" in caplog.text


def test_a_hundred_idle_handlers_cost_nothing_and_stop_at_once(q: duly.Client, workers: duly.Workers) -> None:
    for number in range(100):
        q.create_topic(f"idle-{number}", kind="queue")
        workers.on(f"idle-{number}", concurrency=4)(lambda d: None)
    with working(workers, q) as run:
        eventually(lambda: sum(t.name.startswith("duly-claims") for t in threading.enumerate()) == 100)
        assert run.still_running_after(1.0)
        began, used = time.monotonic(), time.process_time()
        assert run.still_running_after(2.0)
        share = (time.process_time() - used) / (time.monotonic() - began)
        workers.stop()
        stopping = time.monotonic()
        run.result()
        assert time.monotonic() - stopping < 1.0
    print(f"idle: {share * 100:.3f} % of a processor")
    assert share < 0.01


class CountingClock(duly.SystemClock):
    """Asked once a transaction: so it counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def now_ms(self) -> int:
        self.asked += 1
        return super().now_ms()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_acks_that_end_together_are_stored_together(path: str, workers: duly.Workers, kind: str) -> None:
    clock, many = CountingClock(), 64
    with duly.connect(path, clock=clock) as q:
        q.create_topic("emails", kind="queue")
        together, counted = threading.Barrier(many + 1), threading.Event()
        go = asyncio.Event()

        def sync_handler(d: duly.Delivery) -> None:
            together.wait(20)

        async def async_handler(d: duly.Delivery) -> None:
            await asyncio.to_thread(counted.wait, 20) if d.payload == b"0" else await go.wait()
            go.set()

        workers.on("emails", concurrency=many)(sync_handler if kind == "sync" else async_handler)
        q.publish("emails", [b"%d" % n for n in range(many)])
        with Aside(lambda: workers.run(q)) as run:
            eventually(lambda: held(q) == many)
            asked = clock.asked
            counted.set()
            if kind == "sync":
                together.wait(20)
            while unsettled(q):
                asked += 1  # The question itself is a transaction.
            asked = clock.asked - asked
            workers.stop()
            run.result()
    print(f"{many} acks in {asked} transactions, claims included")
    assert asked < many
