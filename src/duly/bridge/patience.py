"""Waiting for a side that is down, longer each time, and being told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..clock import monotonic_s

_FIRST_S, _LONGEST_S = 0.1, 10.0


class Patience:
    """What a bridge waits with. `say` is told once when a side is down, and once when it is back."""

    def __init__(self, say: Callable[[str], None], stopping: threading.Event) -> None:
        self.stopping = stopping
        self._say = say
        self._pause_s = _FIRST_S
        self._since: float | None = None

    def wait(self, who: str, error: Exception) -> bool:
        """Waits before the next try. False: it is to stop."""
        if self._since is None:
            self._since = monotonic_s()
            self._say(f"{who} cannot be used now, and is waited for: {_brief(error)}")
        self.stopping.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        return not self.stopping.is_set()

    def over(self) -> None:
        """It worked."""
        if self._since is not None:
            self._say(f"It goes on, after {monotonic_s() - self._since:.0f} s.")
        self._since, self._pause_s = None, _FIRST_S


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
