"""Content of an encrypted tenant, looked for in everything that a PostgreSQL server has and says: 0 times.

The server logs every statement with its parameters, as one does when something is looked into; and fails some.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import duly
from duly.master import create_master
from tests import postgres_schemas
from tests.postgres_server import PostgresServer

CANARY = "CANARY7b0f3c"
SAID_IN_FULL = {
    "log_statement": "all",
    "log_min_duration_statement": "0",
    "log_parameter_max_length": "-1",
    "log_parameter_max_length_on_error": "-1",
    "log_error_verbosity": "verbose",
}

pytestmark = pytest.mark.skipif(postgres_schemas.why_not() is not None, reason=str(postgres_schemas.why_not()))


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    found = PostgresServer(postgres_schemas.VERSIONS[0], fsync=False, **SAID_IN_FULL)
    found.start()
    yield found
    found.close()


class Activity:
    """What pg_stat_activity was seen to show."""

    def __init__(self, address: str) -> None:
        self.seen: set[str] = set()
        self._connection = psycopg.connect(address, autocommit=True)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.seen.update(str(row) for row in self._connection.execute("SELECT * FROM pg_stat_activity"))

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._connection.close()


def message(number: int, **more: str) -> duly.Message:
    return duly.Message(f"{CANARY} {number}".encode(), key=CANARY, headers={"h": CANARY}, **more)  # type: ignore[arg-type]


def live(address: str, master: str, server: PostgresServer) -> None:
    """Whatever is done with messages is done to some."""
    with duly.connect(address, master=master) as operator:
        operator.create_tenant("acme", encrypt=True)
    with duly.connect(address, master=master, tenant="acme") as q:
        q.create_topic("log", kind="log")
        q.create_group("log", "g")
        retry = duly.RetryPolicy(max_attempts=2, base=0.001, jitter="none")
        q.create_topic("queue", kind="queue", dedupe=60, retry=retry)
        queued = [message(number, id=f"{CANARY}-{number}", lane=CANARY) for number in range(20)]
        q.publish("queue", queued)
        q.publish("log", [message(number) for number in range(500)], publish_id="given")
        q.publish("log", [message(number) for number in range(500)], publish_id="given")
        q.nack(q.claim("queue", max_messages=2), reason=CANARY)
        q.bury(q.claim("queue", max_messages=2, wait=2), reason=CANARY)
        q.bury(q.claim("log", group="g", max_messages=2), reason=CANARY)
        q.move("queue", f"{CANARY}-10", priority=7)
        q.cancel("queue", [f"{CANARY}-11"])
        assert q.get("queue", f"{CANARY}-10") is not None
        assert len(list(q.dead("queue"))) == 2
        q.redrive("queue")
        q.stage("log", [message(1)], stage="s", number=0)
        q.commit_stages("log", {"s": 1}, job="j")
        assert q.read("log")
        with psycopg.connect(server.dsn()) as connection:
            q.publish("queue", [message(99, id=f"{CANARY}-99")], tx=connection)
            q.move("queue", f"{CANARY}-12", priority=3, tx=connection)
            q.cancel("queue", [f"{CANARY}-13"], tx=connection)
            q.ack(q.claim("queue", max_messages=1), tx=connection)
        assert q.claim("queue")
        assert any(CANARY in str(event.facts) for event in q.events())
        assert not [finding for finding in q.examine() if finding.level == "alert"]


def test_content_is_in_nothing_that_the_server_has_and_says(server: PostgresServer, tmp_path: Path) -> None:
    create_master(str(tmp_path / "master"))
    watching = Activity(server.dsn())
    live(f"{server.dsn()}?schema=duly", f"file:{tmp_path / 'master'}", server)
    watching.close()
    server.stop()
    log = server.log
    assert "INSERT INTO" in log
    assert "DETAIL:  parameters:" in log.replace("Parameters", "parameters")
    needles = (CANARY, CANARY.encode().hex())
    assert not [line for line in log.splitlines() if any(needle in line for needle in needles)]
    assert any("duly" in row for row in watching.seen)
    assert not [row for row in watching.seen if any(needle in row for needle in needles)]
    key = (tmp_path / "master").read_text().strip()
    for path in server.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(secret.encode() in content for secret in (*needles, key)), path
