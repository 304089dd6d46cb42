"""Principals and keys: who may do what, and what they show."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta

from ..clock import monotonic_s
from ..engine.principals import (
    CreateKey,
    DeletePrincipal,
    ListKeys,
    ListPrincipals,
    PutPrincipal,
    RevokeKey,
    RotateKey,
)
from ..grants import GRANTS_MAX, Grant, check_grants, check_principal
from ..keys import Key, NewKey, Principal, check_key_id
from ..limits import DAY_MS, LIMITS
from .endpoint import Call, endpoint
from .fields import Delay, Limit, Next, Ttl, Whole
from .reply import Reply
from .tokens import cursor, read_cursor
from .topics import PageQuery

_CALL_S = 30
_PrincipalName = Annotated[str, Meta(min_length=1, max_length=128)]
_Note = Annotated[str, Meta(max_length=LIMITS.name_chars_max)]


class WantedPrincipal(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a principal may do: nothing but what `grants` list; one that denies wins.

    `certificates` are names in client certificates that it may show instead of a key; only operators say whose they
    are. `version`: only if it is still that one; 0: only if it is new.
    """

    grants: Annotated[list[Grant], Meta(max_length=GRANTS_MAX)]
    certificates: list[str] = []
    version: Whole | None = None


class PrincipalPage(msgspec.Struct):
    """Principals by name. `next` leads to the next page; null: there is none."""

    principals: list[Principal]
    next: str | None


class WantedKey(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A key for a principal, which ends after `ttl_ms`, or when it is revoked."""

    principal: _PrincipalName
    note: _Note = ""
    ttl_ms: Ttl | None = None


class Rotation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """For how long the old key lives on beside the new one."""

    overlap_ms: Delay = DAY_MS


class KeyPage(msgspec.Struct):
    """Keys by id, without their secrets; those that have ended, too."""

    keys: list[Key]
    next: str | None


class KeysQuery(msgspec.Struct, forbid_unknown_fields=True):
    principal: _PrincipalName | None = None
    limit: Limit = 100
    next: Next | None = None


def _after(text: str | None) -> str:
    return "" if text is None else read_cursor(text, str)


@endpoint(
    "PUT",
    "/v1/principals/{principal}",
    tag="keys",
    does=(PutPrincipal,),
    body=WantedPrincipal,
    answer=Principal,
    refuses=("invalid_argument", "limit_exceeded", "stale_version", "conflict", "tenant_not_found"),
)
def put_principal(call: Call) -> Principal:
    """Make a principal, or replace what it may do. It has its effect within seconds."""
    wanted: WantedPrincipal = call.body
    command = PutPrincipal(
        call.tenant,
        check_principal(call.path["principal"]),
        check_grants(wanted.grants, call.tenant or call.entry.own_tenant()),
        tuple(wanted.certificates),
        wanted.version,
    )
    return _done(call, command)


@endpoint("GET", "/v1/principals", tag="keys", does=(ListPrincipals,), query=PageQuery, answer=PrincipalPage)
def list_principals(call: Call) -> PrincipalPage:
    """List principals with their grants."""
    found: list[Principal] = _done(call, ListPrincipals(call.tenant, _after(call.query.next), call.query.limit))
    return PrincipalPage(found, cursor(found[-1].name) if len(found) == call.query.limit else None)


@endpoint(
    "DELETE",
    "/v1/principals/{principal}",
    tag="keys",
    does=(DeletePrincipal,),
    status=204,
    refuses=("principal_not_found", "invalid_argument"),
)
def delete_principal(call: Call) -> None:
    """Remove a principal; its keys end within seconds."""
    _done(call, DeletePrincipal(call.tenant, check_principal(call.path["principal"])))


@endpoint(
    "POST",
    "/v1/keys",
    tag="keys",
    does=(CreateKey,),
    body=WantedKey,
    answer=NewKey,
    status=201,
    refuses=("principal_not_found", "invalid_argument", "conflict"),
    gives_headers={"Location": "The key's path."},
)
def create_key(call: Call) -> Reply:
    """Make a key. Its `secret` is told this once and never again."""
    wanted: WantedKey = call.body
    return _new(_done(call, CreateKey(call.tenant, check_principal(wanted.principal), wanted.note, wanted.ttl_ms)))


@endpoint("GET", "/v1/keys", tag="keys", does=(ListKeys,), query=KeysQuery, answer=KeyPage)
def list_keys(call: Call) -> KeyPage:
    """List keys, without their secrets."""
    wanted: KeysQuery = call.query
    of = None if wanted.principal is None else check_principal(wanted.principal)
    found: list[Key] = _done(call, ListKeys(call.tenant, of, _after(wanted.next), wanted.limit))
    return KeyPage(found, cursor(found[-1].id) if len(found) == wanted.limit else None)


@endpoint(
    "POST",
    "/v1/keys/{key}/rotate",
    tag="keys",
    does=(RotateKey,),
    body=Rotation,
    body_optional=True,
    answer=NewKey,
    status=201,
    refuses=("key_not_found", "principal_not_found", "invalid_argument", "conflict"),
    gives_headers={"Location": "The new key's path."},
)
def rotate_key(call: Call) -> Reply:
    """Make the next key of the same principal; the old one ends after `overlap_ms`."""
    return _new(_done(call, RotateKey(call.tenant, check_key_id(call.path["key"]), call.body.overlap_ms)))


@endpoint(
    "DELETE",
    "/v1/keys/{key}",
    tag="keys",
    does=(RevokeKey,),
    status=204,
    refuses=("key_not_found", "invalid_argument"),
)
def revoke_key(call: Call) -> None:
    """End a key for good, at every broker within five seconds, open streams too."""
    _done(call, RevokeKey(call.tenant, check_key_id(call.path["key"])))


def _done(call: Call, command: object) -> Any:
    return call.entry.do(command, deadline=monotonic_s() + _CALL_S)


def _new(made: NewKey) -> Reply:
    return Reply.of(made, 201, {"location": f"/v1/keys/{quote(made.id, safe='')}"})
