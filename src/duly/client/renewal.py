"""Renews leases in the background, one thread for all batches of a client."""

from __future__ import annotations

import heapq
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..clock import monotonic_s
from ..errors import Error
from ..events import log
from ..interrupt import SHIELD

if TYPE_CHECKING:
    from .batch import Batch


# How many entries of ended batches may stay among the due times before they are swept out.
_ENDED_KEPT = 64


class Renewal:
    """Extends each batch's leases when a third of their time is over. A batch that has ended is forgotten at once.

    So is one that nobody has any more, because its `with` block was interrupted at a bad moment: nobody could settle
    it, and renewed it would be held for ever.
    """

    def __init__(self, extend: Callable[[Batch], None]) -> None:
        self._extend = extend
        self._due: list[tuple[float, int]] = []
        self._order = itertools.count()
        self._active: dict[int, weakref.ref[Batch]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, batch: Batch) -> Callable[[], None]:
        """Begins to renew a batch; what it returns ends it."""
        number = next(self._order)
        with SHIELD, self._changed:
            self._active[number] = weakref.ref(batch)
            self._push(batch, number)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._loop, name="duly-renewal", daemon=True)
                self._thread.start()
            if self._due[0][1] == number:
                self._changed.notify()

        def stop() -> None:
            with SHIELD, self._changed:
                self._active.pop(number, None)
                self._sweep()

        return stop

    def close(self) -> None:
        """Renews nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _push(self, batch: Batch, number: int) -> None:
        heapq.heappush(self._due, (monotonic_s() + batch.lease_ms / 3000, number))

    def _sweep(self) -> None:
        """Drops the due times of ended batches: with long leases and short work they would pile up for hours."""
        if len(self._due) > 2 * len(self._active) + _ENDED_KEPT:
            self._due = [entry for entry in self._due if entry[1] in self._active]
            heapq.heapify(self._due)

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._due or self._due[0][0] > monotonic_s()):
                    self._changed.wait(self._due[0][0] - monotonic_s() if self._due else None)
                if self._closed:
                    return
                _, number = heapq.heappop(self._due)
                batch = self._active[number]() if number in self._active else None
                if batch is None:
                    self._active.pop(number, None)
                    continue
            try:
                self._extend(batch)
            except Error as error:
                # The next try comes well before the lease ends.
                log.warning("renewing %r failed: %s", batch, error)
            with self._changed:
                if number in self._active and batch.open_tokens():
                    self._push(batch, number)
                else:
                    self._active.pop(number, None)
            del batch
