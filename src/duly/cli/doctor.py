"""duly doctor: what an examination of the store comes upon."""

from __future__ import annotations

from dataclasses import asdict

import typer

from .command import command
from .session import Session

app = typer.Typer()


@command(app, "doctor", examples=["duly doctor", "duly doctor --json"])
def doctor(session: Session) -> None:
    """Look the whole store over: integrity, checksums, clock, disk, settings. Exits with 1 on an alert."""
    with session.client() as client:
        findings = list(client.examine())
    rows = [(asdict(found), (found.level, found.what, found.meaning, found.advice)) for found in findings]
    session.show.rows(("level", "what", "meaning", "advice"), rows, empty="Nothing to report.")
    if any(found.level == "alert" for found in findings):
        raise typer.Exit(1)
