"""How many consumers a load takes: the arithmetic, without a store."""

from __future__ import annotations

import random
from math import ceil

import pytest

from duly.engine.forecast import consumers_needed


def test_a_minute_takes_as_many_as_finish_it_and_the_first_the_backlog_too() -> None:
    assert consumers_needed([600, 600, 0], 600, 5, None) == [4, 2, 0]


def test_any_rest_takes_one_more() -> None:
    assert consumers_needed([300, 301, 1], 0, 5, None) == [1, 2, 1]


def test_nobody_is_needed_where_nothing_comes() -> None:
    assert consumers_needed([0, 0], 0, 0.001, None) == [0, 0]


def test_a_message_that_takes_long_keeps_one_consumer_in_each_of_its_minutes() -> None:
    # A quarter of an hour each: two of them take two consumers, however fast one would like to be done.
    assert consumers_needed([0] * 17, 2, 1 / 900, None) == [2] * 15 + [0, 0]


def test_what_a_rate_does_not_let_through_waits_for_the_next_minute() -> None:
    # 10 a second: 600 a minute, for which two are enough. The backlog is gone after three.
    assert consumers_needed([0, 0, 0, 0], 1500, 5, 10) == [2, 2, 1, 0]


@pytest.mark.parametrize("seed", range(20))
def test_the_consumers_are_enough_and_one_fewer_is_not(seed: int) -> None:
    draw = random.Random(seed)
    loads = [draw.choice([0, draw.randrange(5000)]) for _ in range(30)]
    backlog, rate = draw.randrange(5000), draw.uniform(1 / 60, 50)
    needed = consumers_needed(loads, backlog, rate, None)
    work = [loads[0] + backlog, *loads[1:]]
    assert needed == [ceil(messages / (60 * rate) - 1e-6) for messages in work], seed
