"""A store's file held still at one moment, while everyone goes on writing.

SQLite in WAL mode writes into the log beside the file, and a checkpoint moves what the log holds into the file, but
never past the point at which the oldest reader began. So: while nobody can commit, begin to read, and have the log
copied into the file up to that point. From then on, as long as the reader stays, no checkpoint can write a
single page: the file itself is the store as it was at that moment, and can be read from front to back, past SQLite's
page cache. What is committed meanwhile gathers in the log, which cannot start over until the reader leaves.

    hold (a verb: nobody commits)        read, read, read …        close
    BEGIN, checkpoint, all copied? ──▶   the file stands still ──▶ the log is copied at once, beside the writer
         └─ no: somebody reads an older state; leave and try again until the deadline

A fork, or a device that failed, closes every connection of the process, this one too: the next read raises
SnapshotLost, and whoever reads begins again.

The bytes are read through the reader's own descriptor. To open the file beside SQLite and close it would drop all of
the process's POSIX locks on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import apsw

from ...errors import StoreError
from ..contract import Transaction
from .checkpoint import Checkpointer
from .faults import translate


class SnapshotLost(Exception):
    """Its connections were closed. Take another; never leaves this package."""


class Snapshot:
    """One moment of a store. Whoever calls is inside (fork_gate.py), or nobody is."""

    def __init__(self, connect: Callable[..., apsw.Connection], checkpointer: Checkpointer) -> None:
        self._connect = connect
        self._checkpointer = checkpointer
        # One thread reads, others close: at a fork, after a fault of the device, at the end.
        self._lock = threading.Lock()
        self._closed = False
        self._reader: apsw.Connection | None = None
        self._copier: apsw.Connection | None = None
        self.taken_at_ms = 0
        self.page_bytes = 0
        self.pages = 0
        self.schema = 0

    @property
    def file_bytes(self) -> int:
        """How big the file is at this moment. Behind its last page the file may go on."""
        return self.pages * self.page_bytes

    def hold(self, tx: Transaction, commands: Sequence[None]) -> list[bool | Exception]:
        """A verb, so that nobody commits while it runs. False: an older reader is in the way."""
        held = False
        with self._lock:
            try:
                # Whoever asked may have given up, and the writer may try a group of commands twice.
                self._disconnect()
                held = not self._closed and self._hold()
            except apsw.Error as error:
                # As an error of this command alone: the others of the group commit have nothing to do with it.
                raise translate(error) from error
            finally:
                if not held:
                    self._disconnect()
        self.taken_at_ms = tx.now_ms
        return [held for _ in commands]

    def _hold(self) -> bool:
        self._reader, self._copier = self._connect(readonly=True), self._connect()
        # Only a connection that has read is really attached to the write-ahead log.
        if _value(self._copier, "PRAGMA journal_mode") != "wal":
            raise StoreError("The journal mode was changed by another program. Run `duly doctor`.")
        _value(self._copier, "SELECT count(*) FROM sqlite_schema")
        self._reader.execute("BEGIN")
        self.schema = int(_value(self._reader, "SELECT value FROM duly_meta WHERE key = 'schema'"))
        self.pages = _value(self._reader, "PRAGMA page_count")
        self.page_bytes = _value(self._reader, "PRAGMA page_size")
        return self._checkpointer.copy_all(self._copier)

    def read(self, at: int, size: int) -> bytes:
        """Bytes of the file as it was. Raises SnapshotLost."""
        with self._lock:
            if self._reader is None:
                raise SnapshotLost
            # Where the file ends early (pages that were never used) SQLite reads zeros, and so does this.
            try:
                _, found = self._reader.read("main", 0, at, size)
            except apsw.Error as error:
                raise translate(error) from error
            return found

    def close(self) -> None:
        """Lets the log start over, and copies what has gathered in it before the writer has to."""
        with self._lock:
            self._closed = True
            if self._reader is not None and self._copier is not None:
                self._reader.close()
                # A failure is noted by the checkpointer, and the writer sees to it. What was read is right.
                with suppress(apsw.Error):
                    self._checkpointer.copy_all(self._copier)
            self._disconnect()

    def let_go(self) -> None:
        """Everyone has to leave the file: what is read next raises SnapshotLost."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        for connection in (self._reader, self._copier):
            if connection is not None:
                connection.close()
        self._reader = self._copier = None


def _value(connection: apsw.Connection, statement: str) -> Any:
    """The one value that a statement answers."""
    ((value,),) = connection.execute(statement)
    return value
