"""Which messages of a lake are meant: by topic, time, offset, key, lane, or whatever SQL can say of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..errors import InvalidArgument
from .causes import explained
from .lake import Version

# Messages of a lake in the order in which they are replayed.
ORDER = ("published_at", "partition_id", "offset")


class Selection(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages of one topic. Times are milliseconds, [since, until); offsets are [first, end) of each partition."""

    tenant: str
    topic: str
    incarnation: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    partition: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    key: str | None = None
    lane: str | None = None
    where: str | None = None

    def rows(self, spark: SparkSession, version: Version, span_ms: tuple[int, int] | None = None) -> DataFrame:
        """The messages in a version of the lake; with a span, at most those published in it. Raises Error."""
        low, high = span_ms or (self.since_ms, None if self.until_ms is None else self.until_ms - 1)
        paths = [str(file["path"]) for file in version.files().to_pylist() if self._may_have(file, low, high)]
        rows = version.messages(spark, paths).where((f.col("tenant") == self.tenant) & (f.col("topic") == self.topic))
        equal = {name: getattr(self, name) for name in ("incarnation", "partition", "key", "lane")}
        for name, value in equal.items():
            if value is not None:
                rows = rows.where(f.col(name) == value)
        bounds = (
            ("published_at", self.since_ms, self.until_ms, f.timestamp_millis),
            ("offset", self.first_offset, self.end_offset, lambda column: column),
        )
        for name, least, end, converted in bounds:
            if least is not None:
                rows = rows.where(f.col(name) >= converted(f.lit(least)))
            if end is not None:
                rows = rows.where(f.col(name) < converted(f.lit(end)))
        if self.where is None:
            return rows
        try:
            return rows.where(f.expr(self.where))
        except Exception as error:
            raise explained(error) from error

    def _may_have(self, file: dict[str, Any], low_ms: int | None, high_ms: int | None) -> bool:
        """Whether a file's place and bounds leave room for messages that are meant."""
        if (file["partition.tenant"], file["partition.topic"]) != (self.tenant, self.topic):
            return False
        last = None if self.end_offset is None else self.end_offset - 1
        return _overlaps(file, "published_at", low_ms, high_ms) and _overlaps(file, "offset", self.first_offset, last)


def _overlaps(file: dict[str, Any], name: str, low: int | None, high: int | None) -> bool:
    least, most = (_number(file.get(f"{bound}.{name}")) for bound in ("min", "max"))
    return not (
        (high is not None and least is not None and least > high)
        or (low is not None and most is not None and most < low)
    )


def _number(bound: Any) -> int | None:
    """A bound of a file; of times, in milliseconds."""
    return bound if bound is None or isinstance(bound, int) else int(bound.timestamp() * 1000)


class Portion(msgspec.Struct, frozen=True):
    """What is meant of one incarnation of the store: messages, payload bytes, and from when to when."""

    incarnation: str
    messages: int
    bytes: int
    first_ms: int
    last_ms: int


def portions(rows: DataFrame) -> list[Portion]:
    """What there is, by incarnation, the oldest first."""
    counted = rows.groupBy("incarnation").agg(
        f.count("*"),
        f.sum(f.length("payload")),
        f.min(f.unix_millis("published_at")),
        f.max(f.unix_millis("published_at")),
    )
    try:
        found = counted.collect()
    except Exception as error:
        raise explained(error) from error
    return sorted((Portion(*row) for row in found), key=lambda one: one.first_ms)


def check_one_store(found: Sequence[Portion], chosen: str | None) -> None:
    """Refuses several incarnations: a restored store has once more what was there before. Raises InvalidArgument."""
    if len(found) > 1 and chosen is None:
        each = ", ".join(f"{one.incarnation} ({one.messages} messages)" for one in found)
        raise InvalidArgument(
            f"These are messages of a store and of what it was restored to: {each}. What both have would come twice. "
            "Say which incarnation is meant."
        )
