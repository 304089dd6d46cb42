"""Notices mail from applications' transactions while somebody waits for messages here.

An application's transaction cannot tell anybody after its commit, and a NOTIFY inside it would make it wait for every
other that commits. So whoever has consumers waiting asks PostgreSQL now and then whether a topic has mail: one look-up
in an index, for all topics together, from the oldest transaction on that is still under way. Nobody waits: nobody asks.

Mail that is still there when it was rung for cannot be taken in yet: it is rung for again, but not at every look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...clock import monotonic_s
from .bell import NotifyBell
from .line import Line, LineLost, Refused, Row
from .statements import statements

_OFTEN_S, _SELDOM_S = 0.004, 0.025
# So long after mail more is expected.
_BUSY_S = 10.0
_AGAIN_S = 0.1
_LOST_S = 0.5


class MailWatch:
    """A thread that looks for mail while the bell has sleepers or listeners."""

    def __init__(self, open_line: Callable[[], Line], bell: NotifyBell) -> None:
        self._open_line = open_line
        self._bell = bell
        self._stopping = threading.Event()
        # By partition: what was rung for last, and when.
        self._rung: dict[int, tuple[int, float]] = {}
        # How often was looked.
        self.looks = 0
        self._thread = threading.Thread(target=self._loop, name="duly-mail", daemon=True)
        bell.when_awaited(self._start)

    def _start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._stopping.set()
        self._bell.awaited.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        line: Line | None = None
        floor, busy_until = 0, 0.0
        ask = statements()["mail_of"]
        while not self._stopping.is_set():
            self._bell.rest()
            self._bell.awaited.wait()
            pause = _OFTEN_S if monotonic_s() < busy_until else _SELDOM_S
            try:
                if line is None or line.lost:
                    # Perhaps of a server that came up anew, whose transactions have smaller numbers.
                    line, floor = self._open_line(), 0
                *rows, (_, floor) = line.ask(ask, {"floor": floor})
                self.looks += 1
                if new := self._new(rows):
                    busy_until = monotonic_s() + _BUSY_S
                    # Only here: whoever else waits asks for itself.
                    self._bell.ring_here(new)
            except (LineLost, Refused):
                pause = _LOST_S
            self._stopping.wait(pause)
        if line is not None:
            line.close()

    def _new(self, rows: list[Row]) -> list[int]:
        """The partitions to ring for."""
        now = monotonic_s()
        rung = {partition: self._rung.get(partition, (0, 0.0)) for partition, _ in rows}
        new = [at for at, mail in rows if rung[at][0] != mail or rung[at][1] + _AGAIN_S < now]
        self._rung = rung | {partition: (mail, now) for partition, mail in rows if partition in new}
        return new
