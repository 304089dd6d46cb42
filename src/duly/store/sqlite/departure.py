"""A store's file that is left: read from front to back while nobody can write, and told where the store went.

    nobody has it open? ─▶ marked ─▶ held still: rows, in the order of their keys ─▶ paused, "moved to …"
          └─ Busy            └─ who opens it is refused, until the move is done or given up

The mark is the file's own: a move that was killed is gone on with only while the file is as it was, and nobody can
have changed it, because nobody could open it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from ...clock import SystemClock
from ...engine.pause import MOVED
from ...errors import Busy, IncompatibleStore, NotFound, StoreError
from ..contract import SecretRow
from ..sql.moving import NUMBERED, Key, Mark, Row, Summit, Table, decode_mark, encode_mark
from .presence import Presence
from .queries import migrations, queries
from .store import MOVING, SCHEMA
from .store_clock import StoreClock

_PUT = "INSERT INTO duly_meta (key, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_MOVE = "moved"


class Departure:
    """The file of a store that moves. Nobody else has it open, or can open it, until this is closed."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        if not os.path.exists(self.path):
            raise NotFound(f"There is no store at {path!r}.")
        self._presence = Presence(self.path, alone=True)
        try:
            with _told(self.path):
                self._connection = self._open()
                self._meta = self._read_meta()
        except BaseException:
            self._presence.close()
            raise

    def close(self) -> None:
        """Lets everyone in again."""
        self._connection.close()
        self._presence.close()

    def _open(self) -> apsw.Connection:
        connection = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(1000)
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            if "duly_meta" not in tables:
                raise IncompatibleStore(f"{self.path} is an SQLite file, but not a Duly store. Give another path.")
            connection.execute("PRAGMA synchronous = FULL")
            # The application may have the file open beside Duly, and writes to its own tables.
            connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            connection.close()
            raise
        self._others = sorted(name for name in tables if not name.startswith(("duly_", "sqlite_")))
        return connection

    def _read_meta(self) -> dict[str, str]:
        meta = {str(key): str(value) for key, value in self._connection.execute("SELECT key, value FROM duly_meta")}
        version = int(meta.get("schema", 0))
        if version > SCHEMA:
            raise IncompatibleStore(f"{self.path} has schema {version}; this Duly knows {SCHEMA}. Use a newer Duly.")
        if version < SCHEMA:
            self._upgrade(version)
        return meta

    def _upgrade(self, version: int) -> None:
        """What opening it would do, too."""
        for number, script in migrations():
            if number > version:
                self._connection.execute(script)
        self._connection.execute(_PUT, ("schema", str(SCHEMA)))
        self._commit()

    def secrets(self) -> list[SecretRow]:
        """What is wrapped under the master key."""
        return [SecretRow(*row) for row in self._connection.execute(queries()["every_secret"])]

    # What it says of itself

    @property
    def incarnation(self) -> str:
        return self._meta["incarnation"]

    @property
    def paused(self) -> str | None:
        """Why it was paused before it moved."""
        return self._meta.get("paused")

    @property
    def left_behind(self) -> list[str]:
        """The application's own tables."""
        return self._others

    @property
    def mark(self) -> Mark | None:
        """The move that is under way."""
        return decode_mark(self._meta[MOVING]) if MOVING in self._meta else None

    @property
    def moved(self) -> Mark | None:
        """The move that is done, as long as the file was not put to use again."""
        gone = self._meta.get("paused", "").startswith(MOVED)
        return decode_mark(self._meta[_MOVE]) if gone and _MOVE in self._meta else None

    def now_ms(self) -> int:
        """The store's time."""
        clock = StoreClock(SystemClock().sources)
        row = self._connection.execute(queries()["clock_mark"]).fetchone()
        clock.open(None if row is None else str(row[0]))
        return clock.now_ms()

    # Its rows

    def measure(self, table: Table) -> int:
        """About how many bytes a table's rows are when they travel. Reads no more than where they lie."""
        with _told(self.path):
            ((rows, long),) = self._numbers(f"SELECT count(*), coalesce(sum({table.long}), 0) FROM {table.origin}")
        fixed = {"smallint": 6, "text": 4, "bytes": 4}
        return rows * (2 + sum(fixed.get(column.kind, 12) for column in table.columns)) + long

    def rows(self, table: Table, after: Key | None = None) -> Iterator[tuple[Key, Row]]:
        """A table's rows behind a key, each with its own; as they are needed."""
        key = ", ".join(name if "." in name else f'"{name}"' for name in table.key)
        columns = ", ".join(column.select for column in table.columns)
        behind = "" if after is None else f"WHERE ({key}) > ({', '.join('?' * len(table.key))})"
        width = len(table.key)
        with _told(self.path):
            asked = f"SELECT {key}, {columns} FROM {table.origin} {behind} ORDER BY {key}"
            for row in self._connection.execute(asked, after or ()):
                yield row[:width], row[width:]

    def summit(self) -> Summit:
        """The highest ids that were ever given."""
        with _told(self.path):
            given = dict(self._numbers("SELECT name, seq FROM sqlite_sequence"))
            ((event,),) = self._numbers("SELECT coalesce(max(id), 0) FROM duly_event")
        ids = {name: given.get(f"duly_{name}", 0) for name in NUMBERED} | {"event": event}
        return Summit(ids, given.get("duly_lease", 0), max(given.get("duly_run", 0), given.get("duly_id_run", 0)))

    def messages(self) -> int:
        """How many messages lie in its logs."""
        with _told(self.path):
            ((count,),) = self._numbers("SELECT coalesce(sum(count), 0) FROM duly_block")
        return int(count)

    def _numbers(self, asked: str) -> list[Any]:
        return self._connection.execute(asked).fetchall()

    # What it is told

    def set_out(self, mark: Mark) -> None:
        """Nobody opens it from here on: the move is under way."""
        self._put({MOVING: encode_mark(mark)})

    def give_up(self) -> None:
        """It stays where it is, and is opened again."""
        self._put({MOVING: None})

    def leave(self, mark: Mark) -> None:
        """The move is done: what stays behind is paused, and says where the store went."""
        where = encode_mark(mark)
        self._put({MOVING: None, _MOVE: where, "paused": f"{MOVED}{mark.destination}"})

    def _put(self, values: dict[str, str | None]) -> None:
        with _told(self.path):
            for key, value in values.items():
                if value is None:
                    self._connection.execute("DELETE FROM duly_meta WHERE key = ?", (key,))
                else:
                    self._connection.execute(_PUT, (key, value))
            self._commit()
            self._meta = self._read_meta()

    def _commit(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN IMMEDIATE")


@contextmanager
def _told(path: str) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except (apsw.BusyError, apsw.LockedError) as error:
        raise Busy(f"{path} is being written to by another program. Close it, then try again.") from error
    except apsw.NotADBError as error:
        raise IncompatibleStore(f"{path} is not an SQLite file. Give another path.") from error
    except apsw.Error as error:
        raise StoreError(f"{path} cannot be read: {error}. Run `duly doctor`.") from error
