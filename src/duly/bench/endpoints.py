"""Endpoints to push to, in a process of their own: some take what comes, some are dead in one way or another.

    /ok…    204; the body begins with the moment (monotonic, in seconds) when it was published
    /500…   500
    /hole…  no answer, ever
    /figures    how many /ok had since it was asked last, from when to when, and how long each was on its way

Its first line of output says on which port it listens.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop

from duly.clock import monotonic_s

_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


class Seen:
    """What came since it was asked last."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forgets it."""
        self.waits_ms: list[float] = []
        self.first = self.last = 0.0

    def note(self, body: bytes) -> None:
        """One message more."""
        self.last = monotonic_s()
        self.first = self.first or self.last
        self.waits_ms.append(round((self.last - float(body.split(b" ", 1)[0])) * 1000, 2))


class Endpoint(asyncio.Protocol):
    """One connection. No more of HTTP than pushes speak: lines, a content-length, requests one after the other."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._rest = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        rest = self._rest + data
        while (end := rest.find(_END)) >= 0:
            head, start = rest[:end].lower(), end + len(_END)
            at = head.find(_LENGTH)
            size = int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(rest) < start + size:
                break
            self._answer(head, rest[start : start + size])
            rest = rest[start + size :]
        self._rest = rest

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path.startswith(b"/ok"):
            self._seen.note(body)
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        elif path.startswith(b"/500"):
            self._transport.write(b"HTTP/1.1 500 Dead\r\ncontent-length: 4\r\n\r\ndead")
        elif path == b"/figures":
            seen = {"first": self._seen.first, "last": self._seen.last, "waits_ms": self._seen.waits_ms}
            self._seen.begin()
            told = json.dumps(seen).encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(told), told))


async def _serve() -> None:
    seen = Seen()
    server = await asyncio.get_running_loop().create_server(lambda: Endpoint(seen), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Until whoever started it is gone.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_serve())
