"""Ends a call in another thread by an exception, but never in the middle of Duly.

CPython can raise an exception in any thread, between any two steps of its code. In a handler that
loops that is just what is wanted. Inside the store it would be a disaster: a lock taken and never
given back, a transaction half done. So whatever enters the store does it under SHIELD, and an
interruption that comes meanwhile is raised when it leaves.

    new ──run──▶ open ──interrupt──▶ sent ─▶ the exception comes up in the call
                  │ shielded: kept until the shield is left, then raised there
                  └──the call ends──▶ closed: an interruption does nothing any more

An interruption that comes before the call has begun is kept too, and raised instead of it.

An exception that was sent is waiting in the thread until its next function call. `_let_in` is one:
called after the state was changed it makes sure that nothing sent before comes up later.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

_here = threading.local()


class Interruptible:
    """A call that another thread may end, once, by an exception of a given kind."""

    __slots__ = ("_kept", "_kind", "_lock", "_open", "_shields", "_thread_id")

    def __init__(self, kind: type[BaseException]) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._open = True
        self._kept = False
        # Until the call begins it is shielded.
        self._shields = 1
        self._thread_id = 0

    def run(self, call: Callable[[], T]) -> T:
        """Makes the call. When it returns or raises, nothing can come up in this thread any more."""
        self._thread_id = threading.get_ident()
        _here.call = self
        try:
            try:
                self.leave_shield()
                return call()
            finally:
                self._close()
        finally:
            _here.call = None

    def interrupt(self) -> None:
        """Raises the exception in the call, if it is still under way and was not interrupted before."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            if self._shields:
                self._kept = True
            else:
                _raise_in(self._thread_id, self._kind)

    def enter_shield(self) -> None:
        """From here on an interruption is kept."""
        with self._lock:
            self._shields += 1
        _let_in()

    def leave_shield(self) -> None:
        """Raises what was kept, when the outermost shield is left."""
        with self._lock:
            self._shields -= 1
            due = self._kept and not self._shields
            self._kept = self._kept and not due
        if due:
            raise self._kind

    def _close(self) -> None:
        with self._lock:
            self._open = False
        _let_in()


class Shield:
    """While it is held, by `with`, an interruption of this thread waits."""

    def __enter__(self) -> None:
        call: Interruptible | None = getattr(_here, "call", None)
        if call is not None:
            call.enter_shield()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call: Interruptible | None = getattr(_here, "call", None)
        if call is not None:
            call.leave_shield()


SHIELD = Shield()


def _let_in() -> None:
    """Gives an exception that was sent the occasion to come up: here, and not later."""


def _raise_in(thread_id: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(kind))
