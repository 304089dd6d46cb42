"""What a signal must not interrupt, done by a thread that signals do not come to.

Python raises a signal's exception (KeyboardInterrupt) in the main thread, between any two steps: also between taking
a lock and noting that it is taken. So the main thread has such work done by another one, and waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def shielded(work: Callable[[], T], *, to_the_end: bool = True) -> T:
    """Does something whole, whatever signals come: their exception comes up when it is done.

    Not `to_the_end`: the exception comes up at once, and the work goes on without anybody waiting for it.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    errand = _Errand(work)
    interrupted = errand.start(to_the_end) or errand.wait(to_the_end)
    if interrupted is not None:
        raise interrupted
    answer: T = errand.result()
    return answer


class _Errand:
    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._answer: Any = None
        self._error: BaseException | None = None
        self._over = False
        self._begun = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()

    def start(self, to_the_end: bool) -> BaseException | None:
        try:
            threading.Thread(target=self._run, name="duly-errand", daemon=True).start()
        except RuntimeError:
            # There are no threads to be had.
            self._run()
        except BaseException as error:
            if not to_the_end:
                raise
            self._run()
            self.wait(to_the_end)
            return error
        return None

    def wait(self, to_the_end: bool) -> BaseException | None:
        """Waits for the end; the exception that came up meanwhile."""
        interrupted: BaseException | None = None
        # Not by the lock alone: the exception may come up when it has just been had.
        while not self._over:
            try:
                self._done.acquire()
            except BaseException as error:
                if not to_the_end:
                    raise
                interrupted = error
        return interrupted

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._answer

    def _run(self) -> None:
        # Whoever comes first: a signal may have left the starter in doubt whether the thread has begun.
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._answer = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._over = True
            self._done.release()
