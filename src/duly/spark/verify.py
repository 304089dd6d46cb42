"""Whether the lake has what it should: read back from a committed version, before any watermark moves.

Of each range: every offset once (from `whole` on), none outside, and every payload with the checksum that was made
where the log was read (in a sealed lake, where it was sealed). Offsets are counted as bits, 64 of them a number:
looking for duplicates costs little more than counting. (Spark's own bitmaps would be sorted for.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import CorruptLake
from .lake import Origin, Range, Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEY = ("incarnation", "tenant", "partition_id")


def verify(spark: SparkSession, version: Version, ranges: Sequence[Range]) -> dict[Origin, int]:
    """How many messages a version has of each range. Raises CorruptLake when one is not as it should be."""
    if not ranges:
        return {}
    found = {tuple(row[name] for name in _KEY): row for row in _measured(spark, version, ranges).collect()}
    return {one.origin: _rows(version, one, found.get(_key(one.origin))) for one in ranges}


def _measured(spark: SparkSession, version: Version, ranges: Sequence[Range]) -> DataFrame:
    from pyspark.sql import functions as f

    bounds = [(*_key(one.origin), one.begin, one.end, max(one.begin, one.whole)) for one in ranges]
    wanted = spark.createDataFrame(
        bounds, "incarnation string, tenant string, partition_id bigint, `begin` bigint, `end` bigint, whole bigint"
    )
    messages = version.stored(spark, version.paths_of(ranges))
    inside = messages.join(f.broadcast(wanted), list(_KEY)).where("offset >= `begin` AND offset < `end`")
    failed = ~f.col("checksum").eqNullSafe(f.crc32("payload"))
    bits = inside.groupBy(*_KEY, f.expr("offset div 64").alias("bucket")).agg(
        f.count("*").alias("rows"),
        f.count(f.when(f.col("offset") >= f.col("whole"), 1)).alias("whole_rows"),
        f.bit_count(f.bit_or(f.expr("shiftleft(1L, cast(offset % 64 as int))"))).alias("offsets"),
        f.count(f.when(failed, 1)).alias("bad"),
        f.min(f.when(failed, f.col("offset"))).alias("first_bad"),
    )
    return bits.groupBy(*_KEY).agg(
        f.sum("rows").alias("rows"),
        f.sum("whole_rows").alias("whole_rows"),
        f.sum("offsets").alias("offsets"),
        f.sum("bad").alias("bad"),
        f.min("first_bad").alias("first_bad"),
    )


def _rows(version: Version, wanted: Range, found: Any) -> int:
    rows, whole_rows, offsets, bad = (0, 0, 0, 0) if found is None else found[3:7]
    should = wanted.end - max(wanted.begin, min(wanted.whole, wanted.end))
    fault = ""
    if bad:
        fault = f"{bad} payloads fail their checksum, the first at offset {found['first_bad']}"
    elif rows != offsets:
        fault = f"{rows - offsets} messages are there twice"
    elif whole_rows != should:
        fault = f"{should - whole_rows} of {should} messages are missing"
    if fault:
        raise CorruptLake(
            f"Version {version.number} of the lake is not what was read: of {wanted.origin}, offsets {wanted.begin} to "
            f"{wanted.end}, {fault}. The watermark stays. Restore the lake, or use another one."
        )
    return int(rows)


def _key(origin: Origin) -> tuple[str, str, int]:
    return origin.incarnation, origin.tenant, origin.partition_id
