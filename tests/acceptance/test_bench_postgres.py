"""`duly bench postgres`, tiny: every figure is there, and the server and what it wrote are gone afterwards."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import duly
from duly.bench.threads import in_threads

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

from duly.bench.own_postgres import find_binaries, own_postgres  # noqa: E402
from duly.bench.postgres import PARTS, Plan, measure, own_place  # noqa: E402
from duly.bench.skip_locked import Table  # noqa: E402

DULY = Path(sys.executable).parent / "duly"
RATIOS = {"log_ratio", "queue_ratio_100", "queue_ratio_1000", "queue_ratio_standing"}
LONE = {"log_ratio_lone", "queue_ratio_100_lone", "queue_ratio_1000_lone"}
OTHERS = {"consumers_per_s", "latency_p50_ms", "latency_p99_ms", "timeline_late_p99_ms", "held_snapshot_ratio"}

without_the_store = pytest.mark.skipif(
    importlib.util.find_spec("duly.store.postgres") is None, reason="there is no PostgreSQL store yet"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that the user who runs PostgreSQL instead of root may enter: pytest's own is closed to others."""
    try:
        find_binaries()
    except duly.Unavailable as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made)


def bench(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DULY, "bench", "postgres", *args], capture_output=True, text=True, timeout=200)


@pytest.mark.full
@without_the_store
def test_a_tiny_run_tells_every_figure_and_leaves_nothing_behind(folder: Path) -> None:
    tiny = "--messages 2000 --clients 2 --pairs 1 --standing 3000 --hold 1 --json"
    ran = bench(*tiny.split(), "--folder", str(folder))
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert figures.keys() >= RATIOS | LONE | OTHERS
    assert all(figures[name] > 0 for name in RATIOS | LONE | {"consumers_per_s", "held_snapshot_ratio"})
    assert (figures["timeline_early"], figures["timeline_missing"]) == (0, 0)
    assert list(folder.iterdir()) == []


@without_the_store
def test_it_leaves_no_schema_in_somebodys_database(folder: Path) -> None:
    with own_postgres(folder) as dsn:
        ran = bench("--only", "log", "--messages", "2000", "--pairs", "1", "--dsn", f"{dsn}?schema=mine")
        assert ran.returncode == 0, ran.stderr
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ 'duly|mine'").fetchall() == []


def test_it_measures_any_store_that_can_be_connected_to(folder: Path, tmp_path: Path) -> None:
    plan = Plan(messages=2000, clients=2, pairs=1, standing=3000, hold_s=0.4)
    with own_postgres(folder) as dsn, own_place(dsn) as place:
        on_a_file = replace(place, store=str(tmp_path / "bench.duly"))
        told = dict(measure(on_a_file, plan, ["log", "queue", "snapshot"]))
    assert {name for figures in told.values() for name in figures} >= RATIOS | LONE | {"held_snapshot_ratio"}


def test_the_baseline_delivers_everything_once_and_in_order(folder: Path) -> None:
    taken: list[int] = []
    with own_postgres(folder) as dsn, own_place(dsn) as place:
        table = Table(place.dsn, place.schema, "work")
        table.create()
        table.stand(2000, payload_bytes=8, priorities=100)
        with table.client() as client:
            client.publish([-2, -1], [b"first", b"second"])
            claimed = [client.claim(1)[0] for _ in range(2)]
            assert [payload for _, payload in claimed] == [b"first", b"second"]
            client.ack([id for id, _ in claimed])

        def consume() -> None:
            with table.client() as client:
                while claimed := client.claim(30):
                    client.ack([id for id, _ in claimed])
                    taken.extend(id for id, _ in claimed)

        in_threads([consume] * 4)
    assert len(taken) == len(set(taken)) == 2000


def test_the_server_ends_with_whoever_started_it_even_by_sigkill(folder: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from duly.bench.own_postgres import own_postgres\n"
        "with own_postgres(Path(sys.argv[1])) as dsn: print(dsn, flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        dsn = owner.stdout.readline().strip()
        psycopg.connect(dsn).close()
        owner.send_signal(signal.SIGKILL)
    give_up = time.monotonic() + 30
    while list(folder.iterdir()) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert list(folder.iterdir()) == []
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("--only logs", 2, f"There are {', '.join(PARTS)}"),
        ("--dsn app.duly", 2, "postgresql://"),
        ("--dsn postgresql://nobody@127.0.0.1:1/none", 1, "does not answer"),
    ],
)
def test_what_cannot_be_measured_is_said(line: str, code: int, told: str) -> None:
    ran = bench(*line.split())
    assert ran.returncode == code
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr
