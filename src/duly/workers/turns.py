"""Places dealt out in turn: a handler's slots, and the threads that all handlers of a process share.

Who comes first is served first. One who takes several leaves the others in line their share: so a handler
with a long backlog has the threads that nobody else wants, and no more than its turn of those that are wanted.
"""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """So many places. Thread-safe."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._line: deque[object] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def take(self, most: int) -> int:
        """Waits in line for a place; takes up to `most` of its share of those free. 0 means closed."""
        me = object()
        with self._changed:
            self._line.append(me)
            self._changed.wait_for(lambda: self._closed or (self._line[0] is me and self._free))
            share = 0 if self._closed else min(most, max(1, self._free // len(self._line)))
            self._free -= share
            self._line.remove(me)
            self._changed.notify_all()
            return share

    def give(self, places: int) -> None:
        """Gives places back."""
        if places:
            with self._changed:
                self._free += places
                self._changed.notify_all()

    def close(self) -> None:
        """Sends everyone in line away."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
