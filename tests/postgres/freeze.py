"""A store of today's schema, with messages everywhere that they can be: made once, kept as SQL, opened ever after.

    python -m tests.postgres.freeze > tests/postgres/schema_2.sql

Every schema has such a file. Once it was released, the file stays as it is; before that it may be made anew.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import duly
import tests.postgres_server as servers
from tests.postgres_server import PostgresServer

SCHEMA = "frozen"
ORDERS = [b"order %d" % number for number in range(150)]
JOBS = [b"job %d" % number for number in range(90)]
LATER = [b"later %d" % number for number in range(20)]
RETRY = duly.RetryPolicy(max_attempts=3, base=1, jitter="none")
PUBLISH_ID = "the frozen one"


def fill(q: duly.Client) -> None:
    """Of the orders 10 are acked, 1 is dead, 4 are held; of the jobs 5 are acked, 1 dead, 3 held, 1 cancelled."""
    q.create_topic("orders", kind="log", retry=RETRY)
    q.create_group("orders", "g")
    q.publish("orders", ORDERS[:100])
    for order in ORDERS[100:-2]:
        q.publish("orders", duly.Message(order, key="k"))
    q.publish("orders", ORDERS[-2:], publish_id=PUBLISH_ID)
    q.ack(q.claim("orders", group="g", max_messages=10))
    q.bury(q.claim("orders", group="g", max_messages=1), reason="frozen")
    q.claim("orders", group="g", max_messages=4, lease=1)
    q.create_topic("jobs", kind="queue", retry=RETRY, lanes=duly.Lanes(weights={"a": 2}))
    jobs = [
        duly.Message(job, id=f"id{at}", priority=at % 3, lane=("a", None)[at % 2] if at > 9 else None)
        for at, job in enumerate(JOBS)
    ]
    q.publish("jobs", jobs)
    q.publish("jobs", [duly.Message(job, due=timedelta(days=3650)) for job in LATER])
    q.ack(q.claim("jobs", max_messages=5))
    q.bury(q.claim("jobs", max_messages=1), reason="frozen")
    q.claim("jobs", max_messages=3, lease=1)
    assert q.cancel("jobs", ["id89"]) == {"id89": "cancelled"}


def dump(server: PostgresServer) -> str:
    """The schema as statements, without what only psql understands."""
    program = str(servers._program(server.version, "pg_dump"))
    command = [program, server.dsn(), f"--schema={SCHEMA}", "--no-owner", "--no-privileges", "--rows-per-insert=500"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, **servers._as_account()).stdout
    return "\n".join(line for line in told.splitlines() if line and not line.startswith(("\\", "--"))) + "\n"


if __name__ == "__main__":
    frozen_by = PostgresServer(16, fsync=False)
    frozen_by.start()
    with duly.connect(f"{frozen_by.dsn()}?schema={SCHEMA}", consumer="freezer") as client:
        fill(client)
    sys.stdout.write(dump(frozen_by))
