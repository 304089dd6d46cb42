"""A standalone cluster with two workers, started from the package that pip installs, and Spark Connect."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

import duly
from duly.spark.session import find_java
from tests.broker_flight.conftest import free_port
from tests.surface.brokers import serving

from .lakes import in_lake, in_log

ROOT = Path(__file__).parents[2]
BIN = Path(pyspark.__file__).parent / "bin"
COUNT = 5000


@contextmanager
def running(folder: Path, *command: str | Path) -> Iterator[None]:
    """A process of Spark's, with all that it starts, until the end of the test."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().resolve().parents[1]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int, folder: Path, within_s: float = 60) -> None:
    """Waits until somebody listens."""
    end = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.1)
        else:
            return


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master and two workers of one core each."""
    port = free_port()
    master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port))
    worker = ("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "1g")
    with ExitStack() as stack:
        stack.enter_context(running(tmp_path, BIN / "spark-class", *master, "--webui-port", "0"))
        answers(port, tmp_path)
        for number in range(2):
            place = ("-d", str(tmp_path / f"worker{number}"), "--webui-port", "0", f"spark://127.0.0.1:{port}")
            stack.enter_context(running(tmp_path, BIN / "spark-class", *worker, *place))
        yield f"spark://127.0.0.1:{port}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A server of Spark Connect."""
    port = free_port()
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
    }
    options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    command = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]", *options)
    with running(tmp_path, BIN / "spark-submit", *command):
        answers(port, tmp_path)
        yield f"sc://127.0.0.1:{port}"


def check_job(master: str, folder: Path, *, executors: int) -> None:
    """Reads, writes and archives there, through a broker."""
    lake = folder / "lake"
    with (
        serving(folder, "--store", "app.duly", "--http-port", "0", "--flight-port", "0", "--json") as broker,
        duly.connect(broker.url) as q,
    ):
        q.create_topic("orders", kind="log", archive=True, partitions=2)
        q.create_topic("copies", kind="log")
        q.publish("orders", [duly.Message(f"order {n}".encode(), key=f"k{n % 7}") for n in range(COUNT)])
        command = [sys.executable, "-m", "tests.spark.cluster_process", master, broker.url, str(lake)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr + (folder / "log").read_text()[-5000:]
        said = json.loads(done.stdout.splitlines()[-1])
        copies = [bytes(payload) for batch in q.read_arrow("copies") for payload in batch.column("payload").to_pylist()]
        expected = [
            row["payload"]
            for partition in range(2)
            for batch in q.read_arrow("orders", partition=partition)
            for row in batch.to_pylist()
            if row["offset"] >= 100 and row["key"] == "k3"
        ]
        assert sorted(copies) == sorted(expected)
        assert said == {"orders": COUNT, "copies": len(expected), "folders": executors}
        assert in_lake(lake, "orders") == in_log(q, "orders")
        assert [part.archived_to for part in q.describe_topic("orders").partitions] == [
            part.next_offset for part in q.describe_topic("orders").partitions
        ]


@pytest.mark.timeout(300)
@pytest.mark.full
def test_it_runs_on_a_cluster_with_two_workers(cluster: str, tmp_path: Path) -> None:
    check_job(cluster, tmp_path, executors=2)


@pytest.mark.timeout(300)
def test_it_runs_through_spark_connect(server: str, tmp_path: Path) -> None:
    check_job(server, tmp_path, executors=1)
