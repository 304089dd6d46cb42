"""Brokers on one PostgreSQL: `duly serve` in processes of their own, to be killed, stopped and started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The engine's steps made small: few messages take all of its ways.
SERVE = "from tests.crash.queue_steps import make_small; make_small(); from duly.cli.main import app; app()"


class BrokerProcess:
    """One broker, on one port for all its lives."""

    def __init__(self, store: str, folder: Path, number: int, env: dict[str, str] | None = None) -> None:
        self.store = store
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"duly://127.0.0.1:{self.port}"
        self._said = folder / f"broker{number}.stderr"
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns when it listens."""
        self.begin()
        self.listens()

    def begin(self) -> None:
        command = [sys.executable, "-c", SERVE, "--json", "serve", "--store", self.store]
        ports = ["--http-port", "0", "--flight-port", str(self.port)]
        with self._said.open("a") as said:
            self._process = subprocess.Popen(
                [*command, *ports], cwd=ROOT, env=self._env, stdout=subprocess.PIPE, stderr=said, text=True
            )

    def listens(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        assert told, self._said.read_text()
        assert json.loads(told)["flight_port"] == self.port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


def url_of(brokers: list[BrokerProcess]) -> str:
    """All of them, for a client that goes on to the next."""
    return "duly://" + ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)
