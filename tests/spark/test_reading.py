"""spark.read.format("duly"): what is read is what is there, planned, filtered and refused as asked."""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import duly
from duly.clock import from_ms
from duly.spark.options import home_of, read_options
from duly.spark.reading import LogReader

from .conftest import Read

SCHEMA = (
    "tenant string, topic string, partition bigint, offset bigint, id string, key string, headers map<string,string>, "
    "payload binary, published_at timestamp, expires_at timestamp, lane string, priority bigint, due_at timestamp"
)
COUNT = 3000


@pytest.fixture(scope="module")
def orders(q: duly.Client) -> str:
    """A log of two partitions, published at three moments; every third message has a key."""
    q.create_topic("orders", kind="log", partitions=2)
    for start in range(0, COUNT, 1000):
        q.publish(
            "orders",
            [
                duly.Message(
                    b"%d" % n,
                    key=f"k{n % 7}" if n % 3 == 0 else None,
                    headers={"n": str(n)} if n % 2 else {},
                    id=f"own-{n}" if n % 5 == 0 else None,
                    ttl=3600 if n % 4 == 0 else None,
                    partition=n % 2,
                )
                for n in range(start, start + 1000)
            ],
        )
        q.publish("orders", duly.Message(b"-1", partition=0))
    return "orders"


@pytest.fixture(scope="module")
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue", lease=600)
    due = datetime(2030, 1, 1, tzinfo=UTC)
    q.publish("jobs", [duly.Message(b"%d" % n, lane=f"l{n % 2}", priority=n, due=due) for n in range(10)])
    q.publish("jobs", [b"settled"] * 5)
    q.claim("jobs", max_messages=5).ack()
    return "jobs"


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.orderBy("topic", "partition", "offset").collect()]


def offsets(frame: DataFrame) -> set[tuple[int, int]]:
    return {(row.partition, row.offset) for row in frame.select("partition", "offset").collect()}


def utc(moment: datetime | None) -> int | None:
    """Milliseconds of a time that Spark gave: in this process it is in the zone of the machine."""
    return None if moment is None else round(moment.astimezone(UTC).timestamp() * 1000)


@pytest.mark.parametrize("home", ["file", "broker"])
def test_every_message_is_read_as_it_is(
    request: pytest.FixtureRequest, read: Read, q: duly.Client, store: str, orders: str, home: str
) -> None:
    url = store if home == "file" else request.getfixturevalue("broker")
    frame = read(orders, url, rowsPerPartition=700)
    assert ", ".join(f"{name} {kind}" for name, kind in frame.dtypes) == SCHEMA
    assert all(field.nullable for field in frame.schema)
    found = rows(frame)
    stored = [message for number in (0, 1) for message in q.read(orders, partition=number, max_messages=5000)]
    assert len(found) == len(stored) == COUNT + 3
    for row, message in zip(found, stored, strict=True):
        assert (row["tenant"], row["topic"]) == ("default", orders)
        assert (row["partition"], row["offset"], row["id"]) == (message.partition, message.offset, message.id)
        assert (row["key"], row["headers"] or {}) == (message.key, message.headers)
        assert bytes(row["payload"]) == message.payload
        assert utc(row["published_at"]) == message.published_at_ms
        assert utc(row["expires_at"]) == message.expires_at_ms
        assert (row["lane"], row["priority"], row["due_at"]) == (None, None, None)


def test_of_a_queue_all_that_its_log_has_is_read(read: Read, jobs: str, orders: str) -> None:
    found = rows(read(f"{jobs}, {orders}", columns="topic,partition,offset,payload,lane,priority,due_at"))
    queued = [row for row in found if row["topic"] == jobs]
    assert len(found) == len(queued) + COUNT + 3
    assert [(bytes(row["payload"]), row["lane"], row["priority"]) for row in queued[:10]] == [
        (b"%d" % n, f"l{n % 2}", n) for n in range(10)
    ]
    assert {utc(row["due_at"]) for row in queued[:10]} == {1_893_456_000_000}


