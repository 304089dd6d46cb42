"""duly keys and duly principals: who may do what on a store, and what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import PrincipalNotFound
from ..grants import EVERY, Grant
from ..limits import DAY_MS
from .command import command, group
from .parse import duration
from .session import Session
from .text import age, iso

if TYPE_CHECKING:
    from ..client.client import Client
    from ..keys import Key, NewKey, Principal

app = group("Keys: what a principal shows to a broker.")
principals = group("Principals: named actors, and what they may do.")

# What the first operator may do: everything but look into tenants' topics.
_OPERATORS_GRANTS = (
    Grant("store"),
    Grant("tenants"),
    Grant("keys"),
    Grant("audit"),
    Grant("keys", tenants=EVERY),
    Grant("audit", tenants=EVERY),
)
_OPERATOR = "operator"

Operator = Annotated[bool, typer.Option("--operator", help="Of the store's operators, who belong to no tenant.")]
Name = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="The principal's name.", show_default=False)]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id, as listed.", show_default=False)]


def _grants_given(
    grant: Annotated[
        list[str] | None,
        typer.Option(metavar="ACTION[:TOPICS]", help="Allow this: publish, read:orders*, or *; repeat for more."),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(metavar="ACTION[:TOPICS]", help="Deny this, whatever else is allowed; repeat for more."),
    ] = None,
    own: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ACTION[:TOPICS]",
            help="Allow move or cancel for messages that the principal itself published; repeat for more.",
        ),
    ] = None,
    tenants: Annotated[
        str, typer.Option(metavar="PATTERN", help="Of an operator: the tenants in which these grants hold.")
    ] = "",
) -> tuple[Grant, ...]:
    """The grants on the line."""
    return (
        *(_grant(text, tenants=tenants) for text in grant or ()),
        *(_grant(text, tenants=tenants, effect="deny") for text in deny or ()),
        *(_grant(text, tenants=tenants, own=True) for text in own or ()),
    )


def _grant(text: str, **more: Any) -> Grant:
    action, colon, topics = text.partition(":")
    return Grant(action, topics if colon else EVERY, **more)


@command(
    app,
    "create",
    examples=[
        "duly keys create --operator --store app.duly",
        "duly keys create shop --grant publish:orders* --ttl 90d",
        "duly keys create worker --grant claim --grant settle --note 'host 7'",
    ],
    grants=_grants_given,
)
def create(
    session: Session,
    grants: tuple[Grant, ...],
    principal: Annotated[
        str | None, typer.Argument(metavar="PRINCIPAL", help="Whose; with --operator it may be left out.")
    ] = None,
    operator: Operator = False,
    ttl: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="When it ends by itself: 90d.")
    ] = None,
    note: Annotated[str, typer.Option(help="What it is for; shown in lists.")] = "",
) -> None:
    """Make a key and show it, once. A principal that is not there is made, with the grants that are given.

    The first key closes the store's brokers to everyone without one.
    """
    if principal is None and not operator:
        raise typer.BadParameter("Missing: duly keys create PRINCIPAL --grant ACTION", param_hint="PRINCIPAL")
    name = principal or _OPERATOR
    with session.client(create=operator) as client:
        if _is_new(client, name, operator=operator):
            if not grants and not operator:
                raise PrincipalNotFound(f"There is no principal {name!r}. Make it with its grants: --grant ACTION.")
            client.put_principal(name, grants or _OPERATORS_GRANTS, operator=operator, version=0)
        elif grants:
            raise typer.BadParameter(
                f"Principal {name!r} is there; change what it may do with: duly principals put {name} --grant ACTION",
                param_hint="--grant",
            )
        made = client.create_key(name, note=note, ttl=ttl, operator=operator)
    _say(session, made)


def _is_new(client: Client, name: str, *, operator: bool) -> bool:
    return all(one.name != name for one in client.list_principals(operator=operator))


def _say(session: Session, made: NewKey) -> None:
    ends = None if made.expires_at_ms is None else iso(made.expires_at_ms)
    document = {"id": made.id, "principal": made.principal, "secret": made.secret, "expires_at": ends}
    session.show.remark(
        f"Key {made.id} of {made.principal}, shown this once. Keep it where only its user can read it, and give it to "
        "clients as DULY_TOKEN or by a profile's token_file."
    )
    session.show.outcome(made.secret, document)


@command(app, "list", examples=["duly keys list", "duly keys list --principal shop --json"])
def list_keys(
    session: Session,
    principal: Annotated[str | None, typer.Option(metavar="PRINCIPAL", help="Of this one alone.")] = None,
    operator: Operator = False,
) -> None:
    """List keys, without their secrets; those that have ended, too."""
    with session.client() as client:
        found, now_ms = client.list_keys(principal, operator=operator), round(client.clock().now.timestamp() * 1000)
    columns = ("key", "principal", "note", "created", "ends", "last used", "state")
    rows = [(_key_document(key), _key_cells(key, now_ms)) for key in found]
    empty = _none("keys", "duly keys create PRINCIPAL --grant ACTION", operator=operator)
    session.show.rows(columns, rows, empty=empty)


def _none(what: str, make: str, *, operator: bool) -> str:
    """Whose there are none: who has just made an operator's key must not think that it is gone."""
    if operator:
        return f"No {what} of operators. Make one with: {make} --operator"
    return f"No {what} of this tenant. Make one with: {make}. Those of operators: --operator"


