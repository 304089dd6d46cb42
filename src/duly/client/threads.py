"""Where the blocking calls of an asyncio program run: threads, and what becomes of a call that nobody awaits any more.

Short calls share a pool. What may wait for long (a claim for a message to come, the next delivery) has a thread of
its own, so that no number of waits can keep a publish from its turn.

    queued ──▶ running ──▶ finished ──▶ the task has the answer
      │           └─ cancelled: it runs to its end, its waits are interrupted; an answer that holds something
      │              (leases, an open store) is dropped, that is: given back at once, in the thread
      ├─ cancelled: never runs
      └─ its time is up before a thread is free: Timeout, never runs

So a call is done whole or not at all, whatever becomes of its task; only whether may be unknown to who cancelled it.
Nothing here belongs to an event loop: calls may come from several, each gets its answer in its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from ..errors import Busy, Closed, Timeout
from ..events import log
from ..store.patience import Interrupted, Patience

# Enough that many small publishes meet in one commit.
SHORT_CALLS_MAX = 32
# A waiting thread is cheap but not free: past this a caller gets Busy instead of a process that cannot breathe.
WAITING_CALLS_MAX = 4096

T = TypeVar("T")
Drop = Callable[[Any], None]

_QUEUED, _RUNNING, _FINISHED, _ABANDONED = range(4)


class _Job(Generic[T]):
    """One call on its way through a thread. Its stage changes under the lock alone."""

    def __init__(self, work: Callable[[], T], drop: Drop) -> None:
        self._work = work
        self._drop = drop
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._stage = _QUEUED
        self._answer: Any = None
        self.future: asyncio.Future[T] = self._loop.create_future()

    def run(self) -> None:
        """Does the work, in a thread, unless nobody wants it any more."""
        with self._lock:
            if self._stage == _ABANDONED:
                return
            self._stage = _RUNNING
        try:
            self._finish(self._work(), None)
        except BaseException as error:
            # Whatever it is belongs to whoever awaits it.
            self._finish(None, error)

    def expire(self) -> None:
        """Time is up: a job that still waits for a thread will not run."""
        with self._lock:
            if self._stage != _QUEUED:
                return
            self._stage = _ABANDONED
        if not self.future.done():
            self.future.set_exception(Timeout())

    def abandon(self) -> Callable[[], None] | None:
        """Nobody awaits it any more. Returns what is to be done, in a thread, if it has its answer already."""
        with self._lock:
            finished = self._stage == _FINISHED
            self._stage = _ABANDONED
        return self._drop_answer if finished else None

    def _finish(self, answer: Any, error: BaseException | None) -> None:
        with self._lock:
            wanted = self._stage == _RUNNING
            self._stage, self._answer = (_FINISHED if wanted else _ABANDONED), answer
        if wanted:
            # A loop that is closed wants nothing any more.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hand_over, answer, error)
                return
        if error is not None and not isinstance(error, Interrupted):
            log.info("a call failed after its task was cancelled: %s: %s", type(error).__name__, error)
        self._drop_answer()

    def _hand_over(self, answer: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(answer)
        else:
            self.future.set_exception(error)

    def _drop_answer(self) -> None:
        if self._answer is not None:
            self._drop(self._answer)


class Threads:
    """The threads of one client."""

    def __init__(self, drop: Drop) -> None:
        self._drop = drop
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._lines = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(SHORT_CALLS_MAX, "duly-aio")

    async def run(self, work: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Runs a short call in the pool. Raises Timeout if no thread is free in time."""
        job = _Job(work, self._drop)
        self.submit(job.run)
        if timeout_s is None:
            return await self.outcome(job)
        timer = asyncio.get_running_loop().call_later(timeout_s, job.expire)
        try:
            return await self.outcome(job)
        finally:
            timer.cancel()

    async def wait(self, work: Callable[[], T]) -> T:
        """Runs a call that may wait for long, in a thread of its own. Cancelling its task ends its waits."""
        line = self.line()
        try:
            return await line.run(work)
        finally:
            line.let_go()

    async def finish(self, work: Callable[[], T]) -> T:
        """Runs a short call that ends something: it runs, even if its task is cancelled before."""
        job = _Job(work, self._drop)
        self.submit(job.run)
        return await job.future

    def line(self) -> Line:
        """A thread of its own for calls that may wait for long. Raises Busy when there are too many."""
        self._survive_fork()
        with self._lock:
            if self._closed:
                raise Closed()
            if self._lines >= WAITING_CALLS_MAX:
                raise Busy(f"{WAITING_CALLS_MAX} calls wait already. Nothing was done; let fewer tasks claim.")
            self._lines += 1
        return Line(self, self._drop)

    def line_ended(self) -> None:
        """A line's thread is done."""
        with self._lock:
            self._lines -= 1

    async def outcome(self, job: _Job[T]) -> T:
        """Awaits a job's answer; a task that is cancelled meanwhile gives the job up."""
        try:
            return await job.future
        except asyncio.CancelledError:
            if (drop := job.abandon()) is not None:
                # Of a store that is closed nothing can be given back: its leases run out.
                with suppress(Closed):
                    self.submit(drop)
            raise

    def submit(self, work: Callable[[], None]) -> None:
        """Has the pool do something."""
        self._survive_fork()
        try:
            self._pool.submit(work)
        except RuntimeError as error:
            raise Closed() from error

    def _survive_fork(self) -> None:
        """In the child of a fork the threads are missing."""
        if self._pid != os.getpid():
            self._open()

    async def close(self, work: Callable[[], None]) -> None:
        """Runs `work`, after which calls in flight come to their end, and ends the threads. Twice does nothing."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return

        def end() -> None:
            try:
                work()
            finally:
                self._pool.shutdown()

        # Not in the pool, where it could wait behind those that only it can end.
        job = _Job(end, self._drop)
        threading.Thread(target=job.run, name="duly-aio-close").start()
        await job.future

    def let_go(self) -> None:
        """Ends the pool after the calls that it has."""
        self._pool.shutdown(wait=False)


class Line:
    """A thread that does one call after another. `end` it."""

    def __init__(self, threads: Threads, drop: Drop) -> None:
        self._threads = threads
        self._drop = drop
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Nobody has to wait for it when the program ends: the lease of what it may bring then runs out.
        threading.Thread(target=self._serve, name="duly-aio-wait", daemon=True).start()

    def _serve(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                call()
                # While it waits for the next it holds on to nothing: a loop that is left is noticed by that.
                del call
        finally:
            self._threads.line_ended()

    async def run(self, work: Callable[[], T]) -> T:
        """Runs a call. Cancelling its task ends its waits."""
        patience = Patience()

        def patiently() -> T:
            with patience:
                return work()

        job = _Job(patiently, self._drop)
        self._calls.put(job.run)
        try:
            return await self._threads.outcome(job)
        finally:
            patience.end()

    async def end(self, work: Callable[[], None]) -> None:
        """Runs a last call, even if its task is cancelled before, and lets the thread go."""
        job = _Job(work, self._drop)
        self.let_go(job.run)
        await job.future

    def let_go(self, last: Callable[[], None] | None = None) -> None:
        """Ends the thread after the calls that it has, and a last one. Never waits."""
        if last is not None:
            self._calls.put(last)
        self._calls.put(None)
