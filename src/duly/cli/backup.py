"""duly backup, restore, pause, resume: the store as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .command import command
from .parse import size
from .session import Session
from .show import amount
from .text import age, human_size, iso

if TYPE_CHECKING:
    from ..store.contract import Backup
    from .show import Row

app = typer.Typer()

Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="The folder that holds the backups.", show_default=False)]


@command(
    app,
    "backup",
    examples=[
        "duly backup backups",
        "duly backup backups --keep 7 --rate 50MB",
        "duly backup backups --list",
        "duly backup backups --verify",
    ],
)
def backup(
    folder: Folder,
    session: Session,
    keep: Annotated[
        int | None, typer.Option(min=1, metavar="COUNT", help="Drop all but the newest so many afterwards.")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(parser=size, metavar="SIZE", help="Read no more than this a second: 50MB.")
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Take none; show what is there.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Take none; read and check all. Exits with 1 on damage.")] = (
        False
    ),
) -> None:
    """Copy the whole store, your own tables included, while everyone goes on.

    Backups in a folder share what did not change: give every store a folder of its own.
    """
    if list_them:
        _list(session, folder)
    elif verify:
        _verify(session, folder)
    else:
        _take(session, folder, keep, rate)


def _take(session: Session, folder: str, keep: int | None, rate: int | None) -> None:
    session.must_be_file("A backup is taken of the store's own file, on the machine where that is;")
    with session.client() as client, amount("Backing up") as on_progress:
        taken = client.backup(folder, keep=keep, rate=rate, on_progress=on_progress)
    sentence = f"Backup {taken.number} of {session.shown} is in {folder}: {human_size(taken.bytes)}"
    session.show.outcome(f"{sentence}, {human_size(taken.new_bytes)} of it new.", _document(taken))


def _list(session: Session, folder: str) -> None:
    from ..client.connect import list_backups

    columns = ("number", "age", "bytes", "new", "taken at", "incarnation", "duly")
    rows: list[Row] = [
        (
            _document(found),
            (
                str(found.number),
                age(found.taken_at_ms),
                human_size(found.bytes),
                human_size(found.new_bytes),
                iso(found.taken_at_ms),
                found.incarnation,
                found.duly,
            ),
        )
        for found in list_backups(folder)
    ]
    session.show.rows(columns, rows, empty=f"No backups yet. Take one with: duly backup {folder}")


def _verify(session: Session, folder: str) -> None:
    from ..client.connect import verify_backups

    findings = verify_backups(folder)
    rows: list[Row] = [
        ({"number": number, "level": found.level, "what": found.what}, (str(number), found.level, found.what))
        for number, found in findings
    ]
    session.show.rows(("number", "level", "what"), rows, empty=f"No backups yet. Take one with: duly backup {folder}")
    if any(found.level == "alert" for _, found in findings):
        raise typer.Exit(1)


@command(
    app,
    "restore",
    examples=["duly restore backups restored.duly", "duly restore backups restored.duly --number 1 --force"],
)
def restore(
    folder: Folder,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Where the store is to be.", show_default=False)],
    session: Session,
    number: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="Which backup.", show_default="the newest")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a store that is there; never one that is open.")
    ] = False,
) -> None:
    """Check a backup and put it in place. The store opens paused: look it over, then run duly resume."""
    # What the environment or a profile names is not meant: the path is on the line.
    if not session.named_by:
        session.must_be_file("A backup is restored to a file, on the machine where the broker will run;")
    from ..client.connect import restore as put_back

    with amount("Restoring") as on_progress:
        restored = put_back(folder, path, number=number, force=force, on_progress=on_progress)
    session.show.outcome(
        f"Backup {restored.number} of {iso(restored.taken_at_ms)} is at {path}: {human_size(restored.bytes)}. "
        f"It is paused; when it may work, run: duly resume --store {path}",
        {**_document(restored), "store": path, "paused": True},
    )


@command(app, "pause", examples=["duly pause"])
def pause(session: Session) -> None:
    """Stop all deliveries, of every topic and tenant. Publishing goes on; nothing is dropped by age."""
    with session.client() as client:
        client.pause_store()
    session.show.outcome(f"{session.shown} is paused.", {"store": session.shown, "paused": True})


@command(app, "resume", examples=["duly resume"])
def resume(session: Session) -> None:
    """Start deliveries again, after a pause or a restore."""
    with session.client() as client:
        client.resume_store()
    session.show.outcome(f"{session.shown} delivers again.", {"store": session.shown, "paused": False})


def _document(backup: Backup) -> dict[str, Any]:
    return {
        "number": backup.number,
        "taken_at": iso(backup.taken_at_ms),
        "bytes": backup.bytes,
        "new_bytes": backup.new_bytes,
        "pieces": len(backup.pieces),
        "incarnation": backup.incarnation,
        "schema": backup.schema,
        "duly": backup.duly,
    }
