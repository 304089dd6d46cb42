"""Columns: listed and arrow batches are the same batch, whatever is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import duly
from duly.clock import milliseconds, moment_ms
from duly.engine.columns import ARROW_FROM, NAMES, Columns, gather, join, to_arrow
from duly.engine.incoming import check_batch

_1970 = datetime(1970, 1, 1)  # noqa: DTZ001

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
message = st.builds(
    duly.Message,
    st.binary(max_size=12),
    id=st.none() | text.filter(lambda t: not t.startswith("@")),
    key=st.none() | text,
    headers=st.none() | st.dictionaries(text, text, max_size=3),
    ttl=st.none() | st.integers(1, 1000),
    due=st.none() | st.integers(0, 1000) | st.datetimes(min_value=_1970, timezones=st.just(UTC)),
    priority=st.none() | st.integers(0, 65_535),
    lane=st.none() | st.sampled_from(["acme", "globex"]),
)
messages = st.lists(message, min_size=1, max_size=20)


def both(batch: list[duly.Message]) -> tuple[Columns, Columns]:
    """The same batch in both forms."""
    listed = check_batch(batch).columns
    assert listed.arrow is None
    return listed, Columns(listed.count, arrow=to_arrow(listed))


def rows(columns: Columns) -> list[tuple[Any, ...]]:
    return list(zip(*((columns.values(name) or [None] * columns.count) for name in NAMES), strict=True))


@given(messages)
def test_both_forms_hold_the_same_values(batch: list[duly.Message]) -> None:
    listed, arrow = both(batch)
    assert rows(listed) == rows(arrow)
    assert (listed.count, listed.bytes, listed.names) == (arrow.count, arrow.bytes, arrow.names)
    assert listed.sizes().tolist() == arrow.sizes().tolist() == [len(m.payload) for m in batch]


@given(messages, st.data())
def test_both_forms_slice_alike(batch: list[duly.Message], data: st.DataObject) -> None:
    listed, arrow = both(batch)
    start = data.draw(st.integers(0, len(batch)))
    stop = data.draw(st.integers(start, len(batch)))
    one, two = listed.slice(start, stop), arrow.slice(start, stop)
    assert one.count == two.count == stop - start
    assert rows(one) == rows(two) == rows(listed)[start:stop]
    if stop > start:
        assert one.bytes == two.bytes
        assert one.sizes().tolist() == two.sizes().tolist()
        for name in NAMES:
            assert listed.values(name, start, stop) == arrow.values(name, start, stop)


@given(messages, st.data())
def test_both_forms_take_alike(batch: list[duly.Message], data: st.DataObject) -> None:
    listed, arrow = both(batch)
    indexes = data.draw(st.lists(st.integers(0, len(batch) - 1), min_size=1, max_size=10))
    one, two = (form.take(np.array(indexes)) for form in (listed, arrow))
    assert rows(one) == rows(two) == [rows(listed)[i] for i in indexes]


NOW_MS = 1_000_000


def due_ms(message: duly.Message) -> int:
    """When a message is due that is published at NOW_MS."""
    if isinstance(message.due, datetime):
        return moment_ms(message.due, "due")
    return NOW_MS + milliseconds(message.due or 0, "due")


@given(messages, st.none() | st.integers(1, 10_000))
def test_both_forms_reckon_times_alike_and_a_ttl_from_the_due_time(
    batch: list[duly.Message], ttl_ms: int | None
) -> None:
    listed, arrow = both(batch)
    lives = [ttl_ms if m.ttl is None else milliseconds(m.ttl, "ttl") for m in batch]
    expires = [None if life is None else due_ms(m) + life for m, life in zip(batch, lives, strict=True)]
    dues = [due_ms(m) for m in batch] if any(m.due is not None for m in batch) else [None] * len(batch)
    for form in (listed, arrow):
        found = form.at_times(NOW_MS, ttl_ms)
        assert (found.values("expires_at") or [None] * len(batch)) == expires
        assert (found.values("due_at") or [None] * len(batch)) == dues
        untouched = [name for name in NAMES if name not in ("expires_at", "due_at")]
        assert [found.values(name) for name in untouched] == [listed.values(name) for name in untouched]


@given(messages)
def test_both_forms_give_numbers_and_tell_what_is_missing(batch: list[duly.Message]) -> None:
    priorities = [7 if m.priority is None else m.priority for m in batch]
    for form in both(batch):
        assert form.numbers("priority", 7).tolist() == priorities
        if "priority" in form.names:
            assert form.without("priority") == [at for at, m in enumerate(batch) if m.priority is None]


@given(messages, st.data())
def test_columns_are_put_in_place_in_both_forms(batch: list[duly.Message], data: st.DataObject) -> None:
    offsets = np.array(data.draw(st.lists(st.integers(0, 2**40), min_size=len(batch), max_size=len(batch))), np.int64)
    keys = data.draw(st.lists(st.none() | text, min_size=len(batch), max_size=len(batch)))
    for form in both(batch):
        changed = form.having(offset=offsets, key=keys)
        assert changed.values("offset") == offsets.tolist()
        assert changed.values("key") == keys
        assert changed.values("payload") == [m.payload for m in batch]
        assert changed.names == sorted({*form.names, "key", "offset"}, key=NAMES.index)


@given(st.lists(messages, min_size=1, max_size=5), st.data())
def test_batches_of_either_form_are_gathered_in_any_order(
    batches: list[list[duly.Message]], data: st.DataObject
) -> None:
    parts = [data.draw(st.sampled_from(both(batch))) for batch in batches]
    flat = [row for part in parts for row in rows(part)]
    order = data.draw(st.permutations(range(len(flat))))
    assert rows(gather(parts)) == flat
    assert rows(gather(parts, np.array(order))) == [flat[at] for at in order]


@given(st.lists(messages, min_size=1, max_size=5))
def test_joined_batches_are_laid_end_to_end(batches: list[list[duly.Message]]) -> None:
    parts = [check_batch(batch).columns for batch in batches]
    joined = join(parts)
    assert joined.count == sum(map(len, batches))
    assert rows(joined) == [row for part in parts for row in rows(part)]


@given(st.lists(message, min_size=ARROW_FROM, max_size=ARROW_FROM + 5))
def test_a_big_batch_becomes_arrow_and_loses_nothing(batch: list[duly.Message]) -> None:
    columns = check_batch(batch).columns
    assert columns.arrow is not None
    payload, ids, keys, headers = (columns.values(name) or [None] * len(batch) for name in NAMES[:4])
    assert payload == [m.payload for m in batch]
    assert ids == [m.id for m in batch]
    assert keys == [m.key for m in batch]
    assert [h or {} for h in headers] == [dict(m.headers or {}) for m in batch]


def test_a_column_that_no_message_uses_is_absent() -> None:
    assert check_batch([b"x"]).columns.names == ["payload"]
    assert check_batch([duly.Message(b"x", key="k"), b"y"]).columns.names == ["payload", "key"]
    assert check_batch([b"x"]).columns.values("key") is None


def test_a_payload_column_that_is_a_slice_of_a_bigger_one_is_measured_right() -> None:
    whole = pa.table({"payload": pa.array([b"a" * n for n in range(100)], pa.binary())})
    part = check_batch(whole.slice(10, 5)).columns
    assert part.sizes().tolist() == [10, 11, 12, 13, 14]
    assert part.bytes == 60


@pytest.mark.parametrize("bad", [3, None, object(), {"a": b"x"}, [], (), iter([])])
def test_what_is_no_batch_is_refused(bad: object) -> None:
    with pytest.raises(duly.InvalidArgument):
        check_batch(bad)


@pytest.mark.parametrize("collect", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_any_collection_of_messages_will_do(collect: Callable[[list[bytes]], object]) -> None:
    assert check_batch(collect([b"a", b"b"])).columns.values("payload") == [b"a", b"b"]
