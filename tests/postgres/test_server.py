"""The servers that tests run on: what they promise to tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.conftest import FULL
from tests.postgres_schemas import VERSIONS
from tests.postgres_server import PostgresServer


@pytest.fixture(params=[15, 16, 18] if FULL else VERSIONS)
def server(request: pytest.FixtureRequest, postgres_server: Callable[..., PostgresServer]) -> PostgresServer:
    return postgres_server(request.param)


def write(server: PostgresServer, *numbers: int) -> None:
    with psycopg.connect(server.dsn()) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (number int)")
        for number in numbers:
            connection.execute("INSERT INTO kept VALUES (%s)", (number,))


def kept(server: PostgresServer) -> list[int]:
    with psycopg.connect(server.dsn()) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM kept ORDER BY number")]


@pytest.mark.parametrize("version", [15, 16, 18])
def test_it_is_of_the_version_asked_for_and_syncs_unless_told_otherwise(
    postgres_server: Callable[..., PostgresServer], version: int
) -> None:
    with psycopg.connect(postgres_server(version).dsn()) as connection:
        assert connection.info.server_version // 10_000 == version
        assert connection.execute("SHOW fsync").fetchone() == ("on",)


def test_a_restart_a_stop_and_a_kill_find_the_data_at_the_same_address(server: PostgresServer) -> None:
    address = server.dsn()
    write(server, 1)
    server.restart()
    write(server, 2)
    server.stop()
    server.start()
    write(server, 3)
    server.kill()
    with pytest.raises(psycopg.OperationalError):
        kept(server)
    server.start()
    assert kept(server) == [1, 2, 3]
    assert server.dsn() == address


def test_a_kill_leaves_no_process(server: PostgresServer) -> None:
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    assert len(processes) > 3
    server.kill()
    assert not [process for process in processes if process.is_running() and process.status() != "zombie"]


def test_a_paused_server_answers_when_it_is_resumed(server: PostgresServer) -> None:
    write(server, 1)
    server.pause()
    with pytest.raises(psycopg.OperationalError, match="timeout"):
        psycopg.connect(server.dsn(), connect_timeout=2)
    server.resume()
    assert kept(server) == [1]


def test_a_paused_server_can_be_stopped_and_killed(server: PostgresServer) -> None:
    server.pause()
    server.kill()
    server.start()
    server.pause()
    server.stop()
    assert not server.running


def test_a_synchronous_standby_has_every_commit_and_takes_over(server: PostgresServer) -> None:
    write(server, 1)
    standby = server.standby(synchronous=True)
    write(server, 2)
    server.kill()
    standby.promote()
    write(standby, 3)
    assert kept(standby) == [1, 2, 3]
    standby.close()


def test_a_standby_follows_and_nobody_waits_for_it(server: PostgresServer) -> None:
    standby = server.standby()
    standby.stop()
    write(server, 1)
    standby.start()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with suppress(psycopg.errors.UndefinedTable):
            if kept(standby) == [1]:
                break
    assert kept(standby) == [1]
    standby.close()


RUN = """
import os, sys, time
from tests.postgres_server import PostgresServer
server = PostgresServer(16, fsync=False)
server.start()
print(server.pid, server.folder, flush=True)
if sys.argv[1] == "kill":
    time.sleep(60)
if sys.argv[1] == "paused":
    server.pause()
    os._exit(1)
"""


@pytest.mark.parametrize("how", ["exit", "kill", "paused"])
def test_a_process_that_ends_in_any_way_leaves_neither_server_nor_folder(how: str) -> None:
    run = subprocess.Popen([sys.executable, "-c", RUN, how], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    pid, folder = run.stdout.readline().split()
    if how == "kill":
        os.kill(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (psutil.pid_exists(int(pid)) or Path(folder).parent.exists()):
        time.sleep(0.05)
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    assert not Path(folder).parent.exists()
