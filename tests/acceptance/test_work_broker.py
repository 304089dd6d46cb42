"""`duly work` on a broker, with real processes: handlers run, the broker dies and comes back, the end is orderly."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import duly

from ..surface.brokers import serving
from .duly_work import notes, work, write_application

HANDLER = """
@workers.on("emails", concurrency=4)
def handler(d):
    note("done", d)
"""


def eventually(holds: Callable[[], bool], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def done(folder: Path) -> list[str]:
    return sorted(note["payload"] for note in notes(folder, "done"))


def test_workers_on_a_broker_go_on_when_it_was_killed_and_is_back(tmp_path: Path) -> None:
    write_application(tmp_path, HANDLER)
    with serving(tmp_path, "--json", "--http-port", "0", "--flight-port", "0") as broker:
        url, port = broker.url, str(broker.document["flight_port"])
        with duly.connect(url) as q, work(tmp_path, "--url", url, "--processes", "2") as running:
            q.create_topic("emails", kind="queue", lease=30)
            eventually(lambda: running.log.count("at work as consumer") == 2)
            q.publish("emails", [b"before %d" % n for n in range(10)])
            eventually(lambda: len(done(tmp_path)) == 10)
            assert {note["pid"] for note in notes(tmp_path)} != {broker.process.pid}
            broker.process.kill()
            broker.process.wait()
            with serving(tmp_path, "--json", "--http-port", "0", "--flight-port", port):
                q.publish("emails", [b"after %d" % n for n in range(10)])
                eventually(lambda: len(done(tmp_path)) == 20)
                eventually(lambda: q.describe_topic("emails").messages == 0)
                running.signal(signal.SIGTERM)
                assert running.ended() == 0
    assert done(tmp_path) == sorted(f"{when} {n}" for when in ("before", "after") for n in range(10))
    assert "Traceback" not in running.log


def test_drained_on_a_broker_it_ends_by_itself(tmp_path: Path) -> None:
    write_application(tmp_path, HANDLER)
    with serving(tmp_path, "--json", "--http-port", "0", "--flight-port", "0") as broker, duly.connect(broker.url) as q:
        q.create_topic("emails", kind="queue")
        q.publish("emails", [b"%d" % n for n in range(10)])
        with work(tmp_path, "--url", broker.url, "--drain", "--json") as running:
            assert running.ended() == 0
        assert len(done(tmp_path)) == 10
        assert q.describe_topic("emails").messages == 0


def test_one_process_that_cannot_begin_does_not_end_those_that_work(tmp_path: Path) -> None:
    """As when the broker goes away while the second is starting."""
    write_application(
        tmp_path,
        """
import fcntl
first = open("first", "w")
try:
    fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    if not os.path.exists("allowed"):
        raise
"""
        + HANDLER,
    )
    with duly.connect(tmp_path / "app.duly") as q:
        q.create_topic("emails", kind="queue")
        with work(tmp_path, "--processes", "2") as running:
            eventually(lambda: "could not begin; another starts" in running.log)
            q.publish("emails", b"still at work")
            eventually(lambda: done(tmp_path) == ["still at work"])
            (tmp_path / "allowed").touch()
            eventually(lambda: running.log.count("at work as consumer") == 2)
            running.signal()
            assert running.ended() == 0
