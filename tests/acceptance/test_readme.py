"""What README.md shows is run, line by line; so are docs/flow.md, docs/schedules.md and the demo."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import duly

from ..surface.brokers import serving

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
URL = "duly://127.0.0.1:8471"


def blocks(language: str, page: str = "README.md") -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """The broker that README.md has started. Its ports may be somebody else's here, so it has others."""
    with serving(tmp_path, "--json", "--http-port", "0", "--flight-port", "0") as started:
        yield started.url


def test_the_tours_python_runs_from_top_to_bottom(tmp_path: Path, broker: str) -> None:
    tour = "\n".join(blocks("python")).replace(URL, broker)
    assert "q.publish" in tour
    assert broker in tour
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", tour], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert "the bank is closed" in ran.stdout


def test_the_python_of_the_page_about_flow_runs_from_top_to_bottom() -> None:
    with duly.connect(":memory:") as q:
        q.create_topic("emails", kind="queue")
        exec("\n".join(blocks("python", "docs/flow.md")), {"duly": duly, "q": q})
        gate = q.describe_group("orders", "billing").gate
        assert gate is not None
        assert gate.rate == 50
        assert q.describe_tenant("acme").settings.weight == 1


def test_the_page_about_schedules_runs_from_top_to_bottom(tmp_path: Path) -> None:
    with duly.connect(tmp_path / "app.duly") as q:
        exec("\n".join(blocks("python", "docs/schedules.md")), {"duly": duly, "q": q})
        assert [one.name for one in q.schedules()] == ["nightly", "poll"]
        q.delete_schedule("nightly")
    commands = [line for block in blocks("sh", "docs/schedules.md") for line in block.splitlines()]
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command)
        ran = subprocess.run([BIN / words[0], *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stderr) == (0, ""), command


def test_the_tours_commands_run(tmp_path: Path, broker: str) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("duly ")]
    assert len(commands) >= 5
    assert "duly serve" in [command.partition("#")[0].strip() for command in commands]
    for block in blocks("python"):
        # One that begins with the name of a file is that file.
        if named := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / named[1]).write_text(block, encoding="utf-8")
    for command in commands:
        words = shlex.split(command.replace(URL, broker), comments=True)
        if words[1] == "serve":
            continue
        ran = subprocess.run([BIN / words[0], *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, f"{command}: {ran.stderr}"


def test_the_tours_profiles_are_profiles(tmp_path: Path, broker: str) -> None:
    (profiles,) = blocks("toml")
    (tmp_path / "config.toml").write_text(profiles.replace(URL, broker), encoding="utf-8")
    env = {**os.environ, "DULY_CONFIG": str(tmp_path / "config.toml")}
    subprocess.run([BIN / "duly", "topics", "list", "--profile", "shop"], env=env, check=True, timeout=60)


def test_the_demo_runs_and_says_what_it_did(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240
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
            "bench lanes --lanes 2000 --messages 10000 --turns 20 --json",
            {"claim_p99_many_ms", "claim_p99_one_ms", "ratio", "busy_ratio"},
        ),
        (
            "bench lifecycle --kind log --batch 100 --messages 2000 --encrypted --json",
            {"lifecycle_per_s", "plain_lifecycle_per_s", "encrypted_ratio"},
        ),
        (
            "bench lifecycle --kind queue --batch 100 --messages 3000 --encrypted --json",
            {"lifecycle_per_s", "plain_lifecycle_per_s", "encrypted_ratio"},
        ),
        (
            "bench lifecycle --kind log --batch 100 --messages 2000 --broker --json",
            {"lifecycle_per_s", "embedded_lifecycle_per_s", "lifecycle_to_embedded", "publish_to_embedded"},
        ),
        (
            "bench lifecycle --kind queue --batch 100 --messages 3000 --broker --json",
            {"lifecycle_per_s", "embedded_lifecycle_per_s", "lifecycle_to_embedded", "claim_ack_to_embedded"},
        ),
        ("bench latency --messages 50 --broker --json", {"p50_ms", "p99_ms", "embedded_p50_ms", "p50_to_embedded"}),
        ("bench producer --messages 2000 --broker --json", {"publish_per_s", "stored", "embedded_publish_per_s"}),
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
