"""Application transactions of several processes, ended by commits, rollbacks and kill -9 at random: rows and messages
always agree, and an ack in the transaction gives each message exactly one effect.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import duly
from tests.conftest import scaled

from .checker import check_integrity
from .test_kill import spread
from .transaction_worker import FOLLOW_UPS, LEASE_S, STREAMS, ask, connect, work
from .workload import ROOT

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))


def run(*arguments: object, seconds: float) -> str:
    command = [sys.executable, "-m", "tests.crash.transaction_worker", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, timeout=seconds, capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}: {done.stdout[-1000:]} {done.stderr[-4000:]}"
    return done.stdout


def begin(path: Path) -> None:
    """A store with some work to do."""
    with connect(path, "first") as q:
        for stream in STREAMS:
            ask(q, stream, [f"{stream}-{number}" for number in range(30)], lambda: None)


def finish(path: Path) -> None:
    """Does the work that is left, when all leases are over."""
    with connect(path, "last") as q:
        for stream, group in STREAMS.items():
            while batch := q.claim(stream, group=group, wait=LEASE_S * 2):
                work(q, batch, lambda: None)
            if group is None:
                assert not q.browse(stream)


def account(path: Path) -> tuple[int, int]:
    """Every message that was asked for has one effect, and one follow-up; nothing else has. How many, and rollbacks."""
    check_integrity(path)
    finish(path)
    with duly.connect(path) as q:
        assert not [finding for finding in q.examine() if finding.level == "alert"]
        with q.transaction() as tx:
            asked = {one for (one,) in tx.execute("SELECT id FROM asked")}
            effects: dict[str, int] = dict(tx.execute("SELECT id, times FROM effect"))
        follow_ups: Counter[str] = Counter()
        while page := q.read(FOLLOW_UPS, offset=follow_ups.total()):
            follow_ups.update(one.payload.decode() for one in page)
    assert not {one: times for one, times in effects.items() if times != 1}, "a message had its effect twice"
    assert set(effects) <= asked, "a message had an effect that nobody asked for: its row is not there"
    assert asked <= set(effects), "a message is lost: its row is there"
    assert follow_ups == effects, "the follow-ups and the effects do not agree"
    return len(asked), len(effects)


@pytest.mark.timeout(scaled(300, 3600))
def test_rows_and_messages_agree_whatever_ends_the_transactions(tmp_path: Path) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    path, count = tmp_path / "app.duly", scaled(30, 1000)
    begin(path)
    killed, ended = map(int, run("lives", path, count, SEED, seconds=scaled(240, 3000)).split())
    asked, effects = account(path)
    # Each life has up to six transactions.
    print(f"{count} lives, {killed} killed, {ended} not: {asked} messages, {effects} effects, each once")
    assert killed > count / 4
    assert ended > 0
    assert asked > 60


@pytest.mark.timeout(scaled(300, 3600))
@pytest.mark.parametrize(
    ("sabotage", "seen"),
    [("ack outside", "had its effect twice"), ("publish outside", "the follow-ups and the effects do not agree")][
        : scaled(1, 2)
    ],
)
def test_the_account_notices_what_is_done_outside_the_transaction(tmp_path: Path, sabotage: str, seen: str) -> None:
    """With the same lives; what is not in the transaction comes apart from it."""
    for seed in range(20):
        path = tmp_path / f"{seed}.duly"
        begin(path)
        run("lives", path, 12, f"{sabotage} {seed}", sabotage, seconds=240)
        with contextlib.suppress(AssertionError):
            account(path)
            continue
        # It came apart: and as it should.
        with pytest.raises(AssertionError, match=seen):
            account(path)
        return
    pytest.fail("nothing came apart")


@pytest.mark.timeout(300)
def test_killed_at_any_write_call_of_a_transaction_neither_rows_nor_messages_or_both(tmp_path: Path) -> None:
    count = int(run("points", tmp_path, seconds=240))
    assert count > 10
    effects = Counter[int]()
    for point in range(1, count + 1):
        path = tmp_path / f"{point}" / "app.duly"
        effects[_effects_left(path)] += 1
    # What is left can be worked on: it takes a lease's time to see that.
    for point in spread(1, count, scaled(2, 30)):
        assert account(tmp_path / f"{point}" / "app.duly") == (3, 3), point
    print(f"killed at {count - 1} write calls: {effects}")
    # Before its commit, and after it.
    assert set(effects) == {0, 2}


def _effects_left(path: Path) -> int:
    """The effects that are there after the crash, which agree with what is settled and the follow-ups."""
    with duly.connect(path) as q:
        with q.transaction() as tx:
            ((effects,),) = tx.execute("SELECT count(*) FROM effect")
            ((big,),) = tx.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'big'")
        assert len(q.browse("jobs")) == 3 - effects
        assert len(q.read(FOLLOW_UPS)) == effects
        assert len(q.read("side")) == 1 + 5 * big
    return int(effects)
