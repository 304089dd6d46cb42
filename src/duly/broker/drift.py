"""Drift: how far the host's wall clock is from the store's, and what follows from that.

    together ──past the limit──▶ adrift     an alert; the broker takes neither publishes nor claims, and settles leases
        └◀────within half of it──────┘      told once more: it is over

Everything is due by the store's clock, so nothing is delivered early by a host whose clock is off. But such a host is
not in order: what people and programs there take for now is not, and the counter that the store's time is kept by
between two looks may be no better. Others serve meanwhile.

A process that was put aside between the two readings would find them apart: what is past the limit is read again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..clock import ClockReading
from ..events import Event, Listener, tell

_READINGS_MORE = 2


class Drift:
    """One broker's. Thread-safe."""

    def __init__(self, read: Callable[[], ClockReading], ms_max: int, listener: Listener | None) -> None:
        self._read = read
        self._ms_max = ms_max
        self._listener = listener
        self._lock = threading.Lock()
        # The host's clock less the store's, as it was when last measured.
        self.ms = 0
        # Why nothing is taken; "" while the clocks are together.
        self.reason = ""

    def measure(self) -> None:
        """Compares the clocks, and tells whoever listens if that changes something."""
        reading = self._read()
        for _ in range(_READINGS_MORE):
            if abs(_drift_ms(reading)) <= self._ms_max:
                break
            reading = min(reading, self._read(), key=lambda read: abs(_drift_ms(read)))
        self._judge(reading)

    def _judge(self, reading: ClockReading) -> None:
        with self._lock:
            self.ms = drift_ms = _drift_ms(reading)
            was_adrift = bool(self.reason)
            adrift = abs(drift_ms) > (self._ms_max / 2 if was_adrift else self._ms_max)
            self.reason = self._say(drift_ms) if adrift else ""
        if adrift != was_adrift:
            self._tell(reading, "clock_drift" if adrift else "clock_drift_over")

    def _say(self, drift_ms: int) -> str:
        apart = f"{abs(drift_ms) / 1000:.1f} s {'ahead of' if drift_ms > 0 else 'behind'} the store's"
        return (
            f"The clock of this broker's host is {apart}; {self._ms_max / 1000:g} s are allowed. Ask another broker. "
            "Put the clock right; if it is right and the store's is not, see `duly clock`."
        )

    def _tell(self, reading: ClockReading, kind: str) -> None:
        facts: dict[str, object] = {"drift_ms": self.ms, "drift_ms_max": self._ms_max}
        if self.reason:
            facts["what"] = "This broker takes neither publishes nor claims until the clocks are together again."
            facts["next"] = "Put the host's clock right; if it is right and the store's is not: duly clock"
        tell(Event(kind, round(reading.now.timestamp() * 1000), facts=facts), self._listener)


def _drift_ms(reading: ClockReading) -> int:
    return round((reading.host - reading.now).total_seconds() * 1000)
