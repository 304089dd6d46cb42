"""What a claim got, on its way to the consumer.

Up to 63 messages travel as lists beside their leases, in msgpack (a record batch of one message costs more than all
the rest of a claim). More of them travel as one record batch in Arrow's IPC format, in the same place, with the columns
that they use; a stream of Flight's has one schema, and the columns that nobody uses would be a third of its bytes. What
is big is a record batch of the stream all the same, with every column, for it is copied less often there.
One who asks for `arrow` always gets that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ..engine.block import Block, Place
from ..engine.claimed import Claimed, Parcel, Slice
from ..engine.columns import ARROW_FROM, NAMES, Columns, arrow_schema, gather, join, listed, to_arrow, with_nulls
from ..engine.verdict import Verdicts

if TYPE_CHECKING:
    import pyarrow as pa

_PACKED_BYTES_MAX = 1024 * 1024


class Held(msgspec.Struct, frozen=True, array_like=True):
    """One lease: whose messages come next, in runs of (how many, index of the first in the lease, offset of the first,
    when they were published). An offset of -1: both are in columns, each message has its own.
    """

    lease_id: int
    partition: int
    partition_id: int
    attempt: int
    runs: tuple[tuple[int, int, int, int], ...]
    attempts: tuple[int, ...] | None = None


class Handed(msgspec.Struct, frozen=True):
    """A claim's answer. Its messages are in `lists`, or `packed` with the columns of `names`, or in a record batch."""

    topic: str
    group: str
    incarnation: str
    lease_ms: int
    expires_at: int
    leases: tuple[Held, ...]
    next_due: int | None = None
    lists: dict[str, list[Any]] | None = None
    names: tuple[str, ...] = ()
    packed: bytes | None = None
    settled: Verdicts | None = None


def to_wire(
    claimed: Claimed, *, arrow: bool = False, packed_bytes_max: int = _PACKED_BYTES_MAX
) -> tuple[Handed, pa.RecordBatch | None]:
    """What is sent: the leases, and the messages with them or beside them."""
    slices = [part for parcel in claimed.parcels for part in parcel.slices]
    handed = Handed(
        claimed.topic,
        claimed.group,
        claimed.incarnation,
        claimed.lease_ms,
        claimed.expires_at,
        (),
        claimed.next_due,
        settled=claimed.settled,
    )
    if not slices:
        return handed, None
    many = arrow or claimed.count >= ARROW_FROM
    if many and not arrow and sum(part.block.columns.bytes for part in slices) <= packed_bytes_max:
        # Unless some know their places, they lie in a row, as their runs tell.
        in_a_row = not any("offset" in part.block.columns.names for part in slices)
        batch = to_arrow(gather([_sliced(part) if in_a_row else placed(part) for part in slices]))
        packed, names = batch.serialize().to_pybytes(), tuple(batch.schema.names)
        return replace(handed, leases=_leases(claimed, in_a_row), names=names, packed=packed), None
    parts = [placed(part) for part in slices]
    handed = replace(handed, leases=_leases(claimed, False))
    if many:
        return handed, whole(gather(parts))
    few = join([listed(part) for part in parts])
    return replace(handed, lists={name: few.listed[name] for name in few.names}), None


def _leases(claimed: Claimed, in_a_row: bool) -> tuple[Held, ...]:
    return tuple(
        Held(
            parcel.lease_id,
            parcel.partition,
            parcel.partition_id,
            parcel.attempt,
            tuple(_run(part, in_a_row) for part in parcel.slices),
            parcel.attempts,
        )
        for parcel in claimed.parcels
    )


def _run(part: Slice, in_a_row: bool) -> tuple[int, int, int, int]:
    block, count = part.block, part.stop - part.start
    return (count, part.first_index, *((block.base + part.start, block.published_at) if in_a_row else (-1, 0)))


def _sliced(part: Slice) -> Columns:
    return part.block.columns.slice(part.start, part.stop)


def placed(part: Slice) -> Columns:
    """A slice's messages, each with its offset and its time of publishing."""
    block = part.block
    columns = _sliced(part)
    places: dict[str, Any] = {}
    names = columns.names
    if "offset" not in names:
        places["offset"] = np.arange(block.base + part.start, block.base + part.stop)
    if "published_at" not in names:
        places["published_at"] = np.full(columns.count, block.published_at)
    return columns.having(**places) if places else columns


def whole(columns: Columns) -> pa.RecordBatch:
    """A record batch with all columns: a stream has one schema, whatever a claim finds."""
    return with_nulls(to_arrow(columns), delivered_schema())


def delivered_schema() -> pa.Schema:
    """The Arrow schema of deliveries."""
    return arrow_schema(NAMES)


def from_wire(handed: Handed, batch: pa.RecordBatch | None) -> Claimed:
    """The claim's answer again, as an embedded one would be."""
    columns = _received(handed, batch)
    parcels: list[Parcel] = []
    at = 0
    for lease in handed.leases:
        slices = tuple(_slices(lease, columns, at))
        count = sum(run[0] for run in lease.runs)
        parcels.append(
            Parcel(lease.lease_id, lease.partition, lease.partition_id, lease.attempt, count, slices, lease.attempts)
        )
        at += count
    return Claimed(
        handed.topic,
        handed.group,
        handed.incarnation,
        handed.lease_ms,
        handed.expires_at,
        parcels,
        next_due=handed.next_due,
        settled=handed.settled,
    )


def _received(handed: Handed, batch: pa.RecordBatch | None) -> Columns:
    if handed.packed is not None:
        import pyarrow as pa

        message = pa.ipc.read_message(pa.py_buffer(handed.packed))
        batch = pa.ipc.read_record_batch(message, arrow_schema(handed.names))
        return Columns(batch.num_rows, arrow=batch)
    if batch is None:
        lists = handed.lists or {"payload": []}
        return Columns(len(lists["payload"]), lists=lists)
    used = [name for name in batch.schema.names if batch.column(name).null_count < batch.num_rows or name == "payload"]
    return Columns(batch.num_rows, arrow=batch.select(used))


def _slices(lease: Held, columns: Columns, at: int) -> Iterator[Slice]:
    for count, first_index, offset, published_at in lease.runs:
        # A block that begins so far before that its message number `at` has this offset.
        place = Place(0, lease.partition_id, offset - at)
        yield Slice(Block(place, columns.count, published_at, columns, []), at, at + count, first_index)
        at += count
