"""The audit: what administrative verbs note in the transaction in which they act, what brokers refused, and reading it.

    a verb ──note_done──▶ the tenant's chain, or the operators' ◀──note_denials── a broker, in groups

Who did it stands in the command (`by`), which a broker fills in from the key that was shown, and an embedded client
from the user that it runs as. What the command says beside that are the facts: settings, names, offsets, no messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ..audit import AuditEntry
from ..events import Event
from ..grants import By
from ..store.contract import TenantRow, Transaction
from ..tenant import DELETING, OPERATORS
from . import chain
from .secrets import AUDIT, known_secret

# What a command says of itself that is told elsewhere in the entry, or is nobody's concern.
_NOT_FACTS = frozenset({"tenant", "topic", "of_topic", "by", "exist_ok"})


def audit_key(tx: Transaction) -> bytes:
    """What chains are sealed with. Raises Sealed where the store has a secret and no master is here to unwrap it."""
    return known_secret(tx, AUDIT) or chain.PUBLIC


def note_done(tx: Transaction, tenant_id: int, command: Any, *, on: str = "", **facts: Any) -> None:
    """Adds to a chain that a command was done; on which topic, if it does not say so itself, and with more facts."""
    told = {name: getattr(command, name) for name in command.__struct_fields__ if name not in _NOT_FACTS}
    told = {name: value for name, value in {**told, **facts}.items() if value is not None}
    by: By = command.by
    entry = AuditEntry(
        tx.now_ms,
        action_of(type(command)),
        tenant=by.tenant,
        principal=by.principal,
        key=by.key,
        address=by.address,
        topic=getattr(command, "topic", None) or on,
        facts=msgspec.to_builtins(told, str_keys=True, enc_hook=str),
    )
    chain.append(tx, audit_key(tx), tenant_id, entry)


def end_chains(tx: Transaction) -> None:
    """Notes the sum of all chains, if one went on. A transaction does this when it claims no other any more."""
    if tx.aftermath.audited:
        chain.write_sum(tx, audit_key(tx))


class NoteCall(msgspec.Struct, frozen=True):
    """Something that was done to the store as a whole by no command of its own."""

    tenant: str
    call: str
    facts: dict[str, Any]
    by: By


def note_calls(tx: Transaction, commands: Sequence[NoteCall]) -> list[None]:
    """A verb: adds calls to the operators' chain."""
    for one in commands:
        by = one.by
        entry = AuditEntry(
            tx.now_ms,
            one.call,
            tenant=by.tenant,
            principal=by.principal,
            key=by.key,
            address=by.address,
            facts=one.facts,
        )
        chain.append(tx, audit_key(tx), OPERATORS, entry)
    return [None] * len(commands)


def action_of(command: type) -> str:
    """A command's name, in the words of the other surfaces."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", command.__name__).lower()


class Denied(msgspec.Struct, frozen=True):
    """Something that was refused to somebody, at a moment of the store's clock."""

    at: int
    by: By
    action: str
    topic: str
    # The code of the error.
    outcome: str
    facts: dict[str, Any] = {}


class NoteDenials(msgspec.Struct, frozen=True):
    """What a broker has refused lately."""

    tenant: str
    denied: tuple[Denied, ...]


def note_denials(tx: Transaction, commands: Sequence[NoteDenials]) -> list[None]:
    """A verb of brokers': adds to the chain of each principal's tenant what was refused to it, and tells its events."""
    key = audit_key(tx)
    every = [one for command in commands for one in command.denied]
    names = dict.fromkeys(one.by.tenant for one in every)
    owners = {name: owner for name in names if (owner := _present(tx, name)) is not None}
    # The operators' chain is claimed last, as by those verbs which begin another one.
    for owner, denied in _in_turn(every, owners):
        chain.append(tx, key, OPERATORS if owner is None else owner.id, _entry_of(denied))
        if owner is not None:
            tx.aftermath.records.append((owner.id, _event_of(denied)))
    return [None] * len(commands)


def _in_turn(every: Sequence[Denied], owners: Mapping[str, TenantRow]) -> Iterator[tuple[TenantRow | None, Denied]]:
    for name, owner in sorted(owners.items()):
        yield from ((owner, one) for one in every if one.by.tenant == name)
    yield from ((None, one) for one in every if one.by.tenant not in owners)


def _present(tx: Transaction, name: str) -> TenantRow | None:
    row = tx.tenant_find(name) if name else None
    return None if row is None or row.state == DELETING else row


def _entry_of(denied: Denied) -> AuditEntry:
    by = denied.by
    return AuditEntry(
        denied.at,
        denied.action,
        denied.outcome,
        by.tenant,
        by.principal,
        by.key,
        by.address,
        denied.topic,
        denied.facts,
    )


def _event_of(denied: Denied) -> Event:
    by = denied.by
    facts: dict[str, object] = {"action": denied.action, "principal": by.principal, "code": denied.outcome}
    if by.key:
        facts["key"] = by.key
    return Event("denied", denied.at, by.tenant, denied.topic, facts={**facts, **denied.facts})


class ListAudit(msgspec.Struct, frozen=True):
    """Entries of a tenant's chain, or of the operators', after a number, from a moment on."""

    tenant: str
    operators: bool = False
    above: int = 0
    since: int | None = None
    limit: int = 1000


def list_audit(tx: Transaction, command: ListAudit) -> list[AuditEntry]:
    """A page of entries, in order."""
    tenant_id = OPERATORS if command.operators else tx.tenant_id(command.tenant)
    if tenant_id is None:
        return []
    rows = tx.audit_rows(tenant_id, command.above, command.since or 0, command.limit)
    return [chain.read_entry(row.n, row.entry) for row in rows]
