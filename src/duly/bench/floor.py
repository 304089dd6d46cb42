"""What the device can do at all, and what of it was used."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from duly.clock import monotonic_s

_IO = Path("/proc/self/io")


class Floor:
    """A bare loop that writes bytes to a file of its own and syncs them, a batch at a time."""

    def __init__(self, folder: Path, data: bytes) -> None:
        self._data = data
        self._file = os.open(folder / "floor", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.seconds = 0.0
        self.bytes = 0

    def run(self, batches: int) -> None:
        """Writes and syncs so many batches, and adds up how long it took."""
        began = monotonic_s()
        for _ in range(batches):
            os.write(self._file, self._data)
            os.fdatasync(self._file)
        self.seconds += monotonic_s() - began
        self.bytes += batches * len(self._data)

    def __enter__(self) -> Floor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


class Logical:
    """The bytes of what Duly stores, before the store adds anything: counted where statements get their values."""

    def __init__(self) -> None:
        # By its name: a benchmark looks behind the scenes, which no other code may.
        self._kind: Any = import_module("duly.store.sqlite.transaction").SqliteTransaction
        self._rows = self._kind._rows
        self.bytes = 0

    def __enter__(self) -> Logical:
        def counted(tx: Any, query: str, **values: Any) -> Any:
            self.bytes += sum([len(value) for value in values.values() if type(value) is bytes])
            return self._rows(tx, query, **values)

        self._kind._rows = counted
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kind._rows = self._rows


def device_bytes() -> int:
    """What this process has caused to be written to devices so far; 0 where the system does not tell."""
    if not _IO.exists():
        return 0
    fields = dict(line.split(": ") for line in _IO.read_text().splitlines())
    return int(fields["write_bytes"])
