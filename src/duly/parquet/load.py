"""Import: the messages of a Parquet file into a topic, each once.

The file is read twice, a part at a time. First every row is checked: one that cannot be published refuses the file
whole, before anything is stored, and is named. Then part after part is published, each whole, under a publish id made
of the file's content and the part's place in it. A second import of the same file therefore stores nothing twice,
and one that was broken off goes on where it ended, for as long as publish ids are remembered (a day); in a queue,
messages that have an id of their own are also recognised by that.

A part is a stretch of a row group, cut by rows and by bytes: memory holds a part, whatever the file holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from ..causal import operation
from ..clock import SystemClock
from ..engine.incoming import check_batch
from ..errors import Error, InvalidArgument
from ..limits import LIMITS
from ..message import OPERATION
from ..topic import TopicDescription
from .export import PAGE_BYTES, PAGE_MESSAGES, Advance
from .schema import OF_EITHER, OF_QUEUES, PUBLISHED

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ..client.client import Client

_HASHED_AT_ONCE = 1024 * 1024
_KNOWN = OF_EITHER + OF_QUEUES


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did: `repeated` were stored by an earlier one, `known` are in the queue by their id."""

    messages: int
    repeated: int
    known: int

    @property
    def stored(self) -> int:
        """How many it stored itself."""
        return self.messages - self.repeated - self.known


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of the file, by where they are in it."""

    name: str
    first_row: int
    rows: Any


def import_file(
    client: Client,
    path: str | os.PathLike[str],
    topic: str,
    *,
    any_partition: bool = False,
    checked: Advance = lambda _: None,
    advance: Advance = lambda _: None,
) -> Imported:
    """Publishes a Parquet file's rows (schema.py says which columns) into a topic.

    Into a log, messages keep their partition, unless `any_partition` lets their keys choose. `checked` and `advance`
    hear of every part that was checked, and published. Raises InvalidArgument with the row, and stores nothing.
    """
    found = client.describe_topic(topic)
    with open(path, "rb") as stream:
        identity = _identity(stream)
        with _read_errors(path):
            file = _opened(stream)
            columns = _columns(file, found, any_partition)
            for part in _parts(file, columns):
                _check(part, found)
                checked(part.rows.num_rows)
            return _publish(client, topic, identity, _parts(file, columns), advance)


def _publish(client: Client, topic: str, identity: str, parts: Iterator[_Part], advance: Advance) -> Imported:
    messages = repeated = known = 0
    for part in parts:
        with operation(None):
            receipt = client.publish(topic, _of_none(part.rows), publish_id=f"import-{identity}-{part.name}")
        messages += receipt.count
        if receipt.duplicate:
            repeated += receipt.count
        else:
            known += len(receipt.duplicates)
        advance(receipt.count)
    return Imported(messages, repeated, known)


def _of_none(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same messages, of no operation: who copies them is not in its loop, and would be stopped by its budget."""
    if "headers" not in rows.schema.names or not check_batch(rows).operations:
        return rows
    import pyarrow as pa

    named = rows.column("headers").to_pylist()
    kept = [pairs and [pair for pair in pairs if pair[0] != OPERATION] for pairs in named]
    headers = pa.array(kept, pa.map_(pa.string(), pa.string()))
    return rows.set_column(rows.schema.names.index("headers"), "headers", headers)


def _identity(stream: IO[bytes]) -> str:
    """The file's content as a short text; a copy under another name is the same file."""
    import xxhash

    hashed = xxhash.xxh3_128()
    while some := stream.read(_HASHED_AT_ONCE):
        hashed.update(some)
    stream.seek(0)
    return hashed.hexdigest()


@contextmanager
def _read_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except Error:
        # Some of ours are an OSError too.
        raise
    except (pa.ArrowException, OSError) as error:
        raise InvalidArgument(f"{os.fspath(path)} cannot be read as Parquet: {error}.") from error


def _opened(stream: IO[bytes]) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    # Pages are decoded as they are asked for, and not row groups whole.
    return pq.ParquetFile(stream, pre_buffer=False, buffer_size=_HASHED_AT_ONCE)


def _columns(file: pq.ParquetFile, topic: TopicDescription, any_partition: bool) -> list[str]:
    """The columns to publish; the others tell where messages came from."""
    names = file.schema_arrow.names
    for name in names:
        if name not in _KNOWN:
            raise InvalidArgument(f"There is no column {name!r}. Columns: {', '.join(_KNOWN)}.")
    if "payload" not in names:
        raise InvalidArgument("The file has no column 'payload'.")
    left_out = {"partition"} if topic.kind == "queue" or any_partition else set()
    return [name for name in names if name in PUBLISHED and name not in left_out]


