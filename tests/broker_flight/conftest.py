"""Brokers to be mistreated: one in this process, and ones of their own that can be killed, stopped and told to go."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

import duly
from duly.broker.broker import Broker
from duly.client.connect import open_home
from duly.flight.server import FlightServer
from duly.wire.operations import encode
from duly.wire.talk import SESSION, Answer, Hello, Request

ROOT = Path(__file__).parents[2]


class Raw:
    """A session held by hand."""

    def __init__(self, client: flight.FlightClient) -> None:
        self.writer, self.reader = client.do_exchange(flight.FlightDescriptor.for_command(SESSION))
        self.hello = msgspec.msgpack.decode(memoryview(self.reader.read_chunk().app_metadata), type=Hello)

    def ask(self, name: str, body: Any, **more: Any) -> tuple[Answer, Any]:
        """Has one operation done."""
        return self.send(encode(Request(name, msgspec.Raw(encode(body)), **more)))

    def send(self, metadata: bytes) -> tuple[Answer, Any]:
        """Sends anything, and returns what is answered."""
        self.writer.write_metadata(metadata)
        return self.read()

    def read(self) -> tuple[Answer, Any]:
        chunk = self.reader.read_chunk()
        return msgspec.msgpack.decode(memoryview(chunk.app_metadata), type=Answer), chunk.data

    def close(self) -> None:
        """Breaks it off."""
        self.reader.cancel()
        with suppress(pa.ArrowException):
            self.writer.close()


class Here:
    """A broker in this process."""

    def __init__(self, path: str) -> None:
        self._sessions: list[Raw] = []
        self.broker = Broker(open_home(path))
        self.server = FlightServer(self.broker, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.port}"
        self.url = f"duly://{self.address}"

    def raw(self) -> flight.FlightClient:
        """A client of Flight's that knows nothing of Duly."""
        return flight.FlightClient(f"grpc://{self.address}")

    def session(self) -> Raw:
        """A session held by hand, broken off at the end of the test."""
        self._sessions.append(Raw(self.raw()))
        return self._sessions[-1]

    def settle_streams(self, count: int = 0, within_s: float = 5.0) -> None:
        """Waits until no more than so many streams are open."""
        eventually(lambda: self.server.streams <= count, within_s, lambda: f"{self.server.streams} streams are open")

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self.broker.drain()
        self.server.shutdown()
        self.broker.shut()


class Elsewhere:
    """A broker in a process of its own, on one port for all its lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = free_port()
        self.url = f"duly://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[str] | None = None
        self.said = path.with_suffix(".stderr")

    def start(self) -> None:
        """Returns when it listens."""
        command = [sys.executable, "-m", "tests.broker_flight.broker_process", str(self.path), str(self.port)]
        with self.said.open("a") as said:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=said, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == str(self.port), self.said.read_text()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def wait(self, timeout: float = 15) -> int:
        assert self.process is not None
        code = self.process.wait(timeout)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.kill()


def resident_mb(pid: int) -> float:
    """The memory that a process has."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def threads_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("Threads:")[1].split()[0])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(
    holds: Callable[[], bool], within_s: float = 5.0, otherwise: Callable[[], str] = lambda: "it did not come about"
) -> None:
    """Waits until something holds, that other processes or threads of gRPC's bring about."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.02)


@pytest.fixture
def here(path: str) -> Iterator[Here]:
    opened = Here(path)
    yield opened
    opened.close()


@pytest.fixture
def q(here: Here) -> Iterator[duly.Client]:
    """A client of the broker in this process."""
    with duly.connect(here.url, consumer="w1", timeout=10) as client:
        yield client


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    broker = Elsewhere(tmp_path / "elsewhere.duly")
    broker.start()
    yield broker
    broker.close()
