"""Who has a store open: everyone who does shares a lock, and whoever replaces the file needs it alone.

SQLite's own locks do not tell: a client that is idle, or about to reconnect, has no connection open, but remembers
the incarnation of the file that was there. The kernel gives the lock up when a process dies.
"""

from __future__ import annotations

import fcntl
import os

from ...errors import Busy, StoreError


class Presence:
    """The lock, held until it is closed. `path` None: a store that nobody else can see."""

    def __init__(self, path: str | None, *, alone: bool = False) -> None:
        self._file = -1
        if path is None:
            return
        try:
            self._file = os.open(path + "-open", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise Busy(_in_use(path) if alone else _being_restored(path)) from error
        except OSError as error:
            self.close()
            raise StoreError(f"{path} cannot be opened: {error.strerror}.") from error

    def close(self) -> None:
        """Lets go."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _in_use(path: str) -> str:
    return f"{path} is open, here or in another process. Close every client of it, then try again."


def _being_restored(path: str) -> str:
    return f"{path} is being restored from a backup. Try again when that is done."
