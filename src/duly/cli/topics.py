"""duly topics: create, list, show, update, delete, pause, resume, purge."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..backoff import RetryPolicy
from ..topic import Breaker, Health, Lanes, TopicDescription, TopicSettings
from .command import command, group
from .documents import topic_document
from .options import ExistOk, NewTopic, Topic
from .session import Session
from .settings import Given, merged, must_change, topic_given
from .text import age, human_size, human_span, plural

if TYPE_CHECKING:
    from .show import Cell, Show

app = group("Topics: where messages go.")


class Kind(StrEnum):
    """What a topic can be."""

    log = "log"
    queue = "queue"


@command(
    app,
    "create",
    examples=[
        "duly topics create orders --kind log",
        "duly topics create audit --kind log --partitions 4 --lease 1m --retention-bytes 1GB",
        "duly topics create emails --kind queue --dedupe 1h --lane-weight acme=3",
    ],
    given=topic_given,
)
def create(
    topic: NewTopic,
    kind: Annotated[Kind, typer.Option(help="A log keeps order for many groups; a queue delivers when due.")],
    session: Session,
    given: Given,
    partitions: Annotated[int, typer.Option(help="Into how many parts its order is split.")] = 1,
    exist_ok: ExistOk = False,
) -> None:
    """Make a topic, and the store's file if it is not there."""
    wanted = merged(given, retry=RetryPolicy(), retention=TopicSettings(str(kind)).kept)
    with session.client(create=True) as client:
        made = client.create_topic(topic, kind=str(kind), exist_ok=exist_ok, partitions=partitions, **wanted)
    session.show.outcome(f"Topic {topic!r} is there: a {made.kind} in {session.shown}.", topic_document(made))


@command(app, "list", examples=["duly topics list", "duly topics list --json"])
def list_topics(session: Session) -> None:
    """List the topics and what they hold."""
    columns = ("topic", "kind", "partitions", "messages", "bytes", "groups", "state")
    with session.client() as client:
        found = [client.describe_topic(name) for name in client.list_topics()]
    rows = [(topic_document(topic), _cells(topic)) for topic in found]
    session.show.rows(columns, rows, empty="No topics yet. Make one with: duly topics create NAME --kind log")


def _cells(topic: TopicDescription) -> tuple[Cell, ...]:
    return (
        topic.name,
        topic.kind,
        len(topic.partitions),
        topic.messages,
        human_size(topic.bytes),
        len(topic.groups),
        _state(topic),
    )


@command(app, "show", examples=["duly topics show orders"])
def show_topic(topic: Topic, session: Session) -> None:
    """Show a topic's settings and partitions."""
    with session.client() as client:
        found = client.describe_topic(topic)
    _show_topic(session.show, found)


def _show_topic(show: Show, topic: TopicDescription) -> None:
    show.facts(_facts(topic), topic_document(topic))
    columns = ("partition", "first offset", "next offset", "messages", "bytes", "blocks")
    parts = topic.partitions
    cells = [
        (
            str(part.partition),
            part.first_offset,
            part.next_offset,
            part.messages,
            human_size(part.bytes),
            part.blocks,
        )
        for part in parts
    ]
    show.part("Partitions", columns, cells)


def _facts(topic: TopicDescription) -> dict[str, Cell]:
    settings = topic.settings
    facts: dict[str, Cell] = {
        "topic": topic.name,
        "kind": topic.kind,
        "state": _state(topic),
        "messages": topic.messages,
        "bytes": human_size(topic.bytes),
        "groups": ", ".join(topic.groups) or "none",
        "lease": human_span(settings.lease),
        "retry": retry_text(settings.retry),
        "deliveries": limits_text(settings.rate, settings.max_in_flight, settings.breaker),
        "dead letters": "kept" if settings.dead_letters else "dropped",
        "ttl": human_span(settings.ttl),
        "retention": _retention_text(settings),
        "archive": "on" if settings.archive else "off",
        "largest payload": human_size(settings.payload_bytes_max),
        "health": _health_text(settings.health),
        "created": f"{age(topic.created_at_ms)} ago",
        "version": topic.version,
    }
    if settings.lanes is not None:
        facts |= {"lanes": _lanes_text(settings.lanes), "dedupe": human_span(settings.dedupe)}
    return facts


