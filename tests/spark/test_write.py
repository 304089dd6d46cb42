"""Writing from Spark: batch and stream, all rows or none, once; from DataFrames to a file and to a broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import duly
from tests.surface.brokers import serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DUE = datetime(2030, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)


@pytest.fixture(params=["file", "broker"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    path = str(tmp_path / "app.duly")
    duly.connect(path).close()
    if request.param == "file":
        yield path
        return
    with serving(tmp_path, "--store", path, "--http-port", "0", "--flight-port", "0", "--json") as broker:
        yield broker.url


@pytest.fixture
def q(url: str) -> Iterator[duly.Client]:
    with duly.connect(url) as client:
        client.create_topic("log", kind="log")
        client.create_topic("jobs", kind="queue")
        yield client


def numbers(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as payload")


def write(rows: DataFrame, url: str, topic: str, **options: Any) -> None:
    rows.write.format("duly").mode("append").option("url", url).option("topic", topic).options(**options).save()


def payloads(q: duly.Client, topic: str = "log") -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for batch in q.read_arrow(topic):
        found.update(batch.column("payload").to_pylist())
    return found


def expected(count: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(count))


def test_rows_are_published_once_each(spark: SparkSession, q: duly.Client, url: str) -> None:
    write(numbers(spark, 70_000), url, "log")
    assert payloads(q) == expected(70_000)


def test_every_column_arrives(spark: SparkSession, q: duly.Client, url: str) -> None:
    rows = [
        (bytearray(b"x"), "a", "k", {"h": "ü"}, 7, "l", DUE, None),
        (bytearray(b"now"), None, None, None, None, None, None, None),
    ]
    schema = (
        "payload binary, id string, key string, headers map<string,string>, priority int, lane string, "
        "due_at timestamp, expires_at timestamp"
    )
    write(spark.createDataFrame(rows, schema).coalesce(1), url, "jobs")
    found = q.get("jobs", "a")
    assert found is not None
    assert (found.key, found.headers, found.priority, found.lane) == ("k", {"h": "ü"}, 7, "l")
    assert found.due_at_ms == 1893499200124, "up to the next millisecond: never early"
    assert q.claim("jobs", max_messages=10).payloads == [b"now"]


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, q: duly.Client, url: str) -> None:
    from pyspark.errors import PySparkException

    rows = numbers(spark, 3000).selectExpr("if(payload = '2999', raise_error('on purpose'), payload) as payload")
    with pytest.raises(PySparkException, match="on purpose"):
        write(rows, url, "log")
    assert q.describe_topic("log").messages == 0
    write(numbers(spark, 10), url, "log")
    assert payloads(q) == expected(10)


def test_a_version_of_a_job_is_written_once(spark: SparkSession, q: duly.Client, url: str) -> None:
    for version in (1, 1, 2, 1):
        write(numbers(spark, 5), url, "log", job="nightly", version=version)
    assert payloads(q) == expected(5) + expected(5)


def test_a_task_that_is_tried_again_stores_nothing_twice(tmp_path: Path) -> None:
    """Two tries of a task and one commit: what Spark does, without waiting for it to fail by itself."""
    import pyarrow as pa
    from pyspark.sql.types import StringType, StructType

    from duly.spark.options import Home
    from duly.spark.writing import Target, Writer

    path = str(tmp_path / "app.duly")
    with duly.connect(path) as q:
        q.create_topic("log", kind="log")
        writer = Writer(Target(Home(path), "log"), StructType().add("payload", StringType()))
        batch = pa.record_batch({"payload": pa.array(["a", "b"])})
        writer.write(iter([batch]))
        second = writer.write(iter([batch]))
        writer.commit([second, None])
        assert payloads(q) == Counter([b"a", b"b"])


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("payload string, colour string", "no column 'colour'.*Select only"),
        ("id string", "no column 'payload'"),
        ("payload int", "must be binary or string, not int"),
        ("payload string, due_at string", "'due_at' must be timestamp"),
    ],
)
def test_rows_that_are_no_messages_are_refused(spark: SparkSession, tmp_path: Path, columns: str, says: str) -> None:
    from pyspark.errors import PySparkException

    path = str(tmp_path / "app.duly")
    with duly.connect(path) as q:
        q.create_topic("log", kind="log")
    rows = spark.createDataFrame([], columns)
    with pytest.raises(PySparkException, match=says) as raised:
        write(rows, path, "log")
    assert "Traceback" not in str(raised.value)


def test_what_is_wrong_with_a_write_is_said(spark: SparkSession, q: duly.Client, url: str) -> None:
    from pyspark.errors import PySparkException

    rows = numbers(spark, 10)
    with pytest.raises(PySparkException, match="There is no topic 'nowhere'"):
        write(rows, url, "nowhere")
    with pytest.raises(PySparkException, match="no option 'topik'"):
        write(rows, url, "log", topik="x")
    with pytest.raises(PySparkException, match="belongs to a job"):
        write(rows, url, "log", version=3)
    with pytest.raises(PySparkException, match="only added to"):
        rows.write.format("duly").mode("overwrite").option("url", url).option("topic", "log").save()
    with pytest.raises(PySparkException, match="belongs to queues"):
        write(rows.selectExpr("payload", "1 as priority"), url, "log")
    assert q.describe_topic("log").messages == 0


def test_a_stream_is_written_once_though_its_last_batch_runs_again(
    spark: SparkSession, q: duly.Client, url: str, tmp_path: Path
) -> None:
    q.create_topic("copy", kind="log")

    def run() -> None:
        source = spark.readStream.format("duly").option("url", url).option("topic", "log").load()
        sink = source.select("payload").writeStream.format("duly").option("url", url).option("topic", "copy")
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination(120)

    q.publish("log", [b"%d" % number for number in range(1000)])
    run()
    q.publish("log", [b"%d" % number for number in range(1000, 2000)])
    run()
    assert payloads(q, "copy") == expected(2000)
    # As if the driver had died after the sink's commit, before it wrote down that the batch is done.
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    run()
    assert payloads(q, "copy") == expected(2000)
