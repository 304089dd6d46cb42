"""duly held and duly release: what consumers hold, and freeing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import NotFound
from ..topic import ConsumerDescription, GroupDescription
from .command import command
from .documents import consumer_document
from .options import GroupFilter, TopicFilter
from .session import Session
from .text import human_span, plural

if TYPE_CHECKING:
    from ..client.client import Client

app = typer.Typer()


def every_group(client: Client, topic: str) -> Iterator[GroupDescription]:
    """A topic's groups as they stand; one that is deleted meanwhile is passed over."""
    for group in client.describe_topic(topic).groups:
        with suppress(NotFound):
            yield client.describe_group(topic, group)


@command(app, "held", examples=["duly held --consumer worker-1", "duly held --topic orders --group billing --json"])
def held(
    session: Session,
    consumer: Annotated[str | None, typer.Option(help="This consumer alone; else all that hold something.")] = None,
    topic: TopicFilter = None,
    group: GroupFilter = None,
) -> None:
    """Show what consumers hold under leases. It only looks: nobody loses a lease."""
    columns = ("consumer", "topic", "group", "leases", "messages", "idle")
    with session.client() as client:
        topics = client.list_topics() if topic is None else [topic]
        rows = [
            (
                {**consumer_document(one), "topic": where.topic, "group": where.name},
                (one.name, where.topic, where.name, one.leases, one.messages, human_span(one.idle_ms / 1000)),
            )
            for where, one in _holders(client, topics, group, consumer)
        ]
    session.show.rows(columns, rows, empty=f"{consumer or 'Nobody'} holds {'nothing' if consumer else 'anything'}.")


def _holders(
    client: Client, topics: list[str], group: str | None, consumer: str | None
) -> Iterator[tuple[GroupDescription, ConsumerDescription]]:
    for topic in topics:
        described = every_group(client, topic) if group is None else [client.describe_group(topic, group)]
        for where in described:
            for one in where.consumers:
                if one.messages and consumer in (None, one.name):
                    yield where, one


@command(
    app,
    "release",
    examples=[
        "duly release --consumer worker-1",
        "duly release --consumer worker-1 --topic orders --group billing",
    ],
)
def release(
    session: Session,
    consumer: Annotated[str, typer.Option(help="The consumer, hung or gone.")],
    topic: TopicFilter = None,
    group: GroupFilter = None,
) -> None:
    """Free what a consumer holds, now. No attempt is counted; should it still run, its leases are lost."""
    with session.client() as client:
        count = client.release(consumer=consumer, topic=topic, group=group).done
    session.show.outcome(
        f"Released {plural(count)} of consumer {consumer!r}.", {"consumer": consumer, "released": count}
    )
