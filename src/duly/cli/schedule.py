"""duly schedule: create, list, show, update, pause, resume, delete, next."""

from __future__ import annotations

import base64
import os
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..clock import SystemClock, moment_ms
from ..limits import LIMITS
from ..schedule import LIMIT_MAX, Schedule, ScheduleDescription, check_given, preview
from .command import command, group
from .options import ExistOk, complete_topic
from .parse import NONE, count_or_none, duration, duration_or_none, headers, moment
from .session import Session
from .settings import Given, given_of, must_change
from .text import age, human_span, iso, payload_text

if TYPE_CHECKING:
    from .show import Cell, Show

app = group("Schedules: messages published into a queue by cron.")

_MESSAGE, _WHEN = "The message", "When"
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)]
Topic = Annotated[
    str,
    typer.Option("--topic", metavar="TOPIC", help="The queue that it publishes into.", autocompletion=complete_topic),
]
Cron = Annotated[str, typer.Option(metavar="EXPRESSION", help="'30 2 * * *', @daily, '@every 90s'.")]
NewCron = Annotated[str | None, typer.Option("--cron", metavar="EXPRESSION", help="When it ticks from now on.")]
_COUNT = "How many of the next ticks."
Count = Annotated[int, typer.Option(min=1, max=LIMITS.schedule_ticks_max, help=_COUNT)]


class Missed(StrEnum):
    """What becomes of missed ticks."""

    latest = "latest"
    skip = "skip"
    all = "all"


def _text_or_none(text: str) -> str | int:
    return NONE if text.strip().lower() == "none" else text


def _schedule_given(
    zone: Annotated[
        str | None, typer.Option(metavar="ZONE", rich_help_panel=_WHEN, help="Its time zone: Europe/Berlin. Else UTC.")
    ] = None,
    missed: Annotated[
        Missed | None,
        typer.Option(rich_help_panel=_WHEN, help="Of ticks that nobody was there for: the latest, none, or all."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=LIMIT_MAX, rich_help_panel=_WHEN, help="How many at most, of all that were missed."),
    ] = None,
    jitter: Annotated[
        float | None,
        typer.Option(
            parser=duration, metavar="DURATION", rich_help_panel=_WHEN, help="Due up to so much later than its tick."
        ),
    ] = None,
    payload: Annotated[str | None, typer.Option(rich_help_panel=_MESSAGE, help="What it says.")] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", rich_help_panel=_MESSAGE, help="The same, a file's content.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_MESSAGE,
            help="The same, filled in with each tick: ${tick}, ${tick_ms}, ${date}, ${previous}, ${run}, ${schedule}.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", rich_help_panel=_MESSAGE, help="A header; repeat for more."),
    ] = None,
    key: Annotated[Any, typer.Option(parser=_text_or_none, rich_help_panel=_MESSAGE, help="Its key, or none.")] = None,
    priority: Annotated[
        Any,
        typer.Option(
            parser=count_or_none, metavar="PRIORITY", rich_help_panel=_MESSAGE, help="The smallest is first; or none."
        ),
    ] = None,
    lane: Annotated[
        Any, typer.Option(parser=_text_or_none, rich_help_panel=_MESSAGE, help="Its lane, or none.")
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            parser=duration_or_none,
            metavar="DURATION",
            rich_help_panel=_MESSAGE,
            help="Not delivered after: 1h, or none.",
        ),
    ] = None,
) -> Given:
    """The settings that were given."""
    if sum(given is not None for given in (payload, file, template)) > 1:
        raise typer.BadParameter("Give one of --payload, --file and --template.", param_hint="schedule")
    content = None if payload is None else os.fsencode(payload)
    return given_of(
        zone=zone,
        missed=None if missed is None else str(missed),
        limit=limit,
        jitter=jitter,
        payload=content if file is None else file.read_bytes(),
        template=template,
        headers=headers(header or []),
        key=key,
        priority=priority,
        lane=lane,
        ttl=ttl,
    )


