"""The server: the application on uvicorn, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Collection

import uvicorn

from ..broker.broker import Broker
from ..limits import LIMITS
from .app import make_app
from .connection import Connection
from .endpoint import Home
from .guard import LOOPBACK

# Waiting to be accepted, at most.
_BACKLOG = 4096
_GRACE_S = 10.0


class HttpServer:
    """REST on a port. `start` returns when it listens; `drain` when what was under way is answered."""

    def __init__(
        self,
        broker: Broker,
        host: str = "127.0.0.1",
        port: int = 8470,
        *,
        hosts: Collection[str] = LOOPBACK,
        tls: ssl.SSLContext | None = None,
    ):
        self.home = Home(broker)
        self._listener = _listen(host, port)
        self._server = uvicorn.Server(_configured(make_app(self.home, hosts=hosts), tls))
        self._thread = threading.Thread(target=self._run, name="duly-http", daemon=True)
        self._listening = threading.Event()

    @property
    def port(self) -> int:
        """The port it listens on."""
        port: int = self._listener.getsockname()[1]
        return port

    def start(self) -> HttpServer:
        """Begins to serve."""
        self._thread.start()
        self._listening.wait()
        return self

    def drain(self, grace_s: float = _GRACE_S) -> None:
        """Takes nobody in any more and lets what is under way end, for so long. Drain the broker first: claims that
        wait are answered then.
        """
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()

    def stop(self) -> None:
        """Ends at once."""
        self._server.force_exit = True
        self.drain(0)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        # They can connect from here on: the socket listens, and uvicorn will take them.
        asyncio.get_running_loop().call_soon(self._listening.set)
        await self._server.serve(sockets=[self._listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _configured(app: object, tls: ssl.SSLContext | None) -> uvicorn.Config:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=Connection,
        ws="none",
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=LIMITS.connection_idle_ms_max // 1000,
        timeout_graceful_shutdown=round(_GRACE_S),
    )
    # uvicorn would make a context of its own, of files, and never read them again.
    config.load()
    config.ssl = tls
    return config
