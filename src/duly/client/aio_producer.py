"""The producer for asyncio: the same gathering, and futures that are awaited.

async with q.producer() as p:
    stored = await p.publish("orders", b"one")      # taken; waits only while there is no room
    receipt = await stored                          # its batch is on stable storage
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from functools import partial
from types import TracebackType

from ..clock import Duration
from ..message import Message, Receipt
from . import producer as plain
from .threads import Threads


class Producer:
    """Gathers messages into batches, from any number of tasks."""

    def __init__(self, threads: Threads, producer: plain.Producer) -> None:
        self._threads = threads
        self._plain = producer

    async def publish(self, topic: str, message: bytes | Message) -> asyncio.Future[Receipt]:
        """Adds one message to the next batch; the future that it answers has the receipt once that is stored."""
        if self._plain.has_room:
            return asyncio.wrap_future(self._plain.publish(topic, message))
        publish = partial(copy_context().run, self._plain.publish, topic, message)
        return asyncio.wrap_future(await self._threads.wait(publish))

    async def flush(self, *, timeout: Duration | None = None) -> None:
        """Returns when everything published so far is stored. Raises the first error of its batches; Timeout."""
        await self._threads.wait(partial(self._plain.flush, timeout=timeout))

    async def close(self) -> None:
        """Sends what is left and ends. Raises the first error of what it sends. Twice does nothing."""
        await self._threads.wait(self._plain.close)

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
