"""duly claim: take messages under a lease, print them, settle them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import LeaseLost
from .command import command
from .messages import CLAIM_WIDTHS, QUEUE_CLAIM_WIDTHS, delivery_row, queue_delivery_row
from .options import GroupOption, Topic, topic_of
from .parse import duration
from .session import Session
from .text import iso_of, plural

if TYPE_CHECKING:
    from ..client.batch import Batch, Settled

app = typer.Typer()


def verdict(
    ack: Annotated[bool, typer.Option("--ack", help="Finish them.")] = False,
    nack: Annotated[bool, typer.Option("--nack", help="Give them back to be tried again later.")] = False,
    release: Annotated[bool, typer.Option("--release", help="Give them back at once (the default).")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Hold them until the lease ends.")] = False,
) -> str:
    """What becomes of the messages once they are printed."""
    flags = {"ack": ack, "nack": nack, "release": release, "keep": keep}
    chosen = [name for name, given in flags.items() if given]
    if len(chosen) > 1:
        raise typer.BadParameter("Give one of --ack, --nack, --release and --keep.", param_hint="claim")
    return chosen[0] if chosen else "release"


@command(
    app,
    "claim",
    examples=[
        "duly claim orders --group billing",
        "duly claim orders --group billing -n 100 --wait 5s --ack --json",
        "duly claim orders --group billing --nack --delay 1m --reason 'printer on fire'",
        "duly claim orders --group billing --keep --consumer me --lease 10m",
        "duly claim emails -n 10 --ack",
    ],
    verdict=verdict,
)
def claim(
    topic: Topic,
    session: Session,
    verdict: str,
    group: GroupOption = None,
    count: Annotated[int, typer.Option("--max-messages", "-n", min=1, help="At most so many.")] = 1,
    wait: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="How long to wait for the first: 5s.")
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="How long to hold them; else the topic's."),
    ] = None,
    delay: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="With --nack: try again after.")
    ] = None,
    reason: Annotated[str, typer.Option(help="With --nack: why.")] = "",
    consumer: Annotated[str | None, typer.Option(help="The name to claim under.")] = None,
) -> None:
    """Claim messages and print them. They are given back at once, unless told otherwise."""
    if verdict != "nack" and (delay is not None or reason):
        raise typer.BadParameter("--delay and --reason belong to --nack.", param_hint="claim")
    with session.client(consumer=consumer) as client:
        queue = topic_of(client, topic, group).kind == "queue"
        widths, row = (QUEUE_CLAIM_WIDTHS, queue_delivery_row) if queue else (CLAIM_WIDTHS, delivery_row)
        batch = client.claim(topic, group=group, max_messages=count, wait=wait or 0, lease=lease)
        try:
            session.show.page(widths, [row(delivery, verdict) for delivery in batch], header=True)
            held_until = batch.lease_expires_at
            settled = _settle(batch, verdict, delay, reason)
        except BaseException:
            # Nobody saw them, or nobody answered (a closed pipe, Ctrl-C): they go back at once, untried.
            batch.release()
            raise
        until = "" if held_until is None else iso_of(held_until)
        session.show.remark(_told(verdict, len(batch), client.consumer, until))
    if settled is not None and settled.lost:
        raise LeaseLost(f"The lease on {plural(len(settled.lost))} ended before. Claim again, with a longer --lease.")


def _settle(batch: Batch, verdict: str, delay: float | None, reason: str) -> Settled | None:
    if verdict == "ack":
        return batch.ack()
    if verdict == "nack":
        return batch.nack(delay=delay, reason=reason)
    return batch.release() if verdict == "release" else None


def _told(verdict: str, count: int, consumer: str, until: str) -> str:
    if not count:
        return "Nothing is due. Wait for it with --wait 5s."
    many = plural(count)
    return {
        "ack": f"Acked {many}.",
        "nack": f"Nacked {many}: due again after the wait, or buried after the last attempt.",
        "release": f"Gave {many} back (release); no attempt is counted. To finish them: --ack.",
        "keep": f"Holding {many} until {until}. To give back: duly release --consumer {consumer}",
    }[verdict]
