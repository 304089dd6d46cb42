"""A batch of messages as columns: what blocks carry and deliveries read.

A batch is either *listed* (Python lists: small batches, built from messages) or *arrow* (one
record batch: big batches, and tables that come from Arrow, with no work per row). Both have the
same columns; a column that no message uses is absent. The choice is made once, when the batch
is built, and the block remembers it (block.py).

    payload     binary, required
    id, key     string
    headers     map<string, string>
    expires_at  int64, milliseconds since 1970
    lane, priority, due_at   of a queue's messages
    published_at, offset     of messages gathered from several blocks: each brings its own
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

# Their order is part of the block format: add at the end.
NAMES = (
    "payload",
    "id",
    "key",
    "headers",
    "expires_at",
    "lane",
    "priority",
    "due_at",
    "published_at",
    "offset",
)

# Below this a record batch costs more bytes and time than lists do.
ARROW_FROM = 256
# Made once and cut: most batches are no longer.
_NULLS = 4096


class Columns:
    """An immutable batch of messages, by column."""

    __slots__ = ("_lists", "arrow", "count")

    def __init__(
        self, count: int, *, lists: Mapping[str, list[Any]] | None = None, arrow: pa.RecordBatch | None = None
    ) -> None:
        self.count = count
        self.arrow = arrow
        self._lists: dict[str, list[Any]] = dict(lists or {})

    @property
    def listed(self) -> Mapping[str, list[Any]]:
        """The columns of a listed batch."""
        return self._lists

    @property
    def names(self) -> list[str]:
        """The columns that some message uses, in the order of NAMES."""
        present = self._lists if self.arrow is None else self.arrow.schema.names
        return [name for name in NAMES if name in present]

    def has(self, name: str) -> bool:
        """Whether some message uses a column."""
        return name in (self._lists if self.arrow is None else self.arrow.schema.names)

    def values(self, name: str, start: int = 0, stop: int | None = None) -> list[Any] | None:
        """A column, or a slice of it, as Python values; None when no message uses it."""
        stop = self.count if stop is None else stop
        if self.arrow is None:
            column = self._lists.get(name)
            return column if column is None or (start == 0 and stop == self.count) else column[start:stop]
        if name not in self.arrow.schema.names:
            return None
        found: list[Any] = self.arrow.column(name).slice(start, stop - start).to_pylist()
        return [dict(pairs) if pairs else None for pairs in found] if name == "headers" else found

    def sizes(self) -> np.ndarray[Any, Any]:
        """The payload bytes of every message."""
        import numpy as np

        if self.arrow is None:
            return np.array([len(payload or b"") for payload in self._lists["payload"]], np.int64)
        return _offsets(self.arrow)[1:] - _offsets(self.arrow)[:-1]

    def size(self, index: int) -> int:
        """The payload bytes of one message."""
        if self.arrow is None:
            return len(self._lists["payload"][index])
        offsets = _offsets(self.arrow)
        return int(offsets[index + 1] - offsets[index])

    @property
    def bytes(self) -> int:
        """The payload bytes of all messages."""
        if self.arrow is None:
            return sum([len(payload or b"") for payload in self._lists["payload"]])
        offsets = _offsets(self.arrow)
        return int(offsets[-1] - offsets[0])

    def coded(self, name: str) -> tuple[np.ndarray[Any, Any], list[Any]]:
        """A column as (number of its value, -1 for none) a message, and the distinct values."""
        import numpy as np

        if self.arrow is None:
            distinct: dict[Any, int] = {}
            codes = [-1 if v is None else distinct.setdefault(v, len(distinct)) for v in self._lists[name]]
            return np.array(codes, dtype=np.int64), list(distinct)
        import pyarrow.compute as pc

        from .arrays import numpy_array

        coded = pc.dictionary_encode(self.arrow.column(name))
        return numpy_array(coded.indices, -1), coded.dictionary.to_pylist()

    def numbers(self, name: str, missing: int) -> np.ndarray[Any, Any]:
        """A column of numbers, with a value where a message has none."""
        import numpy as np

        if not self.has(name):
            return np.full(self.count, missing, np.int64)
        if self.arrow is None:
            values = self._lists[name]
            return np.array([missing if v is None else v for v in values] if None in values else values, np.int64)
        from .arrays import numpy_array

        column = self.arrow.column(name)
        if column.null_count:
            # Its own kind of number may not hold the value.
            column = column.cast("int64")
        return numpy_array(column, missing).astype(np.int64)

    def without(self, name: str) -> list[int]:
        """The indexes of messages that have nothing in a column."""
        if self.arrow is None:
            values = self._lists[name]
            return [at for at, value in enumerate(values) if value is None] if None in values else []
        column = self.arrow.column(name)
        return [] if not column.null_count else [at for at, has in enumerate(column.is_valid().to_pylist()) if not has]

    def having(self, **columns: Any) -> Columns:
        """The same messages with some columns put in place; each a list or an array of numbers."""
        if self.arrow is None:
            plain = {name: c if isinstance(c, list) else c.tolist() for name, c in columns.items()}
            return Columns(self.count, lists={**self._lists, **plain})
        import pyarrow as pa

        from .arrays import arrow_array

        names = [name for name in NAMES if name in self.arrow.schema.names or name in columns]
        schema = arrow_schema(names)
        arrays = [
            arrow_array(columns[entry.name], entry.type) if entry.name in columns else self.arrow.column(entry.name)
            for entry in schema
        ]
        return Columns(self.count, arrow=pa.record_batch(arrays, schema=schema))

    def counted(self, header: str) -> dict[str, int]:
        """How many messages have each value of a header; one that is empty is none."""
        if not self.has("headers"):
            return {}
        if self.arrow is None:
            values = [headers[header] for headers in self._lists["headers"] if headers and header in headers]
        else:
            import pyarrow.compute as pc

            found = pc.map_lookup(self.arrow.column("headers"), header, "last")
            values = [] if found.null_count == self.count else found.drop_null().to_pylist()
        return dict(Counter(filter(None, values)))

    def with_header(self, header: str, value: str) -> Columns:
        """The same messages, with a header in those that have none of that name."""
        one = {header: value}
        if not self.has("headers"):
            given: list[Any] = [one] * self.count
        else:
            before = self.values("headers") or []
            given = [one if not known else known if header in known else {**known, **one} for known in before]
        if self.arrow is not None:
            given = [list(headers.items()) for headers in given]
        return self.having(headers=given)

    def slice(self, start: int, stop: int) -> Columns:
        """The messages from `start` up to `stop`."""
        if start == 0 and stop == self.count:
            return self
        if self.arrow is None:
            return Columns(stop - start, lists={name: column[start:stop] for name, column in self._lists.items()})
        return Columns(stop - start, arrow=self.arrow.slice(start, stop - start))

    def take(self, indexes: list[int] | np.ndarray[Any, Any]) -> Columns:
        """The messages at `indexes`, in that order."""
        if self.arrow is None:
            at = indexes if isinstance(indexes, list) else indexes.tolist()
            picked = {name: [column[i] for i in at] for name, column in self._lists.items()}
            return Columns(len(at), lists=picked)
        import pyarrow as pa

        from .arrays import arrow_array

        return Columns(len(indexes), arrow=self.arrow.take(arrow_array(indexes, pa.int64())))

    def at_times(self, now_ms: int, ttl_ms: int | None) -> Columns:
        """The same messages with absolute times. A negative due time d stands for -1 - d from now; a negative
        expiry for a ttl, counted from the due time; a missing expiry takes `ttl_ms`.
        """
        import numpy as np

        changed: dict[str, Any] = {}
        due: np.ndarray[Any, Any] = np.full(self.count, now_ms, np.int64)
        if "due_at" in self.names:
            due = self.numbers("due_at", -1)
            due = np.where(due < 0, now_ms - 1 - due, due)
            changed["due_at"] = due
        if ttl_ms is not None or "expires_at" in self.names:
            missing = -ttl_ms if ttl_ms is not None else NEVER
            expires = self.numbers("expires_at", missing)
            expires = np.where(expires < 0, due - expires, expires)
            changed["expires_at"] = [None if at == NEVER else at for at in expires.tolist()]
        return self.having(**changed)


# When messages without an expiry expire.
NEVER = 2**62


def join(parts: Sequence[Columns]) -> Columns:
    """Several listed batches as one."""
    if len(parts) == 1:
        return parts[0]
    columns = [part.listed for part in parts]
    used = set().union(*columns)
    joined: dict[str, list[Any]] = {}
    for name in NAMES:
        if name in used:
            found = [column.get(name) or [None] * part.count for column, part in zip(columns, parts, strict=True)]
            joined[name] = list(chain.from_iterable(found))
    return Columns(sum([part.count for part in parts]), lists=joined)


def gather(parts: Sequence[Columns], order: np.ndarray[Any, Any] | None = None) -> Columns:
    """Several batches as one, their messages in a new order."""
    count = sum([part.count for part in parts])
    if len(parts) == 1 and order is None:
        return parts[0]
    if count < ARROW_FROM or all(part.arrow is None for part in parts):
        joined = join([listed(part) for part in parts])
    else:
        joined = parts[0] if len(parts) == 1 else _join_arrow([to_arrow(part) for part in parts])
    return joined if order is None else joined.take(order)


def listed(columns: Columns) -> Columns:
    """The same messages as lists."""
    if columns.arrow is None:
        return columns
    return Columns(columns.count, lists={name: columns.values(name) or [] for name in columns.names})


def _join_arrow(batches: Sequence[pa.RecordBatch]) -> Columns:
    import pyarrow as pa

    used = {name for batch in batches for name in batch.schema.names}
    schema = arrow_schema([name for name in NAMES if name in used])
    alike = [batch if batch.schema == schema else with_nulls(batch, schema) for batch in batches]
    joined = pa.concat_batches(alike)
    return Columns(joined.num_rows, arrow=joined)


def with_nulls(batch: pa.RecordBatch, schema: pa.Schema, count: int | None = None) -> pa.RecordBatch:
    """The batch with the columns of a schema: nothing in those that it lacks. One without columns has no count."""
    import pyarrow as pa

    names, rows = batch.schema.names, batch.num_rows if count is None else count
    arrays = [batch.column(f.name) if f.name in names else _nulls(f.type, rows) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    import pyarrow as pa

    return _some_nulls(kind).slice(0, count) if count <= _NULLS else pa.nulls(count, kind)


@cache
def _some_nulls(kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.nulls(_NULLS, kind)


def _offsets(batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """The payload column's offsets, from its first message to past its last."""
    import numpy as np

    column = batch.column("payload")
    buffer = column.buffers()[1]
    return np.frombuffer(buffer, dtype=np.int32)[column.offset : column.offset + len(column) + 1]


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The one Arrow schema of those columns."""
    return _schema(tuple(names))


@cache
def _schema(names: tuple[str, ...]) -> pa.Schema:
    import pyarrow as pa

    types = {
        "payload": pa.binary(),
        "id": pa.string(),
        "key": pa.string(),
        "headers": pa.map_(pa.string(), pa.string()),
        "expires_at": pa.int64(),
        "lane": pa.string(),
        "priority": pa.uint16(),
        "due_at": pa.int64(),
        "published_at": pa.int64(),
        "offset": pa.int64(),
    }
    return pa.schema([pa.field(name, types[name]) for name in names])


def to_arrow(columns: Columns) -> pa.RecordBatch:
    """The batch as one Arrow record batch."""
    if columns.arrow is not None:
        return columns.arrow
    import pyarrow as pa

    from .arrays import arrow_array

    schema = arrow_schema(columns.names)
    arrays = []
    for entry in schema:
        values: list[Any] = columns.listed[entry.name]
        if entry.name == "headers":
            values = [None if headers is None else list(headers.items()) for headers in values]
        arrays.append(arrow_array(values, entry.type))
    return pa.record_batch(arrays, schema=schema)
