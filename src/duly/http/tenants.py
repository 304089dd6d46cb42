"""Tenants: make, list, describe, change, suspend and delete them, an operator's; and what was done and denied."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict as fields_of

from ..audit import AuditEntry
from ..clock import from_ms
from ..engine.audit import ListAudit
from ..engine.tenants import (
    CreateTenant,
    DeleteTenant,
    DescribeTenant,
    ListTenants,
    ResumeTenant,
    SuspendTenant,
    UpdateTenant,
)
from ..tenant import WEIGHT_MAX, WEIGHT_MIN, TenantDescription
from .endpoint import Call, endpoint
from .fields import WHOLE_MAX, Limit, Moment, Name, Next
from .reply import Reply
from .tokens import cursor, read_cursor
from .topics import DeleteQuery, PageQuery, version_of

_FOUND = ("tenant_not_found", "invalid_argument")
_ETAG = {"ETag": "The tenant's version: send it back as If-Match to change only what you have seen."}
_Quota = Annotated[int, Meta(ge=1, le=WHOLE_MAX)] | None


class Quotas(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What may be set on a tenant. null: as much as there is. What is left out takes its default, or stays as it is."""

    stored_bytes: _Quota | UnsetType = UNSET
    publish_per_s: _Quota | UnsetType = UNSET
    publish_bytes_per_s: _Quota | UnsetType = UNSET
    claim_per_s: _Quota | UnsetType = UNSET
    topics: _Quota | UnsetType = UNSET
    connections: _Quota | UnsetType = UNSET
    encrypt: bool | UnsetType = UNSET
    weight: Annotated[float, Meta(ge=WEIGHT_MIN, le=WEIGHT_MAX)] | UnsetType = UNSET


class NewTenant(Quotas, forbid_unknown_fields=True, kw_only=True):
    """A tenant to be made. With `exist_ok` an equal one is left as it is."""

    name: Name
    exist_ok: bool = False


class Tenant(msgspec.Struct, kw_only=True):
    """A tenant as it stands, with how many topics it has and what their messages take."""

    name: str
    state: Literal["active", "suspended", "deleting"]
    settings: Quotas
    version: int
    created_at_ms: int
    topics: int
    stored_bytes: int


class TenantPage(msgspec.Struct):
    """Names of tenants, in order. `next` leads to the next page; null: there is none."""

    tenants: list[str]
    next: str | None


def _given(wanted: Quotas) -> dict[str, Any]:
    known = Quotas.__struct_fields__
    return {name: value for name, value in fields_of(wanted).items() if name in known and value is not UNSET}


def _described(known: TenantDescription, status: int = 200, **headers: str) -> Reply:
    state: Any = known.state
    tenant = Tenant(
        name=known.name,
        state=state,
        settings=Quotas(**asdict(known.settings)),
        version=known.version,
        created_at_ms=known.created_at_ms,
        topics=known.topics,
        stored_bytes=known.stored_bytes,
    )
    return Reply.of(tenant, status, {"etag": f'"{known.version}"', **headers})


@endpoint(
    "POST",
    "/v1/tenants",
    tag="tenants",
    does=(CreateTenant,),
    body=NewTenant,
    answer=Tenant,
    status=201,
    refuses=("tenant_exists", "invalid_argument", "limit_exceeded"),
    gives_headers={**_ETAG, "Location": "The tenant's path."},
)
def create_tenant(call: Call) -> Reply:
    """Make a tenant."""
    wanted: NewTenant = call.body
    made = call.client.create_tenant(wanted.name, exist_ok=wanted.exist_ok, **_given(wanted))
    return _described(made, 201, location=f"/v1/tenants/{quote(made.name, safe='')}")


@endpoint("GET", "/v1/tenants", tag="tenants", does=(ListTenants,), query=PageQuery, answer=TenantPage)
def list_tenants(call: Call) -> TenantPage:
    """List tenants by name."""
    after = "" if call.query.next is None else read_cursor(call.query.next, str)
    found = call.client.list_tenants(after=after, limit=call.query.limit)
    return TenantPage(found, cursor(found[-1]) if len(found) == call.query.limit else None)


