"""Principals and their keys: who may do what on the store, and what they show.

A principal is named within its tenant; the operators of the store stand under tenant 0, whose name is "". Its keys are
rows with a mac under the store's secret: who reads the table has no key, and who has a key changes no row. A key that
was revoked or has expired stays as a row: a broker that has seen keys never takes a store without live ones for open.

Only an operator, or whoever has the store itself open, says which client certificates are whose: a tenant could
otherwise have another one's clients taken for its own.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence

import msgspec

from ..errors import (
    Conflict,
    Denied,
    KeyNotFound,
    LimitExceeded,
    PrincipalNotFound,
    StaleVersion,
    TenantNotFound,
)
from ..grants import NOBODY, OPERATORS, By, Grant, Identity, check_grants, check_principal
from ..keys import LIVE_KEYS_MAX, Key, NewKey, Principal, id_in, make_key
from ..limits import LIMITS, MINUTE_MS
from ..store.contract import KeyRow, PrincipalRow, Transaction
from ..tenant import DELETING, TenantSettings
from .audit import note_done
from .find import find_owner
from .secrets import known_secret, store_secret

_PURPOSE = b"keys"
_OPERATORS_ID = 0
_CERTIFICATES_MAX = 64
# Compared with where there is no such key, so that it takes as long.
_NO_MAC = bytes(32)

_grants = msgspec.json.Decoder(tuple[Grant, ...])
_names = msgspec.json.Decoder(tuple[str, ...])


class PutPrincipal(msgspec.Struct, frozen=True):
    """Make a principal, or give it other grants. `version`: only if it is still the one that was read."""

    tenant: str
    principal: str
    grants: tuple[Grant, ...]
    certificates: tuple[str, ...] = ()
    version: int | None = None
    by: By = NOBODY


class DeletePrincipal(msgspec.Struct, frozen=True):
    """Remove a principal, with its keys."""

    tenant: str
    principal: str
    by: By = NOBODY


class ListPrincipals(msgspec.Struct, frozen=True):
    """A page of principals, by name."""

    tenant: str
    after: str
    limit: int


class CreateKey(msgspec.Struct, frozen=True):
    """Make a key for a principal, which lives for so long, or until it is revoked."""

    tenant: str
    principal: str
    note: str = ""
    ttl_ms: int | None = None
    by: By = NOBODY


class RotateKey(msgspec.Struct, frozen=True):
    """Make a key in place of one, which lives on for so long."""

    tenant: str
    key_id: str
    overlap_ms: int
    by: By = NOBODY


class RevokeKey(msgspec.Struct, frozen=True):
    """End a key for good."""

    tenant: str
    key_id: str
    by: By = NOBODY


class ListKeys(msgspec.Struct, frozen=True):
    """A page of keys by id, of one principal or of all."""

    tenant: str
    principal: str | None
    after: str
    limit: int


def put_principal(tx: Transaction, command: PutPrincipal) -> Principal:
    """Makes it, or replaces what it may do."""
    _check_active(tx, command.by)
    check_principal(command.principal)
    grants = check_grants(command.grants, command.tenant)
    tenant_id = _tenant_made(tx, command.tenant)
    known = tx.principal(tenant_id, command.principal)
    if command.version is not None and command.version != (0 if known is None else known.version):
        raise StaleVersion()
    _check_certificates(tx, tenant_id, command, () if known is None else _names.decode(known.certificates))
    row = PrincipalRow(
        tenant_id,
        command.principal,
        msgspec.json.encode(grants).decode(),
        msgspec.json.encode(command.certificates).decode(),
        1 if known is None else known.version + 1,
        tx.now_ms if known is None else known.created_at,
    )
    tx.principal_put(row)
    note_done(tx, tenant_id, command)
    return _described(row)


def _check_active(tx: Transaction, by: By) -> None:
    """Who is suspended gives nobody anything; an operator may meanwhile. What ends something is left to both."""
    if by.tenant != OPERATORS:
        find_owner(tx, by.tenant)


def _check_certificates(tx: Transaction, tenant_id: int, command: PutPrincipal, before: Sequence[str]) -> None:
    """Each name leads to one principal of the whole store."""
    if set(command.certificates) == set(before):
        return
    if command.by.tenant != OPERATORS:
        raise Denied("Which certificates are whose is said by an operator of the store. Ask one.")
    if len(command.certificates) > _CERTIFICATES_MAX or any(not 1 <= len(name) <= 512 for name in command.certificates):
        raise LimitExceeded(f"A principal has at most {_CERTIFICATES_MAX} names of certificates, of 1 to 512 letters.")
    for row in tx.principals_with_certificates():
        if (row.tenant_id, row.name) != (tenant_id, command.principal) and not set(command.certificates).isdisjoint(
            _names.decode(row.certificates)
        ):
            raise Conflict("Another principal has one of these certificates. One name leads to one principal.")


def delete_principal(tx: Transaction, command: DeletePrincipal) -> None:
    """Removes it; its keys end with it."""
    row = _principal(tx, command.tenant, command.principal)
    tx.principal_delete(row.tenant_id, row.name)
    note_done(tx, row.tenant_id, command)


def list_principals(tx: Transaction, command: ListPrincipals) -> list[Principal]:
    """A page of them."""
    tenant_id = _tenant(tx, command.tenant)
    return (
        [] if tenant_id is None else [_described(row) for row in tx.principals(tenant_id, command.after, command.limit)]
    )


def create_key(tx: Transaction, command: CreateKey) -> NewKey:
    """Makes a key. Raises Conflict where two are live."""
    _check_active(tx, command.by)
    row = _principal(tx, command.tenant, command.principal)
    expires_at = None if command.ttl_ms is None else tx.now_ms + command.ttl_ms
    made = _made(tx, row, command.note, expires_at)
    note_done(tx, row.tenant_id, command, made=made.id)
    return made


def rotate_key(tx: Transaction, command: RotateKey) -> NewKey:
    """Makes the next key, which lives as long as the old one was meant to."""
    _check_active(tx, command.by)
    old = _key(tx, command.tenant, command.key_id)
    if not _listed(old).is_live(tx.now_ms):
        raise Conflict("This key has ended already. Create another one for its principal.")
    row = _principal(tx, command.tenant, old.principal)
    span = None if old.expires_at is None else old.expires_at - old.created_at
    made = _made(tx, row, old.note, None if span is None else tx.now_ms + span)
    until = tx.now_ms + command.overlap_ms
    tx.key_expire(old.id, until if old.expires_at is None else min(until, old.expires_at))
    note_done(tx, row.tenant_id, command, principal=row.name, made=made.id)
    return made


def revoke_key(tx: Transaction, command: RevokeKey) -> None:
    """Ends a key. Ending one twice does nothing."""
    row = _key(tx, command.tenant, command.key_id)
    tx.key_revoke(row.id)
    note_done(tx, row.tenant_id, command, principal=row.principal)


def list_keys(tx: Transaction, command: ListKeys) -> list[Key]:
    """A page of them, those that have ended among them."""
    tenant_id = _tenant(tx, command.tenant)
    rows = [] if tenant_id is None else tx.keys(tenant_id, command.principal, command.after, command.limit)
    return [_listed(row) for row in rows]


def _made(tx: Transaction, principal: PrincipalRow, note: str, expires_at: int | None) -> NewKey:
    if len(note) > LIMITS.name_chars_max:
        raise LimitExceeded(f"A key's note has at most {LIMITS.name_chars_max} letters.")
    # Two who make one at once must not both find room for it.
    tx.principal_lock(principal.tenant_id, principal.name)
    live = [row for row in _keys_of(tx, principal) if _listed(row).is_live(tx.now_ms)]
    if len(live) >= LIVE_KEYS_MAX:
        ids = " and ".join(row.id for row in live)
        raise Conflict(f"Principal {principal.name!r} has {LIVE_KEYS_MAX} live keys, {ids}. Revoke one first.")
    text, key_id = make_key()
    mac = _mac(store_secret(tx, _PURPOSE), text)
    tx.key_insert(KeyRow(key_id, principal.tenant_id, principal.name, mac, note, tx.now_ms, expires_at))
    return NewKey(key_id, principal.name, text, expires_at)


def _keys_of(tx: Transaction, principal: PrincipalRow) -> Iterator[KeyRow]:
    after = ""
    while rows := tx.keys(principal.tenant_id, principal.name, after, LIMITS.page_max):
        yield from rows
        after = rows[-1].id


# Who somebody is


class Known(msgspec.Struct, frozen=True):
    """An identity as it was found, when it ends by itself, and when its key was last noted as used."""

    identity: Identity
    expires_at: int | None = None
    used_at: int | None = None


def has_keys(tx: Transaction, _: None) -> bool:
    """Whether the store ever had keys, or principals that show certificates: then everybody has to show one.

    Those that have ended count: that the last one expires must not open a store to everyone.
    """
    return tx.key_any() or bool(tx.principals_with_certificates())


def know_key(tx: Transaction, text: str) -> Known | None:
    """Whose key this is; None of one that is unknown, altered, expired, revoked, or whose principal is gone."""
    key_id = id_in(text)
    secret = known_secret(tx, _PURPOSE)
    if key_id is None or secret is None:
        return None
    found = tx.key_holder(key_id)
    # The same work whatever was found.
    right = hmac.compare_digest(_mac(secret, text), _NO_MAC if found is None else found.key.mac)
    if found is None or not right or not _listed(found.key).is_live(tx.now_ms):
        return None
    identity = Identity(found.tenant, found.key.principal, _grants.decode(found.grants), key_id)
    return Known(identity, found.key.expires_at, found.key.used_at)


def know_certificate(tx: Transaction, names: tuple[str, ...]) -> Known | None:
    """Whose client certificate this is, by the names in it; None where they lead to nobody, not to one alone, or to one
    of a tenant that is deleted.
    """
    wanted = set(names)
    rows = [row for row in tx.principals_with_certificates() if not wanted.isdisjoint(_names.decode(row.certificates))]
    if len(rows) != 1:
        return None
    (row,) = rows
    if row.tenant_id == _OPERATORS_ID:
        return Known(Identity(OPERATORS, row.name, _grants.decode(row.grants)))
    owner = tx.tenant_by_id(row.tenant_id)
    # It is gone from when it is deleted; its rows are erased later.
    if owner is None or owner.state == DELETING:
        return None
    return Known(Identity(owner.name, row.name, _grants.decode(row.grants)))


def note_used(tx: Transaction, key_ids: Sequence[str]) -> list[None]:
    """Notes that keys were used, unless somebody did in the last minute. A verb of the broker's, no operation."""
    for key_id in key_ids:
        tx.key_used(key_id, tx.now_ms - MINUTE_MS)
    return [None] * len(key_ids)


