"""Recording what happens, in the transaction in which it happens.

    a verb ──record──▶ aftermath ──commit──▶ one row of the transaction ──pack──▶ `$events`, a log of the tenant

A transaction's events become one row of JSON, beside what they tell of: they are stored with it or not at all, and
cost one small insert however many callers the commit had. A chore moves such rows into the tenant's system log
`$events` by the thousand (event_log.py). Nothing is recorded of system topics, or there would be no end to it.

An event is about a range of offsets where it can be. Offsets that are no range are told once, by their differences,
when they are claimed; later events of all of a lease name the lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from ..events import Event
from ..store.contract import LeaseRow, TopicRow, Transaction
from .agenda import PACK, SOON_MS, schedule_store
from .lease import live_offsets

_encoder = msgspec.json.Encoder()


def record(
    tx: Transaction,
    topic: TopicRow,
    kind: str,
    *,
    group: str = "",
    partition: int | None = None,
    offset: int = 0,
    count: int = 0,
    **more: Any,
) -> None:
    """Adds an event to what is stored with the transaction."""
    if topic.name[0] == "$":
        return
    number = 0 if partition is None else topic.partitions.index(partition)
    event = Event(kind, tx.now_ms, topic.tenant, topic.name, group, number, offset, count, **more)
    tx.aftermath.records.append((topic.tenant_id, event))


def record_some(
    tx: Transaction, topic: TopicRow, kind: str, partition: int, offsets: Sequence[int], **more: Any
) -> None:
    """The same of messages at some offsets of a partition."""
    if topic.name[0] == "$" or not offsets:
        return
    offset, deltas = spread(offsets)
    record(tx, topic, kind, partition=partition, offset=offset, count=len(offsets), deltas=deltas, **more)


def record_claim(tx: Transaction, topic: TopicRow, group: str, row: LeaseRow, lease_id: int) -> None:
    """The claim of a lease, with all its messages."""
    if topic.name[0] == "$":
        return
    more: dict[str, Any] = {"facts": {"attempts": row.attempts}} if row.attempts > 1 else {}
    if row.offsets is None and row.live == row.count:
        offset = row.base
    else:
        every = row.offsets if row.offsets is not None and row.live == row.count else live_offsets(row)
        offset, more["deltas"] = spread(every)
    record(
        tx,
        topic,
        "claimed",
        group=group,
        partition=row.partition,
        offset=offset,
        count=row.live,
        consumer=row.consumer,
        lease=lease_id,
        **more,
    )


def of_lease(row: LeaseRow) -> dict[str, Any]:
    """What an event says of all that is left of a lease."""
    whole = row.offsets is not None or row.live < row.count
    return {"partition": row.partition, "offset": row.base, "count": row.live, "lease": row.id, "whole": whole}


def spread(offsets: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """The first of some offsets, and the differences from each to the next; none, if they are a range."""
    if len(offsets) == 1:
        return int(offsets[0]), ()
    ascending = np.sort(np.asarray(offsets, np.int64))
    first = int(ascending[0])
    if int(ascending[-1]) - first + 1 == len(ascending):
        return first, ()
    return first, tuple(np.diff(ascending).tolist())


def write_records(tx: Transaction) -> None:
    """Stores what was recorded; the last thing that a transaction does."""
    records = tx.aftermath.records
    if not records:
        return
    if len({tenant_id for tenant_id, _ in records}) == 1:
        tx.events_insert(records[0][0], _encoder.encode([event for _, event in records]))
    else:
        by_tenant: dict[int, list[Event]] = {}
        for tenant_id, event in records:
            by_tenant.setdefault(tenant_id, []).append(event)
        for tenant_id, events in by_tenant.items():
            tx.events_insert(tenant_id, _encoder.encode(events))
    schedule_store(tx, PACK, tx.now_ms + SOON_MS)
