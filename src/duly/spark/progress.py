"""How far a job is: rows, rate, lag, and how long the rest takes."""

from __future__ import annotations

import msgspec

# How much the last round counts in the rate: enough to follow a change, not to jump with every round.
_NEWEST = 0.5


class Progress(msgspec.Struct, frozen=True):
    """What a job has done so far, at which rate, and what is left of what it knows of."""

    rounds: int = 0
    rows: int = 0
    bytes: int = 0
    lag: int = 0
    rows_per_s: float = 0.0

    @property
    def left_s(self) -> float | None:
        """How long the rest takes at this rate; None: nobody can tell."""
        return self.lag / self.rows_per_s if self.rows_per_s else None

    def after(self, *, rows: int, bytes: int, lag: int, took_s: float) -> Progress:
        """With one round more, that took so long."""
        rate = rows / max(took_s, 1e-6)
        if self.rounds:
            rate = _NEWEST * rate + (1 - _NEWEST) * self.rows_per_s
        return Progress(self.rounds + 1, self.rows + rows, self.bytes + bytes, lag, rate)
