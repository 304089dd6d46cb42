"""A schema that a store moves into: filled batch by batch, each with the mark of how far it came; opened last.

    empty? ─▶ marked ─▶ batch, batch, batch … ─▶ locked: compared with the source ─▶ its ids, its incarnation; unmarked
      └─ refused  │                                       └─ differs: nothing is switched
                  └─ who connects is refused, until all is there

A batch and its mark are one transaction: whenever the process, the server or the line between them dies, what is there
and what is marked go together. These commits do not wait for the disk; the last one does, for all of them.

A session that was killed may commit once more after it is dead. So whoever goes on waits for its lock first.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from msgspec.structs import replace

from ...errors import Busy, Conflict, IncompatibleStore, StoreError, Unavailable
from ...member import SEEN_MS_MAX
from ..sql.moving import (
    COPY_HEADER,
    COPY_TRAILER,
    NUMBERED,
    Digest,
    Mark,
    Summit,
    Table,
    decode_mark,
    encode_mark,
)
from .address import Address
from .faults import translate
from .migrate import LOCK, MOVING, SCHEMA, fits, prepare, read_meta

_MOVED = "moved"
# What says nothing of a store, is made anew, or is whoever serves it just now.
_NOT_COUNTED = ("meta", "turn", "member")
_PUT = "INSERT INTO meta (key, value) VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


class Arrival:
    """A store's schema to be. One process at a time has it."""

    def __init__(self, url: str) -> None:
        self._address = Address(url)
        self.shown = self._address.shown
        self._schema = self._address.schema
        self._warnings: list[str] = []
        with self._told():
            self._connection = self._address.connect()
            self._connection.add_notice_handler(lambda notice: self._warnings.append(notice.message_primary or ""))
            # Others are kept out, so that nobody waits for this one, however long it takes.
            self._connection.execute(
                "SET idle_in_transaction_session_timeout = 0; SET statement_timeout = 0; SET synchronous_commit = off"
            )
            self._be_alone()

    def _be_alone(self) -> None:
        try:
            self._connection.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", (LOCK & 0xFFFF, self._schema))
        except psycopg.errors.LockNotAvailable as error:
            raise Busy(f"Another `duly migrate` is at work on {self.shown}. Wait for it.") from error

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Whole or nothing."""
        with self._told(), self._connection.transaction():
            yield

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except psycopg.OperationalError as error:
            if error.sqlstate == "53100":
                raise translate(error) from error
            said = str(error).strip().split("\n")[0].rstrip(".")
            raise Unavailable(
                f"PostgreSQL cannot be reached ({said}). What was copied stays; run it again, and it goes on."
            ) from error
        except psycopg.Error as error:
            raise StoreError(
                f"PostgreSQL could not do it: {str(error).strip()}. What was copied stays; nothing was switched."
            ) from error

    # What is there

    def meta(self) -> dict[str, str]:
        """What the schema says of itself."""
        with self._told():
            return read_meta(self._connection, self._schema)

    @property
    def mark(self) -> Mark | None:
        """The move that is under way here."""
        found = self.meta().get(MOVING)
        return None if found is None else decode_mark(found)

    def has_arrived(self, move: str) -> bool:
        """Whether that move is done here."""
        found = self.meta().get(_MOVED)
        return found is not None and decode_mark(found).move == move

    def now_ms(self) -> int:
        """PostgreSQL's time."""
        return int(self._value("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::BIGINT"))

    def must_be_store(self) -> None:
        """Refuses a place where there is none."""
        meta = self.meta()
        if not meta:
            raise IncompatibleStore(f"There is no store at {self.shown}.")
        if not fits(meta):
            raise IncompatibleStore(
                f"The store at {self.shown} has schema {meta.get('schema')}; this Duly knows {SCHEMA}."
            )

    def _value(self, asked: str, given: Sequence[Any] = ()) -> Any:
        with self._told():
            row = self._connection.execute(asked.encode(), given).fetchone()
        assert row is not None
        return row[0]

    # Filling it

    def begin(self, mark: Mark) -> Mark:
        """Makes the schema, if need be, and takes it for a move, inside a transaction; answers how far that has come.

        Raises Conflict where there is anything else.
        """
        prepare(self._connection, self._schema, arriving=True)
        there = self.mark
        if there is not None and there.incarnation != mark.incarnation:
            raise Conflict(
                f"Another store is on its way into {self.shown}, from {there.source}. Finish that, or give it up "
                "(`duly migrate --give-up`); or name another schema: ?schema=NAME."
            )
        if there is not None and there.move == mark.move:
            return there
        if there is None:
            self._must_be_empty()
        else:
            # Half of a move that was given up, or whose file was put back from a backup since.
            self._clear()
        self._put(MOVING, encode_mark(mark))
        return mark

    def _must_be_empty(self) -> None:
        for table in self._tables():
            if self._value(f'SELECT EXISTS (SELECT 1 FROM "{table}")'):
                raise Conflict(
                    f"{self.shown} holds a store already, which is not empty (table {table}). Nothing was changed. "
                    "Name another schema: ?schema=NAME."
                )
        served = "SELECT EXISTS (SELECT 1 FROM member WHERE seen_at_ms > %s)"
        if self._value(served, (self.now_ms() - SEEN_MS_MAX,)):
            raise Busy(f"A broker serves {self.shown}. Stop it, then try again.")

    def _tables(self) -> list[str]:
        asked = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r' ORDER BY 1"
        found = self._connection.execute(asked, (self._schema,)).fetchall()
        return [name for (name,) in found if name not in _NOT_COUNTED]

    def _clear(self) -> None:
        for table in self._tables():
            self._connection.execute(f'TRUNCATE "{table}"'.encode())

    def put(self, table: Table, rows: Sequence[bytes], before: Mark, mark: Mark) -> None:
        """Stores a batch, and how far it came. Raises StoreError if somebody else was at it meanwhile."""
        with self.transaction():
            with self._connection.cursor().copy(
                f'COPY "{table.table}" ({table.names}) FROM STDIN (FORMAT binary)'.encode()
            ) as copy:
                copy.write(COPY_HEADER)
                for row in rows:
                    copy.write(row)
                copy.write(COPY_TRAILER)
            self._move_mark(before, mark)

    def _move_mark(self, before: Mark, mark: Mark) -> None:
        changed = self._connection.execute(
            "UPDATE meta SET value = %s WHERE key = %s AND value = %s",
            (encode_mark(mark), MOVING, encode_mark(before)),
        )
        if changed.rowcount != 1:
            raise StoreError(f"Somebody else has changed {self.shown} meanwhile. Nothing more was copied.")

    # Opening it

    def hold_still(self) -> None:
        """Inside a transaction: nobody writes here before it ends."""
        names = ", ".join(f'"{table}"' for table in (*self._tables(), *_NOT_COUNTED))
        self._connection.execute(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE".encode())

    def digest(self, name: str, table: Table, seen: Callable[[int], None]) -> Digest:
        """Counts and sums up the rows of a table, as they would travel."""
        digest = Digest()
        asked = f'COPY (SELECT {table.names} FROM "{name}") TO STDOUT (FORMAT binary)'
        with self._told(), self._connection.cursor().copy(asked.encode()) as copy:
            # A message a row; the header comes with the first of them, and the trailer alone.
            for at, message in enumerate(copy):
                row = bytes(message)[len(COPY_HEADER) if at == 0 else 0 :]
                if row and row != COPY_TRAILER:
                    digest.add(row)
                    seen(len(row))
        return digest

    def analyze(self) -> None:
        """Tells PostgreSQL's planner what there is now."""
        with self._told():
            names = ", ".join(f'"{name}"' for name in self._tables())
            self._connection.execute(f"ANALYZE {names}".encode())

    def open(self, mark: Mark, summit: Summit, paused: str | None) -> None:
        """Inside the transaction that compared: from its commit on it is the store. Ids go on above the highest."""
        run = self._connection.execute
        # It has to be on the disk, and with the standby, before the source is left.
        run("SET LOCAL synchronous_commit = on")
        for table in NUMBERED:
            run(
                "SELECT setval(pg_get_serial_sequence(%s, 'id'), greatest(%s, 1), %s > 0)",
                (f"{self._schema}.{table}", summit.ids[table], summit.ids[table]),
            )
        # Each value is the first of a thousand; those that were given out here before stay given.
        run(
            "SELECT setval('ids_by_thousand', greatest(%s::BIGINT, (SELECT last_value FROM ids_by_thousand)))",
            (summit.lease // 1000 * 1000,),
        )
        run("DELETE FROM turn")
        run("INSERT INTO turn (topic, n, session, next_id) SELECT id, 1, 0, %s FROM topic", (summit.run,))
        self._put("incarnation", mark.incarnation)
        if paused is not None:
            self._put("paused", paused)
        # Whoever remembers a definition looks again.
        self._put("definitions", str(int(self.meta().get("definitions", 0)) + 1))
        self._put(_MOVED, encode_mark(replace(mark, key=None)))
        run("DELETE FROM meta WHERE key = %s", (MOVING,))

    def must_be_replicated(self) -> None:
        """Refuses to go on when the last commit is only on this server, though a standby was to have it, too."""
        if any("replicat" in warning for warning in self._warnings):
            raise StoreError("The last commit was not confirmed by the standby. Run it again: the source is as it was.")

    def give_up(self, move: str) -> None:
        """Leaves the schema as an empty store, if that move had begun here. Raises Conflict if it is done."""
        if self.has_arrived(move):
            raise Conflict(f"The store has arrived at {self.shown} already. Run `duly migrate` again to end the move.")
        there = self.mark
        if there is None or there.move != move:
            return
        with self.transaction():
            self._clear()
            self._put("incarnation", secrets.token_hex(8))
            self._connection.execute("DELETE FROM meta WHERE key = %s", (MOVING,))

    def _put(self, key: str, value: str) -> None:
        self._connection.execute(_PUT, (key, value))
