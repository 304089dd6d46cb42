"""What is stored of a push: where it goes and how, and apart from that what nobody is shown again.

    settings   where it goes; of a header the name alone
    secrets    what its requests are signed with, and the values of headers

The second part is sealed wherever the store has a master key (store/sql/push_rows.py), the first where the tenant is
encrypted. The audit is neither, and is told less.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..errors import InvalidArgument, Sealed
from ..push import HIDDEN, SECRET_BYTES, ToHttp, ToTopic, read_secret
from ..store.contract import PushRow


class KeptSecret(msgspec.Struct, frozen=True):
    """A secret; `until_ms`: it signs until then, None: until the next rotation."""

    key: bytes
    until_ms: int | None = None


class KeptSecrets(msgspec.Struct, frozen=True):
    """What is not shown: secrets, the newest first, and the values of headers."""

    signing: tuple[KeptSecret, ...] = ()
    headers: dict[str, str] = {}

    def valid(self, now_ms: int) -> tuple[KeptSecret, ...]:
        """Those that sign now."""
        return tuple(one for one in self.signing if one.until_ms is None or one.until_ms > now_ms)


class Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where it goes, one of the two; a header's value stands with the secrets."""

    to_http: ToHttp | None = None
    to_topic: ToTopic | None = None


_settings = msgspec.json.Decoder(Shown)
_secrets = msgspec.json.Decoder(KeptSecrets)
encode = msgspec.json.Encoder().encode


def settings_of(to: ToHttp | ToTopic) -> bytes:
    """What is stored of where it goes."""
    if isinstance(to, ToTopic):
        return encode(Shown(to_topic=to))
    return encode(Shown(to_http=replace(to, headers=dict.fromkeys(to.headers, HIDDEN))))


def shown_of(row: PushRow) -> Shown:
    """Where it goes, without what its headers say; nothing, if that cannot be read any more."""
    return Shown() if row.settings is None else _settings.decode(row.settings)


def kept_of(row: PushRow) -> KeptSecrets:
    """What nobody is shown; nothing, if that cannot be read any more."""
    return KeptSecrets() if row.secrets is None else _secrets.decode(row.secrets)


def whole_of(row: PushRow) -> ToHttp | ToTopic:
    """Where it goes, with all that its headers say. Raises Sealed."""
    shown, kept = shown_of(row), kept_of(row)
    if shown.to_topic is not None:
        return shown.to_topic
    if shown.to_http is None or row.secrets is None:
        raise Sealed(f"What push {row.name!r} says cannot be read: shredded, or damaged. Run `duly doctor`; delete it.")
    return replace(shown.to_http, headers=kept.headers)


def audited(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the audit is told, which is not encrypted: of headers the names, of an address the host (its path may be all
    that keeps others out).
    """
    told = dict(facts)
    if isinstance(told.get("headers"), Mapping):
        told["headers"] = dict.fromkeys(told["headers"], HIDDEN)
    if "url" in told:
        told["url"] = f"{urlsplit(told['url']).scheme}://{urlsplit(told['url']).netloc}/{HIDDEN}"
    return told


def first_secrets(to: ToHttp | ToTopic, given: str | None) -> bytes | None:
    """What is stored of that as it is made; None: nothing is signed on the way to a topic."""
    if isinstance(to, ToHttp):
        key = secrets.token_bytes(SECRET_BYTES) if given is None else read_secret(given)
        return encode(KeptSecrets((KeptSecret(key),), dict(to.headers)))
    if given is not None:
        raise InvalidArgument("Nothing is signed on the way to a topic: leave secret= away.")
    return None
