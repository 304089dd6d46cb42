"""Puts a store back from a backup: whole, or not at all.

    check the description ─▶ alone? ─▶ aside: pieces, each checked ─▶ made another store ─▶ synced ─▶ in place
                               │                     │                                        (one rename)
                               └─ Busy               └─ CorruptBackup, StoreFull: nothing was touched

What is restored is *another* store than the one it is a copy of: it gets a new incarnation, which is in every
token, so that whoever holds a lease of the old one is refused here (LeaseLost) and changes nothing; and it opens
paused (engine/pause.py), because the messages in it may have been worked on since. Ids, publish ids and dead letters
are as they were.

Replacing a store (`force`): nobody may have it open. Its log is folded in first, then deleted, then the new file takes
the name: a log left beside another file would be applied to it. Whenever the process dies there is the old store
whole, or the new one, and perhaps a file `….restoring`, which the next restore overwrites.
"""

from __future__ import annotations

import os
import secrets

import apsw

from ...clock import from_ms
from ...engine.pause import RESTORED
from ...errors import Busy, Error, IncompatibleStore, StoreError, StoreExists, StoreFull
from ..contract import Backup, Progress
from .backups import Backups, reading, refusal, sync_folder, write_all
from .presence import Presence

_ASIDE = ".restoring"
_LOGS = ("-wal", "-shm")


def restore(
    folder: str, path: str, *, schema: int, number: int | None, force: bool, on_progress: Progress | None
) -> Backup:
    """Restores one backup, or the newest, to `path`. Raises CorruptBackup, StoreExists, Busy, StoreFull."""
    path = os.path.abspath(path)
    with reading(folder) as backups:
        backup = backups.load(number)
        if backup.schema > schema:
            raise IncompatibleStore(
                f"Backup {backup.number} has schema {backup.schema}; this Duly knows {schema}. Use a newer Duly."
            )
        _check_target(path, force)
        presence = Presence(path, alone=True)
        try:
            # Once more, now that nobody else can put one there.
            _check_target(path, force)
            _build_and_place(backups, backup, path, on_progress)
        except Error:
            raise
        except OSError as error:
            raise refusal(path, error) from error
        finally:
            _clear(path + _ASIDE)
            presence.close()
    return backup


def _check_target(path: str, force: bool) -> None:
    if os.path.isdir(path):
        raise IncompatibleStore(f"{path} is a folder. Give the path of a file.")
    if not os.path.isdir(os.path.dirname(path)):
        raise refusal(path, FileNotFoundError())
    if os.path.exists(path) and not force:
        raise StoreExists(f"There is a file at {path}. Restore to another path, or replace it with force=True.")


def _build_and_place(backups: Backups, backup: Backup, path: str, on_progress: Progress | None) -> None:
    aside = path + _ASIDE
    _clear(aside)
    disk = os.statvfs(os.path.dirname(path))
    if disk.f_bavail * disk.f_frsize < backup.bytes:
        raise StoreFull(f"There is no room for {path}: the backup has {backup.bytes / 1e6:,.0f} MB. Free space first.")
    _assemble(backups, backup, aside, on_progress)
    _make_another(aside, backup)
    if os.path.exists(path):
        _fold_in(path)
    _place(aside, path)


def _assemble(backups: Backups, backup: Backup, aside: str, on_progress: Progress | None) -> None:
    file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        done = 0
        for name, size in backup.sizes():
            write_all(file, backups.piece(name, size))
            done += size
            if on_progress is not None:
                on_progress(done, backup.bytes)
        os.fsync(file)
    finally:
        os.close(file)


def _make_another(aside: str, backup: Backup) -> None:
    """Gives the copy an incarnation of its own, and pauses it."""
    why = f"{RESTORED} from backup {backup.number} of {from_ms(backup.taken_at_ms).isoformat(timespec='seconds')}"
    put = "INSERT INTO duly_meta (key, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
    try:
        connection = apsw.Connection(aside, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            with connection:
                connection.execute(put, ("incarnation", secrets.token_hex(8)))
                connection.execute(put, ("paused", why))
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            connection.close()
    except (apsw.FullError, apsw.IOError) as error:
        raise StoreFull(f"{aside} cannot be written: {error}. Free space, then try again.") from error
    except apsw.Error as error:
        raise StoreError(f"The backup is whole, but SQLite cannot use it: {error}. Restore another.") from error


def _fold_in(path: str) -> None:
    """Leaves the store that is replaced without a log, so that up to the last step it is whole."""
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            connection.execute("BEGIN EXCLUSIVE")
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            connection.execute("ROLLBACK")
            if tables and "duly_meta" not in tables:
                raise IncompatibleStore(f"{path} is not a Duly store. If it may go, remove it yourself.")
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            connection.close()
    except (apsw.BusyError, apsw.LockedError) as error:
        raise Busy(f"{path} is open in another program. Close it, then try again.") from error
    except apsw.NotADBError as error:
        raise IncompatibleStore(f"{path} is not an SQLite file. If it may go, remove it yourself.") from error
    except (apsw.CorruptError, apsw.IOError, apsw.FullError):
        # It is damaged, or has no room: the reason why it is replaced.
        pass
    except apsw.Error as error:
        raise StoreError(f"{path} cannot be replaced: {error}.") from error


def _place(aside: str, path: str) -> None:
    folder = os.path.dirname(path)
    for suffix in _LOGS:
        if os.path.exists(path + suffix):
            os.unlink(path + suffix)
    # Else a power loss could bring the old log back, beside the new file.
    sync_folder(folder)
    os.replace(aside, path)
    sync_folder(folder)


def _clear(aside: str) -> None:
    for suffix in ("", *_LOGS):
        if os.path.exists(aside + suffix):
            os.unlink(aside + suffix)
