"""duly pipeline replay: messages of the lake, published again or sent back to a group."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ..clock import moment_ms
from ..errors import InvalidArgument
from ..limits import LIMITS
from .command import command
from .options import GroupOption, complete_topic
from .parse import moment, settings
from .pipeline import LakeKeyOption, OnSpark, needs_spark, on_spark, stopped_by_signals, telling
from .session import Session
from .text import human_size, iso, plural

if TYPE_CHECKING:
    from ..spark.jobs.replay import Outcome, Replayer
    from ..spark.selection import Portion, Selection

app = typer.Typer()

_FILTER = "Which messages"
_FORM = "What becomes of them"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages, as it stands on the line."""

    tenant: str | None
    topic: str
    incarnation: str | None
    since_ms: int | None
    until_ms: int | None
    partition: int | None
    first_offset: int | None
    end_offset: int | None
    key: str | None
    lane: str | None
    where: str | None

    def selection(self, tenant: str) -> Selection:
        """The same for Spark; of a tenant, unless another was named."""
        from ..spark.selection import Selection

        return Selection(**{**asdict(self), "tenant": self.tenant or tenant})


def wanted(
    topic: Annotated[
        str,
        typer.Option(
            "--topic", metavar="TOPIC", help="The topic that they were published to.", rich_help_panel=_FILTER
        ),
    ],
    from_tenant: Annotated[
        str | None,
        typer.Option(metavar="TENANT", help="Whose topic it was; else the same.", rich_help_panel=_FILTER),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(parser=moment, metavar="TIME", help="Published at an ISO time or later.", rich_help_panel=_FILTER),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(parser=moment, metavar="TIME", help="Published before an ISO time.", rich_help_panel=_FILTER),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, max=LIMITS.partitions_max, help="Of one partition.", rich_help_panel=_FILTER)
    ] = None,
    from_offset: Annotated[int | None, typer.Option(min=0, help="From an offset on.", rich_help_panel=_FILTER)] = None,
    to_offset: Annotated[int | None, typer.Option(min=0, help="Before an offset.", rich_help_panel=_FILTER)] = None,
    key: Annotated[str | None, typer.Option(help="Of one key.", rich_help_panel=_FILTER)] = None,
    lane: Annotated[str | None, typer.Option(help="Of one lane.", rich_help_panel=_FILTER)] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Any predicate over the lake's columns.", rich_help_panel=_FILTER),
    ] = None,
    incarnation: Annotated[
        str | None,
        typer.Option(help="Of the store as it was before or after a restore.", rich_help_panel=_FILTER),
    ] = None,
) -> Wanted:
    """The options that say which messages."""
    return Wanted(
        from_tenant,
        topic,
        incarnation,
        None if since is None else moment_ms(since, "since"),
        None if until is None else moment_ms(until, "until"),
        partition,
        from_offset,
        to_offset,
        key,
        lane,
        where,
    )


