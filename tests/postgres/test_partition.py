"""A broker cut off from PostgreSQL without a word: its clients are told or ride it out, the others go on, it recovers.

Whether the broker has a topic's lock when it is cut off is chance; test_doubt.py proves what happens when it does.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import duly
from tests.conftest import scaled
from tests.crash.test_processes import read_notes, until
from tests.crash.test_queue_processes import account
from tests.postgres_server import PostgresServer

from .brokers import ROOT, BrokerProcess, url_of
from .proxy import Proxy

pytestmark = pytest.mark.timeout(scaled(180, 1800))

Serve = Callable[..., list[BrokerProcess]]
Start = Callable[..., PostgresServer]


@pytest.fixture
def proxied(postgres_server: Start) -> Iterator[tuple[str, str, Proxy]]:
    """A store's URL, the same through a proxy, and the proxy."""
    server = postgres_server(fsync=False)
    proxy = Proxy(server.port)
    base = "postgresql://duly@127.0.0.1"
    yield f"{base}:{server.port}/postgres?schema=proof", f"{base}:{proxy.port}/postgres?schema=proof", proxy
    proxy.close()


@pytest.mark.full
def test_a_broker_cut_off_in_traffic_and_back(proxied: tuple[str, str, Proxy], serve: Serve, tmp_path: Path) -> None:
    """Two clients have the one that is cut off alone, four have the others, too. Lost 0, two leases 0, early 0."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    straight, around, proxy = proxied
    cut_off, *others = serve(around, straight, straight)
    cuts = 4
    seconds = cuts * 16 + 8
    working: dict[Path, subprocess.Popen[bytes]] = {}
    try:
        for number in range(6):
            log = tmp_path / f"c{number}.notes"
            url = cut_off.url if number < 2 else url_of([*others, cut_off])
            program = [sys.executable, "-m", "tests.postgres.broker_worker"]
            working[log] = subprocess.Popen([*program, url, str(log), log.stem, str(seconds), str(seed)], cwd=ROOT)
        for log in working:
            until(log, "ready")
        for _ in range(cuts):
            time.sleep(draw.uniform(0.5, 1.5))
            proxy.cut()
            time.sleep(12)
            proxy.heal()
            time.sleep(1)
        healed = time.time() * 1000
        assert [process.wait(120) for process in working.values()] == [0] * 6
    finally:
        for process in working.values():
            process.kill()
            process.wait()
    account(straight, list(working))
    notes = {log: read_notes(log) for log in working}
    acks = [sorted(n["at"] for n in own if n["what"] == "ack done") for own in notes.values()]
    others_acks = sorted(at for own in acks[2:] for at in own)
    longest = max(later - earlier for earlier, later in itertools.pairwise(others_acks))
    failed = [note["why"] for own in notes.values() for note in own if note["what"] == "failed"]
    print(f"{cuts} cuts; the others' longest time without an ack {longest} ms; {len(failed)} failed {set(failed)}")
    assert longest < 14_000
    assert all(any(at > healed for at in own) for own in acks), "somebody did not recover"


def test_a_client_of_a_broker_cut_off_is_answered_in_time(proxied: tuple[str, str, Proxy], serve: Serve) -> None:
    _, around, proxy = proxied
    (cut_off,) = serve(around)
    with duly.connect(cut_off.url, timeout=2) as q:
        q.create_topic("jobs", kind="queue")
        q.publish("jobs", b"before")
        proxy.cut()
        for ask in (lambda: q.publish("jobs", b"lost?"), lambda: q.claim("jobs"), lambda: q.describe_topic("jobs")):
            began = time.monotonic()
            with pytest.raises((duly.Unavailable, duly.PublishUnknown)):
                ask()
            assert time.monotonic() - began < 2 + 4
        proxy.heal()
        deadline = time.monotonic() + 20
        while True:
            try:
                assert q.publish("jobs", b"after")
                break
            except (duly.Unavailable, duly.PublishUnknown):
                assert time.monotonic() < deadline, "it does not recover"
