"""duly export and duly import: a topic's messages as a Parquet file, and back."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from typing import Annotated
from urllib.parse import quote

import typer

from ..errors import Error
from .command import command
from .options import Topic
from .parse import moment
from .session import Session
from .show import progress
from .text import human_size, plural

app = typer.Typer()


@command(
    app,
    "export",
    examples=[
        "duly export orders orders.parquet",
        "duly export orders first-ten.parquet --offset 0 --to 10 --json",
        "duly export orders recent.parquet --at 2026-01-31T12:00:00Z --until now",
        "duly export emails emails.parquet",
        "duly export emails given-up.parquet --dead",
    ],
)
def export(
    topic: Topic,
    path: Annotated[str, typer.Argument(metavar="FILE", help="The file, or a folder for TOPIC.parquet.")],
    session: Session,
    partition: Annotated[int | None, typer.Option(min=0, help="Of a log: this partition alone.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Of a log: begin here.")] = None,
    to: Annotated[int | None, typer.Option(min=0, help="Of a log: end before this offset.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option(parser=moment, metavar="TIME", help="Of a log: what was published from an ISO time on."),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(parser=moment, metavar="TIME", help="Of a log: what was published before an ISO time, or now."),
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Of a queue: its dead letters instead.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a log, or what is unsettled in a queue, into a Parquet file. Nothing is claimed.

    Columns: partition, offset, id, key, headers, payload, published_at, expires_at.

    Of a queue also: lane, priority, due_at, state, attempts. The file is there whole, or not at all.
    """
    from ..parquet import export_topic

    target = os.path.join(path, f"{quote(topic, safe='')}.parquet") if os.path.isdir(path) else path
    with session.client() as client, progress(f"Exporting {topic}") as advance:
        done = export_topic(
            client,
            topic,
            target,
            partition=partition,
            offset=offset,
            to=to,
            at=at,
            until=until,
            dead=dead,
            overwrite=force,
            advance=advance,
        )
    sentence = f"Exported {plural(done.messages)} of {topic!r} to {done.path}: {human_size(done.bytes)}."
    session.show.outcome(sentence, {"topic": topic, **asdict(done)})


@command(
    app,
    "import",
    examples=["duly import old-orders.parquet orders", "duly import old-orders.parquet orders --any-partition --json"],
)
def import_(
    path: Annotated[str, typer.Argument(metavar="FILE", help="The Parquet file.")],
    topic: Topic,
    session: Session,
    any_partition: Annotated[
        bool, typer.Option("--any-partition", help="Into a log: let keys choose, not the column `partition`.")
    ] = False,
) -> None:
    """Publish the rows of a Parquet file: one of export's, or any with a column `payload`.

    A row that cannot be published refuses the file before anything is stored.

    For a day, importing the same file again stores nothing twice: one that was broken off goes on.
    """
    from ..parquet import import_file

    with session.client() as client, ExitStack() as shown:
        steps = _Steps(shown, path)
        try:
            done = import_file(
                client, path, topic, any_partition=any_partition, checked=steps.checked, advance=steps.imported
            )
        except Error:
            if steps.stored:
                session.show.remark(f"The first {plural(steps.stored)} are stored. Import again: none is stored twice.")
            raise
    again = f" {done.repeated:,} of them had been imported before." if done.repeated else ""
    known = f" {done.known:,} of them were there already: same id." if done.known else ""
    document = {"topic": topic, "path": path, **asdict(done), "stored": done.stored}
    session.show.outcome(f"Imported {plural(done.messages)} into {topic!r}.{again}{known}", document)


class _Steps:
    """Shows how far each of the two readings has come, one after the other."""

    def __init__(self, shown: ExitStack, path: str) -> None:
        self._shown = shown
        self._path = path
        self._step = ""
        self._advance: Callable[[int], None] = lambda _: None
        self.stored = 0

    def checked(self, rows: int) -> None:
        """So many more rows were looked at."""
        self._go("Checking", rows)

    def imported(self, messages: int) -> None:
        """So many more messages were published."""
        self.stored += messages
        self._go("Importing", messages)

    def _go(self, step: str, count: int) -> None:
        if step != self._step:
            self._shown.close()
            self._step, self._advance = step, self._shown.enter_context(progress(f"{step} {self._path}"))
        self._advance(count)
