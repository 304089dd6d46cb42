"""What a claim got, on its way to the consumer.

Up to 63 messages travel as lists beside their leases, in msgpack; more as one Arrow record batch with every column of
DELIVERED (a record batch of one message costs more than all the rest of a claim). One who asks for `arrow` always gets
a record batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ..engine.block import Block, Place
from ..engine.claimed import Claimed, Parcel, Slice
from ..engine.columns import ARROW_FROM, Columns, arrow_schema, gather, join, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

# The columns of a batch of deliveries, in order.
DELIVERED = ("payload", "id", "key", "headers", "expires_at", "lane", "priority", "due_at", "published_at", "offset")


class Held(msgspec.Struct, frozen=True, array_like=True):
    """One lease: whose messages come next, in runs of (how many, index of the first in the lease)."""

    lease_id: int
    partition: int
    partition_id: int
    attempt: int
    runs: tuple[tuple[int, int], ...]
    attempts: tuple[int, ...] | None = None


class Handed(msgspec.Struct, frozen=True):
    """A claim's answer without its record batch; `lists` has the messages when they are few."""

    topic: str
    group: str
    incarnation: str
    lease_ms: int
    expires_at: int
    leases: tuple[Held, ...]
    next_due: int | None = None
    lists: dict[str, list[Any]] | None = None


def to_wire(claimed: Claimed, *, arrow: bool = False) -> tuple[Handed, pa.RecordBatch | None]:
    """What is sent: the leases, and the messages with them or beside them."""
    leases: list[Held] = []
    parts: list[Columns] = []
    for parcel in claimed.parcels:
        runs = tuple((part.stop - part.start, part.first_index) for part in parcel.slices)
        leases.append(
            Held(parcel.lease_id, parcel.partition, parcel.partition_id, parcel.attempt, runs, parcel.attempts)
        )
        parts += [placed(part) for part in parcel.slices]
    lists = batch = None
    if parts and (arrow or claimed.count >= ARROW_FROM):
        batch = whole(gather(parts))
    elif parts:
        few = join([_listed(part) for part in parts])
        lists = {name: few.listed[name] for name in few.names}
    handed = Handed(
        claimed.topic,
        claimed.group,
        claimed.incarnation,
        claimed.lease_ms,
        claimed.expires_at,
        tuple(leases),
        claimed.next_due,
        lists,
    )
    return handed, batch


def placed(part: Slice) -> Columns:
    """A slice's messages, each with its offset and its time of publishing."""
    block = part.block
    columns = block.columns.slice(part.start, part.stop)
    places: dict[str, Any] = {}
    if "offset" not in columns.names:
        places["offset"] = list(range(block.base + part.start, block.base + part.stop))
    if "published_at" not in columns.names:
        places["published_at"] = [block.published_at] * columns.count
    return columns.having(**places) if places else columns


def _listed(columns: Columns) -> Columns:
    return Columns(columns.count, lists={name: columns.values(name) or [] for name in columns.names})


def whole(columns: Columns) -> pa.RecordBatch:
    """A record batch with all columns: a stream has one schema, whatever a claim finds."""
    import pyarrow as pa

    batch = to_arrow(columns)
    schema, names = delivered_schema(), batch.schema.names
    arrays = [batch.column(f.name) if f.name in names else pa.nulls(batch.num_rows, f.type) for f in schema]
    return pa.record_batch(arrays, schema=schema)


def delivered_schema() -> pa.Schema:
    """The Arrow schema of deliveries."""
    return arrow_schema(DELIVERED)


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
    )


def _received(handed: Handed, batch: pa.RecordBatch | None) -> Columns:
    if batch is None:
        lists = handed.lists or {"payload": []}
        return Columns(len(lists["payload"]), lists=lists)
    used = [name for name in batch.schema.names if batch.column(name).null_count < batch.num_rows or name == "payload"]
    return Columns(batch.num_rows, arrow=batch.select(used))


def _slices(lease: Held, columns: Columns, at: int) -> Iterator[Slice]:
    block = Block(Place(0, lease.partition_id, 0), columns.count, 0, columns, [])
    for count, first_index in lease.runs:
        yield Slice(block, at, at + count, first_index)
        at += count
