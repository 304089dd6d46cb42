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
- *It comes up while the transaction begins or ends*, and nobody can write any more. On the main thread another one
  begins and ends it (shield.py); what is interrupted in its block is rolled back when the block is left.
- *An error of SQLite ends the transaction by itself* (a full disk, ON CONFLICT ROLLBACK). It is not whole then either.
- *A fork takes it along*: two processes would write with one lock. In the child it is neither used nor ended.
- *The thread waits for itself*: a write that does not join, on the thread that holds the transaction open, is
  refused at once, also through another client of the file.
- *It is left open*: the others get Busy after ten seconds (writer.py), here and in other processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

import apsw

from ...errors import InvalidArgument, StoreError
from ...interrupt import SHIELD
from ..contract import Verb
from ..sql.rows import Mark
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
    apsw.SQLITE_CREATE_VTABLE,
    apsw.SQLITE_DROP_VTABLE,
    # A temporary one would be taken for Duly's own of that name.
    apsw.SQLITE_CREATE_TEMP_TABLE,
    apsw.SQLITE_CREATE_TEMP_VIEW,
    apsw.SQLITE_CREATE_TEMP_INDEX,
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
    if not one.lower().startswith("duly_") and not two.lower().startswith("duly_"):
        return ""
    if what == apsw.SQLITE_ANALYZE:
        return "Duly's statements are planned without statistics: analyze your own tables, by name"
    return "tables called duly_… are Duly's: publish, ack, move and cancel change them" if what in _WRITES else ""


class Hold:
    """One hold of the writer's transaction, from the asking to the end; both may be on threads of their own.

    asked ──▶ held ──▶ left (it is being committed, or undone) ──▶ over
      └─ given up: the writer ends it as soon as it has begun
    """

    connection: apsw.Connection
    tx: SqliteTransaction
    authorizer: Authorizer

    def __init__(self) -> None:
        # Called if it is rolled back, the last first.
        self.undone: list[Callable[[], None]] = []
        # Set by the writer: whether it is committed, and when the others can write again.
        self.kept = False
        self.over = threading.Event()
        self._stage = "asked"
        self._lock = threading.Lock()

    def take(self) -> bool:
        """It has begun. False: nobody waits for it any more."""
        with self._lock:
            if self._stage == "asked":
                self._stage = "held"
            return self._stage == "held"

    def leave(self) -> str:
        """It is to end. Answers how it stood: what was held is the caller's to end, what was left is somebody's."""
        with self._lock:
            stage, self._stage = self._stage, {"asked": "given up", "held": "left"}.get(self._stage, self._stage)
            return stage


class Holder(Protocol):
    """The writer, as far as an open transaction needs it."""

    def hold(self, hold: Hold, patience_s: float) -> None:
        """Begins. Raises Busy when others write for too long."""
        ...

    def now_ms(self) -> int:
        """The store's time."""
        ...

    def keep(self, hold: Hold) -> None:
        """Commits, lets the others write, wakes those who wait. Raises when nothing was stored."""
        ...

    def undo(self, hold: Hold) -> None:
        """Rolls back and lets the others write; if it is ending, waits for that."""
        ...


# (thread, file) of every transaction that is open.
_held: set[tuple[int, str]] = set()
os.register_at_fork(after_in_child=_held.clear)


def held_here(path: str) -> bool:
    """Whether this thread holds a transaction on that file open."""
    return (threading.get_ident(), path) in _held


