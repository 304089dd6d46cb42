"""What moving a store to PostgreSQL costs: how long it takes, and how much memory.

python -m bench.migrate 2000        so many batches of 1,000 × 100 bytes into a log, and as many into a queue with ids

From the root of the project: it starts a PostgreSQL 16 of its own, that of the tests, with fsync on.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import duly
from tests.postgres_server import PostgresServer


def fill(path: str, batches: int) -> None:
    with duly.connect(path) as q:
        q.create_topic("log", kind="log")
        q.create_topic("queue", kind="queue", dedupe=3600)
        for batch in range(batches):
            q.publish("log", [os.urandom(100) for _ in range(1000)])
            q.publish("queue", [duly.Message(os.urandom(100), id=f"{batch} {n}", priority=n % 7) for n in range(1000)])


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(batches: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "app.duly")
        # In a process of its own: what filling takes is not what moving takes.
        subprocess.run([sys.executable, "-m", "bench.migrate", path, str(batches)], check=True)
        server = PostgresServer(16)
        server.start()
        before = peak_mb()
        moved = duly.migrate(path, server.dsn())
        print(
            f"{moved.messages:,} messages, {moved.bytes / 1e6:,.0f} MB in {moved.seconds:.1f} s, compared: "
            f"{moved.bytes / 1e6 / moved.seconds:,.0f} MB/s, {moved.messages / moved.seconds:,.0f} messages/s; "
            f"peak memory {before:,.0f} MB before, {peak_mb():,.0f} MB after"
        )
        server.close()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        fill(sys.argv[1], int(sys.argv[2]))
    else:
        main(int(sys.argv[1]))