def _parts(file: pq.ParquetFile, columns: list[str]) -> Iterator[_Part]:
    """The file in parts that are small enough to publish. Cut by what the file says alone: always the same."""
    first_row = 0
    for group in range(file.num_row_groups):
        facts = file.metadata.row_group(group)
        weight = facts.total_byte_size / max(1, facts.num_rows)
        most = max(1, min(PAGE_MESSAGES, int(PAGE_BYTES / max(weight, 1))))
        number = 0
        for batch in file.iter_batches(batch_size=most, row_groups=[group], columns=columns):
            for rows in _light_enough(batch):
                yield _Part(f"{group}.{number}", first_row, rows)
                number, first_row = number + 1, first_row + rows.num_rows


def _light_enough(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halves of halves, until each can be published."""
    if batch.num_rows > 1 and batch.nbytes > 2 * PAGE_BYTES:
        middle = batch.num_rows // 2
        yield from _light_enough(batch.slice(0, middle))
        yield from _light_enough(batch.slice(middle))
    elif batch.num_rows:
        yield batch


def _check(part: _Part, topic: TopicDescription) -> None:
    """Refuses a part that could not be published, naming the first row at fault."""
    try:
        _check_rows(part.rows, topic)
    except InvalidArgument as fault:
        row, error = _first_fault(part.rows, topic, fault)
        raise InvalidArgument(
            f"Row {part.first_row + row}, counted from 0: {error} Nothing was imported.", row=part.first_row + row
        ) from fault


def _first_fault(rows: pa.RecordBatch, topic: TopicDescription, fault: InvalidArgument) -> tuple[int, InvalidArgument]:
    for row in range(rows.num_rows):
        try:
            _check_rows(rows.slice(row, 1), topic)
        except InvalidArgument as error:
            return row, error
    return 0, fault


def _check_rows(rows: pa.RecordBatch, topic: TopicDescription) -> None:
    """What publish would refuse: of any message, and of one for this topic."""
    import pyarrow.compute as pc

    check_batch(rows)
    largest = pc.max(pc.binary_length(rows.column("payload"))).as_py()
    if largest > topic.settings.payload_bytes_max:
        raise InvalidArgument(
            f"the payload has {largest} bytes; topic {topic.name!r} takes {topic.settings.payload_bytes_max}."
        )
    for name in set(rows.schema.names) & _RULES.keys():
        column = rows.column(name)
        if column.null_count < len(column):
            _RULES[name](column, topic)


def _highest(column: Any) -> Any:
    import pyarrow.compute as pc

    return pc.max(column).as_py()


def _check_partition(column: Any, topic: TopicDescription) -> None:
    if (highest := _highest(column)) >= len(topic.partitions):
        raise InvalidArgument(
            f"topic {topic.name!r} has no partition {highest}. Have keys choose: --any-partition, any_partition=True."
        )


def _check_due(column: Any, topic: TopicDescription) -> None:
    import pyarrow as pa

    _refuse_in_log("due", topic)
    latest_ms = _highest(column.cast(pa.int64()) if pa.types.is_integer(column.type) else _to_ms(column))
    if latest_ms > SystemClock().now_ms() + LIMITS.due_ms_ahead_max:
        raise InvalidArgument(f"due is more than {LIMITS.due_ms_ahead_max // 86_400_000} days ahead.")


def _to_ms(column: Any) -> Any:
    import pyarrow as pa

    return column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())


def _check_priority(column: Any, topic: TopicDescription) -> None:
    _refuse_in_log("priority", topic)
    lanes = topic.settings.lanes
    if lanes is not None and lanes.max_in_flight == 1 and _highest(column):
        raise InvalidArgument(f"the lanes of {topic.name!r} run in order, one at a time: no priorities.")


def _check_lane(_: Any, topic: TopicDescription) -> None:
    _refuse_in_log("lane", topic)


def _refuse_in_log(what: str, topic: TopicDescription) -> None:
    if topic.kind == "log":
        raise InvalidArgument(f"{what} belongs to queues, and {topic.name!r} is a log.")


_RULES: dict[str, Callable[[Any, TopicDescription], None]] = {
    "partition": _check_partition,
    "due_at": _check_due,
    "priority": _check_priority,
    "lane": _check_lane,
}
