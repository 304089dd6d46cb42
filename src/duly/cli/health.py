"""duly health: how the groups of topics do, by their topics' thresholds."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..health import GroupHealth
from .command import command
from .options import complete_topic
from .session import Session
from .text import human_span

if TYPE_CHECKING:
    from .show import Row

app = typer.Typer()

_COLUMNS = ("level", "topic", "group", "consumers", "undelivered", "oldest", "retrying", "dead", "state")


@command(
    app,
    "health",
    examples=["duly health", "duly health orders --json", "duly health --problems --strict"],
)
def health(
    session: Session,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="This topic alone; else all of them.", autocompletion=complete_topic),
    ] = None,
    problems: Annotated[bool, typer.Option("--problems", help="Only what is not ok.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on a warning too.")] = False,
) -> None:
    """Show how each group does by its topic's thresholds. Exits with 1 on an alert.

    Thresholds are a topic's setting: duly topics update NAME --health dead=1,10. Without any, a topic is ok.
    """
    with session.client() as client:
        found = client.health(topic)
    rows = [_row(one) for one in found if one.level != "ok" or not problems]
    session.show.rows(_COLUMNS, rows, empty="Everything is ok." if found else "No topics yet.")
    reasons = [(reason.level, one.topic, one.group, reason.text) for one in found for reason in one.reasons]
    session.show.part("Why", ("level", "topic", "group", "reason"), reasons)
    if any(one.level == "alert" or (strict and one.level == "warn") for one in found):
        raise typer.Exit(1)


def _row(one: GroupHealth) -> Row:
    figures = one.figures
    cells = (
        one.level,
        one.topic,
        one.group,
        figures.consumers,
        figures.undelivered,
        human_span(figures.oldest_age) if figures.oldest_age else "",
        f"{100 * figures.retry_ratio:.3g}%",
        figures.dead,
        "paused" if one.paused else "open",
    )
    return _document(one), cells


def _document(one: GroupHealth) -> dict[str, Any]:
    return {
        "level": one.level,
        "topic": one.topic,
        "group": one.group,
        "paused": one.paused,
        **asdict(one.figures),
        "reasons": [asdict(reason) for reason in one.reasons],
    }
