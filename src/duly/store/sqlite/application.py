"""The application's own transaction: its tables and Duly's messages, in one file, in one commit.

    with q.transaction() as tx:
        tx.execute("INSERT INTO orders …")
        q.publish("emails", b"…", tx=tx)

It is the writer's transaction, on the writer's connection, held open by the application's thread: whoever else
writes waits. Commands that join it run at once and are answered at once; what they did counts with the commit.

    open ──commit──▶ kept     (waiters are woken, events go out)
      ├───rollback──▶ undone  (an exception left the block, `tx.rollback()`, or the device failed)
      └───crash─────▶ undone

What must not happen, and what prevents it:

- *The application ends or nests the transaction itself*, and Duly's half is committed without the other. An
  authorizer refuses BEGIN, COMMIT, ROLLBACK, SAVEPOINT, ATTACH, settings, and writing to Duly's tables, in the
  application's statements. (They are prepared apart from Duly's: SQLite asks it only when it prepares.)
- *A signal's exception comes up in the middle of a command*, is caught inside the block, and half a command is
  committed. A command runs under a savepoint; until it has ended well or been undone the transaction is not whole,
  and one that is not whole can only be rolled back.
- *The thread waits for itself*: a write that does not join, on the thread that holds the transaction open, is
  refused at once, also through another client of the file.
- *It is left open*: the others get Busy after ten seconds (writer.py), here and in other processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

import apsw

from ...errors import InvalidArgument, StoreError
from ...interrupt import SHIELD
from ..contract import Verb
from .faults import translate
from .transaction import SqliteTransaction

Values = Sequence[Any] | Mapping[str, Any]

# Part of the key under which apsw keeps prepared statements: the application never gets one of Duly's.
_OWN = apsw.SQLITE_PREPARE_PERSISTENT

_WRITES = {
    apsw.SQLITE_INSERT,
    apsw.SQLITE_UPDATE,
    apsw.SQLITE_DELETE,
    apsw.SQLITE_DROP_TABLE,
    apsw.SQLITE_ALTER_TABLE,
    apsw.SQLITE_CREATE_TABLE,
    apsw.SQLITE_CREATE_INDEX,
    apsw.SQLITE_DROP_INDEX,
    apsw.SQLITE_CREATE_TRIGGER,
    apsw.SQLITE_CREATE_TEMP_TRIGGER,
    apsw.SQLITE_DROP_TRIGGER,
    apsw.SQLITE_CREATE_VIEW,
    apsw.SQLITE_DROP_VIEW,
}
_ENDS = {apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT}
_OTHER_FILES = {apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH}
# What a PRAGMA may ask; with a value it would be a setting.
_QUESTIONS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list", "user_version"}


class Authorizer:
    """Asked by SQLite about everything that a statement does, when it is prepared."""

    def __init__(self) -> None:
        # Whether the application's statements are being prepared: Duly's own may do anything.
        self.strict = False
        self.refused = ""

    def __call__(self, what: int, one: str | None, two: str | None, *_: str | None) -> int:
        if self.strict and (why := _objection(what, one or "", two or "")):
            self.refused = why
            return apsw.SQLITE_DENY
        return apsw.SQLITE_OK


def _objection(what: int, one: str, two: str) -> str:
    """Why the application may not do something; empty: it may."""
    if what in _ENDS:
        return "the transaction begins and ends with the block: leave it, raise inside it, or call tx.rollback()"
    if what in _OTHER_FILES:
        return "other files are not attached to Duly's: a commit over several files can be torn by a crash"
    if what == apsw.SQLITE_PRAGMA and (one.lower() not in _QUESTIONS or (two and one.lower() == "user_version")):
        return f"the settings of the file are Duly's: PRAGMA {one}"
    if what in _WRITES and (one.lower().startswith("duly_") or two.lower().startswith("duly_")):
        return "tables called duly_… are Duly's: publish, ack, move and cancel change them"
    return ""


class Holder(Protocol):
    """The writer, as far as an open transaction needs it."""

    def hold(self, patience_s: float) -> tuple[apsw.Connection, SqliteTransaction, Authorizer]:
        """Begins. Raises Busy when others write for too long."""
        ...

    def keep(self, tx: SqliteTransaction) -> None:
        """Commits, lets the others write, wakes those who wait. Raises when nothing was stored."""
        ...

    def undo(self) -> None:
        """Rolls back and lets the others write; nothing, if this thread does not hold the pen."""
        ...


_here = threading.local()


def held_here(path: str) -> bool:
    """Whether this thread holds a transaction on that file open."""
    return path in getattr(_here, "paths", ())


class Transaction:
    """The application's transaction. Made by `Client.transaction()`; commits when its block ends."""

    def __init__(self, holder: Holder, path: str, patience_s: float) -> None:
        self._holder = holder
        self._path = path
        self._patience_s = patience_s
        self._thread: int | None = None
        self._state = "new"
        self._whole = True
        self._undo: list[Callable[[], None]] = []

    @property
    def path(self) -> str:
        """The file that it is on."""
        return self._path

    # The application's statements

    def execute(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Runs the application's own SQL (one statement, or several) and returns the rows that it gives.

        Values go in place of `?`, or of `:name`. SQLite's errors are apsw's, as apsw.ConstraintError. Raises
        InvalidArgument for what would break Duly's half: see the reason it gives.
        """
        return self._guarded(lambda: self._connection.execute(sql, values, prepare_flags=_OWN).fetchall())

    def executemany(self, sql: str, rows: Iterable[Values]) -> None:
        """Runs a statement of the application once for each of some rows of values."""
        self._guarded(lambda: self._connection.executemany(sql, rows, prepare_flags=_OWN).fetchall())

    def _guarded(self, run: Callable[[], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        self._check()
        self._authorizer.strict, self._authorizer.refused = True, ""
        try:
            with SHIELD:
                return run()
        except apsw.AuthError as error:
            raise InvalidArgument(f"This is refused inside a transaction: {self._authorizer.refused}.") from error
        except (apsw.FullError, apsw.IOError, apsw.CorruptError) as error:
            raise translate(error) from error
        finally:
            self._authorizer.strict = False
            # Some errors end the transaction, and SQLite does not say so.
            self._whole = self._whole and self._connection.in_transaction

    # Duly's commands

    def run(self, verb: Verb[Any, Any], command: Any) -> Any:
        """Runs a command as part of it. One that raises has changed nothing."""
        self._check()
        self._whole = False
        mark = self._tx.mark()
        try:
            (answer,) = verb(self._tx, [command])
        except BaseException as error:
            self._tx.back_to(mark)
            self._whole = True
            if isinstance(error, Exception):
                raise translate(error) from error
            raise
        self._tx.release()
        self._whole = True
        if isinstance(answer, Exception):
            raise answer
        return answer

    def when_undone(self, act: Callable[[], None]) -> None:
        """Called if this is rolled back."""
        self._undo.append(act)

    # Beginning and ending

    def __enter__(self) -> Transaction:
        if self._state != "new":
            raise InvalidArgument("A transaction is used once. Ask for another: q.transaction().")
        if held_here(self._path):
            raise InvalidArgument("This thread has a transaction on this store open: they do not nest.")
        with SHIELD:
            try:
                self._connection, self._tx, self._authorizer = self._holder.hold(self._patience_s)
            except BaseException:
                # Also of a signal, wherever it came up: nobody could write any more.
                self._holder.undo()
                raise
            self._state = "open"
            self._thread = threading.get_ident()
            _here.paths = {*getattr(_here, "paths", ()), self._path}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state != "open":
            return
        with SHIELD:
            if kind is not None:
                self.rollback()
            elif not self._whole:
                self.rollback()
                raise StoreError(
                    "The transaction was broken off inside the block: it is rolled back, nothing was stored."
                )
            else:
                self._commit()

    def rollback(self) -> None:
        """Undoes everything, Duly's commands and the application's statements. The block can only be left then."""
        with SHIELD:
            self._check(whole=False)
            self._end("rolled back")
            try:
                self._holder.undo()
            finally:
                self._tell_undone()

    def _commit(self) -> None:
        self._end("committed")
        try:
            self._holder.keep(self._tx)
        except BaseException:
            self._tell_undone()
            raise

    def _end(self, state: str) -> None:
        self._state = state
        _here.paths = _here.paths - {self._path}

    def _tell_undone(self) -> None:
        for act in reversed(self._undo):
            act()

    def _check(self, *, whole: bool = True) -> None:
        if self._state == "new":
            raise InvalidArgument("The transaction is not open: use it as `with q.transaction() as tx:`.")
        if self._state != "open":
            raise InvalidArgument(f"The transaction is over: it was {self._state}. Open another.")
        if self._thread != threading.get_ident():
            raise InvalidArgument("A transaction belongs to the thread that opened it.")
        if whole and not self._whole:
            raise StoreError("The transaction was broken off: leave the block, it is rolled back.")


def joined(tx: object, path: str) -> Transaction:
    """A transaction that a command can join on this store. Raises InvalidArgument with the reason why not."""
    if isinstance(tx, Transaction):
        if tx.path != path:
            raise InvalidArgument("The transaction is on another store. Open one with this client's transaction().")
        return tx
    if type(tx).__module__ == "sqlite3":
        raise InvalidArgument(
            "A sqlite3.Connection cannot share its transaction: it belongs to another copy of the SQLite library, and "
            "two copies on one file in one process break each other's locks and corrupt it. Keep your tables in "
            "Duly's file and write them with tx.execute(…) inside `with q.transaction() as tx:`."
        )
    raise InvalidArgument(f"tx must be what q.transaction() gives, not {type(tx).__name__}.")
