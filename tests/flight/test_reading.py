"""A log by DoGet: stretches named by tickets, whole and in order, for any Arrow language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

import duly
from duly.wire.faults import Fault


def ticket(**names: Any) -> flight.Ticket:
    asked = {"tenant": "default", "topic": "orders", "partition": 0, "offset": 0, **names}
    return flight.Ticket(msgspec.msgpack.encode(asked))


def info_of(raw: Any, **names: Any) -> flight.FlightInfo:
    asked = {"tenant": "default", "topic": "orders", **names}
    return raw.get_flight_info(flight.FlightDescriptor.for_command(msgspec.msgpack.encode(asked)))


def code_of(error: BaseException) -> str:
    return msgspec.msgpack.decode(error.extra_info, type=Fault).code  # type: ignore[attr-defined]


@pytest.fixture
def orders(q: duly.Client) -> str:
    q.create_topic("orders", kind="log", partitions=2)
    return "orders"


def test_a_topic_has_a_ticket_a_partition_and_they_hold_all_of_it(q: duly.Client, raw: Any, orders: str) -> None:
    for start in range(0, 5000, 1000):
        q.publish(orders, [duly.Message(b"%d" % n, key=str(n)) for n in range(start, start + 1000)])
    info = info_of(raw)
    assert (info.total_records, len(info.endpoints)) == (5000, 2)
    tables = [raw.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
    assert sorted(int(payload) for table in tables for payload in table.column("payload").to_pylist()) == [*range(5000)]
    for number, table in enumerate(tables):
        assert set(table.column("partition").to_pylist()) == {number}
        assert table.column("offset").to_pylist() == [*range(table.num_rows)]


def test_rows_are_what_read_answers(q: duly.Client, raw: Any, orders: str) -> None:
    q.publish(
        orders,
        [
            duly.Message(b"a", partition=0),
            duly.Message(b"b", id="own", key="k", headers={"x": "1"}, ttl=60, partition=0),
            duly.Message(b"", partition=0),
        ],
    )
    rows = raw.do_get(ticket()).read_all().to_pylist()
    for row, message in zip(rows, q.read(orders), strict=True):
        assert (row["offset"], row["id"], row["key"], row["payload"]) == (
            message.offset,
            message.id,
            message.key,
            message.payload,
        )
        assert dict(row["headers"] or ()) == message.headers
        assert (row["published_at"], row["expires_at"]) == (message.published_at_ms, message.expires_at_ms)


def test_a_stretch_begins_and_ends_where_its_ticket_says(q: duly.Client, raw: Any, orders: str) -> None:
    q.publish(orders, [duly.Message(b"%d" % n, partition=0) for n in range(3000)])
    table = raw.do_get(ticket(offset=990, end=2010)).read_all()
    assert table.column("offset").to_pylist() == [*range(990, 2010)]
    assert raw.do_get(ticket(offset=3000)).read_all().num_rows == 0
    assert raw.do_get(ticket(offset=2999, end=10_000)).read_all().num_rows == 1


def test_a_big_log_comes_in_pieces(q: duly.Client, raw: Any, orders: str) -> None:
    for n in range(30):
        q.publish(orders, [duly.Message(b"%02d" % n + bytes(999_998), partition=0)])
    batches = [chunk.data for chunk in raw.do_get(ticket())]
    found = [payload[:2] for batch in batches for payload in batch.column("payload").to_pylist()]
    assert found == [b"%02d" % n for n in range(30)]
    assert len(batches) > 1
    assert max(batch.nbytes for batch in batches) < 10_000_000


def test_many_blocks_come_as_one_batch(q: duly.Client, raw: Any, orders: str) -> None:
    for n in range(200):
        q.publish(orders, [duly.Message(b"%d" % n, partition=0)])
        q.publish(orders, [duly.Message(b"%d" % n, partition=0)] * 70)
    batches = [chunk.data for chunk in raw.do_get(ticket())]
    assert [batch.num_rows for batch in batches] == [200 * 71]


def test_only_the_columns_that_a_ticket_names_come(q: duly.Client, raw: Any, orders: str) -> None:
    q.publish(orders, [duly.Message(b"x", key="k", partition=0)] * 3)
    table = raw.do_get(ticket(columns=["key", "offset"])).read_all()
    assert table.to_pydict() == {"offset": [0, 1, 2], "key": ["k"] * 3}
    with pytest.raises(pa.ArrowException, match="no column 'colour'") as caught:
        raw.do_get(ticket(columns=["colour"])).read_all()
    assert code_of(caught.value) == "invalid_argument"


def test_what_was_truncated_is_said_before_anything_comes(q: duly.Client, raw: Any, clock: duly.ManualClock) -> None:
    q.create_topic("short", kind="log", retention=duly.Retention(age=10))
    q.publish("short", [b"x"] * 10)
    q.purge("short")
    with pytest.raises(flight.FlightServerError, match="truncated") as caught:
        raw.do_get(ticket(topic="short")).read_all()
    assert code_of(caught.value) == "offset_truncated"


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"topic": "nowhere"}, "topic_not_found"),
        ({"partition": 7}, "invalid_argument"),
        ({"partition": -1}, "limit_exceeded"),
        ({"offset": 99}, "invalid_argument"),
        ({"offset": -1}, "limit_exceeded"),
        ({"offset": "a"}, "invalid_argument"),
        ({"end": -5}, "limit_exceeded"),
    ],
)
def test_a_bad_ticket_is_refused(raw: Any, orders: str, bad: dict[str, Any], code: str) -> None:
    with pytest.raises(pa.ArrowException) as caught:
        raw.do_get(ticket(**bad)).read_all()
    assert code_of(caught.value) == code


@pytest.mark.parametrize("nonsense", [b"", b"\xff", b"hello", b"\x80", b"\x00" * 1000])
def test_nonsense_is_refused_without_a_traceback(raw: Any, nonsense: bytes) -> None:
    asks: list[Callable[[], Any]] = [
        lambda: raw.do_get(flight.Ticket(nonsense)).read_all(),
        lambda: raw.get_flight_info(flight.FlightDescriptor.for_command(nonsense)),
        lambda: raw.get_flight_info(flight.FlightDescriptor.for_path("orders")),
    ]
    for ask in asks:
        with pytest.raises(pa.ArrowException) as caught:
            ask()
        assert code_of(caught.value) == "invalid_argument"
        assert "Traceback" not in str(caught.value)


def test_a_queues_log_is_read_like_any_other(q: duly.Client, raw: Any) -> None:
    q.create_topic("jobs", kind="queue")
    q.publish("jobs", [duly.Message(b"a", lane="l", priority=3), duly.Message(b"b")])
    with q.claim("jobs", max_messages=1):
        pass
    rows = raw.do_get(ticket(topic="jobs")).read_all().to_pylist()
    assert [(row["payload"], row["lane"], row["priority"]) for row in rows] == [(b"a", "l", 3), (b"b", None, 0)]
