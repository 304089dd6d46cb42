"""What a process loads when it claims for the first time: messages are late by as much."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import duly

with duly.connect(sys.argv[1]) as q:
    q.create_topic("jobs", kind="queue")
    q.create_topic("log", kind="log", partitions=8)
    q.create_group("log", "g")
    q.publish("jobs", [duly.Message(b"x", lane="a", priority=number) for number in range(100)])
    q.publish("log", [b"x"] * 100)
    for batch in (q.claim("jobs", max_messages=70), q.claim("log", group="g", max_messages=70)):
        assert len(batch.payloads) == 70
        q.ack(batch)
print("numpy.ma" in sys.modules)
"""


def test_numbers_go_to_arrow_and_back_without_what_it_would_load_for_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "app.duly")], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "False\n")
