"""Lines to PostgreSQL that are kept open between transactions, bounded in number."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...errors import Busy, Closed
from .line import Line, LineLost

_WAIT_S = 10.0


class Pool:
    """Opens lines as they are needed; whoever wants one more than there may be waits."""

    def __init__(self, open_line: Callable[[], Line], most: int, lost: Callable[[], None]) -> None:
        self._open_line = open_line
        # Told of each line that was lost, before another one is opened: the server behind that may be another one.
        self._lost = lost
        self.most = most
        self._free: list[Line] = []
        self._out = 0
        self._changed = threading.Condition()
        self._closed = False

    @contextmanager
    def line(self) -> Iterator[Line]:
        """A line of one's own. Raises LineLost when the server cannot be reached, Busy when all are in use for long."""
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

    def _take(self) -> Line:
        with self._changed:
            while not self._free and self._out >= self.most and not self._closed:
                if not self._changed.wait(_WAIT_S):
                    raise Busy("All connections to PostgreSQL are in use. Nothing was done; try again.")
            if self._closed:
                raise Closed()
            self._out += 1
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
            with self._changed:
                self._out -= 1
                self._changed.notify()
            raise

    def _give(self, line: Line) -> None:
        with self._changed:
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
            self._changed.notify()

    def close(self) -> None:
        """Closes what is free, and each other when it comes back."""
        with self._changed:
            self._closed = True
            lines, self._free = self._free, []
            self._changed.notify_all()
        for line in lines:
            line.close()

    def let_go(self) -> None:
        """In the child of a fork: the connections are the parent's."""
        self._closed = True
        self._free = []