@command(
    app,
    "replay",
    examples=[
        "duly pipeline replay --lake lake --topic orders --since 2026-01-31T12:00:00Z --to orders-again --dry-run",
        "duly pipeline replay --lake lake --topic orders --where \"headers['land'] = 'DE'\" --to copy --rate 500",
        "duly pipeline replay --lake lake --topic orders --key customer-42 --group billing",
        "duly pipeline replay --lake lake --topic orders --payload 'upper(cast(payload AS string))' --to loud --again",
    ],
    wanted=wanted,
    spark=on_spark,
)
def replay(
    session: Session,
    wanted: Wanted,
    spark: OnSpark,
    lake: Annotated[str, typer.Option(metavar="PATH", help="The lake: a folder, or an address.")],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", help="The topic they are published to.", autocompletion=complete_topic),
    ] = None,
    group: GroupOption = None,
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", help="Another payload: an expression over the lake's columns.", rich_help_panel=_FORM
        ),
    ] = None,
    headers: Annotated[
        str | None, typer.Option(metavar="SQL", help="Other headers: the same, a map.", rich_help_panel=_FORM)
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, max=LIMITS.rate_per_s_max, help="At most so many a second.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What is done once.", show_default="made from what is asked for")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Once more, though it was finished.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and send nothing.")] = False,
    storage: Annotated[
        list[str] | None,
        typer.Option("--storage", metavar="NAME=VALUE", help="An option of delta-rs for the lake's storage; repeat."),
    ] = None,
    lake_key: LakeKeyOption = None,
) -> None:
    """Publish messages of the lake again, to a topic; or send them back to one group of the log they came from.

    To a topic they go in the order in which they were published, each with the header duly-replayed-from, which says
    where it comes from. To a group they go under their own offsets, and no other group sees them; what it has still to
    do is left alone.

    The first run writes a plan beside the lake. The same command goes on with it where it was broken off, and does
    nothing once it is finished.
    """
    if (to is None) == (group is None):
        raise typer.BadParameter(
            "Give --to, a topic, or --group, a group of the log they came from.", param_hint="'--to'"
        )
    if session.store == ":memory:":
        raise InvalidArgument(
            "A store in memory is one process's own: Spark cannot write to it. Name a file or a broker."
        )
    with needs_spark():
        from ..spark.jobs.replay import SESSION_CONF, Replayer, order_of
        from ..spark.lake import Lake
    selection = wanted.selection(session.whose)
    # What can be wrong with either end is said before Spark takes its seconds to start.
    with session.client() as client:
        order = order_of(client, selection, topic=to or wanted.topic, group=group, payload=payload, headers=headers)
    session.pass_on()
    place = Lake(lake, settings(storage or (), "--storage"), key=lake_key)
    place.newest()
    replayer = Replayer(
        spark.session("replay", {**SESSION_CONF, **place.session_conf}),
        place,
        session.store,
        order,
        name=name,
        again=again,
        rate_per_s=rate,
        remark=session.show.remark,
    )
    if dry_run:
        _show_counts(session, replayer)
        return
    goal = f"topic {to!r}" if group is None else f"group {group!r} of {wanted.topic!r}"
    with stopped_by_signals() as stop, telling(session.show, f"Replaying to {goal}") as tell:
        done = replayer.run(progress=tell, stop=stop)
    _show_outcome(session, done, goal)


def _show_counts(session: Session, replayer: Replayer) -> None:
    found = replayer.count()
    plan = replayer.plan
    state = "new" if plan is None else "finished" if plan.finished else "begun"
    session.show.remark(f"Replay {replayer.name}: {state}. Nothing was sent.")
    session.show.rows(
        ("incarnation", "messages", "bytes", "first", "last"),
        [(_counted(replayer.name, state, one), _cells(one)) for one in found],
        empty="The lake has no such messages.",
    )


def _counted(name: str, state: str, one: Portion) -> dict[str, object]:
    return {
        "name": name,
        "state": state,
        "incarnation": one.incarnation,
        "messages": one.messages,
        "bytes": one.bytes,
        "first": iso(one.first_ms),
        "last": iso(one.last_ms),
    }


def _cells(one: Portion) -> tuple[str | int, ...]:
    return one.incarnation, one.messages, human_size(one.bytes), iso(one.first_ms), iso(one.last_ms)


def _show_outcome(session: Session, done: Outcome, goal: str) -> None:
    facts = {"name": done.name, "messages": done.messages, "before": done.before, "pending": done.pending}
    told = f"Replayed {plural(done.messages)} to {goal}"
    if not done.messages and not done.pending and not done.left:
        told = f"Replayed before, all {plural(done.before)}. Nothing was sent now; once more: --again"
    elif done.before:
        told += f", after {done.before:,} of an earlier run"
    told += f"; {done.pending:,} were there already" if done.pending else ""
    told += f"; {done.left:,} are left: run it again to go on" if done.left else ""
    session.show.outcome(f"{told}. ({done.name})", {**facts, "left": done.left})
