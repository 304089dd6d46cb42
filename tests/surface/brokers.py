"""Brokers under test: `duly serve` in a process of its own, or a broker in this one, which starts at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from duly.serve import Address, Served

DULY = Path(sys.executable).parent / "duly"


class Serving:
    """A running `duly serve`, and what its first line said."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process = process
        self.first_line = process.stdout.readline().decode()

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.first_line)
        return found

    @property
    def url(self) -> str:
        url: str = self.document["url"]
        return url

    def ended(self, number: int) -> tuple[int, str, str]:
        """Sends a signal; its exit code and what else it had said."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out.decode(), err.decode()


@contextmanager
def serving(folder: Path, *args: str) -> Iterator[Serving]:
    """Runs `duly serve` with these arguments while inside."""
    command: list[str | Path] = [DULY, "serve", *args]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield Serving(process)
        finally:
            process.kill()


@contextmanager
def served(store: Path) -> Iterator[str]:
    """A broker in this process, on a file; its address."""
    here = Served(str(store), Address(http_port=0, flight_port=0))
    try:
        yield f"duly://127.0.0.1:{here.flight.port}"
    finally:
        # The store first: who waits on it for a client that is gone would be waited for.
        here.broker.shut()
        here.flight.shutdown()
        here.http.stop()
