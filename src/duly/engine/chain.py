"""The audit's chains: rows that cannot be changed, removed, added or put in another order without that being noticed.

    entry 1 ──mac 1──▶ entry 2 ──mac 2──▶ … ──mac n──▶ the head: n, mac n, and a seal over both

Each mac is of the entry and of the mac before it, so the last one speaks for all. The head says which that is, and its
seal takes the store's audit secret: who can write into the tables, and has no master key, can neither go back behind
it nor lead another chain to it. A store that has no secret yet (nobody has a key there, and nothing is encrypted) has
chains whose macs anybody could compute: they show mistakes, not intent. All are sealed when the secret is made.

A seal that is broken is not mended by the next entry: whoever looks later sees it still.

Each tenant has a chain, and the operators have one (tenant 0). That of the operators tells when another one begins,
when all were sealed, and where that of an erased tenant ended: so that one that is missing altogether is missed.

The sum of all heads is kept under a seal of its own (as the head of nobody's chain): so one chain that is put back to
an end that it had, with the seal of then, is noticed, too. Each transaction adds to it once, as the last thing that it
does: all that note something wait for each other there, and shall not for long.

What this does not show is a whole store put back as it was by somebody who has kept a copy: see docs/security.md.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from ..audit import AuditEntry
from ..store.contract import ChainHead, Transaction
from ..tenant import OPERATORS

BEGUN, SEALED, ENDED = "audit_begun", "audit_sealed", "audit_ended"
# What the macs of a store without a secret are made with.
PUBLIC = hashlib.sha256(b"duly audit of a store without a secret").digest()
BROKEN = b"broken"
# Whose head has the sum of all others. No tenant has this id.
SUM = -1
_SUM_BYTES = 32

_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(AuditEntry).decode


def append(tx: Transaction, key: bytes, tenant_id: int, entry: AuditEntry) -> None:
    """Adds an entry to a chain, which begins with it if need be; nobody else adds to it until this has committed."""
    head, last = tx.audit_claim(tenant_id)
    if not head.n and tenant_id != OPERATORS:
        begun = AuditEntry(entry.at, BEGUN, facts={"tenant_id": tenant_id, "tenant": tx.tenant_name(tenant_id)})
        append(tx, key, OPERATORS, begun)
    body = _encode(entry)
    # Entries behind the end are nobody's of ours. They stay, and the chain goes on behind them, broken.
    n = max(head.n, last) + 1
    mac = mac_of(key, tenant_id, n, entry.at, head.mac, body)
    tx.audit_insert(tenant_id, n, entry.at, body, mac)
    whole = last <= head.n and is_whole(key, tenant_id, head)
    following = ChainHead(n, mac, seal_of(key, tenant_id, n, mac) if whole else BROKEN)
    tx.audit_head_put(tenant_id, following)
    tx.aftermath.audited += _weight(tenant_id, following) - _weight(tenant_id, head)


def write_sum(tx: Transaction, key: bytes) -> None:
    """Adds to the sum of all heads by how much they were changed. Whoever does so has claimed all its heads before."""
    head, _ = tx.audit_claim(SUM)
    mac = _sum_bytes(int.from_bytes(head.mac, "big") + tx.aftermath.audited)
    # There is none yet: it begins with the first chains, and not with those that were there.
    whole = is_whole(key, SUM, head) if head.n else mac == sum_of(dict(tx.audit_heads()))
    n = head.n + 1
    tx.audit_head_put(SUM, ChainHead(n, mac, seal_of(key, SUM, n, mac) if whole else BROKEN))


def sum_of(heads: Mapping[int, ChainHead]) -> bytes:
    """What the sum of these heads is; what is noted as the sum does not count."""
    return _sum_bytes(sum(_weight(tenant_id, head) for tenant_id, head in heads.items() if tenant_id != SUM))


def _weight(tenant_id: int, head: ChainHead) -> int:
    if not head.n:
        return 0
    return int.from_bytes(hashlib.sha256(b"sum %d %d " % (tenant_id, head.n) + head.mac).digest(), "big")


def _sum_bytes(total: int) -> bytes:
    return (total % 2 ** (8 * _SUM_BYTES)).to_bytes(_SUM_BYTES, "big")


def seal_all(tx: Transaction, key: bytes) -> None:
    """Seals all chains with the store's secret, which has just been made."""
    entry = AuditEntry(tx.now_ms, SEALED)
    append(tx, PUBLIC, OPERATORS, entry)
    for tenant_id, head in tx.audit_heads():
        if is_whole(PUBLIC, tenant_id, head):
            sealed = seal_of(key, tenant_id, head.n, head.mac)
            tx.audit_head_put(tenant_id, ChainHead(head.n, head.mac, sealed))


def end(tx: Transaction, key: bytes, tenant_id: int, name: str) -> None:
    """Erases a chain with its tenant; the operators' tells where it ended."""
    for owner, head in tx.audit_heads():
        if owner == tenant_id:
            facts = {"tenant_id": tenant_id, "tenant": name, "entries": head.n, "mac": head.mac.hex()}
            append(tx, key, OPERATORS, AuditEntry(tx.now_ms, ENDED, facts=facts))
            tx.aftermath.audited -= _weight(tenant_id, head)
    tx.audit_erase(tenant_id)


def is_whole(key: bytes, tenant_id: int, head: ChainHead) -> bool:
    """Whether a head is sealed, or of a chain that has not begun."""
    if not head.n:
        return not head.seal and not head.mac
    return hmac.compare_digest(head.seal, seal_of(key, tenant_id, head.n, head.mac))


def read_entry(n: int, body: bytes) -> AuditEntry:
    """An entry as it is stored. Raises msgspec.DecodeError."""
    try:
        return msgspec.structs.replace(_decode(body), number=n)
    except UnicodeDecodeError as error:
        # msgspec lets it through as it is, where a key of a mapping is no text.
        raise msgspec.DecodeError(str(error)) from error


def mac_of(key: bytes, tenant_id: int, n: int, at_ms: int, before: bytes, body: bytes) -> bytes:
    """The mac of an entry."""
    head = b"entry %d %d %d %d " % (tenant_id, n, at_ms, len(before))
    return hmac.digest(key, head + before + body, hashlib.sha256)


def seal_of(key: bytes, tenant_id: int, n: int, mac: bytes) -> bytes:
    """The seal of a head."""
    return hmac.digest(key, b"head %d %d " % (tenant_id, n) + mac, hashlib.sha256)
