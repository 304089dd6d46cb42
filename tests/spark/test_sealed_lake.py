"""A lake that is sealed: nothing of a message lies in it in the clear, and what is replayed is what was archived."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import duly
from duly.master import create_master, new_key
from duly.spark.jobs.replay import Replayer, order_of
from duly.spark.lake import Lake
from duly.spark.selection import Selection
from tests.surface.test_cli import run

from .lakes import archive, lake_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CANARY = "canary-b2c901"
CONTENT = ("payload", "key", "headers", "id", "lane")


class Sealed:
    """A store whose tenant is encrypted, and a sealed lake that has what was published."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder
        self.spark = spark
        self.store = folder / "app.duly"
        self.keys = folder / "lake-key"
        create_master(str(self.keys))
        with duly.connect(self.store) as operator:
            operator.create_tenant("default", encrypt=True)
        self.q = duly.connect(self.store)
        self.q.create_topic("orders", kind="log", archive=True)
        self.q.create_topic("jobs", kind="queue", archive=True)
        self.q.publish("orders", [message(number) for number in range(50)] + [b"bare"])
        self.q.publish("jobs", [duly.Message(CANARY.encode(), lane=CANARY, id=f"{CANARY}-1")])
        archive(spark, self.lake(), self.store)

    def lake(self, key: Path | None = None) -> Lake:
        return Lake(str(self.folder / "lake"), key=f"file:{key or self.keys}")

    def replay(self, to: str, **selection: Any) -> list[duly.StoredMessage]:
        self.q.create_topic(to, kind="log")
        order = order_of(self.q, Selection("default", "orders", **selection), topic=to)
        Replayer(self.spark, self.lake(), str(self.store), order).run(progress=lambda _: None)
        return self.q.read(to, max_messages=1000)


def message(number: int) -> duly.Message:
    return duly.Message(f"{CANARY} {number}".encode(), key=f"{CANARY}-{number % 5}", headers={"h": CANARY, "n": "1"})


@pytest.fixture(scope="module")
def sealed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = Sealed(spark, tmp_path_factory.mktemp("sealed"))
    yield found
    found.q.close()


def test_nothing_of_a_message_is_in_any_file_of_the_lake(sealed: Sealed) -> None:
    rows = lake_table(sealed.lake()).to_pylist()
    assert len([row for row in rows if row["topic"] == "orders"]) == 51
    assert not [row for row in rows if CANARY in str([row[name] for name in CONTENT])]
    assert {row[name] is None for row in rows for name in CONTENT[1:]} == {True}
    files = [path.read_bytes() for path in (sealed.folder / "lake").rglob("*") if path.is_file()]
    assert files
    assert not any(CANARY.encode() in content for content in files)


def test_what_is_replayed_is_what_was_archived(sealed: Sealed) -> None:
    got = sealed.replay("again")
    sent = sealed.q.read("orders", max_messages=1000)
    assert [(one.payload, one.key) for one in got] == [(one.payload, one.key) for one in sent]
    assert [one.headers.get("h") for one in got] == [one.headers.get("h") for one in sent]


def test_messages_are_chosen_by_what_is_sealed(sealed: Sealed) -> None:
    assert len(sealed.replay("of-a-key", key=f"{CANARY}-3")) == 10
    assert len(sealed.replay("of-a-header", where="headers['n'] = '1' AND length(payload) < 16")) == 10


def test_the_lake_wants_its_key_and_only_a_sealed_one_takes_one(sealed: Sealed, tmp_path: Path) -> None:
    with pytest.raises(duly.Sealed, match="--lake-key"):
        Lake(str(sealed.folder / "lake")).newest()
    create_master(str(tmp_path / "another"))
    with pytest.raises(duly.Sealed, match="not among those"):
        sealed.lake(tmp_path / "another").newest()
    plain = Lake(str(tmp_path / "plain"))
    plain.create()
    with pytest.raises(duly.InvalidArgument, match="in the clear"):
        Lake(str(tmp_path / "plain"), key=f"file:{sealed.keys}").newest()


def test_a_key_in_front_seals_what_comes_and_the_old_one_opens_the_rest(sealed: Sealed) -> None:
    sealed.keys.write_text(f"{new_key()}\n{sealed.keys.read_text()}")
    sealed.q.publish("orders", [duly.Message(CANARY.encode(), key="new")])
    archive(sealed.spark, sealed.lake(), sealed.store)
    rows = [row for row in lake_table(sealed.lake()).to_pylist() if row["topic"] == "orders"]
    assert len({row["payload"][:8] for row in rows}) == 2
    assert len(sealed.replay("both")) == 52


def test_a_row_put_in_the_place_of_another_is_refused(sealed: Sealed) -> None:
    from duly.spark.sealing import LakeKey, _Opening

    rows = lake_table(sealed.lake()).slice(0, 2).combine_chunks()
    batch = pa.RecordBatch.from_arrays([column.combine_chunks() for column in rows.columns], schema=rows.schema)
    opening = _Opening(LakeKey(f"file:{sealed.keys}").reference)
    assert next(opening(iter([batch]))).num_rows == 2
    at = batch.schema.names.index("offset")
    moved = batch.set_column(at, "offset", pa.array([one + 1000 for one in batch.column("offset").to_pylist()]))
    with pytest.raises(duly.CorruptLake, match="belongs elsewhere"):
        next(opening(iter([moved])))


def test_the_command_line_seals_and_opens(sealed: Sealed, tmp_path: Path) -> None:
    store, lake, key = str(sealed.store), str(tmp_path / "lake"), f"file:{sealed.keys}"
    done = run("pipeline", "archive", "--store", store, "--lake", lake, "--lake-key", key, "--once", "--json")
    assert done.code == 0, done.err
    counted = ("pipeline", "replay", "--store", store, "--lake", lake, "--topic", "orders", "--to", "orders")
    refused = run(*counted, "--dry-run")
    assert refused.code != 0
    assert "--lake-key" in refused.err
    found = run(*counted, "--dry-run", "--lake-key", key)
    assert found.code == 0, found.err
