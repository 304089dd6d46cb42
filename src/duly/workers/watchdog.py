"""Time limits: a thread that sleeps until the next one is reached."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..clock import monotonic_s
from .job import Job

# How long a handler may take to end once it was told to: time to close a connection, not to go on.
STUCK_AFTER_S = 2.0


class Watchdog:
    """Tells jobs that their time is over, and says which have not ended after that either."""

    def __init__(self, *, over: Callable[[Job], None], stuck: Callable[[Job], None]) -> None:
        self._over = over
        self._stuck = stuck
        # As many as run at once, so that looking through them all is cheap.
        self._until: dict[Job, float] = {}
        self._wakes_at = float("inf")
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, job: Job) -> None:
        """Counts from now on, if the job's handler has a limit."""
        if job.handler.time_limit_s is None:
            return
        with self._changed:
            self._until[job] = until = monotonic_s() + job.handler.time_limit_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="duly-watchdog", daemon=True)
                self._thread.start()
            elif until < self._wakes_at:
                self._changed.notify()

    def forget(self, job: Job) -> None:
        """The job has ended."""
        with self._changed:
            self._until.pop(job, None)

    def close(self) -> None:
        """Watches nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while (late := self._sleep()) is not None:
            for job in late:
                if job.limit_passed:
                    self._stuck(job)
                else:
                    job.limit_passed = True
                    self._over(job)

    def _sleep(self) -> list[Job] | None:
        """Waits for jobs whose time is over; None at the end."""
        with self._changed:
            while not self._closed:
                now = monotonic_s()
                if late := [job for job, until in self._until.items() if until <= now]:
                    self._put_off(late, now)
                    return late
                self._wakes_at = min(self._until.values(), default=float("inf"))
                self._changed.wait(None if self._wakes_at == float("inf") else self._wakes_at - now)
            return None

    def _put_off(self, late: list[Job], now: float) -> None:
        for job in late:
            if job.limit_passed:
                del self._until[job]
            else:
                self._until[job] = now + STUCK_AFTER_S
