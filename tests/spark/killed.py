"""`duly pipeline` in processes of its own, to be killed: the driver, its Java, and by that its workers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import apsw
import pyarrow as pa

import duly
from tests.surface.brokers import DULY


def kill_when(folder: Path, moment: Callable[[], bool], *args: str) -> bool:
    """Runs `duly pipeline …` and kills it as soon as the moment has come; whether it came before the end."""
    command: list[str | Path] = [DULY, "pipeline", *args, "--master", "local[2]", "--conf", "spark.driver.memory=1g"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            while process.poll() is None:
                if moment():
                    return True
                time.sleep(0.002)
            assert process.stdout is not None
            assert process.returncode == 0, process.stdout.read().decode()
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def same_payloads(q: duly.Client, topic: str, expected: Iterable[bytes]) -> bool:
    """Whether a topic's log has these payloads, each as often; millions of them are no trouble."""
    parts = range(len(q.describe_topic(topic).partitions))
    batches = [batch for part in parts for batch in q.read_arrow(topic, partition=part, columns=["payload"])]
    found = pa.Table.from_batches(batches).sort_by("payload").column("payload").combine_chunks()
    wanted = pa.table({"payload": pa.array(expected, pa.binary())}).sort_by("payload").column("payload")
    return bool(pa.chunked_array([found]).equals(wanted))


def rows(store: Path, table: str) -> int:
    """How many rows a table of a store has."""
    connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(10_000)
        ((count,),) = connection.execute(f"SELECT count(*) FROM {table}")
        return int(count)
    finally:
        connection.close()
