"""What waits, one queue a tenant, served by deficit round robin; and by how much each tenant's turn is longer.

Each tenant in turn may spend a quantum of cost (bytes, plus a fixed price a command), times its weight; what it
cannot spend it keeps, as long as it has something waiting. So a tenant that sends a thousand times as much waits a
thousand times as long, and nobody else notices. Not thread-safe: its owner locks.

Where what waits is dear to keep, too, each tenant has an allowance of it: allowance.py.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ..tenant import Weights

T = TypeVar("T")

COMMAND_COST = 512
QUANTUM = 64 * 1024


def anybody(_tenant: str) -> bool:
    """Whoever it is."""
    return True


class FairQueue(Generic[T]):
    """A queue of (tenant, cost, item). `each`: the price of an item beside its cost."""

    def __init__(self, weights: Weights | None = None, *, each: int = COMMAND_COST) -> None:
        self._weights = weights or Weights()
        self._each = each
        self._waiting: OrderedDict[str, deque[tuple[int, T]]] = OrderedDict()
        self._deficit: dict[str, float] = {}
        # Whether the first tenant's turn has begun: it goes on with the next take.
        self._in_turn = False
        self.count = 0
        self.cost = 0

    def put(self, tenant: str, cost: int, item: T) -> None:
        """Adds an item at the end of its tenant's queue."""
        cost += self._each
        if tenant not in self._waiting:
            self._waiting[tenant] = deque()
            self._deficit[tenant] = 0
        self._waiting[tenant].append((cost, item))
        self.count += 1
        self.cost += cost

    def take(self, count_max: int, cost_max: int, may: Callable[[str], bool] = anybody) -> list[T]:
        """The next items in fair order: at least one, and no more than the bounds allow. Of those who may, alone."""
        taken: list[T] = []
        spent = 0
        # Turns in a row in which nothing could be taken.
        fruitless = 0
        while self._waiting and len(taken) < count_max and spent < cost_max:
            # After as many everyone stands where they stood.
            if fruitless >= len(self._waiting):
                if not self._pass_rounds(may):
                    break
                fruitless = 0
            tenant, queue = next(iter(self._waiting.items()))
            if not may(tenant):
                self._end_turn(tenant)
                fruitless += 1
                continue
            if not self._in_turn:
                # One whose turn was broken off, as it might not go on, has enough.
                if self._deficit[tenant] < queue[0][0]:
                    self._deficit[tenant] += self._quantum(tenant)
                self._in_turn = True
            fruitless += 1
            while queue and queue[0][0] <= self._deficit[tenant] and len(taken) < count_max and spent < cost_max:
                if not may(tenant):
                    break
                cost, item = queue.popleft()
                self._deficit[tenant] -= cost
                spent += cost
                self.count -= 1
                self.cost -= cost
                taken.append(item)
                fruitless = 0
            if not queue:
                self._drop(tenant)
            elif queue[0][0] > self._deficit[tenant]:
                self._end_turn(tenant)
        return taken

    def _quantum(self, tenant: str) -> float:
        return QUANTUM * self._weights.of(tenant)

    def _end_turn(self, tenant: str) -> None:
        self._waiting.move_to_end(tenant)
        self._in_turn = False

    def _pass_rounds(self, may: Callable[[str], bool]) -> bool:
        """All but the last of the rounds that it takes until somebody can afford its next item: at once, however
        large that is and however small the weights. False: nobody may.
        """
        rounds = [
            math.ceil((queue[0][0] - self._deficit[tenant]) / self._quantum(tenant))
            for tenant, queue in self._waiting.items()
            if may(tenant)
        ]
        if not rounds:
            return False
        for tenant in self._waiting:
            if may(tenant):
                self._deficit[tenant] += max(0, min(rounds) - 1) * self._quantum(tenant)
        return True

    def _drop(self, tenant: str) -> None:
        """A tenant with nothing waiting keeps no credit."""
        if next(iter(self._waiting)) == tenant:
            self._in_turn = False
        del self._waiting[tenant], self._deficit[tenant]

    def remove(self, tenant: str, item: T) -> bool:
        """Takes an item back that has not been taken yet."""
        queue = self._waiting.get(tenant, deque())
        for entry in queue:
            if entry[1] is item:
                queue.remove(entry)
                self.count -= 1
                self.cost -= entry[0]
                if not queue:
                    self._drop(tenant)
                return True
        return False
