"""Redis → a queue of Duly → JetStream, with bridges and servers killed on the way: none lost, in the order of due."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import duly
from tests.conftest import FULL, scaled

from .conftest import JetStream
from .servers import Server

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))
COUNT = scaled(2_000, 100_000)
KILLS = scaled(3, 25)
DULY = Path(sys.executable).with_name("duly")


class Copying:
    """A bridge's process, started again whenever it was killed."""

    def __init__(self, path: str, *arguments: str) -> None:
        self._command = [str(DULY), "bridge", *arguments, "--store", path]
        self.process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill(self) -> None:
        self.process.kill()
        self._wait()
        self.process = self._begin()

    def drain(self) -> str:
        """Told to stop, once it hears signals, it ends in order."""
        assert self.process.stderr is not None
        assert self.process.stderr.readline().startswith(b"Copying from ")
        self.process.send_signal(signal.SIGTERM)
        said = self._wait()
        assert self.process.returncode == 0, said
        return said

    def __enter__(self) -> Copying:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever became of the test, nothing of it goes on."""
        if self.process.poll() is None:
            self.process.kill()
            self._wait()

    def _wait(self) -> str:
        return self.process.communicate(timeout=60)[1].decode()


def progressing(progress: Callable[[], int], until: int, within_s: float = 120) -> None:
    """Waits until so many are there; a server may be coming up meanwhile."""
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(Exception):
            if progress() >= until:
                return
        assert time.monotonic() < deadline, f"it does not come to {until}"
        time.sleep(0.002)


def pending(server: Server) -> int:
    with redis.Redis(port=server.port, protocol=2) as asking:
        groups: Any = asking.xinfo_groups("stream:orders")
        return int(groups[0]["pending"])


def killing(draw: random.Random, copying: Copying, server: Server, progress: Callable[[], int]) -> None:
    """Kills at random places of the way, the server now and then where there is time for that."""
    for number, place in enumerate(sorted(draw.sample(range(COUNT // 20, COUNT), KILLS))):
        progressing(progress, place)
        copying.kill()
        if FULL and number % 5 == 0:
            server.end()
            server.start()
    progressing(progress, COUNT, within_s=scaled(60, 600))


@pytest.mark.timeout(scaled(200, 1800))
def test_all_arrive_in_the_order_of_due_whatever_is_killed(
    path: str, r: Any, redis_server: Server, js: JetStream, nats_server: Server
) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    base = int(time.time() * 1000) - 2 * COUNT
    order = list(range(COUNT))
    draw.shuffle(order)
    for start in range(0, COUNT, 5_000):
        with r.pipeline(transaction=False) as pipe:
            for n in order[start : start + 5_000]:
                pipe.xadd("stream:orders", {"body": b"%d" % n, "at": base + n})
            pipe.execute()
    with duly.connect(path) as q:
        q.create_topic("timeline", kind="queue")
    batch = str(scaled(40, 500))
    origin = f"redis://127.0.0.1:{redis_server.port}/0/stream:orders"
    options = ("--field", "body", "--due", "header.at", "--batch", batch)
    with duly.connect(path) as q, Copying(path, origin, "duly:timeline", *options) as inward:
        killing(draw, inward, redis_server, lambda: q.describe_topic("timeline").messages)
        inward.drain()
        assert q.describe_topic("timeline").messages == COUNT
    assert pending(redis_server) == 0
    began = time.monotonic()
    target = f"nats://127.0.0.1:{nats_server.port}/ORDERS/orders.out"

    def stored() -> int:
        found: int = js.do(lambda js: js.stream_info("ORDERS")).state.messages
        return found

    with Copying(path, "duly:timeline", target, "--batch", batch) as outward:
        killing(draw, outward, nats_server, stored)
        outward.drain()
    took = time.monotonic() - began
    with duly.connect(path) as q:
        assert q.describe_topic("timeline").messages == 0
        assert not list(q.dead("timeline"))
    arrived = [int(message.data) for message in js.stored()]
    assert len(arrived) == COUNT, f"{len(arrived) - COUNT} too many"
    assert arrived == list(range(COUNT))
    print(f"{COUNT} messages, {2 * KILLS} bridges killed; out in {took:.1f} s")
