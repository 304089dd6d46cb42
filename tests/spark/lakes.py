"""What lies in a lake and in a log, to be compared; an archiver that runs here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import duly
from duly.spark.jobs.archive import SESSION_CONF, Archiver
from duly.spark.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Counter[tuple[Any, ...]]


def archiver(
    spark: SparkSession,
    lake: Path | Lake,
    store: str | Path,
    *tenants: str,
    rows: int = 1_000_000,
    remark: Callable[[str], None] = lambda _: None,
) -> Archiver:
    """One that works in the tests' Spark."""
    for name, value in SESSION_CONF.items():
        spark.conf.set(name, value)
    place = lake if isinstance(lake, Lake) else Lake(str(lake))
    place.create()
    return Archiver(spark, place, str(store), tenants or ("default",), rows_max=rows, remark=remark)


def archive(
    spark: SparkSession, lake: Path | Lake, store: str | Path, *tenants: str, rows: int = 1_000_000
) -> list[str]:
    """Archives what is there; what was remarked."""
    said: list[str] = []
    with archiver(spark, lake, store, *tenants, rows=rows, remark=said.append) as one:
        one.run(every_s=None, progress=lambda _: None)
    return said


def lake_table(lake: Path | Lake) -> pa.Table:
    """All of a lake, read by delta-rs."""
    place = lake if isinstance(lake, Lake) else Lake(str(lake))
    return place.newest().table.to_pyarrow_table()


def in_lake(lake: Path | Lake, topic: str, tenant: str = "default") -> Rows:
    """(partition, offset, id, key, payload) of a topic's messages, counted."""
    table = lake_table(lake).to_pylist()
    return Counter(_row(row) for row in table if (row["tenant"], row["topic"]) == (tenant, topic))


def in_log(q: duly.Client, topic: str) -> Rows:
    """The same, from the store: what is there of it."""
    parts = q.describe_topic(topic).partitions
    return Counter(
        _row(row)
        for part in parts
        for batch in q.read_arrow(topic, partition=part.partition, offset=part.first_offset, missing_ok=True)
        for row in batch.to_pylist()
    )


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["partition"], row["offset"], row["id"], row["key"], row["payload"]


def watermarks(q: duly.Client, topic: str) -> list[int]:
    return [part.archived_to for part in q.describe_topic(topic).partitions]


def ends(q: duly.Client, topic: str) -> list[int]:
    return [part.next_offset for part in q.describe_topic(topic).partitions]
