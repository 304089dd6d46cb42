"""An endpoint on this machine that answers as it is told to, and notes what came."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from duly.clock import monotonic_s

Answering = Callable[[asyncio.StreamWriter, "Request"], Awaitable[None]]


@dataclass(frozen=True)
class Request:
    """What came; header names in small letters."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    raw_head: bytes
    at: float = field(default_factory=monotonic_s)


def http(
    status: int = 204, body: bytes = b"", *headers: str, length: int | None = None, close: bool = False
) -> Answering:
    """An answer as it should be, or with a `length` that it has not."""
    lines = [f"HTTP/1.1 {status} Told", *headers, f"content-length: {len(body) if length is None else length}"]
    return raw("\r\n".join([*lines, "", ""]).encode() + body, close=close or length is not None)


def raw(answer: bytes, *, close: bool = True) -> Answering:
    """These bytes, whatever they are."""

    async def answering(writer: asyncio.StreamWriter, _: Request) -> None:
        writer.write(answer)
        await writer.drain()
        if close:
            writer.close()

    return answering


async def never(_: asyncio.StreamWriter, __: Request) -> None:
    """No answer at all."""
    await asyncio.sleep(3600)


class Receiver:
    """Listens on 127.0.0.1, in a thread of its own."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        # The answers that come next on a path, and the one that comes when there are no more of them.
        self.next: defaultdict[str, list[Answering]] = defaultdict(list)
        self.always: dict[str, Answering] = {}
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._come, "127.0.0.1", 0, ssl=tls, limit=2**24)
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-receiver", daemon=True)
        self._thread.start()

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                request = await _read(reader)
                self.requests.append(request)
                waiting = self.next[request.path]
                answering = waiting.pop(0) if waiting else self.always.get(request.path, http())
                await answering(writer, request)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            # It left, or the test is over.
            pass
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    method, path, _ = first.split(" ")
    return Request(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))), head)
