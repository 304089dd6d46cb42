"""Deficit round robin: whatever a flood brings, the others are served in turn."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.engine.fair_queue import COMMAND_COST, QUANTUM, FairQueue
from duly.tenant import TenantSettings, Weights

MANY, PLENTY = 1_000_000, 2**60


def drain(queue: FairQueue[str], count: int = 1) -> list[str]:
    """Takes everything, `count` at a time."""
    taken: list[str] = []
    while queue.count:
        taken += queue.take(count, PLENTY)
    return taken


def test_one_tenants_items_come_in_the_order_they_were_put() -> None:
    queue: FairQueue[str] = FairQueue()
    for n in range(10):
        queue.put("a", 10, f"{n}")
    assert queue.take(3, PLENTY) == ["0", "1", "2"]
    assert queue.take(MANY, PLENTY) == [f"{n}" for n in range(3, 10)]


def test_an_empty_queue_gives_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    assert queue.take(10, 10) == []
    assert (queue.count, queue.cost) == (0, 0)


def test_a_flood_of_big_commands_does_not_delay_a_small_one() -> None:
    queue: FairQueue[str] = FairQueue()
    for n in range(1000):
        queue.put("flood", 1_000_000, f"flood {n}")
    queue.put("quiet", 100, "quiet")
    assert drain(queue).index("quiet") <= 1


def test_a_flood_of_small_commands_delays_a_small_one_by_one_turn() -> None:
    queue: FairQueue[str] = FairQueue()
    for n in range(10_000):
        queue.put("flood", 0, f"flood {n}")
    queue.put("quiet", 0, "quiet")
    assert drain(queue).index("quiet") <= 128


def test_tenants_share_by_cost_and_not_by_count() -> None:
    queue: FairQueue[str] = FairQueue()
    for n in range(4000):
        queue.put("small", 1000 - COMMAND_COST, "small")
        if n < 400:
            queue.put("big", 10_000 - COMMAND_COST, "big")
    spent: Counter[str] = Counter()
    for _ in range(1000):
        (item,) = queue.take(1, PLENTY)
        spent[item] += 1000 if item == "small" else 10_000
    assert 0.8 < spent["small"] / spent["big"] < 1.25


def test_taking_little_at_a_time_is_as_fair_as_taking_much() -> None:
    def order(step: int) -> list[str]:
        queue: FairQueue[str] = FairQueue()
        for n in range(300):
            queue.put("a", 5000, f"a{n}")
            queue.put("b", 5000, f"b{n}")
        return drain(queue, step)

    for step in (1, 7, 1000):
        first = Counter(item[0] for item in order(step)[:200])
        assert abs(first["a"] - first["b"]) <= 30, f"{step} at a time: {first}"


def test_the_bounds_are_kept_but_at_least_one_comes() -> None:
    queue: FairQueue[str] = FairQueue()
    for n in range(10):
        queue.put("a", 100_000, f"{n}")
    assert len(queue.take(3, PLENTY)) == 3
    assert len(queue.take(MANY, 1)) == 1
    assert len(queue.take(MANY, 150_000)) == 2


def test_what_is_taken_back_is_gone() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("x", "y", "z"):
        queue.put("a", 5, item)
    assert queue.remove("a", "y")
    assert not queue.remove("a", "y")
    assert not queue.remove("nobody", "x")
    assert queue.take(MANY, PLENTY) == ["x", "z"]
    assert (queue.count, queue.cost) == (0, 0)


commands = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcd"), st.integers(0, 300_000)),
        st.tuples(st.just("take"), st.integers(1, 20), st.integers(1, 500_000)),
        st.tuples(st.just("remove"), st.sampled_from("abcd"), st.integers(0, 5)),
    ),
    max_size=80,
)


@given(commands)
def test_nothing_is_lost_doubled_or_taken_out_of_its_tenants_order(script: list[tuple[str, int | str, int]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    model: dict[str, deque[tuple[int, tuple[str, int]]]] = {tenant: deque() for tenant in "abcd"}
    number = 0
    for what, who, value in script:
        if what == "put":
            item = (str(who), number)
            number += 1
            queue.put(str(who), value, item)
            model[str(who)].append((value + COMMAND_COST, item))
        elif what == "take":
            waiting = sum(map(len, model.values()))
            taken = queue.take(int(who), value)
            assert bool(taken) == bool(waiting)
            assert len(taken) <= int(who)
            for item in taken:
                assert model[item[0]].popleft()[1] is item
        elif len(model[str(who)]) > value:
            entry = model[str(who)][value]
            assert queue.remove(str(who), entry[1])
            model[str(who)].remove(entry)
        assert queue.count == sum(map(len, model.values()))
        assert queue.cost == sum(cost for items in model.values() for cost, _ in items)


@given(
    st.lists(st.integers(0, 200_000), min_size=1, max_size=200),
    st.integers(0, 60_000),
    st.integers(1, 50),
)
def test_a_command_within_one_quantum_waits_for_one_turn_of_the_others(flood: list[int], cost: int, step: int) -> None:
    """Promise 8 in small: what is served before the quiet tenant is bounded, whatever the flood."""
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for size in flood:
        queue.put("flood", size, ("flood", size))
    queue.put("quiet", cost, ("quiet", cost))
    before = 0
    while True:
        taken = queue.take(step, PLENTY)
        if ("quiet", cost) in taken:
            before += sum(size + COMMAND_COST for who, size in taken[: taken.index(("quiet", cost))])
            break
        before += sum(size + COMMAND_COST for _, size in taken)
    assert before <= 2 * 64 * 1024 + max(flood) + COMMAND_COST


@pytest.mark.parametrize("tenants", [2, 10, 100])
def test_every_waiting_tenant_is_served_in_each_round(tenants: int) -> None:
    queue: FairQueue[int] = FairQueue()
    for n in range(50):
        for tenant in range(tenants):
            queue.put(f"t{tenant}", 64 * 1024 - COMMAND_COST, tenant)
        del n
    for _ in range(50):
        assert sorted(queue.take(tenants, PLENTY)) == list(range(tenants))


def weighing(**weights: float) -> Weights:
    made = Weights()
    made.heed({tenant: TenantSettings(weight=weight) for tenant, weight in weights.items()})
    return made


def test_tenants_share_by_weight_and_another_weight_holds_from_the_next_turn() -> None:
    weights = weighing(a=3, b=0.5)
    queue: FairQueue[str] = FairQueue(weights)
    for _ in range(20_000):
        for tenant in "abc":
            queue.put(tenant, 1000, tenant)
    served = Counter(queue.take(9000, PLENTY))
    assert served["a"] / served["c"] == pytest.approx(3, rel=0.05)
    assert served["b"] / served["c"] == pytest.approx(0.5, rel=0.05)
    weights.heed({"b": TenantSettings(weight=2)})
    served = Counter(queue.take(9000, PLENTY))
    assert served["a"] / served["c"] == pytest.approx(1, rel=0.05)
    assert served["b"] / served["c"] == pytest.approx(2, rel=0.05)


def test_a_huge_command_of_the_smallest_weight_takes_no_longer_to_find() -> None:
    looked = 0

    class Counted(Weights):
        def of(self, tenant: str) -> float:
            nonlocal looked
            looked += 1
            return super().of(tenant)

    weights = Counted()
    weights.heed({"a": TenantSettings(weight=0.001), "b": TenantSettings(weight=0.002)})
    queue: FairQueue[str] = FairQueue(weights)
    for tenant in "ab":
        queue.put(tenant, 128 * 1024 * 1024, tenant)
    # As rounds one by one it would be a million of them.
    assert queue.take(2, PLENTY) == ["b", "a"]
    assert looked < 100


def test_who_may_not_have_more_is_passed_over_and_loses_nothing() -> None:
    queue: FairQueue[str] = FairQueue(each=QUANTUM)
    for tenant in "aaabbb":
        queue.put(tenant, 0, tenant)
    assert queue.take(MANY, PLENTY, lambda tenant: tenant == "b") == ["b", "b", "b"]
    assert queue.take(1, PLENTY, lambda _: False) == []
    assert queue.take(MANY, PLENTY) == ["a", "a", "a"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_however_often_turns_are_broken_off_each_item_is_a_turn(script: list[tuple[str, bool]]) -> None:
    """One that is let on now and then does not save up turns for later."""
    queue: FairQueue[str] = FairQueue(each=QUANTUM)
    for tenant in "abc":
        for _ in range(200):
            queue.put(tenant, 0, tenant)
    for kept_out, some in script:
        queue.take(1 if some else 3, PLENTY, lambda tenant, kept_out=kept_out: tenant != kept_out)  # type: ignore[misc]
    assert Counter(queue.take(30, PLENTY)) == {"a": 10, "b": 10, "c": 10}
