"""From the writer's thread to the event loop: answers cross over, and those that come together wake the loop once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ..broker.broker import Broker
from ..clock import monotonic_s
from ..engine.claimed import Claim, Claimed
from ..errors import Timeout
from .body import Left, Receive, left

# How long an operation may take before its client is told that nobody knows.
_PATIENCE_S = 30.0


class Crossing:
    """Operations that are handed to the writer from the loop, and their answers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._arrived: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._awake = False

    async def do(self, command: Any, *, cost: int = 0, publish_id: str = "") -> Any:
        """Has one writing operation done. Raises TimeoutError when its outcome stays unknown."""
        future = self._expected()
        then = partial(self._arrive, future, future.get_loop())
        self._broker.submit(command, cost=cost, publish_id=publish_id, then=then)
        async with asyncio.timeout(_PATIENCE_S):
            return await future

    async def claim(self, command: Claim, *, wait_until: float | None, receive: Receive) -> Claimed:
        """Claims in turn. Raises Left when the client goes away; what it was about to get is released."""
        future = self._expected()
        then = partial(self._arrive, future, future.get_loop())
        waiter = self._broker.submit_claim(command, wait_until=wait_until, then=then)
        leaving = asyncio.ensure_future(left(receive))
        patience_s = _PATIENCE_S + (0.0 if wait_until is None else max(0.0, wait_until - monotonic_s()))
        try:
            await asyncio.wait((future, leaving), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if future.done() and not leaving.done():
                claimed: Claimed = future.result()
                return claimed
            raise Left() if leaving.done() else Timeout()
        except (Left, Timeout, asyncio.CancelledError):
            self._broker.leave(waiter)
            # It may have been served a moment before it left.
            future.add_done_callback(partial(self._release, command))
            raise
        finally:
            leaving.cancel()

    def _release(self, command: Claim, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        if future.result().parcels:
            self._broker.room.release(command, future.result())

    def _expected(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def _arrive(self, future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, answer: Any) -> None:
        """On the writer's thread."""
        self._arrived.append((future, answer))
        if self._awake:
            return
        self._awake = True
        _wake(loop, self._hand_out)

    def _hand_out(self) -> None:
        # Before looking: what arrives after the look wakes the loop again.
        self._awake = False
        while self._arrived:
            future, answer = self._arrived.popleft()
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def _wake(loop: asyncio.AbstractEventLoop, hand_out: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(hand_out)
    except RuntimeError:
        # The loop is closed: the server is gone, and nobody waits.
        return
