"""Allowances: whoever floods is refused, and leaves as much as it holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.engine.allowance import Allowance, Backlog

MOST = 1200


def fill(allowance: Allowance, *tenants: str) -> None:
    """They take in turn, until each is refused."""
    while any(allowance.allows(tenant, MOST) for tenant in tenants):
        for tenant in tenants:
            if allowance.allows(tenant, MOST):
                allowance.take(tenant)


@pytest.mark.parametrize("floods", [1, 2, 5])
def test_those_that_flood_leave_as_much_as_each_of_them_holds(floods: int) -> None:
    allowance = Allowance()
    tenants = [f"t{number}" for number in range(floods)]
    fill(allowance, *tenants)
    for tenant in tenants:
        assert allowance.of(tenant) == pytest.approx(MOST / (floods + 1), abs=1)
    assert allowance.allows("quiet", MOST)


def test_who_holds_nothing_is_let_in_while_anything_is_left() -> None:
    allowance = Allowance()
    allowance.take("a", MOST - 1)
    assert allowance.allows("b", MOST)
    assert not allowance.allows("a", MOST)
    allowance.take("b")
    assert not allowance.allows("c", MOST)


def test_a_backlog_is_bounded_in_number_and_in_bytes() -> None:
    backlog = Backlog()
    for _ in range(3):
        backlog.come("many", 0)
    assert not backlog.allows("many", 5, 1000)
    backlog.come("big", 600)
    assert not backlog.allows("big", 100, 1000)
    assert backlog.allows("quiet", 5, 1000)
    backlog.go("big", 600)
    assert backlog.allows("big", 100, 1000)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=50))
def test_what_is_given_back_is_forgotten(held: list[tuple[str, int]]) -> None:
    allowance = Allowance()
    for tenant, size in held:
        allowance.take(tenant, size)
    assert allowance.held == sum(size for _, size in held)
    for tenant, size in held:
        allowance.give_back(tenant, size)
    assert allowance.held == 0
    assert not allowance._held_by
