"""duly clock: the store's time beside the host's, and confirming a leap that the store refused."""

from __future__ import annotations

from typing import Annotated

import typer

from ..clock import ClockReading
from .command import command
from .session import Session
from .text import human_span, iso_of

app = typer.Typer()

_MEANING = {
    "together": "The store goes by the host's clock.",
    "behind": "The host's clock is behind. The store's time goes on by itself until the host's is there.",
    "refused": "The host's clock leapt ahead, and the store does not follow. If it is right: duly clock --accept",
}


@command(app, "clock", examples=["duly clock", "duly clock --accept"])
def clock(
    session: Session,
    accept: Annotated[
        bool, typer.Option("--accept", help="The host's time is right: take it, ahead or back, in every process.")
    ] = False,
) -> None:
    """Show the store's time beside the host's. Exits with 1 while a leap of the host's clock is refused."""
    with session.client() as client:
        before = client.clock()
        after = client.accept_clock() if accept else before
    if accept:
        session.show.outcome(_went(before), _document(after))
        return
    apart = human_span(round(abs((after.host - after.now).total_seconds())))
    facts = {"store": iso_of(after.now), "host": iso_of(after.host), "apart": apart, "state": _MEANING[after.state]}
    session.show.facts(facts, _document(after))
    if after.state == "refused":
        raise typer.Exit(1)


def _document(read: ClockReading) -> dict[str, object]:
    ahead = round((read.host - read.now).total_seconds(), 3)
    return {"store": iso_of(read.now), "host": iso_of(read.host), "host_ahead_s": ahead, "state": read.state}


def _went(before: ClockReading) -> str:
    """What accepting did to the store's time."""
    seconds = round((before.host - before.now).total_seconds())
    if before.state == "together":
        return "The store goes by the host's clock, as it did."
    if seconds > 0:
        return f"The store's time went {human_span(seconds)} ahead, to the host's."
    return (
        f"The store's time went {human_span(-seconds)} back, to the host's. "
        "Leases and retries from before wait that much longer."
    )
