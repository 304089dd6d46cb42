"""The examination of what is sealed: every data key, and all that it opens. Without the master checksums alone."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from ...engine.block import Place, is_plain
from ...engine.seal import Seal, bound_to, is_sealed, open_value
from ...engine.secrets import OWN, STORE, Keyring, Shredded, own_seal_of
from ...engine.stage import check_piece
from ...errors import CorruptBlock, Error, Sealed
from ...health import Finding
from ..contract import SecretRow

Ask = Callable[[str], Iterable[tuple[Any, ...]]]

_SECRETS = "SELECT tenant, version, wrapped, created_at_ms FROM {0}secret ORDER BY tenant, version"
_KEYLESS = """
SELECT t.name
  FROM {0}tenant AS t
 WHERE t.settings LIKE '%"encrypt":true%'
   AND NOT EXISTS (SELECT 1 FROM {0}secret AS s WHERE s.tenant = t.id)
"""
_ENCRYPTED = """
SELECT t.id, max(s.created_at_ms)
  FROM {0}tenant AS t
  JOIN {0}secret AS s ON s.tenant = t.id
 WHERE t.settings LIKE '%"encrypt":true%'
 GROUP BY t.id
"""
_PUBLISHED = """
SELECT b.published_at_ms
  FROM {0}block AS b
 WHERE b.partition = {1} AND b.base <= {2} AND b.base + b.count > {2}
