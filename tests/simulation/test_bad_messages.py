"""Bad messages, one by one and in Arrow tables: refused whole, with the index or the column named, nothing stored."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import duly

LIMITS = duly.LIMITS
Make = Callable[[], Any]


@pytest.fixture(autouse=True)
def log(q: duly.Client) -> None:
    q.create_topic("log", kind="log", partitions=3)
    q.create_topic("single", kind="log")
    q.create_group("log", "g")
    q.publish("log", b"before")


def state(q: duly.Client) -> str:
    read = [q.read("log", partition=p) for p in range(3)]
    return repr((q.describe_topic("log"), q.describe_group("log", "g"), read))


def _message(**fields: Any) -> duly.Message:
    return duly.Message(**{"payload": b"x", **fields})


BAD_FIELDS: dict[str, list[Any]] = {
    "payload": [None, "text", 5, 1.5, True, {}, [], object(), b"x" * (LIMITS.payload_bytes_default + 1)],
    "id": [
        "",
        5,
        b"x",
        True,
        {},
        object(),
        "\ud800",
        "@1-1",
        "x" * (LIMITS.id_bytes_max + 1),
        "ü" * LIMITS.id_bytes_max,
    ],
    "key": ["", 5, b"x", True, {}, object(), "\ud800", "x" * (LIMITS.key_bytes_max + 1)],
    "headers": [
        5,
        "a",
        [],
        [("a", "b")],
        0,
        "",
        False,
        object(),
        {"a": 5},
        {5: "a"},
        {"a": None},
        {"a": b"x"},
        {"\ud800": "a"},
        {"a": "\ud800"},
        {str(n): "" for n in range(LIMITS.headers_max + 1)},
        {"a": "x" * LIMITS.headers_bytes_max},
    ],
    "ttl": [0, -1, "5", True, math.nan, math.inf, 10**400, {}, timedelta(0), timedelta(days=10_000), timedelta.max],
    "expires_at": [5, "2030-01-01", datetime(2030, 1, 1), True, {}, object()],  # noqa: DTZ001
    "partition": [-1, 3, 2**63, 10**400, "0", 0.0, True, {}, object()],
    "due": [5, timedelta(1), datetime(2030, 1, 1, tzinfo=UTC)],
    "priority": [0, 5, "high"],
    "lane": ["a", ""],
}


@pytest.mark.parametrize("field", BAD_FIELDS)
@pytest.mark.parametrize("many", [3, 100], ids=["small", "big"])
def test_one_bad_message_is_named_and_nothing_is_stored(q: duly.Client, field: str, many: int) -> None:
    before = state(q)
    for value in BAD_FIELDS[field]:
        batch = [duly.Message(b"good", key="k")] * (many - 1)
        batch.insert(2, _message(**{field: value}))
        with pytest.raises(duly.InvalidArgument) as caught:
            q.publish("log", batch)
        assert "Message 2" in str(caught.value), value
        assert caught.value.facts == {"index": 2}, value
        assert field in str(caught.value), value
    assert state(q) == before


def test_ttl_and_expires_at_together(q: duly.Client) -> None:
    before = state(q)
    with pytest.raises(duly.InvalidArgument, match="ttl or expires_at"):
        q.publish("log", _message(ttl=5, expires_at=datetime(2030, 1, 1, tzinfo=UTC)))
    assert state(q) == before


NOT_BATCHES: list[Any] = [None, 5, 1.5, True, "text", {}, {b"a": 1}, object(), [], (), iter(()), [None], [[b"x"]], [5]]


@pytest.mark.parametrize("given", NOT_BATCHES, ids=lambda given: type(given).__name__)
def test_what_is_no_batch(q: duly.Client, given: Any) -> None:
    before = state(q)
    with pytest.raises(duly.InvalidArgument):
        q.publish("log", given)
    assert state(q) == before


def test_a_batch_past_its_limits(q: duly.Client) -> None:
    q.update_topic("log", payload_bytes_max=LIMITS.payload_bytes_max)
    before = state(q)
    with pytest.raises(duly.LimitExceeded, match=str(LIMITS.batch_messages_max)):
        q.publish("log", [b""] * (LIMITS.batch_messages_max + 1))
    with pytest.raises(duly.LimitExceeded, match=str(LIMITS.batch_bytes_max)):
        q.publish("log", [bytes(LIMITS.batch_bytes_max // 4 + 1)] * 4)
    with pytest.raises(duly.LimitExceeded, match=str(LIMITS.batch_bytes_max)):
        q.publish("log", [bytes(LIMITS.batch_bytes_max // 100 + 1)] * 100)
    with pytest.raises(duly.LimitExceeded, match="Message 0"):
        q.publish("log", bytes(LIMITS.payload_bytes_max + 1))
    assert state(q) == before


@pytest.mark.parametrize(
    "publish_id",
    [5, b"x", True, "", "\ud800", "a\nb", "a\0b", "x" * 129, "~mine", "~", {}],
)
def test_a_bad_publish_id(q: duly.Client, publish_id: Any) -> None:
    before = state(q)
    with pytest.raises(duly.InvalidArgument, match="publish_id"):
        q.publish("log", b"x", publish_id=publish_id)
    assert state(q) == before


@pytest.mark.parametrize("value", [object(), {1, 2}, math.nan, b"bytes"])
def test_a_value_that_is_no_json(value: Any) -> None:
    with pytest.raises(duly.InvalidArgument, match="JSON"):
        duly.Message.json(value)


def test_json_text_that_is_no_unicode() -> None:
    with pytest.raises(duly.InvalidArgument):
        duly.Message.json("\ud800")


def test_everything_up_to_the_limits_is_stored_as_it_is(q: duly.Client) -> None:
    given = [
        duly.Message(b""),
        duly.Message(b"\0" * 100, id="\0", key="\0"),
        duly.Message(bytes(LIMITS.payload_bytes_default), id="x" * LIMITS.id_bytes_max),
        duly.Message(b"k", key="ü" * (LIMITS.key_bytes_max // 2), headers={"": "", "\0": "\n"}),
        duly.Message(b"h", headers={f"{n:03}": "v" for n in range(LIMITS.headers_max)}),
        duly.Message(bytearray(b"array")),  # type: ignore[arg-type]
        duly.Message(memoryview(b"view")),  # type: ignore[arg-type]
    ]
    for batch in (given, given * 10):
        start = {p.partition: p.next_offset for p in q.describe_topic("log").partitions}
        q.publish("log", [duly.Message(m.payload, m.id, m.key, m.headers, partition=1) for m in batch])
        found = q.read("log", partition=1, offset=start[1])
        assert [m.payload for m in found] == [bytes(m.payload) for m in batch]
        assert [m.key for m in found] == [m.key for m in batch]
        assert [dict(m.headers) for m in found] == [dict(m.headers or {}) for m in batch]


# Arrow


def _binary(*values: bytes | None) -> Any:
    return pa.array(list(values), pa.binary())


def _broken_text() -> Any:
    offsets = pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0")
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfe")])


def _broken_headers() -> Any:
    return pa.MapArray.from_arrays([0, 1, 1], _broken_text().slice(0, 1), pa.array(["value"]))


PAYLOAD = _binary(b"a", b"b")
BAD_TABLES: dict[str, tuple[str, Make]] = {
    "no payload": ("payload", lambda: pa.table({"id": ["a", "b"]})),
    "payload twice": ("twice", lambda: pa.Table.from_arrays([PAYLOAD, PAYLOAD], ["payload", "payload"])),
    "extra column": ("'due'", lambda: pa.table({"payload": PAYLOAD, "due": [1, 2]})),
    "empty": ("batch", lambda: pa.table({"payload": pa.array([], pa.binary())})),
    "no columns": ("batch|payload", lambda: pa.table({})),
    "payload null": ("payload", lambda: pa.table({"payload": _binary(b"a", None)})),
    "payload all null": ("payload", lambda: pa.table({"payload": pa.nulls(2)})),
    "payload text": ("payload", lambda: pa.table({"payload": ["a", "b"]})),
    "payload int": ("payload", lambda: pa.table({"payload": [1, 2]})),
    "payload list": ("payload", lambda: pa.table({"payload": [[1], [2]]})),
    "payload too big": ("payload", lambda: pa.table({"payload": _binary(b"a", b"x" * 2**21)})),
    "id list": ("id", lambda: pa.table({"payload": PAYLOAD, "id": [[1], [2]]})),
    "id int": ("id", lambda: pa.table({"payload": PAYLOAD, "id": [1, 2]})),
    "key int": ("key", lambda: pa.table({"payload": PAYLOAD, "key": [1, 2]})),
    "id empty": ("id", lambda: pa.table({"payload": PAYLOAD, "id": ["", "b"]})),
    "id made": ("id", lambda: pa.table({"payload": PAYLOAD, "id": ["@1-1", "b"]})),
    "id too long": ("id", lambda: pa.table({"payload": PAYLOAD, "id": ["x" * (LIMITS.id_bytes_max + 1), "b"]})),
    "id no unicode": ("id", lambda: pa.table({"payload": PAYLOAD, "id": _broken_text()})),
    "id bytes": ("id", lambda: pa.table({"payload": PAYLOAD, "id": _binary(b"\xff", b"b")})),
    "key empty": ("key", lambda: pa.table({"payload": PAYLOAD, "key": ["", None]})),
    "key no unicode": ("key", lambda: pa.table({"payload": PAYLOAD, "key": _broken_text()})),
    "key too long": ("key", lambda: pa.table({"payload": PAYLOAD, "key": ["x" * (LIMITS.key_bytes_max + 1), "b"]})),
    "headers text": ("headers", lambda: pa.table({"payload": PAYLOAD, "headers": ["a", "b"]})),
    "headers int": ("headers", lambda: pa.table({"payload": PAYLOAD, "headers": _maps([("a", 1)], pa.int64())})),
    "headers null": ("headers", lambda: pa.table({"payload": PAYLOAD, "headers": _maps([("a", None)], pa.string())})),
    "headers many": ("header", lambda: pa.table({"payload": PAYLOAD, "headers": _maps(_many_headers(), pa.string())})),
    "headers no unicode": ("headers", lambda: pa.table({"payload": PAYLOAD, "headers": _broken_headers()})),
    "partition text": ("partition", lambda: pa.table({"payload": PAYLOAD, "partition": ["0", "1"]})),
    "partition float": ("partition", lambda: pa.table({"payload": PAYLOAD, "partition": [0.0, 1.0]})),
    "partition negative": ("partition", lambda: pa.table({"payload": PAYLOAD, "partition": [0, -1]})),
    "partition unknown": ("Message 1", lambda: pa.table({"payload": PAYLOAD, "partition": [0, 3]})),
    "expiry negative": ("expires_at", lambda: pa.table({"payload": PAYLOAD, "expires_at": [-1, None]})),
    "expiry naive": ("expires_at", lambda: pa.table({"payload": PAYLOAD, "expires_at": _times(None)})),
    "expiry text": ("expires_at", lambda: pa.table({"payload": PAYLOAD, "expires_at": ["soon", "x"]})),
    "expiry decimal": (
        "expires_at",
        lambda: pa.table({"payload": PAYLOAD, "expires_at": _decimals()}),
    ),
    "a column, not a table": ("Array", lambda: PAYLOAD),
    "a schema": ("Schema", lambda: pa.schema([("payload", pa.binary())])),
}


def _maps(pairs: list[tuple[str, Any]], kind: Any) -> Any:
    return pa.array([pairs, None], pa.map_(pa.string(), kind))


def _decimals() -> Any:
    return pa.array([decimal.Decimal("1.5")] * 2)


def _many_headers() -> list[tuple[str, Any]]:
    return [(str(n), "v") for n in range(LIMITS.headers_max + 1)]


def _times(zone: str | None) -> Any:
    return pa.array([datetime(2030, 1, 1), None], pa.timestamp("us", zone))  # noqa: DTZ001


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_bad_table(q: duly.Client, name: str) -> None:
    word, make = BAD_TABLES[name]
    before = state(q)
    for topic in ("log", "single"):
        with pytest.raises(duly.InvalidArgument, match=word):
            q.publish(topic, make())
    assert state(q) == before
    assert q.read("single") == []


TABLES: dict[str, Make] = {
    "table": lambda: pa.table({"payload": _binary(b"0", b"1", b"2", b"3")}),
    "batch": lambda: pa.record_batch({"payload": _binary(b"0", b"1", b"2", b"3")}),
    "sliced": lambda: pa.table({"payload": _binary(b"no", b"0", b"1", b"2", b"3", b"no")}).slice(1, 4),
    "sliced batch": lambda: pa.record_batch({"payload": _binary(b"no", b"0", b"1", b"2", b"3")}).slice(1),
    "chunked": lambda: pa.table({"payload": pa.chunked_array([_binary(b"0"), _binary(), _binary(b"1", b"2", b"3")])}),
    "large": lambda: pa.table({"payload": pa.array([b"0", b"1", b"2", b"3"], pa.large_binary())}),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_every_make_are_stored_alike(q: duly.Client, name: str) -> None:
    receipt = q.publish("log", TABLES[name]().append_column("partition", pa.array([1] * 4)))
    assert receipt.positions == [(1, n) for n in range(4)]
    assert [m.payload for m in q.read("log", partition=1)] == [b"0", b"1", b"2", b"3"]


def test_columns_of_every_make_are_stored_alike(q: duly.Client) -> None:
    ids, keys = pa.array(["a", None, "c", "a"]), pa.array(["k", "k", None, None])
    shapes = [
        (ids, keys),
        (ids.dictionary_encode(), keys.dictionary_encode()),
        (ids.cast(pa.large_string()), keys.cast(pa.large_string())),
        (pa.concat_arrays([pa.array(["no"]), ids]).slice(1), pa.concat_arrays([pa.array(["no"]), keys]).slice(1)),
    ]
    table = TABLES["table"]().append_column("partition", pa.array([2, None, 2, 2], pa.uint8()))
    table = table.append_column("expires_at", pa.array([None, 2**41, None, None]))
    for own_ids, own_keys in shapes:
        start = q.describe_topic("log").partitions[2].next_offset
        q.publish("log", table.append_column("id", own_ids).append_column("key", own_keys).slice(0, 4))
        found = {m.payload: m for p in range(3) for m in q.read("log", partition=p, offset=start if p == 2 else 0)}
        assert [found[b"%d" % n].key for n in range(4)] == ["k", "k", None, None]
        assert [found[b"%d" % n].id for n in (0, 2, 3)] == ["a", "c", "a"]
        assert [found[b"%d" % n].expires_at_ms for n in range(4)] == [None, 2**41, None, None]


@pytest.mark.parametrize("column", ["id", "key", "headers", "expires_at", "partition"])
def test_a_column_of_nulls_is_as_good_as_none(q: duly.Client, column: str) -> None:
    q.publish("log", TABLES["table"]().append_column(column, pa.nulls(4)), publish_id="n")
    assert q.describe_topic("log").messages == 5


def test_a_moment_with_a_zone_is_an_expiry(q: duly.Client) -> None:
    q.publish("log", pa.table({"payload": PAYLOAD, "expires_at": _times("UTC"), "partition": [1, 1]}))
    first, second = q.read("log", partition=1)
    assert (first.expires_at, second.expires_at) == (datetime(2030, 1, 1, tzinfo=UTC), None)
