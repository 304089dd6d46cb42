"""Nobody can take more than their share: streams, memory, waiting; and who is gone holds nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import pytest
from pyarrow import flight

import duly
import duly.flight.streams
from duly.limits import LIMITS
from duly.wire.operations import encode
from duly.wire.talk import Request

from .conftest import Elsewhere, Here, Raw, eventually, resident_mb, threads_of
from .test_parity import CLAIM

EXCHANGES = 200
WAITS = "import sys, duly; duly.connect(sys.argv[1]).claim('jobs', wait=60)"
WORKS = """
import sys, duly
workers = duly.Workers()
@workers.on("jobs")
def work(d): ...
with duly.connect(sys.argv[1]) as q:
    workers.run(q)
"""


@pytest.fixture
def few_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duly.flight.streams, "LIMITS", replace(LIMITS, streams_max=4))


def test_past_the_most_streams_a_client_is_told_busy_and_others_go_on(
    few_streams: None, here: Here, q: duly.Client
) -> None:
    q.create_topic("jobs", kind="queue")
    sessions = [here.session() for _ in range(3)]
    with duly.connect(here.url, timeout=5) as late:
        with pytest.raises(duly.Busy, match="4 streams are open already"):
            late.list_topics()
        with pytest.raises(duly.Busy):
            late.publish("jobs", b"one")
        assert q.list_topics() == ["jobs"]
        sessions[0].close()
        here.settle_streams(3)
        late.publish("jobs", b"one")


def test_streams_on_which_nothing_is_sent_cost_the_others_nothing_and_end_with_their_client(
    here: Here, q: duly.Client
) -> None:
    q.create_topic("jobs", kind="queue")
    silent = [here.session() for _ in range(100)]
    began = time.monotonic()
    for number in range(100):
        q.publish("jobs", b"%d" % number)
    assert time.monotonic() - began < 5
    for session in silent:
        session.close()
    here.settle_streams(1)


def test_an_answer_that_is_never_read_stays_the_brokers_and_its_messages_come_back(here: Here, q: duly.Client) -> None:
    q.create_topic("jobs", kind="queue")
    for _ in range(4):
        q.publish("jobs", [b"x" * 100_000] * 100)
    slow = here.session()
    big = CLAIM | {"max_messages": 400, "max_bytes": 64_000_000}
    slow.writer.write_metadata(encode(Request("claim", msgspec.Raw(encode(big)))))
    eventually(lambda: here.server.streams_open.held_bytes > 0)
    q.publish("jobs", b"for others")
    assert q.claim("jobs", wait=5).payloads == [b"for others"]
    slow.close()
    # Long before its lease ends.
    with q.claim("jobs", max_messages=400, wait=5) as batch:
        assert len(batch) > 0
        assert {d.attempt for d in batch} == {1}
    here.settle_streams(2)


def test_what_slow_readers_hold_together_is_bounded(
    here: Here, q: duly.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duly.flight.streams, "LIMITS", replace(LIMITS, requests_bytes_max=15_000_000))
    q.create_topic("jobs", kind="queue")
    for _ in range(3):
        q.publish("jobs", [b"x" * 100_000] * 100)
    slow = here.session()
    big = CLAIM | {"max_messages": 100, "max_bytes": 64_000_000}
    slow.writer.write_metadata(encode(Request("claim", msgspec.Raw(encode(big)))))
    eventually(lambda: here.server.streams_open.held_bytes > 0)
    with pytest.raises(duly.Busy, match="Slow readers"):
        q.claim("jobs", max_messages=100)
    # Small answers are always sent, and what could not be is due again at once.
    assert len(q.claim("jobs", max_messages=5, wait=5)) == 5
    slow.close()
    eventually(lambda: here.server.streams_open.held_bytes == 0)
    assert len(q.claim("jobs", max_messages=100, wait=5)) == 100


@pytest.mark.parametrize("program", [WAITS, WORKS], ids=["claim", "workers"])
def test_a_client_killed_while_it_waits_is_handed_nothing(here: Here, q: duly.Client, program: str) -> None:
    q.create_topic("jobs", kind="queue", lease=60)
    dead = subprocess.Popen([sys.executable, "-c", program, here.url])
    if program is WAITS:
        eventually(lambda: here.broker.room.count == 1, 15)
    else:
        eventually(lambda: here.server.streams >= 2, 15)
        time.sleep(0.3)
    dead.kill()
    dead.wait()
    # Before the broker had time to look for it: whatever went its way comes back.
    q.publish("jobs", b"one")
    began = time.monotonic()
    delivery = q.claim("jobs", wait=20)[0]
    print(f"claimed by another {time.monotonic() - began:.2f} s after the kill")
    assert time.monotonic() - began < 3
    assert delivery.attempt == 1
    eventually(lambda: here.broker.room.count == 0)
    here.settle_streams(1)


@pytest.mark.timeout(120)
def test_exchanges_that_wait_are_served_in_turn_none_twice_while_another_has_none(elsewhere: Elsewhere) -> None:
    got: list[tuple[int, float, bytes]] = []
    sent: dict[bytes, float] = {}
    with duly.connect(elsewhere.url, timeout=30) as q, ThreadPoolExecutor(EXCHANGES) as threads:
        q.create_topic("jobs", kind="queue", lease=60)
        assert elsewhere.process is not None
        before_mb = resident_mb(elsewhere.process.pid)
        waiting = threading.Barrier(EXCHANGES + 1)

        def consume(number: int) -> None:
            for _ in range(2):
                waiting.wait(30)
                for payload in q.claim("jobs", max_messages=1, wait=30).payloads:
                    got.append((number, time.monotonic(), payload))

        consumers = [threads.submit(consume, number) for number in range(EXCHANGES)]
        for turn in range(2):
            waiting.wait(30)
            time.sleep(1.5)
            for number in range(EXCHANGES):
                payload = b"%d-%d" % (turn, number)
                sent[payload] = time.monotonic()
                q.publish("jobs", payload)
        for consumer in consumers:
            consumer.result(60)
        after_mb = resident_mb(elsewhere.process.pid)
    for turn in range(2):
        served = [number for number, _, payload in got if payload.startswith(b"%d-" % turn)]
        assert sorted(served) == list(range(EXCHANGES))
    late_ms = sorted((at - sent[payload]) * 1000 for _, at, payload in got)
    print(
        f"{EXCHANGES} exchanges: publish to claim p50 {late_ms[len(late_ms) // 2]:.1f} ms, "
        f"p99 {late_ms[len(late_ms) * 99 // 100]:.1f} ms; the broker grew from {before_mb:.0f} to {after_mb:.0f} MB"
    )
    assert after_mb - before_mb < 150


def test_streams_opened_and_dropped_leave_nothing_behind(elsewhere: Elsewhere) -> None:
    client = flight.FlightClient(elsewhere.url.replace("duly", "grpc"))
    assert elsewhere.process is not None
    sizes = []
    for _ in range(3):
        for _ in range(300):
            Raw(client).close()
        sizes.append(resident_mb(elsewhere.process.pid))
    print(f"900 streams: {sizes} MB")
    assert sizes[-1] - sizes[0] < 30
    assert threads_of(elsewhere.process.pid) < 100
