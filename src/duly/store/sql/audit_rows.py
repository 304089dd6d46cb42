"""The store contract's chains of the audit, in SQL."""

from __future__ import annotations

from ..contract import AuditRow, ChainHead
from .rows import Rows


class AuditRows(Rows):
    """Entries, and the heads of their chains."""

    def audit_claim(self, tenant_id: int) -> tuple[ChainHead, int]:
        *head, last = self._one("audit_claim", tenant=tenant_id)
        return ChainHead(*head), last

    def audit_head_put(self, tenant_id: int, head: ChainHead) -> None:
        self._rows("audit_head_put", tenant=tenant_id, n=head.n, mac=head.mac, seal=head.seal)

    def audit_heads(self) -> list[tuple[int, ChainHead]]:
        return [(tenant_id, ChainHead(*head)) for tenant_id, *head in self._rows("audit_heads")]

    def audit_owners(self) -> list[int]:
        return [tenant_id for (tenant_id,) in self._rows("audit_owners")]

    def audit_insert(self, tenant_id: int, n: int, at_ms: int, entry: bytes, mac: bytes) -> None:
        self._rows("audit_insert", tenant=tenant_id, n=n, at_ms=at_ms, entry=entry, mac=mac)

    def audit_rows(self, tenant_id: int, above: int, since_ms: int, limit: int) -> list[AuditRow]:
        rows = self._rows("audit_rows", tenant=tenant_id, above=above, since=since_ms, limit=limit)
        return [AuditRow(*row) for row in rows]

    def audit_erase(self, tenant_id: int) -> None:
        self._rows("audit_erase", tenant=tenant_id)
        self._rows("audit_head_erase", tenant=tenant_id)
