"""A process that takes or restores a backup and is killed at one of its calls to the system.

python -m tests.backup.victim backup|restore STORE FOLDER KILL_AT     KILL_AT 0: never; prints how many there were
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import apsw

import duly


class Reaper:
    """Counts the calls that change something on disk, and kills before or after one of them."""

    def __init__(self, kill_at: int) -> None:
        self.calls = 0
        self.kill_at = kill_at

    def watch(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **named: Any) -> Any:
            self.step()
            answer = call(*args, **named)
            self.step()
            return answer

        return watched

    def step(self) -> None:
        self.calls += 1
        if self.calls == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def main(what: str, store: str, folder: str, kill_at: str) -> None:
    reaper = Reaper(int(kill_at))
    if what == "backup":
        with duly.connect(store) as q:
            _arm(reaper)
            q.backup(folder, keep=2)
    else:
        _arm(reaper)
        apsw.Connection = _watched_connection(reaper)  # type: ignore[misc]
        duly.restore(folder, store, force=True)
    print(reaper.calls)


def _arm(reaper: Reaper) -> None:
    for name in ("write", "fsync", "rename", "replace", "unlink", "mkdir"):
        setattr(os, name, reaper.watch(getattr(os, name)))


def _watched_connection(reaper: Reaper) -> type[apsw.Connection]:
    class Watched(apsw.Connection):
        def execute(self, *args: Any, **named: Any) -> Any:
            reaper.step()
            return super().execute(*args, **named)

        def wal_checkpoint(self, *args: Any, **named: Any) -> Any:
            reaper.step()
            return super().wal_checkpoint(*args, **named)

        def close(self, *args: Any, **named: Any) -> None:
            reaper.step()
            super().close(*args, **named)
            reaper.step()

    return Watched


if __name__ == "__main__":
    main(*sys.argv[1:])
