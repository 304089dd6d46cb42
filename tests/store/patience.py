"""Waiting for what another thread does: a condition and a deadline, never a bare sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, within_s: float = 15.0) -> T:
    """Asks until the answer is true and returns it; fails when the deadline passes."""
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"it did not come about within {within_s} s; last answer: {answer!r}"
        pause.wait(0.005)
    return answer


class Aside(Generic[T]):
    """Runs something in a thread of its own; `result` waits for it, bounded, and hands its error on."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._answer: T | None = None
        self._error: BaseException | None = None
        self.finished_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._work()
        except BaseException as error:
            self._error = error
        self.finished_at = time.monotonic()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def still_running_after(self, seconds: float) -> bool:
        """Whether it is at it after a moment: the one way to see that something waits."""
        self._thread.join(seconds)
        return self.running

    def result(self, within_s: float = 15.0) -> T:
        self._thread.join(within_s)
        assert not self.running, f"it did not finish within {within_s} s"
        if self._error is not None:
            raise self._error
        answer: T = self._answer  # type: ignore[assignment]
        return answer

    def __enter__(self) -> Aside[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join(15)
