"""duly read: a log by offset or time, without leases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ..limits import LIMITS
from ..message import StoredMessage
from ..topic import TopicDescription
from .command import command
from .following import until_ended
from .messages import READ_WIDTHS, stored_row
from .options import Topic
from .parse import moment
from .session import Session

if TYPE_CHECKING:
    from ..client.client import Client

PAGE_MESSAGES = 1000
_WAIT_S = LIMITS.wait_ms_max // 1000

app = typer.Typer()


@command(
    app,
    "read",
    examples=[
        "duly read orders",
        "duly read orders --partition 0 --offset 2 --limit 10 --json",
        "duly read orders --at 2026-01-31T12:00:00Z",
        "duly read orders --follow --limit 3",
    ],
)
def read(
    topic: Topic,
    session: Session,
    partition: Annotated[int | None, typer.Option(min=0, help="This partition alone; else all of them.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Begin here; else with the first there is.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option(parser=moment, metavar="TIME", help="Begin with what was published from an ISO time on, or now."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many; else all.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Wait for more at the end, until Ctrl-C.")] = False,
) -> None:
    """Read a log, partition by partition. Nothing is claimed and no group moves."""
    if offset is not None and at is not None:
        raise typer.BadParameter("Give --offset or --at, not both.", param_hint="read")
    with session.client() as client, until_ended() if follow else nullcontext():
        found = client.describe_topic(topic)
        if offset is not None and partition is None and len(found.partitions) > 1:
            raise typer.BadParameter("The topic has several partitions: add --partition.", param_hint="'--offset'")
        starts = _starts(client, found, offset, at)
        if partition is not None:
            starts = {partition: starts.get(partition, offset or 0)}
        header = True
        for page in _pages(client, found, starts, limit, follow):
            session.show.page(READ_WIDTHS, [stored_row(message) for message in page], header=header)
            header = False
        if header:
            session.show.remark("Nothing to read there.")


def _starts(client: Client, topic: TopicDescription, offset: int | None, at: datetime | None) -> dict[int, int]:
    """Where each partition begins."""
    if at is not None:
        return client.offset_at(topic.name, at)
    return {part.partition: part.first_offset if offset is None else offset for part in topic.partitions}


def _pages(
    client: Client, topic: TopicDescription, places: dict[int, int], limit: int | None, follow: bool
) -> Iterator[list[StoredMessage]]:
    """Pages until the end of what was there at the beginning; with `follow` without end."""
    ends = {part.partition: part.next_offset for part in topic.partitions}
    left = limit
    while True:
        for partition in places:
            while page := _page(client, topic.name, partition, places, None if follow else ends, left):
                yield page
                places[partition] = page[-1].offset + 1
                left = None if left is None else left - len(page)
        if not follow or left == 0:
            return
        client.await_messages(topic.name, places, wait=_WAIT_S)


def _page(
    client: Client,
    topic: str,
    partition: int,
    places: dict[int, int],
    ends: dict[int, int] | None,
    left: int | None,
) -> list[StoredMessage]:
    offset = places[partition]
    most = PAGE_MESSAGES if left is None else min(PAGE_MESSAGES, left)
    # A partition or an offset that is not there is the client's to refuse.
    if ends is not None and partition in ends and offset <= ends[partition]:
        most = min(most, ends[partition] - offset)
    return client.read(topic, partition=partition, offset=offset, max_messages=most) if most else []
