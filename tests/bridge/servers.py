"""A Redis and a NATS of a test's own, on loopback, that can be killed and come up again with what they had."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

REDIS = shutil.which("redis-server")
NATS = shutil.which("nats-server", path=os.path.dirname(sys.executable)) or shutil.which("nats-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A process that listens; stopped by its id."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self.port = port
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, self._log.read_text()[-2000:]
                assert time.monotonic() < deadline, "the server does not listen"
                time.sleep(0.02)

    def end(self, how: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None


def start_redis(folder: Path, *more: str, tls: bool = False) -> Server:
    """One that writes everything down before it answers."""
    assert REDIS is not None
    folder.mkdir(exist_ok=True)
    port = free_port()
    ports = ["--port", "0", "--tls-port", str(port)] if tls else ["--port", str(port)]
    command = [REDIS, *ports, "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    return Server([*command, "--appendonly", "yes", "--appendfsync", "everysec", *more], port, folder / "log")


def start_nats(folder: Path, *more: str) -> Server:
    assert NATS is not None
    folder.mkdir(exist_ok=True)
    port = free_port()
    return Server([NATS, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder), *more], port, folder / "log")
