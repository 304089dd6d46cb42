"""The SQLite store: a file (or `:memory:`), its connections, and surviving fork.

One writer (writer.py) changes the file; readers have connections of their own, each read a
snapshot. Several processes may have the file open. Before a fork every connection is closed, because
SQLite's locks do not survive into a child; parent and child open new ones when they next need them.

Power loss: WAL with synchronous=FULL. NORMAL loses acknowledged writes (DESIGN.md §5).
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import apsw

from ...clock import Clock, ClockReading, SystemClock, from_ms, monotonic_s
from ...engine.memory import BlockCache
from ...engine.secrets import Keyring
from ...errors import Busy, Closed, IncompatibleStore, InvalidArgument, StoreError, StoreFull, Timeout
from ...events import Event, Listener, tell
from ...health import Finding
from ...master import KEY_BYTES, FileMaster, MasterKeys
from ...member import Member
from ...tenant import Weights
from ..bell import SLOTS, Ticket
from ..contract import Backup, Progress, Verb
from ..sql.moving import decode_mark
from ..sql.stored import StoredBytes
from .application import Transaction, held_here, joined
from .backup import back_up
from .bell import FileBell
from .checkpoint import Checkpointer
from .doctor import FREE_ALERT, examine, room_on_device
from .faults import translate
from .fork_gate import ForkGate
from .gate import Gate
from .members import put_members, remove_members
from .presence import Presence
from .queries import migrations, queries
from .snapshot import Snapshot
from .store_clock import StoreClock, clock_findings
from .transaction import SqliteTransaction
from .writer import Writer

MEMORY = ":memory:"
SCHEMA = 9
# The key under which a store that is being moved elsewhere says so (departure.py).
MOVING = "moving"
# The WAL-reset corruption bug is fixed from here on.
SQLITE_MIN = (3, 51, 3)

_CLOCK_TENANT = "$clock"
_MEMBERS_TENANT = "$members"
_MEMBERS_S = 5.0
_READERS_POOLED = 8
_BUSY_MS = 10_000
_FORK_WAIT_S = 5.0
_HOLD_AGAIN_S = 0.02
# Whose turn it is in the writer's fair queue when a moment is to be held.
SNAPSHOT_TENANT = "$snapshot"
# SQLite writes no more than this at once.
_REWRITE_BYTES = 64 * 1024

C = TypeVar("C")
R = TypeVar("R")


class SqliteStore:
    """An open store. Thread-safe."""

    def __init__(self, path: str, *, clock: Clock, listener: Listener | None = None, master: Any = None) -> None:
        if tuple(map(int, apsw.sqlite_lib_version().split("."))) < SQLITE_MIN:
            raise IncompatibleStore(f"SQLite {apsw.sqlite_lib_version()} has the WAL-reset bug. Upgrade apsw.")
        self.path = path if path == MEMORY else os.path.abspath(path)
        # Under which a thread knows that it has a transaction open here; another client of the file has the same.
        self.key = f"{MEMORY}{id(self)}" if path == MEMORY else os.path.realpath(path)
        # The host's clock is kept in the file; one that a test moves, or made its own, is its affair.
        self._kept = StoreClock(clock.sources) if type(clock) is SystemClock else None
        self.clock: Clock = self._kept or clock
        self.forked = False
        # The fork came while connections were open: the child cannot use this file.
        self.fork_unsafe = False
        self._in_memory = path == MEMORY
        self._listener = listener
        self._told_full = False
        self._cache = BlockCache()
        self._stored = StoredBytes()
        self.weights = Weights()
        self.keyring = Keyring(master_of(path) if master is None else master)
        self._inside = ForkGate()
        self._closed = False
        self._pool: list[apsw.Connection] = []
        # Keeps the write-ahead log's index alive while the writer reconnects; see writer.py.
        self._anchor: apsw.Connection | None = None
        self._pool_lock = threading.Lock()
        self._snapshots: list[Snapshot] = []
        self._shared = self._open() if self._in_memory else None
        side = None if self._in_memory else self.path
        if not self._in_memory:
            self._create_file()
        # From here on nobody replaces the file: its incarnation is remembered for as long as it is open.
        self._presence = Presence(side)
        try:
            with self._inside:
                self.incarnation = self._prepare()
        except BaseException:
            self._presence.close()
            raise
        try:
            self._bell = FileBell(None if side is None else side + "-bell")
            self._gate = Gate(side)
        except OSError as error:
            raise StoreError(f"The files beside {self.path} cannot be opened: {error.strerror}.") from error
        self._checkpointer = Checkpointer()
        self._writer = Writer(
            self._connect_writer,
            clock=self.clock,
            incarnation=self.incarnation,
            cache=self._cache,
            stored=self._stored,
            keyring=self.keyring,
            weights=self.weights,
            bell=self._bell,
            gate=self._gate,
            inside=self._inside,
            checkpointer=None if self._in_memory else self._checkpointer,
            let_go=self._let_go,
            rewrite_log=self._rewrite_log,
            listener=listener,
        )
        clock.on_change(self._bell.ring_all_here)
        _open_stores.add(self)

    # Opening

    def _open(self, *, readonly: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(self.path, flags=flags, statementcachesize=200)
        connection.set_busy_timeout(_BUSY_MS)
        connection.execute("PRAGMA cache_size = -16384")
        # Duly's tables have none; the application's may, and expect them to hold.
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _connect_writer(self) -> apsw.Connection:
        if self._shared is not None:
            return self._shared
        if self._anchor is None:
            self._anchor = self._open(readonly=True)
            # Only a connection that has read is really attached to the write-ahead log.
            self._anchor.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        connection = self._open()
        connection.execute("PRAGMA synchronous = FULL")
        # A data key that was shredded must not lie on in its page. It costs no page more.
        connection.execute("PRAGMA secure_delete = FAST")
        connection.set_busy_timeout(0)
        # After a burst the WAL shrinks back to this.
        connection.execute("PRAGMA journal_size_limit = 16777216")
        self._checkpointer.watch(connection)
        return connection

    def _prepare(self) -> str:
        """Creates or upgrades the schema; returns the incarnation."""
        try:
            connection = self._shared or self._open()
            try:
                return self._migrate(connection)
            finally:
                if self._shared is None:
                    connection.close()
        except apsw.NotADBError as error:
            raise IncompatibleStore(f"{self.path} is not an SQLite file. Give another path.") from error
        except apsw.BusyError as error:
            raise Busy(f"{self.path} is locked by another process. Try again.") from error
        except (apsw.FullError, apsw.IOError) as error:
            raise StoreFull(f"{self.path} cannot be written: {error}.") from error
        except apsw.Error as error:
            raise StoreError(f"{self.path} cannot be opened: {error}.") from error
        except (ValueError, TypeError) as error:
            raise translate(error) from error

    def _create_file(self) -> None:
        """Makes the file private to its owner, and its name durable."""
        folder = os.path.dirname(self.path)
        if os.path.isdir(self.path):
            raise IncompatibleStore(f"{self.path} is a folder. Give the path of a file.")
        try:
            # Never a file that is there: closing it would drop the locks of everyone in this process who has it
            # open, and another process could then fold in and delete the log under them.
            if not os.path.exists(self.path):
                with suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            held = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(held)
            finally:
                os.close(held)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be opened: {error.strerror}.") from error

    def _migrate(self, connection: apsw.Connection) -> str:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        if not tables:
            # Only an empty file takes this: it lets deleted space return to the device.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
        elif "duly_meta" not in tables:
            raise IncompatibleStore(f"{self.path} is an SQLite file, but not a Duly store. Give another path.")
        connection.execute("PRAGMA synchronous = FULL")
        if tables and (found := self._current(connection)) is not None:
            return found
        connection.execute("BEGIN IMMEDIATE")
        try:
            incarnation = self._migrate_inside(connection)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        return incarnation

    def _current(self, connection: apsw.Connection) -> str | None:
        """The incarnation of a store that needs nothing. Only looks: where others write all the time, the lock to write
        may not be had for long.
        """
        connection.execute("BEGIN")
        try:
            meta = dict(connection.execute("SELECT key, value FROM duly_meta"))
            self._refuse_if_moving(meta)
            if meta.get("schema") != str(SCHEMA) or not meta.get("incarnation"):
                return None
            self._start_clock(connection)
            return str(meta["incarnation"])
        finally:
            connection.execute("ROLLBACK")

    def _migrate_inside(self, connection: apsw.Connection) -> str:
        known = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'duly_meta'").fetchone()
        meta = dict(connection.execute("SELECT key, value FROM duly_meta")) if known else {}
        self._refuse_if_moving(meta)
        version = int(meta.get("schema", 0))
        if version > SCHEMA:
            raise IncompatibleStore(f"{self.path} has schema {version}; this Duly knows {SCHEMA}. Use a newer Duly.")
        for number, script in migrations():
            if number > version:
                connection.execute(script)
        incarnation = meta.get("incarnation") or secrets.token_hex(8)
        if version < SCHEMA:
            put = "INSERT OR REPLACE INTO duly_meta (key, value) VALUES (?, ?)"
            connection.execute(put, ("schema", str(SCHEMA)))
            connection.execute(put, ("incarnation", incarnation))
        self._start_clock(connection)
        return str(incarnation)

    def _refuse_if_moving(self, meta: dict[str, str]) -> None:
        if MOVING in meta:
            where = decode_mark(meta[MOVING]).destination
            raise IncompatibleStore(
                f"{self.path} is on its way to {where}, and has not arrived. Run `duly migrate` again, and it goes on; "
                "or have the file back with `duly migrate --give-up`."
            )

    def _start_clock(self, connection: apsw.Connection) -> None:
        if self._kept is not None:
            row = connection.execute(queries()["clock_mark"]).fetchone()
            self._kept.open(None if row is None else str(row[0]))

    # The contract

    def write(
        self,
        verb: Verb[C, R],
        command: C,
        *,
        tenant: str,
        cost: int,
        deadline: float | None,
        publish_id: str = "",
    ) -> R:
        if held_here(self.key):
            raise InvalidArgument(
                "This thread has a transaction on this store open and would wait for itself. Pass it on (tx=tx), or "
                "do this before or after its block."
            )
        answer: R = self._writer.run(verb, command, tenant=tenant, cost=cost, deadline=deadline, publish_id=publish_id)
        return answer

    def submit(
        self,
        verb: Verb[C, R],
        command: C,
        *,
        tenant: str,
        cost: int,
        publish_id: str = "",
        then: Callable[[R | Exception], None],
    ) -> None:
        self._writer.submit(verb, command, tenant=tenant, cost=cost, publish_id=publish_id, then=then)

    def join(self, tx: object, verb: Verb[C, R], command: C) -> R:
        """Runs a command in the application's transaction."""
        answer: R = joined(tx, self.key).run(verb, command)
        return answer

    def when_undone(self, tx: object, act: Callable[[], None]) -> bool:
        """Calls back if the transaction is rolled back."""
        joined(tx, self.key).when_undone(act)
        return True

    def refresh(self, command: Any) -> None:
        """Before a read: it sees everything as it is."""

    def transaction(self, patience_s: float) -> Transaction:
        """A transaction for the application; others write before it for so long, then it is Busy."""
        return Transaction(self._writer, self.key, patience_s)

    def together(self, patience_s: float) -> Transaction:
        """See the contract. It is one like the application's."""
        return self.transaction(patience_s)

    @contextmanager
    def read(self, tenant: str = "") -> Iterator[SqliteTransaction]:  # noqa: ARG002
        if self._shared is not None and held_here(self.key):
            yield self._reading(self._shared)
            return
        if self._shared is not None:
            # One connection for all: whoever reads keeps the writer out, as the writer does readers.
            with self._writer.holding_pen():
                if self._closed:
                    raise Closed()
                yield self._reading(self._shared)
            return
        with self._inside:
            try:
                connection = self._take_reader()
            except apsw.Error as error:
                raise translate(error) from error
            try:
                connection.execute("BEGIN")
                yield self._reading(connection)
                connection.execute("ROLLBACK")
            except Exception as error:
                connection.close()
                raise translate(error) from error
            self._put_reader(connection)

    def _reading(self, connection: apsw.Connection) -> SqliteTransaction:
        return SqliteTransaction(
            connection,
            now_ms=self.clock.now_ms(),
            incarnation=self.incarnation,
            memory=None,
            cache=self._cache,
            stored=self._stored,
            keyring=self.keyring,
        )

    def _take_reader(self) -> apsw.Connection:
        with self._pool_lock:
            if self._closed:
                raise Closed()
            if self._pool:
                return self._pool.pop()
        return self._open(readonly=True)

    def _put_reader(self, connection: apsw.Connection) -> None:
        with self._pool_lock:
            if not self._closed and len(self._pool) < _READERS_POOLED:
                self._pool.append(connection)
                return
        connection.close()

    def ticket(self, partitions: Sequence[int], *, here_only: bool = False) -> Ticket:
        return self._bell.ticket(partitions, here_only=here_only)

    def wait(self, ticket: Any, *, until_ms: int | None, deadline: float | None) -> None:
        waits: list[float] = []
        if deadline is not None:
            waits.append(max(0.0, deadline - monotonic_s()))
        if until_ms is not None and (due_s := self.clock.wait_s(until_ms)) is not None:
            waits.append(due_s)
        self._bell.sleep(ticket, min(waits, default=None))

    def listen(self, listener: Callable[[Collection[int]], None]) -> None:
        self._bell.listen(listener)

    def slot(self, partition: int) -> int:
        return partition % SLOTS

    def examine(self) -> Iterator[Finding]:
        """Looks the store over; see doctor.py."""
        yield from clock_findings(self.read_clock())
        if self._shared is not None and held_here(self.key):
            yield from list(examine(self._shared, self.path, self.clock.now_ms(), self.keyring))
            return
        if self._shared is not None:
            with self._writer.holding_pen():
                yield from list(examine(self._shared, self.path, self.clock.now_ms(), self.keyring))
            return
        with self._inside:
            connection = self._open(readonly=True)
            try:
                yield from list(examine(connection, self.path, self.clock.now_ms(), self.keyring))
            finally:
                connection.close()

    def look_at_clock(self) -> None:
        """Compares the clock with the host's and the file's, and wakes those who sleep by what it was."""
        if self._kept is not None:
            with self.read() as tx:
                mark = tx.clock_mark()
            if self._kept.look(mark):
                self._bell.ring_all_here()
            self._writer.tell_clock()

    def look_at_stored(self) -> None:
        """Looks again at what those tenants store that have a quota of it, where that is wanted."""
        self._stored.look_again(self.read)

    def look_at_disk(self) -> None:
        """Alerts, once until there is room again, when the device is nearly full."""
        if self._in_memory:
            return
        left, share = room_on_device(self.path)
        nearly_full = share < FREE_ALERT
        if nearly_full and not self._told_full:
            facts: dict[str, object] = {"bytes_left": left, "advice": "Make room, or shorten a topic's retention."}
            tell(Event("disk_nearly_full", self.clock.now_ms(), facts=facts), self._listener)
        self._told_full = nearly_full

    def read_clock(self) -> ClockReading:
        """The store's time beside the host's."""
        if self._kept is not None:
            return self._kept.reading()
        now = from_ms(self.clock.now_ms())
        return ClockReading(now, now, "together")

    def accept_clock(self, *, deadline: float | None) -> None:
        """Takes the host's time, ahead or back, in every process on the file."""
        self.write(_accept_clock, self._kept, tenant=_CLOCK_TENANT, cost=0, deadline=deadline)
        self._bell.ring(range(SLOTS))

    def member_put(self, member: Member) -> None:
        self.write(put_members, member, tenant=_MEMBERS_TENANT, cost=0, deadline=monotonic_s() + _MEMBERS_S)

    def member_remove(self, name: str) -> None:
        self.write(remove_members, name, tenant=_MEMBERS_TENANT, cost=0, deadline=monotonic_s() + _MEMBERS_S)

    def members(self) -> list[Member]:
        with self.read() as tx:
            return tx.members_seen()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """While SQLite is used: a fork waits for it, and closes every connection then."""
        with self._inside:
            if self._closed:
                raise Closed()
            yield

    @contextmanager
    def snapshot(self, deadline: float | None) -> Iterator[Snapshot]:
        """The file held still at one moment; see snapshot.py. Raises Busy while somebody reads an older one."""
        if self._in_memory:
            raise InvalidArgument("A store in memory has no file to back up.")
        snapshot = Snapshot(self._open, self._checkpointer)
        self._snapshots.append(snapshot)
        try:
            self._hold(snapshot, deadline)
            yield snapshot
        finally:
            with self._inside:
                self._snapshots.remove(snapshot)
                snapshot.close()

    def _hold(self, snapshot: Snapshot, deadline: float | None) -> None:
        older = False
        try:
            while not self.write(snapshot.hold, None, tenant=SNAPSHOT_TENANT, cost=0, deadline=deadline):
                older = True
                threading.Event().wait(_HOLD_AGAIN_S)
        except Timeout as error:
            if not older:
                raise
            raise Busy(
                "Somebody has been reading an older state of the store all along: another backup, an examination, "
                "a transaction left open. Try again when that is over."
            ) from error

    def back_up(
        self,
        folder: str,
        *,
        keep: int | None,
        rate: float | None,
        on_progress: Progress | None,
        deadline: float | None,
    ) -> Backup:
        """Takes a backup; see backup.py."""
        return back_up(self, folder, keep=keep, rate=rate, on_progress=on_progress, deadline=deadline)

    def wake_all_here(self) -> None:
        """Wakes whoever waits in this process, for messages or for chores."""
        self._bell.ring_all_here()

    def check_leaving(self) -> None:
        """Raises InvalidArgument if this thread is inside a transaction: closing would wait for it."""
        if held_here(self.key):
            raise InvalidArgument("This thread has a transaction on this store open. Leave its block, then close.")

    def close(self) -> None:
        """Finishes what was accepted and lets go of the file."""
        if self._closed or self.forked:
            return
        self.check_leaving()
        with self._pool_lock:
            self._closed = True
            readers, self._pool = self._pool, []
        last = self._open_last() if readers else None
        self._close_all(readers)
        # The writer's connection goes last: only it can fold the write-ahead log in and remove it.
        self._writer.close()
        if last is not None:
            last.close()
        if self._shared is not None:
            self._shared.close()
        self._bell.close()
        self._gate.close()
        self._presence.close()
        _open_stores.discard(self)

    def _open_last(self) -> apsw.Connection | None:
        """Where nothing was ever written, a connection that could: readers leave the log's files behind."""
        if self._writer.was_used:
            return None
        try:
            connection = self._open()
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        except apsw.Error:
            # They are folded in by whoever opens the file next.
            return None
        return connection

    def _rewrite_log(self) -> None:
        """Writes the write-ahead log's own bytes over it and syncs them: a sync that failed may have lost some."""
        if self._in_memory or not os.path.exists(self.path + "-wal"):
            return
        flags = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE
        log = apsw.VFSFile("", self.path + "-wal", [flags, 0])
        try:
            size = log.xFileSize()
            for at in range(0, size, _REWRITE_BYTES):
                log.xWrite(log.xRead(min(_REWRITE_BYTES, size - at), at), at)
            log.xSync(apsw.SQLITE_SYNC_FULL)
        finally:
            log.xClose()

    def _let_go(self) -> None:
        with self._pool_lock:
            readers, self._pool = self._pool, []
        self._close_all(readers)

    def _close_all(self, readers: list[apsw.Connection]) -> None:
        if self._anchor is not None:
            readers.append(self._anchor)
            self._anchor = None
        for connection in readers:
            connection.close()
        for snapshot in self._snapshots:
            snapshot.let_go()

    # Fork

    def before_fork(self) -> None:
        """Gets everyone out of SQLite and closes every connection."""
        if self._shared is not None or not self._inside.shut(_FORK_WAIT_S):
            self.fork_unsafe = True
            return
        self._writer.disconnect()
        self._let_go()

    def after_fork_in_parent(self) -> None:
        """Goes on: connections open again when they are needed."""
        self.fork_unsafe = False
        self._inside.open()

    def after_fork_in_child(self) -> None:
        """This object is done for: its threads are not here. Its client opens another."""
        self.forked = True
        self._bell.let_go()
        self._gate.close()
        self._presence.close()


def _accept_clock(tx: Any, clocks: Sequence[StoreClock | None]) -> list[None]:
    """A verb: the transaction and those after it go by the host's clock as it is."""
    for clock in clocks:
        if clock is not None:
            tx.clock_mark_put(clock.accept())
            tx.now_ms = clock.now_ms()
    return [None] * len(clocks)


def master_of(path: str) -> Any:
    """Where nothing else is said: a file beside the store; in memory, a key that goes with it."""
    if path == MEMORY:
        return MasterKeys([secrets.token_bytes(KEY_BYTES)])
    return FileMaster(os.path.abspath(path) + ".master")


_open_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _before_fork() -> None:
    for store in list(_open_stores):
        store.before_fork()


def _after_fork_in_parent() -> None:
    for store in list(_open_stores):
        store.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for store in list(_open_stores):
        store.after_fork_in_child()
    _open_stores.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
