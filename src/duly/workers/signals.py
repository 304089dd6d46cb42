"""SIGTERM and SIGINT, while a run has the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_signals(told: Callable[[int], None]) -> Iterator[None]:
    """Calls `told` for each of them instead of what they did before. Off the main thread it changes nothing.

    `told` runs between any two steps of the main thread: it must take no lock.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda number, _: told(number)) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
