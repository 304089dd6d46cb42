"""A request's body, bounded: its size, its size when inflated, its time, and what all of them hold together.

Bytes are counted as they arrive and not as they are announced: a client that announces much and sends nothing takes
room from nobody. They stay counted until the answer is sent. A tenant that has as much under way as it leaves to the
others is refused, and nobody else is (engine/allowance.py).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..clock import monotonic_s
from ..engine.allowance import Allowance
from ..limits import LIMITS
from .problems import Refused

Receive = Callable[[], Awaitable[Mapping[str, Any]]]

_INFLATED_PIECE_BYTES = 64 * 1024


class Left(Exception):
    """The client is gone: nobody is there to be answered."""


class UnderWay:
    """The bytes that requests and answers hold at this moment, all together."""

    def __init__(self, bytes_max: int = LIMITS.requests_bytes_max) -> None:
        self._bytes_max = bytes_max
        self._held = Allowance()

    @property
    def bytes(self) -> int:
        """How many they are."""
        return self._held.held

    def share(self) -> Share:
        """What one request holds; to be given back."""
        return Share(self)

    def take(self, tenant: str, size: int) -> None:
        """Counts a tenant's bytes in. Raises when there are too many already."""
        if self.bytes + size > self._bytes_max or not self._held.allows(tenant, self._bytes_max):
            raise Refused("overloaded", "Too many bytes are under way. Back off and try again.", connection="close")
        self._held.take(tenant, size)

    def add(self, tenant: str, size: int) -> None:
        """Counts bytes in that are there already and cannot be refused."""
        self._held.take(tenant, size)

    def give_back(self, tenant: str, size: int) -> None:
        """Counts bytes out."""
        self._held.give_back(tenant, size)


class Share:
    """One request's part of what is under way."""

    __slots__ = ("_all", "_bytes", "tenant")

    def __init__(self, under_way: UnderWay) -> None:
        self._all = under_way
        self._bytes = 0
        # Whose it is, once that is known: before its body is read.
        self.tenant = ""

    def take(self, size: int) -> None:
        """Counts more bytes in."""
        self._all.take(self.tenant, size)
        self._bytes += size

    def add(self, size: int) -> None:
        """Counts bytes in that are there already and cannot be refused."""
        self._all.add(self.tenant, size)
        self._bytes += size

    def give_back(self) -> None:
        """Counts everything out."""
        self._all.give_back(self.tenant, self._bytes)
        self._bytes = 0


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, share: Share) -> bytes:
    """The whole body, inflated if need be. Raises Refused for what is too big, too slow or oddly encoded."""
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"identity", b"gzip"):
        raise Refused(
            "unsupported_media_type", "Content-Encoding may be gzip, or nothing.", accept_encoding="gzip, identity"
        )
    _check_size(int(headers.get(b"content-length", b"0")))
    body = await _receive(receive, share)
    return body if encoding == b"identity" else await _inflate(body, share)


async def left(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request comes with a body."""
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


async def _receive(receive: Receive, share: Share) -> bytes:
    pieces: list[bytes] = []
    size, began = 0, monotonic_s()
    while True:
        allowed_s = LIMITS.request_ms_max / 1000 + size / LIMITS.request_bytes_a_second_min
        message = await _piece(receive, began + allowed_s)
        piece = message["body"]
        size += len(piece)
        _check_size(size)
        share.take(len(piece))
        pieces.append(piece)
        if not message.get("more_body"):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def _piece(receive: Receive, deadline: float) -> Mapping[str, Any]:
    try:
        async with asyncio.timeout(max(0.0, deadline - monotonic_s())):
            message = await receive()
    except TimeoutError as error:
        raise Refused("request_timeout", "The body came too slowly. Send it again.", connection="close") from error
    if message["type"] == "http.disconnect":
        raise Left()
    return message


def _check_size(size: int) -> None:
    if size > LIMITS.request_bytes_max:
        raise Refused(
            "request_too_large",
            f"A request has at most {LIMITS.request_bytes_max} bytes, inflated. Split it.",
            connection="close",
        )


async def _inflate(body: bytes, share: Share) -> bytes:
    """Inflates piece by piece and stops at the limit: a bomb costs no more than a big request."""
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    pieces: list[bytes] = []
    size, left = 0, body
    try:
        while left and not inflater.eof:
            piece = inflater.decompress(left, _INFLATED_PIECE_BYTES)
            left = inflater.unconsumed_tail
            size += len(piece)
            _check_size(size)
            share.take(len(piece))
            pieces.append(piece)
            if len(pieces) % 64 == 0:
                # Others have their turn meanwhile.
                await asyncio.sleep(0)
    except zlib.error as error:
        raise Refused("malformed_request", f"The body is not gzip: {error}.") from error
    if not inflater.eof or inflater.unused_data:
        raise Refused("malformed_request", "The body is not one whole gzip stream.")
    return b"".join(pieces)
