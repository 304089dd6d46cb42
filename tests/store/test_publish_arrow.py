"""Publish from Arrow: the same messages, refused by the same rules, without work per row."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import duly

FULL = {
    "payload": pa.array([b"a", b"b", b"c"], pa.binary()),
    "id": pa.array(["i0", None, "i2"]),
    "key": pa.array(["k", "k", None]),
    "headers": pa.array([[("h", "v")], None, []], pa.map_(pa.string(), pa.string())),
}


def seen(q: duly.Client, topic: str) -> list[tuple[Any, ...]]:
    return [(m.payload, m.key, dict(m.headers), m.expires_at_ms) for m in q.read(topic, max_messages=100_000)]


def test_a_table_publishes_the_messages_of_its_rows(q: duly.Client, orders: str) -> None:
    receipt = q.publish(orders, pa.table(FULL))
    assert receipt.count == 3
    assert seen(q, orders) == [(b"a", "k", {"h": "v"}, None), (b"b", "k", {}, None), (b"c", None, {}, None)]
    assert [m.id for m in q.read(orders)] == receipt.ids
    assert receipt.ids[0::2] == ["i0", "i2"]


def test_a_table_and_a_list_of_the_same_messages_are_the_same(q: duly.Client) -> None:
    count = 3000
    listed = [duly.Message(b"%d" % n, key=f"k{n % 7}", headers={"n": str(n)} if n % 2 else None) for n in range(count)]
    table = pa.table(
        {
            "payload": pa.array([m.payload for m in listed], pa.binary()),
            "key": pa.array([m.key for m in listed]),
            "headers": pa.array(
                [None if m.headers is None else list(m.headers.items()) for m in listed],
                pa.map_(pa.string(), pa.string()),
            ),
        }
    )
    for topic, batch in (("listed", listed), ("table", table)):
        q.create_topic(topic, kind="log", partitions=4)
        q.publish(topic, batch)
    for partition in range(4):
        a, b = (q.read(topic, partition=partition, max_messages=count) for topic in ("listed", "table"))
        assert [(m.offset, m.payload, m.key, m.headers) for m in a] == [
            (m.offset, m.payload, m.key, m.headers) for m in b
        ]


@pytest.mark.parametrize("form", ["batch", "chunked", "sliced", "large", "dictionary"])
def test_any_form_of_arrow_data_will_do(q: duly.Client, orders: str, form: str) -> None:
    payload = pa.array([b"%d" % n for n in range(100)], pa.binary())
    key = pa.array([f"k{n}" for n in range(100)])
    table = pa.table({"payload": payload, "key": key})
    given = {
        "batch": lambda: table.to_batches()[0],
        "chunked": lambda: pa.concat_tables([table.slice(0, 30), table.slice(30)]),
        "sliced": lambda: pa.concat_tables([table, table]).slice(50, 100).slice(50, 50),
        "large": lambda: pa.table({"payload": payload.cast(pa.large_binary()), "key": key.cast(pa.large_string())}),
        "dictionary": lambda: pa.table({"payload": payload, "key": key.dictionary_encode()}),
    }[form]()
    q.publish(orders, given)
    wanted: list[tuple[Any, ...]] = [(row["payload"], row["key"], {}, None) for row in given.to_pylist()]
    assert seen(q, orders) == wanted
    assert q.claim(orders, group="billing").payloads == [row[0] for row in wanted]


def test_expiries_are_milliseconds_or_timestamps_with_a_zone(q: duly.Client, clock: duly.ManualClock) -> None:
    at = clock.now_ms() + 10_000
    for topic, column in (
        ("whole", pa.array([at, None], pa.int64())),
        ("stamped", pa.array([at * 1000, None], pa.timestamp("us", "Europe/Zurich"))),
    ):
        q.create_topic(topic, kind="log")
        q.publish(topic, pa.table({"payload": pa.array([b"a", b"b"], pa.binary()), "expires_at": column}))
        assert [m.expires_at_ms for m in q.read(topic)] == [at, None]


def test_the_partition_column_names_partitions(q: duly.Client) -> None:
    q.create_topic("wide", kind="log", partitions=4)
    numbers = [n % 4 for n in range(400)]
    table = pa.table({"payload": pa.array([b"%d" % n for n in numbers], pa.binary()), "partition": numbers})
    receipt = q.publish("wide", table)
    assert [partition for partition, _ in receipt.positions] == numbers
    assert {m.payload for m in q.read("wide", partition=3)} == {b"3"}


@pytest.mark.parametrize(
    "bad",
    [
        {"key": pa.array(["a"])},
        {"payload": pa.array(["text"])},
        {"payload": pa.array([1])},
        {"payload": pa.array([b"x", None], pa.binary())},
        {"payload": pa.array([], pa.binary())},
        {"payload": pa.array([b"x"], pa.binary()), "prioritty": pa.array([1])},
        {"payload": pa.array([b"x"], pa.binary()), "key": pa.array([1])},
        {"payload": pa.array([b"x"], pa.binary()), "id": pa.array([""])},
        {"payload": pa.array([b"x"], pa.binary()), "id": pa.array(["@1-1"])},
        {"payload": pa.array([b"x"], pa.binary()), "id": pa.array(["x" * 513])},
        {"payload": pa.array([b"x"], pa.binary()), "key": pa.array(["x" * 1025])},
        {"payload": pa.array([b"x"], pa.binary()), "partition": pa.array([1])},
        {"payload": pa.array([b"x"], pa.binary()), "partition": pa.array([-1])},
        {"payload": pa.array([b"x"], pa.binary()), "partition": pa.array(["0"])},
        {"payload": pa.array([b"x"], pa.binary()), "expires_at": pa.array([-5])},
        {"payload": pa.array([b"x"], pa.binary()), "expires_at": pa.array([5], pa.timestamp("ms"))},
        {"payload": pa.array([bytes(1024 * 1024 + 1)], pa.binary())},
        {
            "payload": pa.array([b"x"], pa.binary()),
            "headers": pa.array([[("h", "x" * 20_000)]], pa.map_(pa.string(), pa.string())),
        },
        {
            "payload": pa.array([b"x"], pa.binary()),
            "headers": pa.array([[(str(n), "") for n in range(65)]], pa.map_(pa.string(), pa.string())),
        },
    ],
    ids=lambda columns: "-".join(f"{name}:{column.type}" for name, column in columns.items()),
)
def test_a_bad_table_is_refused_whole(q: duly.Client, orders: str, bad: dict[str, Any]) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.publish(orders, pa.table(bad))
    assert q.describe_topic(orders).messages == 0


def test_a_payload_too_big_is_named_by_its_index(q: duly.Client, orders: str) -> None:
    payloads = [b"x", b"y", bytes(1024 * 1024 + 1), b"z"]
    with pytest.raises(duly.LimitExceeded) as caught:
        q.publish(orders, pa.table({"payload": pa.array(payloads, pa.binary())}))
    assert caught.value.facts["index"] == 2


def test_a_table_with_a_publish_id_is_stored_once(q: duly.Client, orders: str) -> None:
    q.publish(orders, pa.table(FULL), publish_id="p1")
    assert q.publish(orders, pa.table(FULL), publish_id="p1").duplicate
    assert q.describe_topic(orders).messages == 3


# No work per row


class LineCount:
    """Counts the lines of Duly's own code that run, in every thread started meanwhile."""

    def __init__(self) -> None:
        self.lines = 0

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if "/duly/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.lines += 1
        return self.trace


