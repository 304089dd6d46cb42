"""Several processes on one queue at once: every message is acked once, by one of them, or still to be had."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import duly
from tests.conftest import scaled

pytestmark = pytest.mark.timeout(scaled(300, 3600))


def test_processes_share_one_queue_and_nothing_is_lost_or_served_twice(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    path = tmp_path / "app.duly"
    with duly.connect(path) as q:
        q.create_topic("jobs", kind="queue", lease=3600, retry=duly.RetryPolicy(max_attempts=1000))
        workers = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.simulation.queue_worker",
                    path,
                    f"w{n}",
                    str(seed + n),
                    str(scaled(40, 600)),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(2)
        ]
        published: list[str] = []
        acked: list[str] = []
        for worker in workers:
            told, _ = worker.communicate(timeout=scaled(250, 3000))
            assert worker.returncode == 0
            report = json.loads(told)
            published += report["published"]
            acked += report["acked"]
        assert max(Counter(acked).values()) == 1, "acked twice"
        while len(batch := q.claim("jobs", max_messages=5000, wait=1)):
            acked += [payload.decode() for payload in batch.payloads]
            batch.ack()
    assert Counter(acked) == Counter(published)


def test_a_queue_changed_by_another_process_is_served_in_its_order(tmp_path: Path) -> None:
    """What is remembered between transactions is dropped when somebody else has written."""
    path = tmp_path / "app.duly"
    script = (
        "import sys, duly\n"
        "q = duly.connect(sys.argv[1])\n"
        "for line in sys.stdin:\n"
        "    verb, low, high = line.split()\n"
        "    if verb == 'publish':\n"
        "        q.publish('jobs', [duly.Message(b'%d' % n, priority=n % 50) for n in range(int(low), int(high))])\n"
        "        print('done', flush=True)\n"
        "    else:\n"
        "        batch = q.claim('jobs', max_messages=int(low))\n"
        "        batch.ack()\n"
        "        print(' '.join(p.decode() for p in batch.payloads), flush=True)\n"
    )
    draw = random.Random(37)
    with duly.connect(path) as q:
        q.create_topic("jobs", kind="queue", lease=3600)
        other = subprocess.Popen(
            [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert other.stdin is not None
        assert other.stdout is not None

        def ask(line: str) -> list[str]:
            assert other.stdin is not None
            assert other.stdout is not None
            other.stdin.write(line + "\n")
            other.stdin.flush()
            return other.stdout.readline().split()

        standing: list[tuple[int, int]] = []
        number = 0
        for _ in range(60):
            many = draw.choice([1, 30, 1500, 5000])
            if draw.random() < 0.5:
                ask(f"publish {number} {number + many}")
            else:
                q.publish("jobs", [duly.Message(b"%d" % n, priority=n % 50) for n in range(number, number + many)])
            standing = sorted(standing + [(n % 50, n) for n in range(number, number + many)])
            number += many
            want = draw.choice([1, 100, 2500])
            if draw.random() < 0.5:
                got = [int(payload) for payload in ask(f"claim {want} 0")]
            else:
                batch = q.claim("jobs", max_messages=want)
                got = [int(payload) for payload in batch.payloads]
                batch.ack()
            # Published in order, so due time and arrival agree with the number.
            assert got == [n for _, n in standing[:want]]
            standing = standing[want:]
        other.stdin.close()
        assert other.wait(60) == 0
        other.stdout.close()
