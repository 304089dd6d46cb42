"""Threads for calls that wait. Tenants have them in turn, and none has all of them.

    comes ──▶ waiting ──its turn, and its tenant has fewer threads than are free──▶ at work ──▶ gone
       └─ as many of its tenant's wait as there is room for others: Busy

Someone with a thousand slow calls has half of the threads, then; whoever else comes finds one free.

All of it happens on the event loop, but for the calls themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..engine.allowance import Allowance
from ..engine.fair_queue import QUANTUM, FairQueue
from ..errors import Busy
from ..limits import LIMITS
from ..tenant import Weights

_Turn = tuple[str, "asyncio.Future[None]"]


class Threads:
    """Threads for calls that wait; past so many of those, Busy."""

    def __init__(self, threads: int, name: str, weights: Weights) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most = threads
        # Those that wait, and those at work.
        self._calls = Allowance()
        self._at_work = Allowance()
        # A turn is a call, whatever it is.
        self._waiting: FairQueue[_Turn] = FairQueue(weights, each=QUANTUM)

    async def run(self, tenant: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Runs it in a thread, in its tenant's turn."""
        if not self._calls.allows(tenant, LIMITS.calls_waiting_max):
            raise Busy()
        self._calls.take(tenant)
        try:
            await self._turn(tenant)
            try:
                return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)
            finally:
                self._end(tenant)
        finally:
            self._calls.give_back(tenant)

    async def _turn(self, tenant: str) -> None:
        turn: _Turn = (tenant, asyncio.get_running_loop().create_future())
        self._waiting.put(tenant, 0, turn)
        self._let_in()
        try:
            await turn[1]
        except asyncio.CancelledError:
            if not self._waiting.remove(tenant, turn):
                self._end(tenant)
            raise

    def _end(self, tenant: str) -> None:
        self._at_work.give_back(tenant)
        self._let_in()

    def _let_in(self) -> None:
        while self._at_work.held < self._most and (found := self._waiting.take(1, QUANTUM, self._may)):
            ((tenant, future),) = found
            self._at_work.take(tenant)
            if not future.done():
                future.set_result(None)

    def _may(self, tenant: str) -> bool:
        return self._at_work.allows(tenant, self._most)

    def close(self) -> None:
        """Lets them go, when they have ended what they are at."""
        self._pool.shutdown(wait=False)
