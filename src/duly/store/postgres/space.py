"""Space: what was dropped becomes room again, and room that nobody needs goes back to the device. Nobody runs VACUUM.

PostgreSQL leaves a deleted row where it is. Autovacuum makes room of it up to a minute later, and gives back only
what is empty at a table's end, if nobody uses the table at that moment: on a busy store never. So the store sees to
it itself. Whoever ran the chore `give_back` tells its sweeper, a thread with connections of its own:

    told ──▶ look ──▶ much is dead: VACUUM ──▶ it holds less than a third of its size: move (compact.py) ──▶ VACUUM, cut
      ▲        │                           └─▶ else the room will be used
      └────────┘ again, until nothing was dropped for a while

What it guarantees. A table takes at most about three times what it holds (and its indexes, whose pages are used
again, but never given back). One process sweeps at a time, by an advisory lock. VACUUM runs beside everyone else;
moving locks a few rows for some milliseconds and waits for none. A file is cut under a lock that nobody may share,
which VACUUM only tries for: it has it at once in a quiet store and never in a busy one, because whoever has written
holds the table until its commit. Then the way is cleared: those who are about to enter a topic wait, at the lock of
the table `turn`, for the 50 ms between two tries at most. It happens only where two thirds of a table can be had for
it.

What can go wrong. A snapshot that somebody holds (an open transaction, a standby's feedback) keeps dead rows from
becoming room: nothing is moved then, and the sweeper looks again later and later. A lost connection, a server that
goes away: later. A role that does not own the tables may not vacuum them: PostgreSQL warns, and autovacuum is left. A
process that dies with space owed leaves it to the next that drops something.

Why not segments: tables that are dropped as a whole need no VACUUM, but every read would have to know where its rows
are, dropping one takes the same lock, and what is still alive in an old one has to be moved all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import psycopg
from psycopg import sql

from ...clock import monotonic_s
from ...events import log
from .compact import PAGE_BYTES, Holding, Table, count, move_apart, move_rows
from .seat import SWEEPING

Connection = psycopg.Connection[tuple[Any, ...]]

# Less is left to autovacuum.
_DEAD_BYTES_MIN = 512 * 1024
_DEAD_SHARE_MIN = 1 / 32
# A smaller table is left as it is.
_BYTES_MIN = 256 * 1024
# From the first on a table is made smaller, when it has been so for a second; up to the second it is gone on with.
_SPARSE, _SPARSE_STILL, _SPARSE_S = 1 / 3, 1 / 2, 1.0
# To count what a table holds takes a twentieth of the time at most. (What VACUUM guesses does not come near it.)
_COUNT_REST, _COUNT_S = 20, 0.5
# Told again, it looks again after the first at the earliest; not told, ever later.
_PAUSE_S, _PAUSE_S_MAX = 0.1, 3.0
# Of its time the sweeper works half at most. With less it would fall behind those who drop forty megabytes a second.
_REST = 1
# Sessions report what they deleted after a second; one that is idle, after ten.
_REPORTED_S = 11.0
_HELD_S_MAX = 60.0
_AGAIN_S, _AGAIN_S_MAX = 2.0, 600.0
# What is moved: rows that are written once and that nobody locks. A lease that is locked says that an application's
# transaction is about to settle it; rows of that kind come and go anyway, and their tables are only cut.
MOVED = frozenset(
    (
        "block",
        "kept",
        "chunk",
        "run_block",
        "run_data",
        "id_block",
        "id_run",
        "event",
        "receipt",
        "gone",
        "done",
        "dead",
    )
)
# Moving goes on for so long at a time, and of that time works a third: rows that others drop wait for their VACUUM.
_MOVING_S, _MOVING_REST = 0.3, 2
# What was moved is dead once everybody's snapshot is a younger one: the first try to cut may come too early.
_CUTS_MAX = 8
# VACUUM tries for the lock every 50 ms, for five seconds; so long it tries alone, and so long with the way cleared.
_TRIES_ALONE_S, _TRIES_S = 0.2, 0.6
_CLEARED_S = 0.15

_LOOK = """
SELECT c.relname, pg_relation_size(c.oid), coalesce(pg_relation_size(t.oid), 0),
       (pg_relation_size(c.oid) * pg_stat_get_dead_tuples(c.oid)::FLOAT8
        / greatest(pg_stat_get_dead_tuples(c.oid) + pg_stat_get_live_tuples(c.oid), 1)
        + coalesce(pg_relation_size(t.oid) * pg_stat_get_dead_tuples(t.oid)::FLOAT8
                   / greatest(pg_stat_get_dead_tuples(t.oid) + pg_stat_get_live_tuples(t.oid), 1), 0))::BIGINT
  FROM pg_class AS c
  LEFT JOIN pg_class AS t ON t.oid = c.reltoastrelid
 WHERE c.relnamespace = %s::REGNAMESPACE
   AND c.relkind = 'r'
   AND (%s::TEXT IS NULL OR c.relname = %s)
 ORDER BY 4 DESC
