"""A log by DoGet: record batches of a stretch of one partition, and the tickets that name stretches.

A ticket is msgpack: tenant, topic, partition, offset, and an end (exclusive) or none. GetFlightInfo for a topic gives
one a partition, up to what is there at that moment; readers may cut them smaller. Reading holds no transaction between
pieces, so a slow reader keeps nobody from truncating: it then gets OffsetTruncated, and never a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyarrow import flight

from ..broker.broker import Broker
from ..engine.arrays import arrow_array
from ..engine.claimed import Slice
from ..engine.stretch import Stretch, read_piece
from ..engine.topics import DescribeTopic
from ..errors import Error
from ..events import log
from ..message import MADE_ID_MARK
from ..topic import TopicDescription
from ..wire.checks import CHECKS
from ..wire.claims import placed, whole
from ..wire.operations import encode, unpacking
from .statuses import to_status

_stretches = msgspec.msgpack.Decoder(Stretch)
_topics = msgspec.msgpack.Decoder(DescribeTopic)

# What is read: every column of a message; `id` is there for all, made or given.
READ_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("published_at", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("expires_at", pa.int64()),
        pa.field("payload", pa.binary()),
    ]
)


def read_ticket(ticket: bytes) -> Stretch:
    """The stretch that a ticket names. Raises InvalidArgument."""
    with unpacking("A ticket is msgpack of tenant, topic, partition, offset and end"):
        stretch = _stretches.decode(ticket)
    for name in ("tenant", "topic", "partition", "offset"):
        CHECKS[name](getattr(stretch, name), name)
    CHECKS["offset"](stretch.end, "end")
    return stretch


def stream(broker: Broker, stretch: Stretch) -> Any:
    """What DoGet answers with. What is wrong with the stretch is raised now, not in the middle of the stream."""
    first = broker.look(read_piece, stretch)
    return flight.GeneratorStream(READ_SCHEMA, _batches(broker, stretch, first))


def _batches(broker: Broker, stretch: Stretch, piece: Any) -> Iterator[pa.RecordBatch]:
    try:
        while True:
            for part in piece.slices:
                yield _batch(stretch.partition, piece.partition_id, part)
            if piece.rest is None:
                return
            piece = broker.look(read_piece, replace(stretch, offset=piece.rest))
    except Error as error:
        raise to_status(error) from None
    except Exception as error:
        log.exception("a read failed")
        raise to_status(error) from None


def _batch(partition: int, partition_id: int, part: Slice) -> pa.RecordBatch:
    columns = whole(placed(part))
    count = columns.num_rows
    made = pc.binary_join_element_wise(f"{MADE_ID_MARK}{partition_id}-", columns.column("offset").cast(pa.string()), "")
    found = {
        "partition": arrow_array(np.full(count, partition), pa.int64()),
        "id": pc.coalesce(columns.column("id"), made),
    }
    arrays = [found[name] if name in found else columns.column(name) for name in READ_SCHEMA.names]
    return pa.record_batch(arrays, schema=READ_SCHEMA)


def flight_info(broker: Broker, descriptor: Any) -> flight.FlightInfo:
    """A topic's tickets, one a partition."""
    with unpacking("The descriptor's command is msgpack of tenant and topic"):
        asked = _topics.decode(descriptor.command or b"")
    for name in ("tenant", "topic"):
        CHECKS[name](getattr(asked, name), name)
    topic: TopicDescription = broker.do(asked, deadline=None)
    stretches = [
        Stretch(asked.tenant, asked.topic, part.partition, part.first_offset, part.next_offset)
        for part in topic.partitions
    ]
    endpoints = [flight.FlightEndpoint(flight.Ticket(encode(stretch)), []) for stretch in stretches]
    return flight.FlightInfo(READ_SCHEMA, descriptor, endpoints, topic.messages, topic.bytes)
