"""Keys: what a principal shows to a broker. How they are written, and what is told of them. Pure, but for the dice.

    duly_<id>_<secret><check>

The id, 12 characters, is public: it names the key in lists and in the audit. The secret, 43 characters, is 256 random
bits. The check, 6 characters, is a checksum: what was mistyped or cut off is refused before anything is looked up, and
scanners for secrets know a key by `KEY_PATTERN`. The store keeps a mac of the whole key and nothing else of it.
"""

from __future__ import annotations

import re
import secrets
import zlib
from datetime import datetime

import msgspec

from .clock import from_ms
from .errors import InvalidArgument
from .grants import Grant

KEY_PATTERN = "duly_[a-z2-7]{12}_[0-9A-Za-z]{49}"
# Of one principal: the present one, and the next while it is being handed out.
LIVE_KEYS_MAX = 2

_KEY = re.compile(KEY_PATTERN)
_ID = re.compile("[a-z2-7]{12}")
_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_CHARS, _SECRET_CHARS, _CHECK_CHARS = 12, 43, 6


class Principal(msgspec.Struct, frozen=True):
    """A named actor of a tenant, or an operator of the store: what it may do, and how it may show who it is."""

    name: str
    grants: tuple[Grant, ...]
    # Names in client certificates: of a URI, a DNS name, or the subject's common name.
    certificates: tuple[str, ...]
    version: int
    created_at_ms: int


class Key(msgspec.Struct, frozen=True):
    """A key as it is listed: without its secret."""

    id: str
    principal: str
    note: str
    created_at_ms: int
    expires_at_ms: int | None
    revoked_at_ms: int | None
    # Within a minute or so.
    used_at_ms: int | None

    @property
    def created_at(self) -> datetime:
        """When it was made, by the store's clock."""
        return from_ms(self.created_at_ms)

    def is_live(self, now_ms: int) -> bool:
        """Whether it would be let in."""
        return self.revoked_at_ms is None and (self.expires_at_ms is None or self.expires_at_ms > now_ms)


class NewKey(msgspec.Struct, frozen=True):
    """A key that was just made, with its `secret`: what to show as a token. It is told this once and never again."""

    id: str
    principal: str
    secret: str
    expires_at_ms: int | None

    def __repr__(self) -> str:
        # It would stand in logs and tracebacks otherwise.
        return f"NewKey(id={self.id!r}, principal={self.principal!r}, secret=…)"


def make_key() -> tuple[str, str]:
    """A new key, and its id."""
    key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_CHARS))
    open_part = f"duly_{key_id}_{_written(secrets.randbits(256), _SECRET_CHARS)}"
    return open_part + _check(open_part), key_id


def id_in(text: str) -> str | None:
    """The id of what may be a key; None of what cannot be one."""
    if _KEY.fullmatch(text) is None or not secrets.compare_digest(text[-_CHECK_CHARS:], _check(text[:-_CHECK_CHARS])):
        return None
    return text[5 : 5 + _ID_CHARS]


def check_key_id(key_id: object) -> str:
    """A key's id. Raises InvalidArgument, and does not repeat what was given: it may be the key itself."""
    if not isinstance(key_id, str) or _ID.fullmatch(key_id) is None:
        raise InvalidArgument("A key's id has 12 letters and digits, between duly_ and the next _ of the key.")
    return key_id


def check_token(token: object) -> str:
    """A key as a client was given it. Raises InvalidArgument, and does not repeat it."""
    if not isinstance(token, str) or id_in(token.strip()) is None:
        raise InvalidArgument("The token is no key of Duly's, or not the whole of it: duly_…, 67 characters.")
    return token.strip()


def _check(text: str) -> str:
    return _written(zlib.crc32(text.encode()), _CHECK_CHARS)


def _written(number: int, chars: int) -> str:
    found = []
    for _ in range(chars):
        number, digit = divmod(number, 62)
        found.append(_LETTERS[digit])
    return "".join(reversed(found))