"""
# Others drop rows while VACUUM runs: that it left some says little. Who is seen here holds them.
_HELD = """
SELECT EXISTS (SELECT 1 FROM pg_stat_activity
                WHERE datname = current_database() AND backend_xmin IS NOT NULL AND xact_start < now() - interval '5s')
    OR EXISTS (SELECT 1 FROM pg_replication_slots WHERE xmin IS NOT NULL)
    OR EXISTS (SELECT 1 FROM pg_prepared_xacts)
"""
_IS_CUTTING = "SELECT 1 FROM pg_stat_progress_vacuum WHERE pid = %s AND phase = 'truncating heap'"


@dataclass(frozen=True)
class Figures:
    """A table: what its rows take, what lies outside of them takes, and how much of both is dead, as reported."""

    name: str
    rows_bytes: int
    apart_bytes: int
    dead_bytes: int

    @property
    def bytes(self) -> int:
        return self.rows_bytes + self.apart_bytes

    @property
    def is_dirty(self) -> bool:
        return self.dead_bytes >= max(_DEAD_BYTES_MIN, self.bytes * _DEAD_SHARE_MIN)

    def sparse(self, holds: Holding, share: float) -> tuple[bool, bool]:
        """Whether rows, and what lies outside of them, need less than that share of their place."""
        return (
            self.rows_bytes >= _BYTES_MIN and holds.rows_bytes < self.rows_bytes * share,
            self.apart_bytes >= _BYTES_MIN and holds.apart_bytes < self.apart_bytes * share,
        )


class Sweeper:
    """Gives space back. Its thread starts when there is some, and ends when there is none any more."""

    def __init__(self, connect: Callable[[], Connection], schema: str, space: int) -> None:
        self._connect = connect
        self._schema = schema
        self._space = space
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._at_work: list[Connection] = []
        self._closing = False
        self._owed_at = 0.0
        self._told = False
        # By table: when it will have been sparse for long enough, or should be tried again; and how long after that.
        self._shrink_at: dict[str, float] = {}
        self._in_vain: dict[str, float] = {}
        # By table: what is left to be moved; and how often it was tried to cut it since.
        self._moving: dict[str, Iterator[float]] = {}
        self._cuts: dict[str, int] = {}
        # By table: what it held when it was counted, and when it may be counted again.
        self._holds: dict[str, Holding] = {}
        self._count_at: dict[str, float] = {}

    def owe(self) -> None:
        """Space was freed inside the store; the device has yet to get it. Returns at once."""
        with self._changed:
            self._owed_at = monotonic_s()
            self._told = True
            self._changed.notify_all()
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._work, name="duly-sweeper", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stops it, in the middle of whatever it does: nothing is lost by that."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        while thread is not None and thread.is_alive():
            for connection in list(self._at_work):
                # Of a server that is gone nothing has to be stopped.
                with suppress(psycopg.OperationalError):
                    connection.cancel()
            thread.join(0.05)

    # The thread

    def _work(self) -> None:
        while True:
            try:
                self._sweep_for_a_while()
                pause = 0.0
            except psycopg.Error as error:
                if not self._closing:
                    log.info("space is given back later: %s", str(error).strip())
                pause = _AGAIN_S
            if not self._rest(pause) or self._is_done():
                return

    def _is_done(self) -> bool:
        with self._changed:
            if self._is_owed():
                return False
            self._thread = None
            return True

    def _is_owed(self) -> bool:
        return monotonic_s() < self._owed_at + _REPORTED_S

    def _rest(self, seconds: float) -> bool:
        """Waits. False: it is being closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)
            return not self._closing

    def _listen(self, seconds: float) -> bool:
        """Waits until something more was freed, or so long. Whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: self._told or self._closing, seconds)

    def _sweep_for_a_while(self) -> None:
        """Looks again and again until nothing is owed any more."""
        with self._connected() as connection, self._connected() as aside:
            self._moving.clear()
            pause = _PAUSE_S
            held = False
            while self._is_owed() or held or self._moving or self._cuts:
                self._told = False
                began = took = monotonic_s()
                ((alone,),) = connection.execute("SELECT pg_try_advisory_lock(%s, %s)", (self._space, SWEEPING))
                if alone:
                    held, sparse = self._tidy(connection)
                    took = monotonic_s()
                    for figures in sparse:
                        self._shrink(connection, aside, figures)
                    connection.execute("SELECT pg_advisory_unlock(%s, %s)", (self._space, SWEEPING))
                if not self._rest(max(_PAUSE_S, _REST * (took - began))):
                    return
                if self._moving or self._cuts or (self._listen(pause) and not held):
                    pause = _PAUSE_S
                else:
                    pause = min(2 * pause, _HELD_S_MAX if held else _PAUSE_S_MAX)

    def _connected(self) -> _Connected:
        return _Connected(self._connect, self._at_work)

    # One look

    def _tidy(self, connection: Connection) -> tuple[bool, list[Figures]]:
        """Makes room of what is dead. Whether somebody's snapshot keeps it; which tables could be smaller."""
        held = False
        sparse: list[Figures] = []
        for figures in self._look(connection):
            now = figures
            if figures.is_dirty:
                connection.execute(self._vacuum(figures.name, cut=False))
                (now,) = self._look(connection, figures.name) or [figures]
                held |= now.is_dirty and now.dead_bytes > figures.dead_bytes / 2 and _is_held(connection)
            if not now.is_dirty and self._has_been_sparse(connection, now):
                sparse.append(now)
        return held, sparse

    def _look(self, connection: Connection, name: str | None = None) -> list[Figures]:
        return [Figures(*row) for row in connection.execute(_LOOK, (self._schema, name, name))]

    def _has_been_sparse(self, connection: Connection, figures: Figures) -> bool:
        """Whether a table has been sparse for a while: most room is used again at once."""
        name = figures.name
        at_it = name in self._moving or name in self._cuts
        if figures.bytes < _BYTES_MIN or monotonic_s() < self._count_at.get(name, 0.0):
            return at_it
        began = monotonic_s()
        holds = self._holds[name] = count(connection, self._table(connection, figures))
        now = monotonic_s()
        self._count_at[name] = now + max(_COUNT_S, _COUNT_REST * (now - began))
        if any(figures.sparse(holds, _SPARSE_STILL if at_it else _SPARSE)):
            return now >= self._shrink_at.setdefault(name, now + _SPARSE_S)
        self._forget(name)
        return False

    def _table(self, connection: Connection, figures: Figures) -> Table:
        return Table(connection, self._schema, figures.name)

    def _forget(self, name: str) -> None:
        self._shrink_at.pop(name, None)
        self._moving.pop(name, None)
        self._cuts.pop(name, None)

    def _shrink(self, connection: Connection, aside: Connection, figures: Figures) -> None:
        """Moves what a table holds to its front, for a while; when that is done, cuts it behind."""
        name = figures.name
        if name not in self._cuts and not self._move(connection, figures):
            return
        self._cuts[name] = self._cuts.get(name, 0) + 1
        self._cut(connection, aside, name)
        (now,) = self._look(connection, name) or [figures]
        if now.bytes < figures.bytes * 3 / 4:
            self._forget(name)
            self._in_vain.pop(name, None)
        elif self._cuts[name] == _CUTS_MAX:
            self._forget(name)
            pause = self._in_vain.get(name, _AGAIN_S)
            self._in_vain[name] = min(2 * pause, _AGAIN_S_MAX)
            self._shrink_at[name] = monotonic_s() + pause

    def _move(self, connection: Connection, figures: Figures) -> bool:
        """Whether everything is moved."""
        moving = self._moving.setdefault(figures.name, self._moves(connection, figures))
        until = monotonic_s() + _MOVING_S
        for took in moving:
            if not self._rest(_MOVING_REST * took) or monotonic_s() > until:
                return False
        del self._moving[figures.name]
        return True

    def _moves(self, connection: Connection, figures: Figures) -> Iterator[float]:
        if figures.name not in MOVED:
            return iter(())
        table, pages = self._table(connection, figures), figures.rows_bytes // PAGE_BYTES
        sparse_rows, sparse_apart = figures.sparse(self._holds[figures.name], _SPARSE_STILL)
        apart = move_apart(connection, table, pages) if sparse_apart else ()
        rows = move_rows(connection, table, pages) if sparse_rows else ()
        return chain(apart, rows)

    def _cut(self, connection: Connection, aside: Connection, name: str) -> None:
        """VACUUM, and the way cleared for it should it not get to cut the file by itself."""
        failed: list[psycopg.Error] = []

        def vacuum() -> None:
            try:
                aside.execute(self._vacuum(name, cut=True))
            except psycopg.errors.QueryCanceled:
                # It got nowhere.
                pass
            except psycopg.Error as error:
                failed.append(error)

        runs = threading.Thread(target=vacuum, name="duly-vacuum", daemon=True)
        runs.start()
        cutting_at: float | None = None
        cleared = False
        while runs.is_alive():
            runs.join(_TRIES_ALONE_S / 4)
            if connection.execute(_IS_CUTTING, (aside.info.backend_pid,)).fetchone() is None:
                continue
            cutting_at = cutting_at or monotonic_s()
            if monotonic_s() > cutting_at + _TRIES_S:
                aside.cancel()
            elif monotonic_s() > cutting_at + _TRIES_ALONE_S and not cleared:
                cleared = True
                _clear_the_way(connection, runs)
        if failed:
            raise failed[0]

    def _vacuum(self, name: str, *, cut: bool) -> sql.Composed:
        # Whoever vacuums it already may finish. To cut, the last few dead rows must go, too: where few are dead, VACUUM
        # would leave their stubs, and a page with one of them is not empty.
        asked = (
            "VACUUM (SKIP_LOCKED, TRUNCATE, INDEX_CLEANUP ON) {}" if cut else "VACUUM (SKIP_LOCKED, TRUNCATE OFF) {}"
        )
        return sql.SQL(asked).format(sql.Identifier(self._schema, name))


class _Connected:
    """A connection for as long as it is at work, and known as such: closing cancels what runs on it."""

    def __init__(self, connect: Callable[[], Connection], at_work: list[Connection]) -> None:
        self._connect = connect
        self._at_work = at_work

    def __enter__(self) -> Connection:
        self._connection = self._connect()
        # Slowly: others are at work.
        self._connection.execute("SET vacuum_cost_delay = '2ms'; SET vacuum_cost_limit = 2000")
        self._at_work.append(self._connection)
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._at_work.remove(self._connection)
        self._connection.close()


def _is_held(connection: Connection) -> bool:
    ((held,),) = connection.execute(_HELD)
    return bool(held)


def _clear_the_way(connection: Connection, vacuum: threading.Thread) -> None:
    """Keeps everyone from entering a topic for a moment, so that VACUUM finds nobody at the table."""
    try:
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '100ms'")
            connection.execute("LOCK TABLE turn IN ACCESS EXCLUSIVE MODE")
            vacuum.join(_CLEARED_S)
    except psycopg.errors.LockNotAvailable:
        # Somebody has a topic for longer than usual: another time.
        return
