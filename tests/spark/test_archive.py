"""duly pipeline archive: the lake is the log, exactly once, and no watermark is ahead of it."""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import apsw
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import duly
from duly.spark.jobs.archive import Archiver
from duly.spark.lake import DataFile, Lake, Round, Version
from tests.surface.brokers import served

from .lakes import archive, archiver, ends, in_lake, in_log, lake_table, watermarks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ODD = "a/b, c%d=ü[*]?{} "


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def q(path: str) -> Iterator[duly.Client]:
    """A client on a fresh file, on the host's clock: Spark's processes open the file too."""
    with duly.connect(path) as client:
        yield client


def messages(count: int, word: str = "m") -> list[duly.Message]:
    return [
        duly.Message(f"{word}{number}".encode(), key=f"k{number % 7}", headers={"n": str(number)})
        for number in range(count)
    ]


def test_the_lake_is_the_log_for_every_reader(spark: SparkSession, q: duly.Client, path: str, lake: Path) -> None:
    q.create_topic("orders", kind="log", archive=True, partitions=3)
    q.create_topic(ODD, kind="log", archive=True)
    q.create_topic("emails", kind="queue", archive=True)
    q.create_topic("not archived", kind="log")
    with duly.connect(path, tenant="other") as other:
        other.create_topic("orders", kind="log", archive=True)
        other.publish("orders", messages(50, "other"))
        for topic, count in (("orders", 700), (ODD, 30), ("not archived", 1)):
            q.publish(topic, messages(count))
        q.publish("emails", [duly.Message(b"e%d" % n, id=f"e{n}", lane="acme", priority=n % 5) for n in range(90)])
        with q.claim("emails", max_messages=40):
            pass
        eventually(lambda: packed(q) > 0)
        # A few rounds, and in each several topics.
        archive(spark, lake, path, "default", "other", rows=400)
        assert in_lake(lake, "orders", "other") == in_log(other, "orders")
    for topic in ("orders", ODD, "emails"):
        assert in_lake(lake, topic) == in_log(q, topic)
        assert watermarks(q, topic) == ends(q, topic)
    assert not in_lake(lake, "not archived")
    table = lake_table(lake)
    assert all(zlib.crc32(row["payload"]) == row["checksum"] for row in table.to_pylist())
    mails = [row for row in table.to_pylist() if row["topic"] == "emails"]
    assert {(row["lane"], row["id"], row["priority"]) for row in mails} == {("acme", f"e{n}", n % 5) for n in range(90)}
    assert [dict(row["headers"]) for row in table.to_pylist() if row["payload"] == b"m3"] == [{"n": "3"}] * 2
    events = [row for row in table.to_pylist() if (row["topic"], row["tenant"]) == ("$events", "default")]
    assert any(b"topic_created" in row["payload"] for row in events)
    readers_agree(spark, lake, table)


def readers_agree(spark: SparkSession, lake: Path, table: pa.Table) -> None:
    """Spark, Polars, and DuckDB, whose extension for Delta is not on PyPI: it reads the files that the table names."""
    version = Lake(str(lake)).newest()
    columns = ["tenant", "topic", "partition_id", "offset", "payload", "checksum"]
    wanted = sorted(tuple(row[name] for name in columns) for row in table.to_pylist())
    by_spark = version.messages(spark).select(*columns).collect()
    assert sorted((*row[:4], bytes(row[4]), row[5]) for row in by_spark) == wanted
    assert sorted(pl.read_delta(version.lake.uri).select(columns).rows()) == wanted
    files = [str(lake / "messages" / unquote(str(row["path"]))) for row in version.files().to_pylist()]
    quoted = ", ".join(f'"{name}"' for name in columns)
    with duckdb.connect() as duck:
        duck.register("messages", version.table.to_pyarrow_dataset())
        assert sorted(duck.sql(f"SELECT {quoted} FROM messages").fetchall()) == wanted
        read = duck.execute(f"SELECT {quoted} FROM read_parquet(?, hive_partitioning = true)", [files]).fetchall()
        assert sorted(read) == wanted


