"""What lanes cost, by what their messages took: relative, bounded, and nothing where there is nothing to tell."""

from __future__ import annotations

import numpy as np
import pytest

from duly.engine.service import COST_MAX, LANES_MAX, Service
from duly.store.contract import LEASED, LeaseRow

A, B, C = 11, 22, 33


def lease(count: int = 1, *, lease_id: int = 1, claimed_at: int = 0, live: int | None = None) -> LeaseRow:
    return LeaseRow(
        tenant_id=1,
        partition=1,
        group=1,
        due_at=60_000,
        state=LEASED,
        consumer="w",
        claimed_at=claimed_at,
        base=0,
        count=count,
        live=count if live is None else live,
        attempts=1,
        id=lease_id,
    )


def lanes(*named: int) -> object:
    return np.array(named, np.uint64)


def alternate(service: Service, times: dict[int, int], rounds: int = 100) -> None:
    for _ in range(rounds):
        for lane, took_ms in times.items():
            service.note(lease(), lanes(lane), 1, took_ms)


def test_a_lane_costs_what_its_messages_take_beside_the_mean() -> None:
    service = Service()
    alternate(service, {A: 90, B: 10})
    assert service.cost(A) / service.cost(B) == pytest.approx(9, rel=0.05)
    assert service.cost(A) == pytest.approx(1.8, rel=0.05)
    assert service.cost(C) == 1.0
    assert service.costs(lanes(B, C, A)).tolist() == [service.cost(B), 1.0, service.cost(A)]


@pytest.mark.parametrize("times", [{A: 0, B: 1}, {A: 0, B: 0}, {A: 20, B: 24}, {A: 1000, B: 1000}])
def test_times_that_are_alike_or_below_a_millisecond_cost_all_the_same(times: dict[int, int]) -> None:
    service = Service()
    alternate(service, times)
    assert service.costs(lanes(A, B)) is None
    assert not service.is_off(0)


def test_what_is_settled_together_took_as_long_and_what_is_settled_one_by_one_took_its_own_time() -> None:
    together, single = Service(), Service()
    for number in range(100):
        together.note(lease(4), lanes(A, A, B, B), 4, 200)
        for left, (lane, until_ms) in enumerate([(A, 90), (B, 100), (A, 190), (B, 200)]):
            single.note(lease(4, lease_id=number, live=4 - left), lanes(lane), 1, until_ms)
    assert together.costs(lanes(A, B)) is None
    assert single.cost(A) / single.cost(B) == pytest.approx(9, rel=0.05)


def test_a_lane_whose_messages_come_one_by_one_is_not_charged_the_trips_of_its_claims() -> None:
    service = Service()
    for _ in range(100):
        service.note(lease(), lanes(A), 1, 6)
        service.note(lease(), lanes(B), 1, 6)
        service.note(lease(100), lanes(*[C] * 100), 100, 100)
    assert service.costs(lanes(A, B, C)) is None


def test_what_was_learnt_of_single_messages_is_not_held_against_the_mean_of_many_together() -> None:
    service = Service()
    alternate(service, {A: 90, B: 10})
    dear = service.cost(A)
    service.note(lease(64), lanes(*[C] * 64), 64, 64)
    assert service.cost(A) == dear


def test_a_batch_of_many_lanes_tells_of_none_of_them() -> None:
    service = Service()
    for took_ms in (100, 1000) * 50:
        service.note(lease(100), lanes(*range(1, 101)), 100, took_ms)
    assert service.costs(lanes(A, B, C)) is None


def test_one_that_hung_for_an_hour_is_charged_no_more_than_the_bound() -> None:
    service = Service()
    alternate(service, {A: 10, B: 10})
    service.note(lease(), lanes(A), 1, 3_600_000)
    assert service.cost(A) <= 5
    alternate(service, {A: 10, B: 10})
    assert service.cost(A) == service.cost(B) == 1.0
    alternate(service, {A: 1_000_000, B: 1})
    assert service.cost(B) >= 1 / COST_MAX


def test_what_stands_is_off_when_a_cost_has_doubled_and_only_until_it_has_other_tags() -> None:
    service = Service()
    alternate(service, {A: 90, B: 10})
    assert not service.is_off(standing=10_000), "too little was settled to give so much other tags"
    assert service.is_off(standing=100)
    service.note_tags()
    alternate(service, {A: 90, B: 10})
    assert not service.is_off(standing=100)
    alternate(service, {A: 10, B: 10})
    assert service.is_off(standing=100)


def test_no_more_lanes_are_known_than_the_bound() -> None:
    service = Service()
    for lane in range(1, 2 * LANES_MAX):
        service.note(lease(), lanes(lane), 1, 10 if lane % 2 else 1000)
    many = np.arange(1, 2 * LANES_MAX, dtype=np.uint64)
    assert np.count_nonzero(service.costs(many) != 1.0) <= LANES_MAX
