"""Lookups of names, beside the loop: the system's resolver blocks, and may do so for half a minute.

A name that is being looked up is not looked up twice: whoever asks meanwhile gets the same answer. So a name whose
resolver hangs holds one thread, however many requests want it. Of the threads a tenant may hold as many as it leaves to
the others (engine/allowance.py), and names that took long when last seen get a quarter at most: many dead names do not
hold up the living. What was found is not kept: each new connection looks again.

All on the loop's thread, but for the lookup itself.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from ...clock import monotonic_s
from ...engine.allowance import Allowance

# A family and an address, of each that a name stands for.
Found = list[tuple[int, str]]
Look = Callable[[str, int], Found]

_THREADS_MAX = 128
_SLOW_S = 1.0
_SLOW_MAX = _THREADS_MAX // 4
_SLOW_NAMES_MAX = 10_000


def system_look(name: str, port: int) -> Found:
    """What the system's resolver says. Raises OSError."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [(family, _address(where)) for family, _, _, _, where in found]


def _address(where: tuple[object, ...]) -> str:
    # One that holds only on one of the machine's links keeps the number of the link, by which it is told.
    return f"{where[0]}%{where[3]}" if len(where) == 4 and where[3] and "%" not in str(where[0]) else str(where[0])


class Lookups:
    """Who looks up what at this moment."""

    def __init__(self, look: Look = system_look, *, threads_max: int = _THREADS_MAX) -> None:
        self._look = look
        self._threads_max = threads_max
        self._threads = Allowance()
        self._slow_threads = 0
        self._under_way: dict[tuple[str, int], asyncio.Future[Found]] = {}
        # Names that took long when last looked up; of very many, the latest.
        self._slow: OrderedDict[str, None] = OrderedDict()
        self._waiting: deque[tuple[str, str, int]] = deque()

    async def addresses(self, name: str, port: int, *, tenant: str) -> Found:
        """What a name stands for. Raises OSError when it stands for nothing."""
        key = (name, port)
        future = self._under_way.get(key)
        if future is None:
            future = self._under_way[key] = asyncio.get_running_loop().create_future()
            # It may fail when nobody waits any more.
            future.add_done_callback(_heard)
            self._waiting.append((tenant, name, port))
            self._go_on()
        # Whoever gives up does not end it for the others.
        return await asyncio.shield(future)

    def _go_on(self) -> None:
        """Starts those that may."""
        for _ in range(len(self._waiting)):
            tenant, name, port = self._waiting.popleft()
            slow = name in self._slow
            crowded = slow and self._slow_threads >= min(_SLOW_MAX, self._threads_max // 4 or 1)
            if crowded or not self._threads.allows(tenant, self._threads_max):
                self._waiting.append((tenant, name, port))
                continue
            self._threads.take(tenant)
            self._slow_threads += slow
            loop = asyncio.get_running_loop()
            args = (loop, tenant, name, port, slow)
            threading.Thread(target=self._run, args=args, name="duly-lookup", daemon=True).start()

    def _run(self, loop: asyncio.AbstractEventLoop, tenant: str, name: str, port: int, slow: bool) -> None:
        began = monotonic_s()
        answer: Found | OSError
        try:
            answer = self._look(name, port) or OSError("it stands for no address")
        except (OSError, UnicodeError) as error:
            answer = error if isinstance(error, OSError) else OSError(f"it is no name: {error}")
        took_s = monotonic_s() - began
        try:
            loop.call_soon_threadsafe(self._came, tenant, name, port, slow, took_s, answer)
        except RuntimeError:
            # The loop is closed, and nobody waits.
            return

    def _came(self, tenant: str, name: str, port: int, slow: bool, took_s: float, answer: Found | OSError) -> None:
        self._threads.give_back(tenant)
        self._slow_threads -= slow
        self._slow.pop(name, None)
        if took_s > _SLOW_S:
            self._slow[name] = None
            if len(self._slow) > _SLOW_NAMES_MAX:
                self._slow.popitem(last=False)
        future = self._under_way.pop((name, port))
        if isinstance(answer, OSError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        self._go_on()


def _heard(future: asyncio.Future[Found]) -> None:
    if not future.cancelled():
        future.exception()
