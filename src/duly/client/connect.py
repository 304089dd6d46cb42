"""connect: the composition root of the embedded home. The only file that names a concrete store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..clock import Clock, Duration, SystemClock
from ..errors import InvalidArgument
from ..events import Listener
from ..health import Finding
from ..store.contract import Backup, Progress
from ..tenant import DEFAULT_TENANT
from .addresses import flight_address
from .arguments import flag, folder_path, whole
from .client import Client
from .embedded import Embedded

BROKER_SCHEME = "duly://"


def connect(
    store: str | os.PathLike[str],
    *,
    tenant: str = DEFAULT_TENANT,
    consumer: str | None = None,
    timeout: Duration = 30,
    clock: Clock | None = None,
    on_event: Listener | None = None,
) -> Client:
    """Opens a store and returns a client of it.

    `store` is the path of a file (made if it is not there), `:memory:`, or a broker's address, `duly://host:port`; of
    several, `duly://a:8471,b:8471`, whichever answers is used; the other brokers on its store are learnt from it, and
    gone to when it is gone. `consumer` names this
    client to its groups. `timeout` is what a call takes that gives none. `on_event` hears of alerts
    and state changes as they happen.
    """
    if isinstance(store, str) and store.startswith(BROKER_SCHEME):
        from .remote import Remote

        if clock is not None:
            raise InvalidArgument("A broker keeps the time itself: leave clock= away.")
        return Client(Remote(_addresses(store), on_event), tenant=tenant, consumer=consumer, timeout=timeout)
    home = open_home(store, clock=clock, on_event=on_event)
    return Client(home, tenant=tenant, consumer=consumer, timeout=timeout)


def open_home(
    store: str | os.PathLike[str], *, clock: Clock | None = None, on_event: Listener | None = None
) -> Embedded:
    """Opens a store in this process."""
    keeps_time = clock or SystemClock()
    if isinstance(store, str) and store.startswith(("postgresql://", "postgres://")):
        return Embedded(_postgres(store, keeps_time, on_event))
    path = _store_path(store)
    from ..store.sqlite.store import SqliteStore

    return Embedded(lambda: SqliteStore(path, clock=keeps_time, listener=on_event))


def _postgres(url: str, clock: Clock, on_event: Listener | None) -> Callable[[], Any]:
    try:
        from ..store.postgres.store import PostgresStore
    except ImportError as error:
        raise InvalidArgument(f"PostgreSQL needs psycopg: pip install 'duly[postgres]' ({error}).") from error
    return lambda: PostgresStore(url, clock=clock, listener=on_event)


def list_backups(folder: str | os.PathLike[str]) -> list[Backup]:
    """The backups in a folder, oldest first. Raises CorruptBackup when one's description is damaged."""
    from ..store.sqlite.backups import reading

    with reading(folder_path(folder)) as backups:
        return [backups.load(number) for number in backups.numbers()]


def verify_backups(folder: str | os.PathLike[str]) -> list[tuple[int, Finding]]:
    """Reads every backup in a folder whole and says of each, by number, whether it can be restored."""
    from ..store.sqlite.backups import reading

    with reading(folder_path(folder)) as backups:
        return list(backups.examine())


def restore(
    folder: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    number: int | None = None,
    force: bool = False,
    on_progress: Progress | None = None,
) -> Backup:
    """Puts the newest backup in a folder, or the one with that number, where a store can be opened.

    Everything is checked before anything is put in place. The store opens paused (`resume_store`), and refuses
    leases of the one it is a copy of. A file that is there is replaced only with `force`, and never while it is open.
    """
    from ..store.sqlite.restore import restore as put_back
    from ..store.sqlite.store import SCHEMA

    path = _store_path(store)
    if path == ":memory:":
        raise InvalidArgument("Restore to a file: a store in memory ends with its client.")
    which = None if number is None else whole(number, "number")
    source, replace = folder_path(folder), flag(force, "force")
    return put_back(source, path, schema=SCHEMA, number=which, force=replace, on_progress=on_progress)


def _addresses(url: str) -> tuple[str, ...]:
    """A broker's addresses as Flight wants them."""
    found = []
    for part in url.removeprefix(BROKER_SCHEME).rstrip("/").split(","):
        address = flight_address(part)
        if address is None:
            raise InvalidArgument(f"{url!r} names no broker. Give duly://host:port, or several with commas.")
        found.append(address)
    return tuple(found)


def _store_path(store: str | os.PathLike[str]) -> str:
    if not isinstance(store, (str, os.PathLike)):
        raise InvalidArgument(f"store must be a path, not {type(store).__name__}.")
    path = os.fspath(store)
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidArgument("store must be the path of a file, or ':memory:'.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise InvalidArgument("The path of the store must be valid Unicode.") from error
    scheme = path.partition("://")[0] if "://" in path else ""
    if scheme:
        raise InvalidArgument(f"There is no store for {scheme}:// here. Give the path of a file.")
    return path
