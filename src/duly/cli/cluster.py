"""duly cluster: the brokers that serve a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from ..member import Member
from .command import command
from .session import Session
from .text import age, iso

if TYPE_CHECKING:
    from .show import Row

app = typer.Typer()

_COLUMNS = ("broker", "url", "http", "version", "up for", "drift", "state")


@command(app, "cluster", examples=["duly cluster", "duly cluster --json"])
def cluster(session: Session) -> None:
    """Show the brokers that serve the store: where each is, how far its clock is off, whether it takes work.

    Of a store whose file is named those are listed that serve it now; of a broker, it and the others beside it.
    """
    with session.client() as client:
        members = client.cluster()
    session.show.rows(_COLUMNS, [_row(member) for member in members], empty="No broker serves this store.")
    reasons = [(member.name, member.reason) for member in members if not member.ready]
    session.show.part("Not ready", ("broker", "reason"), reasons)


def _row(member: Member) -> Row:
    cells = (
        member.name,
        member.url,
        member.http_url,
        member.version,
        age(member.started_at_ms),
        f"{member.drift_ms:+} ms",
        "ready" if member.ready else "not ready",
    )
    return _document(member), cells


def _document(member: Member) -> dict[str, Any]:
    return {
        "name": member.name,
        "url": member.url,
        "http_url": member.http_url,
        "version": member.version,
        "started_at": iso(member.started_at_ms),
        "seen_at": iso(member.seen_at_ms),
        "drift_ms": member.drift_ms,
        "ready": member.ready,
        "reason": member.reason,
    }
