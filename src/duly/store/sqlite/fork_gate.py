"""Who is inside SQLite: so that a fork, or the rebuilding of the log, can wait until nobody is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ForkGate:
    """Counts who is inside SQLite, so that a fork can wait until nobody is."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._shut = False

    def __enter__(self) -> None:
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            if self._shut:
                self._changed.notify_all()

    def shut(self, seconds: float) -> bool:
        """Lets nobody in any more and waits until all are out; False when someone stays too long."""
        with self._changed:
            self._shut = True
            return self._changed.wait_for(lambda: self._inside == 0, seconds)

    @contextmanager
    def alone(self, seconds: float) -> Iterator[bool]:
        """For one who is inside: waits until all others are out and keeps them out; False when they stay."""
        with self._changed:
            self._shut = True
            alone = self._changed.wait_for(lambda: self._inside == 1, seconds)
        try:
            yield alone
        finally:
            self.open()

    def open(self) -> None:
        """Lets everyone in again."""
        with self._changed:
            self._shut = False
            self._changed.notify_all()
