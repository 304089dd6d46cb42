"""duly bench throttle and storm, tiny, by the real program; and what their figures are made of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import duly
from duly.bench.storm import probes_allowed
from duly.bench.throttle import burst, deviation

DULY = Path(sys.executable).parent / "duly"


def bench(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DULY, "bench", *line.split()], cwd=folder, capture_output=True, text=True, timeout=200)


@pytest.mark.full
def test_throttle_prints_how_far_off_a_rate_is_and_leaves_nothing(tmp_path: Path) -> None:
    ran = bench(tmp_path, "throttle --rate 50 --seconds 3 --window-s 1.5 --json")
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    each = [figures[f"{what}_rate_error"] for what in ("group", "lane", "shared")]
    assert figures["rate_error"] == max(each) == max(figures["rate_over"], figures["rate_under"])
    # A burst that is saved up is a tenth of a second's at most; in so short a window that is some hundredths.
    assert figures["rate_over"] < 0.5
    assert list(tmp_path.iterdir()) == []


def test_storm_counts_probes_and_loses_nothing(tmp_path: Path) -> None:
    ran = bench(tmp_path, "storm --messages 600 --dead-s 20 --rate 500 --json")
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert 0 < figures["calls_while_dead"] <= figures["probes_allowed"]
    assert (figures["lane_opened"], figures["group_opened"]) == (1, 1)
    assert (figures["lost"], figures["buried"]) == (0, 0)
    assert 0 < figures["peak_ratio"] <= 1.1
    assert figures["others_p99_ratio"] <= 1.2
    assert list(tmp_path.iterdir()) == []


def test_a_window_that_is_no_window_is_refused(tmp_path: Path) -> None:
    ran = bench(tmp_path, "throttle --seconds 2 --window-s 2")
    assert ran.returncode == 2
    assert "--window-s" in ran.stderr


def test_what_is_too_much_and_what_is_too_little_in_any_window() -> None:
    even = [number / 100 for number in range(1001)]
    assert max(deviation(even, 100, 5)) < 0.005
    # A second's pause is a fifth of five seconds; a hundred more at once are a fifth, too.
    gap = [at for at in even if not 4 < at < 5]
    assert deviation(gap, 100, 5) == pytest.approx((0.0, 0.2), abs=0.005)
    assert deviation([*even, *[6.0] * 100], 100, 5) == pytest.approx((0.2, 0.0), abs=0.005)
    # Where it was twice the rate for ten seconds no window is right.
    assert deviation(even, 50, 5) == pytest.approx((1.0, 0.0), abs=0.01)
    with pytest.raises(duly.Error, match="no window"):
        deviation(even[:100], 100, 5)


def test_a_burst_is_what_comes_in_a_tenth_of_a_second() -> None:
    even = [number / 100 for number in range(1001)]
    assert burst(even, 100) == pytest.approx(1, abs=0.11)
    assert burst([*even, *[6.0] * 10], 100) == pytest.approx(2, abs=0.11)


def test_probes_wait_twice_as_long_each_time() -> None:
    breaker = duly.Breaker(probe=1, probe_max=8)
    # At 1, 3, 7, 15, and from then on every 8 seconds.
    assert [probes_allowed(breaker, seconds * 1000) for seconds in (0.9, 1, 3, 14, 15, 22, 23)] == [0, 1, 2, 3, 4, 4, 5]
