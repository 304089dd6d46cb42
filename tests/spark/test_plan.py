"""What a round takes, for every way in which a log, a lake and a watermark can stand to each other. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

import duly
from duly.spark.lake import Lake, Origin, Range, Version
from duly.spark.plan import Gap, Standing, debts, plan

ORDERS = Origin("i", "default", "orders", 0, 7)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(str(tmp_path / "lake"))
    made.create()
    return made


def having(lake: Lake, *ranges: Range) -> Version:
    """The lake with these ranges said to be in it."""
    for one in ranges:
        lake.commit(lake.newest(), lake.begin_round(), [], [one])
    return lake.newest()


def log(first: int, end: int, archived_to: int = 0, origin: Origin = ORDERS, *, queue: bool = False) -> Standing:
    return Standing(origin, queue, first, end, archived_to, 100 * (end - first))


def test_what_the_lake_lacks_is_taken(lake: Lake) -> None:
    empty = lake.newest()
    assert plan(empty, [log(0, 10)], rows_max=100).ranges == (Range(ORDERS, 0, 10),)
    some = having(lake, Range(ORDERS, 0, 4))
    assert plan(some, [log(0, 10)], rows_max=100).ranges == (Range(ORDERS, 4, 10),)
    assert plan(some, [log(0, 4)], rows_max=100).ranges == ()


def test_nothing_beyond_the_end_that_was_asked_for(lake: Lake) -> None:
    other = Origin("i", "default", "made later", 0, 8)
    planned = plan(lake.newest(), [log(0, 10), log(0, 5, origin=other)], rows_max=100, until={ORDERS: 6})
    assert planned.ranges == (Range(ORDERS, 0, 6),)


def test_archiving_that_begins_late_begins_at_the_first_offset_and_says_so(lake: Lake) -> None:
    planned = plan(lake.newest(), [log(5, 10)], rows_max=100)
    assert planned.ranges == (Range(ORDERS, 5, 10, whole=5),)
    assert planned.gaps == (Gap(ORDERS, 0, 5),)
    assert "Offsets 0 to 4 of partition 0 of 'orders' (default) were dropped" in str(planned.gaps[0])


def test_what_was_dropped_while_archiving_was_off_is_said(lake: Lake) -> None:
    planned = plan(having(lake, Range(ORDERS, 0, 4)), [log(6, 10, archived_to=4)], rows_max=100)
    assert planned.ranges == (Range(ORDERS, 6, 10, whole=6),)
    assert planned.gaps == (Gap(ORDERS, 4, 6),)


def test_a_lake_that_lost_what_it_had_is_refused(lake: Lake) -> None:
    with pytest.raises(duly.CorruptLake, match="lost versions"):
        plan(having(lake, Range(ORDERS, 0, 4)), [log(6, 10, archived_to=8)], rows_max=100)


def test_a_log_that_lost_its_end_is_refused(lake: Lake) -> None:
    with pytest.raises(duly.LakeError, match="duly restore"):
        plan(having(lake, Range(ORDERS, 0, 20)), [log(0, 10)], rows_max=100)


def test_a_restored_store_and_a_topic_made_again_begin_anew(lake: Lake) -> None:
    version = having(lake, Range(ORDERS, 0, 20))
    restored = Origin("j", "default", "orders", 0, 7)
    again = Origin("i", "default", "orders", 0, 9)
    for origin in (restored, again):
        assert plan(version, [log(0, 10, origin=origin)], rows_max=100).ranges == (Range(origin, 0, 10),)


def test_a_queue_may_have_holes_in_what_was_there_before_and_none_after(lake: Lake) -> None:
    begun = plan(lake.newest(), [log(0, 10, queue=True)], rows_max=6).ranges
    assert begun == (Range(ORDERS, 0, 6, whole=10),)
    version = having(lake, *begun)
    assert plan(version, [log(0, 30, queue=True)], rows_max=100).ranges == (Range(ORDERS, 6, 10, whole=10),)
    version = having(lake, Range(ORDERS, 6, 10, whole=10))
    assert plan(version, [log(0, 30, queue=True)], rows_max=100).ranges == (Range(ORDERS, 10, 30, whole=10),)


def test_a_round_is_bounded_and_the_small_ones_are_whole(lake: Lake) -> None:
    origins = [Origin("i", "default", f"t{number}", 0, number) for number in range(4)]
    sizes = (5, 1000, 10, 4000)
    standings = [log(0, size, origin=origin) for origin, size in zip(origins, sizes, strict=True)]
    planned = plan(lake.newest(), standings, rows_max=100)
    taken = {one.origin.topic: one.count for one in planned.ranges}
    assert taken["t0"] == 5
    assert taken["t2"] == 10
    assert taken["t1"] >= 40
    assert taken["t3"] >= 40
    assert planned.rows <= 100
    assert planned.left == sum(sizes) - planned.rows


def test_big_messages_make_small_rounds_and_small_tasks(lake: Lake) -> None:
    heavy = Standing(ORDERS, False, 0, 100_000, 0, 100_000 * 2**20)
    planned = plan(lake.newest(), [heavy], rows_max=1_000_000)
    assert planned.rows == 2048
    assert planned.task_rows == 128


def test_what_a_killed_archiver_committed_is_owed_to_the_watermark(lake: Lake) -> None:
    version = having(lake, Range(ORDERS, 5, 9, whole=5))
    assert debts(version, [log(5, 10)]) == [Range(ORDERS, 0, 9, whole=5)]
    assert debts(version, [log(5, 10, archived_to=9)]) == []