@pytest.fixture
def counted() -> Iterator[LineCount]:
    """Traces this thread and those that a client starts from now on."""
    before, count = sys.gettrace(), LineCount()
    threading.settrace(count.trace)
    sys.settrace(count.trace)
    yield count
    sys.settrace(before)
    threading.settrace(before)


@pytest.mark.parametrize("column", ["payload", "id", "key", "headers", "expires_at", "partition"])
@pytest.mark.parametrize("partitions", [1, 4])
def test_publishing_a_table_runs_no_python_per_row(counted: LineCount, column: str, partitions: int) -> None:
    def table(rows: int) -> pa.Table:
        columns = {
            "payload": pa.array([b"x"] * rows, pa.binary()),
            "id": pa.array([f"{n}" for n in range(rows)]),
            "key": pa.array([f"k{n % 16}" for n in range(rows)]),
            "headers": pa.array([[("a", "b")]] * rows, pa.map_(pa.string(), pa.string())),
            "expires_at": pa.array([2_000_000_000_000] * rows, pa.int64()),
            "partition": pa.array([0] * rows, pa.int32()),
        }
        return pa.table({name: columns[name] for name in {"payload", column}})

    with duly.connect(":memory:") as q:
        q.create_topic("orders", kind="log", partitions=partitions)
        lines = []
        q.publish("orders", table(10))
        for rows in (1000, 20_000):
            counted.lines = 0
            q.publish("orders", table(rows))
            lines.append(counted.lines)
    # Twenty times the rows are twenty times the blocks; beyond that nothing may grow with the rows.
    assert lines[0] > 0, "the tracer must see something"
    assert (lines[1] - lines[0]) / 19_000 < 0.5, f"{lines[0]} lines for 1,000 rows, {lines[1]} for 20,000"
