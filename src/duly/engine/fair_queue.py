"""Commands waiting for the writer, one queue a tenant, served by deficit round robin.

Each tenant in turn may spend a quantum of cost (bytes, plus a fixed price a command); what it
cannot spend it keeps, as long as it has something waiting. So a tenant that sends a thousand
times as much waits a thousand times as long, and nobody else notices. Not thread-safe: its owner locks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")

COMMAND_COST = 512
_QUANTUM = 64 * 1024


class FairQueue(Generic[T]):
    """A bounded queue of (tenant, cost, item)."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[tuple[int, T]]] = OrderedDict()
        self._deficit: dict[str, int] = {}
        # Whether the first tenant's turn has begun: it goes on with the next take.
        self._in_turn = False
        self.count = 0
        self.cost = 0

    def put(self, tenant: str, cost: int, item: T) -> None:
        """Adds an item at the end of its tenant's queue."""
        cost += COMMAND_COST
        if tenant not in self._waiting:
            self._waiting[tenant] = deque()
            self._deficit[tenant] = 0
        self._waiting[tenant].append((cost, item))
        self.count += 1
        self.cost += cost

    def take(self, count_max: int, cost_max: int) -> list[T]:
        """The next items in fair order: at least one, and no more than the bounds allow."""
        taken: list[T] = []
        spent = 0
        while self._waiting and len(taken) < count_max and spent < cost_max:
            tenant, queue = next(iter(self._waiting.items()))
            if not self._in_turn:
                self._deficit[tenant] += _QUANTUM
                self._in_turn = True
            while queue and queue[0][0] <= self._deficit[tenant] and len(taken) < count_max and spent < cost_max:
                cost, item = queue.popleft()
                self._deficit[tenant] -= cost
                spent += cost
                self.count -= 1
                self.cost -= cost
                taken.append(item)
            if not queue:
                self._drop(tenant)
            elif queue[0][0] > self._deficit[tenant]:
                self._waiting.move_to_end(tenant)
                self._in_turn = False
        return taken

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
