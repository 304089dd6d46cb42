"""A folder of backups that share their pieces.

    backups/
      backup-000007.json     one a backup: what it is of, its pieces in order. Written last: what has one is whole
      backup-000008.json
      duly-pieces/
        9f2c…                a piece of a store's file, named by the hash of its bytes (blake2b)

What a store did not change since the last backup is in the folder already and is not written again; it is read and
compared, though, so that a backup never rests on a piece that has rotted, and heals it. A piece's name is its
checksum, and the list of names has one of its own: one flipped bit anywhere is found.

Everything is written under a name that ends in `.partial`, synced, and renamed. A process that dies leaves such a file,
or pieces that no backup names: the next backup uses them or sweeps them away. One process writes at a time (a lock on
the folder); reading needs no turn, except that nothing is swept while somebody reads (a lock on the pieces).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import msgspec

from ...errors import Busy, CorruptBackup, Error, IncompatibleStore, InvalidArgument, NotFound, StoreError, StoreFull
from ...events import log
from ...health import Finding
from ..contract import Backup

FORMAT, VERSION = "duly-backup", 1
_PIECES = "duly-pieces"
_PARTIAL = ".partial"
_MANIFEST = re.compile(r"backup-(\d{6,})\.json")
_HASH_BYTES = 32


class _Manifest(msgspec.Struct):
    """A backup as it is written down: with a checksum over the exact bytes that describe it."""

    format: str
    version: int
    checksum: str
    backup: msgspec.Raw


class Backups:
    """A folder of backups, open. Made by `reading` and `writing`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._pieces = os.path.join(path, _PIECES)

    # Reading

    def numbers(self) -> list[int]:
        """The backups' numbers, oldest first."""
        with _told(self.path):
            return sorted(int(found[1]) for name in os.listdir(self.path) if (found := _MANIFEST.fullmatch(name)))

    def load(self, number: int | None = None) -> Backup:
        """One backup, or the newest. Raises CorruptBackup."""
        known = self.numbers()
        if not known or (number is not None and number not in known):
            which = "no backup" if number is None else f"no backup {number}"
            raise NotFound(f"There is {which} in {self.path}. See what there is with: duly backup {self.path} --list")
        chosen = known[-1] if number is None else number
        with _told(self.path), open(self._manifest(chosen), "rb") as file:
            return _parse(file.read(), f"backup {chosen} in {self.path}")

    def piece(self, name: str, size: int) -> bytes:
        """A piece, checked. Raises CorruptBackup."""
        try:
            with open(os.path.join(self._pieces, name), "rb") as file:
                found = file.read()
        except FileNotFoundError as error:
            raise CorruptBackup(f"A piece of the backup is missing from {self.path}: {name}.") from error
        except OSError as error:
            raise CorruptBackup(f"A piece of the backup cannot be read: {name}: {error.strerror}.") from error
        if len(found) != size or hash_of(found) != name:
            raise CorruptBackup(f"A piece of the backup in {self.path} is damaged: {name}. Restore another backup.")
        return found

    def examine(self) -> Iterator[tuple[int, Finding]]:
        """Reads everything and says of each backup, by number, whether it is whole."""
        good: set[str] = set()
        for number in self.numbers():
            try:
                backup = self.load(number)
                for name, size in backup.sizes():
                    if name not in good:
                        self.piece(name, size)
                        good.add(name)
            except Error as error:
                yield number, Finding("alert", str(error), "It cannot be restored.", "Take another now.")
            else:
                yield number, Finding("ok", f"Whole: {len(backup.pieces)} pieces, every checksum right")

    # Writing

    def put(self, piece: bytes) -> tuple[str, bool]:
        """Sees to it that a piece is there, on stable storage; its name, and whether it is new."""
        name = hash_of(piece)
        place = os.path.join(self._pieces, name)
        with _told(self.path):
            if _holds(place, piece):
                return name, False
            _write(place, piece)
        return name, True

    def add(self, backup: Backup) -> None:
        """Writes down a backup whose pieces are all here; from now on there is one more."""
        raw = msgspec.json.encode(backup)
        manifest = _Manifest(FORMAT, VERSION, hash_of(raw), msgspec.Raw(raw))
        with _told(self.path):
            # The names of the pieces first: a manifest must not outlive them at power loss.
            sync_folder(self._pieces)
            _write(self._manifest(backup.number), msgspec.json.encode(manifest))
            sync_folder(self.path)

    def drop_all_but(self, keep: int) -> list[int]:
        """Removes all backups but the newest; returns their numbers."""
        dropped = self.numbers()[:-keep]
        with _told(self.path):
            for number in dropped:
                os.unlink(self._manifest(number))
            sync_folder(self.path)
        return dropped

    def sweep(self) -> None:
        """Removes what no backup needs: leftovers of one that was not finished, pieces of dropped ones."""
        with _told(self.path), _alone(self._pieces) as alone:
            if not alone:
                return
            try:
                needed = {name for number in self.numbers() for name in self.load(number).pieces}
            except CorruptBackup as error:
                # What a damaged backup needs is unknown; whoever repairs it by hand will want its pieces.
                log.warning("nothing is swept from %s: %s", self.path, error)
                return
            for folder in (self.path, self._pieces):
                for name in os.listdir(folder):
                    if name.endswith(_PARTIAL) or (folder == self._pieces and name not in needed):
                        os.unlink(os.path.join(folder, name))

    def _manifest(self, number: int) -> str:
        return os.path.join(self.path, f"backup-{number:06}.json")


