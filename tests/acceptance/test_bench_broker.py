"""`duly bench --url` on somebody's broker: it leaves nothing behind, and says when there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import duly

from ..surface.brokers import serving

DULY = Path(sys.executable).parent / "duly"


def bench(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DULY, *args], cwd=folder, capture_output=True, text=True, timeout=100)


def test_it_measures_in_topics_of_its_own_that_are_gone_afterwards(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with serving(home, "--json", "--http-port", "0", "--flight-port", "0") as broker, duly.connect(broker.url) as q:
        q.create_topic("bench", kind="log")
        q.publish("bench", b"somebody's")
        for line in ("latency --messages 20", "timeline --messages 100 --span-s 0.4", "lifecycle --messages 2000"):
            ran = bench(tmp_path, "bench", *line.split(), "--url", broker.url, "--json")
            assert ran.returncode == 0, ran.stderr
            assert json.loads(ran.stdout)["messages"] == int(line.split()[2])
        assert bench(tmp_path, "--url", broker.url, "bench", "latency", "--messages", "5").returncode == 0
        assert q.list_topics() == ["bench"]
        assert [message.payload for message in q.read("bench")] == [b"somebody's"]
    assert list(tmp_path.iterdir()) == [home]


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("bench latency --url duly://127.0.0.1:1", 1, "No broker answers"),
        ("bench latency --url app.duly", 2, "duly://host:port"),
        ("bench timeline --url duly://127.0.0.1:1 --broker", 2, "--broker"),
        ("--url duly://127.0.0.1:1 bench topics", 2, "--url"),
        ("bench lifecycle --tls", 2, "--broker"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(tmp_path: Path, line: str, code: int, told: str) -> None:
    ran = bench(tmp_path, *line.split())
    assert ran.returncode == code
    assert told in ran.stderr
    assert (ran.stderr.count("\n"), ran.stderr[:7]) == (1, "Error: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_tls_is_measured_beside_no_tls(tmp_path: Path, kind: str) -> None:
    line = f"bench lifecycle --kind {kind} --messages 4000 --batch 100 --broker --tls --json"
    ran = bench(tmp_path, *line.split())
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert figures["lifecycle_per_s"] > 0
    assert figures["plain_lifecycle_per_s"] > 0
    assert figures["lifecycle_to_plain"] > 0
    assert list(tmp_path.iterdir()) == []
