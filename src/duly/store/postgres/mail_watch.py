"""Notices mail from applications' transactions while somebody waits for messages here.

An application's transaction cannot tell anybody after its commit, and a NOTIFY inside it would make it wait for every
other that commits. So whoever has consumers waiting asks PostgreSQL now and then whether a topic has mail: one look-up
in an index, for all topics together, from the oldest transaction on that is still under way. Nobody waits: nobody asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...clock import monotonic_s
from .bell import NotifyBell
from .line import Line, LineLost, Refused
from .statements import statements

_OFTEN_S, _SELDOM_S = 0.004, 0.025
# So long after mail more is expected.
_BUSY_S = 10.0
_LOST_S = 0.5


class MailWatch:
    """A thread that looks for mail while the bell has sleepers or listeners."""

    def __init__(self, open_line: Callable[[], Line], bell: NotifyBell) -> None:
        self._open_line = open_line
        self._bell = bell
        self._stopping = threading.Event()
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
                    line = self._open_line()
                rows = line.ask(ask, {"floor": floor})
                floor = rows[-1][1]
                if len(rows) > 1:
                    busy_until = monotonic_s() + _BUSY_S
                    # Only here: whoever else waits asks for itself.
                    self._bell.ring_here([partition for partition, _ in rows[:-1]])
            except (LineLost, Refused):
                pause = _LOST_S
            self._stopping.wait(pause)
        if line is not None:
            line.close()
