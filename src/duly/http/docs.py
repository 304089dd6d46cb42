"""The page that shows the description of the API, and lets one try it: served from here, and from nowhere else."""

from __future__ import annotations

from importlib import resources
from typing import Any

from .problems import Refused, problem_of
from .reply import Reply

_KINDS = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
_POLICY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
}


class Page:
    """Something that stands still and can be got: an ASGI application."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    @classmethod
    def from_file(cls, name: str) -> Page:
        """A file beside this one."""
        body = resources.files(__package__).joinpath(name).read_bytes()
        return cls(Reply(body, 200, _KINDS[name.rpartition(".")[2]], _POLICY))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002
        if scope["method"] in ("GET", "HEAD"):
            await self._reply.send(send)
        else:
            await problem_of(Refused("method_not_allowed", "See Allow for the methods.", allow="GET, HEAD")).send(send)
