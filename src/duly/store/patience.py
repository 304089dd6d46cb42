"""Patience: how another thread ends a wait.

A thread that waits in a store does so for someone, and that someone may go away: an asyncio task is cancelled
while a thread of its client waits for a message. Left alone the thread would wait on, take a message that nobody
wants, and have to give it back. So it enters a Patience before it calls; whoever holds the other end calls
`end`, the wait in that thread raises Interrupted at once, and the thread is free again.

Only waits are interrupted, never a transaction: what has begun is finished, and whoever called gets the answer.
A store's `wait` sleeps inside `waking`; a thread without patience of its own cannot be interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType


class Interrupted(BaseException):
    """Whoever this wait was for is gone. No Exception: nothing on its way may take it for a failure and try again."""


class Patience:
    """The patience of one thread with its waits, entered there and ended from elsewhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = False
        self._wake: Callable[[], None] | None = None

    def end(self) -> None:
        """Ends the wait at hand and every later one."""
        with self._lock:
            self._over = True
            if self._wake is not None:
                self._wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Around a sleep that `wake` ends, from any thread and also twice. Raises Interrupted."""
        with self._lock:
            if self._over:
                raise Interrupted
            self._wake = wake
        try:
            yield
        finally:
            with self._lock:
                self._wake = None
        if self._over:
            raise Interrupted

    def __enter__(self) -> Patience:
        _here.patience = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del _here.patience


_here = threading.local()


def patience_here() -> Patience:
    """The patience of this thread; without any, one that never ends."""
    found: Patience | None = getattr(_here, "patience", None)
    return Patience() if found is None else found
