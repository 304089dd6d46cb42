"""Ending a run: no more claims, grace, release."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

import duly
from duly.workers.job import Hold, Job
from tests.store.patience import Aside, eventually

from .conftest import Gate, held, unsettled, working


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_runs_gets_its_grace_and_is_acked(q: duly.Client, workers: duly.Workers, kind: str) -> None:
    gate = Gate()

    async def handler(d: duly.Delivery) -> None:
        await asyncio.to_thread(gate, d)

    workers.on("emails", concurrency=2)(gate if kind == "sync" else handler)
    q.publish("emails", [b"1", b"2", b"3"])
    with working(workers, q, grace=20) as run:
        eventually(lambda: len(gate.inside) == 2)
        workers.stop()
        assert run.still_running_after(0.3), "it waits for what runs"
        assert held(q) == 2, "and claims no more"
        gate.let(2)
        run.result()
    assert [(m.payload, m.state) for m in unsettled(q)] == [(b"3", "ready")]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_has_not_ended_when_the_grace_is_over_is_released(
    q: duly.Client, workers: duly.Workers, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    cancelled = threading.Event()

    async def handler(d: duly.Delivery) -> None:
        gate.inside.append(d.payload)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    workers.on("emails")(gate if kind == "sync" else handler)
    q.publish("emails", b"1")
    with working(workers, q, grace=0.2) as run:
        eventually(lambda: len(gate.inside) == 1)
        workers.stop()
        run.result()
    (again,) = q.claim("emails")
    assert again.attempt == 1, "no attempt was counted"
    again.extend(60)
    # Whatever the handler does now, nobody listens.
    gate.let(1)
    if kind == "sync":
        eventually(lambda: gate.passed == [b"1"])
    else:
        assert cancelled.wait(5)
    again.ack()
    assert "came to nothing" not in caplog.text


def test_an_ack_under_way_is_waited_for(
    q: duly.Client, workers: duly.Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """To leave in the middle of it would be to deliver the message twice."""
    ended = threading.Event()
    workers.on("emails", concurrency=8)(lambda d: ended.set())
    for _ in range(20):
        q.publish("emails", [b"x"] * 8)
        with working(workers, q, grace=0):
            assert ended.wait(5)
            ended.clear()
        assert held(q) == 0
        workers.run(q, drain=True)
        assert unsettled(q) == []
    assert "came to nothing" not in caplog.text, "nothing is both acked and released"


def test_of_all_who_come_to_settle_a_message_the_first_has_it(q: duly.Client, workers: duly.Workers) -> None:
    workers.on("emails")(lambda d: None)
    q.publish("emails", b"1")
    batch = q.claim("emails")
    job = Job(workers.handlers[0], batch[0], Hold(batch, q.renew))
    assert [job.take(), job.take(), job.take()] == [True, False, False]
    job.hold.let_go()


def test_stop_does_not_wait_for_a_claim_that_waits(q: duly.Client, workers: duly.Workers) -> None:
    workers.on("emails")(lambda d: None)
    for _ in range(20):
        with working(workers, q) as run:
            workers.stop()
            began = time.monotonic()
            run.result()
            assert time.monotonic() - began < 1


def test_a_stop_before_the_run_is_not_forgotten(q: duly.Client, workers: duly.Workers) -> None:
    workers.on("emails")(lambda d: None)
    workers.stop()
    workers.run(q)
    with working(workers, q) as run:
        assert run.still_running_after(0.2), "and is used up by it"


def test_a_handler_may_stop_its_workers(q: duly.Client, workers: duly.Workers) -> None:
    workers.on("emails")(lambda d: workers.stop())
    q.publish("emails", [b"1", b"2"])
    workers.run(q)
    assert [m.payload for m in unsettled(q)] == [b"2"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_on_the_main_thread_a_signal_stops_and_a_second_one_releases_at_once(
    q: duly.Client, workers: duly.Workers, number: signal.Signals
) -> None:
    gate = Gate()
    workers.on("emails")(gate)
    q.publish("emails", b"1")
    before = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]

    def send() -> bool:
        eventually(lambda: len(gate.inside) == 1)
        os.kill(os.getpid(), number)
        first = eventually(lambda: not any(t.name.startswith("duly-claims") for t in threading.enumerate()))
        os.kill(os.getpid(), number)
        return first

    with Aside(send) as sender:
        began = time.monotonic()
        workers.run(q, grace=60)
        assert time.monotonic() - began < 20
        assert sender.result()
    assert [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)] == before
    assert [(m.state, m.attempts) for m in unsettled(q)] == [("ready", 0)]
    gate.let(1)


def test_off_the_main_thread_signals_are_left_alone(q: duly.Client, workers: duly.Workers) -> None:
    before = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
    started = threading.Event()
    workers.on("emails")(lambda d: started.set())
    q.publish("emails", b"1")
    with working(workers, q):
        assert started.wait(5)
        assert [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)] == before


def test_drain_ends_when_nothing_is_due_and_nothing_runs(q: duly.Client, workers: duly.Workers) -> None:
    """What a handler published into another one's topic is worked on too; what is due later is left."""
    seen: list[bytes] = []

    @workers.on("other")
    def second(d: duly.Delivery) -> None:
        seen.append(d.payload)

    @workers.on("emails", concurrency=3)
    def first(d: duly.Delivery) -> None:
        time.sleep(0.05)
        q.publish("other", d.payload)

    q.publish("emails", [b"1", b"2", b"3", duly.Message(b"tomorrow", due=86400)])
    workers.run(q, drain=True)
    assert sorted(seen) == [b"1", b"2", b"3"]
    assert [m.payload for m in unsettled(q)] == [b"tomorrow"]
    assert unsettled(q, "other") == []


def test_a_client_that_is_closed_ends_the_run_with_its_error(path: str, workers: duly.Workers) -> None:
    q = duly.connect(path)
    q.create_topic("emails", kind="queue")
    workers.on("emails")(lambda d: None)
    run = Aside(lambda: workers.run(q))
    assert run.still_running_after(0.3)
    q.close()
    with pytest.raises(duly.Closed):
        run.result()


def test_a_topic_deleted_meanwhile_is_an_error_in_the_log_and_no_end(
    q: duly.Client, workers: duly.Workers, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []
    workers.on("emails")(lambda d: seen.append(d.payload))
    q.publish("emails", b"1")
    with working(workers, q):
        eventually(lambda: seen == [b"1"] and not unsettled(q))
        q.delete_topic("emails", force=True)
        eventually(lambda: "no topic 'emails'" in caplog.text)
        q.create_topic("emails", kind="queue")
        q.publish("emails", b"2")
        eventually(lambda: seen == [b"1", b"2"])
