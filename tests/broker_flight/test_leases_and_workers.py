"""Time and work through a broker: leases that lapsed on the way, clocks that differ, workers, asyncio."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace as with_source
from pathlib import Path
from typing import Any

import pytest

import duly
import duly.aio
import duly.client.remote
from duly.clock import HOST
from duly.flight.session import Session

from .conftest import ROOT, Elsewhere, Here, eventually


def test_a_delivery_whose_answer_came_after_its_lease_ended_is_not_handed_over(
    here: Here, q: duly.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("jobs", kind="queue", lease=0.3, retry=duly.RetryPolicy(max_attempts=9, base=0.01, cap=0.01))
    q.publish("jobs", b"one")
    write = Session._write
    delays = [0.6]

    def late(self: Session, answer: Any, batch: Any) -> None:
        if delays and b"one" in bytes(answer.body):
            time.sleep(delays.pop())
        write(self, answer, batch)

    monkeypatch.setattr(Session, "_write", late)
    [delivery] = q.claim("jobs", wait=5)
    assert delivery.attempt == 2
    delivery.ack()


STOPS = """
import sys, time, duly
with duly.connect(sys.argv[1], timeout=30) as q:
    print("waiting", flush=True)
    for d in q.claim("jobs", wait=30):
        q.ack([d])
        print(d.attempt, d.lost, flush=True)
"""


def test_a_client_that_was_stopped_over_the_end_of_its_lease_claims_again(here: Here, q: duly.Client) -> None:
    q.create_topic("jobs", kind="queue", lease=0.5, retry=duly.RetryPolicy(max_attempts=9, base=0.01, cap=0.01))
    program = subprocess.Popen([sys.executable, "-c", STOPS, here.url], stdout=subprocess.PIPE, text=True)
    eventually(lambda: here.broker.room.count == 1, 15)
    program.send_signal(signal.SIGSTOP)
    q.publish("jobs", b"one")
    time.sleep(1)
    program.send_signal(signal.SIGCONT)
    out, _ = program.communicate(timeout=20)
    assert out.splitlines()[1:] == ["2 False"]


def test_a_clock_that_differs_from_the_brokers_is_told_once(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[duly.Event] = []
    ahead = with_source(HOST, wall_ns=lambda: HOST.wall_ns() + 90_000_000_000)
    monkeypatch.setattr(duly.client.remote, "HOST", ahead)
    with duly.connect(here.url, on_event=events.append) as q:
        q.create_topic("jobs", kind="queue")
        # Made before the broker told the time, and made anew then: an id from the future could not be found again.
        receipt = q.publish("jobs", b"one")
        assert abs(int(receipt.publish_id[1:12], 16) - time.time() * 1000) < 30_000
        q.publish("jobs", [b"x"] * 100)
        assert len(q.claim("jobs", max_messages=500)) == 101
    [event] = [event for event in events if event.kind == "clock_drift"]
    drift = event.facts["drift_ms"]
    assert isinstance(drift, int)
    assert 85_000 < drift < 95_000


def test_a_first_publish_takes_its_time_from_the_broker(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    with duly.connect(here.url) as q:
        q.create_topic("jobs", kind="queue")
    ahead = with_source(HOST, wall_ns=lambda: HOST.wall_ns() + 7_200_000_000_000)
    monkeypatch.setattr(duly.client.remote, "HOST", ahead)
    with duly.connect(here.url) as q:
        receipt = q.publish("jobs", b"one")
        again = q.publish("jobs", b"one", publish_id=receipt.publish_id)
    assert again.duplicate


# Workers

TASKS = """
import sys, time, duly
workers = duly.Workers()

@workers.on("jobs", concurrency=4)
def work(d):
    time.sleep(0.01)
    with open(sys.argv[2], "ab", buffering=0) as done:
        done.write(d.payload + b"\\n")

with duly.connect(sys.argv[1], timeout=10) as q:
    workers.run(q)
