"""What the caller of Flight's shows: the `authorization` header of the call, or the certificate of its connection."""

from __future__ import annotations

from typing import Any

from pyarrow import flight

from ..broker.authority import NOTHING, Shown, bearer

MIDDLEWARE = "duly"
_HEADER = "authorization"


class Headers(flight.ServerMiddleware):  # type: ignore[misc]
    """Keeps a call's header until its handler asks for it: an error that is raised here would tell too much."""

    def __init__(self, given: list[str | bytes]) -> None:
        self.given = given


class HeadersFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Makes one for each call."""

    def start_call(self, _info: Any, headers: dict[str, list[str | bytes]]) -> Headers:
        return Headers([one for name, values in headers.items() if name.lower() == _HEADER for one in values])


def shown_in(context: Any) -> Shown:
    """What a call shows. Raises Unauthenticated when that is no token."""
    given = context.get_middleware(MIDDLEWARE).given
    if given:
        # Several are one that is not there.
        return Shown(bearer(given[0] if len(given) == 1 else ""))
    names = names_in(context)
    return Shown(names=names) if names else NOTHING


def names_in(context: Any) -> tuple[str, ...]:
    """The names in a client certificate that was verified."""
    identity = context.peer_identity()
    return (identity.decode("utf-8", "replace"),) if identity else ()