@endpoint(
    "GET",
    "/v1/tenants/{name}",
    tag="tenants",
    does=(DescribeTenant,),
    answer=Tenant,
    refuses=_FOUND,
    gives_headers=_ETAG,
)
def describe_tenant(call: Call) -> Reply:
    """Describe a tenant: its quotas, and how much it has."""
    return _described(call.client.describe_tenant(call.path["name"]))


@endpoint(
    "PATCH",
    "/v1/tenants/{name}",
    tag="tenants",
    does=(UpdateTenant,),
    body=Quotas,
    answer=Tenant,
    refuses=(*_FOUND, "limit_exceeded", "stale_version"),
    takes_headers={"If-Match": "The ETag of the version to change; another one is refused with 412."},
    gives_headers=_ETAG,
)
def update_tenant(call: Call) -> Reply:
    """Change a tenant's quotas, its encryption or its weight. What is left out stays."""
    changes = _given(call.body)
    return _described(call.client.update_tenant(call.path["name"], version=version_of(call), **changes))


@endpoint("POST", "/v1/tenants/{name}/suspend", tag="tenants", does=(SuspendTenant,), answer=Tenant, refuses=_FOUND)
def suspend_tenant(call: Call) -> Reply:
    """Refuse a tenant everything but to settle what it has leased."""
    return _described(call.client.suspend_tenant(call.path["name"]))


@endpoint("POST", "/v1/tenants/{name}/resume", tag="tenants", does=(ResumeTenant,), answer=Tenant, refuses=_FOUND)
def resume_tenant(call: Call) -> Reply:
    """Let a suspended tenant go on."""
    return _described(call.client.resume_tenant(call.path["name"]))


@endpoint(
    "DELETE",
    "/v1/tenants/{name}",
    tag="tenants",
    does=(DeleteTenant,),
    query=DeleteQuery,
    status=204,
    refuses=(*_FOUND, "tenant_not_empty"),
)
def delete_tenant(call: Call) -> None:
    """Delete a tenant for good: its keys at once, its data soon after. One with topics is refused, unless `force`."""
    call.client.delete_tenant(call.path["name"], force=call.query.force)


class Entry(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Something that was done, or refused to somebody. `outcome` is "done", or the code of the refusal.

    `tenant` is the principal's: left out of an operator, and of whoever had the store itself open ("embedded:NAME").
    """

    number: int
    at_ms: int
    action: str
    outcome: str
    tenant: str = ""
    principal: str = ""
    key: str = ""
    address: str = ""
    topic: str = ""
    facts: dict[str, Any] = {}

    @classmethod
    def of(cls, entry: AuditEntry) -> Entry:
        facts = fields_of(entry)
        return cls(at_ms=facts.pop("at"), **facts)


class AuditPage(msgspec.Struct):
    """Entries in order. `next` leads to those that come after; null: there are none yet."""

    entries: list[Entry]
    next: str | None


class AuditQuery(msgspec.Struct, forbid_unknown_fields=True):
    operators: Annotated[bool, Meta(description="What was done to the store as a whole, by its operators.")] = False
    since_ms: Moment | None = None
    limit: Limit = 1000
    next: Next | None = None


@endpoint("GET", "/v1/audit", tag="tenants", does=(ListAudit,), query=AuditQuery, answer=AuditPage)
def audit(call: Call) -> AuditPage:
    """What was done and what was denied, in order. The doctor says whether anybody has tampered with it."""
    asked: AuditQuery = call.query
    above = 0 if asked.next is None else read_cursor(asked.next, int)
    since = None if asked.since_ms is None else from_ms(asked.since_ms)
    found = list(call.client.audit(operators=asked.operators, after=above, since=since, limit=asked.limit))
    entries = [Entry.of(entry) for entry in found]
    return AuditPage(entries, cursor(found[-1].number) if len(found) == asked.limit else None)
