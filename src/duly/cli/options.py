"""Arguments and options that several commands take, with their completion from the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import Error
from ..topic import TopicDescription
from .session import Where, open_session

if TYPE_CHECKING:
    from ..client.client import Client

# Whoever presses a key does not wait for a broker that is not there.
_COMPLETES_S = 1.0


def topic_of(client: Client, topic: str, group: str | None) -> TopicDescription:
    """The topic, whose group has to be named if it is a log, and need not be if it is a queue."""
    found = client.describe_topic(topic)
    if found.kind == "log" and group is None:
        raise typer.BadParameter(
            f"{topic!r} is a log: which of its groups? duly groups list {topic}", param_hint="'--group'"
        )
    if found.kind == "queue" and group is not None and group not in found.groups:
        raise typer.BadParameter(
            f"{topic!r} is a queue, whose consumers are one group: leave it out.", param_hint="'--group'"
        )
    return found


def whose(topic: str, group: str | None) -> str:
    """A log's group, or a queue, in a sentence."""
    return f"topic {topic!r}" if group is None else f"group {group!r} of topic {topic!r}"


def _complete(ctx: typer.Context, ask: Callable[[Client], list[str]]) -> list[str]:
    """Names from the store. A shell that completes shows no errors, so there are none."""
    given = _given(ctx.params).over(_given(ctx.find_root().params))
    try:
        with open_session(given).client(patience_s=_COMPLETES_S) as client:
            return ask(client)
    except (Error, typer.BadParameter, OSError):
        return []


def _given(params: Mapping[str, Any]) -> Where:
    return Where(params.get("store"), params.get("url"), params.get("profile"), params.get("tenant"))


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """The topics that begin so."""
    return [name for name in _complete(ctx, lambda client: client.list_topics()) if name.startswith(incomplete)]


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """The groups of the topic on the line that begin so."""
    # While an option lacks its value, the arguments before it are not assigned yet.
    topic = str(ctx.params.get("topic") or next(iter(ctx.args), ""))
    return [name for name in _complete(ctx, lambda client: client.list_groups(topic)) if name.startswith(incomplete)]


NewTopic = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.", show_default=False)]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic)]
NewGroup = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False)]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=complete_group)]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", metavar="GROUP", help="The group, of a log; a queue needs none.", autocompletion=complete_group
    ),
]
TopicFilter = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="Of this topic alone.", autocompletion=complete_topic),
]
GroupFilter = Annotated[
    str | None,
    typer.Option("--group", "-g", metavar="GROUP", help="Of this group alone.", autocompletion=complete_group),
]
ExistOk = Annotated[bool, typer.Option("--exist-ok", help="Leave an equal one as it is.")]
