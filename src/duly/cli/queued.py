"""duly move, cancel, get, browse, coming: a queue's messages by id, and what is ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..clock import moment_ms
from ..errors import MessageNotFound
from ..limits import LIMITS
from ..message import QueuedMessage
from .command import command
from .documents import queued_document
from .messages import BROWSE_WIDTHS, queued_row
from .moments import due, say_due
from .options import Topic
from .parse import moment, priorities
from .session import Session
from .text import age, iso, iso_of, payload_text, plural, until

if TYPE_CHECKING:
    from ..client.client import Client
    from .show import Cell

PAGE_MESSAGES = 1000

app = typer.Typer()

Ids = Annotated[list[str], typer.Argument(metavar="ID", help="The message's id; several may be given.")]


class State(StrEnum):
    """Where a queued message can stand."""

    ready = "ready"
    waiting = "waiting"
    retrying = "retrying"
    leased = "leased"
    dead = "dead"


@command(
    app,
    "move",
    examples=[
        "duly move emails welcome-42 --due 2h",
        "duly move emails welcome-42 --due 'monday 8:00'",
        "duly move emails welcome-42 welcome-43 --due 2027-01-31T12:00:00Z --priority 0",
    ],
)
def move(
    topic: Topic,
    ids: Ids,
    session: Session,
    due: Annotated[
        Any, typer.Option(parser=due, metavar="TIME", help="When it is due: now, 2h, 'tomorrow 9:00', an ISO time.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(min=0, max=LIMITS.priority_max, help="The smallest is delivered first.")
    ] = None,
) -> None:
    """Give queued messages another due time or priority. Exits with 1 if one of them could not be moved."""
    if due is None and priority is None:
        raise typer.BadParameter("Move to another --due or --priority.", param_hint="move")
    say_due(session, due)
    with session.client() as client:
        answers = client.move(topic, ids, due=due, priority=priority)
    _show_answers(session, topic, ids, answers, done=("moved",))


@command(app, "cancel", examples=["duly cancel emails welcome-42", "duly cancel emails welcome-42 welcome-43 --json"])
def cancel(topic: Topic, ids: Ids, session: Session) -> None:
    """Remove queued messages. Exits with 1 if one of them was not there.

    A leased one is with a consumer: it is done if that acks it, and gone otherwise.
    """
    with session.client() as client:
        answers = client.cancel(topic, ids)
    _show_answers(session, topic, ids, answers, done=("cancelled", "leased"))


def _show_answers(
    session: Session, topic: str, ids: list[str], answers: Mapping[str, str], *, done: tuple[str, ...]
) -> None:
    rows = [({"topic": topic, "id": id, "outcome": answers[id]}, (id, answers[id])) for id in dict.fromkeys(ids)]
    session.show.rows(("id", "outcome"), rows, empty="")
    if any(answer not in done for answer in answers.values()):
        raise typer.Exit(1)


@command(app, "get", examples=["duly get emails welcome-42", "duly get emails welcome-42 --json"])
def get(
    topic: Topic,
    id: Annotated[str, typer.Argument(metavar="ID", help="The message's id.")],
    session: Session,
) -> None:
    """Show one message of a queue: where it stands, and the history of its attempts."""
    with session.client() as client:
        found = client.get(topic, id)
    if found is None:
        raise MessageNotFound(f"Topic {topic!r} has no message {id!r}. See: duly browse {topic}")
    session.show.facts(_facts(found), queued_document(found))
    history = [
        (str(failure.attempt), iso(failure.at_ms), failure.what, failure.reason, failure.consumer)
        for failure in found.history
    ]
    session.show.part("History", ("attempt", "at", "what", "reason", "consumer"), history)


def _facts(message: QueuedMessage) -> dict[str, Cell]:
    facts: dict[str, Cell] = {
        "id": message.id,
        "state": f"{message.state}, cancelled" if message.cancelled else message.state,
        "partition": message.partition,
        "offset": message.offset,
    }
    if message.payload is None:
        return facts
    facts |= {
        "lane": message.lane or "none",
        "priority": message.priority,
        "due": _moment(message.due_at_ms),
        "expires": _moment(message.expires_at_ms),
        "published": "" if message.published_at_ms is None else f"{age(message.published_at_ms)} ago",
        "attempts": message.attempts,
        "key": message.key or "none",
        "headers": ", ".join(f"{name}={value}" for name, value in message.headers.items()) or "none",
    }
    if message.consumer is not None:
        facts |= {"consumer": message.consumer, "lease ends": _moment(message.lease_expires_at_ms)}
    return facts | {"payload": payload_text(message.payload)}


def _moment(at_ms: int | None) -> str:
    return "none" if at_ms is None else f"{iso(at_ms)}, {until(at_ms)}"


@command(
    app,
    "browse",
    examples=[
        "duly browse emails",
        "duly browse emails --state waiting --lane acme --priority 0-9 --limit 10",
        "duly browse emails --due-from now --due-before 2027-01-31T12:00:00Z --json",
    ],
)
def browse(
    topic: Topic,
    session: Session,
    state: Annotated[
        State | None,
        typer.Option(metavar="STATE", help="Only those: ready, waiting, retrying, leased or dead."),
    ] = None,
    lane: Annotated[str | None, typer.Option(help="Of this lane alone.")] = None,
    priority: Annotated[
        Any, typer.Option(parser=priorities, metavar="LOW[-HIGH]", help="Of this priority, or from 0-9.")
    ] = None,
    due_from: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="TIME", help="Due from an ISO time on, or now.")
    ] = None,
    due_before: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="TIME", help="Due before an ISO time, or now.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Of this key alone.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
) -> None:
    """Look at a queue's messages, oldest first. Nothing is claimed."""
    filters = {
        "state": None if state is None else str(state),
        "lane": lane,
        "priority": priority,
        "due_from": due_from,
        "due_before": due_before,
        "key": key,
    }
    shown = 0
    with session.client() as client:
        for page in _pages(client, topic, filters, limit):
            session.show.page(BROWSE_WIDTHS, [queued_row(message) for message in page], header=shown == 0)
            shown += len(page)
    if shown == 0:
        session.show.remark(f"No such messages in {topic!r}.")
    elif shown == limit:
        session.show.remark(f"Shown are {plural(shown)}; there may be more: --limit.")


def _pages(client: Client, topic: str, filters: Mapping[str, Any], limit: int) -> Iterator[list[QueuedMessage]]:
    after, left = (0, -1), limit
    while left:
        page = client.browse(topic, **filters, after=after, limit=min(left, PAGE_MESSAGES))
        if not page:
            return
        yield page
        after, left = page[-1].place, left - len(page)


@command(app, "coming", examples=["duly coming emails", "duly coming emails --minutes 1440 --json"])
def coming(
    topic: Topic,
    session: Session,
    minutes: Annotated[int, typer.Option(min=1, max=LIMITS.page_max, help="How far to look ahead.")] = 60,
) -> None:
    """Show how many messages of a queue fall due in each of the next minutes. Empty ones are left out, save in JSON."""
    with session.client() as client:
        found = client.coming(topic, minutes=minutes)
    rows = [
        ({"minute": iso_of(at), "messages": count}, (iso_of(at), until(moment_ms(at, "minute")), count))
        for at, count in found
        if count or session.as_json
    ]
    session.show.rows(
        ("minute", "begins", "messages"), rows, empty=f"Nothing falls due in the next {plural(minutes, 'minute')}."
    )
