"""Brokers whose wall clocks are off, jump, or whose clocks all run too fast: the store's clock is PostgreSQL's.

libfaketime moves them, as in tests/acceptance/test_clock.py. Times are measured by this process, whose clocks are those
of the server. Broken once to see it fail: with SystemClock's time for PostgreSQL's both fail.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import duly
from tests.acceptance.test_clock import DAY_S, SLACK_S, Process, faketime
from tests.conftest import scaled

from .brokers import BrokerProcess, url_of

# A broker whose clock is further off than five seconds does not claim.
OFF_S = 4

pytestmark = pytest.mark.timeout(scaled(120, 600))

Serve = Callable[..., list[BrokerProcess]]


class Wall:
    """A wall clock that can be moved, for a broker."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.env = {
            "LD_PRELOAD": faketime(),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_TIMESTAMP_FILE": str(path),
        }
        self.move(0)

    def move(self, seconds: float) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{seconds:+}")
        os.replace(fresh, self._path)


@pytest.mark.parametrize("off_s", [DAY_S, -DAY_S])
def test_a_broker_a_day_off_takes_nothing_and_whoever_knows_another_is_served(
    fresh_store_url: Callable[[], str], serve: Serve, tmp_path: Path, off_s: int
) -> None:
    """Early deliveries: 0."""
    url = fresh_store_url()
    wall = Wall(tmp_path / "wall")
    wall.move(off_s)
    (off,) = serve(url, env=wall.env)
    with duly.connect(off.url, timeout=2) as alone:
        alone.create_topic("jobs", kind="queue", lease=30)
        with pytest.raises(duly.NotReady):
            alone.publish("jobs", b"x")
        with pytest.raises(duly.NotReady):
            alone.claim("jobs")
    (right,) = serve(url)
    with duly.connect(url_of([off, right])) as both:
        published = time.monotonic()
        both.publish("jobs", duly.Message(b"in a while", due=timedelta(seconds=1)))
        batch = both.claim("jobs", wait=10)
        assert batch.payloads == [b"in a while"]
        assert 0.999 <= time.monotonic() - published <= 1 + SLACK_S
        assert both.ack(batch).done == 1


def test_brokers_seconds_off_deliver_nothing_early_and_leases_neither_freeze_nor_are_cut(
    fresh_store_url: Callable[[], str], serve: Serve, tmp_path: Path
) -> None:
    url = fresh_store_url()
    walls = [Wall(tmp_path / f"wall{number}") for number in range(2)]
    walls[0].move(OFF_S)
    walls[1].move(-OFF_S)
    brokers = [broker for wall in walls for broker in serve(url, env=wall.env)]
    early = frozen = 0
    with (
        duly.connect(brokers[0].url, consumer="ahead") as ahead,
        duly.connect(brokers[1].url, consumer="behind") as behind,
    ):
        ahead.create_topic("jobs", kind="queue")
        for turn, (one, other) in enumerate([(ahead, behind), (behind, ahead)] * scaled(2, 10)):
            published = time.monotonic()
            one.publish("jobs", duly.Message(b"in a while", due=timedelta(seconds=1)))
            one.publish("jobs", duly.Message(b"at a moment", due=one.clock().now + timedelta(seconds=1)))
            if turn >= 2:
                # The walls jump while they wait.
                walls[0].move(-OFF_S if turn % 2 else OFF_S)
                walls[1].move(OFF_S if turn % 2 else -OFF_S)
            got: list[bytes] = []
            while len(got) < 2:
                batch = other.claim("jobs", wait=10, max_messages=1)
                early += time.monotonic() - published < 0.999
                frozen += time.monotonic() - published > 1 + SLACK_S
                got += batch.payloads
                batch.ack()
            one.publish("jobs", b"held")
            began = time.monotonic()
            held = one.claim("jobs", lease=1, wait=5)
            claimed = time.monotonic()
            assert other.claim("jobs").payloads == []
            taken = other.claim("jobs", wait=10)
            assert taken.payloads == [b"held"]
            early += time.monotonic() - began < 0.999
            frozen += time.monotonic() - claimed > 1 + SLACK_S
            assert one.ack(held).done == 0, "a stale ack was accepted"
            assert other.ack(taken).done == 1
    assert (early, frozen) == (0, 0)


def test_a_process_whose_clocks_run_too_fast_delivers_nothing_early(fresh_store_url: Callable[[], str]) -> None:
    """It went by what it reckoned since its last look at PostgreSQL's clock, as long as nobody else had a turn."""
    # Every clock of the process, twice as fast. A broker would be refused for it after a while.
    fast = {**os.environ, "LD_PRELOAD": faketime(), "FAKETIME": "+0 x2", "FAKETIME_NO_CACHE": "1"}
    process = Process(fresh_store_url(), fast)
    try:
        process.do("publish", payload="first")
        assert process.do("claim") == ["first"]
        for _ in range(scaled(3, 20)):
            assert process.do("ack") == 0
            published = time.monotonic()
            process.do("publish", payload="later", due=3)
            while not process.do("claim"):
                time.sleep(0.05)
            waited = time.monotonic() - published
            assert waited >= 2.9, f"due in 3 s, it came after {waited:.2f} s"
    finally:
        process.kill()
