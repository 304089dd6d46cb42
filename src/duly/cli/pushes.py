"""duly push: create, list, show, update, pause, resume, rotate, test, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..limits import DAY_MS
from ..push import ToHttp, ToTopic
from .command import command, group
from .options import GroupOption, Topic
from .parse import duration, headers
from .session import Session
from .text import age, human_span, iso, plural

if TYPE_CHECKING:
    from ..push import NewPush, Push, PushDescription
    from .show import Cell

app = group("Pushes: a group's messages go to an endpoint, or to another topic, without a consumer.")

Given = dict[str, Any]
Name = Annotated[str, typer.Argument(metavar="PUSH", help="The push's name.", show_default=False)]
_Secret = Annotated[
    str | None,
    typer.Option(metavar="whsec_BASE64", help="Sign with this one, not one that is made.", show_default=False),
]


def _http_given(
    method: Annotated[str | None, typer.Option(help="POST, PUT or PATCH.", show_default=False)] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="Sent with every request; repeat for more."),
    ] = None,
    request_timeout: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="How long an answer may take: 10s.", show_default=False),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests at once: 16.", show_default=False)] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Messages in a request, as JSON if more than 1.", show_default=False)
    ] = None,
) -> Given:
    """What of an endpoint is on the line."""
    return _those_given(
        method=method,
        headers=None if not header else headers(header),
        timeout=request_timeout,
        concurrency=concurrency,
        batch=batch,
    )


def _topic_given(
    due: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="When its messages are due there: 'json.at + 30s'.")
    ] = None,
    priority: Annotated[str | None, typer.Option(metavar="EXPRESSION", help="Their priority there.")] = None,
    lane: Annotated[str | None, typer.Option(metavar="EXPRESSION", help="Their lane there: 'key'.")] = None,
) -> Given:
    """What of a topic is on the line."""
    return _those_given(due=due, priority=priority, lane=lane)


def _those_given(**options: Any) -> Given:
    return {name: value for name, value in options.items() if value is not None}


@command(
    app,
    "create",
    examples=[
        "duly push create mail-hook emails --to-http https://example.com/hook --concurrency 4",
        "duly push create onward emails --to-topic orders",
    ],
    http=_http_given,
    onward=_topic_given,
)
def create(
    name: Name,
    topic: Topic,
    session: Session,
    http: Given,
    onward: Given,
    group: GroupOption = None,
    to_http: Annotated[
        str | None, typer.Option(metavar="URL", help="The endpoint that gets its messages.", show_default=False)
    ] = None,
    to_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="The topic that gets its messages.", show_default=False)
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Send nothing until it is resumed.")] = False,
    secret: _Secret = None,
) -> None:
    """Have a group's messages go to an endpoint, or to another topic. What requests are signed with is shown once.

    Brokers do it (duly serve). How many go at once and how fast are the group's own settings: duly groups update.
    """
    to = _to(to_http, to_topic, http, onward)
    with session.client() as client:
        made = client.create_push(name, topic=topic, group=group, to=to, paused=paused, secret=secret)
    _say_made(session, made, f"Push {name!r} sends what comes to group {made.group!r} of {topic!r} {_where(made)}.")


def _to(to_http: str | None, to_topic: str | None, http: Given, onward: Given) -> ToHttp | ToTopic:
    if (to_http is None) == (to_topic is None):
        raise typer.BadParameter("Where to? Give one of --to-http and --to-topic.", param_hint="create")
    wrong = onward if to_topic is None else http
    if wrong:
        there = "an endpoint" if to_topic is None else "a topic"
        raise typer.BadParameter(f"{', '.join(sorted(wrong))}: this means nothing to {there}.", param_hint="create")
    if to_topic is not None:
        return ToTopic(to_topic, **onward)
    return ToHttp(to_http or "", **http)


def _say_made(session: Session, made: NewPush, sentence: str) -> None:
    if made.secret is not None:
        session.show.remark(f"{sentence} Its secret, shown this once, is for whoever verifies the requests:")
    session.show.outcome(made.secret or sentence, push_document(made) | {"secret": made.secret})


def _where(push: Push) -> str:
    if push.to_http is not None:
        return f"to {push.to_http.url}"
    return "nowhere that can be read" if push.to_topic is None else f"to topic {push.to_topic.topic!r}"


def push_document(push: Push) -> dict[str, Any]:
    """A push as it is set."""
    until = push.older_secrets_until_ms
    return {
        "push": push.name,
        "topic": push.topic,
        "group": push.group,
        "to_http": None if push.to_http is None else asdict(push.to_http),
        "to_topic": None if push.to_topic is None else asdict(push.to_topic),
        "state": push.state,
        "reason": push.reason,
        "version": push.version,
        "created_at": iso(push.created_at_ms),
        "holder": push.holder,
        "older_secrets_until": None if until is None else iso(until),
    }


@command(app, "list", examples=["duly push list", "duly push list --json"])
def list_pushes(session: Session) -> None:
    """List pushes: where each goes, how it stands, and which broker runs it."""
    with session.client() as client:
        found = client.pushes()
    rows = [(push_document(one), _cells(one)) for one in found]
    empty = "No pushes yet. Make one with: duly push create PUSH TOPIC --to-http https://…"
    session.show.rows(("push", "topic", "group", "goes to", "state", "run by"), rows, empty=empty)


def _cells(push: Push) -> tuple[Cell, ...]:
    where = _where(push).removeprefix("to ")
    return (push.name, push.topic, push.group, where, push.state, push.holder or "")


@command(app, "show", examples=["duly push show billing-hook"])
def show(name: Name, session: Session) -> None:
    """Show a push, what waits in its group, and what holds it back."""
    with session.client() as client:
        found = client.describe_push(name)
    session.show.facts(_facts(found), _standing_document(found))


def _standing_document(push: PushDescription) -> dict[str, Any]:
    counts = {name: getattr(push, name) for name in ("lag", "leased", "retrying", "dead")}
    return {
        **push_document(push),
        **counts,
        "gate": None if push.gate is None else asdict(push.gate),
        "last": None if push.last is None else asdict(push.last),
    }


def _facts(push: PushDescription) -> dict[str, Cell]:
    facts: dict[str, Cell] = {
        "push": push.name,
        "topic": push.topic,
        "group": push.group,
        "goes": _where(push),
        **_how(push),
        "state": push.state if not push.reason else f"{push.state}: {push.reason}",
        "run by": push.holder or "no broker at the moment",
        "waiting": push.lag,
        "under way": push.leased,
        "retrying": push.retrying,
        "dead": push.dead,
    }
    if push.gate is not None and push.gate.breaker != "closed":
        facts["breaker"] = push.gate.breaker
    if push.last is not None:
        facts["last answer"] = f"{push.last.status or 'none'} in {push.last.ms} ms, {age(push.last.at_ms)} ago"
    if push.older_secrets_until_ms is not None:
        facts["older secrets sign until"] = iso(push.older_secrets_until_ms)
    return facts


def _how(push: PushDescription) -> dict[str, Cell]:
    if push.to_http is not None:
        to = push.to_http
        facts: dict[str, Cell] = {"headers": ", ".join(to.headers)} if to.headers else {}
        return facts | {
            "requests": f"{to.method}, {to.concurrency} at once, {human_span(to.timeout)} each, {plural(to.batch)}"
        }
    if push.to_topic is not None:
        told = asdict(push.to_topic)
        return {name: told[name] for name in ("due", "priority", "lane") if told[name] is not None}
    return {}


@command(
    app,
    "update",
    examples=[
        "duly push update billing-hook --to-http https://example.com/other --concurrency 4",
    ],
    http=_http_given,
    onward=_topic_given,
)
def update(
    name: Name,
    session: Session,
    http: Given,
    onward: Given,
    to_http: Annotated[str | None, typer.Option(metavar="URL", help="Another endpoint.", show_default=False)] = None,
    to_topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Another topic.", show_default=False)] = None,
) -> None:
    """Change where a push goes, or how. What is not named stays; headers are replaced whole."""
    changes = {**http, **onward, **_those_given(url=to_http, topic=to_topic)}
    if not changes:
        raise typer.BadParameter("Nothing to change: give an option.", param_hint="update")
    if "timeout" in changes:
        changes["request_timeout"] = changes.pop("timeout")
    with session.client() as client:
        after = client.update_push(name, **changes)
    session.show.outcome(f"Push {name!r} goes {_where(after)}, at version {after.version}.", push_document(after))


@command(app, "pause", examples=["duly push pause billing-hook"])
def pause(name: Name, session: Session) -> None:
    """Send nothing more until it is resumed. Its messages wait in the group."""
    with session.client() as client:
        after = client.pause_push(name)
    session.show.outcome(f"Push {name!r} is paused.", push_document(after))


@command(app, "resume", examples=["duly push resume billing-hook"])
def resume(name: Name, session: Session) -> None:
    """Go on, after a pause, or after whatever it was disabled for."""
    with session.client() as client:
        after = client.resume_push(name)
    session.show.outcome(f"Push {name!r} sends again.", push_document(after))


@command(app, "rotate", examples=["duly push rotate billing-hook", "duly push rotate billing-hook --overlap 1h"])
def rotate(
    name: Name,
    session: Session,
    overlap: Annotated[
        float | None,
        typer.Option(
            parser=duration, metavar="DURATION", help="For how long the old one signs, too: a day, if not said."
        ),
    ] = None,
    secret: _Secret = None,
) -> None:
    """Sign with another secret, which is shown once, and for a while with the present one, too."""
    with session.client() as client:
        made = client.rotate_push_secret(name, overlap=DAY_MS / 1000 if overlap is None else overlap, secret=secret)
    _say_made(session, made, f"Push {name!r} signs with another secret.")


@command(app, "test", examples=["duly push test billing-hook --url duly://127.0.0.1:8471"])
def test(name: Name, session: Session) -> None:
    """Have a broker send a request that says it is a test, and show what came back. No message is touched."""
    with session.client() as client:
        answer = client.test_push(name)
    if answer.error:
        sentence = f"No answer after {answer.ms} ms: {answer.error}."
    else:
        sentence = f"Answered {answer.status} in {answer.ms} ms."
    session.show.outcome(f"{sentence} It says: {answer.body}" if answer.body else sentence, asdict(answer))
    if answer.status is None or not 200 <= answer.status < 300:
        raise typer.Exit(1)


@command(app, "delete", examples=["duly push delete billing-hook"])
def delete(name: Name, session: Session) -> None:
    """Remove a push. Its group stays, with its messages."""
    with session.client() as client:
        client.delete_push(name)
    session.show.outcome(f"Push {name!r} is gone.", {"push": name, "deleted": True})
