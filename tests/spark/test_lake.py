"""The lake's own: what it refuses, what it sweeps, what it leaves."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import duly
from duly.clock import from_ms
from duly.spark.lake import SCHEMA, Lake, Origin, Range, Round

ORDERS = Origin("i", "default", "orders", 0, 7)
NOW_MS = 1_700_000_000_000


@pytest.fixture
def lake(tmp_path: Path, clock: duly.ManualClock) -> Lake:
    made = Lake(str(tmp_path / "lake"), clock=clock)
    made.create()
    return made


def write(round: Round, begin: int, end: int) -> None:
    """What Spark would write."""
    folder = Path(round.uri) / "tenant=default" / "topic=orders" / "date=2023-11-14"
    folder.mkdir(parents=True)
    names = [field for field in SCHEMA if field.name not in ("tenant", "topic", "date")]
    rows = [
        {"incarnation": "i", "partition": 0, "partition_id": 7, "offset": offset, "published_at": from_ms(NOW_MS)}
        for offset in range(begin, end)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(names)), folder / "part-00000.parquet")


def files(lake: Lake) -> list[str]:
    """What lies in the lake besides the table's log."""
    root = Path(lake.files.root)
    found = [str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()]
    return [path for path in found if "_delta_log" not in path]


def committed(lake: Lake, begin: int, end: int) -> Round:
    round = lake.begin_round()
    write(round, begin, end)
    lake.commit(lake.newest(), round, round.written(), [Range(ORDERS, begin, end)])
    return round


def test_a_commit_has_files_and_offsets_both_and_bounds_for_readers(lake: Lake) -> None:
    assert lake.newest().has(ORDERS) is None
    committed(lake, 0, 5)
    committed(lake, 5, 20)
    version = lake.newest()
    assert version.has(ORDERS) == 20
    by_offset = sorted(
        (row["min.offset"], row["max.offset"], row["num_records"]) for row in version.files().to_pylist()
    )
    assert by_offset == [(0, 4, 5), (5, 19, 15)]
    assert {row["min.published_at"] for row in version.files().to_pylist()} == {from_ms(NOW_MS)}
    assert len(version.paths_of([Range(ORDERS, 6, 7)])) == 1
    assert version.paths_of([Range(Origin("i", "default", "orders", 0, 8), 0, 20)]) == []


def test_a_commit_is_refused_when_the_partition_moved_since_it_was_read(lake: Lake) -> None:
    base = lake.newest()
    committed(lake, 0, 5)
    round = lake.begin_round()
    write(round, 0, 5)
    with pytest.raises(duly.LakeTaken):
        lake.commit(base, round, round.written(), [Range(ORDERS, 0, 5)])
    other = Origin("i", "default", "emails", 0, 8)
    assert lake.commit(base, lake.begin_round(), [], [Range(other, 0, 0)]).has(other) == 0
    assert lake.newest().table.count() == 5


def test_what_a_killed_archiver_left_is_swept_after_a_day_and_nothing_else(lake: Lake, clock: duly.ManualClock) -> None:
    whole = committed(lake, 0, 5)
    # Killed after the commit, before its folder was dropped.
    Path(whole.uri).mkdir(parents=True)
    (Path(whole.uri) / "_SUCCESS").touch()
    kept = files(lake)
    written = lake.begin_round()
    write(written, 5, 10)
    moved = lake.begin_round()
    write(moved, 5, 12)
    moved.move(moved.written())
    foreign = Path(lake.files.root) / "rounds" / "notes" / "mine.txt"
    foreign.parent.mkdir()
    foreign.touch()
    assert len(files(lake)) == len(kept) + 4
    assert lake.sweep() == 0
    clock.advance(25 * 3600)
    young = lake.begin_round()
    write(young, 5, 15)
    assert lake.sweep() == 2
    left = set(files(lake))
    assert {path for path in left if path.startswith("messages/")} == {p for p in kept if p.startswith("messages/")}
    assert {path for path in left if path.startswith("rounds/")} == {
        "rounds/notes/mine.txt",
        f"rounds/{young.id}/written/tenant=default/topic=orders/date=2023-11-14/part-00000.parquet",
    }
    assert lake.newest().table.to_pyarrow_table().num_rows == 5


def test_a_round_that_could_be_swept_is_not_committed(lake: Lake, clock: duly.ManualClock) -> None:
    round = lake.begin_round()
    write(round, 0, 5)
    clock.advance(13 * 3600)
    with pytest.raises(duly.LakeError, match="half a day ago"):
        lake.commit(lake.newest(), round, round.written(), [Range(ORDERS, 0, 5)])
    assert lake.newest().has(ORDERS) is None


def test_a_table_that_is_no_lake_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "messages", pa.table({"payload": [b"x"], "colour": ["red"]}))
    with pytest.raises(duly.IncompatibleLake, match=r"columns differ \(.*colour"):
        Lake(str(tmp_path)).newest()


def test_where_no_lake_is_and_where_none_can_be(tmp_path: Path) -> None:
    with pytest.raises(duly.NotFound, match="duly pipeline archive"):
        Lake(str(tmp_path / "nowhere")).newest()
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").touch()
    with pytest.raises(duly.LakeError, match="File exists"):
        Lake(str(tmp_path / "file")).create()
    with pytest.raises(duly.LakeError, match="cannot be used"):
        Lake("gopher://lake").create()
    with pytest.raises(duly.InvalidArgument):
        Lake("")


def test_what_it_has_is_known_from_a_checkpoint_alone(lake: Lake) -> None:
    committed(lake, 0, 5)
    lake.newest().table.create_checkpoint()
    committed(lake, 5, 8)
    lake.newest().table.create_checkpoint()
    for commit in sorted((Path(lake.uri) / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    version = lake.newest()
    assert version.has(ORDERS) == 8
    assert version.table.count() == 8
    committed(lake, 8, 9)
    assert lake.newest().has(ORDERS) == 9
