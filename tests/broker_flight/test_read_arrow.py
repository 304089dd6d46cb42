"""Reading batches from a broker that dies, stands still, or outruns its reader: every message once, or an error."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

import duly

from .conftest import Elsewhere, Here

COUNT = 40


@pytest.fixture
def q_elsewhere(elsewhere: Elsewhere) -> Iterator[duly.Client]:
    """A client with more to read than lies in the buffers between."""
    with duly.connect(elsewhere.url, timeout=10) as client:
        client.create_topic("orders", kind="log")
        for n in range(COUNT):
            client.publish("orders", [b"%02d" % n + bytes(900_000)])
        yield client


def test_a_broker_that_is_killed_and_comes_again_is_read_on(q_elsewhere: duly.Client, elsewhere: Elsewhere) -> None:
    found: list[int] = []
    for batch in q_elsewhere.read_arrow("orders", columns=["payload"]):
        found += [int(payload[:2]) for payload in batch.column("payload").to_pylist()]
        if len(found) < 20:
            elsewhere.kill()
            elsewhere.start()
    assert found == [*range(COUNT)]


def test_a_broker_that_is_gone_is_said_in_time(q_elsewhere: duly.Client, elsewhere: Elsewhere) -> None:
    batches = q_elsewhere.read_arrow("orders", timeout=1)
    next(batches)
    elsewhere.kill()
    began = time.monotonic()
    with pytest.raises(duly.Unavailable, match="No broker answers"):
        list(batches)
    assert time.monotonic() - began < 8


def test_a_broker_that_stands_still_is_waited_for_no_longer_than_asked(
    q_elsewhere: duly.Client, elsewhere: Elsewhere
) -> None:
    batches = q_elsewhere.read_arrow("orders", timeout=1)
    next(batches)
    elsewhere.signal(signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(duly.Unavailable):
        list(batches)
    assert time.monotonic() - began < 10
    elsewhere.signal(signal.SIGCONT)
    assert sum(batch.num_rows for batch in q_elsewhere.read_arrow("orders")) == COUNT


def test_a_slow_reader_gets_everything_once(q_elsewhere: duly.Client) -> None:
    offsets: list[int] = []
    for batch in q_elsewhere.read_arrow("orders", timeout=0.3, columns=["offset", "payload"]):
        offsets += batch.column("offset").to_pylist()
        time.sleep(0.5)
    assert offsets == [*range(COUNT)]


def test_readers_that_leave_keep_no_stream_open(q: duly.Client, here: Here) -> None:
    q.create_topic("orders", kind="log")
    for _ in range(COUNT):
        q.publish("orders", [bytes(900_000)])
    before = here.server.streams
    for _ in range(20):
        next(q.read_arrow("orders"))
    here.settle_streams(before)
