"""One run of a process's handlers, from the first claim to the last settled message.

A claimer a handler (claimer.py) claims for free slots. Each message becomes a job (job.py) in a thread or a task. The
run itself, on the thread that called it, only waits to be told something:

    running ──stop, a signal, drained, stuck, a failure──▶ finishing: no claims, jobs get their grace
                                                              │ all ended ─▶ over
                                                              └ grace over, or a second signal:
                                                                the rest is released ─▶ over

What it is told goes through a mailbox (mailbox.py), which also a signal handler may use.

Nothing here polls. Idle, a claimer sleeps on the store's bell, the watchdog and the renewal on their next moment.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..client.batch import Batch
from ..clock import monotonic_s
from ..errors import Closed, Error
from ..events import log
from .claimer import Claimer
from .handler import Handler
from .job import Hold, Job
from .mailbox import Mailbox
from .tasks import Tasks
from .threads import Threads
from .turns import Turns
from .watchdog import Watchdog

if TYPE_CHECKING:
    from ..client.client import Client

# Settles what async handlers ended with, side by side, so that the store can commit them together.
_SETTLERS = 16
# How long to wait for answers of the store that are under way when everything else has ended.
_LAST_ANSWERS_S = 10.0


class Told(enum.Enum):
    """What a run can be told. The second signal ends the grace, a second stop does not."""

    STOP = enum.auto()
    SIGNAL = enum.auto()
    DRAINED = enum.auto()
    STUCK = enum.auto()
    FAILED = enum.auto()
    ENDED = enum.auto()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, and whether handlers are still running that nobody waits for."""

    why: Told
    left_running: bool


