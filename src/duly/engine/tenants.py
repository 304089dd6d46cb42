"""Tenants: create, update, suspend, resume, delete, list, describe (tenant.py draws how they stand).

What is set on a tenant travels with each of its topics (find.py), so that no publish looks it up: a change counts as
one of definitions, which makes everyone read them again.

A tenant that is deleted is so at once for everybody who asks. What it had goes by and by (erase.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ..errors import (
    InvalidArgument,
    StaleVersion,
    TenantExists,
    TenantNotEmpty,
    TenantNotFound,
)
from ..grants import NOBODY, By
from ..store.contract import TenantRow, Transaction
from ..tenant import ACTIVE, DELETING, OPERATORS, STATES, SUSPENDED, TenantDescription, TenantSettings, check_name
from .agenda import ERASE_TENANTS, schedule_store
from .audit import note_done
from .pause import EVERYONE
from .secrets import new_data_key, shred
from .tenant_settings import ready_to_seal


class OfTenant(msgspec.Struct, frozen=True):
    """A tenant by name; `tenant` is whose client asks."""

    tenant: str
    name: str


class DescribeTenant(OfTenant, frozen=True):
    """Ask how a tenant stands."""


class SuspendTenant(OfTenant, frozen=True):
    """Refuse a tenant everything but to settle what it has leased."""

    by: By = NOBODY


class ResumeTenant(OfTenant, frozen=True):
    """End a suspension."""

    by: By = NOBODY


class CreateTenant(msgspec.Struct, frozen=True):
    """A new tenant."""

    tenant: str
    name: str
    settings: TenantSettings
    exist_ok: bool
    by: By = NOBODY


class UpdateTenant(msgspec.Struct, frozen=True):
    """Changes to a tenant; `version` refuses to overwrite somebody else's change."""

    tenant: str
    name: str
    changes: Mapping[str, Any]
    version: int | None = None
    by: By = NOBODY


class DeleteTenant(msgspec.Struct, frozen=True):
    """A tenant to delete; `force` also when it has topics."""

    tenant: str
    name: str
    force: bool
    by: By = NOBODY


class ListTenants(msgspec.Struct, frozen=True):
    """A page of tenants, by name."""

    tenant: str
    after: str
    limit: int


def check_tenant(name: object) -> str:
    """A name that a tenant may have."""
    checked = check_name(name, "tenant name")
    if checked.startswith("$"):
        raise InvalidArgument("Tenant names that begin with '$' are Duly's own.")
    return checked


def create_tenant(tx: Transaction, command: CreateTenant) -> TenantDescription:
    """Makes a tenant. With `exist_ok` an equal one is left as it is."""
    check_tenant(command.name)
    row = tx.tenant_find(command.name)
    if row is None:
        tenant_id = tx.tenant_insert(command.name, command.settings)
        if command.settings.encrypt:
            # Its settings say so already: what follows would look for a key that is not there.
            new_data_key(tx, tenant_id)
        row = find_tenant(tx, command.name)
        note_done(tx, OPERATORS, command)
    elif row.state == DELETING:
        raise TenantExists(f"Tenant {command.name!r} is being deleted. Wait until it is gone, or use another name.")
    elif not command.exist_ok:
        raise TenantExists(f"Tenant {command.name!r} exists. Use update_tenant, or pass exist_ok=True.")
    elif row.settings != command.settings:
        raise TenantExists(f"Tenant {command.name!r} exists with other settings. Use update_tenant, or another name.")
    return describe(tx, row)


def find_tenant(tx: Transaction, name: str) -> TenantRow:
    """The tenant, or TenantNotFound."""
    row = tx.tenant_find(name)
    if row is None:
        raise TenantNotFound(f"There is no tenant {name!r}. Call create_tenant first.")
    return row


def check_tenant_is(tx: Transaction, name: str) -> None:
    """Raises TenantNotFound."""
    find_tenant(tx, name)


def update_tenant(tx: Transaction, command: UpdateTenant) -> TenantDescription:
    """Changes quotas, encryption and weight. Rates and weights are heeded by every broker within seconds."""
    row = _find_present(tx, command.name)
    if command.version is not None and command.version != row.version:
        raise StaleVersion(f"Tenant {row.name!r} is at version {row.version}, not {command.version}. Read it again.")
    settings = row.settings.changed(command.changes)
    if settings.encrypt != row.settings.encrypt:
        # Refused where it was shredded: nothing could be stored.
        tx.sealing(row.id)
        if settings.encrypt:
            ready_to_seal(tx, row.id)
    return _change(tx, command, replace(row, settings=settings))


def suspend_tenant(tx: Transaction, command: SuspendTenant) -> TenantDescription:
    """Refuses the tenant everything from now on but to settle what it has leased. Twice is no error."""
    return _change(tx, command, replace(_find_present(tx, command.name), state=SUSPENDED))


def resume_tenant(tx: Transaction, command: ResumeTenant) -> TenantDescription:
    """Lets the tenant go on. One that is not suspended stays as it is."""
    row = _find_present(tx, command.name)
    tx.schedules_wake(row.id)
    return _change(tx, command, replace(row, state=ACTIVE))


def _find_present(tx: Transaction, name: str) -> TenantRow:
    row = find_tenant(tx, name)
    if row.state == DELETING:
        raise TenantNotFound(f"Tenant {name!r} is being deleted.")
    return row


def _change(tx: Transaction, command: Any, row: TenantRow) -> TenantDescription:
    _put(tx, row)
    note_done(tx, OPERATORS, command)
    return describe(tx, find_tenant(tx, row.name))


def _put(tx: Transaction, row: TenantRow) -> None:
    """Topics are read again by everyone, who are woken for that: whoever waits may have nothing to wait for."""
    tx.tenant_update(row)
    tx.forget_topics(row.name)
    tx.aftermath.rings.update(EVERYONE)


def delete_tenant(tx: Transaction, command: DeleteTenant) -> None:
    """Removes a tenant for good. One that has topics is TenantNotEmpty, unless `force`."""
    row = _find_present(tx, command.name)
    topics = tx.topic_count(row.id)
    if topics and not command.force:
        raise TenantNotEmpty(f"Tenant {row.name!r} has {topics} topics. Delete them first, or delete with force=True.")
    tx.tenant_shut(row.id)
    if tx.secrets(row.id):
        shred(tx, row.id)
    _put(tx, replace(row, state=DELETING))
    schedule_store(tx, ERASE_TENANTS, tx.now_ms)
    note_done(tx, OPERATORS, command, topics=topics)


def list_tenants(tx: Transaction, command: ListTenants) -> list[str]:
    """Names of tenants after a name, in order."""
    return tx.tenant_list(command.after, command.limit)


def describe_tenant(tx: Transaction, command: DescribeTenant) -> TenantDescription:
    """A tenant as it stands."""
    return describe(tx, find_tenant(tx, command.name))


def describe(tx: Transaction, row: TenantRow) -> TenantDescription:
    """A tenant's definition with what it has, counted."""
    return TenantDescription(
        name=row.name,
        state=STATES[row.state],
        settings=row.settings,
        version=row.version,
        created_at_ms=row.created_at,
        topics=tx.topic_count(row.id),
        stored_bytes=tx.stored_bytes(row.id),
    )
