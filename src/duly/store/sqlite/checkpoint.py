"""Moves what the write-ahead log holds into the file, beside the writer and not in its way.

SQLite would do it inside a commit, which costs as much again as the commits themselves. Here a
thread with a connection of its own copies every few megabytes while the writer goes on. But a log that
is written without pause never starts over, because there is always a frame not yet copied: so when it has
grown long, the writer stops for the little that is left, and the next commit begins at the front.

When the device fails in the middle of one, nothing may be written before the log has been read anew from its
start (writer.py, _rebuild). SQLite remembers what an unfinished checkpoint copied as done, though nobody synced it:
the next, shorter one would sync too little, and the log would start over. And the sync that failed may have been the
first over the frames of a claim, so that whatever came after them would be lost with them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import apsw

from ...events import log

# Pages of 4 KiB: copy every 4 MiB in the background; start over at 16 MiB, for a long log is slow to read.
_COPY_PAGES = 1024
_RESTART_PAGES = 4 * 1024
_TRUNCATE_WAIT_MS = 200


class Checkpointer:
    """Copies in the background, and on the writer's thread when it must."""

    def __init__(self, connect: Callable[[], apsw.Connection], inside: AbstractContextManager[None]) -> None:
        self._connect = connect
        self._inside = inside
        self._copying = threading.Lock()
        self._wanted = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._closing = False
        self._pages = 0
        self._copied_at = 0
        self.broken = False

    def watch(self, connection: apsw.Connection) -> None:
        """Takes the place of SQLite's own checkpoints on the writer's connection."""
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.set_wal_hook(self._hook)

    def _hook(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._pages:
            self._copied_at = 0
        self._pages = pages
        return apsw.SQLITE_OK

    def after_commit(self, connection: apsw.Connection, *, freed: bool) -> None:
        """Called by the writer between transactions, when nobody waits for it yet."""
        if self.broken:
            return
        if freed:
            self._truncate(connection)
        elif self._pages - self._copied_at >= _COPY_PAGES:
            self._copied_at = self._pages
            if self._pages >= _RESTART_PAGES:
                with self._copying:
                    self._copy(connection)
            else:
                self._copy_soon()

    def close(self) -> None:
        """Ends the thread."""
        self._closing = True
        self._wanted.release()
        if self._thread is not None:
            self._thread.join()

    def _copy_soon(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="duly-checkpoint", daemon=True)
            self._thread.start()
        self._wanted.release()

    def _loop(self) -> None:
        while True:
            self._wanted.acquire()
            if self._closing:
                return
            # Opened anew each time: nothing of it may be open when the process forks.
            with self._inside, self._copying:
                try:
                    connection = self._connect()
                    try:
                        self._copy(connection)
                    finally:
                        connection.close()
                except apsw.Error as error:
                    log.warning("the log could not be copied into the file: %s", error)

    def _truncate(self, connection: apsw.Connection) -> None:
        """Copies everything and cuts both files, so that freed space is the device's again."""
        with self._copying:
            connection.set_busy_timeout(_TRUNCATE_WAIT_MS)
            try:
                self._checkpoint(connection, apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                connection.set_busy_timeout(0)
        self._copied_at = self._pages = 0

    def _copy(self, connection: apsw.Connection) -> None:
        self._checkpoint(connection, apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _checkpoint(self, connection: apsw.Connection, mode: int) -> None:
        if self.broken:
            return
        try:
            connection.wal_checkpoint(mode=mode)
        except (apsw.BusyError, apsw.LockedError):
            # A reader still needs the log, or another process is copying: another time.
            return
        except apsw.Error:
            self.broken = True
            log.error("a checkpoint failed; nothing is written until the log has been read anew")
            raise
