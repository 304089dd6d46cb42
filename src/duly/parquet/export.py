"""Export: a topic's messages into a Parquet file, a page at a time.

Memory holds a page, whatever the topic holds: the pages of a log are bounded in bytes by the store, those of a
queue by what the page before weighed. A log is exported by offsets, up to where it ends when the export begins. Of a
queue what is unsettled is exported, by partition and offset, while it goes on: each message that stays is there
once; one that is published, or settled, meanwhile may be there or not.

The file is written aside, synced and then given its name: there is a whole file or none.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

from ..clock import SystemClock, from_ms
from ..errors import InvalidArgument
from ..message import QueuedMessage, StoredMessage
from ..topic import TopicDescription
from .schema import FORMAT, METADATA, schema_of, to_rows

if TYPE_CHECKING:
    from ..client.client import Client

PAGE_MESSAGES = 5000
PAGE_BYTES = 16 * 1024 * 1024
# A queue's first page; each may be twice as long as the one before, as long as it stays light.
_FIRST_PAGE = 64
_STANDING = ("ready", "waiting", "retrying", "leased")

Page = list[StoredMessage] | list[QueuedMessage]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    path: str
    messages: int
    bytes: int


def export_topic(
    client: Client,
    topic: str,
    path: str | os.PathLike[str],
    *,
    partition: int | None = None,
    offset: int | None = None,
    to: int | None = None,
    at: datetime | None = None,
    until: datetime | None = None,
    dead: bool = False,
    overwrite: bool = False,
    advance: Advance = lambda _: None,
) -> Exported:
    """Writes a log's messages, or what is unsettled in a queue, into a Parquet file (schema.py says which columns).

    Of a log: one `partition`; from `offset` on or what was published from `at` on; up to `to`, or before `until`.
    Of a queue, with `dead`, its dead letters and nothing else. `advance` hears of every page.
    """
    found = client.describe_topic(topic)
    if found.kind == "log":
        if dead:
            raise InvalidArgument("The dead letters of a log are its groups': export the log.")
        pages: Iterator[Page] = _of_log(client, found, _spans(client, found, partition, offset, to, at, until))
    else:
        if any(given is not None for given in (partition, offset, to, at, until)):
            raise InvalidArgument(f"{topic!r} is a queue: it is exported whole; offsets and times are for logs.")
        pages = _of_queue(client, topic, dead)
    target = os.fspath(path)
    with _put_in_place(target, overwrite=overwrite) as stream:
        count = _write(stream, found, pages, advance)
    return Exported(target, count, os.path.getsize(target))


def _write(stream: IO[bytes], topic: TopicDescription, pages: Iterator[Page], advance: Advance) -> int:
    import pyarrow.parquet as pq

    count = 0
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["key", "lane", "state"]}
    with pq.ParquetWriter(stream, _described(topic), **options) as writer:
        for page in pages:
            writer.write_batch(to_rows(topic.kind, page), row_group_size=len(page))
            count += len(page)
            advance(len(page))
    return count


def _described(topic: TopicDescription) -> Any:
    now = from_ms(SystemClock().now_ms()).isoformat()
    facts = {"format": FORMAT, "topic": topic.name, "kind": topic.kind, "exported_at": now}
    return schema_of(topic.kind).with_metadata({METADATA: json.dumps(facts).encode()})


@contextmanager
def _put_in_place(target: str, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """A file beside the target that takes its name when the block ends, or is gone when it raises."""
    folder, name = os.path.split(os.path.abspath(target))
    if os.path.exists(target) and not overwrite:
        raise InvalidArgument(f"{target} is there already. Give another name, or say that it may be replaced.")
    aside = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.part")
    try:
        with open(aside, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, target)
    except BaseException:
        if os.path.exists(aside):
            os.unlink(aside)
        raise
    held = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def _spans(
    client: Client,
    topic: TopicDescription,
    partition: int | None,
    offset: int | None,
    to: int | None,
    at: datetime | None,
    until: datetime | None,
) -> Mapping[int, tuple[int, int]]:
    """By partition: the first offset, and the one after the last."""
    if (offset is not None and at is not None) or (to is not None and until is not None):
        raise InvalidArgument("Begin at an offset or at a time, and end at one: not both.")
    if partition is None and len(topic.partitions) > 1 and (offset is not None or to is not None):
        raise InvalidArgument("The topic has several partitions, and each its own offsets: name the partition.")
    numbers = [part.partition for part in topic.partitions]
    if partition is not None and partition not in numbers:
        raise InvalidArgument(f"Topic {topic.name!r} has partitions 0 to {numbers[-1]}; got {partition!r}.")
    begins = {} if at is None else client.offset_at(topic.name, at)
    ends = {} if until is None else client.offset_at(topic.name, until)
    spans = {}
    for part in topic.partitions:
        if partition in (None, part.partition):
            first = begins.get(part.partition, part.first_offset if offset is None else offset)
            last = ends.get(part.partition, part.next_offset if to is None else to)
            spans[part.partition] = (first, min(last, part.next_offset))
    return spans


def _of_log(client: Client, topic: TopicDescription, spans: Mapping[int, tuple[int, int]]) -> Iterator[Page]:
    for partition, (offset, end) in spans.items():
        while offset < end:
            most = min(PAGE_MESSAGES, end - offset)
            page = client.read(topic.name, partition=partition, offset=offset, max_messages=most, max_bytes=PAGE_BYTES)
            yield page
            offset = page[-1].offset + 1


def _of_queue(client: Client, topic: str, dead: bool) -> Iterator[Page]:
    after, limit = (0, -1), _FIRST_PAGE
    while page := client.browse(topic, state="dead" if dead else None, after=after, limit=limit):
        after = page[-1].place
        if kept := page if dead else [message for message in page if message.state in _STANDING]:
            yield kept
        weight = sum(len(message.payload or b"") for message in page) / len(page)
        limit = max(1, min(PAGE_MESSAGES, 2 * limit, int(PAGE_BYTES / max(weight, 1))))
