"""What a process loads when it publishes and claims for the first time: somebody waits for that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .brokers import served

PROGRAM = """
import sys
import duly

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            sys.stderr.write("something looks for it")

sys.meta_path.insert(0, Watch())
with duly.connect(sys.argv[1]) as q:
    q.create_topic("jobs", kind="queue")
    q.create_topic("log", kind="log", partitions=8)
    q.create_group("log", "g")
    message = dict(lane="a", headers={"a": "b"}, ttl=60)
    q.publish("jobs", [duly.Message(b"x", id=str(number), **message) for number in range(100)])
    q.publish("log", [duly.Message(b"x", key=str(number)) for number in range(100)])
    for batch in (q.claim("jobs", max_messages=70), q.claim("log", group="g", max_messages=70)):
        assert len(batch.payloads) == 70
        q.ack(batch)
    q.cancel("jobs", [message.id for message in q.browse("jobs")])
"""


@pytest.mark.parametrize("home", ["embedded", "broker"])
def test_nothing_looks_for_pandas(tmp_path: Path, home: str) -> None:
    """Where it is installed, loading it takes half a second, and fifty megabytes."""
    if home == "embedded":
        run(str(tmp_path / "app.duly"))
        return
    with served(tmp_path / "broker.duly") as url:
        run(url)


def run(address: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, address], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
