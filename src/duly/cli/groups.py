"""duly groups: create, list, show, update, delete, pause, resume, purge, seek."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..backoff import RetryPolicy
from ..topic import GateDescription, GroupDescription, GroupSettings, TopicSettings
from .command import command, group
from .documents import group_document
from .options import ExistOk, Group, NewGroup, Topic
from .parse import moment, start
from .session import Session
from .settings import Given, group_given, merged, must_change
from .text import human_span, plural
from .topics import limits_text, retry_text

if TYPE_CHECKING:
    from ..client.client import Client
    from .show import Cell

app = group("Groups: consumers that share one copy of a log's messages.")


@command(
    app,
    "create",
    examples=[
        "duly groups create orders shipping",
        "duly groups create orders reports --start latest --lease 5m",
        "duly groups create orders replay --start 2026-01-31T12:00:00Z",
    ],
    given=group_given,
)
def create(
    topic: Topic,
    group: NewGroup,
    session: Session,
    given: Given,
    start: Annotated[
        Any, typer.Option(parser=start, metavar="PLACE", help="earliest, latest, an offset, or an ISO time.")
    ] = "earliest",
    exist_ok: ExistOk = False,
) -> None:
    """Make a group of a log."""
    with session.client() as client:
        wanted = merged(given, retry=client.describe_topic(topic).settings.retry)
        client.create_group(topic, group, start=start, exist_ok=exist_ok, **wanted)
        made = client.describe_group(topic, group)
    session.show.outcome(f"Group {group!r} of topic {topic!r} is there; its lag is {made.lag:,}.", group_document(made))


@command(app, "list", examples=["duly groups list orders"])
def list_groups(topic: Topic, session: Session) -> None:
    """List a topic's groups and where they stand."""
    columns = ("group", "lag", "leased", "retrying", "dead", "consumers", "state")
    with session.client() as client:
        found = [client.describe_group(topic, name) for name in client.list_groups(topic)]
    rows = [(group_document(group), _cells(group)) for group in found]
    session.show.rows(columns, rows, empty=f"No groups yet. Make one with: duly groups create {topic} GROUP")


def _cells(group: GroupDescription) -> tuple[Cell, ...]:
    return (
        group.name,
        group.lag,
        group.leased,
        group.retrying,
        group.dead,
        len(group.consumers),
        _state(group),
    )


@command(app, "show", examples=["duly groups show orders billing"])
def show_group(topic: Topic, group: Group, session: Session) -> None:
    """Show a group's cursor, lag, leases, retries, dead letters and consumers."""
    with session.client() as client:
        _show_group(session, client, topic, group)


def _show_group(session: Session, client: Client, topic: str, group: str) -> None:
    found, settings = client.describe_group(topic, group), client.describe_topic(topic).settings
    show = session.show
    show.facts(_facts(found, settings), group_document(found))
    places = [
        (
            str(number),
            found.first_offsets[number],
            cursor,
            found.next_offsets[number],
            found.next_offsets[number] - cursor,
        )
        for number, cursor in found.cursors.items()
    ]
    show.part("Partitions", ("partition", "first offset", "cursor", "next offset", "lag"), places)
    consumers = [(one.name, human_span(one.idle_ms / 1000), one.leases, one.messages) for one in found.consumers]
    show.part("Consumers", ("consumer", "idle", "leases", "messages"), consumers)


def _facts(group: GroupDescription, settings: TopicSettings) -> dict[str, Cell]:
    own = group.settings
    retry: RetryPolicy = own.retry or settings.retry
    kept = settings.dead_letters if own.dead_letters is None else own.dead_letters
    return {
        "topic": group.topic,
        "group": group.name,
        "state": _state(group),
        "lag": group.lag,
        "leased": group.leased,
        "retrying": group.retrying,
        "dead": group.dead,
        "lease": _whose(human_span(own.lease or settings.lease), own.lease),
        "retry": _whose(retry_text(retry), own.retry),
        "deliveries": _deliveries(own, settings),
        **_gate_facts(group.gate),
        "dead letters": _whose("kept" if kept else "dropped", own.dead_letters),
    }


def _deliveries(own: GroupSettings, settings: TopicSettings) -> str:
    rate = settings.rate if own.rate is None else own.rate
    most = settings.max_in_flight if own.max_in_flight is None else own.max_in_flight
    has_own = own.rate or own.max_in_flight or own.breaker
    return _whose(limits_text(rate, most, own.breaker or settings.breaker), has_own)


def _gate_facts(gate: GateDescription | None) -> dict[str, Cell]:
    """What of its limits is not as usual."""
    if gate is None:
        return {}
    facts: dict[str, Cell] = {}
    if gate.breaker != "closed":
        facts["breaker"] = gate.breaker if gate.rate is None else f"{gate.breaker}, {gate.rate:.3g} a second"
    if gate.lanes:
        facts["lanes with breakers"] = ", ".join(f"{lane.lane or '(default)'} {lane.state}" for lane in gate.lanes)
    return facts


def _whose(text: str, own: object) -> str:
    return f"{text} (the topic's)" if own is None else text


def _state(group: GroupDescription) -> str:
    return "paused" if group.paused else "open"


@command(
    app,
    "update",
    examples=["duly groups update orders billing --lease 2m --max-attempts 3"],
    given=group_given,
)
def update(topic: Topic, group: Group, session: Session, given: Given) -> None:
    """Change a group's own settings. What is not named stays."""
    with session.client() as client:
        own = client.describe_group(topic, group).settings.retry
        wanted = must_change(merged(given, retry=own or client.describe_topic(topic).settings.retry))
        client.update_group(topic, group, **wanted)
        _show_group(session, client, topic, group)


@command(app, "delete", examples=["duly groups delete orders billing"])
def delete(topic: Topic, group: Group, session: Session) -> None:
    """Remove a group; its open leases are lost."""
    with session.client() as client:
        client.delete_group(topic, group)
    session.show.outcome(
        f"Group {group!r} of topic {topic!r} is deleted.", {"topic": topic, "group": group, "deleted": True}
    )


@command(app, "pause", examples=["duly groups pause orders billing"])
def pause(topic: Topic, group: Group, session: Session) -> None:
    """Stop deliveries to a group. Settling goes on."""
    with session.client() as client:
        client.pause(topic, group=group)
    session.show.outcome(
        f"Group {group!r} of topic {topic!r} is paused.", {"topic": topic, "group": group, "paused": True}
    )


@command(app, "resume", examples=["duly groups resume orders billing"])
def resume(topic: Topic, group: Group, session: Session) -> None:
    """Start deliveries to a group again."""
    with session.client() as client:
        client.resume(topic, group=group)
    session.show.outcome(
        f"Group {group!r} of topic {topic!r} gets deliveries again.",
        {"topic": topic, "group": group, "paused": False},
    )


@command(app, "purge", examples=["duly groups purge orders billing"])
def purge(topic: Topic, group: Group, session: Session) -> None:
    """Drop what a group has not settled. Other groups keep theirs."""
    with session.client() as client:
        count = client.purge(topic, group=group)
    session.show.outcome(
        f"Dropped {plural(count)} of group {group!r}.", {"topic": topic, "group": group, "purged": count}
    )


@command(
    app,
    "seek",
    examples=[
        "duly groups seek orders billing --to earliest",
        "duly groups seek orders billing --offset 2",
        "duly groups seek orders billing --at 2026-01-31T12:00:00Z",
    ],
)
def seek(
    topic: Topic,
    group: Group,
    session: Session,
    offset: Annotated[int | None, typer.Option(min=0, help="The offset to claim next.")] = None,
    partition: Annotated[int, typer.Option(min=0, help="The partition of --offset.")] = 0,
    at: Annotated[
        datetime | None,
        typer.Option(parser=moment, metavar="TIME", help="The first message from an ISO time on."),
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="WORD", help="earliest or latest.")] = None,
) -> None:
    """Move a group's cursor. Its open leases are fenced off."""
    if sum(place is not None for place in (offset, at, to)) != 1:
        raise typer.BadParameter("Give one of --offset, --at and --to.", param_hint="seek")
    if to not in (None, "earliest", "latest"):
        raise typer.BadParameter(f"{to!r} is neither earliest nor latest.", param_hint="'--to'")
    with session.client() as client:
        place = None if offset is None else {partition: offset}
        cursors = client.seek(topic, group, offset=place, at=at, to=to)
    told = ", ".join(f"partition {number} at offset {cursor:,}" for number, cursor in cursors.items())
    document = {
        "topic": topic,
        "group": group,
        "cursors": {str(number): cursor for number, cursor in cursors.items()},
    }
    session.show.outcome(f"Group {group!r} goes on with {told}.", document)
