"""duly publish: messages from the command line, from files, from standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from ..errors import Error
from ..limits import LIMITS
from ..message import Message, Receipt
from .command import command
from .lines import messages_of
from .moments import due, say_due
from .options import Topic
from .parse import duration, headers
from .session import Session
from .show import progress
from .text import plural

if TYPE_CHECKING:
    from ..client.client import Client

# A batch is one transaction. A repeated run has to cut the same input in the same places, for --publish-id.
BATCH_MESSAGES = 1000
BATCH_BYTES = 32 * 1024 * 1024
_QUEUES = "Queues"


@dataclass(frozen=True, slots=True)
class Source:
    """Where payloads come from: arguments, files (`-` is stdin), or stdin when neither is given."""

    texts: Sequence[str]
    files: Sequence[str]
    by_line: bool

    @property
    def single(self) -> bool:
        """Whether it can only be one message."""
        return not self.by_line and len(self.texts) + len(self.files) <= 1

    def payloads(self) -> Iterator[bytes]:
        """The payloads in order, read as they are asked for."""
        # Arguments that were not valid text come back as the bytes they were.
        yield from map(os.fsencode, self.texts)
        for name in self.files or ([] if self.texts else ["-"]):
            yield from self._of_file(name)

    def _of_file(self, name: str) -> Iterator[bytes]:
        if name == "-":
            yield from self._of_stdin()
            return
        with open(name, "rb") as stream:
            yield from _lines(stream) if self.by_line else [stream.read()]

    def _of_stdin(self) -> Iterator[bytes]:
        if sys.stdin.isatty():
            raise typer.BadParameter("Give a payload, --file, or pipe something in.", param_hint="'PAYLOAD'")
        stream = sys.stdin.buffer
        if self.by_line:
            yield from _lines(stream)
            return
        payload = stream.read()
        if not payload:
            raise typer.BadParameter("Standard input is empty. For an empty message give ''.", param_hint="'PAYLOAD'")
        yield payload


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    for line in stream:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def batches(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Cuts messages into batches that are small enough to publish."""
    batch: list[Message] = []
    size = 0
    for message in messages:
        if batch and (len(batch) == BATCH_MESSAGES or size + len(message.payload) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message.payload)
    if batch:
        yield batch


app = typer.Typer()


@command(
    app,
    "publish",
    examples=[
        "duly publish orders hello",
        """duly publish orders '{"order": 42}' --key customer-7 --header source=shop --id order-42""",
        "duly publish orders --file invoice.pdf --ttl 1h",
        "cat events.jsonl | duly publish orders --lines --publish-id import-1",
        "duly publish emails hello --id welcome-50 --due 3d --priority 10 --lane acme",
        "duly publish emails hello --due 'tomorrow 9:00'",
        "cat campaign.jsonl | duly publish emails --json-lines --due 2027-01-31T12:00:00Z",
    ],
)
def publish(
    topic: Topic,
    session: Session,
    payloads: Annotated[
        list[str] | None,
        typer.Argument(metavar="PAYLOAD", help="A message each; without any, standard input."),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", metavar="FILE", help="A file's content; - is standard input."),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="A message a line, of files and standard input.")] = False,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines", help="The same, each a JSON object: payload, id, key, headers, ttl, due, priority, lane."
        ),
    ] = False,
    key: Annotated[str | None, typer.Option(help="Messages of a key keep their order.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="The id, of a single message.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; repeat for more.")] = None,
    ttl: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Not delivered after: 1h.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="The partition; else the key chooses.")] = None,
    due: Annotated[
        Any,
        typer.Option(
            parser=due,
            metavar="TIME",
            rich_help_panel=_QUEUES,
            help="When it is due: 2h, 'tomorrow 9:00', an ISO time.",
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            min=0, max=LIMITS.priority_max, rich_help_panel=_QUEUES, help="The smallest is delivered first; else 0."
        ),
    ] = None,
    lane: Annotated[
        str | None, typer.Option(rich_help_panel=_QUEUES, help="Lanes share the queue fairly: a customer, say.")
    ] = None,
    publish_id: Annotated[
        str | None, typer.Option(help="Repeating the same input with the same id stores nothing twice.")
    ] = None,
) -> None:
    """Publish messages. When it returns they are on stable storage.

    Input of many lines is published in batches of 1,000; each is stored whole or not at all.
    """
    if lines and json_lines:
        raise typer.BadParameter("Give --lines or --json-lines, not both.", param_hint="publish")
    source = Source(payloads or [], files or [], lines or json_lines)
    if id is not None and not source.single:
        raise typer.BadParameter("An id is for one message, and there may be several here.", param_hint="'--id'")
    given = Message(
        b"",
        id=id,
        key=key,
        headers=headers(header or []),
        ttl=ttl,
        partition=partition,
        due=due,
        priority=priority,
        lane=lane,
    )
    found = source.payloads()
    messages = messages_of(found, given) if json_lines else (replace(given, payload=payload) for payload in found)
    with session.client() as client:
        # A wrong name is said before anything is read.
        client.describe_topic(topic)
        say_due(session, given.due)
        _publish_all(session, client, topic, messages, publish_id)


def _publish_all(
    session: Session, client: Client, topic: str, messages: Iterable[Message], publish_id: str | None
) -> None:
    tally = Tally()
    try:
        with progress(f"Publishing to {topic}") as advance:
            for number, batch in enumerate(batches(messages)):
                receipt = client.publish(topic, batch, publish_id=_publish_id(publish_id, number))
                tally.add(receipt)
                advance(receipt.count)
                if session.as_json:
                    session.show.outcome("", _document(topic, receipt))
    except Error:
        if tally.count:
            session.show.remark(f"The first {plural(tally.count)} are stored.")
        raise
    if not session.as_json:
        session.show.outcome(tally.sentence(topic), {})


def _publish_id(given: str | None, number: int) -> str | None:
    """The first batch has the id as given, the others count on from it."""
    return given if given is None or number == 0 else f"{given}.{number + 1}"


@dataclass(slots=True)
class Tally:
    """What was published so far."""

    count: int = 0
    repeated: int = 0
    known: int = 0
    last: Receipt | None = None

    def add(self, receipt: Receipt) -> None:
        """Counts a batch."""
        self.count += receipt.count
        self.repeated += receipt.count if receipt.duplicate else 0
        self.known += len(receipt.duplicates)
        self.last = receipt

    def sentence(self, topic: str) -> str:
        """The sum, for people."""
        place = ""
        if self.last is not None and self.count == 1:
            ((partition, offset),) = self.last.positions
            place = f" as {self.last.ids[0]} at partition {partition}, offset {offset:,}"
        again = f" {self.repeated:,} of them had been stored before: same publish id." if self.repeated else ""
        known = f" {self.known:,} of them were there already: same id." if self.known else ""
        return f"Published {plural(self.count)} to {topic!r}{place}.{again}{known}"


def _document(topic: str, receipt: Receipt) -> dict[str, Any]:
    return {
        "topic": topic,
        "count": receipt.count,
        "publish_id": receipt.publish_id,
        "duplicate": receipt.duplicate,
        "spans": [
            {"partition": span.partition, "first_offset": span.first_offset, "count": span.count}
            for span in receipt.spans
        ],
        "ids": receipt.ids,
        "duplicates": sorted(receipt.duplicates),
    }
