"""Errors of SQLite, and of rows that cannot be read, as ours."""

from __future__ import annotations

import apsw

from ...errors import Busy, Error, StoreError, StoreFull


def translate(error: Exception) -> Error:
    """One of our errors for whatever came up; in every case nothing was changed."""
    if isinstance(error, Error):
        return error
    if isinstance(error, apsw.BusyError):
        return Busy("Another process holds the store's write lock. Nothing was done; try again.")
    if isinstance(error, apsw.FullError):
        return StoreFull()
    if isinstance(error, apsw.IOError):
        return StoreError(f"The device failed ({error}). Nothing was changed. Check it and its free space.")
    if isinstance(error, apsw.Error):
        return StoreError(f"SQLite could not do it: {error}. Nothing was changed. Run `duly doctor`.")
    return StoreError(f"A row of the store makes no sense ({error!r}). Nothing was changed. Run `duly doctor`.")