def _mac(secret: bytes, text: str) -> bytes:
    return hmac.digest(secret, text.encode(), hashlib.sha256)


def _principal(tx: Transaction, tenant: str, name: str) -> PrincipalRow:
    tenant_id = _tenant(tx, tenant)
    row = None if tenant_id is None else tx.principal(tenant_id, name)
    if row is None:
        raise PrincipalNotFound(f"There is no principal {name!r}. Call put_principal first.")
    return row


def _key(tx: Transaction, tenant: str, key_id: str) -> KeyRow:
    """A key of that tenant: another one's is not there."""
    row = tx.key(key_id)
    if row is None or row.tenant_id != _tenant(tx, tenant):
        raise KeyNotFound(f"There is no key {key_id!r}. Call list_keys to see which there are.")
    return row


def _tenant(tx: Transaction, name: str) -> int | None:
    """None where there is no such tenant, or it is on its way out: no key is made for one that is being deleted."""
    if name == OPERATORS:
        return _OPERATORS_ID
    owner = tx.tenant_find(name)
    return None if owner is None or owner.state == DELETING else owner.id


def _tenant_made(tx: Transaction, name: str) -> int:
    """A tenant comes into being with its first principal, as it does with its first topic; at a broker with keys it
    has to be there (broker/entry.py).
    """
    found = _tenant(tx, name)
    if found is not None:
        return found
    if tx.tenant_id(name) is not None:
        raise TenantNotFound(f"Tenant {name!r} is being deleted. Wait until it is gone, or use another name.")
    return tx.tenant_insert(name, TenantSettings())


def _described(row: PrincipalRow) -> Principal:
    return Principal(row.name, _grants.decode(row.grants), _names.decode(row.certificates), row.version, row.created_at)


def _listed(row: KeyRow) -> Key:
    return Key(row.id, row.principal, row.note, row.created_at, row.expires_at, row.revoked_at, row.used_at)
