"""What of a tenant's settings is about encryption, and what follows when it is changed.

    plain ──encrypt──▶ encrypted ──encrypt=False──▶ plain again      (what was sealed stays so, and is read as before)
                           └──────shred──▶ shredded                  (nothing of it can be read; there is no way back)

From the moment on what is written is sealed. What was there lies as it is until it is written anew: runs of queues when
they are folded, messages when they are re-homed, the log when its retention drops it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import Error, NotFound
from ..store.contract import Transaction
from ..tenant import TenantSettings
from .secrets import STORE, new_data_key, rewrap, shred


class Encrypt(msgspec.Struct, frozen=True):
    """Seal what a tenant stores from now on, or do no longer."""

    tenant: str
    encrypt: bool = True


class Shred(msgspec.Struct, frozen=True):
    """Delete a tenant's data keys, for good."""

    tenant: str


class Rotate(msgspec.Struct, frozen=True):
    """Wrap all secrets under the master's current key; with `data_keys` give every encrypted tenant a new one, too."""

    tenant: str
    data_keys: bool = False


class Rotated(msgspec.Struct, frozen=True):
    """How many secrets were wrapped anew, and how many tenants have a new data key."""

    rewrapped: int
    renewed: int


def encrypt_tenants(tx: Transaction, commands: Sequence[Encrypt]) -> list[Exception | None]:
    """A verb: turns encryption on or off. Raises Sealed for want of a master key, or where it was shredded."""
    answers: list[Exception | None] = []
    for command in commands:
        try:
            set_encrypt(tx, _tenant(tx, command.tenant, make=True), encrypt=command.encrypt)
            answers.append(None)
        except Error as error:
            answers.append(error)
    return answers


def set_encrypt(tx: Transaction, tenant_id: int, *, encrypt: bool) -> None:
    """Puts the setting of a tenant that is there."""
    # Refused where it was shredded: nothing could be stored.
    tx.sealing(tenant_id)
    if encrypt:
        ready_to_seal(tx, tenant_id)
    settings = msgspec.json.decode(tx.tenant_settings(tenant_id), type=dict)
    settings.pop("encrypt", None)
    if encrypt:
        settings["encrypt"] = True
    tx.tenant_settings_put(tenant_id, msgspec.json.encode(settings).decode())


def ready_to_seal(tx: Transaction, tenant_id: int) -> None:
    """Sees to it that a tenant has a data key for what comes. Whoever writes its settings calls this first.

    One that was not encrypted until now gets a new one: from when that was made nothing of it lies in the clear.
    """
    if tx.sealing(tenant_id) is None:
        new_data_key(tx, tenant_id)


def shred_tenants(tx: Transaction, commands: Sequence[Shred]) -> list[Exception | None]:
    """A verb: shreds."""
    answers: list[Exception | None] = []
    for command in commands:
        try:
            shred(tx, _tenant(tx, command.tenant))
            answers.append(None)
        except Error as error:
            answers.append(error)
    return answers


def rotate(tx: Transaction, commands: Sequence[Rotate]) -> list[Rotated]:
    """A verb: rewraps, and renews if it is asked for."""
    return [Rotated(rewrap(tx), _renew(tx) if command.data_keys else 0) for command in commands]


def _renew(tx: Transaction) -> int:
    tenants = sorted({row.tenant_id for row in tx.secrets(None) if row.tenant_id != STORE and row.wrapped is not None})
    wanted = [tenant_id for tenant_id in tenants if tx.sealing(tenant_id) is not None]
    for tenant_id in wanted:
        new_data_key(tx, tenant_id)
    return len(wanted)


def _tenant(tx: Transaction, name: str, *, make: bool = False) -> int:
    found = tx.tenant_id(name)
    if found is None and make:
        return tx.tenant_insert(name, TenantSettings())
    if found is None:
        raise NotFound(f"There is no tenant {name!r}.")
    return found
