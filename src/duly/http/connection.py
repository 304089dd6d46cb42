"""A connection, bounded where uvicorn leaves it open: how long a header may take and how big it may be, how many
connections there are, and how long a reader may take nothing of its answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..broker.certificates import peer_names
from ..limits import LIMITS
from .endpoint import PEER
from .problems import Refused, problem_of


class Connection(HttpToolsProtocol):
    """uvicorn's connection with our bounds."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        # Running while a header is awaited, and while the client takes nothing.
        self._header_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        # Who the client's certificate names.
        self._peer: tuple[str, ...] = ()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._peer = peer_names(transport.get_extra_info("peercert"))
        if len(self.connections) > LIMITS.connections_max:
            self._refuse("overloaded", "Too many connections are open. Back off and try again.")
            return
        self._await_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    # The header

    def data_received(self, data: bytes) -> None:
        if self._header_timer is not None:
            self._header_bytes += len(data)
        super().data_received(data)
        # Still without an end: what comes with a body behind it has ended the count.
        if self._header_timer is not None and self._header_bytes > LIMITS.header_bytes_max:
            self._refuse("malformed_request", f"A header has at most {LIMITS.header_bytes_max} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope.setdefault("extensions", {})[PEER] = {"names": self._peer}
        if self._header_timer is None:
            self._await_header()

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        self._header_bytes = 0
        super().on_headers_complete()

    def _await_header(self) -> None:
        self._header_bytes = 0
        self._header_timer = self.loop.call_later(LIMITS.header_ms_max / 1000, self._header_late)

    def _header_late(self) -> None:
        self._header_timer = None
        self._refuse("request_timeout", "The header came too slowly.")

    # The answer

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(LIMITS.unread_ms_max / 1000, self._unread_late)

    def resume_writing(self) -> None:
        self._stop_unread_timer()
        super().resume_writing()

    def _unread_late(self) -> None:
        # Its answer, and what it was claimed under, must not be kept for ever.
        self._unread_timer = None
        self.transport.abort()

    # What uvicorn would answer in words of its own

    def send_400_response(self, msg: str) -> None:
        self._refuse("malformed_request", msg)

    def _refuse(self, code: str, detail: str) -> None:
        """Answers without the application, and hangs up."""
        self._stop_header_timer()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            reply = problem_of(Refused(code, detail))
            headers = {"content-type": reply.kind, "content-length": len(reply.body), **(reply.headers or {})}
            lines = [f"HTTP/1.1 {reply.status} Refused", *(f"{name}: {value}" for name, value in headers.items())]
            self.transport.write("\r\n".join([*lines, "connection: close", "", ""]).encode() + reply.body)
        self.transport.close()

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
