"""Following without end, until somebody ends it: Ctrl-C, SIGTERM, or a reader that has gone away.

A program that waits for messages writes nothing, so it would not notice that its reader is gone. A thread asks the
kernel to be told (the other end of the pipe is closed) and interrupts the main thread, wherever it waits.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_TERMINATED = 128 + signal.SIGTERM


@contextmanager
def until_ended() -> Iterator[None]:
    """Inside, the end comes as SystemExit: the store is closed, and the exit code says what it was."""
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, _terminate),
        signal.SIGPIPE: signal.signal(signal.SIGPIPE, _leave_off),
    }
    stop_read, stop_write = os.pipe()
    watcher = threading.Thread(target=_watch, args=(stop_read,), name="duly-reader-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(stop_write)
        watcher.join()
        os.close(stop_read)
        for number, handler in before.items():
            signal.signal(number, handler)


# Both raise SystemExit, which nobody on the way takes for an error of the store's.


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(_TERMINATED)


def _leave_off(_number: int, _frame: FrameType | None) -> None:
    # What is still buffered goes nowhere, quietly.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(1)


def _watch(stop: int) -> None:
    """Waits for the reader to go, or for the end."""
    try:
        out = sys.stdout.fileno()
    except OSError:
        # Not a file: nobody can close it from outside.
        return
    poll = select.poll()
    # No events asked for: only that the other end is gone is told, unasked.
    poll.register(out, 0)
    poll.register(stop, select.POLLIN)
    if any(fd == out for fd, _ in poll.poll()):
        os.kill(os.getpid(), signal.SIGPIPE)
