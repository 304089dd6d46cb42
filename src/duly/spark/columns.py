"""The columns of what is read, as Spark has them, and batches of ours turned into Spark's.

Spark takes Arrow types as they are in its own schema and no others: int64, string, binary, timestamps in microseconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType, TimestampType

from ..engine.arrays import arrow_array
from ..errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_TEXT, _NUMBER, _TIME = StringType(), LongType(), TimestampType()

SPARK_TYPES: dict[str, DataType] = {
    "tenant": _TEXT,
    "topic": _TEXT,
    "partition": _NUMBER,
    "offset": _NUMBER,
    "id": _TEXT,
    "key": _TEXT,
    "headers": MapType(_TEXT, _TEXT),
    "payload": BinaryType(),
    "published_at": _TIME,
    "expires_at": _TIME,
    "lane": _TEXT,
    "priority": _NUMBER,
    "due_at": _TIME,
    # Of the payload, crc32; costs as much as all the rest.
    "checksum": _NUMBER,
    # What tells a topic from another one of the same name, before or after it.
    "incarnation": _TEXT,
    "partition_id": _NUMBER,
}
COLUMNS = tuple(SPARK_TYPES)
# They are there only for who asks for them.
_EXTRA = ("checksum", "incarnation", "partition_id")
DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name not in _EXTRA)

_OURS = ("tenant", "topic", *_EXTRA)
_ARROW_TIME = pa.timestamp("us", tz="UTC")
_ARROW_TYPES: dict[type, pa.DataType] = {
    StringType: pa.string(),
    LongType: pa.int64(),
    BinaryType: pa.binary(),
    TimestampType: _ARROW_TIME,
    MapType: pa.map_(pa.string(), pa.string()),
}


def spark_schema(columns: Sequence[str]) -> StructType:
    """The schema of those columns."""
    return StructType([StructField(name, SPARK_TYPES[name], nullable=True) for name in columns])


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The same, as Arrow has it."""
    return pa.schema([pa.field(name, _ARROW_TYPES[type(SPARK_TYPES[name])]) for name in columns])


def check_schema(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that somebody gave: ours, as many as are wanted, in any order. Raises InvalidArgument."""
    for field in schema.fields:
        if field.name not in SPARK_TYPES:
            raise InvalidArgument(f"There is no column {field.name!r} to read. There are {', '.join(COLUMNS)}.")
        if field.dataType != SPARK_TYPES[field.name] or not field.nullable:
            wanted = SPARK_TYPES[field.name].simpleString()
            raise InvalidArgument(f"The column {field.name} is {wanted}, and may be null; cast it after it is read.")
    return tuple(schema.fieldNames())


def stored_columns(columns: Sequence[str]) -> list[str]:
    """What has to be read for those columns."""
    found = [name for name in columns if name not in _OURS]
    if "checksum" in columns and "payload" not in found:
        found.append("payload")
    # A batch knows how many rows it has by its columns.
    return found or ["offset"]


def to_spark(batch: pa.RecordBatch, given: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """A batch that was read, as Spark takes it; `given` are columns with one value for all."""
    arrays = []
    for field in schema:
        if field.name in given:
            # Not by pa.scalar, which would load pandas into every worker (arrays.py).
            arrays.append(pa.repeat(arrow_array([given[field.name]], field.type)[0], batch.num_rows))
        elif field.name == "checksum":
            arrays.append(checksums(batch.column("payload")))
        elif field.type == _ARROW_TIME:
            arrays.append(batch.column(field.name).view(pa.timestamp("ms", tz="UTC")).cast(_ARROW_TIME))
        else:
            arrays.append(batch.column(field.name))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def checksums(payloads: Any) -> pa.Array:
    """The crc32 of each payload."""
    _, ends, flat = payloads.buffers()
    places = np.frombuffer(ends, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1].tolist()
    view = memoryview(flat if flat is not None else b"")
    sums = [zlib.crc32(view[low:high]) for low, high in pairwise(places)]
    return arrow_array(np.array(sums, np.int64), pa.int64())