def _key_cells(key: Key, now_ms: int) -> tuple[str, ...]:
    state = "live" if key.is_live(now_ms) else "expired" if key.revoked_at_ms is None else "revoked"
    used = "never" if key.used_at_ms is None else f"{age(key.used_at_ms)} ago"
    ends = "" if key.expires_at_ms is None else iso(key.expires_at_ms)
    return (key.id, key.principal, key.note, f"{age(key.created_at_ms)} ago", ends, used, state)


def _key_document(key: Key) -> dict[str, Any]:
    moments = {
        "created_at": key.created_at_ms,
        "expires_at": key.expires_at_ms,
        "revoked_at": key.revoked_at_ms,
        "used_at": key.used_at_ms,
    }
    told = {name: None if moment is None else iso(moment) for name, moment in moments.items()}
    return {"id": key.id, "principal": key.principal, "note": key.note, **told}


@command(app, "rotate", examples=["duly keys rotate k3jq7zt2m5ab", "duly keys rotate k3jq7zt2m5ab --overlap 1h"])
def rotate(
    key: KeyId,
    session: Session,
    overlap: Annotated[
        float | None,
        typer.Option(
            parser=duration, metavar="DURATION", help="For how long the old one lives on: a day, if not said."
        ),
    ] = None,
    operator: Operator = False,
) -> None:
    """Make the next key of the same principal and show it, once; the old one ends after a while."""
    with session.client() as client:
        made = client.rotate_key(key, overlap=DAY_MS / 1000 if overlap is None else overlap, operator=operator)
    _say(session, made)


@command(app, "revoke", examples=["duly keys revoke k3jq7zt2m5ab"])
def revoke(key: KeyId, session: Session, operator: Operator = False) -> None:
    """End a key for good: every broker refuses it within five seconds."""
    with session.client() as client:
        client.revoke_key(key, operator=operator)
    session.show.outcome(f"Key {key} has ended.", {"id": key})


@command(
    principals,
    "put",
    examples=[
        "duly principals put shop --grant publish:orders* --grant read:orders*",
        "duly principals put support --grant browse --own cancel --deny '*:payroll*'",
    ],
    grants=_grants_given,
)
def put(
    name: Name,
    session: Session,
    grants: tuple[Grant, ...],
    certificate: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name in its client certificate; repeat for more."),
    ] = None,
    operator: Operator = False,
) -> None:
    """Make a principal, or replace its grants and certificates with what is given."""
    with session.client() as client:
        made = client.put_principal(name, grants, certificates=certificate or (), operator=operator)
    session.show.outcome(f"Principal {name!r} may now: {_grants_text(made) or 'nothing'}.", _principal_document(made))


@command(principals, "list", examples=["duly principals list", "duly principals list --operator --json"])
def list_principals(session: Session, operator: Operator = False) -> None:
    """List principals and what they may do."""
    with session.client() as client:
        found = client.list_principals(operator=operator)
    rows = [(_principal_document(one), (one.name, _grants_text(one), ", ".join(one.certificates))) for one in found]
    empty = _none("principals", "duly principals put NAME --grant ACTION", operator=operator)
    session.show.rows(("principal", "grants", "certificates"), rows, empty=empty)


@command(principals, "delete", examples=["duly principals delete shop"])
def delete(name: Name, session: Session, operator: Operator = False) -> None:
    """Remove a principal; its keys end with it."""
    with session.client() as client:
        client.delete_principal(name, operator=operator)
    session.show.outcome(f"Principal {name!r} is gone, and its keys with it.", {"principal": name})


def _grants_text(principal: Principal) -> str:
    return ", ".join(map(_grant_text, principal.grants))


def _grant_text(grant: Grant) -> str:
    topics = "" if grant.topics == EVERY else f":{grant.topics}"
    where = f" of tenants {grant.tenants}" if grant.tenants else ""
    denied, own = "not " if grant.effect == "deny" else "", "own " if grant.own else ""
    return f"{denied}{own}{grant.action}{topics}{where}"


def _principal_document(principal: Principal) -> dict[str, Any]:
    grants = [{name: getattr(grant, name) for name in grant.__struct_fields__} for grant in principal.grants]
    return {
        "principal": principal.name,
        "grants": grants,
        "certificates": list(principal.certificates),
        "version": principal.version,
        "created_at": iso(principal.created_at_ms),
    }
