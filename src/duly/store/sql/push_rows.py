"""The part of the store contract's transaction that holds pushes, and the brokers that run them.

Their settings are sealed where the tenant is encrypted. What they sign with, and the values of their headers, is sealed
in any case in which the store has a master key: by the tenant's data key, else by the store's own.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from ...engine.seal import Seal, bound_to, open_value
from ...engine.secrets import OWN, Shredded, known_own_seal, own_seal
from ...errors import CorruptBlock
from ...member import SEEN_MS_MAX, Member
from ..contract import HeldRow, PushRow, Transaction
from .secret_rows import SecretRows

# Ten thousand of them still add up to a number that SQLite can tell.
_STAMP_BITS = 40
_ONE = 1

_member = msgspec.json.Decoder(Member)


class PushRows(SecretRows):
    """The rows of pushes inside one transaction."""

    def push(self, tenant_id: int, name: str) -> PushRow | None:
        return self._push(self._one("push", tenant=tenant_id, name=name))

    def push_claim(self, tenant_id: int, name: str) -> PushRow | None:
        return self._push(self._one("push_claim", tenant=tenant_id, name=name))

    def push_page(self, tenant_id: int, after: str, limit: int) -> list[PushRow]:
        return self._pushes(self._rows("push_page", tenant=tenant_id, after=after, limit=limit))

    def pushes_of_topic(self, topic_id: int) -> list[PushRow]:
        return self._pushes(self._rows("pushes_of_topic", topic=topic_id))

    def pushes_to_topic(self, topic_id: int) -> list[PushRow]:
        return self._pushes(self._rows("pushes_to_topic", topic=topic_id))

    def push_insert(self, row: PushRow) -> bool:
        values = {
            "topic": row.topic_id,
            "grp": row.group_id,
            "state": row.state,
            "reason": row.reason,
            "created_at": row.created_at,
            **self._set(row),
        }
        return self._count("push_insert", **values) == _ONE

    def push_put(self, row: PushRow) -> None:
        self._rows("push_put", **self._set(row))

    def push_state(self, row: PushRow) -> None:
        self._rows(
            "push_state",
            tenant=row.tenant_id,
            name=row.name,
            state=row.state,
            reason=row.reason,
            version=row.version,
            target=row.target,
            stamp=_stamp(),
        )

    def push_delete(self, row: PushRow) -> None:
        self._rows("push_delete", tenant=row.tenant_id, name=row.name)

    def push_pulse(self) -> tuple[int, int]:
        count, stamps = self._one("push_pulse")
        return count, stamps

    def pushes_active(self) -> list[HeldRow]:
        return [HeldRow(*row) for row in self._rows("pushes_active")]

    def push_hold(self, tenant_id: int, name: str, holder: str | None) -> None:
        self._rows("push_hold", tenant=tenant_id, name=name, holder=holder, stamp=_stamp())

    def members_seen(self) -> list[Member]:
        rows = self._rows("members", since=self.now_ms - SEEN_MS_MAX)
        return [replace(_member.decode(facts), seen_at_ms=seen_at_ms) for seen_at_ms, facts in rows]

    def _set(self, row: PushRow) -> dict[str, Any]:
        settings = self._sealed(row.tenant_id, row.settings, "push", row.tenant_id, row.name)
        return {
            "tenant": row.tenant_id,
            "name": row.name,
            "settings": settings,
            "secrets": self._secrets_sealed(row),
            "version": row.version,
            "target": row.target,
            "stamp": _stamp(),
        }

    def _secrets_sealed(self, row: PushRow) -> bytes | None:
        if row.secrets is None:
            return None
        seal: Seal | None = self.sealing(row.tenant_id) or own_seal(cast("Transaction", self))
        return row.secrets if seal is None else seal.seal_value(row.secrets, _bound(row.tenant_id, row.name))

    def _pushes(self, rows: Iterable[Any]) -> list[PushRow]:
        # All of them first: what opens them asks the same connection.
        return [found for row in list(rows) if (found := self._push(row)) is not None]

    def _push(self, row: Any) -> PushRow | None:
        if row is None:
            return None
        found = PushRow(*row)
        return replace(
            found,
            settings=self._opened(found.tenant_id, found.settings, "push", found.tenant_id, found.name),
            secrets=self._secrets_opened(found),
        )

    def _secrets_opened(self, row: PushRow) -> bytes | None:
        try:
            opened: bytes | None = open_value(
                row.secrets, row.tenant_id, _bound(row.tenant_id, row.name), self._unseal_either
            )
        except (CorruptBlock, Shredded):
            return None
        return opened

    def _unseal_either(self, tenant_id: int, version: int) -> Seal:
        return known_own_seal(cast("Transaction", self)) if version == OWN else self.unseal(tenant_id, version)


def _bound(tenant_id: int, name: str) -> bytes:
    return bound_to("push secrets", tenant_id, name)


def _stamp() -> int:
    return secrets.randbits(_STAMP_BITS)
