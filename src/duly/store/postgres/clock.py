"""PostgreSQL's clock, as a process that is told it now and then reckons it.

A reading was taken before its answer arrived: reading plus time since then is never ahead of the server. Of the
readings of the last seconds the one that is furthest ahead is the best; older ones are forgotten, so that the server's
clock is followed wherever it goes, and one that is set back is believed at once. What is reckoned is never ahead of the
server, so nothing is delivered early by it; without a reading of the last second it is not gone by (writer.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ...clock import HOST, ClockReading, from_ms, monotonic_s

_REMEMBERED_S = 10.0
_STEP_S = 0.05
_FRESH_S = 1.0


class PostgresClock:
    """A Clock that follows readings of PostgreSQL's."""

    def __init__(self) -> None:
        # (when it was got, what the server was ahead by), none behind one that came later.
        self._readings: deque[tuple[float, float]] = deque()
        self._lock = threading.Lock()
        self._last_ms = 0

    def note(self, server_us: int) -> int:
        """A reading has just arrived; in milliseconds."""
        got = monotonic_s()
        ahead = server_us / 1e6 - got
        with self._lock:
            if self._readings and ahead < self._readings[0][1] - _STEP_S:
                # The server's clock was set back, or this answer was very late: it is believed either way.
                self._readings.clear()
            while self._readings and self._readings[-1][1] <= ahead:
                self._readings.pop()
            self._readings.append((got, ahead))
            while self._readings[0][0] < got - _REMEMBERED_S:
                self._readings.popleft()
        return server_us // 1000

    def is_fresh(self) -> bool:
        """Whether there was a reading of late; without one nothing should be decided by it."""
        with self._lock:
            return bool(self._readings) and self._readings[-1][0] > monotonic_s() - _FRESH_S

    def now_ms(self) -> int:
        with self._lock:
            ahead = self._readings[0][1] if self._readings else HOST.wall_ns() / 1e9 - monotonic_s()
        return int((ahead + monotonic_s()) * 1000)

    def wait_s(self, until_ms: int) -> float | None:
        # A millisecond more: waking a hair early would cost a second, useless look.
        return max(0.0, (until_ms - self.now_ms()) / 1000 + 0.001)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Nothing: the server's clock moves by itself."""

    def reading(self) -> ClockReading:
        """The server's time beside the host's."""
        return ClockReading(from_ms(self.now_ms()), from_ms(HOST.wall_ns() // 1_000_000), "together")
