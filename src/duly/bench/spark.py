"""Spark beside itself: a topic read and written, and Parquet files of the same rows; an archive; a schedule.

Everything goes through a broker, on this machine's processors. The two pairs are measured in turns, the median counts:
what else the machine does falls on both. The archive and the schedule are run once, after a first one that does not
count. Spark's start is not measured. What is archived is a tenant's of its own: nobody else's watermarks move.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import duly
from duly.bench.brokers import own_topics
from duly.clock import monotonic_s

_BATCH = 50_000
_TURNS = 5
# Java compiles what it runs, the longer the better: this much is archived before, and this much is counted.
_WARM, _COUNTED = 2, 4


def measure(url: str, folder: Path, *, messages: int, payload_bytes: int) -> dict[str, float]:
    """Reads, writes, archives and schedules so many messages."""
    from duly.spark.jobs.archive import SESSION_CONF
    from duly.spark.session import session

    spark = session("duly bench", "local[2]", SESSION_CONF)
    try:
        with duly.connect(url) as q, own_topics(q, "read", "written", "queue", "first") as topics:
            figures = _figures(spark, q, url, folder, topics, messages, payload_bytes)
        archived = _archive_per_s(spark, url, folder, messages, payload_bytes)
        return {**figures, "archived": _COUNTED * messages, "archive_per_s": round(archived)}
    finally:
        spark.stop()


def _figures(
    spark: Any, q: duly.Client, url: str, folder: Path, topics: list[str], messages: int, payload_bytes: int
) -> dict[str, float]:
    read, written, queue, first = topics
    q.create_topic(read, kind="log")
    fill(q, read, messages, payload_bytes)
    rows = str(folder / "rows.parquet")
    source = spark.read.format("duly").option("url", url).option("topic", read)
    source.load().write.parquet(rows)

    through_s, parquet_s = _in_turns(
        lambda: _discard(source.load()),
        lambda: _discard(spark.read.parquet(rows)),
    )
    payloads = spark.read.parquet(rows).select("payload").cache()
    payloads.count()
    q.create_topic(written, kind="log")
    target = payloads.write.format("duly").mode("append").option("url", url).option("topic", written)
    turns = itertools.count()
    published_s, files_s = _in_turns(
        target.save, lambda: payloads.write.parquet(str(folder / f"written{next(turns)}.parquet"))
    )
    payloads.unpersist()
    return {
        "messages": messages,
        "read_per_s": round(messages / through_s),
        "read_ratio": round(parquet_s / through_s, 3),
        "write_per_s": round(messages / published_s),
        "write_ratio": round(files_s / published_s, 3),
        "scheduled": messages // 2,
        "schedule_per_s": round(_schedule_per_s(spark, q, url, (first, queue), messages // 2, payload_bytes)),
    }


def fill(q: duly.Client, topic: str, messages: int, payload_bytes: int) -> None:
    """Publishes random payloads."""
    for first in range(0, messages, _BATCH):
        count = min(_BATCH, messages - first)
        ends = pa.py_buffer(np.arange(0, (count + 1) * payload_bytes, payload_bytes, dtype=np.int32))
        flat = pa.py_buffer(os.urandom(count * payload_bytes))
        q.publish(topic, pa.table([pa.Array.from_buffers(pa.binary(), count, [None, ends, flat])], ["payload"]))


def _in_turns(*works: Callable[[], None]) -> list[float]:
    """The median seconds of each, after one turn for nothing."""
    took: list[list[float]] = [[] for _ in works]
    for turn in range(_TURNS + 1):
        for mine, work in zip(took, works, strict=True):
            began = monotonic_s()
            work()
            if turn:
                mine.append(monotonic_s() - began)
    return [median(one) for one in took]


def _discard(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _archive_per_s(spark: Any, url: str, folder: Path, messages: int, payload_bytes: int) -> float:
    from duly.spark.jobs.archive import Archiver
    from duly.spark.lake import Lake

    tenant = "duly-bench"
    with (
        duly.connect(url, tenant=tenant) as q,
        own_topics(q, "warm", "archived") as topics,
        Archiver(spark, Lake(str(folder / "lake")), url, [tenant]) as archiver,
    ):
        for topic, count in zip(topics, (_WARM * messages, _COUNTED * messages), strict=True):
            q.create_topic(topic, kind="log", archive=True)
            fill(q, topic, count, payload_bytes)
            began = monotonic_s()
            archiver.run(every_s=None, progress=lambda _: None)
            took = monotonic_s() - began
            (part,) = q.describe_topic(topic).partitions
            assert part.archived_to == count, "the archive is not whole"
    return count / took


def _schedule_per_s(
    spark: Any, q: duly.Client, url: str, topics: tuple[str, str], messages: int, payload_bytes: int
) -> float:
    """Rows with due times, priorities, lanes and ids onto a queue; after a first one that does not count."""
    frame = spark.range(0, messages, 1, 4).selectExpr(
        f"cast(repeat('x', {payload_bytes}) as binary) as payload",
        "concat('m', id) as id",
        "cast(id % 1000 as int) as priority",
        "concat('lane', id % 100) as lane",
        "timestamp_seconds(unix_seconds(now()) + 86400 + id % 86400) as due_at",
    )
    for topic in topics:
        q.create_topic(topic, kind="queue")
        began = monotonic_s()
        frame.write.format("duly").mode("append").option("url", url).option("topic", topic).save()
        took = monotonic_s() - began
        assert q.describe_topic(topic).messages == messages, "not everything was scheduled"
    return messages / took
