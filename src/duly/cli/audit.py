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

_PAGE = 500
# In 80 columns all but the last are seen; what does not fit there is in --json.
_WIDTHS = {"at": 19, "who": 14, "action": 16, "outcome": 12, "more": None}


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
        header = True
        while page := [_row(entry) for entry in islice(chosen, _PAGE)]:
            session.show.page(_WIDTHS, page, header=header)
            header = False
        if header:
            session.show.remark("Nothing was done yet.")


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
    beside = {"topic": entry.topic, **entry.facts, "key": entry.key, "from": entry.address}
    more = ", ".join(f"{name}: {value}" for name, value in beside.items() if value not in ("", [], None))
    return document, (iso(entry.at)[:19], who or "-", entry.action, entry.outcome, more)
