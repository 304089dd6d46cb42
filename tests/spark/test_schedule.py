"""duly pipeline schedule: rows onto a queue, all or none, once; moves and cancels from a list."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import duly
from duly.spark.jobs.schedule import cancel, move, schedule
from duly.spark.tables import fingerprint, query, read_file
from tests.conftest import scaled
from tests.surface.brokers import serving
from tests.surface.test_cli import run

from .killed import kill_when, rows, same_payloads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DUE_MS = 1_893_499_200_000  # 2030-01-01T12:00:00Z
DUE = "2030-01-01T12:00:00Z"


@pytest.fixture
def q(path: str) -> Iterator[duly.Client]:
    with duly.connect(path) as client:
        client.create_topic("emails", kind="queue")
        yield client


def messages(q: duly.Client, topic: str = "emails") -> dict[str, duly.QueuedMessage]:
    return {message.id: message for message in q.browse(topic, limit=10_000)}


def written(folder: Path, format: str) -> str:
    """Two rows, as each format has them."""
    path = folder / f"rows.{format}"
    table: list[dict[str, Any]] = [
        {"payload": "007", "due": DUE, "priority": 7, "lane": "acme", "id": "a", "key": "k", "headers": {"h": "ü"}},
        {
            "payload": 'a "quoted"\nline',
            "due": None,
            "priority": None,
            "lane": None,
            "id": "b",
            "key": None,
            "headers": None,
        },
    ]
    if format == "json":
        path.write_text("\n".join(json.dumps(row) for row in table))
    elif format == "csv":
        plain = [{**row, "headers": row["headers"] and json.dumps(row["headers"])} for row in table]
        pc.write_csv(pa.Table.from_pylist(plain), path)
    else:
        due = pa.array([DUE_MS, None], pa.timestamp("ms", "UTC"))
        headers = pa.array([[("h", "ü")], None], pa.map_(pa.string(), pa.string()))
        found = pa.Table.from_pylist(table)
        found = found.set_column(found.column_names.index("due"), "due", due)
        pq.write_table(found.set_column(found.column_names.index("headers"), "headers", headers), path)
    return str(path)


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_a_file_of_each_format(spark: SparkSession, q: duly.Client, path: str, tmp_path: Path, format: str) -> None:
    rows = read_file(spark, written(tmp_path, format))
    done = schedule(rows, path, "emails", name="n")
    assert (done.messages, done.duplicates, done.before) == (2, 0, False)
    found = messages(q)
    first = found["a"]
    assert (first.payload, first.priority, first.lane, first.key) == (b"007", 7, "acme", "k")
    assert (first.headers, first.due_at_ms, first.state) == ({"h": "ü"}, DUE_MS, "waiting")
    assert (found["b"].payload, found["b"].state) == (b'a "quoted"\nline', "ready")


def test_a_query_and_expressions(spark: SparkSession, q: duly.Client, path: str, tmp_path: Path) -> None:
    (tmp_path / "customers.csv").write_text("number,name\n1,Ada\n2,Bob\n3,Cy\n")
    text = "SELECT number AS id, name FROM customers WHERE number < 3"
    rows = query(spark, text, {"customers": str(tmp_path / "customers.csv")})
    schedule(rows, path, "emails", name="n", payload="to_json(struct(name))", due=f"timestamp'{DUE}'")
    found = messages(q)
    assert {id: message.payload for id, message in found.items()} == {"1": b'{"name":"Ada"}', "2": b'{"name":"Bob"}'}
    assert {message.due_at_ms for message in found.values()} == {DUE_MS}


def test_a_name_is_stored_once_and_ids_are_stored_once_under_any_name(
    spark: SparkSession, q: duly.Client, path: str
) -> None:
    rows = spark.range(0, 300, 1, 2).selectExpr("id", "cast(id as string) as payload")
    assert schedule(rows, path, "emails", name="a").messages == 300
    again = schedule(rows, path, "emails", name="a")
    assert (again.messages, again.before) == (300, True)
    other = schedule(rows.union(spark.sql("SELECT 300L, 'new'")), path, "emails", name="b")
    assert (other.messages, other.duplicates, other.before) == (1, 300, False)
    assert len(messages(q)) == 301


def test_a_source_is_known_by_its_content(spark: SparkSession, tmp_path: Path) -> None:
    one, copy, other = (tmp_path / f"{name}.csv" for name in ("one", "copy", "other"))
    for file, text in ((one, "payload\nx\n"), (copy, "payload\nx\n"), (other, "payload\ny\n")):
        file.write_text(text)
    name = fingerprint(spark, [str(one)], "expression")
    assert fingerprint(spark, [str(copy)], "expression") == name
    assert fingerprint(spark, [str(other)], "expression") != name
    assert fingerprint(spark, [str(one)], "another") != name
    one.write_text("payload\nz\n")
    assert fingerprint(spark, [str(one)], "expression") != name


def test_moves_and_cancels_are_counted(spark: SparkSession, q: duly.Client, path: str) -> None:
    q.publish("emails", [duly.Message(b"x", id=f"m{n}", due=3600) for n in range(50)])
    q.publish("emails", [duly.Message(b"x", id="held"), duly.Message(b"x", id="done")])
    for delivery in (batch := q.claim("emails", max_messages=10)):
        if delivery.id == "done":
            delivery.ack()
    assert len(batch) == 2
    times = spark.range(0, 50, 1, 2).selectExpr(
        "concat('m', id) AS id", f"timestamp'{DUE}' + make_interval(0, 0, 0, 0, 0, 0, id % 3) AS due", "5 AS priority"
    )
    more = spark.sql(f"SELECT explode(array('held', 'done', 'unknown')) AS id, timestamp'{DUE}' AS due, 5 AS priority")
    moved = move(times.union(more), path, "emails")
    assert moved == Counter(moved=50, leased=1, finished=1, not_found=1)
    found = messages(q)
    assert all(found[f"m{n}"].due_at_ms == DUE_MS + 1000 * (n % 3) for n in range(50))
    assert {found[f"m{n}"].priority for n in range(50)} == {5}
    ids = times.select("id").union(more.select("id"))
    assert cancel(ids, path, "emails") == Counter(cancelled=50, leased=1, finished=1, not_found=1)
    assert set(messages(q)) == {"held"}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("SELECT 'x' AS payload, 'tomorrow' AS due", "due is a time like 2026-01-31T12:00:00Z, not tomorrow"),
        ("SELECT 'x' AS payload, 'high' AS priority", "priority is a whole number, not high"),
        ("SELECT 'x' AS body", "no payload, but body"),
        ("SELECT 5 AS payload", "'payload' must be binary or string, not int"),
        ("SELECT 'x' AS payload, 70000 AS priority", "65535"),
        ("SELECT cast(null as string) AS payload", "payload"),
    ],
)
def test_rows_that_are_no_messages_are_refused_and_none_is_stored(
    spark: SparkSession, q: duly.Client, path: str, rows: str, says: str
) -> None:
    with pytest.raises(duly.Error, match=says):
        schedule(spark.sql(rows), path, "emails", name="n")
    assert q.describe_topic("emails").messages == 0


def test_what_is_wrong_with_the_place_is_said(spark: SparkSession, q: duly.Client, path: str) -> None:
    q.create_topic("log", kind="log")
    rows = spark.sql("SELECT 'x' AS payload, 'a' AS id")
    with pytest.raises(duly.TopicNotFound, match="'nowhere'"):
        schedule(rows, path, "nowhere", name="n")
    for call in (lambda: schedule(rows, path, "log", name="n"), lambda: cancel(rows, path, "log")):
        with pytest.raises(duly.InvalidArgument, match="'log' is a log"):
            call()
    with pytest.raises(duly.InvalidArgument, match="neither"):
        move(rows, path, "emails")
    with pytest.raises(duly.InvalidArgument, match="no column 'id', but payload"):
        cancel(rows.select("payload"), path, "emails")


def test_on_the_command_line(spark: SparkSession, q: duly.Client, path: str, tmp_path: Path) -> None:
    file = tmp_path / "campaign.csv"
    file.write_text(f"payload,due,id,colour\nhello,{DUE},a,red\nbye,{DUE},b,blue\n")
    line = ("pipeline", "schedule", "--store", path, "--to", "emails")
    ran = run(*line, "--file", str(file))
    assert "Scheduled 2 messages onto 'emails' as " in ran.out
    assert "no part of a message: colour" in ran.err
    again = json.loads(run(*line, "--file", str(file), "--json").out)
    assert (again["messages"], again["before"]) == (2, True)
    named = run(*line, "--sql", "SELECT payload FROM c", "--view", f"c={file}", "--name", "again")
    assert "Scheduled 2 messages onto 'emails' as again" in named.out
    (tmp_path / "ids.csv").write_text("id\na\nnope\n")
    assert json.loads(run(*line, "--file", str(tmp_path / "ids.csv"), "--cancel", "--json").out) == {
        "topic": "emails",
        "cancelled": 1,
        "not_found": 1,
    }
    assert "Give --file, or --sql" in run(*line).err
    assert "format" in run(*line, "--file", "rows.xlsx").err
    assert "no topic 'nowhere'" in run(*line[:4], "--to", "nowhere", "--file", str(file)).err


@pytest.mark.timeout(scaled(300, 1800))
def test_killed_midway_and_run_again_every_row_is_stored_once(spark: SparkSession, tmp_path: Path) -> None:
    count = scaled(40_000, 1_000_000)
    table = pa.table({"payload": [f"p{n}" for n in range(count)], "lane": [f"l{n % 9}" for n in range(count)]})
    # Several row groups: several tasks, of which some have staged when others have not.
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=count // 4)
    store = tmp_path / "app.duly"
    duly.connect(store).close()
    with serving(tmp_path, "--store", str(store), "--http-port", "0", "--flight-port", "0", "--json") as broker:
        with duly.connect(broker.url) as q:
            q.create_topic("emails", kind="queue")
        args = ("schedule", "--url", broker.url, "--to", "emails", "--file", "rows.parquet", "--name", "campaign")
        assert kill_when(tmp_path, lambda: rows(store, "duly_stage") > 0, *args)
        with duly.connect(broker.url) as q:
            done = schedule(read_file(spark, str(tmp_path / "rows.parquet")), broker.url, "emails", name="campaign")
            assert done.messages == count
            assert same_payloads(q, "emails", (b"p%d" % number for number in range(count)))
            assert q.describe_topic("emails").messages == count
