"""The door of an open port: whose requests are let in.

A page in somebody's browser can make it send requests here. It cannot choose the Host header (a name that it had
resolve to 127.0.0.1 is not one of ours: DNS rebinding), it cannot leave out Origin where that matters (forged
requests), and it cannot send JSON without being asked first (endpoint.py takes no other types).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from .problems import Refused, problem_of

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
# For a year, browsers come back over HTTPS alone. They keep that for a name whatever the port: of `localhost` it is
# not said, or what else somebody develops there could not be reached any more.
HSTS = "max-age=31536000"


class Guard:
    """Refuses foreign Host and Origin headers; matches paths as they were sent."""

    def __init__(self, app: Any, *, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["scheme"] == "https" and _host_of(scope["headers"]) != "localhost":
            send = _strict(send)
        try:
            self._check(scope["headers"])
        except Refused as refused:
            await problem_of(refused).send(send)
            return
        # As it was sent: a name may have a slash in it, written %2F.
        scope["path"] = scope["raw_path"].decode("ascii")
        await self._app(scope, receive, send)

    def _check(self, headers: list[tuple[bytes, bytes]]) -> None:
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or _name_of(hosts[0]) not in self._hosts:
            raise Refused("misdirected_request", "Call the broker by its own name, or start it with this one.")
        for name, value in headers:
            if name == b"origin" and not _is_ours(value, hosts[0]):
                raise Refused("foreign_origin", "Only pages that the broker serves itself may call it.")


def _strict(send: Any) -> Any:
    """Answers with HSTS."""

    async def strictly(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"strict-transport-security", HSTS.encode())]
        await send(message)

    return strictly


def _host_of(headers: list[tuple[bytes, bytes]]) -> str:
    return next((_name_of(value) for name, value in headers if name == b"host"), "")


def _name_of(host: bytes) -> str:
    """The name or address in a Host header, without its port."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _is_ours(origin: bytes, host: bytes) -> bool:
    try:
        parts = urlsplit(origin.decode("latin-1").lower())
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc == host.decode("latin-1").lower()
