"""Columns go to Arrow and back as Arrow's own conversion would have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.engine.arrays import arrow_array, numpy_array

HEADERS = pa.map_(pa.string(), pa.string())
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
COLUMNS = st.one_of(
    st.tuples(st.just(pa.binary()), st.lists(st.none() | st.binary(max_size=5))),
    st.tuples(st.just(pa.string()), st.lists(st.none() | TEXT)),
    st.tuples(st.just(pa.int64()), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1))),
    st.tuples(st.just(pa.uint16()), st.lists(st.none() | st.integers(0, 65535))),
    st.tuples(st.just(HEADERS), st.lists(st.none() | st.lists(st.tuples(TEXT, TEXT), max_size=3))),
)


@given(COLUMNS)
def test_lists(column: tuple[Any, list[Any]]) -> None:
    kind, values = column
    found = arrow_array(values, kind)
    found.validate(full=True)
    assert found.equals(pa.array(values, kind))


@given(st.lists(st.none() | st.integers(0, 65535), min_size=1), st.integers(0, 5), st.integers(0, 5))
def test_numbers_and_back_from_the_middle(values: list[int | None], start: int, count: int) -> None:
    part = arrow_array(values, pa.uint16()).slice(start, count)
    expected = [7 if value is None else value for value in values[start : start + count]]
    assert numpy_array(part, 7).tolist() == expected


def test_numbers_of_another_width() -> None:
    assert arrow_array(np.arange(3, dtype=np.int32), pa.int64()).equals(pa.array([0, 1, 2], pa.int64()))


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OverflowError):
        arrow_array([65536], pa.uint16())
