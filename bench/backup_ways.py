"""Ways to copy a store under load: the figures in src/duly/store/sqlite/backup.py come from here.

python bench/backup_ways.py [MEGABYTES]

A process publishes batches of 1,000 × 100 bytes to a log or a queue, and claims and acks them, without a pause, while
this one copies. Printed for each way: how long it took, what the write-ahead log grew to, and the publishes' times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import apsw

import duly

LOAD = """
import duly, json, os, sys, time
path, stop, topic = sys.argv[1:]
group = None if topic == "queue" else "g"
took = []
with duly.connect(path) as q:
    body = [b"x" * 100] * 1000
    while not os.path.exists(stop):
        began = time.perf_counter()
        q.publish(topic, body)
        took.append((time.perf_counter() - began) * 1000)
        q.ack(q.claim(topic, group=group, max_messages=1000))
took.sort()
many = len(took)
print(json.dumps({"batches": many, "p50": took[many // 2], "p99": took[many * 99 // 100], "max": took[-1]}))
"""


def build(path: str, megabytes: int) -> None:
    with duly.connect(path) as q:
        q.create_topic("log", kind="log")
        q.create_group("log", "g")
        q.create_topic("queue", kind="queue")
        q.create_topic("standing", kind="log")
        for _ in range(megabytes):
            q.publish("standing", [os.urandom(500) * 2 for _ in range(1000)])


def nothing(_path: str, _folder: str) -> None:
    time.sleep(5)


def backup_calls(path: str, folder: str) -> None:
    source, copy = apsw.Connection(path), apsw.Connection(os.path.join(folder, "calls.db"))
    source.execute("BEGIN")
    source.execute("SELECT count(*) FROM duly_meta").fetchall()
    with copy.backup("main", source, "main") as steps:
        while not steps.done:
            steps.step(256)
    copy.close()
    source.close()


def vacuum_into(path: str, folder: str) -> None:
    source = apsw.Connection(path)
    source.execute("VACUUM INTO ?", (os.path.join(folder, "vacuum.db"),))
    source.close()


def pieces(path: str, folder: str) -> str:
    with duly.connect(path) as q:
        taken = q.backup(os.path.join(folder, "backups"))
    return f"{taken.new_bytes / 1e6:.0f} of {taken.bytes / 1e6:.0f} MB new"


def measure(name: str, way: Callable[[str, str], str | None], path: str, folder: str, topic: str) -> None:
    stop = os.path.join(folder, "stop")
    command = [sys.executable, "-c", LOAD, path, stop, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        time.sleep(2)
        peak, done = [0], threading.Event()
        watch = threading.Thread(target=lambda: _watch(path + "-wal", peak, done))
        watch.start()
        began = time.perf_counter()
        said = way(path, folder) or ""
        took = time.perf_counter() - began
        done.set()
        watch.join()
        time.sleep(1)
        open(stop, "w").close()
        out, _ = load.communicate()
    os.unlink(stop)
    times = json.loads(out)
    print(
        f"{topic:6} {name:24} {took:5.1f} s  log {peak[0] / 1e6:4.0f} MB  publish p50 {times['p50']:5.1f} "
        f"p99 {times['p99']:5.1f} max {times['max']:5.1f} ms  {times['batches']:5} batches  {said}",
        flush=True,
    )


def _watch(wal: str, peak: list[int], done: threading.Event) -> None:
    while not done.wait(0.01):
        peak[0] = max(peak[0], os.path.getsize(wal))


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "app.duly")
        build(path, megabytes)
        for topic in ("log", "queue"):
            measure("nothing", nothing, path, folder, topic)
            measure("backup calls", backup_calls, path, folder, topic)
            measure("VACUUM INTO", vacuum_into, path, folder, topic)
            measure("duly backup, first", pieces, path, folder, topic)
            measure("duly backup, next", pieces, path, folder, topic)
            for name in ("calls.db", "vacuum.db"):
                os.unlink(os.path.join(folder, name))
            subprocess.run(["rm", "-rf", os.path.join(folder, "backups")], check=True)


if __name__ == "__main__":
    main()
