"""`duly clock` on a host whose clock is right; tests/acceptance/test_clock.py has the others."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from duly.clock import SystemClock

from .test_cli import folder, ok, refused

__all__ = ["folder"]


def test_the_stores_time_is_shown_beside_the_hosts(folder: Path) -> None:
    ok("topics", "create", "t", "--kind", "log")
    shown = ok("clock", "--json").document
    assert (shown["state"], shown["host_ahead_s"]) == ("together", pytest.approx(0, abs=0.01))
    assert abs(datetime.fromisoformat(shown["store"]).timestamp() * 1000 - SystemClock().now_ms()) < 5000
    assert "The store goes by the host's clock." in ok("clock").out


def test_confirming_a_clock_that_is_right_changes_nothing(folder: Path) -> None:
    ok("topics", "create", "t", "--kind", "log")
    assert "as it did" in ok("clock", "--accept").out
    assert ok("clock", "--accept", "--json").document["state"] == "together"


def test_without_a_store_there_is_no_clock(folder: Path) -> None:
    assert "no store" in refused("clock").err
