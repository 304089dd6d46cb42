"""duly bridge: a process that copies between a topic and Redis Streams or NATS JetStream."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ..clock import monotonic_s
from .command import command
from .parse import duration
from .pipeline import stopped_by_signals
from .session import Session
from .text import json_line, plural

if TYPE_CHECKING:
    from ..bridge.address import Place

app = typer.Typer()

PASSWORD = "DULY_BRIDGE_PASSWORD"
_LEASE_S = 600.0
_TELLS_S = 1.0


@command(
    app,
    "bridge",
    examples=[
        "duly bridge redis://127.0.0.1:6379/0/stream:orders duly:orders",
        "duly bridge redis://127.0.0.1:6379/0/events duly:timeline --field body --due header.at",
        "duly bridge duly:timeline nats://127.0.0.1:4222/ORDERS/orders.sorted",
        "duly bridge nats://127.0.0.1:4222/ORDERS duly:orders --drain --json",
    ],
)
def bridge(
    origin: Annotated[
        str, typer.Argument(metavar="FROM", help="duly:TOPIC, or an address that begins with redis:// or nats://.")
    ],
    target: Annotated[str, typer.Argument(metavar="TO", help="The other side; one of the two is duly:TOPIC.")],
    session: Session,
    group: Annotated[
        str | None,
        typer.Option(help="The consumer group or durable consumer there (duly), or the group of a log here."),
    ] = None,
    name: Annotated[str, typer.Option(help="Who this is: one process at a time. Its successor goes on.")] = "bridge",
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="So many messages at once.")] = 1000,
    field: Annotated[
        str | None, typer.Option(help="From Redis: the field that is the payload; the others become headers.")
    ] = None,
    due: Annotated[str | None, typer.Option(help="Into a queue: when it is due, as in json.at + 30s.")] = None,
    priority: Annotated[str | None, typer.Option(help="Into a queue: its priority, as in header.rank ?? 9.")] = None,
    lane: Annotated[str | None, typer.Option(help="Into a queue: its lane, as in key.")] = None,
    lease: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            show_default="10m",
            help="From a topic: how long its order waits for this bridge to be started again.",
        ),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", "--once", help="End when there is nothing more.")] = False,
) -> None:
    """Copy messages between a topic and a Redis stream or a NATS JetStream, at least once, until SIGTERM or Ctrl-C.

    A side that is down is waited for; one that was killed goes on where it was. See docs/bridges.md.

    A password is best left out of the address: DULY_BRIDGE_PASSWORD has it then.
    """
    from ..bridge.address import place_of
    from ..bridge.options import Options
    from ..bridge.patience import Patience
    from ..bridge.run import run

    places = place_of(origin), place_of(target)
    if any(getattr(place, "password", None) for place in places):
        session.show.warn(f"Everybody on this machine sees the password on the command line. Leave it to {PASSWORD}.")
    one, other = map(_with_password, places)
    lease_s = _LEASE_S if lease is None else lease
    options = Options(name, group, batch, field, due, priority, lane, lease_s, drain)
    with stopped_by_signals() as stopping, session.client() as client:
        told = _Told(session)
        way = f"from {one.shown} to {other.shown}."
        begun = partial(session.show.remark, f"Copying {way}")
        run(client, one, other, options, Patience(session.show.warn, stopping), told, begun=begun)
    sentence = f"Copied {plural(told.messages)} {way}"
    session.show.outcome(sentence, {"from": one.shown, "to": other.shown, "messages": told.messages})


def _with_password(place: Place) -> Place:
    """The place with the password of the environment, where it names none."""
    found = os.environ.get(PASSWORD)
    if not found or getattr(place, "password", "") is not None:
        return place
    return replace(place, password=found)  # type: ignore[arg-type]


class _Told:
    """How far it has come, told once a second: of a program a line of JSON."""

    def __init__(self, session: Session) -> None:
        self.messages = 0
        self._session = session
        self._told_at = monotonic_s()

    def __call__(self, messages: int) -> None:
        self.messages += messages
        if self._session.as_json and monotonic_s() >= self._told_at + _TELLS_S:
            self._told_at = monotonic_s()
            print(json_line({"messages": self.messages}), flush=True)
