"""One request to an endpoint, and what came back: never an exception, whatever the other side does.

A push has connections of its own, as many as it may have requests at once, kept open between requests. Of those that
all pushes may have, half of what the system gives this process, a tenant has as many as it leaves to the others. The
time that the push sets covers a request as a whole: the lookup, connecting, TLS, sending, and the answer to its end. So
neither a server that drips a byte a second nor one whose answer never ends holds anything for longer. Of an answer
64 KiB are read, as they come: nothing is inflated. A longer one is cut off with its connection.

Where connections may go is asked of reach.py: for each address that a name stands for, when it is looked up, and once
more for the address of each socket when it is made, which covers hosts that are addresses. No redirect is followed, no
proxy, cookie or password is taken from the environment or from an answer.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import ssl
import weakref
from contextlib import suppress
from functools import cached_property
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from ... import __version__
from ...clock import monotonic_s
from ...engine.allowance import Allowance
from ...errors import InvalidArgument
from ...push import ToHttp
from .answers import Answer, cleaned
from .bounded import ANSWER_BYTES_MAX, HEADER_BYTES_MAX, bound
from .content import Content
from .lookups import Lookups
from .reach import OutOfReach, Reach

_HEADERS_MAX = 128
# Less than after what many servers close a connection: a request on one that closes at that moment fails for nothing.
_IDLE_S = 4.0
_AGENT = f"duly/{__version__}"
# This machine is out of something: the endpoint has nothing to do with it.
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


def trust(ca_file: str | None = None) -> ssl.SSLContext:
    """What endpoints are verified by: the system's authorities, and those of a file."""
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except OSError as error:
            raise InvalidArgument(f"No certificates of authorities can be read from {ca_file}: {error}.") from error
    return context


class Sockets:
    """How many connections pushes have, by tenant; on the loop."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most or resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._held = Allowance()

    @property
    def count(self) -> int:
        """How many there are."""
        return self._held.held

    def open(self, tenant: str, family: int, kind: int, protocol: int) -> socket.socket:
        """One more, which counts until nobody has it any more. Raises OSError, as the system does where it has none."""
        if not self._held.allows(tenant, self._most):
            raise OSError(errno.EMFILE, "the tenant's pushes have too many connections")
        made = socket.socket(family, kind, protocol)
        self._held.take(tenant)
        weakref.finalize(made, self._gone, asyncio.get_running_loop(), tenant)
        return made

    def _gone(self, loop: asyncio.AbstractEventLoop, tenant: str) -> None:
        # On whatever thread notices it.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._held.give_back, tenant)


class Sender:
    """Requests of one push. Made and used on one loop."""

    def __init__(
        self, to: ToHttp, *, tenant: str, reach: Reach, lookups: Lookups, sockets: Sockets, tls: ssl.SSLContext
    ) -> None:
        self._to = to
        self._tenant = tenant
        self._sockets = sockets
        self._timeout_s = to.timeout_ms / 1000
        self._reach = reach
        connector = aiohttp.TCPConnector(
            limit=to.concurrency,
            resolver=_Judging(lookups, reach, tenant),
            use_dns_cache=False,
            socket_factory=self._socket,
            ssl=tls,
            keepalive_timeout=_IDLE_S,
        )
        bound(connector)
        self._session = aiohttp.ClientSession(
            connector=connector,
            # The whole has its own, which is exact.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=_HEADERS_MAX,
            headers={"user-agent": _AGENT, "accept": "*/*", "accept-encoding": "identity"},
        )

    @cached_property
    def _url(self) -> URL:
        """Read when it is needed: one that a push may be set to and this cannot read fails like any other."""
        return URL(self._to.url)

    async def send(self, content: Content) -> Answer:
        """Sends a request and reads its answer."""
        began = monotonic_s()
        seen: dict[str, Any] = {}
        ours = False
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._exchange(content, seen)
            error = ""
        except TimeoutError:
            error = f"it was not over after {self._timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError, asyncio.IncompleteReadError) as failed:
            error, ours = _told(failed), _is_ours(failed)
        return Answer(ms=round((monotonic_s() - began) * 1000), error=error, ours=ours, **{"status": None, **seen})

    async def close(self) -> None:
        """Lets its connections go."""
        await self._session.close()

    async def _exchange(self, content: Content, seen: dict[str, Any]) -> None:
        answer = await self._session.request(
            self._to.method, self._url, data=content.body, headers=content.headers, allow_redirects=False
        )
        try:
            headers = answer.headers
            seen.update(
                status=answer.status,
                whole=False,
                content_type=headers.get("content-type", ""),
                content_encoding=headers.get("content-encoding", ""),
                retry_after=headers.get("retry-after", ""),
            )
            seen["body"] = await _start_of(answer.content)
            seen["whole"] = answer.content.at_eof()
        finally:
            # Back to the others if it was read to its end; else it is closed.
            if seen.get("whole"):
                answer.release()
            else:
                answer.close()

    def _socket(self, where: Any) -> socket.socket:
        """The last look: at the very address that is connected to."""
        family, kind, protocol, _, address = where
        zone = f"%{address[3]}" if len(address) == 4 and address[3] else ""
        self._reach.check(address[0] + zone, address[1], name=self._url.host or "")
        return self._sockets.open(self._tenant, family, kind, protocol)


class _Judging(AbstractResolver):
    """Looks a host up, and lets it through if all that it stands for may be reached."""

    def __init__(self, lookups: Lookups, reach: Reach, tenant: str) -> None:
        self._lookups = lookups
        self._reach = reach
        self._tenant = tenant

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._lookups.addresses(host, port, tenant=self._tenant)
        for _, address in found:
            self._reach.check(address, port, name=host)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=kind,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, address in found
            if family in (socket.AF_UNSPEC, kind)
        ]

    async def close(self) -> None:
        """Lookups are everyone's, and stay."""


async def _start_of(body: aiohttp.StreamReader) -> bytes:
    """What is kept of a body; it is at its end then, if that is all."""
    pieces: list[bytes] = []
    left = ANSWER_BYTES_MAX
    # One byte more than is kept tells a body of just that size from a longer one.
    while left >= 0 and (piece := await body.read(left + 1)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)[:ANSWER_BYTES_MAX]


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in found:
        found.append(step)
        step = step.__cause__ or step.__context__
    return found


def _is_ours(error: BaseException) -> bool:
    return any(isinstance(one, OSError) and one.errno in _OURS for one in _causes(error))


def _told(error: BaseException) -> str:
    """Why there was no answer, in a line."""
    # aiohttp's own look like those of TLS, and lack what those tell.
    for one in (cause for cause in _causes(error) if not isinstance(cause, aiohttp.ClientError)):
        if isinstance(one, OutOfReach):
            return str(one)
        if isinstance(one, ssl.SSLCertVerificationError):
            return f"TLS: the certificate is not accepted: {cleaned(one.verify_message)}"
        if isinstance(one, ssl.SSLError):
            return f"TLS: {cleaned(str(one.reason or one))}"
        if isinstance(one, socket.gaierror):
            return f"the name cannot be looked up: {cleaned(str(one.strerror))}"
        if isinstance(one, OSError) and one.errno is not None and one.errno > 0:
            return cleaned(str(one.strerror or one).lower()) or type(one).__name__
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed without an answer"
    if isinstance(error, (aiohttp.ClientResponseError, aiohttp.ClientPayloadError)):
        message = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
        return f"the answer is no HTTP, or broken off: {cleaned(str(message))}"
    return cleaned(str(error)) or type(error).__name__
