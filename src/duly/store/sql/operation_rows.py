"""The part of the store contract's transaction that holds what operations have published."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ..contract import OperationRow
from .rows import Mark
from .secret_rows import SecretRows

_FIRST = -(2**63)
_BROKEN = b"(the seal of this name is broken: run `duly doctor`)"


class OperationRows(SecretRows):
    """The rows of operations inside one transaction."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # Those that are this transaction's.
        self._operations: dict[tuple[int, str], OperationRow] = {}

    def operations(self, tenant_id: int, names: Collection[str], left: int) -> dict[str, OperationRow]:
        missing = {_id_of(name): name for name in names if (tenant_id, name) not in self._operations}
        while missing:
            # In one order, whoever asks: two who want the same never wait for each other.
            for op, name in sorted(missing.items()):
                sealed = self._sealed(tenant_id, name.encode(), "operation", op)
                self._rows("operation_begin", tenant=tenant_id, id=op, name=sealed, left_over=left, now=self.now_ms)
            for op, _, *stored in self._begun(tenant_id, sorted(missing)):
                name = missing.pop(op)
                self._operations[tenant_id, name] = _row(name, stored)
            # One that was at rest may have been forgotten just then.
        return {name: self._operations[tenant_id, name] for name in names}

    def _begun(self, tenant_id: int, ids: Sequence[int]) -> Iterable[Any]:
        return [self._one("operations", tenant=tenant_id, id=op) for op in ids]

    def operation(self, tenant_id: int, name: str) -> OperationRow | None:
        row = self._one("operation", tenant=tenant_id, id=_id_of(name))
        return None if row is None else _row(name, row[1:])

    def operation_put(self, tenant_id: int, row: OperationRow) -> None:
        self._rows(
            "operation_put",
            tenant=tenant_id,
            id=_id_of(row.name),
            left_over=row.left,
            at=row.at,
            published=row.published,
            stopped_at=row.stopped_at,
            held=row.held,
            expires_at=row.expires_at,
        )
        self._operations[tenant_id, row.name] = row

    def operation_page(self, tenant_id: int, after: str, limit: int, *, stopped: bool) -> list[OperationRow]:
        above = _id_of(after) if after else _FIRST
        rows = self._rows(
            "operation_page", tenant=tenant_id, after=above, limit=limit, stopped=int(stopped), now=self.now_ms
        )
        return [_row(self._name(tenant_id, op, name), stored) for op, name, *stored in rows]

    def _name(self, tenant_id: int, op: int, stored: bytes) -> str:
        opened: bytes | None = self._opened(tenant_id, stored, "operation", op, instead=_BROKEN)
        return (opened or _BROKEN).decode()

    def operations_expire(self, now_ms: int, limit: int) -> int | None:
        self._rows("operations_expire", now=now_ms, limit=limit)
        found: int | None = self._one("operation_next_expiry")[0]
        return found

    def back_to(self, mark: Mark) -> None:
        super().back_to(mark)
        self._operations.clear()


def _row(name: str, stored: Sequence[Any]) -> OperationRow:
    left, at, published, stopped_at, held, expires_at = stored
    return OperationRow(name, left, at, published, stopped_at, bool(held), expires_at)


def _id_of(name: str) -> int:
    """What an operation is found by: of a name nothing shows in it."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
