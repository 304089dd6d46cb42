"""duly events: what happened, to a topic or to one message."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from ..events import Event
from .command import command
from .options import complete_topic
from .parse import since as since_moment
from .session import Session
from .text import iso

if TYPE_CHECKING:
    from .show import Row

app = typer.Typer()

_PAGE = 500
_WIDTHS = {"at": 24, "event": 16, "topic": 16, "group": 12, "partition": 9, "offset": 10, "messages": 8, "more": None}


@command(
    app,
    "events",
    examples=[
        "duly events",
        "duly events orders --since 1h --json",
        "duly events emails --message greeting",
        "duly events --alerts",
    ],
)
def events(
    session: Session,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="This topic alone; else all of them.", autocompletion=complete_topic),
    ] = None,
    message: Annotated[str | None, typer.Option("--message", metavar="ID", help="The history of one message.")] = None,
    since: Annotated[
        datetime | None,
        typer.Option(parser=since_moment, metavar="TIME", help="From an ISO time on, or of the last 30s, 5m, 2h, 7d."),
    ] = None,
    alerts: Annotated[bool, typer.Option("--alerts", help="Only what a person should hear of.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many; else all.")] = None,
) -> None:
    """Show what happened, in order, from published to acked or buried. It is kept for a week, or a gigabyte."""
    if message is not None and topic is None:
        raise typer.BadParameter("Ids are a topic's own: name its TOPIC too.", param_hint="'--message'")
    with session.client() as client:
        found = client.events(since=since, topic=topic, message=message)
        chosen = islice((event for event in found if event.alert or not alerts), limit)
        header = True
        for page in _pages(chosen):
            session.show.page(_WIDTHS, [_row(event) for event in page], header=header)
            header = False
        if header and topic is not None:
            # One that was deleted has events; one that never was is a mistake.
            client.describe_topic(topic)
        if header:
            session.show.remark("Nothing happened.")


def _pages(found: Iterator[Event]) -> Iterator[list[Event]]:
    while page := list(islice(found, _PAGE)):
        yield page


def _row(event: Event) -> Row:
    document = {
        "kind": event.kind,
        "at": iso(event.at),
        "topic": event.topic,
        "group": event.group,
        "partition": event.partition,
        "offset": event.offset,
        "count": event.count,
        "deltas": list(event.deltas),
        "lease": event.lease,
        "whole_lease": event.whole,
        "consumer": event.consumer,
        "facts": event.facts,
    }
    more = [f"{name}: {value}" for name, value in event.facts.items()]
    if event.consumer:
        more.insert(0, event.consumer)
    cells = (iso(event.at), event.kind, event.topic, event.group, event.partition, event.offset, event.count)
    return document, (*cells, ", ".join(more))
