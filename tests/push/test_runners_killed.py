"""Runners of pushes to topics that are killed, stopped and cut off at random: each message once in the target."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import duly
from tests.conftest import scaled
from tests.crash.workload import ROOT
from tests.postgres_schemas import why_not

from .runner_lives import define

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.skipif(bool(why_not()), reason="none"))])
def store(request: pytest.FixtureRequest, tmp_path: Path, fresh_store_url: Callable[[], str]) -> str:
    return str(tmp_path / "app.duly") if request.param == "sqlite" else fresh_store_url()


def lives(store: str, count: int, *sabotage: str) -> list[int]:
    command = [sys.executable, "-m", "tests.push.runner_lives", store, str(count), str(SEED), *sabotage]
    done = subprocess.run(command, cwd=ROOT, timeout=60 + 6 * count, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-1000:]} {done.stderr[-4000:]}"
    return list(map(int, done.stdout.split()))


def account(store: str, count: int) -> None:
    with duly.connect(store) as q:
        found: Counter[int] = Counter()
        while page := q.read("sorted", offset=found.total(), max_messages=10_000):
            found.update(message.json()["n"] for message in page)
        assert not {n: times for n, times in found.items() if times != 1}, "a message was forwarded twice"
        assert set(found) == set(range(count)), "a message is lost"
        assert not list(q.dead("orders", group="billing"))
        assert not list(q.dead("timeline"))


@pytest.mark.timeout(scaled(300, 3600))
def test_each_message_is_forwarded_once_whatever_ends_the_runners(store: str) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    count, many = scaled(1_500, 40_000), scaled(15, 400)
    define(store, count)
    begun, stopped, terminated = lives(store, many)
    account(store, count)
    print(f"{count} messages, each once: {begun} lives killed, {stopped} stopped, {terminated} connections terminated")
    assert begun >= many
    assert stopped > 0


@pytest.mark.timeout(scaled(300, 3600))
def test_the_account_notices_a_publish_outside_the_transaction(tmp_path: Path) -> None:
    for number in range(10):
        store = str(tmp_path / f"{number}.duly")
        define(store, 600)
        lives(store, 8, "publish outside")
        with contextlib.suppress(AssertionError):
            account(store, 600)
            continue
        return
    pytest.fail("nothing came apart")