def test_what_was_copied_out_before_a_queues_first_offset_is_read(read: Read, q: duly.Client, topic: str) -> None:
    q.create_topic(topic, kind="queue")
    q.publish(topic, [b"bad", b"other"])
    with q.claim(topic) as batch:
        batch[0].bury("bad")
    q.purge(topic)
    q.publish(topic, b"new")
    assert q.describe_topic(topic).partitions[0].first_offset == 2
    assert [(row["offset"], bytes(row["payload"])) for row in rows(read(topic))] == [(0, b"bad"), (2, b"new")]


def test_tasks_have_about_as_many_rows_as_asked(read: Read, orders: str) -> None:
    assert read(orders).rdd.getNumPartitions() == 1
    frame = read(orders, rowsPerPartition=500, columns="offset")
    sizes = frame.rdd.mapPartitions(lambda some: [sum(1 for _ in some)]).collect()
    assert sum(sizes) == COUNT + 3
    assert len(sizes) == 7
    assert max(sizes) <= 500


def test_nothing_to_read_is_no_rows(read: Read, q: duly.Client, topic: str) -> None:
    q.create_topic(topic, kind="log")
    assert read(topic).count() == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"0": 1490, "1": 1495}'}, {0: range(1490, 1503), 1: range(1495, 1500)}),
        ({"startingOffsets": '{"orders": {"1": 1499}}', "endingOffsets": '{"0": 2}'}, {0: range(2), 1: [1499]}),
        ({"startingOffsets": "latest"}, {}),
        ({"startingOffsets": "Earliest", "endingOffsets": '{"0": 1, "1": 0}'}, {0: [0]}),
        ({"endingOffsets": "earliest"}, {}),
        ({"startingTime": "2100-01-01T00:00:00Z"}, {}),
        ({"endingTime": "0"}, {}),
        ({"startingTime": "0", "endingOffsets": '{"0": 1, "1": 1}'}, {0: [0], 1: [0]}),
    ],
)
def test_reading_begins_and_ends_where_the_options_say(
    read: Read, orders: str, options: dict[str, str], expected: dict[int, Any]
) -> None:
    found = offsets(read(orders, columns="partition,offset", **options))
    assert found == {(number, offset) for number, some in expected.items() for offset in some}


def test_times_are_found_by_when_messages_were_published(read: Read, q: duly.Client, orders: str) -> None:
    middle = q.read(orders, partition=1, offset=500, max_messages=1)[0].published_at_ms
    expected = {
        (number, offset) for number, low in q.offset_at(orders, from_ms(middle)).items() for offset in range(low)
    }
    assert offsets(read(orders, endingTime=middle)) == expected
    since = from_ms(middle).isoformat()
    assert read(orders, startingTime=since).count() == COUNT + 3 - len(expected)
    assert read(orders, pushdown="true").where(f"published_at < timestamp'{since}'").count() == len(expected)
    assert read(orders, pushdown="true").where(f"published_at >= timestamp'{since}'").count() == COUNT + 3 - len(
        expected
    )


# Each is right, and what is left of it for Spark is as said.
PREDICATES: list[tuple[str, str, Callable[[Row], bool]]] = [
    ("offset >= 1400 and partition = 0", "", lambda row: row.offset >= 1400 and row.partition == 0),
    ("offset > 1400 and offset < 1405", "", lambda row: 1400 < row.offset < 1405),
    ("offset = 7 and offset < 99999999999", "", lambda row: row.offset == 7),
    ("offset in (3, 8) and partition in (1)", "offset", lambda row: row.offset in (3, 8) and row.partition == 1),
    ("key = 'k3' and offset <= 100", "isnotnull(key", lambda row: row.key == "k3" and row.offset <= 100),
    ("key in ('k3', 'k5')", "", lambda row: row.key in ("k3", "k5")),
    ("key is null and offset < 50", "isnull(key", lambda row: row.key is None and row.offset < 50),
    ("key <=> 'k3'", "", lambda row: row.key == "k3"),
    ("topic = 'orders' and id = 'own-25'", "id", lambda row: row.id == "own-25"),
    ("topic = 'other'", "", lambda _: False),
    ("published_at = timestamp'2020-01-01 00:00:00.0005'", "published_at", lambda _: False),
    ("not (offset = 7) and offset < 10", "offset", lambda row: row.offset < 10 and row.offset != 7),
    ("offset < 5 or offset > 1490", "offset", lambda row: row.offset < 5 or row.offset > 1490),
    ("partition = 0 and partition = 1", "", lambda _: False),
]


