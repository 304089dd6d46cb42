"""Whose turn it is to write, among processes on one file.

SQLite alone would be safe but not fair: a process that writes without pause lets go of the lock
for microseconds, and one that polls for it can wait for seconds. So writers queue in the kernel:
one holds the *turn* while it waits for the *pen*, and the one that had the pen must queue for the
turn again. SQLite's own lock still decides; if these files vanished nothing could go wrong but fairness.
"""

from __future__ import annotations

import ctypes
import fcntl
import os

# Called without letting go of the interpreter's lock: to get it back among busy threads costs far more
# than the call. Only a lock that has to be waited for is worth that.
_flock = ctypes.PyDLL(None).flock


class Gate:
    """Two advisory locks, both given up by the kernel when a process dies. `path` None: no other process."""

    def __init__(self, path: str | None) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._turn = -1 if path is None else os.open(path + "-turn", flags, 0o600)
        self._pen = -1 if path is None else os.open(path + "-bell", flags, 0o600)

    def enter(self) -> None:
        """Waits in the queue until this process may write."""
        if self._pen >= 0:
            _lock(self._turn)
            _lock(self._pen)
            _flock(self._turn, fcntl.LOCK_UN)

    def try_enter(self) -> bool:
        """Enters if nobody is in or in the queue; never waits."""
        if self._pen < 0:
            return True
        if _flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB) != 0:
            return False
        entered: bool = _flock(self._pen, fcntl.LOCK_EX | fcntl.LOCK_NB) == 0
        _flock(self._turn, fcntl.LOCK_UN)
        return entered

    def leave(self) -> None:
        """Lets the next one write."""
        if self._pen >= 0:
            _flock(self._pen, fcntl.LOCK_UN)

    def close(self) -> None:
        """Lets go of the files."""
        if self._pen >= 0:
            os.close(self._turn)
            os.close(self._pen)
            self._turn = self._pen = -1


def _lock(fd: int) -> None:
    if _flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB) != 0:
        fcntl.flock(fd, fcntl.LOCK_EX)
