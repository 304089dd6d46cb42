"""What README.md shows is run, line by line; so is the demo."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_tours_python_runs_from_top_to_bottom(tmp_path: Path) -> None:
    tour = "\n".join(blocks("python"))
    assert "q.publish" in tour
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", tour], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert "the bank is closed" in ran.stdout


def test_the_tours_commands_run(tmp_path: Path) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("duly ")]
    assert len(commands) >= 5
    for block in blocks("python"):
        # One that begins with the name of a file is that file.
        if named := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / named[1]).write_text(block, encoding="utf-8")
    for command in commands:
        words = shlex.split(command)
        ran = subprocess.run([BIN / words[0], *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, f"{command}: {ran.stderr}"


def test_the_demo_runs_and_says_what_it_did(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert "no half batch" in ran.stdout
    assert ran.stderr == ""


@pytest.mark.parametrize(
    ("command", "figures"),
    [
        (
            "bench lifecycle --kind log --batch 100 --messages 2000 --json",
            {"publish_per_s", "claim_ack_per_s", "lifecycle_per_s", "floor_publish_per_s"},
        ),
        ("bench lifecycle --kind log --batch 1 --threads 4 --messages 200 --json", {"publish_per_s"}),
        ("bench latency --messages 50 --json", {"p50_ms", "p99_ms"}),
        ("bench topics --topics 50 --publishes 50 --json", {"cost_ratio", "rss_mb"}),
        ("bench idle --topics 5 --claims 5 --seconds 1 --json", {"cpu_percent"}),
        (
            "bench lifecycle --kind queue --batch 100 --messages 3000 --standing 2500 --lanes 7 --json",
            {
                "publish_per_s",
                "claim_ack_per_s",
                "lifecycle_per_s",
                "pause_ms_max",
                "floor_publish_per_s",
                "publish_to_floor",
                "logical_bytes_per_byte",
                "device_bytes_per_byte",
            },
        ),
        (
            "bench lifecycle --kind queue --threads 8 --batch 1 --claim-batch 1 --messages 400 --json",
            {"publish_per_s", "claim_per_s", "claim_ack_per_s"},
        ),
        (
            "bench timeline --messages 500 --span-s 1 --json",
            {"early", "missing", "late_p50_ms", "late_p99_ms", "late_max_ms"},
        ),
        (
            "bench backlog --small 1500 --large 20000 --json",
            {"small_us", "large_us", "cost_ratio", "rss_mb", "pause_ms_max"},
        ),
        ("bench midnight --messages 3000 --json", {"early", "ratio", "pause_ms_max"}),
        (
            "bench lifecycle --kind log --batch 100 --messages 2000 --broker --json",
            {"lifecycle_per_s", "embedded_lifecycle_per_s", "lifecycle_to_embedded", "publish_to_embedded"},
        ),
        (
            "bench lifecycle --kind queue --batch 100 --messages 3000 --broker --json",
            {"lifecycle_per_s", "embedded_lifecycle_per_s", "lifecycle_to_embedded", "claim_ack_to_embedded"},
        ),
        ("bench latency --messages 50 --broker --json", {"p50_ms", "p99_ms", "embedded_p50_ms", "p50_to_embedded"}),
        (
            "bench timeline --messages 500 --span-s 1 --broker --json",
            {"early", "missing", "late_p99_ms", "embedded_late_p99_ms", "late_p99_to_embedded"},
        ),
    ],
)
def test_a_benchmark_prints_one_json_line_last(command: str, figures: set[str], tmp_path: Path) -> None:
    import json

    ran = subprocess.run([BIN / "duly", *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    printed = json.loads(ran.stdout.splitlines()[-1])
    assert figures <= printed.keys()
    assert all(printed[name] >= 0 for name in figures)
    # A delivery before its time, or one that never came, is a fault and no figure.
    assert (printed.get("early", 0), printed.get("missing", 0)) == (0, 0)
    assert list(tmp_path.iterdir()) == []
