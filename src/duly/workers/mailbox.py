"""What the main thread waits on: words from other threads, and from signal handlers.

A signal may come between the last step of the main thread and the moment it falls asleep. Python runs the handler only
when that thread next wakes, so a lock or a queue would sleep through it: a SIGTERM unheard. A pipe does not: the
interpreter writes a byte into it the moment the signal comes (signal.set_wakeup_fd), and what is in a pipe is not lost.
"""

from __future__ import annotations

import os
import select
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

from ..clock import monotonic_s

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Words for one reader. Anyone may put, also a signal handler: it takes no lock."""

    def __init__(self) -> None:
        self._words: deque[T] = deque()
        self._read, self.wakeup_fd = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self.wakeup_fd, False)

    def put(self, word: T) -> None:
        """Adds a word and wakes the reader."""
        self._words.append(word)
        # A pipe that is full wakes as well.
        with suppress(BlockingIOError):
            os.write(self.wakeup_fd, b"\0")

    def get(self, timeout_s: float | None = None) -> T | None:
        """The next word; None when none came in time."""
        deadline = None if timeout_s is None else monotonic_s() + timeout_s
        while not self._words:
            left_s = None if deadline is None else deadline - monotonic_s()
            if left_s is not None and left_s <= 0:
                return None
            if select.select([self._read], [], [], left_s)[0]:
                os.read(self._read, 4096)
        return self._words.popleft()

    def __del__(self) -> None:
        # Not before: whoever might still put a word must not find that its pipe has become somebody else's file.
        os.close(self._read)
        os.close(self.wakeup_fd)
