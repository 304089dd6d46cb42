"""A disk that remembers: an SQLite VFS that records, kills and fails, and the power loss played from its record.

`Disk` sees every write, truncate, sync and delete that SQLite makes, in order, and marks (the
acknowledgements) between them. It can kill the process at the Nth of them, and fail them as told.

`power_loss` gives the files that could be found after the power went at a point of a record: what
was synced is there; of the rest any part may be, torn at 512-byte sectors. Names are made and
removed in order; how far that came is open until a directory sync.
A sync that failed makes nothing durable, nor does a later one (the kernel drops the pages' dirty mark);
everyone who has the file open is told once.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apsw

SECTOR = 512
# The VFS below. Not the default one: that is ours while a test runs.
HOST = apsw.vfs_names()[0] if apsw.vfs_names()[0] != "duly-test-disk" else "unix"

Fault = Callable[[str, str], Exception | None]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: create, adopt, write, truncate, sync, sync_failed, delete, delete_synced, mark."""

    kind: str
    name: str
    inode: int = 0
    offset: int = 0
    content: bytes = b""


class Disk:
    """What SQLite does to its files, recorded; and what is to go wrong."""

    def __init__(self, *, recording: bool = True) -> None:
        self.events: list[Event] = []
        self.calls = 0
        self.kill_at: int | None = None
        # Asked before every call with (what, file name); what it returns is raised.
        self.fault: Fault | None = None
        self._recording = recording
        # Failed syncs by inode. As on Linux, each is told to everyone who had the file open then.
        self.failed_syncs: Counter[int] = Counter()
        self._inodes: dict[str, int] = {}
        self._next_inode = 1
        self._lock = threading.RLock()

    def mark(self, text: str) -> None:
        """Notes an acknowledgement between the calls."""
        with self._lock:
            self.record(Event("mark", text))

    def record(self, event: Event) -> None:
        if self._recording:
            self.events.append(event)

    def before(self, what: str, name: str, half: Callable[[], None] | None = None) -> None:
        """Counts a call; dies here or fails it if that is the plan. A write may die half done."""
        self.calls += 1
        if self.calls == self.kill_at:
            if half is not None and self.calls % 2:
                half()
            os.kill(os.getpid(), signal.SIGKILL)
        error = self.fault(what, name) if self.fault is not None else None
        if error is not None:
            raise error

    def opened(self, name: str, *, existed: bool) -> int:
        """The inode that a name stands for now."""
        if not existed or name not in self._inodes:
            self._inodes[name] = self._next_inode
            self._next_inode += 1
            self.record(Event("adopt" if existed else "create", name, self._inodes[name]))
        return self._inodes[name]

    def deleted(self, name: str) -> None:
        self._inodes.pop(name, None)

    @property
    def lock(self) -> threading.RLock:
        return self._lock


