"""Topics as record batches: whole, in order, the same as by any other way; of queues, the log beneath."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import duly
from duly.clock import from_ms

from .conftest import Home
from .patience import eventually


def rows(q: duly.Client, topic: str, **how: Any) -> list[dict[str, Any]]:
    return [row for batch in q.read_arrow(topic, **how) for row in batch.to_pylist()]


def payloads(q: duly.Client, topic: str, **how: Any) -> list[bytes]:
    return [row["payload"] for row in rows(q, topic, **how)]


@pytest.fixture
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue", lease=30)
    return "jobs"


def test_rows_are_what_read_answers(q: duly.Client, orders: str, clock: duly.ManualClock) -> None:
    q.publish(orders, b"a")
    clock.advance(5)
    q.publish(orders, [duly.Message(b"b", id="own", key="k", headers={"x": "1", "y": ""}, ttl=60), b""])
    q.publish(orders, [duly.Message(b"%d" % n, key=None if n % 3 else "third") for n in range(200)])
    found = rows(q, orders)
    for row, message in zip(found, q.read(orders), strict=True):
        assert (row["partition"], row["offset"], row["id"]) == (0, message.offset, message.id)
        assert (row["key"], row["payload"]) == (message.key, message.payload)
        assert dict(row["headers"] or ()) == message.headers
        assert (row["published_at"], row["expires_at"]) == (message.published_at_ms, message.expires_at_ms)
        assert (row["lane"], row["priority"], row["due_at"]) == (None, None, None)


def test_small_and_big_blocks_are_one_batch(q: duly.Client, orders: str) -> None:
    for n in range(30):
        q.publish(orders, b"%d" % n)
        q.publish(orders, [duly.Message(b"%d" % n, key="k")] * 80)
    batches = list(q.read_arrow(orders))
    assert [batch.num_rows for batch in batches] == [30 * 81]
    assert batches[0].column("offset").to_pylist() == [*range(30 * 81)]
    assert batches[0].column("payload").to_pylist() == [b"%d" % n for n in range(30) for _ in range(81)]


def test_batches_are_bounded_and_alike(q: duly.Client, orders: str) -> None:
    for _ in range(12):
        q.publish(orders, [b"x" * 900_000, duly.Message(b"y" * 900_000, key="k")])
    for _ in range(70):
        q.publish(orders, [b"z"] * 1000)
    batches = list(q.read_arrow(orders))
    assert sum(batch.num_rows for batch in batches) == 70_024
    assert len(batches) > 3
    assert max(batch.num_rows for batch in batches) <= 67_000
    assert max(batch.nbytes for batch in batches) < 11_000_000
    assert len({str(batch.schema) for batch in batches}) == 1


def test_a_stretch_begins_and_ends_as_asked(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"%d" % n for n in range(2500)])
    assert payloads(q, orders, offset=990, end=2010) == [b"%d" % n for n in range(990, 2010)]
    assert payloads(q, orders, offset=2499) == [b"2499"]
    assert payloads(q, orders, offset=2499, end=10_000) == [b"2499"]
    assert payloads(q, orders, offset=2500) == []
    assert payloads(q, orders, offset=5, end=5) == []
    with pytest.raises(duly.InvalidArgument, match="ends at offset 2500"):
        rows(q, orders, offset=2501)


def test_columns_come_as_asked_in_their_order(q: duly.Client, orders: str) -> None:
    q.publish(orders, [duly.Message(b"x", key="k")] * 2)
    (batch,) = q.read_arrow(orders, columns=["key", "published_at"])
    assert batch.schema.names == ["published_at", "key"]
    assert batch.column("key").to_pylist() == ["k", "k"]
    (batch,) = q.read_arrow(orders, columns=["partition"])
    assert batch.to_pydict() == {"partition": [0, 0]}
    (batch,) = q.read_arrow(orders, columns=["lane"])
    assert batch.to_pydict() == {"lane": [None, None]}


@pytest.mark.parametrize("columns", [["colour"], [], "key", [1]])
def test_columns_that_are_none_are_refused_at_the_call(q: duly.Client, orders: str, columns: Any) -> None:
    with pytest.raises(duly.InvalidArgument, match=r"column|no column"):
        q.read_arrow(orders, columns=columns)


def test_what_is_published_while_it_is_read_is_left_to_the_next(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"x" * 900_000] * 20)
    count = 0
    for batch in q.read_arrow(orders, columns=["offset"]):
        count += batch.num_rows
        q.publish(orders, [b"y" * 900_000] * 10)
    assert count == 20


def test_the_topic_and_the_partition_have_to_be_there(q: duly.Client, orders: str) -> None:
    with pytest.raises(duly.TopicNotFound):
        list(q.read_arrow("nowhere"))
    with pytest.raises(duly.InvalidArgument, match="has partitions 0 to 0"):
        list(q.read_arrow(orders, partition=3))


def test_what_a_log_has_lost_is_said(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"x"] * 10)
    q.purge(orders)
    q.publish(orders, b"y")
    with pytest.raises(duly.OffsetTruncated) as caught:
        list(q.read_arrow(orders))
    assert caught.value.first_offset == 10
    assert payloads(q, orders, offset=10) == [b"y"]


def test_a_log_that_is_truncated_while_it_is_read_is_said(q: duly.Client, orders: str) -> None:
    for _ in range(40):
        q.publish(orders, [b"x" * 900_000])
    batches = q.read_arrow(orders)
    assert next(batches).num_rows > 0
    q.purge(orders)
    # A broker may have some on the way; the rest is gone.
    with pytest.raises(duly.OffsetTruncated):
        for _ in batches:
            pass


def test_reading_may_be_left_at_any_time(q: duly.Client, orders: str) -> None:
    for _ in range(30):
        q.publish(orders, [b"x" * 900_000])
    for _ in range(3):
        for _batch in q.read_arrow(orders):
            break
    assert sum(batch.num_rows for batch in q.read_arrow(orders)) == 30


def test_a_closed_client_reads_no_further(home: Home) -> None:
    q = home.connect()
    q.create_topic("orders", kind="log")
    for _ in range(30):
        q.publish("orders", [b"x" * 900_000])
    batches = q.read_arrow("orders")
    next(batches)
    q.close()
    with pytest.raises(duly.Closed):
        list(batches)


def test_a_queue_has_lane_priority_and_due_time(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [duly.Message(b"a", lane="l", priority=7, due=timedelta(hours=1)), duly.Message(b"b")])
    q.publish(jobs, [duly.Message(b"c", priority=2)] + [b"d"] * 100)
    found = rows(q, jobs)
    assert [(row["lane"], row["priority"]) for row in found[:4]] == [("l", 7), (None, 0), (None, 2), (None, 0)]
    assert found[0]["due_at"] == clock.now_ms() + 3_600_000
    assert found[0]["id"] == q.browse(jobs, state="waiting")[0].id


def test_of_a_queue_settled_messages_are_there_as_long_as_its_log_has_them(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [b"%d" % n for n in range(500)])
    q.publish(jobs, [b"%d" % n for n in range(500, 600)])
    with q.claim(jobs, max_messages=550):
        pass
    assert [int(payload) for payload in payloads(q, jobs)][-100:] == [*range(500, 600)]


def scattered(q: duly.Client, jobs: str, clock: duly.ManualClock) -> list[bytes]:
    """A queue that was emptied but for a message here and there: its log has gaps, and some were copied out of it."""
    for n in range(40):
        q.publish(jobs, [duly.Message(b"%d" % n, due=86_400), *[b"x"] * 999])
        q.claim(jobs, max_messages=999).ack()

    def look() -> bool:
        clock.advance(1)
        return q.describe_topic(jobs).partitions[0].blocks < 30

    assert eventually(look)
    q.publish(jobs, duly.Message(b"last", due=86_400))
    return [*(b"%d" % n for n in range(40)), b"last"]


def test_gaps_of_a_queue_are_passed_and_what_was_copied_out_is_read(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    living = scattered(q, jobs, clock)
    found = rows(q, jobs, columns=["offset", "payload", "due_at"])
    assert len(found) < 30_100
    assert [row["offset"] for row in found] == sorted({row["offset"] for row in found})
    assert [row["payload"] for row in found if row["payload"] != b"x"] == living
    assert [row["offset"] for row in found if row["payload"] != b"x"] == [n * 1000 for n in range(41)]
    assert all((row["due_at"] is None) == (row["payload"] == b"x") for row in found)
    assert payloads(q, jobs, offset=40_000) == [b"last"]
    first = next(row["offset"] for row in found if row["payload"] == b"1")
    assert payloads(q, jobs, offset=first, end=first + 1) == [b"1"]


def test_what_a_queue_lost_before_archiving_was_turned_on_is_no_fault(
    q: duly.Client, jobs: str, clock: duly.ManualClock
) -> None:
    scattered(q, jobs, clock)
    whole = rows(q, jobs, columns=["offset"])
    q.update_topic(jobs, archive=True)
    (part,) = q.describe_topic(jobs).partitions
    assert part.archive_from == part.next_offset > part.archived_to
    assert rows(q, jobs, columns=["offset"]) == whole


@pytest.mark.embedded
def test_a_gap_above_the_archives_watermark_is_said(home: Home) -> None:
    with home.connect() as q:
        q.create_topic("jobs", kind="queue", archive=True)
        for _ in range(3):
            q.publish("jobs", [b"x" * 10] * 1000)
    home.change("DELETE FROM duly_block WHERE base = 1000")
    with home.connect() as q:
        with pytest.raises(duly.OffsetTruncated, match=r"Offsets 1000 to 1999 .* above what is archived"):
            rows(q, "jobs")
        left = [offset for batch in q.read_arrow("jobs", missing_ok=True) for offset in batch["offset"].to_pylist()]
        assert left == [*range(1000), *range(2000, 3000)]
        q.archived("jobs", partition=0, offset=2000)
        assert len(rows(q, "jobs", columns=["offset"])) == 2000


def test_a_queue_that_lost_its_front_is_read_from_there(q: duly.Client, jobs: str) -> None:
    q.publish(jobs, [b"x"] * 100)
    q.purge(jobs)
    q.publish(jobs, b"y")
    assert payloads(q, jobs) == [b"y"]
    assert payloads(q, jobs, offset=50) == [b"y"]
    assert payloads(q, jobs, end=100) == []


def test_offsets_of_a_queue_have_times(q: duly.Client, jobs: str, clock: duly.ManualClock) -> None:
    q.publish(jobs, [b"x"] * 10)
    clock.advance(60)
    q.publish(jobs, b"y")
    assert q.offset_at(jobs, from_ms(clock.now_ms())) == {0: 10}


@pytest.mark.embedded
@pytest.mark.sqlite
def test_reading_loads_no_pandas(q: duly.Client) -> None:
    code = """
import sys, duly
with duly.connect(":memory:") as q:
    q.create_topic("t", kind="queue")
    q.publish("t", [b"a"] * 100 + [duly.Message(b"b", id="x", priority=2)]); q.publish("t", b"c")
    print(sum(b.num_rows for b in q.read_arrow("t")), "pandas" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.split() == ["102", "False"]


def test_the_batches_can_be_published_again(q: duly.Client, orders: str) -> None:
    q.publish(orders, [duly.Message(b"%d" % n, key="k") for n in range(100)])
    q.create_topic("copy", kind="log")
    for batch in q.read_arrow(orders, columns=["key", "payload"]):
        q.publish("copy", pa.table(batch))
    assert payloads(q, "copy") == [b"%d" % n for n in range(100)]