@pytest.mark.parametrize(("predicate", "left", "holds"), PREDICATES, ids=[case[0] for case in PREDICATES])
def test_predicates_are_taken_over_or_handed_back(
    read: Read, orders: str, everything: list[Row], predicate: str, left: str, holds: Callable[[Row], bool]
) -> None:
    frame = read(orders, pushdown="true").where(predicate)
    assert offsets(frame) == {(row.partition, row.offset) for row in everything if holds(row)}
    filters = [line for line in explained(frame).splitlines() if " Filter " in line]
    assert (left in filters[0]) if left else not filters


def test_a_frame_is_whole_again_after_a_part_of_it_was_read(read: Read, orders: str, everything: list[Row]) -> None:
    """What a source takes over, Spark remembers with the frame: so it takes over nothing unless told to."""
    frame = read(orders)
    some, others = frame.where("key = 'k3'"), frame.where("offset < 10")
    wanted = [sum(row.key == "k3" for row in everything), sum(row.offset < 10 for row in everything)]
    assert [some.count(), others.count()] == wanted
    assert some.union(others).count() == sum(wanted)
    assert frame.count() == len(everything)
    assert offsets(frame) == {(row.partition, row.offset) for row in everything}


@pytest.fixture(scope="module")
def everything(read: Read, orders: str) -> list[Row]:
    return list(read(orders).collect())


def explained(frame: DataFrame, mode: str = "simple") -> str:
    said = io.StringIO()
    with redirect_stdout(said):
        frame.explain(mode)
    return said.getvalue()


def test_columns_are_those_that_are_named_in_the_order_of_the_schema(read: Read, orders: str) -> None:
    frame = read(orders, columns="checksum, payload,partition")
    assert frame.columns == ["partition", "payload", "checksum"]
    for row in frame.limit(50).collect():
        assert row.checksum == zlib.crc32(row.payload)
    assert [row.asDict() for row in read(orders, columns="topic").limit(1).collect()] == [{"topic": orders}]
    assert read(orders, columns="checksum").distinct().count() == COUNT + 1


def test_a_schema_may_be_given_instead(spark: SparkSession, store: str, orders: str) -> None:
    source = spark.read.format("duly").options(url=store, topic=orders)
    assert source.schema("payload binary, offset bigint").load().columns == ["payload", "offset"]
    with pytest.raises(AnalysisException, match="The column offset is bigint"):
        source.schema("offset int").load().count()
    with pytest.raises(AnalysisException, match="no column 'colour' to read"):
        source.schema("colour string").load().count()


def test_what_was_truncated_fails_unless_that_is_accepted(read: Read, q: duly.Client, topic: str) -> None:
    q.create_topic(topic, kind="log")
    q.publish(topic, [b"x"] * 10)
    q.purge(topic)
    q.publish(topic, [b"y"] * 3)
    assert read(topic).count() == 3
    with pytest.raises(
        AnalysisException, match=r"begins at offset 10: 6 messages from 4 on were truncated.*failOnDataLoss"
    ):
        read(topic, startingOffsets='{"0": 4}').count()
    with pytest.raises(AnalysisException, match=r"ends at offset 13, and 99 was to be read next"):
        read(topic, startingOffsets='{"0": 99}').count()
    assert read(topic, startingOffsets='{"0": 4}', failOnDataLoss="false").count() == 3
    # Wanting only what is there is no loss.
    assert read(topic).where("offset >= 4").count() == 3


def test_what_is_truncated_between_plan_and_read_fails_unless_that_is_accepted(
    read: Read, q: duly.Client, topic: str
) -> None:
    q.create_topic(topic, kind="log")
    q.publish(topic, [b"x"] * 10)
    strict, lenient = read(topic), read(topic, failOnDataLoss="FALSE")
    # The plan is made once, and each action reads by it.
    assert (strict.count(), lenient.count()) == (10, 10)
    q.purge(topic)
    with pytest.raises(PySparkException, match=r"was truncated while it was read"):
        strict.collect()
    assert lenient.collect() == []


