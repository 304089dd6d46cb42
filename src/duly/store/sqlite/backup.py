"""Takes a backup of the whole file, the application's own tables included, while everyone goes on.

The file is held still at one moment (snapshot.py), read in pieces of a mebibyte, and the pieces that the folder does
not have yet are put there (backups.py). The description is written last; before that there is no backup.

Three ways were measured (bench/backup_ways.py) on a store of 500 to 790 MB, while another process published batches of
1,000 × 100 bytes and claimed and acked them without a pause; 2 cores shared with other work, so that one publish in
a run took 60 ms (log) or 180 ms (queue) without any backup:

| way | took | the log grew to | longest publish: log, queue |
| --- | --- | --- | --- |
| SQLite's backup calls, 256 pages a step, in one read transaction | 1.7 to 2.6 s | 22 MB | 174, 86 ms |
| VACUUM INTO | 1.9 to 2.7 s | 27 MB | 204, 413 ms |
| held still, pieces synced one by one: the first backup | 8.6 to 12.4 s | 60 MB | 113, 176 ms |
| … the next ones, of which 34 to 104 MB were new | 3.2 to 4.0 s | 31 MB | 192, 135 ms |

None stops the writers; VACUUM INTO comes nearest to it. The first two are quicker the first time, but write everything
every time, sync it in one go at the end, check nothing, and leave nothing of use when they fail half way. Pieces come
out the same each time: the next backup writes what changed. To hold the file still takes the writers 7 to 16 ms, once.

What it costs: as long as a backup reads, the log cannot start over. It grows by what is committed meanwhile (about
as many bytes as are published, and more for single messages, at least a page each), and shrinks back
after. `rate` bounds how much is read a second, where the device is needed by others; the log then grows for longer.

An older reader (a long examination, another backup) keeps a moment from being held: the backup waits for it as
long as its timeout allows, then raises Busy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from ... import __version__
from ...clock import monotonic_s
from ...errors import Busy, StoreFull
from ..contract import Backup, Progress
from .backups import Backups, writing
from .snapshot import Snapshot, SnapshotLost

PIECE_BYTES = 1024 * 1024
# So often may a fork interrupt a backup before it gives up. Each time it reads again, but writes little.
_TRIES = 20


class Source(Protocol):
    """What is backed up."""

    incarnation: str

    def snapshot(self, deadline: float | None) -> AbstractContextManager[Snapshot]:
        """The file at one moment."""
        ...

    def inside(self) -> AbstractContextManager[None]:
        """For as long as SQLite is used."""
        ...


def back_up(
    source: Source,
    path: str,
    *,
    keep: int | None,
    rate: float | None,
    on_progress: Progress | None,
    deadline: float | None,
) -> Backup:
    """Takes one backup into a folder, and drops all but the newest `keep`."""
    with writing(path) as folder:
        try:
            backup = _copy_until_whole(source, folder, _Pace(rate), on_progress, deadline)
            folder.add(backup)
        except StoreFull:
            folder.sweep()
            raise
        if keep is not None:
            folder.drop_all_but(keep)
        folder.sweep()
    return backup


def _copy_until_whole(
    source: Source, folder: Backups, pace: _Pace, on_progress: Progress | None, deadline: float | None
) -> Backup:
    for _ in range(_TRIES):
        try:
            with source.snapshot(deadline) as snapshot:
                return _copy(source, snapshot, folder, pace, on_progress)
        except SnapshotLost:
            continue
    raise Busy("The process forked again and again while the backup was taken. Take it from another process.")


def _copy(source: Source, snapshot: Snapshot, folder: Backups, pace: _Pace, on_progress: Progress | None) -> Backup:
    names: list[str] = []
    new_bytes = 0
    for at, size in _stretches(snapshot.file_bytes):
        with source.inside():
            piece = snapshot.read(at, size)
        name, new = folder.put(piece)
        names.append(name)
        new_bytes += size if new else 0
        if on_progress is not None:
            on_progress(at + size, snapshot.file_bytes)
        pace.wait(size)
    return Backup(
        number=max(folder.numbers(), default=0) + 1,
        taken_at_ms=snapshot.taken_at_ms,
        duly=__version__,
        incarnation=source.incarnation,
        schema=snapshot.schema,
        page_bytes=snapshot.page_bytes,
        pages=snapshot.pages,
        piece_bytes=PIECE_BYTES,
        new_bytes=new_bytes,
        pieces=tuple(names),
    )


def _stretches(total: int) -> Iterator[tuple[int, int]]:
    for at in range(0, total, PIECE_BYTES):
        yield at, min(PIECE_BYTES, total - at)


class _Pace:
    """Holds back so that no more than so many bytes a second are read."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._began = monotonic_s()
        self._bytes = 0

    def wait(self, size: int) -> None:
        """So many more were read."""
        self._bytes += size
        if self._rate is not None:
            ahead_s = self._bytes / self._rate - (monotonic_s() - self._began)
            if ahead_s > 0:
                threading.Event().wait(ahead_s)
