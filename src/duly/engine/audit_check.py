"""The examination of the audit's chains: every mac in order, up to a head whose seal is right; and that none is gone.

It looks page by page, each at a moment of its own: what is added meanwhile is seen by the next page, or not at all.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from ..errors import Sealed
from ..health import Finding
from ..store.contract import AuditRow, ChainHead, Transaction
from ..tenant import OPERATORS
from . import chain
from .secrets import AUDIT, known_secret, lacks_secret

_ROWS_A_PAGE = 1000
# Entries are counted from 1; somebody else's need not be.
_BEFORE_ALL = -(2**62)
_ADVICE = "Find out who could write into the store's tables, and compare with a backup or an exported audit."

R = TypeVar("R", AuditRow, ChainHead)
# Runs a look at the store, at one moment.
Look = Callable[[Callable[[Transaction, Any], Any], Any], Any]


class Chains(msgspec.Struct):
    """What there is: heads by tenant, and what they are sealed with; None: a secret that cannot be unwrapped here."""

    heads: dict[int, ChainHead]
    key: bytes | None
    sealed: bool
    why: str = ""
    # Those that have entries.
    owners: tuple[int, ...] = ()
    # The store's secret was there once, and is not now: with what is left anybody could make chains.
    unsealed: bool = False


class _Walk(msgspec.Struct):
    """How far a chain was followed, and whether it is as it should be."""

    n: int = 0
    mac: bytes = b""
    faults: list[str] = []


def examine_audit(look: Look) -> Iterator[Finding]:
    """Looks every chain over."""
    chains: Chains = look(_chains, None)
    if chains.key is None:
        yield Finding(
            "warn",
            f"The audit cannot be verified: {chains.why}",
            "Only whether entries are missing in the middle is looked at.",
            "Run it with the master key: duly doctor --master file:PATH, or DULY_MASTER.",
        )
    faults: list[str] = []
    told: list[tuple[str, int]] = []
    entries = 0
    for tenant_id in sorted({*chains.heads, *chains.owners}):
        walk = _Walk()
        above = _BEFORE_ALL
        while page := look(_page, (tenant_id, above)):
            for row in page:
                _step(chains, tenant_id, walk, row, told)
            above = page[-1].n
        entries += walk.n
        _arrive(look, chains, tenant_id, walk)
        faults += [f"{_called(tenant_id)}: {fault}" for fault in walk.faults]
    faults += _missing(chains, told, look(_heads, None))
    if chains.unsealed:
        faults.append("The store's own secret, with which it was sealed, is gone.")
    faults += _not_summed(chains.key, look(_every_head, None))
    for fault in faults:
        yield Finding("alert", f"The audit was tampered with. {fault}", "It does not tell what happened.", _ADVICE)
    if not faults and chains.key is not None:
        how = "every one sealed" if chains.sealed else "not sealed: the store has no secret"
        yield Finding("ok", f"Audit: {entries} entries in {len(chains.heads)} chains, {how}{_end(chains)}")


def _end(chains: Chains) -> str:
    head = chains.heads.get(OPERATORS)
    return "" if head is None else f"; that of the operators ends at {head.n}:{head.mac.hex()[:16]}"


def _called(tenant_id: int) -> str:
    return "The operators' chain" if tenant_id == OPERATORS else f"The chain of tenant {tenant_id}"


def _chains(tx: Transaction, _: None) -> Chains:
    heads = _heads(tx)
    owners = tuple(_sound(owner, int) for owner in tx.audit_owners())
    try:
        secret = known_secret(tx, AUDIT)
    except Sealed as error:
        return Chains(heads, None, True, str(error), owners)
    return Chains(heads, secret or chain.PUBLIC, secret is not None, "", owners, lacks_secret(tx))


def _heads(tx: Transaction, _: None = None) -> dict[int, ChainHead]:
    return {tenant_id: head for tenant_id, head in _every_head(tx, None).items() if tenant_id != chain.SUM}


def _every_head(tx: Transaction, _: None) -> dict[int, ChainHead]:
    return {_sound(tenant_id, int): _whole(head) for tenant_id, head in tx.audit_heads()}


def _page(tx: Transaction, place: tuple[int, int]) -> list[Any]:
    tenant_id, above = place
    return [_whole(row) for row in tx.audit_rows(tenant_id, above, 0, _ROWS_A_PAGE)]


def _whole(row: R) -> R:
    """The row, if it holds what its fields say: a flipped bit can leave nothing, or text, where a number belongs."""
    for name in row.__struct_fields__:
        _sound(getattr(row, name), bytes if name in ("entry", "mac", "seal") else int)
    return row


def _sound(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} stands where {kind.__name__} belongs")
    return value


def _step(chains: Chains, tenant_id: int, walk: _Walk, row: Any, told: list[tuple[str, int]]) -> None:
    if row.n < 1:
        walk.faults = [*walk.faults, f"there is an entry before the first, {row.n}."]
        return
    if row.n != walk.n + 1:
        walk.faults = [*walk.faults, f"entries {walk.n + 1} to {row.n - 1} are missing."]
    elif not _is_right(chains, tenant_id, walk, row):
        walk.faults = [*walk.faults, f"entry {row.n} is not what it was, or not in its place."]
    if tenant_id == OPERATORS:
        _note_told(row, told)
    walk.n, walk.mac = row.n, row.mac


def _is_right(chains: Chains, tenant_id: int, walk: _Walk, row: Any) -> bool:
    if chains.key is None:
        return True
    # What came before the store had a secret was chained without one; the seal of the head speaks for it, too.
    keys = {chains.key, chain.PUBLIC}
    macs = [chain.mac_of(key, tenant_id, row.n, row.at_ms, walk.mac, row.entry) for key in keys]
    return any(hmac.compare_digest(mac, row.mac) for mac in macs)


def _note_told(row: Any, told: list[tuple[str, int]]) -> None:
    try:
        entry = chain.read_entry(row.n, row.entry)
    except msgspec.MsgspecError:
        return
    if entry.action in (chain.BEGUN, chain.SEALED, chain.ENDED):
        told.append((entry.action, int(entry.facts.get("tenant_id", OPERATORS))))


def _arrive(look: Look, chains: Chains, tenant_id: int, walk: _Walk) -> None:
    """Compares the end of what was followed with the head; the newest one, for it may have gone on meanwhile."""
    head: ChainHead | None = look(_heads, None).get(tenant_id)
    if head is None:
        if tenant_id in chains.heads:
            # Erased with its tenant, at this moment.
            return
        walk.faults = [*walk.faults, f"its head is missing, with {walk.n} entries there."]
        return
    if head.n < walk.n:
        walk.faults = [*walk.faults, f"it ends at {head.n}, and there are entries up to {walk.n}."]
    elif head.n > walk.n and not look(_page, (tenant_id, walk.n)):
        walk.faults = [*walk.faults, f"entries {walk.n + 1} to {head.n} are missing."]
    elif head.n == walk.n and head.mac != walk.mac:
        walk.faults = [*walk.faults, f"its last entry, {walk.n}, is another one."]
    if chains.key is not None and not chain.is_whole(chains.key, tenant_id, head):
        walk.faults = [*walk.faults, "the seal of its head is broken."]


def _not_summed(key: bytes | None, heads: dict[int, ChainHead]) -> Iterator[str]:
    """What the sum of all heads, which were read at one moment, has against them."""
    known = heads.get(chain.SUM)
    if known is None:
        if heads:
            yield "The sum of all chains is missing."
        return
    if key is not None and not chain.is_whole(key, chain.SUM, known):
        yield "The seal of the sum of all chains is broken."
    if known.mac != chain.sum_of(heads):
        yield "The chains are not those that were summed up: one was put back to an end that it had before."


def _missing(chains: Chains, told: list[tuple[str, int]], now: dict[int, ChainHead]) -> Iterator[str]:
    """Chains that the operators' tells of and that are not there; and what it does not tell, and should.

    `now` are the heads after all chains were followed: some may have begun since the first look, or been erased.
    """
    there: set[int] = set()
    for action, tenant_id in told:
        if action == chain.BEGUN:
            if tenant_id in there:
                yield f"{_called(tenant_id)} was begun twice."
            there.add(tenant_id)
        elif action == chain.ENDED:
            there.discard(tenant_id)
    for tenant_id in sorted(there - now.keys()):
        yield f"{_called(tenant_id)} is missing altogether."
    for tenant_id in sorted((chains.heads.keys() & now.keys()) - there - {OPERATORS}):
        yield f"{_called(tenant_id)} is not told of by the operators'."
    if chains.sealed and (chain.SEALED, OPERATORS) not in told:
        yield "The operators' chain does not tell when it was sealed: it is another one, or missing."
