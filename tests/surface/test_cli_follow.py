"""`duly read --follow` as a process: prompt, idle while nothing comes, and quick to end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import duly

from .test_cli_process import folder, q, running

__all__ = ["folder", "q"]

ENDS_S = 30


def next_payload(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    found: str = json.loads(process.stdout.readline())["payload"]
    return found


def wakes_so_far(process: subprocess.Popen[bytes]) -> int:
    """How often one of its threads has gone to sleep, to wake again."""
    return sum(
        int(line.split()[1])
        for status in Path(f"/proc/{process.pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    )


def test_it_shows_what_comes_to_any_partition(q: duly.Client) -> None:
    q.create_topic("wide", kind="log", partitions=3)
    with running("read", "wide", "--follow", "--json") as process:
        for n in range(6):
            q.publish("wide", duly.Message(b"%d" % n, partition=n % 3))
            assert next_payload(process) == str(n)
        process.terminate()


# A broker's client looks after its lines meanwhile (client/lines.py).
@pytest.mark.parametrize("q", ["file"], indirect=True)
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_it_sleeps_while_nothing_comes(q: duly.Client) -> None:
    with running("read", "orders", "--follow", "--json") as process:
        q.publish("orders", b"x")
        assert next_payload(process) == "x"
        deadline = time.monotonic() + 20
        while True:
            before = wakes_so_far(process)
            threading.Event().wait(1)
            if wakes_so_far(process) == before:
                break
            assert time.monotonic() < deadline, "it asks again and again"
        q.publish("orders", b"y")
        assert next_payload(process) == "y", "and it has not fallen asleep for good"
        process.terminate()


def test_sigterm_ends_it_quietly(q: duly.Client) -> None:
    q.publish("orders", b"x")
    with running("read", "orders", "--follow", "--json") as process:
        assert next_payload(process) == "x"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=ENDS_S) == (b"", b"")
        assert process.returncode == 128 + signal.SIGTERM


def test_a_reader_that_goes_away_ends_it_though_nothing_comes(q: duly.Client) -> None:
    q.publish("orders", b"x")
    with running("read", "orders", "--follow", "--json") as process:
        assert next_payload(process) == "x"
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=ENDS_S) == 1
        assert process.stderr.read() == b""


def test_a_topic_that_is_deleted_ends_it_with_one_line(q: duly.Client) -> None:
    q.publish("orders", b"x")
    with running("read", "orders", "--follow", "--json") as process:
        assert next_payload(process) == "x"
        q.delete_topic("orders", force=True)
        out, err = process.communicate(timeout=ENDS_S)
        assert (out, process.returncode) == (b"", 1)
        assert err.startswith(b"Error: ")
