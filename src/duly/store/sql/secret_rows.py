"""The part of the store contract's transaction that holds secrets, wrapped, and knows which of them seals and opens.

A writer remembers both until a definition is changed, which making and shredding data keys is; a reader asks once.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...engine.lease import add_failure
from ...engine.memory import BlockCache, Memory
from ...engine.seal import Seal, bound_to, open_value
from ...engine.secrets import Keyring, Shredded
from ...errors import CorruptBlock, Sealed
from ...message import Failure
from ..contract import SecretRow
from .rows import Rows
from .stored import StoredBytes

# Goes on with what fails from now on: what is written next takes the place of what was broken.
BROKEN_HISTORY = add_failure(
    None, Failure(0, 0, "corrupt", "(the seal of what was before is broken: run `duly doctor`)", "")
)


def encrypts(settings: str) -> bool:
    """Whether a tenant's settings, as stored, say that what it stores is sealed."""
    return settings != "{}" and bool(msgspec.json.decode(settings).get("encrypt"))


class SecretRows(Rows):
    """The rows of secrets inside one transaction."""

    def __init__(
        self,
        *,
        now_ms: int,
        incarnation: str,
        memory: Memory | None,
        cache: BlockCache,
        stored: StoredBytes,
        keyring: Keyring,
    ) -> None:
        super().__init__(
            now_ms=now_ms, incarnation=incarnation, memory=memory, cache=cache, stored=stored, keyring=keyring
        )
        # A reader's, which remembers nothing beyond this.
        self._seals: dict[tuple[int, int], Seal] = {}

    def secret(self, tenant_id: int, version: int) -> SecretRow | None:
        row = self._one("secret", tenant=tenant_id, version=version)
        return None if row is None else SecretRow(*row)

    def secrets(self, tenant_id: int | None) -> list[SecretRow]:
        rows = self._rows("every_secret") if tenant_id is None else self._rows("secrets", tenant=tenant_id)
        return [SecretRow(*row) for row in rows]

    def secret_insert(self, tenant_id: int, version: int, wrapped: bytes | None) -> None:
        self._rows("definitions_changed")
        self._rows("secret_insert", tenant=tenant_id, version=version, wrapped=wrapped, now=self.now_ms)
        self.remember(("sealing", tenant_id), None)

    def secret_rewrap(self, row: SecretRow, wrapped: bytes) -> None:
        self._rows("secret_rewrap", tenant=row.tenant_id, version=row.version, wrapped=wrapped)

    def secret_shred(self, tenant_id: int) -> None:
        self._rows("definitions_changed")
        self.remember(("sealing", tenant_id), None)
        for row in self.secrets(tenant_id):
            self.remember(("unseal", tenant_id, row.version), None)
        self._rows("secret_shred", tenant=tenant_id)
        # What it was lies on in SQLite's log, which is copied and cut when space was freed.
        self.aftermath.freed = True
        # What was opened lies there in the clear.
        self._cache.clear()

    def tenant_settings(self, tenant_id: int) -> str:
        row = self._one("tenant_settings", tenant=tenant_id)
        return "{}" if row is None else str(row[0])

    def tenant_settings_put(self, tenant_id: int, settings: str) -> None:
        self._rows("definitions_changed")
        self._rows("tenant_settings_put", tenant=tenant_id, settings=settings)
        self.remember(("sealing", tenant_id), None)

    def sealing(self, tenant_id: int) -> Seal | None:
        key = ("sealing", tenant_id)
        # False: it is known that there is none.
        found: Any = self.recall(key)
        if found is None:
            found = self._sealing(tenant_id) or False
            self.remember(key, found)
        return found or None

    def _sealing(self, tenant_id: int) -> Seal | None:
        settings = self.tenant_settings(tenant_id)
        rows = self.secrets(tenant_id)
        if any(row.wrapped is None for row in rows):
            raise Shredded()
        if not encrypts(settings):
            return None
        if not rows:
            raise Sealed("The tenant's data key is missing from the store. Run `duly doctor`; restore a backup.")
        return self.unseal(tenant_id, rows[-1].version)

    def _sealed(self, tenant_id: int, content: bytes | None, *place: int | str) -> bytes | None:
        """A column's content as it is stored: sealed for its place, if the tenant is encrypted."""
        seal = None if content is None else self.sealing(tenant_id)
        return content if seal is None or content is None else seal.seal_value(content, bound_to(*place))

    def _opened(self, tenant_id: int, stored: Any, *place: int | str, instead: Any = None) -> Any:
        """What a column holds; `instead`, where its seal is broken: what stands beside it is served (see the doctor).

        None: it was shredded.
        """
        try:
            return open_value(stored, tenant_id, bound_to(*place), self.unseal)
        except CorruptBlock:
            return instead
        except Shredded:
            return None

    def unseal(self, tenant_id: int, version: int) -> Seal:
        key = ("unseal", tenant_id, version)
        seal: Seal | None = self.recall(key) or self._seals.get((tenant_id, version))
        if seal is None:
            row = self.secret(tenant_id, version)
            if row is None:
                raise Sealed(f"Version {version} of the tenant's data key is not in this store. Restore a backup.")
            seal = self.keyring.seal(row)
            self.remember(key, seal)
            self._seals[tenant_id, version] = seal
        return seal
