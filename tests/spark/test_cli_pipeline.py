"""duly pipeline archive, as people run it: what it says, and what it refuses before Spark is started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

import duly
from duly.cli.main import app
from duly.cli.pipeline import document, line
from duly.spark.progress import Progress

from .lakes import in_lake, in_log, watermarks

DULY = Path(sys.executable).parent / "duly"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "app.duly"
    with duly.connect(path) as q:
        q.create_topic("orders", kind="log", archive=True)
        q.publish("orders", [b"%d" % number for number in range(50)])
    return path


@contextmanager
def running(folder: Path, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `duly pipeline archive` while inside."""
    command = [str(DULY), "pipeline", "archive", *args]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_it_archives_until_told_to_stop(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    small = ("--master", "local[1]", "--conf", "spark.driver.memory=512m")
    with running(tmp_path, "--lake", "lake", "--every", "200ms", "--rows", "30", "--json", *small) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["rows"] <= 30
        assert first["lag"] >= 20
        with duly.connect(store) as q:
            end = time.monotonic() + 120
            while watermarks(q, "orders") != [50]:
                assert time.monotonic() < end
                time.sleep(0.1)
            assert in_lake(lake, "orders") == in_log(q, "orders")
        assert all(address.is_loopback for address in listening(process.pid))
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=60)
    assert (process.returncode, said.decode()) == (0, "")
    last = json.loads(out.decode().splitlines()[-1])
    assert last["lake"] == "lake"
    assert last["rows"] >= 50


def listening(pid: int) -> set[IPv4Address | IPv6Address]:
    """Where a process and its children listen."""
    family = {pid} | {child for child in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(child) == pid}
    sockets = {os.readlink(link) for one in family for link in Path(f"/proc/{one}/fd").iterdir() if link.is_symlink()}
    found: set[IPv4Address | IPv6Address] = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                words = bytes.fromhex(fields[1].split(":")[0])
                raw = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                address = ip_address(raw)
                found.add(getattr(address, "ipv4_mapped", None) or address)
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def refused(*args: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["pipeline", "archive", *map(str, args)])
    return done.exit_code, " ".join(done.stderr.split())


def test_what_is_wrong_is_said_before_spark_starts(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    write_deltalake(tmp_path / "other" / "messages", pa.table({"colour": ["red"]}))
    wrong: list[tuple[tuple[str | Path, ...], int, str]] = [
        (("--store", tmp_path / "nowhere.duly", "--lake", lake), 1, "There is no store at"),
        (("--url", "duly://127.0.0.1:1", "--lake", lake), 1, "No broker answers"),
        (("--url", "http://127.0.0.1:1", "--lake", lake), 2, "is no broker"),
        (("--store", ":memory:", "--lake", lake), 1, "Spark cannot read it"),
        (("--store", store, "--lake", tmp_path / "other"), 1, "is not one of this Duly's: its columns differ"),
        (("--store", store, "--lake", "/proc/lake"), 1, "cannot be used"),
        (("--store", store, "--lake", lake, "--once", "--every", "5s"), 2, "leave --every away"),
        (("--store", store, "--lake", lake, "--conf", "spark.x"), 2, "Write name=value"),
        (("--store", store), 2, "--lake"),
    ]
    for args, code, words in wrong:
        assert refused(*args)[0] == code, args
        assert words in refused(*args)[1]


def test_without_the_packages_it_says_how_to_get_them(store: Path, tmp_path: Path) -> None:
    without = (
        "import sys; sys.modules['{}'] = None\n"
        "from duly.cli.main import app; app(['pipeline', 'archive', '--store', sys.argv[1], '--lake', sys.argv[2]])"
    )
    for name in ("deltalake", "pyspark"):
        done = subprocess.run(
            [sys.executable, "-c", without.format(name), str(store), str(tmp_path / "lake")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1
        assert "pip install 'duly[spark]'" in done.stderr
        assert name in done.stderr


def test_progress_reads_as_rows_rate_lag_and_time_left() -> None:
    one = Progress().after(rows=1000, bytes=10, lag=3000, took_s=2)
    assert line(one) == "1,000 messages, 500/s, 3,000 to go, 6 s left"
    two = one.after(rows=3000, bytes=10, lag=0, took_s=2)
    assert line(two) == "4,000 messages, 1,000/s, 0 to go"
    assert document(two) == {"rounds": 2, "rows": 4000, "bytes": 20, "rows_per_s": 1000.0, "lag": 0, "left_s": 0.0}
    assert document(Progress())["left_s"] is None
