"""duly bench push, tiny, by the real program: brokers, endpoints and publishers are processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DULY = Path(sys.executable).parent / "duly"
SMALL = "push --endpoints 12 --dead 3 --per-s 5 --seconds 1 --pairs 1 --backlog 900 --json"


@pytest.mark.full
def test_push_delivers_all_beside_dead_endpoints_and_leaves_nothing(tmp_path: Path) -> None:
    ran = subprocess.run(
        [DULY, "bench", *SMALL.split()], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert (figures["endpoints"], figures["dead"], figures["missing"]) == (12, 3, 0)
    assert figures["delivered"] == 900
    assert figures["deliveries_per_s"] > 50
    assert 0 < figures["alone_p50_ms"] <= figures["alone_p99_ms"]
    assert 0 < figures["beside_p50_ms"] <= figures["beside_p99_ms"] < 2_000
    assert list(tmp_path.iterdir()) == []
