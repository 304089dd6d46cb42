"""One message in its handler.

    running ──returns or raises──▶ ended ──take──▶ settled
       │ time limit: TimeLimit is raised in the handler, or its task is cancelled ─▶ ended, if it lets itself be
       │     └ still running a little later ──take──▶ nacked; thread or task is written off
       └ the run stops and its grace is over ──take──▶ released; whatever the handler still does, nobody listens

Three may come to settle it: whoever runs the handler, the watchdog, and the stop. `take` lets the first one have it, so
that a message is never acked and released at once. A handler that settles its delivery itself settles it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator

from ..causal import operation
from ..client.batch import Batch, Delivery
from ..errors import Closed, Error, LeaseLost, NotFound, OperationExhausted, TimeLimit
from ..events import log
from ..interrupt import Interruptible
from .handler import Handler
from .verdict import Bury, RetryLater, Verdict, verdict_on

_PAUSES_S = (0.1, 0.5, 2.0)
_PAUSE_S_MAX = 5.0


class Hold:
    """The messages of one claim: their leases are renewed until the last of them has ended."""

    def __init__(self, batch: Batch, renew: Callable[[Batch], Callable[[], None]]) -> None:
        self._lock = threading.Lock()
        self._left = len(batch)
        self._stop = renew(batch)

    def let_go(self) -> None:
        """One of its messages has ended."""
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._stop()


class Job:
    """A delivery and the handler that works on it."""

    def __init__(self, handler: Handler, delivery: Delivery, hold: Hold) -> None:
        self.handler = handler
        self.delivery = delivery
        self.hold = hold
        self.limit_passed = False
        self._lock = threading.Lock()
        self._taken = False
        self._interruptible = None if handler.time_limit_s is None else Interruptible(TimeLimit)

    def take(self) -> bool:
        """Whether the caller is the first, and so the one who settles it."""
        with self._lock:
            first = not self._taken
            self._taken = True
            return first

    def call(self) -> BaseException | None:
        """Runs a sync handler to its end; what it raised is returned."""
        try:
            if self._interruptible is None:
                self._call()
            else:
                self._interruptible.run(self._call)
        except BaseException as error:  # SystemExit too: a handler that calls sys.exit() has failed, not the worker.
            return error
        return None

    def _call(self) -> None:
        with operation(self.delivery.operation):
            answer = self.handler.function(self.delivery)
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise TypeError(f"{self.handler.name} returned something to be awaited: define it with `async def`")

    def interrupt(self) -> None:
        """Raises TimeLimit in a sync handler that is still running."""
        if self._interruptible is not None:
            self._interruptible.interrupt()

    def answer(self, error: BaseException | None, give_up: threading.Event) -> None:
        """Settles it as the handler's end demands, and logs a failure."""
        if error is not None:
            self._tell(error)
        if not self.delivery.settled:
            self.settle(self._verdict(error), give_up)

    def settle(self, verdict: Verdict, give_up: threading.Event) -> None:
        """Settles it, again and again while the store cannot, until the lease is lost or it is time to give up."""
        pauses = _pauses()
        while not self._settled(verdict):
            if give_up.wait(next(pauses)):
                log.error("%s is given up: it comes back when its lease ends", self)
                return

    def _settled(self, verdict: Verdict) -> bool:
        """Whether there is nothing left to do: it is settled, or no longer ours."""
        try:
            verdict.settle(self.delivery)
        except (LeaseLost, NotFound, Closed) as error:
            log.warning("the %s of %s came to nothing: %s", verdict.word, self, error)
        except Error as error:
            log.error("the %s of %s failed and will be tried again: %s", verdict.word, self, error)
            return False
        return True

    def _verdict(self, error: BaseException | None) -> Verdict:
        if isinstance(error, TimeLimit):
            return self.over_limit()
        return verdict_on(error)

    def over_limit(self) -> Verdict:
        """The verdict on a message whose handler took too long."""
        return Verdict("nack", f"TimeLimit: the handler did not end within {self.handler.time_limit_s:g} s")

    def _tell(self, error: BaseException) -> None:
        if isinstance(error, RetryLater):
            log.info("%s wants %s tried again: %s", self.handler.name, self, error)
        elif isinstance(error, OperationExhausted):
            # That it is stopped was told once; this is each of its messages, each time.
            log.info("%s waits with %s: %s", self.handler.name, self, error)
        elif isinstance(error, Bury):
            log.warning("%s buries %s: %s", self.handler.name, self, error)
        else:
            log.error("%s failed on %s: %s", self.handler.name, self, self._verdict(error).reason, exc_info=error)

    def __str__(self) -> str:
        return f"message {self.delivery.id!r} of {self.handler.source} (attempt {self.delivery.attempt})"


def _pauses() -> Iterator[float]:
    yield from _PAUSES_S
    while True:
        yield _PAUSE_S_MAX
