"""Moves what the write-ahead log holds into the file, every few megabytes, between two transactions.

SQLite can do it by itself, but keeps quiet about a failure, and a failed one must not be passed over. It
remembers what an unfinished checkpoint copied as done, though nobody synced it: the next, shorter one would
sync too little, and the log would start over. So nothing is written then before the log has been read anew from its
start (writer.py, _rebuild).

A thread that copies beside the writer was tried: no faster for big batches, slower for single messages, because
the log it leaves longer has to grow, and growing makes every sync dearer.
"""

from __future__ import annotations

import apsw

from ...events import log

# Pages of 4 KiB. Measured: 256 and 1024 cost batches more, 4096 and 16384 cost everything more.
_COPY_PAGES = 2048
_TRUNCATE_WAIT_MS = 200


class Checkpointer:
    """Counts the pages of the log and copies them when there are enough."""

    def __init__(self) -> None:
        self._pages = 0
        # Space was freed that the device has not got back yet.
        self._owed = False
        self.broken = False

    def watch(self, connection: apsw.Connection) -> None:
        """Takes the place of SQLite's own checkpoints on the writer's connection."""
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.set_wal_hook(self._hook)

    def _hook(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def after_commit(self, connection: apsw.Connection, *, freed: bool) -> None:
        """Called by the writer between transactions, when everyone has been answered."""
        if self.broken:
            return
        self._owed |= freed
        if self._owed:
            self._give_back(connection)
        elif self._pages >= _COPY_PAGES:
            self._copy(connection, apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _give_back(self, connection: apsw.Connection) -> None:
        """Copies everything and cuts both files, so that freed space is the device's again.

        To cut them it waits for readers, and everyone waits with it. One that stays (a backup) shows before, by what
        cannot be copied; then it is for another time.
        """
        try:
            whole = self.copy_all(connection)
        except apsw.Error:
            # Noted; the writer sees to it.
            return
        if whole:
            self._owed = False
            connection.set_busy_timeout(_TRUNCATE_WAIT_MS)
            self._copy(connection, apsw.SQLITE_CHECKPOINT_TRUNCATE)
            connection.set_busy_timeout(0)

    def copy_all(self, connection: apsw.Connection) -> bool:
        """Copies what is in nobody's way; True when the file has all that the log holds."""
        try:
            pages, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except (apsw.BusyError, apsw.LockedError):
            return False
        except apsw.Error as error:
            self._failed(error)
            raise
        return 0 <= pages == copied

    def _copy(self, connection: apsw.Connection, mode: int) -> None:
        self._pages = 0
        try:
            connection.wal_checkpoint(mode=mode)
        except (apsw.BusyError, apsw.LockedError):
            # A reader still needs the log, or another process is copying: another time.
            return
        except apsw.Error as error:
            self._failed(error)

    def _failed(self, error: apsw.Error) -> None:
        self.broken = True
        log.error("a checkpoint failed (%s); nothing is written until the log has been read anew", error)
