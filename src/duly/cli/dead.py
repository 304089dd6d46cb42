"""duly dead: list, show, redrive, purge the dead letters of a queue or of a log's group."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import MessageNotFound
from ..message import DeadLetter
from .command import command, group
from .documents import dead_document
from .messages import DEAD_COLUMNS, dead_row
from .options import GroupOption, Topic, topic_of, whose
from .session import Session
from .text import age, iso, payload_text, plural

if TYPE_CHECKING:
    from .show import Cell

app = group("Dead letters: messages that were given up, with why.")


@command(
    app,
    "list",
    examples=["duly dead list orders --group billing", "duly dead list emails --limit 10"],
)
def list_dead(
    topic: Topic,
    session: Session,
    group: GroupOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many; else all.")] = None,
) -> None:
    """List dead letters, oldest offset first."""
    with session.client() as client:
        topic_of(client, topic, group)
        rows = (dead_row(letter) for letter in client.dead(topic, group=group, limit=limit))
        session.show.rows(DEAD_COLUMNS, rows, empty=f"There are no dead letters of {whose(topic, group)}.")


@command(
    app,
    "show",
    examples=["duly dead show orders order-13 --group billing", "duly dead show emails receipt-7"],
)
def show_dead(
    topic: Topic,
    id: Annotated[str, typer.Argument(metavar="ID", help="The message's id, as the list shows it.")],
    session: Session,
    group: GroupOption = None,
) -> None:
    """Show one dead letter with the history of its attempts."""
    with session.client() as client:
        topic_of(client, topic, group)
        found = list(islice((letter for letter in client.dead(topic, group=group) if letter.id == id), 1))
    if not found:
        listed = topic if group is None else f"{topic} --group {group}"
        raise MessageNotFound(f"There is no dead letter {id!r} of {whose(topic, group)}. See: duly dead list {listed}")
    letter = found[0]
    session.show.facts(_facts(letter), dead_document(letter))
    history = [
        (str(failure.attempt), iso(failure.at_ms), failure.what, failure.reason, failure.consumer)
        for failure in letter.history
    ]
    session.show.part("History", ("attempt", "at", "what", "reason", "consumer"), history)


def _facts(letter: DeadLetter) -> dict[str, Cell]:
    message = letter.message
    return {
        "id": letter.id,
        "partition": message.partition,
        "offset": message.offset,
        "key": message.key or "none",
        "headers": ", ".join(f"{name}={value}" for name, value in message.headers.items()) or "none",
        "published": f"{age(message.published_at_ms)} ago",
        "buried": f"{age(letter.buried_at_ms)} ago",
        "attempts": letter.attempts,
        "reason": letter.reason,
        "payload": payload_text(letter.payload),
    }


@command(
    app,
    "redrive",
    examples=[
        "duly dead redrive orders --group billing",
        "duly dead redrive orders --group billing --id order-13 --id order-14",
        "duly dead redrive emails --rate 50 --limit 1000",
    ],
)
def redrive(
    topic: Topic,
    session: Session,
    group: GroupOption = None,
    ids: Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="This one; repeat for more.")] = None,
    rate: Annotated[float | None, typer.Option(help="So many a second; else all at once.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
) -> None:
    """Send dead letters back with fresh attempts: all, or some by id."""
    with session.client() as client:
        topic_of(client, topic, group)
        count = client.redrive(topic, group=group, ids=ids or None, rate=rate, limit=limit)
    session.show.outcome(
        f"Sent {plural(count)} back to {whose(topic, group)}.", {"topic": topic, "group": group, "redriven": count}
    )


@command(app, "purge", examples=["duly dead purge orders --group billing", "duly dead purge emails"])
def purge(topic: Topic, session: Session, group: GroupOption = None) -> None:
    """Drop dead letters for good."""
    with session.client() as client:
        topic_of(client, topic, group)
        count = client.purge(topic, group=group, dead=True)
    session.show.outcome(
        f"Dropped {plural(count, 'dead letter')} of {whose(topic, group)}.",
        {"topic": topic, "group": group, "purged": count},
    )
