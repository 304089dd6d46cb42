"""connect: the composition root of the embedded home. The only file that names a concrete store."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ..clock import Clock, Duration, SystemClock
from ..errors import InvalidArgument
from ..events import Listener
from ..health import Finding
from ..keys import check_token
from ..master import open_master
from ..store.contract import Backup, Progress
from ..tenant import DEFAULT_TENANT, check_name
from .addresses import TLS_SCHEME, flight_address, is_broker
from .arguments import flag, folder_path, whole
from .client import Client
from .embedded import Embedded

if TYPE_CHECKING:
    from ..store.sqlite.departure import Departure
    from .moving import Migration
    from .tls import Tls

# Where the master key is, if a call does not say.
MASTER_VARIABLE = "DULY_MASTER"
# The key that is shown to brokers, if a call does not say: a command line is seen by everyone on the machine.
TOKEN_VARIABLE = "DULY_TOKEN"
POSTGRES_SCHEMES = ("postgresql://", "postgres://")


def connect(
    store: str | os.PathLike[str],
    *,
    tenant: str | None = None,
    token: str | None = None,
    consumer: str | None = None,
    timeout: Duration = 30,
    clock: Clock | None = None,
    on_event: Listener | None = None,
    master: Any = None,
    tls: Tls | None = None,
) -> Client:
    """Opens a store and returns a client of it.

    `store` is the path of a file (made if it is not there), `:memory:`, or a broker's address, `duly://host:port`; of
    several, `duly://a:8471,b:8471`, whichever answers is used; the other brokers on its store are learnt from it, and
    gone to when it is gone. `duly+tls://host:port` is the same over TLS, with the files that `tls` names, or else
    DULY_TLS_CA, DULY_TLS_CERT and DULY_TLS_KEY. `consumer` names this client to its groups.

    `token` is the key that a broker with keys wants to see, or DULY_TOKEN. The tenant is then the key's; `tenant` is
    for operators, who have none. `timeout` is what a call takes that gives none. `on_event` hears of alerts and state
    changes as they happen.

    `master`: where the master key is that the store's secrets are wrapped under, `file:PATH`, `env:NAME` or
    `command:PROGRAM ARGS`, or an object with `wrap` and `unwrap` (duly.Master); a broker has its own. When nothing is
    said, by DULY_MASTER neither, a file's store has it beside it, `<store>.master`, made on first need.
    """
    if isinstance(store, str) and is_broker(store):
        from .remote import Remote

        if clock is not None:
            raise InvalidArgument("A broker keeps the time itself: leave clock= away.")
        if tenant is not None:
            check_name(tenant, "tenant name")
        if master is not None:
            raise InvalidArgument("The broker has the master key: leave master= away.")
        remote = Remote(_addresses(store), on_event, _tls_of(store, tls), _token(token))
        return Client(remote, tenant=tenant or "", consumer=consumer, timeout=timeout)
    if tls is not None:
        raise InvalidArgument(f"tls= is for brokers, {TLS_SCHEME}host:port. Leave it away.")
    if token is not None:
        raise InvalidArgument("Who has the store itself open needs no key: leave token= away, or name a broker.")
    home = open_home(store, clock=clock, on_event=on_event, master=master)
    whose = DEFAULT_TENANT if tenant is None else check_name(tenant, "tenant name")
    return Client(home, tenant=whose, consumer=consumer, timeout=timeout)


def _token(given: str | None) -> str | None:
    """The key to show: as given, else DULY_TOKEN's."""
    token = os.environ.get(TOKEN_VARIABLE) or None if given is None else given
    return None if token is None else check_token(token)


def open_home(
    store: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    on_event: Listener | None = None,
    master: Any = None,
) -> Embedded:
    """Opens a store in this process."""
    keeps_time = clock or SystemClock()
    keys = _master(master)
    if isinstance(store, str) and store.startswith(POSTGRES_SCHEMES):
        return Embedded(_postgres(store, keeps_time, on_event, keys))
    path = _store_path(store)
    from ..store.sqlite.store import SqliteStore

    return Embedded(lambda: SqliteStore(path, clock=keeps_time, listener=on_event, master=keys))