def schedule_document(known: ScheduleDescription) -> dict[str, Any]:
    """A schedule with its settings, what comes and what was."""
    settings = asdict(known.settings)
    content = settings.pop("payload")
    try:
        settings["payload"] = content.decode()
    except UnicodeDecodeError:
        settings["payload_base64"] = base64.b64encode(content).decode()
    return {
        "schedule": known.name,
        "topic": known.topic,
        "paused": known.paused,
        "version": known.version,
        "created_at": iso(known.created_at_ms),
        "next": [tick.isoformat() for tick in known.next],
        "published": known.published,
        "missed": known.missed,
        "trouble": known.trouble,
        "settings": settings,
        "runs": [
            {
                "tick": iso(run.tick_ms),
                "published_at": iso(run.published_at_ms),
                "late_ms": run.late_ms,
                "id": run.id,
            }
            for run in known.runs
        ],
    }


@command(
    app,
    "create",
    examples=[
        "duly schedule create nightly --topic emails --cron '30 2 * * *' --zone Europe/Berlin --payload report",
        "duly schedule create poll --topic emails --cron '@every 90s' --template 'since ${previous} to ${tick}'",
        "duly schedule create bills --topic emails --cron @monthly --missed all --limit 12 --jitter 5m --lane acme",
    ],
    given=_schedule_given,
)
def create(
    name: Name,
    topic: Topic,
    cron: Cron,
    session: Session,
    given: Given,
    paused: Annotated[bool, typer.Option("--paused", help="It ticks once it is resumed.")] = False,
    exist_ok: ExistOk = False,
) -> None:
    """Have a message published into a queue once a tick."""
    with session.client() as client:
        made = client.create_schedule(name, topic=topic, cron=cron, paused=paused, exist_ok=exist_ok, **given)
    session.show.outcome(f"Schedule {name!r} is there: {_says_next(made)}.", schedule_document(made))


def _says_next(known: ScheduleDescription) -> str:
    return f"its next tick is {known.next[0].isoformat()}" if known.next else _standing(known)


def _standing(known: ScheduleDescription) -> str:
    if known.paused:
        return "paused"
    if not known.next:
        return "will not tick again"
    return "in trouble" if known.trouble else "ticks"


@command(app, "list", examples=["duly schedule list", "duly schedule list --json"])
def list_schedules(session: Session) -> None:
    """List the schedules, with the next tick of each."""
    with session.client() as client:
        found = client.schedules()
    columns = ("schedule", "topic", "cron", "zone", "next", "published", "missed", "standing")
    rows = [(schedule_document(one), _cells(one)) for one in found]
    empty = "No schedules yet. Make one with: duly schedule create NAME --topic QUEUE --cron @daily"
    session.show.rows(columns, rows, empty=empty)


def _cells(known: ScheduleDescription) -> tuple[Cell, ...]:
    settings = known.settings
    ahead = known.next[0].isoformat() if known.next else "none"
    return (
        known.name,
        known.topic,
        settings.cron,
        settings.zone,
        ahead,
        known.published,
        known.missed,
        _standing(known),
    )


@command(app, "show", examples=["duly schedule show reminders"])
def show_schedule(name: Name, session: Session) -> None:
    """Show a schedule's settings, its next ticks and its last runs."""
    with session.client() as client:
        found = client.describe_schedule(name)
    _show(session.show, found)


def _show(show: Show, known: ScheduleDescription) -> None:
    settings = known.settings
    given = asdict(settings)
    shown = ("key", "priority", "lane", "ttl", "template")
    facts: dict[str, Cell] = {
        "schedule": known.name,
        "topic": known.topic,
        "standing": _standing(known),
        "cron": settings.cron,
        "zone": settings.zone,
        "missed ticks": _missed_text(settings),
        "jitter": human_span(settings.jitter),
        **({} if settings.template is not None else {"payload": payload_text(settings.payload)}),
        **{name: str(given[name]) for name in shown if given[name] is not None},
        **({"headers": _headers_text(settings)} if settings.headers else {}),
        "published": known.published,
        "missed": known.missed,
        **({"trouble": known.trouble} if known.trouble else {}),
        "created": f"{age(known.created_at_ms)} ago",
        "version": known.version,
    }
    show.facts(facts, schedule_document(known))
    show.part("Next ticks", ("day", "tick"), [_tick_cells(tick) for tick in known.next])
    rows = [(iso(run.tick_ms), f"{run.late_ms:,} ms", run.id) for run in known.runs]
    show.part("Last runs", ("tick", "late", "message"), rows)


