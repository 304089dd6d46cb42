"""A topic by DoGet: record batches of a stretch of one partition's log, and the tickets that name stretches.

A ticket is msgpack: tenant, topic, partition, offset, an end (exclusive) or none, and the columns that are wanted, or
none for all. GetFlightInfo for a topic gives one a partition, up to what is there at that moment; readers may cut them
smaller. Reading holds no transaction between pieces, so a slow reader keeps nobody from truncating: it then gets
OffsetTruncated, and never a gap (of a queue see engine/stretch.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from ..broker.entry import Entry
from ..engine.stretch import Stretch
from ..engine.stretch_arrow import READ_SCHEMA, read_pieces, read_schema
from ..engine.topics import DescribeTopic
from ..errors import Error
from ..events import log
from ..topic import TopicDescription
from ..wire.checks import CHECKS
from ..wire.operations import encode, unpacking
from .statuses import to_status
from .streams import Streams

_stretches = msgspec.msgpack.Decoder(Stretch)
_topics = msgspec.msgpack.Decoder(DescribeTopic)


def read_ticket(ticket: bytes) -> Stretch:
    """The stretch that a ticket names. Raises InvalidArgument."""
    with unpacking("A ticket is msgpack of tenant, topic, partition, offset, end and columns"):
        stretch = _stretches.decode(ticket)
    for name in ("tenant", "topic", "partition", "offset"):
        CHECKS[name](getattr(stretch, name), name)
    CHECKS["offset"](stretch.end, "end")
    return stretch


def stream(entry: Entry, stretch: Stretch, streams: Streams) -> Any:
    """What DoGet answers with. What is wrong with the stretch is raised now, not in the middle of the stream."""
    schema = read_schema(stretch.columns)
    batches = read_pieces(entry.piece, stretch, entry.piece(stretch))
    return flight.GeneratorStream(schema, _told(_counted(entry, stretch, streams, batches)))


def _counted(
    entry: Entry, stretch: Stretch, streams: Streams, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The batches. The call is over before the first is asked for: so they count as one of their own until they end."""
    with streams.one(), streams.owned(entry.known_tenant()):
        try:
            entry.admit(stretch)
            yield from batches
        finally:
            entry.leave_broker()


def _told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches; what goes wrong on the way ends them with a status of ours."""
    try:
        yield from batches
    except Error as error:
        raise to_status(error) from None
    except Exception as error:
        log.exception("a read failed")
        raise to_status(error) from None


def flight_info(entry: Entry, descriptor: Any) -> flight.FlightInfo:
    """A topic's tickets, one a partition."""
    with unpacking("The descriptor's command is msgpack of tenant and topic"):
        asked = _topics.decode(descriptor.command or b"")
    for name in ("tenant", "topic"):
        CHECKS[name](getattr(asked, name), name)
    # What its tickets are good for.
    entry.foresee((Stretch,), asked.tenant, asked.topic)
    topic: TopicDescription = entry.do(asked, deadline=None)
    stretches = [
        Stretch(asked.tenant, asked.topic, part.partition, part.first_offset, part.next_offset)
        for part in topic.partitions
    ]
    endpoints = [flight.FlightEndpoint(flight.Ticket(encode(stretch)), []) for stretch in stretches]
    return flight.FlightInfo(READ_SCHEMA, descriptor, endpoints, topic.messages, topic.bytes)