"""
_STAGED = "SELECT tenant, stage, number, piece, chunk FROM {0}staged"
_STILL_STAGED = "SELECT 1 FROM {0}staged WHERE stage = {1} AND number = {2}"
_CHUNK = "SELECT data FROM {0}chunk WHERE id = {1}"
# Brokers' transactions that were under way when encryption was turned on end by then.
_UNDER_WAY_MS = 60_000
# What is sealed by itself: whose it is, the value, when it was written if that is known, and what it is bound to.
Values = tuple[tuple[str, str, Callable[..., bytes]], ...]
_VALUES: Values = (
    (
        "reason of a dead letter",
        'SELECT tenant, reason, buried_at_ms, partition, grp, "offset", buried_at_ms, attempts FROM {0}dead',
        lambda *place: bound_to("dead", *place),
    ),
    (
        "history of a dead letter",
        """SELECT tenant, history, buried_at_ms, partition, grp, "offset", buried_at_ms, attempts
             FROM {0}dead WHERE history IS NOT NULL""",
        lambda *place: bound_to("dead history", *place),
    ),
    (
        "history of a lease",
        "SELECT tenant, history, claimed_at_ms, partition, grp, base FROM {0}lease WHERE history IS NOT NULL",
        lambda *place: bound_to("lease", *place),
    ),
    (
        "history of a message",
        """SELECT p.tenant, l.history, NULL, l.partition, l."offset"
             FROM {0}loose AS l JOIN {0}part AS p ON p.id = l.partition WHERE l.history IS NOT NULL""",
        lambda *place: bound_to("loose", *place),
    ),
    (
        "receipt",
        """SELECT t.tenant, r.receipt, NULL, r.topic, r.publish_id
             FROM {0}receipt AS r JOIN {0}topic AS t ON t.id = r.topic""",
        lambda *place: bound_to("receipt", *place),
    ),
    (
        "name of an operation",
        "SELECT tenant, name, NULL, id FROM {0}operation",
        lambda *place: bound_to("operation", *place),
    ),
    (
        "settings of a schedule",
        "SELECT tenant, settings, NULL, name FROM {0}schedule",
        lambda *place: bound_to("schedule", *place),
    ),
    (
        "settings of a push",
        "SELECT tenant, settings, NULL, tenant, name FROM {0}push",
        lambda *place: bound_to("push", *place),
    ),
    (
        "secrets of a push",
        "SELECT tenant, secrets, NULL, tenant, name FROM {0}push WHERE secrets IS NOT NULL",
        lambda *place: bound_to("push secrets", *place),
    ),
    ("row of events", "SELECT tenant, data, NULL, tenant FROM {0}event", lambda *place: bound_to("events", *place)),
)


class Opening:
    """Opens what is sealed, once it has `read` the data keys; of a store that is damaged it may have none."""

    def __init__(self, keyring: Keyring, ask: Ask, prefix: str) -> None:
        self._keyring = keyring
        self._ask = ask
        self._prefix = prefix
        # By tenant that is encrypted: from when at the latest.
        self._since_ms: dict[Any, Any] = {}
        self._rows: dict[tuple[int, int], SecretRow] = {}

    def read(self) -> None:
        """Reads which tenants are encrypted, and the data keys as they are wrapped."""
        self._since_ms = dict(tuple(row) for row in self._ask(_ENCRYPTED.format(self._prefix)))
        rows = [SecretRow(*row) for row in self._ask(_SECRETS.format(self._prefix))]
        self._rows = {(row.tenant_id, row.version): row for row in rows}

    def _published(self, place: Place, offset: int) -> int | None:
        """When the block was stored that holds an offset of the log."""
        found = list(self._ask(_PUBLISHED.format(self._prefix, place.partition, offset)))
        return int(found[0][0]) if found else None

    def unseal(self, tenant_id: int, version: int) -> Seal:
        """Raises Sealed where there is no master, or the key was shredded; CorruptBlock where there is none."""
        is_own = version == OWN
        row = self._rows.get((STORE, 1) if is_own else (tenant_id, version))
        if row is None:
            raise CorruptBlock(
                f"Something of tenant {tenant_id} is sealed with version {version} of its data key, which is not here. "
                "It is not served.",
                partition_id=0,
                base=0,
            )
        return own_seal_of(self._keyring.unwrap(row)) if is_own else self._keyring.seal(row)

    def forged(self, place: Place, stored: bytes, published_at: int) -> Finding | None:
        """What is said of a block that lies in the clear, and was stored when its tenant was encrypted."""
        if not is_plain(stored) or not self.should_be_sealed(place.tenant, published_at):
            return None
        return _in_the_clear(f"The block at offset {place.base} of partition {place.partition}")

    def forged_run(self, place: Place, stored: bytes, seqs: Iterable[int]) -> Finding | None:
        """The same of a block of a run, which does not tell its age: the log does, of its youngest message."""
        if not is_plain(stored) or place.tenant not in self._since_ms:
            return None
        published_at = self._published(place, max(seqs))
        if published_at is None or not self.should_be_sealed(place.tenant, published_at):
            return None
        return _in_the_clear(f"A block of a queue's run in partition {place.partition}")

    def should_be_sealed(self, tenant_id: int, at_ms: int) -> bool:
        """Whether the tenant was encrypted at that moment, and has been since."""
        since_ms = self._since_ms.get(tenant_id)
        return since_ms is not None and at_ms > since_ms + _UNDER_WAY_MS

    def keys(self) -> Iterator[Finding]:
        """Whether every secret is there, and under this master."""
        opened = 0
        shredded = {row.tenant_id for row in self._rows.values() if row.wrapped is None}
        for row in self._rows.values():
            if row.tenant_id in shredded:
                continue
            try:
                self._keyring.unwrap(row)
                opened += 1
            except Error as error:
                yield _locked(row, error)
                # One says it for all: those of a master that is not here are many.
                return
        if opened:
            yield Finding("ok", f"{opened} secrets, all under the master key that was given")
        for tenant_id in sorted(shredded):
            yield Finding("ok", f"The data of tenant {tenant_id} was shredded: nobody can read it")


def _in_the_clear(what: str) -> Finding:
    return Finding(
        "alert",
        f"{what} lies in the clear, though its tenant is encrypted.",
        "Somebody else than Duly has put it there; it is served.",
        "Find out who writes to the store; restore the newest backup.",
    )


def _locked(row: SecretRow, error: Error) -> Finding:
    whose = "The store's own secret" if row.tenant_id == STORE else f"The data key of tenant {row.tenant_id}"
    return Finding(
        "warn" if isinstance(error, Sealed) and "changed or moved" not in str(error) else "alert",
        f"{whose} cannot be unwrapped: {error}",
        "What is sealed with it cannot be served without; of it the checksums alone were looked at.",
        "Give the master key (DULY_MASTER) and examine again.",
    )


def keys(opened: Opening, ask: Ask, prefix: str) -> Iterator[Finding]:
    """Every secret, which is read first; and that each encrypted tenant has one."""
    opened.read()
    for (name,) in ask(_KEYLESS.format(prefix)):
        yield Finding(
            "alert",
            f"Tenant {name!r} is encrypted and has no data key.",
            "Nothing can be stored for it, and nothing of it read.",
            "Restore the newest backup.",
        )
    yield from opened.keys()


def stages(opened: Opening, ask: Ask, prefix: str) -> Iterator[Finding]:
    """What waits in stages to be published."""
    broken = 0
    for tenant_id, stage, number, piece, chunk in list(ask(_STAGED.format(prefix))):
        body = list(ask(_CHUNK.format(prefix, chunk)))
        try:
            check_piece(tenant_id, stage, number, piece, body[0][0] if body else None, opened.unseal)
        except Sealed:
            continue
        except (CorruptBlock, msgspec.MsgspecError, struct.error):
            # One that was published or given up meanwhile is no longer anywhere.
            broken += bool(list(ask(_STILL_STAGED.format(prefix, stage, number))))
    if broken:
        yield Finding(
            "alert",
            f"{broken} pieces of stages are corrupt.",
            "The job that put them down cannot publish them.",
            "Have it stage them again; find out who writes to the store beside Duly.",
        )


def values(opened: Opening, ask: Ask, prefix: str, more: Values = ()) -> Iterator[Finding]:
    """Everything that is sealed by itself; `more` is what the one store alone has."""
    for what, asked, place in (*_VALUES, *more):
        broken = 0
        for tenant_id, stored, at_ms, *where in ask(asked.format(prefix)):
            if not is_sealed(stored):
                # In the clear where none should be, it is no more Duly's than under a broken seal.
                broken += at_ms is not None and opened.should_be_sealed(tenant_id, at_ms)
                continue
            try:
                open_value(stored, tenant_id, place(*where), opened.unseal)
            except Shredded:
                continue
            except Sealed:
                break
            except CorruptBlock:
                broken += 1
        if broken:
            yield Finding(
                "alert",
                f"The seal of {broken} × {what} is broken.",
                "It was changed or belongs elsewhere, and is not shown.",
                "Find out who writes to the store beside Duly; restore the newest backup.",
            )
