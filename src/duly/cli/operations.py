"""duly operations: list, resume, stop."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from ..causal import Operation
from .command import command, group
from .session import Session
from .text import age, iso

app = group("Operations: what comes of one message, and may publish only so much.")

Name = Annotated[str, typer.Argument(metavar="OPERATION", help="The operation, as list shows it.", show_default=False)]


def operation_document(operation: Operation) -> dict[str, Any]:
    """An operation as it stands."""
    since = operation.stopped_at_ms
    facts = {name: value for name, value in asdict(operation).items() if name not in ("id", "stopped_at_ms")}
    return {"operation": operation.id, **facts, "stopped_at": None if since is None else iso(since)}


@command(app, "list", examples=["duly operations list", "duly operations list --stopped --json"])
def list_operations(
    session: Session,
    stopped: Annotated[bool, typer.Option("--stopped", help="Only those that are stopped.")] = False,
) -> None:
    """List operations that have published lately, those that are stopped first."""
    with session.client() as client:
        found = client.operations(stopped=stopped)
    found.sort(key=lambda one: (one.stopped_at_ms is None, -one.published))
    rows = [(operation_document(one), (one.id, one.published, one.left, _standing(one))) for one in found]
    empty = "No operation is stopped." if stopped else "No operation has published lately."
    session.show.rows(("operation", "published", "left", "standing"), rows, empty=empty)


def _standing(operation: Operation) -> str:
    if operation.stopped_at_ms is None:
        return "publishes"
    return f"stopped{' by hand' if operation.held else ''} {age(operation.stopped_at_ms)} ago"


@command(
    app, "resume", examples=["duly operations resume orders@12-345", "duly operations resume import --messages 50000"]
)
def resume(
    name: Name,
    session: Session,
    messages: Annotated[
        int | None, typer.Option(metavar="COUNT", min=1, help="How many it may publish at once.", show_default=False)
    ] = None,
) -> None:
    """Let a stopped operation go on: with so many messages, or as many as each has at first."""
    with session.client() as client:
        after = client.resume_operation(name, messages=messages)
    session.show.outcome(f"Operation {name!r} goes on, with {after.left:,} messages.", operation_document(after))


@command(app, "stop", examples=["duly operations stop orders@12-345"])
def stop(name: Name, session: Session) -> None:
    """Let an operation publish nothing before it is resumed."""
    with session.client() as client:
        after = client.stop_operation(name)
    session.show.outcome(f"Operation {name!r} is stopped.", operation_document(after))
