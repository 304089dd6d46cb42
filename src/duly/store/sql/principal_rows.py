"""The part of the store contract's transaction that holds principals and keys."""

from __future__ import annotations

from ..contract import KeyHolder, KeyRow, PrincipalRow
from .rows import Rows


class PrincipalRows(Rows):
    """The rows of principals and keys inside one transaction."""

    def principal(self, tenant_id: int, name: str) -> PrincipalRow | None:
        row = self._one("principal", tenant=tenant_id, name=name)
        return None if row is None else PrincipalRow(*row)

    def principals(self, tenant_id: int, after: str, limit: int) -> list[PrincipalRow]:
        rows = self._rows("principals", tenant=tenant_id, after=after, limit=limit)
        return [PrincipalRow(*row) for row in rows]

    def principals_with_certificates(self) -> list[PrincipalRow]:
        return [PrincipalRow(*row) for row in self._rows("principals_with_certificates")]

    def principal_put(self, row: PrincipalRow) -> None:
        self._rows(
            "principal_put",
            tenant=row.tenant_id,
            name=row.name,
            grants=row.grants,
            certificates=row.certificates,
            version=row.version,
            created_at=row.created_at,
        )

    def principal_lock(self, tenant_id: int, name: str) -> None:
        self._rows("principal_lock", tenant=tenant_id, name=name)

    def principal_delete(self, tenant_id: int, name: str) -> None:
        self._rows("keys_delete", tenant=tenant_id, principal=name)
        self._rows("principal_delete", tenant=tenant_id, name=name)

    def key(self, key_id: str) -> KeyRow | None:
        row = self._one("key", id=key_id)
        return None if row is None else KeyRow(*row)

    def keys(self, tenant_id: int, principal: str | None, after: str, limit: int) -> list[KeyRow]:
        if principal is None:
            rows = self._rows("keys", tenant=tenant_id, after=after, limit=limit)
        else:
            rows = self._rows("keys_of_principal", tenant=tenant_id, principal=principal, after=after, limit=limit)
        return [KeyRow(*row) for row in rows]

    def key_any(self) -> bool:
        return self._one("key_any") is not None

    def key_holder(self, key_id: str) -> KeyHolder | None:
        row = self._one("key_holder", id=key_id)
        return None if row is None else KeyHolder(KeyRow(*row[:9]), *row[9:])

    def key_insert(self, row: KeyRow) -> None:
        self._rows(
            "key_insert",
            id=row.id,
            tenant=row.tenant_id,
            principal=row.principal,
            mac=row.mac,
            note=row.note,
            created_at=row.created_at,
            expires_at=row.expires_at,
        )

    def key_expire(self, key_id: str, expires_at: int) -> None:
        self._rows("key_expire", id=key_id, expires_at=expires_at)

    def key_revoke(self, key_id: str) -> None:
        self._rows("key_revoke", id=key_id, now=self.now_ms)

    def key_used(self, key_id: str, before_ms: int) -> None:
        self._rows("key_used", id=key_id, now=self.now_ms, before=before_ms)
