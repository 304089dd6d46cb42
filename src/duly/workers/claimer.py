"""Claims for one handler: never more than it has free slots, and no message that is not started at once.

While there is nothing to claim it holds nothing, neither a thread nor a lease, and sleeps until the store wakes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..client.batch import Batch
from ..client.consume import LOOK_AGAIN_S
from ..clock import monotonic_s
from ..errors import Closed, Error
from ..events import log
from .handler import Handler
from .turns import Turns

if TYPE_CHECKING:
    from ..client.client import Client

_PAUSE_S, _PAUSE_S_MAX = 0.5, 30.0


class Claimer:
    """A thread that keeps one handler in work."""

    def __init__(
        self,
        client: Client,
        handler: Handler,
        *,
        threads: Turns,
        stopping: threading.Event,
        start: Callable[[Claimer, Batch], None],
        mark: Callable[[], int],
        found_nothing: Callable[[Claimer, int], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.handler = handler
        self._client = client
        command = client._claim_of(handler.topic, handler.group, handler.concurrency, None, handler.lease, None)
        self._watch = client._watch(command)
        self._slots = Turns(handler.concurrency)
        # An async handler's task needs no thread.
        self._threads = None if handler.is_async else threads
        self._stopping = stopping
        self._start = start
        self._mark = mark
        self._found_nothing = found_nothing
        self._failed = failed
        self._pause_s = _PAUSE_S
        self.thread = threading.Thread(target=self._run, name=f"duly-claims-{handler.topic}", daemon=True)

    def give(self, places: int) -> None:
        """So many of its messages have ended."""
        self._slots.give(places)
        if self._threads is not None:
            self._threads.give(places)

    def close(self) -> None:
        """Lets it end: it claims nothing any more."""
        self._slots.close()

    def _run(self) -> None:
        try:
            while places := self._take():
                self._fill(places)
        except BaseException as error:  # Handed to the run, which stops and raises it.
            self._failed(error)

    def _take(self) -> int:
        """Waits for free slots and, in turn with the other handlers, for threads."""
        slots = self._slots.take(self.handler.concurrency)
        if self._threads is None or not slots:
            return slots
        places = self._threads.take(slots)
        self._slots.give(slots - places)
        return places

    def _fill(self, places: int) -> None:
        """One claim for all the places; if it finds nothing, waits until another might, with the places given back."""
        got, mark = 0, self._mark()
        try:
            batch = self._claim(places)
            if batch and self._stopping.is_set():
                batch.release()
            elif batch:
                got = len(batch)
                self._start(self, batch)
        finally:
            self.give(places - got)
        if batch is None:
            self._stopping.wait(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)
            return
        self._pause_s = _PAUSE_S
        if not batch and not self._stopping.is_set():
            self._found_nothing(self, mark)
            self._watch.wait(monotonic_s() + LOOK_AGAIN_S)

    def _claim(self, places: int) -> Batch | None:
        """What is due now; None when the store could not tell."""
        try:
            return Batch(self._client, self._watch.claim(places, deadline=self._client._deadline(None)))
        except Closed:
            raise
        except Error as error:
            log.error("claiming from %s failed and will be tried again: %s", self.handler.source, error)
            return None
