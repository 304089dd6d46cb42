"""What was done to a store and what was refused, as values: who, from where, what, on what, and what became of it.

Every administrative action and every denied one is an entry of a chain (engine/chain.py): a tenant's own, or that of
the operators. An entry has no payloads and no secrets; a key is told by its id.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from .clock import from_ms

DONE = "done"


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """One thing that was done or refused. `outcome` is "done", or the code of the error that it was refused with.

    `tenant` is the principal's: "" of an operator, and of whoever had the store itself open ("embedded:NAME"). `number`
    counts the entries of the chain, from 1 on.
    """

    at: int
    action: str
    outcome: str = DONE
    tenant: str = ""
    principal: str = ""
    key: str = ""
    address: str = ""
    topic: str = ""
    facts: dict[str, Any] = {}
    number: int = 0

    @property
    def when(self) -> datetime:
        """When it happened, by the store's clock."""
        return from_ms(self.at)
