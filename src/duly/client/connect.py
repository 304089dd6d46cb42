"""connect: the composition root of the embedded home. The only file that names a concrete store."""

from __future__ import annotations

import os

from ..clock import Clock, Duration, SystemClock
from ..errors import InvalidArgument
from ..events import Listener
from ..tenant import DEFAULT_TENANT
from .client import Client
from .embedded import Embedded


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

    `store` is the path of a file (made if it is not there) or `:memory:`. `consumer` names this
    client to its groups. `timeout` is what a call takes that gives none. `on_event` hears of alerts
    and state changes as they happen.
    """
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
    from ..store.sqlite.store import SqliteStore

    keeps_time = clock or SystemClock()
    port = Embedded(lambda: SqliteStore(path, clock=keeps_time, listener=on_event))
    return Client(port, tenant=tenant, consumer=consumer, timeout=timeout)