class Transaction:
    """The application's transaction. Made by `Client.transaction()`; commits when its block ends."""

    def __init__(self, holder: Holder, path: str, patience_s: float) -> None:
        self._holder = holder
        self._path = path
        self._patience_s = patience_s
        self._hold = Hold()
        self._thread = 0
        self._process = 0
        self._state = "new"
        self._whole = True

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
        return self._guarded(lambda: self._hold.connection.execute(sql, values, prepare_flags=_OWN).fetchall())

    def executemany(self, sql: str, rows: Iterable[Values]) -> None:
        """Runs a statement of the application once for each of some rows of values."""
        self._guarded(lambda: self._hold.connection.executemany(sql, rows, prepare_flags=_OWN).fetchall())

    def _guarded(self, run: Callable[[], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        self._check()
        authorizer = self._hold.authorizer
        authorizer.refused = ""
        try:
            authorizer.strict = True
            with SHIELD:
                return run()
        except apsw.AuthError as error:
            raise InvalidArgument(f"This is refused inside a transaction: {authorizer.refused}.") from error
        except (apsw.FullError, apsw.IOError, apsw.CorruptError) as error:
            raise translate(error) from error
        finally:
            authorizer.strict = False
            # Some errors end the transaction, and SQLite does not say so.
            self._whole = self._whole and self._hold.connection.in_transaction

    # Duly's commands

    def run(self, verb: Verb[Any, Any], command: Any) -> Any:
        """Runs a command as part of it. One that raises has changed nothing."""
        self._check()
        tx = self._hold.tx
        tx.now_ms = self._holder.now_ms()
        self._whole = False
        try:
            mark = tx.mark()
            try:
                (answer,) = verb(tx, [command])
            except BaseException:
                self._take_back(mark)
                raise
            tx.release()
            self._whole = True
        except Exception as error:
            raise translate(error) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _take_back(self, mark: Mark) -> None:
        try:
            self._hold.tx.back_to(mark)
        except apsw.Error:
            # SQLite has ended the whole transaction: there is nothing to go back to.
            return
        self._whole = True

    def when_undone(self, act: Callable[[], None]) -> None:
        """Called if this is rolled back."""
        self._hold.undone.append(act)

    # Beginning and ending

    def __enter__(self) -> Transaction:
        if self._state != "new":
            raise InvalidArgument("A transaction is used once. Ask for another: q.transaction().")
        if held_here(self._path):
            raise InvalidArgument("This thread has a transaction on this store open: they do not nest.")
        self._process, self._thread = os.getpid(), threading.get_ident()
        try:
            with SHIELD:
                self._holder.hold(self._hold, self._patience_s)
                _held.add((self._thread, self._path))
                self._state = "open"
            return self
        except BaseException:
            # Also of a signal, wherever it came up: nobody could write any more.
            self._end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with SHIELD:
                self._leave(commits=kind is None)
        except BaseException:
            # A signal's exception may have come up before the end.
            if self._is_here():
                self._end()
            raise

    def _leave(self, *, commits: bool) -> None:
        if self._state != "open" or (not commits and self._process != os.getpid()):
            return
        self._check_place()
        try:
            if commits:
                self._commit()
        finally:
            self._end()

    def rollback(self) -> None:
        """Undoes everything, Duly's commands and the application's statements. The block can only be left then."""
        with SHIELD:
            self._check(whole=False)
            self._end()

    def _commit(self) -> None:
        if not self._whole:
            raise StoreError("The transaction was broken off inside the block: it is rolled back, nothing was stored.")
        self._holder.keep(self._hold)

    def _end(self) -> None:
        """What is not committed by now never is. Twice does nothing."""
        self._holder.undo(self._hold)
        _held.discard((self._thread, self._path))
        self._state = "committed" if self._hold.kept else "rolled back"

    def _check(self, *, whole: bool = True) -> None:
        if self._state == "new":
            raise InvalidArgument("The transaction is not open: use it as `with q.transaction() as tx:`.")
        if self._state != "open":
            raise InvalidArgument(f"The transaction is over: it was {self._state}. Open another.")
        self._check_place()
        if self._hold.authorizer.strict:
            raise InvalidArgument(
                "The rows for executemany come from the transaction itself. Make a list of them first."
            )
        if whole and not self._whole:
            raise StoreError("The transaction was broken off: leave the block, it is rolled back.")

    def _is_here(self) -> bool:
        return (self._process, self._thread) == (os.getpid(), threading.get_ident())

    def _check_place(self) -> None:
        if self._process != os.getpid():
            raise InvalidArgument("A transaction belongs to the process that opened it, not to its fork.")
        if self._thread != threading.get_ident():
            raise InvalidArgument("A transaction belongs to the thread that opened it.")


def joined(tx: object, path: str) -> Transaction:
    """A transaction that a command can join on this store. Raises InvalidArgument with the reason why not."""
    if isinstance(tx, Transaction):
        if tx.path != path:
            raise InvalidArgument("The transaction is on another store. Open one with this client's transaction().")
        return tx
    if any(kind.__module__ == "sqlite3" for kind in type(tx).__mro__):
        raise InvalidArgument(
            "A sqlite3.Connection cannot share its transaction: it belongs to another copy of the SQLite library, and "
            "two copies on one file in one process break each other's locks and corrupt it. Keep your tables in "
            "Duly's file and write them with tx.execute(…) inside `with q.transaction() as tx:`."
        )
    raise InvalidArgument(f"tx must be what q.transaction() gives, not {type(tx).__name__}.")
