"""Leases as values: bits, offsets and histories."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import duly
from duly.engine.lease import (
    add_failure,
    is_live,
    live_indexes,
    live_offsets,
    offset_of,
    over,
    read_history,
    settle_bits,
)
from duly.store.contract import LEASED, LeaseRow


def lease(offsets: tuple[int, ...]) -> LeaseRow:
    row = LeaseRow(
        tenant_id=1,
        partition=1,
        group=1,
        due_at=0,
        state=LEASED,
        consumer="w",
        claimed_at=0,
        base=0,
        count=1,
        live=1,
        attempts=1,
        id=9,
    )
    return over(row, offsets)


ascending = st.sets(st.integers(0, 500), min_size=1, max_size=60).map(lambda found: tuple(sorted(found)))


def test_a_range_of_offsets_is_kept_as_a_range() -> None:
    row = lease((5, 6, 7))
    assert (row.base, row.count, row.live, row.offsets) == (5, 3, 3, None)
    assert lease((5,)).offsets is None


def test_offsets_with_gaps_are_kept_as_a_list() -> None:
    row = lease((5, 7, 8))
    assert (row.base, row.count, row.live, row.offsets) == (5, 3, 3, (5, 7, 8))


def test_a_row_made_over_has_no_id_of_its_own_yet_and_nothing_settled() -> None:
    row = lease((1, 2, 3))
    assert row.id == 0
    assert row.settled is None


@given(ascending)
def test_every_offset_is_found_by_its_index(offsets: tuple[int, ...]) -> None:
    row = lease(offsets)
    assert [offset_of(row, index) for index in range(row.count)] == list(offsets)
    assert live_offsets(row) == list(offsets)


@given(ascending, st.data())
def test_settled_messages_are_no_longer_live(offsets: tuple[int, ...], data: st.DataObject) -> None:
    row = lease(offsets)
    gone: set[int] = set()
    for _ in range(3):
        some = data.draw(st.sets(st.integers(0, row.count - 1), max_size=5))
        gone |= some
        bits = settle_bits(row, some)
        row = replace(row, settled=bits)
        wanted = [index for index in range(row.count) if index not in gone]
        assert live_indexes(row) == wanted
        assert live_offsets(row) == [offsets[index] for index in wanted]
        assert [is_live(row, index) for index in range(row.count)] == [i not in gone for i in range(row.count)]


@given(ascending, st.integers())
def test_an_index_outside_the_lease_is_never_live(offsets: tuple[int, ...], index: int) -> None:
    row = lease(offsets)
    assert is_live(row, index) == (0 <= index < len(offsets))


def test_history_grows_by_the_newest_and_forgets_the_oldest() -> None:
    assert read_history(None) == ()
    stored: bytes | None = None
    for n in range(40):
        stored = add_failure(stored, duly.Failure(n, n, "nack", f"why {n}", "w"))
    history = read_history(stored)
    assert len(history) == duly.LIMITS.history_entries_max
    assert [failure.attempt for failure in history] == list(range(24, 40))
    assert history[-1] == duly.Failure(39, 39, "nack", "why 39", "w")
