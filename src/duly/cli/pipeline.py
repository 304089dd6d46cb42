"""duly pipeline: jobs on Spark, on this machine or on a cluster."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidArgument, NotFound
from .command import command, group
from .parse import duration, settings
from .session import (
    PANEL,
    JsonOption,
    ProfileOption,
    Session,
    StoreOption,
    UrlOption,
    Where,
    open_session,
    warn_of_password,
)
from .show import Show
from .text import human_size, human_span, plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..spark.progress import Progress

app = group("Jobs on Spark: archive topics into a lake.")

_EVERY_S = 60.0

LakeKeyOption = Annotated[
    str | None,
    typer.Option(
        envvar="DULY_LAKE_KEY",
        metavar="KEY",
        help="The lake is sealed with a key: file:PATH, env:NAME or command:PROGRAM. Else it lies in the clear.",
    ),
]
TenantsOption = Annotated[
    list[str] | None,
    typer.Option("--tenant", help="Whose topics; repeat for more.", rich_help_panel=PANEL, show_default=False),
]


@dataclass(frozen=True, slots=True)
class OnSpark:
    """Where a job runs, and Spark's own settings for it."""

    master: str | None
    conf: Mapping[str, str]

    def session(self, name: str, wanted: Mapping[str, str]) -> SparkSession:
        """A session for the job; what the line says wins over what the job wants."""
        from ..spark.session import session

        return session(f"duly {name}", self.master, {**wanted, **self.conf})


def on_spark(
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            show_default="local[*]",
            rich_help_panel="Spark",
            help="Where it runs: local[2], spark://host:port, sc://host:port.",
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", rich_help_panel="Spark", help="A setting of Spark's; repeat."),
    ] = None,
) -> OnSpark:
    """The options of every job."""
    return OnSpark(master, settings(conf or (), "--conf"))


@dataclass(frozen=True, slots=True)
class Sessions:
    """A session, and the tenants that it is for."""

    one: Session
    named: tuple[str, ...]

    @property
    def tenants(self) -> tuple[str, ...]:
        """Those that are named, else the one whose the session is."""
        return self.named or (self.one.whose,)


def sessions(
    ctx: typer.Context,
    store: StoreOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    tenants: TenantsOption = None,
    as_json: JsonOption = False,
) -> Sessions:
    """A session of one or several tenants."""
    before: Where = ctx.obj
    given = Where(store, url, profile, tenants[0] if tenants else None, as_json).over(before)
    warn_of_password(given.place, as_json=given.as_json)
    one = open_session(given)
    return Sessions(one, tuple(dict.fromkeys(tenants or ())))


@command(
    app,
    "archive",
    examples=[
        "duly pipeline archive --lake lake --once",
        "duly pipeline archive --url duly://127.0.0.1:8471 --lake /srv/lake --every 5m --tenant shop --tenant billing",
        "duly pipeline archive --lake s3a://bucket/lake --storage AWS_REGION=eu-west-1 --master spark://head:7077",
    ],
    session=sessions,
    spark=on_spark,
)
def archive(
    session: Sessions,
    spark: OnSpark,
    lake: Annotated[str, typer.Option(metavar="PATH", help="The lake: a folder, or an address. Made if not there.")],
    once: Annotated[bool, typer.Option("--once", help="Archive what is there now, and end.")] = False,
    every: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", show_default="60s", help="How often it looks for more."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=1, max=100_000_000, show_default="4000000", help="About so many messages a round, at most."),
    ] = None,
    storage: Annotated[
        list[str] | None,
        typer.Option("--storage", metavar="NAME=VALUE", help="An option of delta-rs for the lake's storage; repeat."),
    ] = None,
    lake_key: LakeKeyOption = None,
) -> None:
    """Archive every topic that has archiving on, and $events, into a lake: exactly once, then the log may let go.

    The lake is a Delta table, PATH/messages, that Spark, DuckDB, Polars and others read. A topic's watermark moves only
    when its messages are committed there, read back and found whole. Killed at any moment, the next run goes on.

    Without --once it goes on until SIGTERM or Ctrl-C, which let the round under way end; a second one ends it at once.
    """
    if once and every is not None:
        raise typer.BadParameter("--once looks no second time: leave --every away.", param_hint="'--every'")
    where, show = session.one, session.one.show
    if where.store == ":memory:":
        raise InvalidArgument("A store in memory is one process's own: Spark cannot read it. Name a file or a broker.")
    with needs_spark():
        from ..spark.jobs.archive import ROWS_MAX, SESSION_CONF, Archiver
        from ..spark.lake import Lake
    # What can be wrong with either end is said before Spark takes its seconds to start.
    where.must_exist()
    where.must_answer()
    where.pass_on()
    place = Lake(lake, settings(storage or (), "--storage"), key=lake_key)
    place.create()
    place.newest()
    with (
        stopped_by_signals() as stop,
        Archiver(
            spark.session("archive", {**SESSION_CONF, **place.session_conf}),
            place,
            where.store,
            session.tenants,
            rows_max=rows or ROWS_MAX,
            remark=show.remark,
        ) as archiver,
    ):
        every_s = None if once else (_EVERY_S if every is None else every)
        with telling(show, f"Archiving into {lake}") as tell:
            done = archiver.run(every_s=every_s, progress=tell, stop=stop)
    sentence = f"Archived {plural(done.rows)} into {lake}: {human_size(done.bytes)} in {plural(done.rounds, 'round')}."
    show.outcome(sentence, {"lake": lake, **document(done)})


@contextmanager
def needs_spark() -> Iterator[None]:
    """Says how to get what is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise NotFound(f"This needs {error.name}. Install it: pip install 'duly[spark]'") from error


@contextmanager
def stopped_by_signals() -> Iterator[Event]:
    """An event that the first SIGTERM or Ctrl-C sets; the second does what it always did."""
    stop = Event()
    before: dict[signal.Signals, Any] = {}

    def on_signal(_number: int, _frame: object) -> None:
        stop.set()
        for one in before:
            signal.signal(one, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def telling(show: Show, label: str) -> Iterator[Callable[[Progress], None]]:
    """Progress on a terminal as a line that changes; else a line each time, on stderr; a document each with --json."""
    if show.as_json:
        yield lambda progress: show.outcome("", document(progress))
    elif sys.stderr.isatty():
        with _bar(label) as tell:
            yield tell
    else:
        yield lambda progress: show.remark(line(progress))


@contextmanager
def _bar(label: str) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(f"{label} …") as status:
        yield lambda progress: status.update(f"{label}: {line(progress)}")


def line(progress: Progress) -> str:
    """Progress as people read it."""
    told = f"{plural(progress.rows)}, {progress.rows_per_s:,.0f}/s, {progress.lag:,} to go"
    left_s = progress.left_s
    return told if left_s is None or not progress.lag else f"{told}, {human_span(left_s)} left"


def document(progress: Progress) -> dict[str, object]:
    """Progress for programs."""
    left_s = progress.left_s
    return {
        "rounds": progress.rounds,
        "rows": progress.rows,
        "bytes": progress.bytes,
        "rows_per_s": round(progress.rows_per_s, 1),
        "lag": progress.lag,
        "left_s": None if left_s is None else round(left_s, 1),
    }