class Run:
    """Handlers at work on one client. Used once."""

    def __init__(
        self,
        client: Client,
        handlers: Sequence[Handler],
        *,
        threads: int | None,
        grace_s: float,
        drain: bool,
        leave_when_stuck: bool,
    ) -> None:
        self._client = client
        self._grace_s = grace_s
        self._drain = drain
        self._leave_when_stuck = leave_when_stuck
        self.told: Mailbox[Told] = Mailbox()
        self._signals = 0
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._give_up = threading.Event()
        self._lock = threading.Lock()
        self._jobs: dict[Job, Claimer] = {}
        # How many jobs have ended, and how many had when each claimer last looked and found nothing.
        self._ended = 0
        self._found_nothing: dict[Claimer, int] = {}
        self._left_running = False
        self._watchdog = Watchdog(over=self._over_limit, stuck=self._stuck)
        self._threads = Threads()
        self._tasks = Tasks(self._task_ended)
        self._settlers = ThreadPoolExecutor(_SETTLERS, thread_name_prefix="duly-settles")
        total = sum(handler.concurrency for handler in handlers if not handler.is_async)
        self._places = Turns(max(1, total if threads is None else threads))
        self._claimers = [self._claimer(handler) for handler in handlers]

    def _claimer(self, handler: Handler) -> Claimer:
        return Claimer(
            self._client,
            handler,
            threads=self._places,
            stopping=self._stopping,
            start=self._start,
            mark=lambda: self._ended,
            found_nothing=self._note_nothing,
            failed=self._fail,
        )

    # What others tell it

    def stop(self) -> None:
        """Ends it: running handlers get their grace. From any thread."""
        self.told.put(Told.STOP)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self.told.put(Told.FAILED)

    # From beginning to end

    def run(self) -> Ending:
        """Works until told to stop. Raises what a claimer could not deal with."""
        for claimer in self._claimers:
            claimer.thread.start()
        why = self._wait_for_end()
        deadline = monotonic_s() + self._grace_s
        self._stop_claiming(deadline)
        self._finish(deadline)
        self._release_rest()
        self._close()
        if self._failure is not None:
            raise self._failure
        return Ending(why, self._left_running)

    def _wait_for_end(self) -> Told:
        while True:
            told = self.told.get()
            self._signals += told is Told.SIGNAL
            if told not in (None, Told.ENDED):
                return told

    def _stop_claiming(self, deadline: float) -> None:
        self._stopping.set()
        self._places.close()
        for claimer in self._claimers:
            claimer.close()
        with suppress(Closed):
            self._client._wake()
        for claimer in self._claimers:
            # Only when it is known what they still got can the rest be released. (One that hangs in the store even
            # longer gives back by itself what it gets.)
            claimer.thread.join(max(_LAST_ANSWERS_S, deadline - monotonic_s()))

    def _finish(self, deadline: float) -> None:
        """Waits for the running handlers, until the grace is over or a second signal comes."""
        while self._jobs and self._signals < 2 and (left_s := deadline - monotonic_s()) > 0:
            self._signals += self.told.get(left_s) is Told.SIGNAL

    def _release_rest(self) -> None:
        with self._lock:
            rest = [job for job in self._jobs if job.take()]
        open_ones = [job.delivery for job in rest if not job.delivery.settled]
        if rest:
            log.warning("%d handlers did not end in time; %d messages are released", len(rest), len(open_ones))
        self._give_up.set()
        try:
            self._client.release(open_ones)
        except Error as error:
            log.error("they could not be released, and come back when their leases end: %s", error)
        for job in rest:
            self._left_running |= not job.handler.is_async
            self._tasks.cancel(job)
            self._done(job)
        self._wait_for_answers()

    def _wait_for_answers(self) -> None:
        """What is left is being settled: to leave now would be to deliver it twice."""
        deadline = monotonic_s() + _LAST_ANSWERS_S
        while self._jobs and (left_s := deadline - monotonic_s()) > 0:
            self.told.get(left_s)

    def _close(self) -> None:
        self._watchdog.close()
        self._tasks.close()
        self._threads.close()
        self._settlers.shutdown()

    # A message's way

    def _start(self, claimer: Claimer, batch: Batch) -> None:
        hold = Hold(batch, self._client.renew)
        jobs = [Job(claimer.handler, delivery, hold) for delivery in batch]
        with self._lock:
            self._jobs.update(dict.fromkeys(jobs, claimer))
        for job in jobs:
            if claimer.handler.is_async:
                self._watchdog.watch(job)
                self._tasks.start(job)
            else:
                self._start_in_thread(job)

    def _start_in_thread(self, job: Job) -> None:
        self._threads.start(lambda: self._work(job), lambda: self._done(job))

    def _work(self, job: Job) -> None:
        self._watchdog.watch(job)
        error = job.call()
        self._answer(job, error)

    def _answer(self, job: Job, error: BaseException | None) -> None:
        self._watchdog.forget(job)
        if job.take():
            job.answer(error, self._give_up)

    def _task_ended(self, job: Job, error: BaseException | None) -> None:
        self._settlers.submit(self._answer_task, job, error)

    def _answer_task(self, job: Job, error: BaseException | None) -> None:
        self._answer(job, error)
        self._done(job)

    def _done(self, job: Job) -> None:
        """The job has ended or was given up; only the first call counts."""
        with self._lock:
            claimer = self._jobs.pop(job, None)
            if claimer is None:
                return
            self._ended += 1
            last = not self._jobs
        job.hold.let_go()
        claimer.give(1)
        if self._stopping.is_set():
            self.told.put(Told.ENDED)
        elif self._drain and last:
            # What it published, perhaps, everyone has to look for again.
            self._client._wake()

    def _note_nothing(self, claimer: Claimer, mark: int) -> None:
        with self._lock:
            self._found_nothing[claimer] = mark
            looked = [self._found_nothing.get(other) == self._ended for other in self._claimers]
            drained = self._drain and not self._jobs and all(looked)
        if drained:
            self.told.put(Told.DRAINED)

    # Time limits

    def _over_limit(self, job: Job) -> None:
        if job.handler.is_async:
            self._tasks.cancel(job)
        else:
            job.interrupt()

    def _stuck(self, job: Job) -> None:
        """A handler did not end when its time was over: it is blocked where no exception reaches it."""
        if not job.take():
            return
        self._left_running = True
        log.error("%s is stuck in %s, past its time limit: it is written off", job.handler.name, job)
        self._tasks.write_off(job)
        self._settlers.submit(self._give_back_stuck, job)
        if self._leave_when_stuck:
            self.told.put(Told.STUCK)

    def _give_back_stuck(self, job: Job) -> None:
        if not job.delivery.settled:
            job.settle(job.over_limit(), self._give_up)
        self._done(job)
