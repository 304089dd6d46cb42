"""What clients carry back to us without looking inside: tokens of deliveries, and cursors of pages.

A token is `incarnation-lease-index`, of everything that a claim got `incarnation-lease.lease…`. It says which store
gave it: one that was restored since refuses it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from ..engine.verdict import Token
from .problems import Refused, invalid

T = TypeVar("T")

_TOKEN = re.compile(r"([0-9a-f]{1,64})-([0-9]{1,18}(?:\.[0-9]{1,18})*)(?:-([0-9]{1,9}))?")


def token_of(incarnation: str, lease_id: int, index: int | None = None) -> str:
    """The token of one delivery, or of a whole lease."""
    return f"{incarnation}-{lease_id}" if index is None else f"{incarnation}-{lease_id}-{index}"


def token_of_all(incarnation: str, lease_ids: Iterable[int]) -> str | None:
    """One token for several leases; None for none."""
    leases = ".".join(map(str, lease_ids))
    return f"{incarnation}-{leases}" if leases else None


def read_tokens(texts: Iterable[str]) -> dict[str, tuple[Token, ...]]:
    """Tokens by the incarnation that gave them; those of one lease together."""
    indexes: dict[str, dict[int, list[int] | None]] = {}
    for text in texts:
        match = _TOKEN.fullmatch(text)
        if match is None:
            raise Refused("malformed_request", f"This is not a token that a claim gave: {text[:100]!r}.")
        incarnation, leases, index = match.groups()
        known = indexes.setdefault(incarnation, {})
        for lease in map(int, leases.split(".")):
            _note(known, lease, None if index is None else int(index))
    return {
        incarnation: tuple(Token(lease, None if some is None else tuple(some)) for lease, some in known.items())
        for incarnation, known in indexes.items()
    }


def _note(known: dict[int, list[int] | None], lease: int, index: int | None) -> None:
    if index is None:
        known[lease] = None
    else:
        some = known.setdefault(lease, [])
        if some is not None:
            some.append(index)


def cursor(place: Any) -> str:
    """Where a page ended."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def read_cursor(text: str, kind: type[T]) -> T:
    """Where the next page begins."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=kind)
    except (binascii.Error, ValueError) as error:
        raise invalid("next is not a cursor that an earlier page gave.") from error
