"""Which offsets are to be read, and by which task.

A task of Spark's costs about 70 ms however little it reads, so a topic's partitions are cut to about `rowsPerPartition`
rows, and small ones go into one task together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from ..client.client import Client
from ..clock import from_ms
from ..errors import InvalidArgument, OffsetTruncated
from ..events import log
from ..topic import PartitionDescription, TopicDescription
from .options import EARLIEST, LATEST, Place, ReadOptions


class Span(msgspec.Struct, frozen=True):
    """Offsets [offset, end) of a topic's partition."""

    incarnation: str
    topic: str
    partition: int
    partition_id: int
    offset: int
    end: int
    queue: bool = False
    # Next to nothing is there, however long it is.
    sparse: bool = False

    @property
    def rows(self) -> int:
        """How many messages it has, if none are missing."""
        return min(1, self.end - self.offset) if self.sparse else self.end - self.offset


def where(q: Client, topic: TopicDescription, place: Place, default: Place) -> dict[int, int]:
    """The offset of a place in every partition of a topic; of those that it does not speak of, that of another."""
    if place.time_ms is not None:
        return dict(q.offset_at(topic.name, from_ms(place.time_ms)))
    word = place.word or default.word
    bounds = {part.partition: part.next_offset if word == "latest" else part.first_offset for part in topic.partitions}
    given = (place.offsets or {}).get(topic.name, {})
    for number in given:
        if number not in bounds:
            raise InvalidArgument(f"Topic {topic.name!r} has partitions 0 to {len(bounds) - 1}; got {number}.")
    return bounds | given


def spans(q: Client, options: ReadOptions) -> Iterator[Span]:
    """What there is to read, a span a partition, as the options say. Raises OffsetTruncated, TopicNotFound."""
    for name in options.topics:
        topic = q.describe_topic(name)
        start, end = where(q, topic, options.start, EARLIEST), where(q, topic, options.end, LATEST)
        begins_early = options.start == EARLIEST and topic.kind == "queue"
        for part in topic.partitions:
            low = 0 if begins_early else start[part.partition]
            yield from present(topic, part, low, end[part.partition], fail=options.fail_on_data_loss)


def present(topic: TopicDescription, part: PartitionDescription, low: int, end: int, *, fail: bool) -> Iterator[Span]:
    """What is there of offsets [low, end). What a log has lost raises OffsetTruncated, or is logged and passed over.

    Of a queue, the stretch before its first offset is a span of its own: what is left there was copied out.
    """
    whole = Span(topic.incarnation, topic.name, part.partition, part.id, low, end, topic.kind == "queue")
    name = place(topic.name, part.partition)
    if low > part.next_offset:
        what = (
            f"{name} ends at offset {part.next_offset}, and {low} was to be read next: it was made anew, or restored."
        )
        check_loss(f"{what} Begin anew, with another checkpoint", part.first_offset, fail=fail)
        low = part.first_offset
    end = min(end, part.next_offset)
    lost = min(part.first_offset, end) - low
    if lost > 0 and not whole.queue:
        what = f"{name} begins at offset {part.first_offset}: {lost} messages from {low} on were truncated."
        check_loss(f"{what} Read them from the archive, or begin anew", part.first_offset, fail=fail)
    elif lost > 0:
        yield replace(whole, offset=low, end=low + lost, sparse=True)
    low = max(low, part.first_offset)
    if low < end:
        yield replace(whole, offset=low, end=end)


def known(topic: TopicDescription, part: PartitionDescription, offset: int, *, fail: bool) -> int:
    """An offset that a partition has, had or will give next; the first one instead of one that it has not come to."""
    if offset <= part.next_offset:
        return offset
    name, first = place(topic.name, part.partition), part.first_offset
    what = f"{name} ends at offset {part.next_offset}, and {offset} was to be read next: it was made anew, or restored."
    check_loss(f"{what} Begin anew, with another checkpoint", first, fail=fail)
    return first


def place(topic: str, partition: int) -> str:
    """A partition, in words."""
    return f"Partition {partition} of {topic!r}"


def check_loss(what: str, first_offset: int, *, fail: bool) -> None:
    """Raises OffsetTruncated, or logs it where the reader is content with what is left."""
    if fail:
        raise OffsetTruncated(f"{what}; or go on with what is left: failOnDataLoss=false.", first_offset=first_offset)
    log.warning("%s. Going on with what is left.", what)


def tasks(found: Iterable[Span], rows: int) -> list[tuple[Span, ...]]:
    """Spans cut evenly to at most so many rows, small neighbours together."""
    packed: list[list[Span]] = []
    room = 0
    for span in found:
        for part in _cut(span, rows):
            if part.rows > room:
                packed.append([])
                room = rows
            packed[-1].append(part)
            room -= part.rows
    return [tuple(task) for task in packed]


def _cut(span: Span, rows: int) -> Iterator[Span]:
    pieces, length = -(-span.rows // rows), span.end - span.offset
    for number in range(pieces):
        low, high = (span.offset + length * at // pieces for at in (number, number + 1))
        yield replace(span, offset=low, end=high)
