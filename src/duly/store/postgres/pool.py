"""Lines to PostgreSQL that are kept open between transactions, bounded in number. Whoever wants one more than there are
waits, tenants in turn: one with hundreds of readers has a line, and then it is the next one's turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...engine.fair_queue import QUANTUM, FairQueue
from ...errors import Busy, Closed
from ...tenant import Weights
from .line import Line, LineLost

_WAIT_S = 10.0


class Pool:
    """Opens lines as they are needed; whoever wants one more than there may be waits."""

    def __init__(self, open_line: Callable[[], Line], most: int, lost: Callable[[], None], weights: Weights) -> None:
        self._open_line = open_line
        # Told of each line that was lost, before another one is opened: the server behind that may be another one.
        self._lost = lost
        self.most = most
        self._free: list[Line] = []
        # Lines that somebody has, or was let in for.
        self._out = 0
        self._waiting: FairQueue[threading.Event] = FairQueue(weights, each=QUANTUM)
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def line(self, tenant: str = "") -> Iterator[Line]:
        """A line of one's own. Raises LineLost when the server cannot be reached, Busy when all are in use for long."""
        self._come_in(tenant)
        line = self._take()
        try:
            yield line
        except LineLost:
            # Perhaps another's, of the ids: what was begun on this one must not be joined by whoever has it next.
            line.close()
            raise
        except Exception:
            raise
        except BaseException:
            # A signal's exception: nobody knows what it was in the middle of.
            line.close()
            raise
        finally:
            self._give(line)

    def _come_in(self, tenant: str) -> None:
        """Waits until there is a line."""
        turn = threading.Event()
        with self._lock:
            if not self._closed:
                self._waiting.put(tenant, 0, turn)
                self._let_in()
        let_in = False
        try:
            let_in = self._closed or turn.wait(_WAIT_S)
        finally:
            if not let_in:
                self._give_up(tenant, turn)
        if not let_in:
            raise Busy("All connections to PostgreSQL are in use. Nothing was done; try again.")
        if self._closed:
            raise Closed()

    def _let_in(self) -> None:
        while self._out < self.most and self._waiting.count:
            (turn,) = self._waiting.take(1, QUANTUM)
            self._out += 1
            turn.set()

    def _give_up(self, tenant: str, turn: threading.Event) -> None:
        with self._lock:
            if not self._waiting.remove(tenant, turn):
                # It was let in at the last moment.
                self._out -= 1
                self._let_in()

    def _take(self) -> Line:
        with self._lock:
            while self._free:
                line = self._free.pop()
                if line.is_quiet():
                    return line
                # The server went away, or said so: whoever only looks should not have to find out.
                line.close()
                self._lost()
        try:
            return self._open_line()
        except BaseException:
            with self._lock:
                self._out -= 1
                self._let_in()
            raise

    def _give(self, line: Line) -> None:
        with self._lock:
            self._out -= 1
            if not line.lost and not self._closed:
                self._free.append(line)
            elif line.lost:
                # The others broke with it, most likely: nobody should have to find out one by one.
                self._lost()
                stale, self._free = self._free, []
                for other in stale:
                    other.close()
            else:
                line.close()
            self._let_in()

    def close(self) -> None:
        """Closes what is free, and each other when it comes back."""
        with self._lock:
            self._closed = True
            lines, self._free = self._free, []
            for turn in self._waiting.take(self._waiting.count, 2**62):
                turn.set()
        for line in lines:
            line.close()

    def let_go(self) -> None:
        """In the child of a fork: the connections are the parent's."""
        self._closed = True
        self._free = []