def _health_text(health: Health) -> str:
    bounds = {entry.name: getattr(health, entry.name) for entry in fields(health)}
    told = [f"{name} {pair[0]:g} warns, {pair[1]:g} alerts" for name, pair in bounds.items() if pair is not None]
    return ", ".join(told) or "no thresholds"


def _lanes_text(lanes: Lanes) -> str:
    limits = [
        None if lanes.max_in_flight is None else f"{lanes.max_in_flight:,} at once",
        None if lanes.rate is None else f"{lanes.rate:g} a second",
        None if lanes.breaker is None else breaker_text(lanes.breaker),
        *(f"{lane} weighs {weight:g}" for lane, weight in lanes.weights.items()),
    ]
    return ", ".join(limit for limit in limits if limit) or "share alike"


def retry_text(retry: RetryPolicy) -> str:
    """A retry policy in a sentence."""
    waits = f"{retry.shape} from {human_span(retry.base)} to {human_span(retry.cap)}"
    budget = "" if retry.budget is None else f", at most {retry.budget:g} of fresh deliveries"
    return f"{plural(retry.max_attempts, 'attempt')}, {waits}{budget}"


def breaker_text(breaker: Breaker) -> str:
    """A breaker in a sentence."""
    span = human_span(breaker.window)
    return f"only probes once {breaker.failures:.0%} of {breaker.calls:,} failed in {span}"


def limits_text(rate: float | None, max_in_flight: int | None, breaker: Breaker | None) -> str:
    """What limits a group's deliveries, in a sentence."""
    limits = [
        None if rate is None else f"{rate:g} a second",
        None if max_in_flight is None else f"{max_in_flight:,} at once",
        None if breaker is None else breaker_text(breaker),
    ]
    return ", ".join(limit for limit in limits if limit) or "no limits"


def _retention_text(settings: TopicSettings) -> str:
    kept = settings.kept
    bounds = [
        None if kept.age is None else human_span(kept.age),
        None if kept.bytes is None else human_size(kept.bytes),
        "until settled" if kept.settled else None,
        "drops unsettled" if kept.drop_unsettled else None,
    ]
    return ", ".join(bound for bound in bounds if bound) or "for ever"


def _state(topic: TopicDescription) -> str:
    return "paused" if topic.paused else "open"


@command(
    app,
    "update",
    examples=[
        "duly topics update orders --lease 2m --max-attempts 5",
        "duly topics update orders --retention-age none",
        "duly topics update emails --lane-weight acme=3 --lane-weight globex=1",
        "duly topics update emails --rate 100 --breaker on --retry-budget 0.1",
        "duly topics update orders --health dead=1,10 --health oldest_age=1m,5m",
    ],
    given=topic_given,
)
def update(topic: Topic, session: Session, given: Given) -> None:
    """Change settings. What is not named stays; the kind and the partitions cannot change."""
    with session.client() as client:
        before = client.describe_topic(topic)
        settings = before.settings
        wanted = must_change(
            merged(given, retry=settings.retry, retention=settings.kept, lanes=settings.lanes, health=settings.health)
        )
        after = client.update_topic(topic, version=before.version, **wanted)
    _show_topic(session.show, after)


@command(app, "delete", examples=["duly topics delete orders --force"])
def delete(
    topic: Topic,
    session: Session,
    force: Annotated[bool, typer.Option("--force", help="Also when it has messages.")] = False,
) -> None:
    """Remove a topic with its groups."""
    with session.client() as client:
        client.delete_topic(topic, force=force)
    session.show.outcome(f"Topic {topic!r} is deleted.", {"topic": topic, "deleted": True})


@command(app, "pause", examples=["duly topics pause orders"])
def pause(topic: Topic, session: Session) -> None:
    """Stop deliveries. Publishing and settling go on."""
    with session.client() as client:
        client.pause(topic)
    session.show.outcome(f"Topic {topic!r} is paused.", {"topic": topic, "paused": True})


@command(app, "resume", examples=["duly topics resume orders"])
def resume(topic: Topic, session: Session) -> None:
    """Start deliveries again."""
    with session.client() as client:
        client.resume(topic)
    session.show.outcome(f"Topic {topic!r} delivers again.", {"topic": topic, "paused": False})


@command(app, "purge", examples=["duly topics purge orders"])
def purge(topic: Topic, session: Session) -> None:
    """Drop all messages of a topic, for every group."""
    with session.client() as client:
        count = client.purge(topic)
    session.show.outcome(f"Dropped {plural(count)} of topic {topic!r}.", {"topic": topic, "purged": count})
