"""`duly work` under test: an application in a folder, the command in a process, and what its handlers noted.

Handlers note what they do by one O_APPEND write a line: what is written stays, whoever is killed next.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DULY = Path(sys.executable).parent / "duly"

NOTES = """
import json, os, time
import duly

_fd = os.open("notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

def note(what, d=None, **facts):
    if d is not None:
        facts |= {"payload": d.payload.decode(), "attempt": d.attempt}
    line = json.dumps({"what": what, "pid": os.getpid(), "at": time.monotonic(), **facts})
    os.write(_fd, line.encode() + b"\\n")

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

workers = duly.Workers()
"""


def write_application(folder: Path, body: str, name: str = "tasks") -> None:
    (folder / f"{name}.py").write_text(NOTES + body)


def notes(folder: Path, what: str | None = None) -> list[dict[str, Any]]:
    """What was noted so far, in order."""
    path = folder / "notes"
    lines = path.read_bytes().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [note for note in found if what in (None, note["what"])]


class Work:
    """A running `duly work`. Its log is in a file, so that nobody has to read it for it to go on."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.log_path = folder / "log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [DULY, "work", "tasks:workers", *args],
                cwd=folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ctrl_c(self) -> None:
        """What a terminal does: every process of the group gets the signal."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self, within_s: float = 30) -> int:
        return self.process.wait(within_s)


@contextmanager
def work(folder: Path, *args: str) -> Iterator[Work]:
    """Runs `duly work tasks:workers` while inside, and ends it at once if the test did not."""
    running = Work(folder, *args)
    try:
        yield running
    except BaseException:
        print(running.log)
        raise
    finally:
        # Its processes end with it: they notice that it is gone.
        running.process.kill()
        running.process.wait()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has ended and whose parent has yet to notice is not alive either.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
