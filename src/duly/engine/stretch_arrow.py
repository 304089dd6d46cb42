"""Pieces of a stretch as record batches: one batch a piece, column by column, no work a message where it is Arrow.

Readers pay by the batch (Spark about a millisecond each), so the blocks of a piece become one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ..message import MADE_ID_MARK
from .arrays import arrow_array
from .claimed import Slice
from .columns import Columns, arrow_schema, join, to_arrow, with_nulls
from .stretch import READ_COLUMNS, Piece, Stretch, check_columns

# What is read: every column of a message, times in milliseconds. `id` is there for all, made or given; `priority` for
# all of a queue. Without a `due_at` it was due at once.
_TYPES = {
    "id": pa.string(),
    "key": pa.string(),
    "lane": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    "payload": pa.binary(),
}
READ_SCHEMA = pa.schema([pa.field(name, _TYPES.get(name, pa.int64())) for name in READ_COLUMNS])

# They are not stored with each message.
_PLACES = ("partition", "offset", "published_at")


@cache
def read_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The schema of those columns, in the order of READ_SCHEMA; of all, if none are named. Raises InvalidArgument."""
    check_columns(columns)
    return pa.schema([field for field in READ_SCHEMA if not columns or field.name in columns])


def read_pieces(look: Callable[[Stretch], Piece], stretch: Stretch, piece: Piece) -> Iterator[pa.RecordBatch]:
    """A stretch from a piece of it on; `look` reads the next. What was published meanwhile is left to the next read."""
    while True:
        if piece.slices:
            yield to_batch(stretch, piece)
        if piece.rest is None:
            return
        piece = look(replace(stretch, offset=piece.rest, end=piece.end))


def to_batch(stretch: Stretch, piece: Piece) -> pa.RecordBatch:
    """A piece that is not empty, with the columns that are wanted of it."""
    schema = read_schema(stretch.columns)
    found = _stored(piece.slices, [name for name in schema.names if name not in _PLACES])
    counts = np.fromiter((part.stop - part.start for part in piece.slices), np.int64, len(piece.slices))
    arrays = [_column(field, stretch, piece, counts, found) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(
    field: Any, stretch: Stretch, piece: Piece, counts: np.ndarray[Any, Any], found: pa.RecordBatch
) -> pa.Array:
    if field.name == "partition":
        return arrow_array(np.full(int(counts.sum()), stretch.partition), field.type)
    if field.name == "offset":
        return arrow_array(_offsets(piece.slices, counts), field.type)
    if field.name == "published_at":
        times = np.fromiter((part.block.published_at for part in piece.slices), np.int64, len(piece.slices))
        return arrow_array(np.repeat(times, counts), field.type)
    column = found.column(field.name)
    if field.name == "id" and column.null_count:
        return _with_made(column, piece.partition_id, _offsets(piece.slices, counts))
    if field.name == "priority":
        column = column.cast(field.type)
        if piece.queue and column.null_count:
            return column.fill_null(_scalar(0, field.type))
    return column


def _offsets(slices: Sequence[Slice], counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    firsts = np.fromiter((part.block.base + part.start for part in slices), np.int64, len(slices))
    indexes = np.arange(int(counts.sum()))
    return indexes + np.repeat(firsts - (np.cumsum(counts) - counts), counts)


def _with_made(given: pa.Array, partition_id: int, offsets: np.ndarray[Any, Any]) -> pa.Array:
    """Ids, made by where their messages lie for those that were given none."""
    mark = _scalar(f"{MADE_ID_MARK}{partition_id}-", pa.string())
    numbers = arrow_array(offsets, pa.int64()).cast(pa.string())
    made = pc.binary_join_element_wise(mark, numbers, _scalar("", pa.string()))
    return made if given.null_count == len(given) else pc.coalesce(given, made)


@cache
def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Not by pa.scalar: it looks for pandas, as pa.array does (arrays.py)."""
    return arrow_array([value], kind)[0]


def _stored(slices: Sequence[Slice], names: Sequence[str]) -> pa.RecordBatch:
    """The columns of messages as they are stored, those of all slices as one."""
    parts = [part for listed, some in groupby(slices, _is_listed) for part in _parts(listed, some, names)]
    batches = [to_arrow(part) for part in parts]
    # What no block has is made once, and not a block at a time.
    used = {name for batch in batches for name in batch.schema.names}
    schema = arrow_schema([name for name in names if name in used])
    alike = [with_nulls(batch, schema, part.count) for batch, part in zip(batches, parts, strict=True)]
    joined = alike[0] if len(alike) == 1 else pa.concat_batches(alike)
    return with_nulls(joined, arrow_schema(names), sum(part.count for part in parts))


def _is_listed(part: Slice) -> bool:
    return part.block.columns.arrow is None


def _parts(listed: bool, slices: Iterator[Slice], names: Sequence[str]) -> Iterator[Columns]:
    """Blocks as they are; small neighbours together, for each would cost as much to turn into Arrow as a big one."""
    cut = (part.block.columns.slice(part.start, part.stop) for part in slices)
    return iter([join([_only(part, names) for part in cut])]) if listed else cut


def _only(columns: Columns, names: Sequence[str]) -> Columns:
    return Columns(columns.count, lists={name: column for name, column in columns.listed.items() if name in names})
