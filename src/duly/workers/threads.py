"""The threads of sync handlers: started when all are busy, kept for the next call."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from queue import SimpleQueue

Call = Callable[[], None]
Inbox = SimpleQueue[Call | None]


class Threads:
    """Threads that make calls. How many there are is bounded by who hands calls over (turns.py).

    They are daemons: a handler that never ends must not keep its program from ending.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Inbox] = []
        self._numbers = itertools.count(1)
        self._closed = False

    def start(self, call: Call, then: Call) -> None:
        """Makes the call in a thread; `then` comes after it, when the thread is free for the next."""
        inbox = self._free_thread()

        def both() -> None:
            call()
            # Idle before `then` gives the place back: whoever takes that place finds this thread.
            self._rest(inbox)
            then()

        inbox.put(both)

    def close(self) -> None:
        """Ends the idle ones, and the others as they finish."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _free_thread(self) -> Inbox:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        inbox: Inbox = SimpleQueue()
        name = f"duly-handler-{next(self._numbers)}"
        threading.Thread(target=_loop, args=(inbox,), name=name, daemon=True).start()
        return inbox

    def _rest(self, inbox: Inbox) -> None:
        with self._lock:
            if self._closed:
                inbox.put(None)
            else:
                self._idle.append(inbox)


def _loop(inbox: Inbox) -> None:
    while (call := inbox.get()) is not None:
        call()
        # It holds the message, which is not to stay until the next one comes.
        del call
