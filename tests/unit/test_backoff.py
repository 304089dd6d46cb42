"""The wait before the next attempt, as arithmetic."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import duly

DRAW = random.Random(7)


@pytest.mark.parametrize(
    ("shape", "waits_ms"),
    [
        ("exponential", [500, 1000, 2000, 4000, 8000, 10_000, 10_000]),
        ("linear", [500, 1000, 1500, 2000, 2500, 3000, 3500]),
        ("fixed", [500] * 7),
    ],
)
def test_the_shapes(shape: str, waits_ms: list[int]) -> None:
    policy = duly.RetryPolicy(base=0.5, cap=10, shape=shape, jitter="none")
    assert [policy.delay_ms(attempt, DRAW) for attempt in range(1, 8)] == waits_ms


def test_the_default_is_exponential_with_full_jitter() -> None:
    policy = duly.RetryPolicy()
    assert (policy.max_attempts, policy.base, policy.cap) == (8, 0.5, 3600.0)
    assert (policy.shape, policy.jitter) == ("exponential", "full")


@given(st.integers(1, 10_000), st.sampled_from(["exponential", "linear", "fixed"]), st.integers())
def test_jitter_never_waits_longer_than_the_sharp_policy_or_less_than_nothing(
    attempts: int, shape: str, seed: int
) -> None:
    sharp = duly.RetryPolicy(base=2, cap=600, shape=shape, jitter="none")
    full = duly.RetryPolicy(base=2, cap=600, shape=shape)
    longest = sharp.delay_ms(attempts, DRAW)
    assert 0 <= full.delay_ms(attempts, random.Random(seed)) <= longest <= 600_000


def test_full_jitter_uses_the_whole_range() -> None:
    policy, draw = duly.RetryPolicy(base=1, cap=1), random.Random(1)
    waits = [policy.delay_ms(1, draw) for _ in range(2000)]
    assert min(waits) < 20
    assert max(waits) > 980
    assert 450 < sum(waits) / len(waits) < 550


def test_durations_may_be_timedeltas() -> None:
    assert duly.RetryPolicy(base=timedelta(seconds=2), cap=timedelta(hours=1)) == duly.RetryPolicy(base=2, cap=3600)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_attempts": 0},
        {"max_attempts": 10_001},
        {"max_attempts": 2.5},
        {"max_attempts": True},
        {"base": -1},
        {"base": 31 * 86_400},
        {"base": float("nan")},
        {"base": "1"},
        {"base": None},
        {"cap": -0.5},
        {"cap": float("inf")},
        {"shape": "cubic"},
        {"jitter": "some"},
        {"jitter": None},
    ],
    ids=str,
)
def test_a_bad_policy_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(duly.InvalidArgument):
        duly.RetryPolicy(**bad)  # type: ignore[arg-type]
