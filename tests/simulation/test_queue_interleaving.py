"""A queue with everything interleaved, every message accounted for (DESIGN.md §5, rule 13).

A failure prints its seed: `DULY_TEST_SEED=… pytest tests/simulation/test_queue_interleaving.py` replays it.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import scaled

from .queue_interleaving import QueueInterleaving, Sizes, drawn_sizes
from .test_interleaving import GIVEN_SEED, seeds

pytestmark = pytest.mark.timeout(scaled(300, 7200))


def account(path: Path, seed: int, *, in_lanes: bool, sizes: Sizes, steps: int, largest: int) -> Counter[str]:
    """One life of a queue; returns how often what happened."""
    print(f"DULY_TEST_SEED={seed} {sizes}")
    driver = QueueInterleaving(str(path / f"{seed}.duly"), seed, in_lanes=in_lanes, sizes=sizes, largest=largest)
    try:
        driver.run(steps)
        driver.drain()
    finally:
        driver.close()
    for leftover in path.iterdir():
        leftover.unlink()
    return driver.done


@pytest.mark.parametrize("in_lanes", [False, True], ids=["one lane", "many lanes"])
def test_every_message_of_a_queue_is_accounted_for_whatever_is_interleaved(tmp_path: Path, in_lanes: bool) -> None:
    done: Counter[str] = Counter()
    for seed in seeds(12, 1500):
        with pytest.MonkeyPatch.context() as patch:
            sizes = drawn_sizes(random.Random(seed))
            sizes.apply(patch)
            done += account(tmp_path, seed, in_lanes=in_lanes, sizes=sizes, steps=scaled(120, 250), largest=60)
    for what in ("ack", "nack", "bury", "release", "suspects", "redriven"):
        assert GIVEN_SEED or done[what], f"no {what} in the whole run: {done}"


@pytest.mark.parametrize("in_lanes", [False, True], ids=["one lane", "many lanes"])
def test_big_batches_with_the_engines_own_sizes(tmp_path: Path, in_lanes: bool) -> None:
    for seed in seeds(2, 100):
        account(tmp_path, seed, in_lanes=in_lanes, sizes=Sizes(), steps=scaled(60, 200), largest=5000)