@contextmanager
def writing(path: str) -> Iterator[Backups]:
    """The folder, made if it is not there; nobody else writes to it meanwhile."""
    with _told(path):
        if os.path.lexists(path) and not os.path.isdir(path):
            raise InvalidArgument(f"{path} is a file. Backups go into a folder: give another path.")
        if not os.path.isdir(path):
            os.mkdir(path, 0o700)
            sync_folder(os.path.dirname(os.path.abspath(path)))
        _must_be_ours(path)
    with _told(path), _alone(path) as alone:
        if not alone:
            raise Busy(f"Another backup is being written to {path}. Try again when it is done.")
        os.makedirs(os.path.join(path, _PIECES), 0o700, exist_ok=True)
        yield Backups(path)


@contextmanager
def reading(path: str) -> Iterator[Backups]:
    """The folder, for reading: nothing is swept from it meanwhile."""
    if not os.path.isdir(os.path.join(path, _PIECES)):
        raise NotFound(f"There are no backups in {path!r}. Make one with: duly backup {path}")
    with _told(path):
        held = os.open(os.path.join(path, _PIECES), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        yield Backups(path)
    finally:
        os.close(held)


def hash_of(piece: bytes) -> str:
    """The name of a piece."""
    return blake2b(piece, digest_size=_HASH_BYTES).hexdigest()


def sync_folder(path: str) -> None:
    """Makes the names in a folder durable."""
    held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def _parse(text: bytes, what: str) -> Backup:
    try:
        manifest = msgspec.json.decode(text, type=_Manifest)
        if manifest.format == FORMAT and manifest.version > VERSION:
            raise IncompatibleStore(f"{what} has format {manifest.version}; this Duly knows {VERSION}. Use a newer.")
        if (manifest.format, manifest.version) != (FORMAT, VERSION) or hash_of(
            bytes(manifest.backup)
        ) != manifest.checksum:
            raise CorruptBackup(f"The description of {what} is damaged. Restore another backup.")
        return msgspec.json.decode(manifest.backup, type=Backup)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptBackup(f"The description of {what} is damaged. Restore another backup.") from error


def _must_be_ours(path: str) -> None:
    """A folder of something else is left alone."""
    names = [name for name in os.listdir(path) if not name.endswith(_PARTIAL)]
    if names and _PIECES not in names:
        raise InvalidArgument(f"{path} holds other things ({names[0]!r}). Backups want a folder of their own.")


@contextmanager
def _alone(folder: str) -> Iterator[bool]:
    """Locks a folder if nobody else does; False when somebody else does."""
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(held)


def _holds(path: str, content: bytes) -> bool:
    """Whether exactly this is there."""
    try:
        with open(path, "rb") as file:
            return file.read() == content
    except FileNotFoundError:
        return False


def _write(path: str, content: bytes) -> None:
    """Writes a file whole or not at all, and syncs it; its name is durable once its folder is synced."""
    aside = path + _PARTIAL
    try:
        file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(file, content)
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(aside, path)
    except OSError:
        # On a full device what was begun takes room that somebody needs.
        if os.path.exists(aside):
            os.unlink(aside)
        raise


def write_all(file: int, content: bytes) -> None:
    """Writes every byte, where the system may take fewer at once."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Errors of the system, as ours."""
    try:
        yield
    except Error:
        # Some of ours are errors of the system too: a Timeout.
        raise
    except OSError as error:
        raise refusal(path, error) from error


def refusal(path: str, error: OSError) -> Error:
    """What to tell of an error of the system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"There is no room left for {path}. Free space, then try again.")
    if isinstance(error, FileNotFoundError):
        return NotFound(f"There is no folder for {path}. Make it first.")
    return StoreError(f"{error.filename or path}: {error.strerror}.")
