"""From the writer's thread to the event loop: answers cross over, and those that come together wake the loop once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ..broker.authority import REMEMBERED_S
from ..broker.entry import Entry
from ..clock import monotonic_s
from ..engine.claimed import Claim, Claimed
from ..errors import Error, Timeout
from .body import Left, Receive, left

# How long an operation may take before its client is told that nobody knows.
_PATIENCE_S = 30.0


class Crossing:
    """Operations that are handed to the writer from the loop, and their answers."""

    def __init__(self, renew: Callable[[Entry], Awaitable[None]]) -> None:
        """`renew` asks anew whether somebody who waits may."""
        self._renew = renew
        self._arrived: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._awake = False

    async def do(self, entry: Entry, command: Any, *, cost: int = 0, publish_id: str = "") -> Any:
        """Has one writing operation done. Raises TimeoutError when its outcome stays unknown."""
        future = self._expected()
        then = partial(self._arrive, future, future.get_loop())
        entry.submit(command, cost=cost, publish_id=publish_id, then=then)
        async with asyncio.timeout(_PATIENCE_S):
            return await future

    async def claim(self, entry: Entry, command: Claim, *, wait_until: float | None, receive: Receive) -> Claimed:
        """Claims in turn. Raises Left when the client goes away, and what ends its rights while it waits; what it was
        about to get is released.
        """
        command = entry.admit(command)
        future = self._expected()
        then = partial(self._arrive, future, future.get_loop())
        waiter = entry.submit_claim(command, wait_until=wait_until, then=then)
        leaving = asyncio.ensure_future(left(receive))
        patience_s = _PATIENCE_S + (0.0 if wait_until is None else max(0.0, wait_until - monotonic_s()))
        try:
            await self._waited(entry, command, (future, leaving), monotonic_s() + patience_s)
            if future.done() and not leaving.done():
                claimed: Claimed = future.result()
                return claimed
            raise Left() if leaving.done() else Timeout()
        except (Left, Error, asyncio.CancelledError):
            if not future.done() or future.exception() is None:
                entry.leave(waiter)
                # It may have been served a moment before it left.
                future.add_done_callback(partial(self._release, entry, command))
            raise
        finally:
            leaving.cancel()

    async def _waited(self, entry: Entry, command: Claim, ends: tuple[asyncio.Future[Any], ...], until: float) -> None:
        """Until one of them has come, or the time is over. Raises what ends the caller's rights meanwhile."""
        while (left_s := until - monotonic_s()) > 0:
            slice_s = min(left_s, REMEMBERED_S)
            done, _ = await asyncio.wait(ends, timeout=slice_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            await self._renew(entry)
            entry.admit(command)

    def _release(self, entry: Entry, command: Claim, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        if future.result().parcels:
            entry.release(command, future.result())

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
