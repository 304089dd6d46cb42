"""An answer on its way out: whole in memory, sent in pieces as fast as its reader takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

JSON = "application/json"

# Between two pieces it is waited until the reader has taken most of what was sent before.
_PIECE_BYTES = 256 * 1024
_ALWAYS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]

_encoder = msgspec.json.Encoder()


class Reply:
    """A status, headers and a body."""

    __slots__ = ("body", "headers", "kind", "status")

    def __init__(
        self, body: bytes, status: int = 200, kind: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        self.body = body
        self.status = status
        self.kind = kind
        self.headers = headers

    @classmethod
    def of(cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
        """A value as JSON; None is an answer without a body."""
        if value is None:
            return cls(b"", 204, "", headers)
        return cls(_encoder.encode(value), status, JSON, headers)

    async def send(self, send: Any) -> None:
        """Sends it."""
        body = self.body
        headers = [*_ALWAYS]
        if self.status != 204:
            headers += [(b"content-type", self.kind.encode()), (b"content-length", b"%d" % len(body))]
        for name, value in (self.headers or {}).items():
            headers.append((name.encode("latin-1"), value.encode("latin-1")))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if len(body) > _PIECE_BYTES:
            view = memoryview(body)
            for start in range(0, len(body), _PIECE_BYTES):
                piece = bytes(view[start : start + _PIECE_BYTES])
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            body = b""
        await send({"type": "http.response.body", "body": body})
