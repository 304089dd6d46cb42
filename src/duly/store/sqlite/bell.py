"""Wakes those who wait: threads of this process, and other processes on the same file.

A small file beside the store has one slot for every 1,024 partitions to share. Whoever makes
something claimable writes a random value into the partition's slot after its commit. A process
that waits is told of the write by the kernel (inotify), compares the slots with what it saw last
and wakes only those whose slot changed. Idle, nobody polls anything.

A random value and not a counter: two processes that add one at the same time would write the
same number, and a waiter that had seen the first would sleep through the second.

Lost wake-ups cannot happen: a waiter takes a ticket *before* it looks for work, and the ticket
knows whether a slot has rung since. What the file holds after a crash is at worst one useless look.

Where there is no inotify (macOS) the slots are looked at every few milliseconds while someone waits.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import select
import threading
from collections.abc import Iterable, Sequence

from ...events import log
from ..bell import SLOTS, Bell

# The slots, and behind them a byte that says whether any process has ever listened: as long as none
# has, ringing writes nothing. A crash may leave it set, which costs a write a commit and no more.
_BYTES = SLOTS * 8
_HEARD_AT = _BYTES
_IN_MODIFY = 0x2
_POLL_S = 0.005


class FileBell(Bell):
    """One process's end of the bell. `path` None: nobody else can hear."""

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self._file = -1 if path is None else os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._path = path
        self._seen = bytearray(_BYTES)
        self._watcher: threading.Thread | None = None
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        if path is not None and os.fstat(self._file).st_size <= _BYTES:
            # Written out and not left sparse: on a full device a ring must still find its place.
            os.pwrite(self._file, bytes(_BYTES + 1), 0)
        self._shared = None if path is None else mmap.mmap(self._file, _BYTES + 1, prot=mmap.PROT_READ)

    def _hear_others(self) -> None:
        if self._watcher is None and self._path is not None:
            self._watch()

    def ring(self, partitions: Iterable[int]) -> None:
        """Tells everyone, here and in other processes."""
        slots = {partition % SLOTS for partition in partitions}
        if self._shared is not None and self._shared[_HEARD_AT]:
            with self._lock:
                for slot in slots:
                    self._write(slot)
        self._wake(slots)

    def _write(self, slot: int) -> None:
        value = random.randbytes(8)
        # Noted as seen, so that the watcher does not take our own ring for another's.
        self._seen[slot * 8 : slot * 8 + 8] = value
        try:
            os.pwrite(self._file, value, slot * 8)
        except OSError as error:
            # The commit stands. Who waits elsewhere wakes when something is due, or asks again.
            log.warning("other processes cannot be woken: %s", error)

    def close(self) -> None:
        """Stops watching and wakes whoever still sleeps."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.ring_all_here()
        os.write(self._stop_write, b"x")
        if self._watcher is not None:
            self._watcher.join()
        self.let_go()

    def let_go(self) -> None:
        """Closes the descriptors: in the child of a fork, where there is no watcher to stop."""
        if self._shared is not None:
            self._shared.close()
        for fd in (self._file, self._stop_read, self._stop_write):
            if fd >= 0:
                os.close(fd)

    def _watch(self) -> None:
        """Starts the watcher. The slots are read before anyone is told that they have been."""
        listen = _inotify(self._path or "")
        os.pwrite(self._file, b"\1", _HEARD_AT)
        self._seen[:] = os.pread(self._file, _BYTES, 0)
        self._watcher = threading.Thread(target=self._listen, args=(listen,), name="duly-bell", daemon=True)
        self._watcher.start()

    def _listen(self, listen: int) -> None:
        while True:
            waiting: Sequence[int] = [self._stop_read] if listen < 0 else [listen, self._stop_read]
            ready, _, _ = select.select(waiting, [], [], _POLL_S if listen < 0 else None)
            if self._stop_read in ready:
                break
            if listen >= 0:
                os.read(listen, 65536)
            with self._lock:
                now = os.pread(self._file, _BYTES, 0)
                changed = _differences(now, self._seen)
                self._seen[:] = now
            self._wake(changed)
        if listen >= 0:
            os.close(listen)


def _differences(now: bytes, before: bytearray) -> list[int]:
    """The slots that differ: whole stretches are compared first, for mostly one slot does."""
    if now == before:
        return []
    return [
        slot
        for stretch in range(0, _BYTES, 512)
        if now[stretch : stretch + 512] != before[stretch : stretch + 512]
        for slot in range(stretch // 8, stretch // 8 + 64)
        if now[slot * 8 : slot * 8 + 8] != before[slot * 8 : slot * 8 + 8]
    ]


def _inotify(path: str) -> int:
    """A descriptor that becomes readable when the file is written; -1 where there is no inotify."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        return -1
    fd: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        return -1
    if libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(_IN_MODIFY)) < 0:
        os.close(fd)
        return -1
    return fd
