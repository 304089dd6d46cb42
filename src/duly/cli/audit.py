"""duly audit: what was done and what was denied."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from ..audit import DONE, AuditEntry
from .command import command
from .parse import since as since_moment
from .session import Session
from .text import iso

if TYPE_CHECKING:
    from .show import Row

app = typer.Typer()

_COLUMNS = ("number", "at", "who", "key", "from", "action", "topic", "outcome", "more")


@command(
    app,
    "audit",
    examples=["duly audit", "duly audit --operators --since 7d", "duly audit --denied --json"],
)
def audit(
    session: Session,
    operators: Annotated[bool, typer.Option("--operators", help="What was done to the store as a whole.")] = False,
    since: Annotated[
        datetime | None,
        typer.Option(parser=since_moment, metavar="TIME", help="From an ISO time on, or of the last 30s, 5m, 2h, 7d."),
    ] = None,
    denied: Annotated[bool, typer.Option("--denied", help="Only what was denied.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many; else all.")] = None,
) -> None:
    """Show what was done and what was denied, in order. `duly doctor` verifies that nobody has tampered with it."""
    with session.client() as client:
        found = client.audit(operators=operators, since=since)
        chosen = islice((entry for entry in found if entry.outcome != DONE or not denied), limit)
        session.show.rows(_COLUMNS, map(_row, chosen), empty="Nothing was done yet.")


def _row(entry: AuditEntry) -> Row:
    document = {
        "number": entry.number,
        "at": iso(entry.at),
        "tenant": entry.tenant,
        "principal": entry.principal,
        "key": entry.key,
        "address": entry.address,
        "action": entry.action,
        "topic": entry.topic,
        "outcome": entry.outcome,
        "facts": entry.facts,
    }
    who = f"{entry.tenant}/{entry.principal}" if entry.tenant else entry.principal
    more = ", ".join(f"{name}: {value}" for name, value in entry.facts.items())
    cells = (entry.number, iso(entry.at), who, entry.key, entry.address, entry.action, entry.topic, entry.outcome, more)
    return document, cells
