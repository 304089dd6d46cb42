"""The lake's files, wherever it lies: a folder here, or what delta-rs reads (s3://, gs://, abfss://, hdfs://).

All goes through delta-rs's own storage, so that one set of options opens it for the table and for its files. Paths are
relative to the root.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler

from ..errors import InvalidArgument


class File(msgspec.Struct, frozen=True):
    """A file as it lies there."""

    path: str
    bytes: int
    changed_at_ms: int


class Files:
    """The files under one root."""

    def __init__(self, root: str, storage: Mapping[str, str]) -> None:
        self.root = absolute(root)
        self.local = _local(self.root)
        self._storage = dict(storage)

    @cached_property
    def _handler(self) -> DeltaStorageHandler:
        return DeltaStorageHandler(self.root, self._storage)

    @cached_property
    def _system(self) -> pafs.PyFileSystem:
        return pafs.PyFileSystem(self._handler)

    def make(self) -> None:
        """Makes the folder; elsewhere there are none."""
        if self.local is not None:
            os.makedirs(self.local, exist_ok=True)

    def under(self, folder: str) -> list[File]:
        """Every file under a folder, however deep; none when there is no such folder."""
        found = self._system.get_file_info(pafs.FileSelector(folder, allow_not_found=True, recursive=True))
        return [
            File(one.path, one.size, (one.mtime_ns or 0) // 1_000_000)
            for one in found
            if one.type == pafs.FileType.File
        ]

    def footer(self, path: str) -> pq.FileMetaData:
        """What a Parquet file says of itself."""
        with self._system.open_input_file(path) as source:
            return pq.read_metadata(source)

    def move(self, path: str, target: str) -> None:
        """Gives a file another path: a rename here, a copy where the storage knows no other way."""
        if self.local is None:
            self._system.move(path, target)
            return
        to = os.path.join(self.local, target)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        os.rename(os.path.join(self.local, path), to)

    def content(self, path: str) -> bytes | None:
        """A small file as it was put; None: there is none."""
        if self._system.get_file_info(path).type != pafs.FileType.File:
            return None
        with self._system.open_input_file(path) as source:
            content: bytes = source.read()
            return content

    def put(self, path: str, content: bytes) -> None:
        """Writes a small file."""
        folder = path.rpartition("/")[0]
        self._handler.create_dir(folder)
        # Through Arrow's wrapper it would be given Arrow's buffers, which it refuses (deltalake 1.6).
        target: Any = self._handler._handler.open_output_stream(path)
        target.write(content)
        target.close()

    def drop(self, path: str) -> None:
        """Deletes a file, or a folder with all that is in it. What is not there is no error."""
        info = self._system.get_file_info(path)
        if info.type == pafs.FileType.File:
            self._system.delete_file(path)
        elif self.local is not None and info.type == pafs.FileType.Directory:
            # Of a folder here delta-rs deletes the files alone.
            shutil.rmtree(os.path.join(self.local, path))
        elif info.type == pafs.FileType.Directory:
            self._system.delete_dir(path)

    def secure(self, paths: Iterable[str]) -> None:
        """Syncs files of a local folder, and the folders down to them. Elsewhere what is written is on stable storage.

        Neither Spark nor delta-rs does: a power loss would leave an empty file of what the log has dropped since.
        """
        if self.local is None:
            return
        folders: set[str] = set()
        for path in paths:
            _sync(os.path.join(self.local, path))
            while path:
                path = path.rpartition("/")[0]
                folders.add(path)
        for folder in folders:
            _sync(os.path.join(self.local, folder))


def absolute(place: str) -> str:
    """A path of this machine's made absolute; an address as it is."""
    if not place:
        raise InvalidArgument("A lake is a folder, or an address like s3a://bucket/lake.")
    return place.rstrip("/") if "://" in place else os.path.abspath(place)


def _local(root: str) -> str | None:
    if "://" not in root:
        return root
    parts = urlsplit(root)
    return unquote(parts.path) if parts.scheme == "file" else None


def _sync(path: str) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