"""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def start_worker(url: str, done: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", TASKS, url, str(done)], cwd=ROOT)


def test_workers_killed_with_their_broker_lose_nothing(
    elsewhere: Elsewhere, tmp_path: Path, workers: list[subprocess.Popen[bytes]]
) -> None:
    done = tmp_path / "done"
    done.touch()
    with duly.connect(elsewhere.url, timeout=20) as q:
        q.create_topic("jobs", kind="queue", lease=1, retry=duly.RetryPolicy(max_attempts=99, base=0.1, cap=0.1))
        workers += [start_worker(elsewhere.url, done) for _ in range(2)]
        expected = {b"%d" % number for number in range(300)}
        q.publish("jobs", sorted(expected)[:100])
        eventually(lambda: done.stat().st_size > 50, 15)
        workers[0].kill()
        q.publish("jobs", sorted(expected)[100:200])
        elsewhere.kill()
        elsewhere.start()
        q.publish("jobs", sorted(expected)[200:])
        eventually(lambda: set(done.read_bytes().split()) == expected, 30, lambda: f"{len(done.read_bytes().split())}")
        # Idle now: a message wakes the one that is left, and a signal stops it.
        time.sleep(1.2)
        began = time.monotonic()
        q.publish("jobs", b"wake")
        eventually(lambda: b"wake" in done.read_bytes().split(), 5)
        print(f"woken within {(time.monotonic() - began) * 1000:.0f} ms")
        workers[1].send_signal(signal.SIGTERM)
        assert workers[1].wait(10) == 0
        eventually(lambda: not q.claim("jobs", max_messages=10), 5)


def test_a_worker_that_looks_at_many_groups_on_one_line_is_not_refused(here: Here, q: duly.Client) -> None:
    q.create_topic("orders", kind="log")
    for number in range(40):
        q.create_group("orders", f"g{number}", start="earliest")
    q.publish("orders", b"one")
    for number in range(40):
        watch = q._watch(q._claim_of("orders", f"g{number}", 1, None, None, None))
        assert watch.claim(1, deadline=None).count == 1
        watch.claim(1, deadline=None)
        watch.wait(time.monotonic() + 0.01)
        del watch
    here.settle_streams(5)


def test_a_watch_that_was_refused_shares_its_line_with_nobody(here: Here, q: duly.Client) -> None:
    q.create_topic("jobs", kind="queue")
    watch = q._watch(q._claim_of("jobs", None, 1, None, None, None))
    watch.claim(1, deadline=None)
    q.delete_topic("jobs")
    with pytest.raises(duly.TopicNotFound):
        watch.claim(1, deadline=None)
    q.create_topic("jobs", kind="queue")
    for _ in range(2):
        watch.claim(1, deadline=None)
    waiting = threading.Thread(target=lambda: watch.wait(time.monotonic() + 2))
    waiting.start()
    began = time.monotonic()
    for _ in range(10):
        assert q.list_topics() == ["jobs"]
    assert time.monotonic() - began < 1
    q.publish("jobs", b"one")
    waiting.join(5)
    assert watch.claim(1, deadline=None).count == 1


def test_wake_ends_the_waits_of_watches(here: Here, q: duly.Client) -> None:
    q.create_topic("jobs", kind="queue")
    watch = q._watch(q._claim_of("jobs", None, 1, None, None, None))
    for _ in range(2):
        watch.claim(1, deadline=None)
    waiting = threading.Thread(target=lambda: watch.wait(time.monotonic() + 30))
    began = time.monotonic()
    waiting.start()
    time.sleep(0.2)
    q._wake()
    waiting.join(5)
    assert time.monotonic() - began < 5
    q.publish("jobs", b"one")
    assert watch.claim(1, deadline=None).count == 1


# asyncio


def test_asyncio_through_a_broker_and_a_cancelled_claim_takes_nothing(here: Here, q: duly.Client) -> None:
    async def scenario() -> None:
        async with duly.aio.connect(here.url) as aq:
            await aq.create_topic("jobs", kind="queue", lease=60)
            await aq.publish("jobs", b"one")
            async with await aq.claim("jobs", wait=5) as batch:
                assert batch.payloads == [b"one"]
            waiting = asyncio.create_task(aq.claim("jobs", wait=30).__aenter__())
            await asyncio.sleep(0.5)
            assert here.broker.room.count == 1
            began = time.monotonic()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert time.monotonic() - began < 2
            await aq.publish("jobs", b"two")
            assert (await aq.claim("jobs", wait=5)).payloads == [b"two"]

    asyncio.run(scenario())
    eventually(lambda: here.broker.room.count == 0)
