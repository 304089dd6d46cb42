"""kill -9 of the archiver and of the broker: the lake equals the log, and no watermark is ahead of it."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import duly
from duly.spark.lake import Lake
from tests.broker_flight.conftest import Elsewhere, eventually
from tests.conftest import scaled

from .lakes import archiver, in_lake, in_log, lake_table, watermarks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
SEED = random.SystemRandom().randrange(2**32)
COUNT = 600
# Less than there is after the second publish: a killed one leaves something for the next.
ROUND = 1000


def victim(store: Path, lake: Path, when: str, *, within_s: float | None = None) -> bool:
    """Runs an archiver that kills itself there, or is killed after so many seconds; whether it was."""
    command = [sys.executable, "-m", "tests.spark.archive_process", str(store), str(lake), str(ROUND), when]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n", process.communicate()[1].decode()
        if within_s is not None:
            try:
                process.wait(within_s)
            except subprocess.TimeoutExpired:
                process.kill()
        _, said = process.communicate(timeout=240)
    assert process.returncode in (0, -signal.SIGKILL), said.decode()
    return process.returncode != 0


def published(q: duly.Client, topic: str, number: int) -> None:
    """More messages, none like another."""
    q.publish(topic, [f"{topic} {number} {index}".encode() for index in range(COUNT)])


def check_lake(q: duly.Client, lake: Path, everything: Counter[bytes]) -> None:
    """Nothing twice, nothing that was never published, and the watermark not ahead; what is truncated is there."""
    found = [row for row in lake_table(lake).to_pylist() if row["topic"] == "orders"] if lake.exists() else []
    keys = Counter((row["partition_id"], row["offset"]) for row in found)
    assert not [key for key, count in keys.items() if count > 1]
    assert not Counter(row["payload"] for row in found) - everything
    for part in q.describe_topic("orders").partitions:
        there = {row["offset"] for row in found if row["partition"] == part.partition}
        assert set(range(max(part.archived_to, part.first_offset))) <= there


@pytest.mark.timeout(scaled(600, 7200))
def test_killed_before_after_and_at_any_moment_the_lake_is_the_log(spark: SparkSession, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    store, lake = tmp_path / "app.duly", tmp_path / "lake"
    killed = 0
    everything: Counter[bytes] = Counter()
    moments = ["before:1", "moved:1", "after:1", "never"] * 10
    if scaled(1, 10) == 1:
        moments = [dice.choice(["before:1", "moved:1"]), "after:1", "never"]
    with duly.connect(store) as q:
        # What is archived may be truncated at once: nothing is, that is not.
        q.create_topic("orders", kind="log", archive=True, partitions=2, retention=duly.Retention(age=0.001))
        for number, moment in enumerate(moments):
            published(q, "orders", number)
            everything.update(f"orders {number} {index}".encode() for index in range(COUNT))
            within_s = dice.uniform(0, scaled(4, 8)) if moment == "never" else None
            killed += victim(store, lake, moment, within_s=within_s)
            check_lake(q, lake, everything)
        assert killed >= len(moments) * 2 // 3
        with archiver(spark, lake, store) as one:
            one.run(every_s=None, progress=lambda _: None)
            assert watermarks(q, "orders") == [part.next_offset for part in q.describe_topic("orders").partitions]
            # By the process that moved the watermark, at once; had it gone, others would look within a minute.
            eventually(lambda: q.describe_topic("orders").messages == 0, within_s=30)
        check_lake(q, lake, everything)
    assert Counter(row[4] for row in in_lake(lake, "orders").elements()) == everything


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    broker = Elsewhere(tmp_path / "elsewhere.duly")
    broker.start()
    yield broker
    broker.close()


@pytest.mark.timeout(scaled(300, 1800))
def test_the_broker_is_killed_and_comes_back(spark: SparkSession, elsewhere: Elsewhere, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    lake, said = tmp_path / "lake", list[str]()
    with duly.connect(elsewhere.url, timeout=10) as q:
        q.create_topic("orders", kind="log", archive=True, partitions=2)
        stop = threading.Event()
        with archiver(spark, lake, elsewhere.url, rows=200, remark=said.append) as one:
            faults: list[BaseException] = []

            def run() -> None:
                try:
                    one.run(every_s=0.1, progress=lambda _: None, stop=stop)
                except BaseException as error:
                    faults.append(error)

            working = threading.Thread(target=run)
            working.start()
            for number in range(scaled(2, 10)):
                published(q, "orders", number)
                time.sleep(dice.uniform(0, scaled(2, 5)))
                elsewhere.kill()
                elsewhere.start()
            end = time.monotonic() + 120
            while not faults and watermarks(q, "orders") != [
                p.next_offset for p in q.describe_topic("orders").partitions
            ]:
                assert time.monotonic() < end, said
                time.sleep(0.2)
            stop.set()
            working.join(60)
        assert not faults, faults
        assert in_lake(lake, "orders") == in_log(q, "orders")
        assert not list((lake / "rounds").rglob("*.parquet"))
        assert Lake(str(lake)).sweep() == 0