def _headers_text(settings: Schedule) -> str:
    return ", ".join(f"{name}={text}" for name, text in settings.headers.items())


def _missed_text(settings: Schedule) -> str:
    texts = {"latest": "the latest is published", "skip": "dropped"}
    return texts.get(settings.missed, f"the last {settings.limit:,} are published")


@command(
    app,
    "update",
    examples=["duly schedule update reminders --cron '0 9 * * MON-FRI'", "duly schedule update reminders --lane none"],
    given=_schedule_given,
)
def update(name: Name, session: Session, given: Given, cron: NewCron = None) -> None:
    """Change settings. What is not named stays; the topic always does."""
    wanted = must_change({**given, **given_of(cron=cron)})
    with session.client() as client:
        after = client.update_schedule(name, **check_given(wanted))
    _show(session.show, after)


@command(app, "pause", examples=["duly schedule pause reminders"])
def pause(name: Name, session: Session) -> None:
    """Have it tick no more until it is resumed."""
    with session.client() as client:
        after = client.pause_schedule(name)
    session.show.outcome(f"Schedule {name!r} is paused.", schedule_document(after))


@command(app, "resume", examples=["duly schedule resume reminders"])
def resume(name: Name, session: Session) -> None:
    """Have it tick again."""
    with session.client() as client:
        after = client.resume_schedule(name)
    session.show.outcome(f"Schedule {name!r} goes on: {_says_next(after)}.", schedule_document(after))


@command(app, "delete", examples=["duly schedule delete reminders"])
def delete(name: Name, session: Session) -> None:
    """Remove a schedule. What it has published stays."""
    with session.client() as client:
        client.delete_schedule(name)
    session.show.outcome(f"Schedule {name!r} is deleted.", {"schedule": name, "deleted": True})


@command(
    app,
    "next",
    examples=[
        "duly schedule next reminders --count 3",
        "duly schedule next --cron '30 2 * * *' --zone Europe/Berlin --after 2027-03-27T00:00:00Z",
    ],
)
def next_ticks(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of this schedule.", show_default=False)] = None,
    cron: Annotated[str | None, typer.Option(metavar="EXPRESSION", help="Of this expression.")] = None,
    zone: Annotated[str, typer.Option(metavar="ZONE", help="The expression's time zone.")] = "UTC",
    count: Count = 10,
    after: Annotated[
        Any, typer.Option(parser=moment, metavar="TIME", help="The expression's ticks after then; else from now on.")
    ] = None,
) -> None:
    """Show when a schedule ticks, or when an expression would: for that no store is needed."""
    if (name is None) == (cron is None):
        raise typer.BadParameter("Give the NAME of a schedule, or an expression with --cron.", param_hint="next")
    ticks = _of_schedule(session, name, count) if name is not None else _of_expression(cron or "", zone, count, after)
    rows = [(_tick_document(tick), _tick_cells(tick)) for tick in ticks]
    session.show.rows(("day", "tick"), rows, empty="It is paused, or will not tick again.")


def _tick_document(tick: datetime) -> dict[str, Any]:
    return {"tick": tick.isoformat(), "tick_ms": moment_ms(tick, "tick")}


def _tick_cells(tick: datetime) -> tuple[Cell, ...]:
    return f"{tick:%A}", tick.isoformat()


def _of_schedule(session: Session, name: str, count: int) -> tuple[datetime, ...]:
    with session.client() as client:
        return client.describe_schedule(name, count=count).next


def _of_expression(cron: str, zone: str, count: int, after: datetime | None) -> list[datetime]:
    after_ms = SystemClock().now_ms() if after is None else moment_ms(after, "after")
    return preview(cron, zone=zone, count=count, after_ms=after_ms)
