"""Applications' transactions of several processes, ended by commits, rollbacks, kill -9 and a server that throws them
out, at random: rows and messages always agree, and an ack in the transaction gives each message exactly one effect.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter

import pytest

import duly
from tests.conftest import scaled

from ..crash.workload import ROOT
from .conftest import Application
from .transaction_lives import FOLLOW_UPS, LEASE_S, STREAMS, ask, connect, define, work

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))


def dsn_of(app: Application) -> str:
    """The application's database, with its tables in sight; no statement waits for long."""
    return f"{app.dsn}?options=-csearch_path%3D{app.own}%20-cstatement_timeout%3D15s%20-clock_timeout%3D5s"


def run(app: Application, *arguments: object, seconds: float) -> str:
    command = [sys.executable, "-m", "tests.postgres.transaction_lives", app.url, dsn_of(app), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, timeout=seconds, capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}: {done.stdout[-1000:]} {done.stderr[-4000:]}"
    return done.stdout


def begin(app: Application) -> None:
    """A store with some work to do."""
    connection = app.connect()
    define(app.url, connection)
    with connect(app.url, "first") as q:
        for stream in STREAMS:
            ask(q, connection, stream, [f"{stream}-{number}" for number in range(20)], lambda: None)


def finish(app: Application) -> None:
    """Does the work that is left, when all leases are over."""
    connection = app.connect()
    with connect(app.url, "last") as q:
        for stream, group in STREAMS.items():
            while batch := q.claim(stream, group=group, wait=LEASE_S * 2):
                work(q, connection, batch, lambda: None)
            if group is None:
                assert not q.browse(stream)
            else:
                assert q.describe_group(stream, group).lag == 0


def account(app: Application) -> tuple[int, int]:
    """Every message that was asked for has one effect, and one follow-up; nothing else has. How many."""
    finish(app)
    with duly.connect(app.url) as q:
        asked = {one for (one,) in app.ask("SELECT id FROM asked")}
        effects: dict[str, int] = dict(app.ask("SELECT id, times FROM effect"))
        follow_ups: Counter[str] = Counter()
        while page := q.read(FOLLOW_UPS, offset=follow_ups.total()):
            follow_ups.update(one.payload.decode() for one in page)
        published = {one.payload.decode() for number in (0, 1) for one in q.read("orders", partition=number)}
    assert not {one: times for one, times in effects.items() if times != 1}, "a message had its effect twice"
    assert set(effects) <= asked, "a message had an effect that nobody asked for: its row is not there"
    assert asked <= set(effects), "a message is lost: its row is there"
    assert follow_ups == effects, "the follow-ups and the effects do not agree"
    assert published == {one for (one,) in app.ask("SELECT id FROM asked WHERE stream = 'orders'")}
    assert app.ask("SELECT count(*) FROM duly.inbox") == [(0,)]
    assert app.ask("SELECT kind, why FROM duly.refused") == []
    return len(asked), len(effects)


@pytest.mark.timeout(scaled(300, 3600))
def test_rows_and_messages_agree_whatever_ends_the_transactions(app: Application) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    count = scaled(40, 1000)
    begin(app)
    began = time.monotonic()
    killed, ended = map(int, run(app, count, SEED, seconds=scaled(240, 3000)).split())
    asked, effects = account(app)
    # Each life has five transactions, or six.
    print(
        f"{count} lives, {killed} killed, {ended} not, in {time.monotonic() - began:.0f} s: {asked} messages, each once"
    )
    assert killed > count / 5
    assert ended > 0
    assert asked == effects
    assert asked > 40


@pytest.mark.timeout(scaled(300, 3600))
@pytest.mark.parametrize(
    ("sabotage", "seen"),
    [("ack outside", "had its effect twice"), ("publish outside", "the follow-ups and the effects do not agree")][
        : scaled(1, 2)
    ],
)
def test_the_account_notices_what_is_done_outside_the_transaction(app: Application, sabotage: str, seen: str) -> None:
    """With the same lives; what is not in the transaction comes apart from it."""
    begin(app)
    for seed in range(20):
        run(app, 10, f"{sabotage} {seed}", sabotage, seconds=240)
        with contextlib.suppress(AssertionError):
            account(app)
            continue
        # It came apart: and as it should.
        with pytest.raises(AssertionError, match=seen):
            account(app)
        return
    pytest.fail("nothing came apart")
