"""kill -9 while stages are put down, committed and admitted: a job's version is published once, whole, or not yet."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import duly
from tests.conftest import scaled

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))
STAGES, MESSAGES = 3, 4000

# Publishes version after version, each from three stages, and says which it has seen published.
WORKER = f"""
import sys, uuid
import duly
import duly.engine.stage as engine

engine._LOG_BLOCKS_A_SLICE = engine._QUEUE_BLOCKS_A_SLICE = 2
path, version = sys.argv[1], int(sys.argv[2])
with duly.connect(path) as q:
    print("ready", flush=True)
    while True:
        life, stages = uuid.uuid4().hex, {{}}
        for number in range({STAGES}):
            payloads = [b"%d.%d.%d" % (version, number, at) for at in range({MESSAGES})]
            for call in range(2):
                half = payloads[call * {MESSAGES // 2} : (call + 1) * {MESSAGES // 2}]
                stages[f"{{life}}-{{number}}"] = q.stage("t", half, stage=f"{{life}}-{{number}}", number=call)
        q.commit_stages("t", stages, job="j", version=version)
        print(version, flush=True)
        version += 1
"""


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_each_version_is_published_once_and_whole(tmp_path: Path, kind: str) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    draw = random.Random(f"{SEED} {kind}")
    path = str(tmp_path / "app.duly")
    with duly.connect(path) as q:
        q.create_topic("t", kind=kind)
        if kind == "log":
            q.create_group("t", "g", start="earliest")
    told = 0
    for _ in range(scaled(6, 60)):
        told = life(path, told, draw.uniform(0.02, 0.5))
    with duly.connect(path) as q:
        # What was decided and left half done comes by itself; and what was told must be there.
        wait_for_job(q)
        found = Counter(claim_all(q, kind))
        left = [number for number in q.examine() if number.level == "alert"]
    versions = sorted({int(payload.split(b".")[0]) for payload in found})
    assert versions == list(range(len(versions)))
    assert len(versions) in (told, told + 1)
    expected = [b"%d.%d.%d" % (v, n, at) for v in versions for n in range(STAGES) for at in range(MESSAGES)]
    assert found == Counter(expected)
    assert left == []
    assert told > 0, "nothing was ever published: the lives are too short to say anything"


def life(path: str, version: int, seconds: float) -> int:
    """Runs the worker for so long and kills it; the next version, as far as it was told."""
    command = [sys.executable, "-c", WORKER, path, str(version)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        said = process.stdout.read().split()
    assert process.returncode == -signal.SIGKILL, said
    return int(said[-1]) + 1 if said else version


def wait_for_job(q: duly.Client) -> None:
    """Until no version is half published: a later one is not taken before that."""
    until = time.monotonic() + 60
    while True:
        try:
            q.commit_stages("t", {}, job="j", version=10**6)
            return
        except duly.Busy:
            assert time.monotonic() < until
            time.sleep(0.05)


def claim_all(q: duly.Client, kind: str) -> list[bytes]:
    found: list[bytes] = []
    while batch := q.claim("t", group="g" if kind == "log" else None, max_messages=50_000):
        found += batch.payloads
        q.ack(batch)
    return found