class DiskVFS(apsw.VFS):
    """The host's VFS with a Disk between. Registered as the default one until `unregister`."""

    def __init__(self, disk: Disk, name: str = "duly-test-disk") -> None:
        self.disk = disk
        super().__init__(name, HOST, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        if name is None:
            return apsw.VFSFile(HOST, name, flags)
        return _DiskFile(self.disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        name = os.path.basename(filename)
        with self.disk.lock:
            self.disk.before("delete", name)
            super().xDelete(filename, syncdir)
            self.disk.deleted(name)
            self.disk.record(Event("delete_synced" if syncdir else "delete", name))


class _DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, filename: str | apsw.URIFilename, flags: list[int]) -> None:
        path = filename if isinstance(filename, str) else filename.filename()
        self._disk = disk
        self._name = os.path.basename(path)
        with disk.lock:
            existed = os.path.exists(path)
            super().__init__(HOST, filename, flags)
            self._inode = disk.opened(self._name, existed=existed)
            self._told_of = disk.failed_syncs[self._inode]

    def xLock(self, level: int) -> None:  # noqa: N802
        try:
            super().xLock(level)
        except apsw.IOError as error:
            # A read-only connection that closes last asks for what it cannot have. SQLite takes the answer
            # in its stride; apsw would raise it out of close(), unless it is a busy one.
            raise apsw.BusyError("not for a reader") from error

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        with self._disk.lock:
            content = bytes(data)
            self._disk.before(
                "write", self._name, lambda: super(_DiskFile, self).xWrite(content[: len(content) // 2], offset)
            )
            super().xWrite(data, offset)
            self._disk.record(Event("write", self._name, self._inode, offset, content))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        with self._disk.lock:
            self._disk.before("truncate", self._name)
            super().xTruncate(newsize)
            self._disk.record(Event("truncate", self._name, self._inode, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        with self._disk.lock:
            try:
                self._disk.before("sync", self._name)
            except Exception:
                self._disk.failed_syncs[self._inode] += 1
                self._fail_sync()
                raise
            if self._told_of != self._disk.failed_syncs[self._inode]:
                self._fail_sync()
                raise sync_failure()
            super().xSync(flags)
            self._disk.record(Event("sync", self._name, self._inode))

    def _fail_sync(self) -> None:
        self._told_of = self._disk.failed_syncs[self._inode]
        self._disk.record(Event("sync_failed", self._name, self._inode))


class Connection(apsw.Connection):
    """A connection that closes as SQLite does: what goes wrong on the way out is nobody's error.

    apsw raises an error of a VFS written in Python out of close(); one of a real disk never gets there.
    """

    def close(self, force: bool = False) -> None:
        with contextlib.suppress(apsw.FullError, apsw.IOError):
            super().close(force)


def full() -> apsw.FullError:
    """SQLITE_FULL, as a device without room gives it."""
    return apsw.FullError("no room on the device")


def sync_failure() -> apsw.IOError:
    """SQLITE_IOERR_FSYNC."""
    error = apsw.IOError("fsync failed")
    error.extendedresult = apsw.SQLITE_IOERR_FSYNC  # type: ignore[attr-defined]
    return error


class Luck:
    """What becomes of a change that was not synced. Always whole is what kill -9 leaves, or a kind power cut."""

    def __init__(self, seed: object, *, whole: float, torn: float) -> None:
        self.draw = random.Random(str(seed))
        self._seed = seed
        self._whole = whole
        self._torn = torn

    @classmethod
    def of(cls, seed: object) -> Luck:
        """One of the kinds that there are, by seed."""
        whole, torn = random.Random(f"kind {seed}").choice([(0.0, 0.0), (1 / 3, 1 / 3), (0.9, 0.05), (1.0, 0.0)])
        return cls(seed, whole=whole, torn=torn)

    def fate(self) -> str:
        """whole, torn or gone."""
        number = self.draw.random()
        return "whole" if number < self._whole else "torn" if number < self._whole + self._torn else "gone"

    def names_kept(self, count: int) -> int:
        """How many of so many unsynced creations and deletions, made in order, are on the disk."""
        return count if self._whole == 1 else self.draw.randint(0, count)

    def __repr__(self) -> str:
        return f"Luck({self._seed!r}, whole={self._whole:.2f}, torn={self._torn:.2f})"


NOTHING = Luck("nothing", whole=0, torn=0)
EVERYTHING = Luck("everything", whole=1, torn=0)


@dataclass(slots=True)
class _Inode:
    durable: bytearray = field(default_factory=bytearray)
    # Changes since the last sync, in order; True: a sync of it has failed.
    pending: list[tuple[Event, bool]] = field(default_factory=list)
    name_durable: bool = False


def power_loss(events: Sequence[Event], luck: Luck) -> dict[str, bytes]:
    """The files after the power went behind the last of the events."""
    inodes: dict[int, _Inode] = {}
    names: dict[str, int] = {}
    renames: list[tuple[str, int | None]] = []

    def sync_directory() -> None:
        for name, inode in renames:
            _rename(names, name, inode)
            if inode is not None:
                inodes[inode].name_durable = True
        renames.clear()

    for event in events:
        if event.kind in ("adopt", "create"):
            inodes[event.inode] = _Inode()
            renames.append((event.name, event.inode))
            if event.kind == "adopt":
                sync_directory()
        elif event.kind in ("write", "truncate"):
            inodes[event.inode].pending.append((event, False))
        elif event.kind == "sync":
            inode = inodes[event.inode]
            for change, doomed in inode.pending:
                if not doomed:
                    _apply(inode.durable, change)
                else:
                    _apply_some(inode.durable, change, luck)
            inode.pending.clear()
            if not inode.name_durable:
                # SQLite's unix VFS syncs the directory with the first sync of a file that it made.
                sync_directory()
        elif event.kind == "sync_failed":
            inode = inodes[event.inode]
            inode.pending = [(change, True) for change, _ in inode.pending]
        elif event.kind in ("delete", "delete_synced"):
            renames.append((event.name, None))
            if event.kind == "delete_synced":
                sync_directory()
    for name, number in renames[: luck.names_kept(len(renames))]:
        _rename(names, name, number)
    for inode in inodes.values():
        for change, _ in inode.pending:
            _apply_some(inode.durable, change, luck)
    return {name: bytes(inodes[number].durable) for name, number in names.items()}


def _rename(names: dict[str, int], name: str, inode: int | None) -> None:
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


def _apply(content: bytearray, change: Event) -> None:
    if change.kind == "truncate":
        del content[change.offset :]
        return
    end = change.offset + len(change.content)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[change.offset : end] = change.content


def _apply_some(content: bytearray, change: Event, luck: Luck) -> None:
    """The change whole, torn, or not at all."""
    fate = luck.fate()
    if fate == "whole":
        _apply(content, change)
    elif fate == "torn" and change.kind == "write":
        at = 0
        while at < len(change.content):
            stop = min(len(change.content), at + SECTOR - (change.offset + at) % SECTOR)
            if luck.draw.random() < 0.5:
                part = Event("write", change.name, change.inode, change.offset + at, change.content[at:stop])
                _apply(content, part)
            at = stop


def materialise(files: dict[str, bytes], folder: Path) -> None:
    """Writes the files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
