"""duly forecast: the coming load per minute, drawn, and the consumers that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..forecast import Forecast, ForecastMinute
from ..limits import LIMITS
from .command import command
from .options import GroupFilter, complete_topic
from .session import Session
from .text import iso, plural

if TYPE_CHECKING:
    from .show import Cell, Row

app = typer.Typer()

# A screen's worth: several minutes share a line where there are more, in steps that people count in.
_LINES = 30
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 1440)
_BAR = 40
_STRIP = 16
_LEVELS = "▁▂▃▄▅▆▇█"
_COLUMNS = ("topic", "group", "backlog", "coming", "needed", "active", "peak", "at", "per minute")


@command(
    app,
    "forecast",
    examples=["duly forecast", "duly forecast emails --minutes 240", "duly forecast emails --rate 25 --json"],
)
def forecast(
    session: Session,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="This topic alone; else all of them.", autocompletion=complete_topic),
    ] = None,
    group: GroupFilter = None,
    minutes: Annotated[int, typer.Option(min=1, max=LIMITS.page_max, help="How far to look ahead.")] = 60,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="PER_S", help="Messages a second that one consumer finishes; else as observed.", show_default=False
        ),
    ] = None,
) -> None:
    """Show what comes to each group per minute, and how many consumers that takes.

    Full blocks are messages that stand on the timeline, light ones those that will be published if it goes on as of
    late. The first minute is what is left of this one, and takes what is ready now, too.
    """
    if group is not None and topic is None:
        raise typer.BadParameter("A group is a topic's: name its TOPIC too.", param_hint="'--group'")
    with session.client() as client:
        found = client.forecasts(topic, group=group, minutes=minutes, rate=rate)
    if session.as_json or topic is None:
        session.show.rows(_COLUMNS, [_row(one) for one in found], empty="No topics yet.")
        return
    for one in found:
        session.show.facts(_facts(one), {})
        lines = list(_lines(one.minutes))
        session.show.part("Ahead, UTC", ("from", "", "messages", "consumers"), lines)
        for note in one.notes:
            session.show.remark(note)


def _row(one: Forecast) -> Row:
    cells = (
        one.topic,
        one.group,
        one.backlog,
        sum(minute.coming for minute in one.minutes),
        _count(one.consumers),
        one.active,
        _count(one.peak.consumers),
        iso(one.peak.at_ms)[11:16],
        _strip([minute.coming for minute in one.minutes]),
    )
    return _document(one), cells


def _document(one: Forecast) -> dict[str, Any]:
    document = asdict(one)
    document |= {"at": iso(document.pop("at_ms")), "peak": _minute(one.peak)}
    return document | {"minutes": [_minute(minute) for minute in one.minutes]}


def _minute(minute: ForecastMinute) -> dict[str, Any]:
    document = asdict(minute)
    return {"at": iso(document.pop("at_ms")), **document}


def _facts(one: Forecast) -> dict[str, Cell]:
    peak = one.peak
    # The first minute takes what is there already, too.
    messages = peak.coming + (one.backlog if peak is one.minutes[0] else 0)
    when = f"{_count(peak.consumers)} at {iso(peak.at_ms)[11:16]} UTC, for {plural(messages)}"
    return {
        "topic": one.topic,
        "group": one.group or "none",
        "ready": one.ready,
        "leased": one.leased,
        "published": f"{one.arrival_rate:,.4g} a second of late",
        "a consumer": _pace(one),
        "active": plural(one.active, "consumer"),
        "needed now": _count(one.consumers),
        "at most": when,
    }


def _pace(one: Forecast) -> str:
    if one.service_rate is None:
        return "nobody knows how fast"
    source = f"observed on {plural(one.observed)}" if one.observed else "given"
    return f"finishes {one.service_rate:,.4g} a second, {source}"


def _count(consumers: int | None) -> str:
    return "?" if consumers is None else f"{consumers:,}"


def _lines(minutes: Sequence[ForecastMinute]) -> Iterator[tuple[Cell, ...]]:
    """A line for every minute, or for several."""
    step = next((step for step in _STEPS if len(minutes) <= step * _LINES), _STEPS[-1])
    parts = [minutes[start : start + step] for start in range(0, len(minutes), step)]
    most = max(sum(minute.coming for minute in part) for part in parts)
    for part in parts:
        timed, expected = sum(minute.timed for minute in part), sum(minute.expected for minute in part)
        needed = [minute.consumers for minute in part if minute.consumers is not None]
        bar = "█" * _length(timed, most) + "░" * _length(expected, most)
        yield iso(part[0].at_ms)[11:16], bar, timed + expected, _count(max(needed, default=None))


def _length(messages: int, most: int) -> int:
    # What is there is seen, however little it is beside the rest.
    return max(1, messages * (_BAR - 1) // most) if messages else 0


def _strip(counts: Sequence[int]) -> str:
    """A height for each part of the time: that of its highest minute."""
    most, parts = max(counts), min(_STRIP, len(counts))
    if not most:
        return "·" * parts
    edges = [len(counts) * part // parts for part in range(parts + 1)]
    highest = [max(counts[low:high]) for low, high in pairwise(edges)]
    return "".join(_LEVELS[-(-count * (len(_LEVELS) - 1) // most)] for count in highest)
