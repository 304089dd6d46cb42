"""SIGTERM and SIGINT, while a run has the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from .mailbox import Mailbox

STOPPING = (signal.SIGTERM, signal.SIGINT)


T = TypeVar("T")


@contextmanager
def on_signals(mailbox: Mailbox[T], word: Callable[[int], T]) -> Iterator[None]:
    """Puts a word into the mailbox for each of them, instead of what they did before.

    Off the main thread, where no signals can be had, it changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wakeup_fd = signal.set_wakeup_fd(mailbox.wakeup_fd, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda number, _: mailbox.put(word(number))) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(wakeup_fd)
