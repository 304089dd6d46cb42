"""The stream reader: where each partition was read to is Spark's checkpoint, `{"orders": {"0": 12}}`.

    initialOffset ──▶ latestOffset(start, limit) ──▶ partitions(start, end) ──▶ read, in tasks ──▶ latestOffset(end, …)
                        up to `maxRowsPerBatch`, shared out by what is waiting in each partition
                        under AvailableNow never past what was there when the query began

A partition that the start does not speak of is new, and is read from its first offset on. What was truncated before it
was read ends the query, unless failOnDataLoss=false. Nothing is done when Spark commits a batch: it tells of the one
before, and under AvailableNow never of the last, so nobody's archive or truncation may hang on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..client.client import Client
from ..topic import TopicDescription
from .faults import briefly
from .options import EARLIEST, ReadOptions
from .planning import Span, known, present, tasks, where
from .reading import PLAN_TIMEOUT_S, SpanReader, Task

# As Spark keeps them: partitions are text.
Places = dict[str, dict[str, int]]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._spans = SpanReader(options, columns)
        self._target: Places | None = None
        self._client: Client | None = None

    def initialOffset(self) -> Places:  # noqa: N802
        """Where a query that has no checkpoint begins."""
        with briefly():
            q = self._connected()
            return {t.name: _text(where(q, t, self._options.start, EARLIEST)) for t in self._topics()}

    def latestOffset(self, start: Places, limit: ReadLimit) -> Places:  # noqa: N802
        """Where the next batch ends."""
        with briefly():
            topics = self._topics()
            begin = {topic.name: self._begin(topic, start) for topic in topics}
        end = _ends(topics) if self._target is None else self._target
        # Under AvailableNow a checkpoint may be past the end already; an end is never before its start.
        waiting = {
            (name, number): max(0, offset - begin[name][number])
            for name, parts in end.items()
            for number, offset in parts.items()
            if number in begin[name]
        }
        if isinstance(limit, ReadMaxRows):
            waiting = shared(waiting, limit.max_rows)
        found: Places = {name: dict(parts) for name, parts in begin.items()}
        for (name, number), rows in waiting.items():
            found[name][number] = begin[name][number] + rows
        return found

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much a batch may have."""
        most = self._options.max_rows_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> Places:  # noqa: N802
        """Where the topics end, for the query's progress."""
        with briefly():
            return _ends(self._topics())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is all that the query will read."""
        with briefly():
            self._target = _ends(self._topics())

    def partitions(self, start: Places, end: Places) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        with briefly():
            topics = self._topics()
            found = [span for topic in topics for span in self._between(topic, start, end.get(topic.name, {}))]
            return [Task(read) for read in tasks(found, self._options.rows_per_partition)]

    def _between(self, topic: TopicDescription, start: Places, end: Mapping[str, int]) -> Iterator[Span]:
        begin = self._begin(topic, start)
        for part in topic.partitions:
            number = str(part.partition)
            if end.get(number, 0) > begin[number]:
                fail = self._options.fail_on_data_loss
                yield from present(topic, part, begin[number], end[number], fail=fail)

    def _begin(self, topic: TopicDescription, start: Places) -> dict[str, int]:
        """Where a topic's partitions are read from: as was said, and new ones from their first offset on."""
        found: dict[str, int] = {}
        for part in topic.partitions:
            said = start.get(topic.name, {}).get(str(part.partition), part.first_offset)
            found[str(part.partition)] = known(topic, part, said, fail=self._options.fail_on_data_loss)
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """A task's rows."""
        return self._spans.batches(partition)

    def commit(self, end: Places) -> None:
        """Nothing: see above."""

    def stop(self) -> None:
        """Lets go of the store."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> Client:
        """A client, kept from batch to batch in the process that plans."""
        if self._client is None:
            self._client = self._options.home.connect(PLAN_TIMEOUT_S)
        return self._client

    def _topics(self) -> list[TopicDescription]:
        q = self._connected()
        return [q.describe_topic(name) for name in self._options.topics]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}


def _text(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(number): offset for number, offset in offsets.items()}


def _ends(topics: Sequence[TopicDescription]) -> Places:
    return {t.name: {str(part.partition): part.next_offset for part in t.partitions} for t in topics}


def shared(waiting: Mapping[tuple[str, str], int], most: int) -> dict[tuple[str, str], int]:
    """So many rows dealt out in proportion to what waits, to the last one."""
    total = sum(waiting.values())
    if total <= most:
        return dict(waiting)
    dealt, before, given = {}, 0, 0
    for place, rows in waiting.items():
        before += rows
        upto = before * most // total
        dealt[place], given = upto - given, upto
    return dealt
