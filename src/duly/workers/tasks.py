"""The event loop of async handlers, in a thread of its own; a task a message."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from ..causal import operation
from ..errors import TimeLimit
from .job import Job

# How long tasks may take to end once they were cancelled, and the loop to close.
_CLOSE_S = 5.0

Ended = Callable[[Job, BaseException | None], None]


class Loop:
    """An event loop that runs in a thread until it is told to stop."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duly-tasks", daemon=True)
        self._thread.start()
        self._ready.wait()

    def soon(self, call: Callable[[], object]) -> None:
        """Makes a call on the loop; on a loop that is closed nothing."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def close(self) -> None:
        """Cancels what still runs, and waits a little for it."""
        self.soon(self._stop.set)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        asyncio.run(self._until_told())

    async def _until_told(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()


class Tasks:
    """Runs jobs of async handlers. `ended` is called on the loop and must not block."""

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._running: dict[Job, asyncio.Task[None]] = {}
        self._loops: dict[Job, Loop] = {}

    def start(self, job: Job) -> None:
        """Begins a task for the job."""
        with self._lock:
            if self._loop is None:
                self._loop = Loop()
            loop = self._loops[job] = self._loop
        loop.soon(lambda: self._begin(job))

    def cancel(self, job: Job) -> None:
        """Cancels the job's task, if it has not ended."""
        loop = self._loops.get(job)
        if loop is not None:
            loop.soon(lambda: self._cancel(job))

    def write_off(self, job: Job) -> None:
        """The job did not let itself be cancelled. It may block the loop: what comes from now on gets another."""
        with self._lock:
            if self._loops.get(job) is self._loop:
                self._loop = None

    def close(self) -> None:
        """Cancels what still runs."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def _begin(self, job: Job) -> None:
        # Held here: the loop itself keeps no task alive.
        self._running[job] = asyncio.get_running_loop().create_task(self._work(job))

    def _cancel(self, job: Job) -> None:
        if job in self._running:
            self._running[job].cancel()

    async def _work(self, job: Job) -> None:
        error: BaseException | None = None
        try:
            with operation(job.delivery.operation):
                await job.handler.function(job.delivery)
        except asyncio.CancelledError as cancelled:
            error = TimeLimit() if job.limit_passed else cancelled
        except BaseException as raised:  # SystemExit too: it would end the loop, and every other task with it.
            error = raised
        self._running.pop(job, None)
        self._loops.pop(job, None)
        self._ended(job, error)
