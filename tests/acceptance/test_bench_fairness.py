"""`duly bench fairness`, tiny: every figure is there, the gate holds, and nothing stays behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from duly.bench.fairness import Served, _overtakes, held

DULY = Path(sys.executable).parent / "duly"
FIGURES = {"overtakes_max", "overtakes_bound", "quiet_p99_ratio", "jain", "throughput_ratio"}


def bench(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [
        DULY,
        "bench",
        "fairness",
        "--pairs",
        "1",
        "--seconds",
        "0.4",
        "--backlog",
        "1000",
        "--json",
        *args,
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("part", ["lanes", pytest.param("topics", marks=pytest.mark.full)])
def test_every_figure_is_told_and_overtakes_are_bounded(tmp_path: Path, part: str) -> None:
    ran = bench(tmp_path, "--only", part, "--quiet", "8")
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)[part]
    assert set(figures) >= FIGURES
    assert figures["overtakes_max"] <= figures["overtakes_bound"]
    assert 0 < figures["jain"] <= 1
    assert list(tmp_path.iterdir()) == []


def test_overtakes_are_told_by_when_it_was_claimed_and_not_by_when_that_was_heard_of() -> None:
    served = Served()
    # Number 7 was published at 15: what was claimed before is not an overtake, however late it was heard of.
    served.batches = [(30, [0, 0, 7]), (10, [0] * 50), (20, [0] * 5)]
    assert _overtakes(served, {7: 15}) == [7]
    assert _overtakes(served, {7: 25}) == [2]
    assert _overtakes(served, {7: 40}) == [0]


def test_the_gate_is_the_bound() -> None:
    assert held({"lanes": {"overtakes_max": 5, "overtakes_bound": 5}})
    assert not held(
        {"lanes": {"overtakes_max": 0, "overtakes_bound": 5}, "topics": {"overtakes_max": 2, "overtakes_bound": 1}}
    )


def test_a_part_that_is_none_is_refused(tmp_path: Path) -> None:
    ran = bench(tmp_path, "--only", "queues")
    assert (ran.returncode, "There is no part" in ran.stderr) == (2, True)
