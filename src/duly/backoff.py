"""How long a failed message waits before it is tried again. One mechanism for all of Duly."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .clock import Duration, milliseconds
from .errors import InvalidArgument
from .limits import LIMITS

SHAPES = ("exponential", "linear", "fixed")
JITTERS = ("full", "none")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how late a message is tried again.

    After failure number n the wait is `base * 2**(n-1)` (exponential), `base * n` (linear) or
    `base` (fixed) seconds, at most `cap`; with full jitter a random part of that, so that a
    crowd that failed together does not come back together. After `max_attempts` deliveries
    the message is buried.

    With a `budget` retries are at most that share of fresh deliveries (and one a second at least);
    what is more stays due and waits longer, and holds nothing fresh back.
    """

    max_attempts: int = 8
    base: Duration = 0.5
    cap: Duration = 3600
    shape: str = "exponential"
    jitter: str = "full"
    budget: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int):
            raise InvalidArgument("retry.max_attempts must be a whole number.")
        if not 1 <= self.max_attempts <= LIMITS.attempts_max:
            raise InvalidArgument(f"retry.max_attempts must be 1 to {LIMITS.attempts_max}.")
        if self.shape not in SHAPES:
            raise InvalidArgument(f"retry.shape must be one of {', '.join(SHAPES)}; got {self.shape!r}.")
        if self.jitter not in JITTERS:
            raise InvalidArgument(f"retry.jitter must be one of {', '.join(JITTERS)}; got {self.jitter!r}.")
        if self.budget is not None and (isinstance(self.budget, bool) or not isinstance(self.budget, (int, float))):
            raise InvalidArgument("retry.budget must be a number.")
        if self.budget is not None and not 0 <= self.budget <= 100:
            raise InvalidArgument("retry.budget is a share of fresh deliveries, 0 to 100.")
        for name in ("base", "cap"):
            wait_ms = milliseconds(getattr(self, name), f"retry.{name}")
            if not 0 <= wait_ms <= LIMITS.backoff_ms_max:
                raise InvalidArgument(f"retry.{name} must be 0 to {LIMITS.backoff_ms_max // 1000} seconds.")
            object.__setattr__(self, name, wait_ms / 1000)

    def delay_ms(self, attempts: int, draw: random.Random) -> int:
        """The wait after so many failed attempts; `draw` gives the jitter."""
        base, cap = milliseconds(self.base, "base"), milliseconds(self.cap, "cap")
        steps = {"exponential": 2 ** min(attempts - 1, 40), "linear": attempts, "fixed": 1}[self.shape]
        longest = min(cap, base * steps)
        return draw.randint(0, longest) if self.jitter == "full" else longest
