"""readStream.format("duly"): every message in exactly one batch, batches bounded, losses said, nothing truncated."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import duly
from duly.spark.options import read_options
from duly.spark.streaming import LogStreamReader, shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_names = itertools.count()


def stream_reader(store: str, topic: str, **options: Any) -> LogStreamReader:
    return LogStreamReader(read_options({"url": store, "topic": topic, **options}), ["offset"])


class Stream:
    """A query that can be run again from its checkpoint, and what it has gathered."""

    def __init__(self, spark: SparkSession, folder: Path, url: str, topic: str, **options: Any) -> None:
        self._spark = spark
        self._folder = folder
        self._options = {"url": url, "topic": topic, **options}
        self.sizes: list[int] = []

    def start(self, **trigger: Any) -> StreamingQuery:
        source = self._spark.readStream.format("duly").options(**self._options).load()
        sink = source.writeStream.format("parquet").option("checkpointLocation", str(self._folder / "checkpoint"))
        return sink.trigger(**trigger).start(str(self._folder / "out"))

    def run(self) -> list[bytes]:
        """Reads what is there; answers with all that was ever gathered, in order."""
        query = self.start(availableNow=True)
        query.awaitTermination()
        if (error := query.exception()) is not None:
            raise error
        self.sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        return self.gathered

    @property
    def gathered(self) -> list[bytes]:
        rows = self._spark.read.parquet(str(self._folder / "out")).orderBy("topic", "partition", "offset").collect()
        return [bytes(row.payload) for row in rows]


def numbers(low: int, high: int, **more: Any) -> list[duly.Message]:
    return [duly.Message(b"%05d" % n, **more) for n in range(low, high)]


def test_what_is_there_is_read_in_bounded_batches_and_each_message_once(
    spark: SparkSession, broker: str, q: duly.Client, topic: str, tmp_path: Path
) -> None:
    q.create_topic(topic, kind="log", partitions=2)
    q.publish(topic, numbers(0, 600, partition=0) + numbers(600, 1000, partition=1))
    stream = Stream(spark, tmp_path, broker, topic, maxRowsPerBatch=400, columns="topic,partition,offset,payload")
    assert stream.run() == [b"%05d" % n for n in range(1000)]
    assert stream.sizes == [400, 400, 200]
    q.publish(topic, numbers(1000, 1100, partition=1))
    assert stream.run() == [b"%05d" % n for n in range(1100)]
    assert stream.sizes == [100]
    described = q.describe_topic(topic).partitions
    assert [(part.first_offset, part.archived_to) for part in described] == [(0, 0), (0, 0)], "nothing was truncated"


def test_a_stream_goes_on_and_ends_loudly_when_it_lost_something(
    spark: SparkSession, store: str, q: duly.Client, topic: str, tmp_path: Path
) -> None:
    q.create_topic(topic, kind="log")
    q.publish(topic, numbers(0, 10))
    stream = Stream(spark, tmp_path, store, topic, columns="topic,partition,offset,payload")
    query = stream.start(processingTime="100 milliseconds")
    try:
        query.processAllAvailable()
        q.publish(topic, numbers(10, 15))
        query.processAllAvailable()
        assert len(stream.gathered) == 15
    finally:
        query.stop()
    q.publish(topic, numbers(15, 20))
    q.purge(topic)
    q.publish(topic, numbers(20, 25))
    with pytest.raises(StreamingQueryException, match=r"begins at offset 20: 5 messages from 15 on were truncated"):
        stream.run()
    lenient = Stream(spark, tmp_path, store, topic, columns="topic,partition,offset,payload", failOnDataLoss="false")
    assert lenient.run() == [b"%05d" % n for n in [*range(15), *range(20, 25)]]


def test_rows_are_dealt_out_by_what_waits() -> None:
    waiting = {("a", "0"): 900, ("a", "1"): 90, ("b", "0"): 10, ("b", "1"): 0}
    assert shared(waiting, 1000) == waiting
    assert shared(waiting, 100) == {("a", "0"): 90, ("a", "1"): 9, ("b", "0"): 1, ("b", "1"): 0}
    assert sum(shared(waiting, 1).values()) == 1


def test_offsets_are_json_by_topic_and_partition(store: str, q: duly.Client, topic: str) -> None:
    q.create_topic(topic, kind="log", partitions=2)
    q.publish(topic, numbers(0, 10, partition=1))
    reader = stream_reader(store, topic, maxRowsPerBatch="4")
    start = reader.initialOffset()
    assert start == {topic: {"0": 0, "1": 0}}
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert reader.latestOffset(start, ReadMaxRows(4)) == {topic: {"0": 0, "1": 4}}
    assert reader.latestOffset(start, ReadAllAvailable()) == {topic: {"0": 0, "1": 10}}
    assert reader.reportLatestOffset() == {topic: {"0": 0, "1": 10}}
    reader.stop()
    assert stream_reader(store, topic, startingOffsets="latest").initialOffset() == {topic: {"0": 0, "1": 10}}


def test_available_now_never_passes_what_was_there_at_the_beginning(store: str, q: duly.Client, topic: str) -> None:
    q.create_topic(topic, kind="log")
    q.publish(topic, numbers(0, 5))
    reader = stream_reader(store, topic)
    reader.prepareForTriggerAvailableNow()
    q.publish(topic, numbers(5, 9))
    end = reader.latestOffset({topic: {"0": 3}}, ReadAllAvailable())
    assert end == {topic: {"0": 5}}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert reader.latestOffset({topic: {"0": 7}}, ReadAllAvailable()) == {topic: {"0": 7}}, "never backwards"
    reader.stop()


def test_a_partition_that_is_new_is_read_from_its_first_offset(store: str, q: duly.Client, topic: str) -> None:
    q.create_topic(topic, kind="log", partitions=2)
    q.publish(topic, numbers(0, 4, partition=0) + numbers(0, 3, partition=1))
    reader = stream_reader(store, topic)
    # A checkpoint from before there was a second one.
    end = reader.latestOffset({topic: {"0": 4}}, ReadAllAvailable())
    assert end == {topic: {"0": 4, "1": 3}}
    (task,) = reader.partitions({topic: {"0": 4}}, end)
    assert [row for batch in reader.read(task) for row in batch.column("offset").to_pylist()] == [0, 1, 2]
    reader.stop()


def test_a_topic_that_was_made_anew_is_said(store: str, q: duly.Client, topic: str) -> None:
    q.create_topic(topic, kind="log")
    q.publish(topic, numbers(0, 3))
    reader = stream_reader(store, topic)
    start = {topic: {"0": 50}}
    with pytest.raises(duly.OffsetTruncated, match="it was made anew, or restored"):
        reader.latestOffset(start, ReadAllAvailable())
    lenient = stream_reader(store, topic, failOnDataLoss="false")
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert end == {topic: {"0": 3}}
    (task,) = lenient.partitions(start, end)
    assert sum(batch.num_rows for batch in lenient.read(task)) == 3
    reader.stop()
    lenient.stop()


def test_nothing_new_is_no_task_and_a_reader_can_be_sent(store: str, q: duly.Client, topic: str) -> None:
    q.create_topic(topic, kind="log")
    q.publish(topic, numbers(0, 3))
    reader = stream_reader(store, topic)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.partitions(end, end) == []
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    # Spark sends it to its tasks, whatever it has open here.
    sent = pickle.loads(pickle.dumps(reader))
    assert (
        sum(batch.num_rows for task in reader.partitions(sent.initialOffset(), end) for batch in sent.read(task)) == 3
    )
    reader.stop()
    sent.stop()
