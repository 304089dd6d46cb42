"""duly stats and duly limits: how things stand, and how far they may go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from ..errors import NotFound
from ..limits import published
from ..topic import GroupDescription, TopicDescription
from .command import command
from .consumers import every_group
from .documents import group_document, topic_document
from .session import Session
from .text import human_size, human_span

if TYPE_CHECKING:
    from ..client.client import Client
    from .show import Cell, Row

app = typer.Typer()


@command(app, "stats", examples=["duly stats", "duly stats --json"])
def stats(session: Session) -> None:
    """Show every topic and group: depth, lag, bytes."""
    columns = (
        "topic",
        "kind",
        "messages",
        "bytes",
        "group",
        "lag",
        "leased",
        "retrying",
        "dead",
        "consumers",
        "state",
    )
    with session.client() as client:
        rows = [row for name in client.list_topics() for row in _rows(session, client, name)]
    session.show.rows(columns, rows, empty="No topics yet. Make one with: duly topics create NAME --kind log")


def _rows(session: Session, client: Client, name: str) -> Iterator[Row]:
    """A document a topic for programs; a line a group for people."""
    try:
        topic = client.describe_topic(name)
        groups = list(every_group(client, name))
    except NotFound:
        return
    document = {**topic_document(topic), "groups": [group_document(group) for group in groups]}
    if session.as_json:
        yield document, ()
        return
    if not groups:
        yield document, _cells(topic, None)
    for group in groups:
        yield document, _cells(topic, group)


def _cells(topic: TopicDescription, group: GroupDescription | None) -> tuple[Cell, ...]:
    paused = "paused" if topic.paused or (group is not None and group.paused) else "open"
    head: tuple[Cell, ...] = (topic.name, topic.kind, topic.messages, human_size(topic.bytes))
    if group is None:
        return (*head, "", 0, 0, 0, 0, 0, paused)
    counts = (group.lag, group.leased, group.retrying, group.dead, len(group.consumers))
    return (*head, group.name, *counts, paused)


@command(app, "limits", examples=["duly limits"])
def limits(session: Session) -> None:
    """Show the hard limits."""
    found = published()
    session.show.facts({name: _limit(name, value) for name, value in found.items()}, found)


def _limit(name: str, value: int) -> str:
    words = name.split("_")
    if "bytes" in words:
        return human_size(value)
    return human_span(value / 1000) if "ms" in words else f"{value:,}"
