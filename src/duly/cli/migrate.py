"""duly migrate: a store moves from its file to PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .command import command
from .session import Session, warn_of_password
from .show import amount
from .text import human_size, plural

if TYPE_CHECKING:
    from ..client.moving import Migration

app = typer.Typer()


@command(
    app,
    "migrate",
    examples=[
        "duly migrate app.duly postgresql://app@db/shop",
        "duly migrate app.duly 'postgresql://app@db/shop?schema=queues'",
        "duly migrate app.duly postgresql://app@db/shop --verify",
    ],
)
def migrate(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The store's file.", show_default=False)],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DESTINATION",
            help="postgresql://host/database, with ?schema=NAME for another schema than duly.",
            show_default=False,
        ),
    ],
    session: Session,
    verify: Annotated[
        bool, typer.Option("--verify", help="Copy nothing; compare the two. Exits with 1 if they differ.")
    ] = False,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="End a move that was cut short: the file is the store again.")
    ] = False,
) -> None:
    """Move a store from its file to PostgreSQL: everything in it, leases under way included.

    Close every client of the file first. Cut short, by whatever, run it again: it goes on. The file stays, paused.
    """
    from ..client.connect import migrate as move

    warn_of_password(destination, as_json=session.as_json)
    label = "Comparing" if verify else "Moving"
    with amount(label) as on_progress:
        done = move(source, destination, verify=verify, give_up=give_up, on_progress=on_progress)
    if verify:
        _compared(session, done)
    elif give_up:
        session.show.outcome(f"{done.source} is the store again, and delivers.", _document(done))
    else:
        _moved(session, done)


def _moved(session: Session, done: Migration) -> None:
    mb = done.bytes / 1e6
    session.show.outcome(
        f"{done.source} has moved to {done.destination}: {plural(done.messages, 'message')}, "
        f"{plural(done.rows, 'row')}, compared one by one. {human_size(done.bytes)} in {done.seconds:.1f} s, "
        f"{mb / max(done.seconds, 0.001):.0f} MB/s. The file is paused.",
        _document(done),
    )
    _say_what_to_know(session, done)


def _compared(session: Session, done: Migration) -> None:
    if not done.differing:
        said = f"{done.source} and {done.destination} are the same: {plural(done.rows, 'row')}."
    else:
        said = (
            f"{done.source} and {done.destination} differ in {', '.join(done.differing)}. Has either been used since?"
        )
    session.show.outcome(said, _document(done))
    if done.differing:
        raise typer.Exit(1)


def _say_what_to_know(session: Session, done: Migration) -> None:
    if done.left_behind:
        names, stay = ", ".join(done.left_behind), "stays" if len(done.left_behind) == 1 else "stay"
        session.show.remark(f"Your own {names} {stay} in the file: move them yourself.")
    if done.clocks_apart:
        which, so = ("ahead of", "earlier") if done.clock_ahead_s > 0 else ("behind", "later")
        session.show.warn(
            f"PostgreSQL's clock is {abs(done.clock_ahead_s):.1f} s {which} the file's: what is due, and what leases "
            f"last, comes so much {so} than it would have."
        )


def _document(done: Migration) -> dict[str, Any]:
    return {
        "source": done.source,
        "destination": done.destination,
        "messages": done.messages,
        "rows": done.rows,
        "bytes": done.bytes,
        "seconds": round(done.seconds, 3),
        "resumed": done.resumed,
        "differing": list(done.differing),
        "left_behind": list(done.left_behind),
        "clock_ahead_s": round(done.clock_ahead_s, 3),
    }
