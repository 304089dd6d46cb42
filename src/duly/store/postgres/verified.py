"""The line to PostgreSQL is encrypted, and the server verified, unless it is this machine's or somebody says otherwise.

libpq's own default, sslmode=prefer, goes on without encryption when the server (or whoever is in between) offers none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from psycopg import pq

from ...trust import is_loopback, system_ca_file

# libpq 16 knows the system's CAs.
_LIBPQ_SYSTEM_ROOTS = 160_000
_TLS_WORDS = ("ssl", "certificate", "tls")


def verification(given: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """What to add to a connection's parameters; {} on this machine, or where sslmode is given."""
    if given.get("sslmode") or environ.get("PGSSLMODE") or _is_here(given, environ):
        return {}
    if given.get("sslrootcert") or environ.get("PGSSLROOTCERT") or _has_own_roots():
        return {"sslmode": "verify-full"}
    # By its path first: the OpenSSL in psycopg's wheel does not know where this system has its own.
    roots = system_ca_file() or ("system" if pq.version() >= _LIBPQ_SYSTEM_ROOTS else "")
    return {"sslmode": "verify-full", **({"sslrootcert": roots} if roots else {})}


def advice(error: Exception, added: Mapping[str, str]) -> str:
    """What to do when a server could not be reached for want of TLS; "" if that is not why."""
    said = str(error).lower()
    if not added or not any(word in said for word in _TLS_WORDS):
        return ""
    return (
        " Beyond this machine Duly verifies the server (sslmode=verify-full). Have it speak TLS, and name the CA that "
        "signed its certificate: ?sslrootcert=FILE. To do without, say so in the address: ?sslmode=require, or disable."
    )


def _is_here(given: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether all its hosts are this machine: unix sockets, or loopback."""
    addresses = str(given.get("hostaddr") or environ.get("PGHOSTADDR") or "")
    hosts = str(given.get("host") or environ.get("PGHOST") or "")
    if not hosts and not addresses and (given.get("service") or environ.get("PGSERVICE")):
        # Nobody knows here where that is.
        return False
    # libpq connects to the address, where one is said, whatever the host is called.
    reached = zip_longest(addresses.split(","), hosts.split(","), fillvalue="")
    return all(_is_local(address.strip() or host.strip()) for address, host in reached)


def _is_local(host: str) -> bool:
    # Nothing, a path, or an abstract name: a unix socket.
    return not host or host.startswith(("/", "@")) or is_loopback(host)


def _has_own_roots() -> bool:
    """Whether the user has CAs where libpq looks for them by itself."""
    return os.path.exists(os.path.expanduser("~/.postgresql/root.crt"))
