"""Errors of PostgreSQL, and of rows that cannot be read, as ours."""

from __future__ import annotations

import psycopg

from ...errors import Busy, Error, StoreError, StoreFull, Unavailable
from .line import LineLost, Refused

LOCK_NOT_AVAILABLE, _DEADLOCK, _SERIALIZATION, _CANCELLED = "55P03", "40P01", "40001", "57014"
_DISK_FULL, _READ_ONLY, _IN_RECOVERY = "53100", "25006", "57P03"
# It goes away, or came up anew: another connection may find another server.
GOING_AWAY = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", _READ_ONLY})
# What the next try may find otherwise.
# Somebody else had a turn; somebody has changed a lease, or is about to.
CHANGED, TAKEN = "DU001", "DU002"
PASSING = frozenset({_DEADLOCK, _SERIALIZATION, "23505", CHANGED, TAKEN})


def translate(error: Exception) -> Error:
    """One of our errors for whatever came up; in every case nothing was changed."""
    if isinstance(error, Error):
        return error
    if isinstance(error, Refused):
        if error.state in (CHANGED, TAKEN):
            return Busy("An application's transaction is settling the same messages. Nothing was done; try again.")
        if error.state in (LOCK_NOT_AVAILABLE, _CANCELLED, _DEADLOCK):
            return Busy("Others are at work on this topic, for longer than usual. Nothing was done; try again.")
        if error.state == _DISK_FULL:
            return StoreFull()
        if error.state in GOING_AWAY:
            return Unavailable(f"PostgreSQL is going away or read-only ({error}). Nothing was done; try again.")
        return StoreError(f"PostgreSQL could not do it: {error} ({error.state}). Nothing was changed.")
    if isinstance(error, (LineLost, psycopg.OperationalError)):
        return Unavailable(f"PostgreSQL cannot be reached ({_brief(error)}). Nothing was done; try again.")
    if isinstance(error, psycopg.Error):
        return StoreError(f"PostgreSQL could not do it: {_brief(error)}. Nothing was changed.")
    return StoreError(f"A row of the store makes no sense ({error!r}). Nothing was changed. Run `duly doctor`.")


def _brief(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