REFUSED = [
    ({"topic": "nowhere"}, "TopicNotFound: There is no topic 'nowhere'"),
    ({"url": "/nowhere/app.duly"}, "There is no store at '/nowhere/app.duly' on this machine"),
    ({"topics": "orders"}, "There is no option 'topics'. Did you mean topic?"),
    ({"startingOffsets": '{"7": 1}'}, "has partitions 0 to 1; got 7"),
]


@pytest.mark.parametrize(("options", "complaint"), REFUSED)
def test_what_cannot_be_read_is_said_briefly(
    spark: SparkSession, store: str, orders: str, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("duly").options(**{"url": store, "topic": orders, **options}).load().count()
    assert complaint in str(caught.value)
    assert len(str(caught.value).splitlines()) < 5, str(caught.value)


BAD_OPTIONS = [
    ({"topic": ""}, "Say which topic"),
    ({"url": ""}, "Say which store"),
    ({"url": "kafka://x"}, "the path of a file or duly://host:port"),
    ({"path": "x"}, 'Give .option("url", …)'),
    ({"startingOfsets": "earliest"}, "Did you mean startingOffsets?"),
    ({"rowsPerPartition": "many"}, "The option rowsPerPartition is a whole number"),
    ({"maxRowsPerBatch": "0"}, "The option maxRowsPerBatch is a whole number"),
    ({"failOnDataLoss": "maybe"}, "The option failOnDataLoss is true or false"),
    ({"columns": "payload,colour"}, "There is no column 'colour' to read"),
    ({"columns": " , "}, "names none"),
    ({"startingOffsets": "yesterday"}, 'The option startingOffsets is "earliest", "latest", or JSON'),
    ({"startingOffsets": '{"0": -1}'}, 'The option startingOffsets is "earliest", "latest", or JSON'),
    ({"endingOffsets": "[1]"}, 'The option endingOffsets is "earliest", "latest", or JSON'),
    ({"startingOffsets": '{"other": {"0": 1}}'}, "speaks of 'other'"),
    ({"startingTime": "2026-01-31T09:00:00"}, "is a time with its zone"),
    ({"startingTime": "0", "startingOffsets": "latest"}, "Give startingOffsets or startingTime, not both"),
    ({"tenant": ""}, "tenant name"),
]


@pytest.mark.parametrize(("options", "complaint"), BAD_OPTIONS)
def test_an_option_that_is_wrong_is_told_what_would_be_right(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(duly.InvalidArgument, match=re.escape(complaint)):
        read_options({"url": "app.duly", "topic": "orders", **options})


def test_a_broker_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.spark.reading.PLAN_TIMEOUT_S", 0.5)
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    reader = LogReader(read_options({"url": "duly://127.0.0.1:9", "topic": "orders"}), ["offset"])
    with pytest.raises(duly.Unavailable, match=r"No broker answers.*Start it with `duly serve`"):
        reader.partitions()
    assert os.environ["SPARK_HIDE_TRACEBACK"], "Spark then tells no traceback"


def test_reading_makes_no_store(spark: SparkSession, tmp_path: Any) -> None:
    with pytest.raises(AnalysisException):
        spark.read.format("duly").options(url=str(tmp_path / "new.duly"), topic="orders").load().count()
    assert list(tmp_path.iterdir()) == []


def test_the_token_is_shown_nowhere(read: Read, orders: str) -> None:
    frame = read(orders, token="s3cret")
    assert frame.count() > 0
    assert "s3cret" not in explained(frame, "extended") + explained(frame, "formatted") + repr(frame)
    options = read_options({"url": "duly://h", "topic": "t", "TOKEN": "s3cret"})
    assert options.home.token == "s3cret"
    assert "s3cret" not in repr(options) + repr(home_of({"url": "duly://h", "token": "s3cret"}))
    with pytest.raises(AnalysisException) as caught:
        read("nowhere", token="s3cret").count()
    assert "s3cret" not in str(caught.value)


def test_other_tenants_have_other_topics(spark: SparkSession, store: str, orders: str, read: Read) -> None:
    with duly.connect(store, tenant="acme") as acme:
        acme.create_topic(orders, kind="log")
        acme.publish(orders, b"theirs")
    assert [(row.tenant, bytes(row.payload)) for row in read(orders, tenant="acme").collect()] == [("acme", b"theirs")]
