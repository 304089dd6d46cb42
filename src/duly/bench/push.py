"""Pushes to many endpoints, some of them dead: what that does to the others, and deliveries a second.

A broker, the endpoints and whoever publishes are processes of their own, all here. Each endpoint has a topic and a
push.

    alone, beside, alone, beside …   every healthy endpoint gets some messages a second; beside: the dead have theirs to
                                     deliver, too (a third refuses connections, a third never answers, a third says 500)
    backlog                          all that was published waits; then the healthy pushes are resumed

How long a message is on its way is from before its publish to its arrival. Each pair of turns has dead endpoints of its
own, which were never tried before: so every turn beside begins with an outbreak, with breakers that are closed.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

import duly
from duly.bench.brokers import own_broker
from duly.clock import monotonic_s
from duly.push import ToHttp

_THREADS = 4
_PADDING = b" " + b"x" * 180
# What dead endpoints have to deliver, each.
_DEAD_BACKLOG = 200
_TIMEOUT_S = 2.0
_PATIENCE_S = 120.0
_LATE_S = 10.0
# Brokers look every second which pushes are theirs, and how they are set.
_TAKEN_S = 2.5


@dataclass(frozen=True, slots=True)
class Load:
    """How many endpoints, how many of them dead, and what they get."""

    endpoints: int = 200
    dead: int = 20
    per_s: float = 2.0
    seconds: float = 5.0
    pairs: int = 3
    backlog: int = 20_000
    concurrency: int = 8

    @property
    def healthy(self) -> int:
        """Those that take what comes."""
        return self.endpoints - self.dead


def measure(folder: Path, load: Load) -> dict[str, float]:
    """Figures of both parts."""
    with _endpoints() as port, _closed_port() as closed:
        allow = ("--push-allow", f"127.0.0.1:{port}", "--push-allow", f"127.0.0.1:{closed}")
        with own_broker(folder / "push.duly", *allow) as url, duly.connect(url, timeout=_PATIENCE_S) as client:
            run = _Run(client, load, port, closed)
            run.prepare()
            figures = run.turns()
            return figures | run.drain()


class _Run:
    def __init__(self, client: duly.Client, load: Load, port: int, closed: int) -> None:
        self._client = client
        self._load = load
        self._port = port
        self._closed = closed
        self._ok = [f"ok-{number}" for number in range(load.healthy)]
        self._threads = ThreadPoolExecutor(_THREADS, "bench-publish")

    def prepare(self) -> None:
        """Topics and pushes. Every one has delivered something then: connections are there, and pushes run."""
        list(self._threads.map(self._make, self._ok))
        self._figures()
        list(self._threads.map(self._publish, self._ok))
        self._until_arrived(self._load.healthy)

    def _make(self, name: str) -> None:
        kind, number = name.split("-")[:2]
        paths = {"ok": f"{self._port}/ok-{number}"}
        if kind == "dead":
            ways = (f"{self._closed}/", f"{self._port}/hole-{number}", f"{self._port}/500-{number}")
            paths["dead"] = ways[int(number) % len(ways)]
        self._client.create_topic(name, kind="queue")
        to = ToHttp(f"http://127.0.0.1:{paths[kind]}", concurrency=self._load.concurrency, timeout=_TIMEOUT_S)
        self._client.create_push(name, topic=name, to=to)

    # Turns

    def turns(self) -> dict[str, float]:
        """How long messages were on their way, with the dead and without."""
        waits: dict[str, list[float]] = {"alone": [], "beside": []}
        expected = 0
        for pair in range(self._load.pairs):
            dead = [f"dead-{number}-{pair}" for number in range(self._load.dead)]
            list(self._threads.map(self._make, dead))
            Event().wait(_TAKEN_S)
            for turn, found in waits.items():
                if turn == "beside":
                    for name in dead:
                        self._client.publish(name, [_PADDING] * _DEAD_BACKLOG)
                sent = self._paced()
                found += self._until_arrived(sent)
                expected += sent
            list(self._threads.map(self._client.delete_push, dead))
            Event().wait(_TAKEN_S)
        figures: dict[str, float] = {"endpoints": self._load.endpoints, "dead": self._load.dead}
        for turn, found in waits.items():
            for share in (50, 99):
                figures[f"{turn}_p{share}_ms"] = round(float(np.percentile(found, share)), 2)
        figures["p99_ratio"] = round(figures["beside_p99_ms"] / figures["alone_p99_ms"], 3)
        figures["missing"] = expected - sum(map(len, waits.values()))
        return figures

    def _paced(self) -> int:
        """Publishes for the turn's time, evenly, to one healthy topic after the other; how many."""
        began, sent = monotonic_s(), 0
        rate = self._load.per_s * self._load.healthy
        pause = Event()
        done = []
        while (now := monotonic_s() - began) < self._load.seconds:
            while sent < now * rate:
                done.append(self._threads.submit(self._publish, self._ok[sent % len(self._ok)]))
                sent += 1
            pause.wait(0.002)
        for one in done:
            one.result()
        return sent

    def _publish(self, topic: str) -> None:
        self._client.publish(topic, b"%r%s" % (monotonic_s(), _PADDING))

    # A backlog

    def drain(self) -> dict[str, float]:
        """How many deliveries a second, when all that waits is delivered."""
        list(self._threads.map(self._client.pause_push, self._ok))
        Event().wait(_TAKEN_S)
        each = self._load.backlog // self._load.healthy
        for name in self._ok:
            self._client.publish(name, [b"%r%s" % (monotonic_s(), _PADDING)] * each)
        self._figures()
        list(self._threads.map(self._client.resume_push, self._ok))
        whole, first, last = each * self._load.healthy, 0.0, 0.0
        arrived, until = 0, monotonic_s() + _PATIENCE_S
        while arrived < whole and monotonic_s() < until:
            Event().wait(0.5)
            seen = self._figures()
            arrived += len(seen["waits_ms"])
            first, last = first or seen["first"], seen["last"] or last
        return {"delivered": arrived, "deliveries_per_s": round(arrived / max(last - first, 0.001))}

    # What arrived

    def _figures(self) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/figures", timeout=30) as answer:
            return json.loads(answer.read())

    def _until_arrived(self, count: int) -> list[float]:
        found: list[float] = []
        until = monotonic_s() + _LATE_S
        while len(found) < count and monotonic_s() < until:
            Event().wait(0.1)
            found += self._figures()["waits_ms"]
        return found


@contextmanager
def _endpoints() -> Iterator[int]:
    """Starts the process of endpoints; its port."""
    command = [sys.executable, "-m", "duly.bench.endpoints"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


@contextmanager
def _closed_port() -> Iterator[int]:
    """A port that refuses: it is bound, so that nobody else listens there, and so does nobody here."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
