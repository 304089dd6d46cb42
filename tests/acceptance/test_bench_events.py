"""duly bench events: the cost of recording, as a share of the throughput."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import duly
from duly.bench import events
from duly.engine.record import write_records
from duly.store.sqlite import writer

OVERHEADS = {"log_overhead", "queue_overhead", "single_overhead"}


def test_it_prints_the_shares_as_one_json_line_last_and_leaves_nothing(tmp_path: Path) -> None:
    command = "bench events --messages 4000 --batch 50 --singles 80 --json"
    duly_command = Path(sys.executable).parent / "duly"
    ran = subprocess.run([duly_command, *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    printed = json.loads(ran.stdout.splitlines()[-1])
    assert printed["bench"] == "events"
    assert printed.keys() >= OVERHEADS
    # With so few messages it may come out below nothing; never as all of it.
    assert all(-10 < printed[name] < 1 for name in OVERHEADS)
    assert list(tmp_path.iterdir()) == []


def test_half_of_the_slices_are_recorded_and_recording_goes_on_afterwards(path: str) -> None:
    with duly.connect(path) as q:
        events.measure(q, messages=10, batch=10, singles=1, payload_bytes=10)
        assert vars(writer)["write_records"] is write_records
        for topic in ("log", "queue", "single"):
            kinds = [event.kind for event in q.events(topic=topic)]
            # One to warm up, and one in each of the slices that record.
            assert [kinds.count(kind) for kind in ("published", "claimed", "acked")] == [1 + events._PAIRS] * 3


def test_messages_that_do_not_come_back_are_an_error(path: str) -> None:
    with duly.connect(path) as q:
        q.create_topic("queue", kind="queue")
        q.pause("queue")
        with pytest.raises(duly.Error, match="came back"):
            events._live(q, "queue", [b"x"], 1)
