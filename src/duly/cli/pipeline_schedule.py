"""duly pipeline schedule: rows of a file or a query onto a queue; moves and cancels of a list of ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..clock import monotonic_s
from ..errors import InvalidArgument
from .command import command
from .options import complete_topic
from .parse import settings
from .pipeline import OnSpark, needs_spark, on_spark, telling
from .session import Session
from .text import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

app = typer.Typer()

_ANSWERS = ("moved", "cancelled", "leased", "finished", "not_found")


class Format(StrEnum):
    """What Spark reads."""

    parquet = "parquet"
    csv = "csv"
    json = "json"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the rows come from: a file, or a query over files that have names."""

    file: str | None
    format: str | None
    sql: str | None
    views: Mapping[str, str]

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows."""
        from ..spark.causes import explained
        from ..spark.tables import query, read_file

        try:
            if self.file is not None:
                return read_file(spark, self.file, self.format)
            return query(spark, self.sql or "", self.views, self.format)
        except Exception as error:
            raise explained(error) from error

    def name(self, spark: SparkSession, *said: str | None) -> str:
        """What tells it from other sources."""
        from ..spark.tables import fingerprint

        return fingerprint(spark, [self.file] if self.file is not None else list(self.views.values()), self.sql, *said)


def source(
    file: Annotated[
        str | None, typer.Option("--file", metavar="PATH", help="A file, or a folder of files.", show_default=False)
    ] = None,
    format: Annotated[
        Format | None, typer.Option("--format", metavar="FORMAT", help="parquet, csv or json, if no name tells.")
    ] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="QUERY", help="A query instead, over views.", show_default=False)
    ] = None,
    view: Annotated[
        list[str] | None,
        typer.Option("--view", metavar="NAME=PATH", help="A file under a name, for the query; repeat for more."),
    ] = None,
) -> Source:
    """The options that say where rows come from."""
    if (file is None) == (sql is None):
        raise typer.BadParameter("Give --file, or --sql with its views.", param_hint="'--file'")
    if view and sql is None:
        raise typer.BadParameter("A view is for a query: give --sql.", param_hint="'--view'")
    return Source(file, None if format is None else str(format), sql, settings(view or (), "--view"))


@command(
    app,
    "schedule",
    examples=[
        "duly pipeline schedule --to emails --file campaign.parquet",
        "duly pipeline schedule --to emails --sql 'SELECT body AS payload, at AS due, id FROM c' --view c=campaign.csv",
        "duly pipeline schedule --to emails --file customers.csv --payload 'to_json(struct(name, email))' "
        "--due \"timestamp'2027-01-31 09:00:00Z'\"",
        "duly pipeline schedule --to emails --file later.csv --move",
        "duly pipeline schedule --to emails --file withdrawn.csv --cancel",
    ],
    source=source,
    spark=on_spark,
)
def schedule(
    session: Session,
    source: Source,
    spark: OnSpark,
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="The queue.", autocompletion=complete_topic)],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="What is stored once.", show_default="made from the source's content"
        ),
    ] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="SQL", help="An expression over the rows' columns.")
    ] = None,
    due: Annotated[str | None, typer.Option("--due", metavar="SQL", help="The same, for the due time.")] = None,
    move: Annotated[bool, typer.Option("--move", help="Move messages: rows of id, and due or priority.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel messages: rows of id.")] = False,
) -> None:
    """Put rows onto a queue, each due at its time: all of them or none, and once.

    Columns: payload (text, bytes, or an object of JSON), due (a time, or milliseconds since 1970), priority, lane, id,
    key, headers, expires_at; all but the payload may be missing. A time without a zone is UTC.

    A source that was scheduled in the last 30 days is not stored again; with another --name it is.
    """
    if move and cancel:
        raise typer.BadParameter("Move or cancel, not both.", param_hint="'--cancel'")
    if session.store == ":memory:":
        raise InvalidArgument(
            "A store in memory is one process's own: Spark cannot write to it. Name a file or a broker."
        )
    with needs_spark():
        from ..spark.jobs import schedule as job
        from ..spark.messages import unused
    # What can be wrong with the queue is said before Spark takes its seconds to start.
    with session.client() as client:
        client.describe_topic(to)
    session.pass_on()
    running = spark.session("schedule", {})
    if move or cancel:
        _errand(session, source.rows(running), to, due, cancelled=cancel)
        return
    rows = source.rows(running)
    began_s = monotonic_s()
    chosen = name if name is not None else source.name(running, payload, due)
    if payload is None and due is None and (others := unused(rows)):
        session.show.remark(f"Columns that are no part of a message: {', '.join(others)}.")
    with telling(session.show, f"Scheduling onto {to}"):
        done = job.schedule(rows, session.store, to, name=chosen, tenant=session.whose, payload=payload, due=due)
    took_s = max(monotonic_s() - began_s, 0.001)
    document = {
        "topic": to,
        "name": chosen,
        **{key: getattr(done, key) for key in ("messages", "duplicates", "before")},
    }
    if done.before:
        sentence = f"{plural(done.messages)} were scheduled onto {to!r} before, as {chosen}. Nothing was stored now."
        session.show.outcome(f"{sentence} To store them again: --name.", document)
        return
    twice = f", {done.duplicates:,} it had already" if done.duplicates else ""
    rate = done.messages / took_s
    session.show.outcome(
        f"Scheduled {plural(done.messages)} onto {to!r} as {chosen}{twice}: {rate:,.0f}/s.",
        {**document, "rows_per_s": round(rate, 1)},
    )


def _errand(session: Session, rows: DataFrame, topic: str, due: str | None, *, cancelled: bool) -> None:
    from ..spark.jobs import schedule as job

    found: Counter[str]
    if cancelled:
        found = job.cancel(rows, session.store, topic, tenant=session.whose)
    else:
        found = job.move(rows, session.store, topic, tenant=session.whose, due=due)
    told = ", ".join(f"{found[answer]:,} {answer.replace('_', ' ')}" for answer in _ANSWERS if found[answer])
    session.show.outcome(f"{plural(found.total(), 'id')}: {told or 'nothing to do'}.", {"topic": topic, **found})
