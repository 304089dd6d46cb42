"""Truncated space returns to the device, with traffic going on."""

from __future__ import annotations

import threading
import time

import pytest

import duly
from tests.conftest import scaled

from .conftest import Home
from .patience import Aside, eventually

# What is sealed is compressed before: it has other sizes.
pytestmark = pytest.mark.plain

MEGABYTE = 1024 * 1024


def test_after_truncating_nine_tenths_under_traffic_the_files_shrink_by_four_fifths(home: Home) -> None:
    megabytes = scaled(60, 1024)
    q = home.connect()
    q.create_topic("t", kind="log", retention=duly.Retention())
    q.create_topic("traffic", kind="log", retention=duly.Retention(settled=True))
    q.create_group("traffic", "g")
    message = bytes(range(256)) * 64
    for _ in range(megabytes):
        q.publish("t", [message] * 64)
    full = home.bytes_on_device()
    assert full >= megabytes * MEGABYTE

    stop = threading.Event()
    traffic = Aside(lambda: run_traffic(q, home.clock, stop))
    began = time.monotonic()
    q.update_topic("t", retention=duly.Retention(bytes=megabytes * MEGABYTE // 10))
    try:
        eventually(lambda: home.bytes_on_device() <= full * 0.2, within_s=scaled(30, 300))
    finally:
        stop.set()
        exchanged = traffic.result(30)
    print(
        f"{full / MEGABYTE:.0f} MB shrank to {home.bytes_on_device() / MEGABYTE:.0f} MB"
        f" in {time.monotonic() - began:.1f} s while {exchanged} messages passed"
    )
    assert exchanged > 0
    left = q.describe_topic("t").partitions[0]
    assert [m.payload for m in q.read("t", offset=left.first_offset)] == [message] * min(1000, left.messages)
    assert left.bytes <= megabytes * MEGABYTE // 10


def run_traffic(q: duly.Client, clock: duly.ManualClock, stop: threading.Event) -> int:
    """Publishes and consumes small batches until told to stop; returns how many messages passed."""
    passed = 0
    while not stop.is_set():
        q.publish("traffic", [b"x" * 1000] * 10)
        passed += q.claim("traffic", group="g").ack().done
        clock.advance(0.01)
    return passed


def test_a_store_that_is_filled_and_emptied_again_and_again_does_not_grow(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="log", retention=duly.Retention(settled=True))
    q.create_group("t", "g")
    biggest = 0
    for _ in range(10):
        for _ in range(4):
            q.publish("t", [bytes(10_000)] * 100)
        biggest = max(biggest, home.bytes_on_device())
        q.claim("t", group="g", max_messages=400).ack()
        home.clock.advance(60)
        eventually(lambda: q.describe_topic("t").messages == 0)
    assert biggest < 24 * MEGABYTE, "40 MB have passed, never more than 4 at a time"
    eventually(lambda: home.bytes_on_device() < 2 * MEGABYTE)


@pytest.mark.embedded
@pytest.mark.sqlite
def test_closing_the_last_client_leaves_one_tidy_file(home: Home) -> None:
    q = home.connect()
    q.create_topic("t", kind="log")
    q.publish("t", [bytes(10_000)] * 100)
    q.list_topics()
    q.close()
    side_files = sum(path.stat().st_size for path in home.folder.glob("app.duly-*"))
    assert side_files < 100_000
    again = home.connect()
    assert again.describe_topic("t").messages == 100
