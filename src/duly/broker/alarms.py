"""When to look at whom again. Each has one moment at most; one that is over leaves nothing behind for long."""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, TypeVar

T = TypeVar("T")

# So many out of date are not worth the sweeping.
_STALE_MIN = 64


class Alarms(Generic[T]):
    """Moments in order. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._moments: dict[T, float] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, what: T, moment: float) -> bool:
        """Sets one's moment, instead of the one it had. True if nobody's comes before it."""
        self._moments[what] = moment
        heapq.heappush(self._heap, (moment, next(self._numbers), what))
        self._sweep()
        return self._heap[0][2] is what

    def drop(self, what: T) -> None:
        """Forgets one's moment, if it has one."""
        if self._moments.pop(what, None) is not None:
            self._sweep()

    def first(self) -> float | None:
        """The next moment."""
        while self._heap and self._moments.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> T | None:
        """One whose moment has come; it has none any more."""
        moment = self.first()
        if moment is None or moment > now:
            return None
        _, _, what = heapq.heappop(self._heap)
        del self._moments[what]
        return what

    def _sweep(self) -> None:
        """Those who come and go a thousand times a second, with an hour's patience each, must not pile up here."""
        if len(self._heap) > 2 * len(self._moments) + _STALE_MIN:
            self._heap = [(moment, next(self._numbers), what) for what, moment in self._moments.items()]
            heapq.heapify(self._heap)
