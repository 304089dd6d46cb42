"""Index entries: what is written is read back exactly, damage is noticed, and the orders are those of the design."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import duly
from duly.engine.entries import (
    Entries,
    concat,
    decode_entries,
    encode_entries,
    lane_hash,
    make_entries,
    order_ready,
    order_waiting,
    place_of,
)

Row = tuple[int, float, int, int, int, bool]

rows_drawn = st.lists(
    st.tuples(
        st.integers(0, 65_535),
        st.sampled_from([0.0, 1e-9, 0.5, 1.0, 1e12]),
        st.one_of(st.integers(0, 2**45), st.integers(1_700_000_000_000, 1_700_000_000_100)),
        st.one_of(st.integers(0, 2**60), st.integers(0, 50)),
        st.sampled_from([0, 1, 2**63 - 1]),
        st.booleans(),
    ),
    min_size=1,
    max_size=60,
    unique_by=lambda row: row[3],
)


def entries_of(rows: list[Row]) -> Entries:
    priority, tag, due, seq, lane, loose = zip(*rows, strict=True)
    return make_entries(seq, due, priority, np.array(lane, np.uint64), tag, loose)


def rows_of(entries: Entries) -> list[Row]:
    columns: list[Any] = [entries.priority, entries.tag, entries.due, entries.seq, entries.lane, entries.loose]
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(rows_drawn)
def test_entries_are_read_back_as_they_were_written(rows: list[Row]) -> None:
    place = place_of(7, 3)
    stored = encode_entries(entries_of(rows), place)
    assert rows_of(decode_entries(stored, place, partition=1, run=7)) == rows


@given(rows_drawn, st.data())
def test_any_flipped_bit_and_any_other_place_is_noticed(rows: list[Row], data: st.DataObject) -> None:
    stored = bytearray(encode_entries(entries_of(rows), place_of(7, 3)))
    with pytest.raises(duly.CorruptBlock):
        decode_entries(bytes(stored), place_of(7, 4), partition=1, run=7)
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(duly.CorruptBlock):
        decode_entries(bytes(stored), place_of(7, 3), partition=1, run=7)


@given(rows_drawn, st.integers(0, 200))
def test_entries_cut_short_are_noticed(rows: list[Row], left: int) -> None:
    stored = encode_entries(entries_of(rows), 5)
    with pytest.raises(duly.CorruptBlock):
        decode_entries(stored[: min(left, len(stored) - 1)], 5, partition=1, run=7)


@pytest.mark.parametrize("stored", [None, "", 5, b"", b"DQ", b"x" * 100])
def test_what_is_no_entries_at_all_is_noticed(stored: object) -> None:
    with pytest.raises(duly.CorruptBlock):
        decode_entries(stored, 5, partition=1, run=7)


@given(rows_drawn)
def test_ready_is_ordered_by_priority_tag_due_and_arrival(rows: list[Row]) -> None:
    entries = entries_of(rows)
    ordered = rows_of(entries.take(order_ready(entries)))
    assert ordered == sorted(rows, key=lambda row: row[:4])


@given(rows_drawn)
def test_waiting_is_ordered_by_due_priority_and_arrival(rows: list[Row]) -> None:
    entries = entries_of(rows)
    ordered = rows_of(entries.take(order_waiting(entries)))
    assert ordered == sorted(rows, key=lambda row: (row[2], row[0], row[3]))


@given(st.lists(rows_drawn, max_size=4))
def test_stretches_are_joined_in_order(parts: list[list[Row]]) -> None:
    assert rows_of(concat([entries_of(part) for part in parts])) == [row for part in parts for row in part]


@given(st.text(min_size=1, max_size=50))
def test_a_named_lane_is_never_taken_for_the_default_lane(name: str) -> None:
    assert 0 < lane_hash(name) < 2**63
