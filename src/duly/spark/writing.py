"""Writing from Spark: every task stages its rows, and the job's end publishes them, all or none (engine/stage.py).

    task ──stage──▶ a stage of its own, however often the task is tried
    driver ──commit──▶ the stages of the tasks that counted, as one version of one job; ──abort──▶ they are dropped

A batch write is a job of its own unless it is given a name (`job`, and a `version` from run to run): then a version
that was published is not published again. A stream's job is its query, and the version its batch: a batch that Spark
runs again after a crash is stored once.

Spark checks nothing of what it hands to a writer, so the columns are checked here, before the first task runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

import duly

from ..errors import Error, InvalidArgument
from .faults import briefly
from .options import Home, checked_names, home_of, topic_names

# The last two are Spark's own, of streams.
NAMES = ("url", "token", "tenant", "topic", "job", "version", "checkpointLocation", "queryName")
# What is staged in one call: big enough that its round trip does not count, small enough to be held a few times over.
_ROWS_A_CALL = 50_000
_BYTES_A_CALL = 16 * 1024 * 1024
_COMMIT_S = 3600

_NUMBERS = (LongType, IntegerType, ShortType, ByteType)
# What a row may have, and of which types.
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "payload": (BinaryType, StringType),
    "id": (StringType,),
    "key": (StringType,),
    "headers": (MapType,),
    "partition": _NUMBERS,
    "expires_at": (TimestampType,),
    "lane": (StringType,),
    "priority": _NUMBERS,
    "due_at": (TimestampType,),
}
_ARROW = {
    "payload": pa.binary(),
    "id": pa.string(),
    "key": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    "partition": pa.int64(),
    "expires_at": pa.int64(),
    "lane": pa.string(),
    "priority": pa.int64(),
    "due_at": pa.int64(),
}


class Target(msgspec.Struct, frozen=True):
    """Where rows go, and as which version of which job. Pickled with the writer: no connection on it."""

    home: Home
    topic: str
    job: str = ""
    version: int = 0


class Wrote(WriterCommitMessage):
    """What one task staged, and for which batch of which query."""

    def __init__(self, stage: str, messages: int, query: str | None) -> None:
        self.stage = stage
        self.messages = messages
        self.query = query


def check_appending(overwrite: bool) -> None:
    """Messages are added to a topic: nothing is written over. Raises InvalidArgument."""
    if overwrite:
        raise InvalidArgument('A topic is only added to: .mode("append"). Purge it first to replace what it holds.')


def check_columns(schema: StructType) -> None:
    """Refuses rows that are no messages. Raises InvalidArgument."""
    accepted = ", ".join(_COLUMNS)
    for field in schema.fields:
        types = _COLUMNS.get(field.name)
        if types is None:
            raise InvalidArgument(f"There is no column {field.name!r} in a message. Select only: {accepted}.")
        if not isinstance(field.dataType, types):
            wanted = " or ".join(
                kind().simpleString() if kind is not MapType else "map<string,string>" for kind in types
            )
            raise InvalidArgument(f"Column {field.name!r} must be {wanted}, not {field.dataType.simpleString()}.")
    if "payload" not in schema.names:
        raise InvalidArgument(f"Rows have no column 'payload'. A message has: {accepted}.")


def to_messages(batch: pa.RecordBatch) -> pa.Table:
    """Spark's rows as publish takes them."""
    arrays = [_converted(name, batch.column(name)) for name in batch.schema.names]
    return pa.Table.from_arrays(arrays, names=batch.schema.names)


def _converted(name: str, array: pa.Array) -> pa.Array:
    if not pa.types.is_timestamp(array.type):
        return array.cast(_ARROW[name])
    micros = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    # Up to the next millisecond: never early.
    return pc.divide(pc.add(micros, 999), 1000)


class _Writer:
    """What batch and stream have in common."""

    def __init__(self, target: Target, schema: StructType) -> None:
        check_columns(schema)
        with target.home.connect() as q:
            # Said now and once, and not by every task.
            q.describe_topic(target.topic)
        self._target = target
        # Whatever Spark calls a task and its attempts, no two of them ever share a stage.
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages one task's rows."""
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        stage = f"{self._run}-{number}-{uuid.uuid4().hex[:12]}"
        staged = 0
        with briefly(), self._target.home.connect() as q:
            for call, table in enumerate(_gathered(iterator)):
                staged = q.stage(self._target.topic, table, stage=stage, number=call, timeout=_COMMIT_S)
        return Wrote(stage, staged, query)

    def _publish(self, messages: list[WriterCommitMessage | None], job: str, version: int) -> duly.Admitted:
        wrote = [message for message in messages if isinstance(message, Wrote) and message.messages]
        with briefly(), self._target.home.connect() as q:
            stages = {message.stage: message.messages for message in wrote}
            return q.commit_stages(self._target.topic, stages, job=job, version=version, timeout=_COMMIT_S)

    def _drop(self, messages: list[WriterCommitMessage | None]) -> None:
        """What cannot be dropped goes by itself, after a day: why the job failed is more important."""
        stages = [message.stage for message in messages if isinstance(message, Wrote)]
        with suppress(Error), self._target.home.connect() as q:
            q.drop_stages(self._target.topic, stages)


class Writer(_Writer, DataSourceArrowWriter):
    """One batch write."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publishes what the tasks staged."""
        self._publish(messages, self._target.job or self._run, self._target.version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drops it."""
        self._drop(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The batches of one streaming query."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publishes a batch, once, however often Spark runs it."""
        query = next((message.query for message in messages if isinstance(message, Wrote) and message.query), None)
        if query is not None:
            self._publish(messages, self._target.job or f"spark/{query}", batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Drops what was staged of it."""
        self._drop(messages)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Neighbouring batches as one, up to what a call takes."""
    some: list[pa.Table] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if some and (rows + batch.num_rows > _ROWS_A_CALL or size + batch.nbytes > _BYTES_A_CALL):
            yield pa.concat_tables(some).combine_chunks()
            some, rows, size = [], 0, 0
        some.append(to_messages(batch))
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if some:
        yield pa.concat_tables(some).combine_chunks()


def write_options(options: Mapping[str, str]) -> Target:
    """The options of a write. Raises InvalidArgument."""
    given = checked_names(options, NAMES)
    topics = topic_names(given)
    if len(topics) > 1:
        raise InvalidArgument("A write goes to one topic. Split the rows, and write each part to its own.")
    version = given.get("version", "0")
    if not version.isdecimal() or int(version) >= 2**53:
        raise InvalidArgument(f"The option version is a whole number from 0 on; got {version!r}.")
    if "version" in given and "job" not in given:
        raise InvalidArgument('A version belongs to a job: give .option("job", …) too.')
    return Target(home_of(given), topics[0], given.get("job", ""), int(version))