def test_a_queue_that_lost_messages_while_archiving_was_off_goes_on(
    spark: SparkSession, q: duly.Client, path: str, lake: Path
) -> None:
    q.create_topic("emails", kind="queue", archive=True)
    q.publish("emails", [b"first"] * 100)
    archive(spark, lake, path)
    q.update_topic("emails", archive=False)
    for number in range(3):
        q.publish("emails", [b"%d" % number] * 1000)
    # As a queue lets go of what is settled, in the middle of its log.
    connection = apsw.Connection(path)
    connection.set_busy_timeout(10_000)
    connection.execute("DELETE FROM duly_block WHERE partition = 1 AND base = 1100")
    connection.close()
    q.update_topic("emails", archive=True)
    q.publish("emails", [b"last"] * 50)
    archive(spark, lake, path)
    assert watermarks(q, "emails") == ends(q, "emails") == [3150]
    assert Counter(row[4] for row in in_lake(lake, "emails").elements()) == {
        b"first": 100,
        b"0": 1000,
        b"2": 1000,
        b"last": 50,
    }


def test_all_of_it_is_on_stable_storage_before_a_watermark_moves(
    spark: SparkSession, q: duly.Client, path: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    then: list[set[str]] = []
    sync = os.fsync

    def noting(opened: int) -> None:
        sync(opened)
        synced.add(os.readlink(f"/proc/self/fd/{opened}"))

    monkeypatch.setattr(os, "fsync", noting)
    q.create_topic("orders", kind="log", archive=True)
    q.publish("orders", messages(100))
    with archiver(spark, lake, path) as one:
        advance = one._advance

        def looking(ranges: Any) -> None:
            then.extend([set(synced)] if ranges else [])
            advance(ranges)

        monkeypatch.setattr(one, "_advance", looking)
        one.run(every_s=None, progress=lambda _: None)
    version = Lake(str(lake)).newest()
    files = [lake / "messages" / unquote(name) for name in version.files().column("path").to_pylist()]
    log = lake / "messages" / "_delta_log"
    needed = {*files, *(file.parent for file in files), log, log / f"{version.number:020d}.json"}
    assert watermarks(q, "orders") == ends(q, "orders")
    assert {str(one) for one in needed} <= then[0]


def test_truncation_follows_and_a_run_that_finds_nothing_new_commits_nothing(
    spark: SparkSession, q: duly.Client, path: str, lake: Path
) -> None:
    q.create_topic("orders", kind="log", archive=True, retention=duly.Retention(age=0.001))
    q.publish("orders", messages(300))
    log = in_log(q, "orders")
    with archiver(spark, lake, path) as one:
        assert one.round() is not None
        assert in_lake(lake, "orders") == log
        eventually(lambda: q.describe_topic("orders").partitions[0].first_offset == 300)
        version = Lake(str(lake)).newest().number
        # Until nothing happens any more: that it was truncated is an event, too, and may come late.
        while one.round() is not None:
            version = Lake(str(lake)).newest().number
    assert Lake(str(lake)).newest().number == version
    q.publish("orders", messages(10, "later"))
    archive(spark, lake, path)
    assert sorted(row[1] for row in in_lake(lake, "orders")) == list(range(310))


def packed(q: duly.Client) -> int:
    """How much the log of events has: what happened is packed into it a second later."""
    try:
        return q.describe_topic("$events").messages
    except duly.TopicNotFound:
        return 0


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_watermark_that_was_not_told_is_told_first(
    spark: SparkSession, q: duly.Client, path: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("orders", kind="log", archive=True)
    q.publish("orders", messages(20))
    with archiver(spark, lake, path) as one, monkeypatch.context() as patched:
        patched.setattr(one, "_settle", lambda *_: None)
        patched.setattr(one, "_advance", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.round()
    assert watermarks(q, "orders") == [0]
    with archiver(spark, lake, path) as one, monkeypatch.context() as patched:
        patched.setattr(one, "_archive", lambda *_: pytest.fail("nothing is new"))
        one.round({})
    assert watermarks(q, "orders") == [20]


def test_what_is_not_as_it_was_read_moves_no_watermark(
    spark: SparkSession, q: duly.Client, path: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("orders", kind="log", archive=True)
    q.publish("orders", messages(20))
    move = Round.move

    def spoil(round: Round, written: list[DataFile]) -> list[DataFile]:
        moved = move(round, written)
        for one in moved:
            file = lake / "messages" / one.path
            table = pq.read_table(file, partitioning=None)
            payloads = [b"spoilt" if value == b"m7" else value for value in table.column("payload").to_pylist()]
            spoilt = table.set_column(
                table.schema.get_field_index("payload"), "payload", pa.array(payloads, pa.binary())
            )
            pq.write_table(spoilt, file)
        return moved

    monkeypatch.setattr(Round, "move", spoil)
    with (
        archiver(spark, lake, path) as one,
        pytest.raises(duly.CorruptLake, match="1 payloads fail their checksum, the first at offset 7"),
    ):
        one.round()
    monkeypatch.undo()
    with archiver(spark, lake, path) as one, pytest.raises(duly.CorruptLake, match="The watermark stays"):
        one.round()
    assert watermarks(q, "orders") == [0]


def test_of_two_archivers_one_wins_and_nothing_is_there_twice(
    spark: SparkSession, q: duly.Client, path: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("orders", kind="log", archive=True)
    q.publish("orders", messages(40))
    with archiver(spark, lake, path) as late, archiver(spark, lake, path) as early:
        commit = Lake.commit

        def overtaken(lake: Lake, *args: Any) -> Version:
            monkeypatch.setattr(Lake, "commit", commit)
            assert early.round() is not None
            return commit(lake, *args)

        monkeypatch.setattr(Lake, "commit", overtaken)
        with pytest.raises(duly.LakeTaken, match="wait for it to end"):
            late.round()
    assert in_lake(lake, "orders") == in_log(q, "orders")
    assert watermarks(q, "orders") == [40]
    # The files of the one that lost are gone with it.
    named = {str(row["path"]) for row in Lake(str(lake)).newest().files().to_pylist()}
    there = {str(file.relative_to(lake / "messages")) for file in (lake / "messages").rglob("*.parquet")}
    assert there == named
    assert not list((lake / "rounds").iterdir())


def test_a_topic_made_again_while_it_is_archived_does_not_mix_with_what_it_was(
    spark: SparkSession, q: duly.Client, path: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("orders", kind="log", archive=True)
    q.create_topic("kept", kind="log", archive=True)
    q.publish("kept", messages(10, "kept"))
    q.publish("orders", messages(30, "old"))
    archive(spark, lake, path)
    old = q.describe_topic("orders").partitions[0].id
    q.publish("orders", messages(5, "never archived"))
    q.publish("kept", messages(10, "kept too"))

    write = Archiver._write

    def make_again_first(archiver: Archiver, *args: Any) -> None:
        monkeypatch.setattr(Archiver, "_write", write)
        q.delete_topic("orders", force=True)
        q.create_topic("orders", kind="log", archive=True)
        q.publish("orders", messages(50, "new"))
        write(archiver, *args)

    monkeypatch.setattr(Archiver, "_write", make_again_first)
    archive(spark, lake, path)
    assert in_lake(lake, "kept") == in_log(q, "kept")
    assert watermarks(q, "orders") == [0]
    archive(spark, lake, path)
    new = q.describe_topic("orders").partitions[0].id
    found: dict[int, set[bytes]] = {}
    for row in lake_table(lake).to_pylist():
        if row["topic"] == "orders":
            found.setdefault(row["partition_id"], set()).add(row["payload"])
    assert found == {old: {b"old%d" % n for n in range(30)}, new: {b"new%d" % n for n in range(50)}}
    assert watermarks(q, "orders") == [50]


def test_a_restored_store_is_another_and_does_not_mix(spark: SparkSession, tmp_path: Path, lake: Path) -> None:
    store, restored = tmp_path / "app.duly", tmp_path / "restored.duly"
    with duly.connect(store) as q:
        q.create_topic("orders", kind="log", archive=True)
        q.publish("orders", messages(10, "both"))
        q.backup(tmp_path / "backups")
        q.publish("orders", messages(10, "lost"))
        archive(spark, lake, store)
        before = q.describe_topic("orders").incarnation
    duly.restore(tmp_path / "backups", restored)
    with duly.connect(restored) as q:
        q.resume_store()
        q.publish("orders", messages(10, "instead"))
        archive(spark, lake, restored)
        after = q.describe_topic("orders").incarnation
        assert watermarks(q, "orders") == [20]
    found: dict[str, list[bytes]] = {before: [], after: []}
    for row in lake_table(lake).sort_by("offset").to_pylist():
        if row["topic"] == "orders":
            found[row["incarnation"]].append(row["payload"])
    both = [b"both%d" % n for n in range(10)]
    assert found == {
        before: both + [b"lost%d" % n for n in range(10)],
        after: both + [b"instead%d" % n for n in range(10)],
    }


def test_archiving_that_is_turned_on_late_takes_what_is_there_and_says_what_is_not(
    spark: SparkSession, q: duly.Client, path: str, lake: Path
) -> None:
    q.create_topic("emails", kind="queue")
    q.publish("emails", [duly.Message(b"first", due=3600)])
    for _ in range(25):
        q.publish("emails", [b"settled"] * 1000)
        q.claim("emails", max_messages=1000).ack()
    q.publish("emails", [duly.Message(b"last", due=3600)])
    # Blocks out of the middle go, and what is left in the first is copied out of it.
    eventually(lambda: q.describe_topic("emails").partitions[0].blocks < 20)
    q.create_topic("orders", kind="log", retention=duly.Retention(age=0.001))
    q.publish("orders", messages(5))
    eventually(lambda: q.describe_topic("orders").partitions[0].first_offset == 5)
    q.update_topic("emails", archive=True)
    q.update_topic("orders", archive=True)
    q.publish("orders", messages(5))
    before = in_log(q, "emails")
    said = archive(spark, lake, path)
    mails = in_lake(lake, "emails")
    assert mails == before
    assert {row[1]: row[4] for row in mails if row[4] != b"settled"} == {0: b"first", 25_001: b"last"}
    assert len(mails) < 20_000
    assert sorted(row[1] for row in in_lake(lake, "orders")) == list(range(5, 10))
    assert any("Offsets 0 to 4 of partition 0 of 'orders' (default) were dropped" in line for line in said)


def test_through_a_broker(spark: SparkSession, tmp_path: Path, lake: Path) -> None:
    with served(tmp_path / "app.duly") as url, duly.connect(url) as q:
        q.create_topic("orders", kind="log", archive=True, partitions=2)
        q.publish("orders", messages(500))
        archive(spark, lake, url, rows=300)
        assert in_lake(lake, "orders") == in_log(q, "orders")
        assert watermarks(q, "orders") == ends(q, "orders")


def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def test_archiving_that_was_off_during_a_round_leaves_the_queue_to_the_next(
    spark: SparkSession, q: duly.Client, path: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("emails", kind="queue", archive=True)
    q.publish("emails", [b"first"] * 100)
    archive(spark, lake, path)
    for number in range(2):
        q.publish("emails", [b"%d" % number] * 1000)
    write = Archiver._write

    def off_for_a_moment(archiver: Archiver, *args: Any) -> None:
        monkeypatch.setattr(Archiver, "_write", write)
        q.update_topic("emails", archive=False)
        connection = apsw.Connection(path)
        connection.set_busy_timeout(10_000)
        connection.execute("DELETE FROM duly_block WHERE partition = 1 AND base = 100")
        connection.close()
        q.update_topic("emails", archive=True)
        write(archiver, *args)

    monkeypatch.setattr(Archiver, "_write", off_for_a_moment)
    archive(spark, lake, path)
    archive(spark, lake, path)
    assert watermarks(q, "emails") == ends(q, "emails") == [2100]
    assert Counter(row[4] for row in in_lake(lake, "emails").elements()) == {b"first": 100, b"1": 1000}
