"""duly tenants: create, list, show, update, suspend, resume, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..tenant import QUOTAS, TenantDescription
from .command import command, group
from .options import ExistOk
from .parse import count_or_none, size_or_none
from .session import Session
from .settings import Given, given_of, must_change
from .text import age, human_size, iso, plural

if TYPE_CHECKING:
    from .show import Cell, Show

app = group("Tenants: who owns topics, with quotas.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant's name.", show_default=False)]


def _count(what: str) -> Any:
    return typer.Option(parser=count_or_none, metavar="COUNT", help=what)


def _size(what: str) -> Any:
    return typer.Option(parser=size_or_none, metavar="SIZE", help=what)


def _tenant_given(
    stored_bytes: Annotated[int | None, _size("What its messages may take: 10GB, or none.")] = None,
    publish_per_s: Annotated[int | None, _count("Messages published a second: 1000, or none.")] = None,
    publish_bytes_per_s: Annotated[int | None, _size("Bytes published a second: 10MB, or none.")] = None,
    claim_per_s: Annotated[int | None, _count("Messages claimed a second: 1000, or none.")] = None,
    topics: Annotated[int | None, _count("How many topics it may have, or none.")] = None,
    connections: Annotated[int | None, _count("How many calls it may have open at brokers, or none.")] = None,
    encrypt: Annotated[
        bool | None, typer.Option("--encrypt/--no-encrypt", help="Encrypt what is stored from now on.")
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(help="Its share where tenants compete, beside the 1 of the others.", show_default=False),
    ] = None,
) -> Given:
    return given_of(
        stored_bytes=stored_bytes,
        publish_per_s=publish_per_s,
        publish_bytes_per_s=publish_bytes_per_s,
        claim_per_s=claim_per_s,
        topics=topics,
        connections=connections,
        encrypt=encrypt,
        weight=weight,
    )


def tenant_document(tenant: TenantDescription) -> dict[str, Any]:
    """A tenant with its settings and what it has."""
    return {
        "tenant": tenant.name,
        "state": tenant.state,
        "version": tenant.version,
        "created_at": iso(tenant.created_at_ms),
        "topics": tenant.topics,
        "stored_bytes": tenant.stored_bytes,
        "settings": asdict(tenant.settings),
    }


@command(
    app,
    "create",
    examples=["duly tenants create acme", "duly tenants create globex --stored-bytes 10GB --publish-per-s 1000"],
    given=_tenant_given,
)
def create(name: Name, session: Session, given: Given, exist_ok: ExistOk = False) -> None:
    """Make a tenant, and the store's file if it is not there."""
    with session.client(create=True) as client:
        made = client.create_tenant(name, exist_ok=exist_ok, **given)
    session.show.outcome(f"Tenant {name!r} is there, in {session.shown}.", tenant_document(made))


@command(app, "list", examples=["duly tenants list", "duly tenants list --json"])
def list_tenants(session: Session) -> None:
    """List the tenants and what they have."""
    with session.client() as client:
        found = [client.describe_tenant(name) for name in client.list_tenants()]
    rows = [(tenant_document(one), (one.name, one.state, one.topics, human_size(one.stored_bytes))) for one in found]
    empty = "No tenants yet. Make one with: duly tenants create NAME"
    session.show.rows(("tenant", "state", "topics", "bytes"), rows, empty=empty)


@command(app, "show", examples=["duly tenants show default"])
def show_tenant(name: Name, session: Session) -> None:
    """Show a tenant's quotas and what it has."""
    with session.client() as client:
        found = client.describe_tenant(name)
    _show(session.show, found)


def _show(show: Show, tenant: TenantDescription) -> None:
    facts: dict[str, Cell] = {
        "tenant": tenant.name,
        "state": tenant.state,
        "topics": tenant.topics,
        "bytes": human_size(tenant.stored_bytes),
        "weight": f"{tenant.settings.weight:g}",
        "quotas": _quotas(tenant) or "none",
        "encrypted": "yes" if tenant.settings.encrypt else "no",
        "created": f"{age(tenant.created_at_ms)} ago",
        "version": tenant.version,
    }
    show.facts(facts, tenant_document(tenant))


def _quotas(tenant: TenantDescription) -> str:
    set_ = {name: getattr(tenant.settings, name) for name in QUOTAS}
    return ", ".join(f"{name} {value:,}" for name, value in set_.items() if value is not None)


@command(
    app,
    "update",
    examples=["duly tenants update default --topics 100 --claim-per-s none", "duly tenants update default --weight 2"],
    given=_tenant_given,
)
def update(name: Name, session: Session, given: Given) -> None:
    """Change quotas, encryption or the weight. What is not named stays; `none` takes a quota away."""
    must_change(given)
    with session.client() as client:
        after = client.update_tenant(name, **given)
    _show(session.show, after)


@command(app, "suspend", examples=["duly tenants suspend default"])
def suspend(name: Name, session: Session) -> None:
    """Refuse a tenant everything but to settle what it has leased."""
    with session.client() as client:
        after = client.suspend_tenant(name)
    session.show.outcome(f"Tenant {name!r} is suspended.", tenant_document(after))


@command(app, "resume", examples=["duly tenants resume default"])
def resume(name: Name, session: Session) -> None:
    """Let a suspended tenant go on."""
    with session.client() as client:
        after = client.resume_tenant(name)
    session.show.outcome(f"Tenant {name!r} goes on.", tenant_document(after))


@command(app, "delete", examples=["duly tenants delete default --force"])
def delete(
    name: Name,
    session: Session,
    force: Annotated[bool, typer.Option("--force", help="Also when it has topics.")] = False,
) -> None:
    """Remove a tenant for good: its keys at once, its data soon after."""
    with session.client() as client:
        topics = client.describe_tenant(name).topics
        client.delete_tenant(name, force=force)
    session.show.outcome(
        f"Tenant {name!r} is deleted, with {plural(topics, 'topic')}.", {"tenant": name, "deleted": True}
    )
