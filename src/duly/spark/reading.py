"""The batch reader: planned by offsets, read as record batches, and filtered where that is asked for.

Taken over from Spark are comparisons of offset and partition, equality of topic and key. Of published_at the bounds are
made offsets of, and the comparison is left to Spark besides. Everything else is handed back.

Only with the option `pushdown`, because Spark (4.3) remembers with a DataFrame what a source took over last: the same
DataFrame, used again without the predicate or twice in one query, would silently lack rows. A reader that implements
pushFilters is asked and remembered, so there are two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ..client.client import Client
from ..engine.arrays import arrow_array
from ..errors import OffsetTruncated
from .columns import arrow_schema, stored_columns, to_spark
from .faults import briefly
from .options import Home, ReadOptions
from .planning import Span, check_loss, place, spans, tasks
from .predicates import Wanted

# Planning asks for little: whoever mistyped an address should not wait for half a minute.
PLAN_TIMEOUT_S = 10


class Task(InputPartition):
    """What one task of Spark's reads."""

    def __init__(self, read: tuple[Span, ...]) -> None:
        super().__init__(read)


class SpanReader:
    """Reads spans as batches of Spark's: what the batch reader and the stream reader have in common."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self.keys: tuple[str, ...] | None = None

    def batches(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """All rows of a task."""
        # Spark makes a task of nothing where there is nothing to read.
        if task.value is None:
            return
        schema = arrow_schema(self._columns)
        home: Home = self._options.home
        with briefly(), home.connect() as q:
            for span in task.value:
                given = {
                    "tenant": q.tenant,
                    "topic": span.topic,
                    "incarnation": span.incarnation,
                    "partition_id": span.partition_id,
                }
                for batch in self._left(q, span):
                    yield to_spark(self._filtered(batch), given, schema)

    def _left(self, q: Client, span: Span) -> Iterator[pa.RecordBatch]:
        """A span, which may have been truncated since it was planned."""
        offset = span.offset
        wanted = stored_columns(self._columns)
        while offset < span.end:
            try:
                yield from q.read_arrow(
                    span.topic,
                    partition=span.partition,
                    offset=offset,
                    end=span.end,
                    columns=wanted,
                    missing_ok=not self._options.fail_on_data_loss,
                )
                return
            except OffsetTruncated as error:
                missing = min(error.first_offset, span.end) - offset
                what = f"{place(span.topic, span.partition)} was truncated while it was read: of "
                what += f"{missing} messages from {offset} on some are gone"
                check_loss(what, error.first_offset, fail=self._options.fail_on_data_loss)
                offset = error.first_offset

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.keys is None:
            return batch
        return batch.filter(pc.is_in(batch.column("key"), value_set=arrow_array(self.keys, pa.string())))


class LogReader(DataSourceReader):
    """Reads topics once, from a place to a place."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._wanted = Wanted()
        self._spans = SpanReader(options, columns)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        with briefly(), self._options.home.connect(PLAN_TIMEOUT_S) as q:
            found = [span for whole in spans(q, self._options) for span in self._wanted.of(q, whole)]
        return [Task(read) for read in tasks(found, self._options.rows_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """A task's rows."""
        return self._spans.batches(partition)


class FilteringReader(LogReader):
    """The same, with predicates taken over: of a DataFrame that is used once."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Takes over the predicates that it can answer, and hands the rest back."""
        left = [one for one in filters if not self._wanted.takes(one)]
        self._spans.keys = self._wanted.keys
        return left