def _master(given: Any) -> Any:
    """The master key that is meant; None: the store's own way."""
    reference = os.environ.get(MASTER_VARIABLE) or None if given is None else given
    return None if reference is None else open_master(reference)


def _postgres(url: str, clock: Clock, on_event: Listener | None, master: Any) -> Callable[[], Any]:
    try:
        from ..store.postgres.store import PostgresStore
    except ImportError as error:
        raise _no_psycopg(error) from error
    return lambda: PostgresStore(url, clock=clock, listener=on_event, master=master)


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


def migrate(
    source: str | os.PathLike[str],
    destination: str,
    *,
    verify: bool = False,
    give_up: bool = False,
    on_progress: Progress | None = None,
    master: Any = None,
) -> Migration:
    """Moves a store from its file into PostgreSQL, `postgresql://…?schema=NAME`, where nothing else may be.

    Everything moves, and stays the same: ids, leases and their tokens, due times. Nobody may have the file open. Run
    again after it was cut short, it goes on; then the file is left paused, and the application changes its address and
    nothing else. `verify`: copies nothing, and says which tables differ. `give_up`: ends a move that was cut short; the
    file is the store again. What is encrypted stays so, under the same `master`, which is needed to see that it is the
    right one (as for connect); whoever opens the store in PostgreSQL has to name it.
    """
    path = _store_path(source)
    if path == ":memory:":
        raise InvalidArgument("A store in memory ends with its client: only a file can move.")
    if not isinstance(destination, str) or not destination.startswith(POSTGRES_SCHEMES):
        raise InvalidArgument("A store moves from a file to PostgreSQL: give postgresql://host/database?schema=NAME.")
    if flag(verify, "verify") and flag(give_up, "give_up"):
        raise InvalidArgument("verify and give_up are two things: ask for one.")
    from ..store.sqlite.departure import Departure
    from . import moving

    arrival = _arrival()
    with closing(Departure(path)) as leaving, closing(arrival(destination)) as arriving:
        if verify:
            return moving.compare(leaving, arriving, on_progress)
        if give_up:
            return moving.give_up(leaving, arriving)
        _check_secrets(leaving, path, master)
        return moving.move(leaving, arriving, on_progress)


def _check_secrets(leaving: Departure, path: str, master: Any) -> None:
    """Raises Sealed unless the master key opens every secret: in PostgreSQL it could not be told any more."""
    from ..engine.secrets import Keyring
    from ..store.sqlite.store import master_of

    keyring = Keyring(_master(master) or master_of(path))
    for row in leaving.secrets():
        if row.wrapped is not None:
            keyring.unwrap(row)


def _arrival() -> Callable[[str], Any]:
    try:
        from ..store.postgres.arrival import Arrival
    except ImportError as error:
        raise _no_psycopg(error) from error
    return Arrival


def _no_psycopg(error: ImportError) -> InvalidArgument:
    return InvalidArgument(f"PostgreSQL needs psycopg: pip install 'duly[postgres]' ({error}).")


def _addresses(url: str) -> tuple[str, ...]:
    """A broker's addresses as Flight wants them."""
    found = []
    scheme, _, parts = url.partition("://")
    for part in parts.rstrip("/").split(","):
        if "@" in part or "?" in part or "duly_" in part:
            # And it is not repeated: it may be the key.
            raise InvalidArgument("A key has no place in a URL, where everybody sees it: give token=, or DULY_TOKEN.")
        address = flight_address(part, tls=url.startswith(TLS_SCHEME))
        if address is None:
            raise InvalidArgument(f"{url!r} names no broker. Give {scheme}://host:port, or several with commas.")
        found.append(address)
    return tuple(found)


def _tls_of(url: str, given: Tls | None) -> Tls | None:
    """How to reach brokers there. Raises InvalidArgument when a file of it cannot be used."""
    if not url.startswith(TLS_SCHEME):
        if given is not None:
            raise InvalidArgument(f"tls= is for {TLS_SCHEME}…, not for {url!r}.")
        return None
    from .tls import Tls, from_environment

    tls = from_environment(os.environ) if given is None else given
    if not isinstance(tls, Tls):
        raise InvalidArgument(f"tls must be a duly.Tls, not {type(tls).__name__}.")
    tls.check()
    return tls


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
