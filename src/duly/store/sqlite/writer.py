"""The writer: one at a time has the write connection, and group commit.

Callers put jobs into a bounded queue and wait. A thread takes what is there (tenants in fair
turn), runs it in one transaction, syncs once, and answers everybody. While it syncs, the next
jobs gather: the slower the disk, the bigger the group. A tenant that fills the queue is refused,
and nobody else is (engine/allowance.py).

A caller that finds nobody writing and nobody waiting runs its job itself: two thread switches less,
and its data still in the processor's cache. Not so the main thread, where a signal's exception
(KeyboardInterrupt) or a handler that publishes can come up between any two steps of a transaction.

    queued ──▶ running ──commit──▶ answered
      │           └──rollback──▶ answered with the error; nothing was done
      └─ timeout: withdrawn, nothing was done      (a timeout while running: outcome unknown)

Inside a transaction neighbouring jobs of one verb run as one call. Should a call raise, the transaction is
rolled back and all run again, now each call under a savepoint; the one that raises again is undone and
its jobs run each alone: one caller's error is nobody else's, and without errors nobody pays for savepoints.

A commit whose sync fails leaves a doubt: its frames may have reached the disk, and a crash before the
next write would bring them back. So the writer reopens the file and writes and syncs a mark over
them; only then does it answer "nothing was stored". If even that fails, publishers get PublishUnknown,
and the next transaction begins by clearing the doubt. (Reopening alone would not do: the last to close
a file and the first to open it again *recover* the log, unsynced frames and all. So the store keeps one
more connection open, the anchor; and whoever opens a file first syncs what its log holds before adding to it.
And a sync that failed leaves pages that a later sync takes for written: when all connections had to be closed in
doubt, the log's bytes are written anew, all of them, before anybody reads them back and copies them.
Nor may anybody read them back who knows of no doubt: the next to open the file when this store was closed, or died.
So the log is cut off before them at once, for all who read it from the page cache; that needs no sync.
A checkpoint that fails leaves a hole of another kind (checkpoint.py): nothing is written before _rebuild closed it.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import apsw

from ...clock import Clock, monotonic_s
from ...engine.allowance import Backlog
from ...engine.audit import end_chains
from ...engine.fair_queue import FairQueue
from ...engine.memory import BlockCache, Memory
from ...engine.record import write_records
from ...engine.secrets import Keyring
from ...errors import Busy, Closed, Error, StoreError, StoreFull, Timeout
from ...events import Event, Listener, tell
from ...limits import LIMITS
from ...tenant import Weights
from ..contract import Aftermath, Verb
from ..jobs import FINISHED, GIVEN, QUEUED, RUNNING, Job, answer_of, by_verb, remembering, run_together, unknown
from ..sql.stored import StoredBytes
from .application import Authorizer, Hold
from .bell import FileBell
from .checkpoint import Checkpointer
from .faults import translate
from .fork_gate import ForkGate
from .gate import Gate
from .queries import queries
from .shield import shielded
from .store_clock import StoreClock
from .transaction import SqliteTransaction

_JOBS_A_TRANSACTION = 1024
# Whoever comes meanwhile waits for the end of all that is in it: of much that one tenant brings, a part at a time. A
# sync is a hundredth of the time that so much takes.
_COST_A_TRANSACTION = 8 * 1024 * 1024
_BUSY_S = 10.0
_SYNC_WAIT_MS = 100
_REBUILD_WAIT_S = 5.0
_MARK = "INSERT INTO duly_meta (key, value) VALUES ('doubts', 1) ON CONFLICT DO UPDATE SET value = value + 1"


# A job that costs no more is handed over without the lock, whosesoever it is, while so few wait and none in line.
_SMALL_COST = 1024
_GIVEN_MAX = 1024


class Writer:
    """Runs jobs in group commits on the one connection that writes."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        *,
        clock: Clock,
        incarnation: str,
        cache: BlockCache,
        stored: StoredBytes,
        keyring: Keyring,
        weights: Weights,
        bell: FileBell,
        gate: Gate,
        inside: ForkGate,
        checkpointer: Checkpointer | None,
        let_go: Callable[[], None],
        rewrite_log: Callable[[], None],
        listener: Listener | None,
    ) -> None:
        self._connect = connect
        self._connection: apsw.Connection | None = None
        self._clock = clock
        # The clock again, if it is one that is kept in the file.
        self._kept = clock if isinstance(clock, StoreClock) else None
        self._incarnation = incarnation
        self._memory = Memory()
        self._cache = cache
        self._stored = stored
        self._keyring = keyring
        self._bell = bell
        self._gate = gate
        self._inside = inside
        self._checkpointer = checkpointer
        # Closes the other idle connections, so that the next one to open begins from the file.
        self._let_go = let_go
        self._rewrite_log = rewrite_log
        self._listener = listener
        # How the file stood after our last commit, and the definitions when we last looked.
        self._data_version = -1
        self._definitions: Any = None
        self._in_doubt = False
        # Callers hand jobs over here without a lock; whoever writes moves them into the fair queue.
        self._given: deque[Job] = deque()
        self._queue: FairQueue[Job] = FairQueue(weights)
        self._backlog = Backlog()
        # Who waits for room in it.
        self._crowd = 0
        self._changed = threading.Condition()
        self._asleep = False
        self._ended = False
        # Held by whoever runs a transaction: the thread below, or a caller. Whoever waits for it holds the turn:
        # the thread below lets go of the pen for microseconds only, and would always have it back first.
        self._pen = threading.Lock()
        self._turn = threading.Lock()
        # The application's transaction that is open.
        self._hold: Hold | None = None
        self._authorizer = Authorizer()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="duly-writer", daemon=True)
        self._thread.start()

    def run(
        self,
        verb: Verb[Any, Any],
        command: Any,
        *,
        tenant: str,
        cost: int,
        deadline: float | None,
        publish_id: str,
    ) -> Any:
        """Queues a job and waits for its answer; an answer that is an error is raised."""
        job = Job(verb, command, tenant, publish_id, cost)
        if job.caller is self._thread:
            return self._run_inside(job)
        if self._run_here(job):
            return answer_of(job)
        self._hand_over(job, deadline)
        withdrawn = self._wait(job, deadline)
        if job.abandoned:
            self._give_up(job, withdrawn=withdrawn)
        return answer_of(job)

    def submit(
        self,
        verb: Verb[Any, Any],
        command: Any,
        *,
        tenant: str,
        cost: int,
        publish_id: str,
        then: Callable[[Any], None],
    ) -> None:
        """Queues a job and returns; `then` gets its answer, or the error that it is, on the thread that wrote.

        It must not wait there. Raises Busy at once when too much of its tenant's is queued.
        """
        job = Job(verb, command, tenant, publish_id, cost)
        job.caller, job.then = None, then
        self._hand_over(job, deadline=0.0)

    def _wait(self, job: Job, deadline: float | None) -> bool:
        """Waits for the answer, then wakes the next in line. True: time was up, and the job could be withdrawn."""
        in_time = False
        try:
            in_time = job.done.acquire(timeout=-1 if deadline is None else max(0.0, deadline - monotonic_s()))
        finally:
            # Also when a signal's exception came up: those behind would wait for ever.
            withdrawn = not in_time and self._abandon(job)
            if job.follower is not None:
                job.follower.done.release()
        return withdrawn

    def _run_here(self, job: Job) -> bool:
        """Runs the job on the caller's thread, if nobody writes or waits."""
        if self._given or self._queue.count:
            return False
        if job.caller is threading.main_thread() or self._turn.locked() or not self._pen.acquire(blocking=False):
            return False
        try:
            # Never waits here: a caller has a deadline, and the thread below has time.
            if self._closing or self._given or self._queue.count or not self._gate.try_enter():
                return False
            aftermath = self._transact(lambda: [job], until=None)
        finally:
            self._pen.release()
        if aftermath is None:
            return False
        self._tell(aftermath)
        return True

    def _run_inside(self, job: Job) -> Any:
        """Runs the job of a listener that this writer's own thread calls: it cannot wait for itself."""
        with self._pen:
            aftermath = self._transact(lambda: [job], until=monotonic_s() + _BUSY_S)
        assert aftermath is not None
        self._tell(aftermath)
        return answer_of(job)

    def _hand_over(self, job: Job, deadline: float | None) -> None:
        few = len(self._given) < min(_GIVEN_MAX, LIMITS.writer_commands_max) and not self._queue.count
        if not few or job.cost > _SMALL_COST or self._closing:
            self._wait_for_room(job, deadline)
        else:
            self._given.append(job)
        # Read after the job is there, and set before the thread looks: one of the two notices the other.
        if self._asleep or self._closing:
            with self._changed:
                if self._ended and job.stage == GIVEN:
                    raise Closed()
                self._changed.notify_all()

    def _wait_for_room(self, job: Job, deadline: float | None) -> None:
        with self._changed:
            # Those that came before it, of its caller's too.
            self._line_up()
            while not self._backlog.allows(job.tenant, LIMITS.writer_commands_max, LIMITS.writer_bytes_max):
                left = None if deadline is None else deadline - monotonic_s()
                if self._closing or (left is not None and left <= 0) or not self._made_room(left):
                    raise Busy()
            if self._closing:
                raise Closed()
            self._put(job)

    def _made_room(self, left_s: float | None) -> bool:
        self._crowd += 1
        try:
            return self._changed.wait(left_s)
        finally:
            self._crowd -= 1

    def _line_up(self) -> None:
        """What was handed over stands in line."""
        while self._given:
            job = self._given.popleft()
            if not job.abandoned:
                self._put(job)

    def _put(self, job: Job) -> None:
        job.stage = QUEUED
        self._queue.put(job.tenant, job.price, job)
        self._backlog.come(job.tenant, job.cost)

    def _abandon(self, job: Job) -> bool:
        """The caller waits no longer. True if the job was withdrawn in time; a finished one is not abandoned."""
        with self._changed:
            job.abandoned = job.stage != FINISHED
            withdrawn = job.stage == QUEUED and self._queue.remove(job.tenant, job)
            if withdrawn:
                self._backlog.go(job.tenant, job.cost)
                if self._crowd:
                    self._changed.notify_all()
            return withdrawn or job.stage == GIVEN

    def _give_up(self, job: Job, *, withdrawn: bool) -> NoReturn:
        if withdrawn:
            raise Timeout()
        if job.publish_id:
            raise unknown(job)
        raise Timeout("The time allowed ran out while the store was at it: it may have been done, or not.")

    def holding_pen(self) -> AbstractContextManager[bool]:
        """While it is held nobody writes."""
        return self._pen

    def close(self) -> None:
        """Finishes what is queued and stops."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def was_used(self) -> bool:
        """Whether it has the file open for writing, or had and is in doubt about it."""
        return self._connection is not None or self._in_doubt

    def disconnect(self) -> None:
        """Closes the connection between transactions; the next one opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _loop(self) -> None:
        while self._sleep():
            until = monotonic_s() + _BUSY_S
            if not self._take_pen(_BUSY_S):
                self._turn_away()
                continue
            try:
                aftermath = self._transact(self._take, until=until)
            finally:
                self._pen.release()
            if aftermath is not None:
                self._tell(aftermath)
        # A caller may still be writing on its own.
        with self._pen, self._inside:
            self.disconnect()

    def _take_pen(self, seconds: float) -> bool:
        """Waits for the pen, after those who wait already."""
        until = monotonic_s() + seconds
        if not self._turn.acquire(timeout=seconds):
            return False
        try:
            return self._pen.acquire(timeout=max(0.0, until - monotonic_s()))
        finally:
            self._turn.release()

    def _turn_away(self) -> None:
        """An application's transaction has been open for too long: nobody has to wait for its end."""
        jobs = self._take()
        for job in jobs:
            job.answer = _Locked(
                f"An application's transaction has been open for {_BUSY_S:g} s. Nothing was done; try again, "
                "and keep transactions short."
            )
        self._finish(jobs)

    def _sleep(self) -> bool:
        """Waits for something to do; False when there will be nothing any more."""
        with self._changed:
            self._asleep = True
            while not self._given and not self._queue.count:
                if self._closing:
                    self._ended = True
                    return False
                self._changed.wait()
            self._asleep = False
            return True

    def _take(self) -> list[Job]:
        """The next group, tenants in fair turn."""
        with self._changed:
            self._line_up()
            jobs = self._queue.take(_JOBS_A_TRANSACTION, _COST_A_TRANSACTION)
            for job in jobs:
                job.stage = RUNNING
                self._backlog.go(job.tenant, job.cost)
            if self._crowd:
                self._changed.notify_all()
        return jobs

    def _transact(self, take: Callable[[], list[Job]], *, until: float | None) -> Aftermath | None:
        """One group commit; `until` None: entered at the gate, and it does not wait. Every job is answered.

        The time at the gate counts: the processes there would wait for one after the other's patience to end.

        Jobs are taken as late as can be, when the store's lock is had: what gathered meanwhile goes along, and
        whoever cannot wait any longer can still withdraw.
        What follows is told by the caller, who lets go of the pen first: a listener may write. None, which only one
        that does not wait answers: the store is locked, nothing was done.
        """
        with self._inside:
            aftermath = Aftermath()
            jobs: list[Job] | None = None
            try:
                if until is not None:
                    self._gate.enter()
                try:
                    connection = self._lock_store(0.0 if until is None else max(0.0, until - monotonic_s()))
                    jobs = take()
                    aftermath = self._attempt(connection, jobs, 0.0 if until is None else _BUSY_S).aftermath
                finally:
                    self._gate.leave()
            except _Locked as error:
                if until is None:
                    return None
                jobs = take() if jobs is None else jobs
                for job in jobs:
                    job.answer = error
            except Error as error:
                self._tell_full(error)
                jobs = take() if jobs is None else jobs
                for job in jobs:
                    job.answer = unknown(job) if job.publish_id and isinstance(error, _Doubt) else error
            self._bell.ring(aftermath.rings)
            self._finish(jobs)
            self._checkpoint(aftermath)
        return aftermath

    def _checkpoint(self, aftermath: Aftermath) -> None:
        if self._checkpointer is not None and self._connection is not None:
            self._checkpointer.after_commit(self._connection, freed=aftermath.freed)

    def _tell(self, aftermath: Aftermath) -> None:
        for event in aftermath.events:
            tell(event, self._listener)
        self.tell_clock()

    def tell_clock(self) -> None:
        """Passes on what the clock has to say: once, and outside of transactions."""
        alert = None if self._kept is None else self._kept.take_alert()
        if alert is not None:
            tell(alert, self._listener)

    def _finish(self, jobs: Sequence[Job]) -> None:
        """Answers everyone. A publisher that gave up and was stored after all is remembered by its publish id.

        Only the first is woken from here, and each wakes the next: woken all at once they would fall asleep
        again at once, waiting for the interpreter's lock, and every one would be woken twice.
        """
        first: Job | None = None
        told: list[Job] = []
        with self._changed:
            for job in jobs:
                job.stage = FINISHED
                if job.then is not None:
                    told.append(job)
                elif job.caller is threading.main_thread() and not job.abandoned:
                    # Nobody depends on the thread that signals interrupt.
                    job.done.release()
                elif job.caller is not None and not job.abandoned:
                    job.follower, first = first, job
                elif job.publish_id and not isinstance(job.answer, Exception):
                    self._given.append(remembering(job))
        if first is not None:
            first.done.release()
        for job in told:
            assert job.then is not None
            job.then(job.answer)

    def _tell_full(self, error: Exception) -> None:
        if isinstance(error, StoreFull):
            tell(Event("store_full", self._clock.now_ms(), facts={"why": str(error)}), self._listener)

    def _lock_store(self, patience_s: float) -> apsw.Connection:
        """Begins a transaction. Raises one of our errors when that cannot be."""
        try:
            connection = self._ready_connection(patience_s)
            _take_lock(connection, patience_s)
        except (apsw.Error, StoreError) as error:
            if self._in_doubt:
                # An earlier commit may yet turn out to be stored, and this may be its repetition.
                raise _Doubt(f"An earlier commit is in doubt, and the store cannot be written now: {error}") from error
            raise translate(error) from error
        return connection

    def _attempt(self, connection: apsw.Connection, jobs: Sequence[Job], patience_s: float) -> SqliteTransaction:
        """Runs the jobs and commits. Raises one of our errors when nothing was stored."""
        try:
            tx = self._work(connection, jobs, patience_s)
            end_chains(tx)
            write_records(tx)
            self._mark_time(tx)
        except _Locked:
            raise
        except Exception as error:
            # Whatever it was: a transaction left open would shut everyone out for ever.
            self._roll_back(connection)
            raise translate(error) from error
        self._commit(connection, tx)
        return tx

    def _commit(self, connection: apsw.Connection, tx: SqliteTransaction) -> None:
        try:
            connection.execute("COMMIT")
        except apsw.Error as error:
            self._roll_back(connection)
            self._clear_doubt(error)
        self._data_version = connection.data_version()
        self._memory.commit()
        tx.committed()

    # Held open by an application (application.py)

    def hold(self, hold: Hold, patience_s: float) -> None:
        """Begins a transaction for the caller. Raises Busy."""
        shielded(lambda: self._take_hold(hold, patience_s), to_the_end=False)

    def _take_hold(self, hold: Hold, patience_s: float) -> None:
        until = monotonic_s() + patience_s
        if not self._take_pen(patience_s):
            raise Busy("Others write, or have a transaction open. Nothing was done; try again.")
        self._inside.__enter__()
        self._hold = hold
        try:
            self._begin_hold(hold, until)
        except BaseException as error:
            self._end_hold(hold)
            if isinstance(error, apsw.Error):
                raise translate(error) from error
            raise
        if not hold.take():
            self._end_hold(hold)

    def _begin_hold(self, hold: Hold, until: float) -> None:
        if self._closing:
            raise Closed()
        self._gate.enter()
        try:
            hold.connection = self._lock_store(max(0.0, until - monotonic_s()))
        finally:
            # Other processes wait for SQLite's own lock, which they do not wait for without end.
            self._gate.leave()
        if hold.connection.authorizer is not self._authorizer:
            hold.connection.authorizer = self._authorizer
        hold.authorizer = self._authorizer
        hold.tx = self._begin(hold.connection)

    def now_ms(self) -> int:
        """The store's time."""
        return self._clock.now_ms()

    def keep(self, hold: Hold) -> None:
        """Commits for the caller."""
        shielded(lambda: self._keep(hold))

    def _keep(self, hold: Hold) -> None:
        if hold.leave() != "held":
            return
        try:
            self._mark_time(hold.tx)
            end_chains(hold.tx)
            write_records(hold.tx)
            self._commit(hold.connection, hold.tx)
            hold.kept = True
            self._bell.ring(hold.tx.aftermath.rings)
            self._checkpoint(hold.tx.aftermath)
        finally:
            self._end_hold(hold)
        self._tell(hold.tx.aftermath)

    def undo(self, hold: Hold) -> None:
        """Ends the caller's transaction, if it has one: what is not committed by now never is."""
        if not hold.over.is_set():
            shielded(lambda: self._undo(hold))

    def _undo(self, hold: Hold) -> None:
        stage = hold.leave()
        if stage == "held":
            self._end_hold(hold)
        elif stage == "left":
            hold.over.wait()

    def _end_hold(self, hold: Hold) -> None:
        """Lets the others write again."""
        try:
            if not hold.kept:
                # Also if SQLite has rolled back by itself: what is remembered is of a transaction that never was.
                self._forget()
                # Before others can write: they would find deliveries settled that are not.
                for act in reversed(hold.undone):
                    act()
            if self._connection is not None and self._connection.in_transaction:
                self._roll_back(self._connection)
        finally:
            self._authorizer.strict = False
            self._hold = None
            self._inside.__exit__()
            self._pen.release()
            hold.over.set()

    def _work(self, connection: apsw.Connection, jobs: Sequence[Job], patience_s: float) -> SqliteTransaction:
        """Everything of a transaction but its beginning and its end."""
        tx = self._begin(connection)
        groups = by_verb(jobs)
        try:
            for group in groups:
                run_together(tx, group)
            return tx
        except apsw.Error:
            raise
        except Exception:
            self._roll_back(connection)
        _take_lock(connection, patience_s)
        tx = self._begin(connection)
        for group in groups:
            self._run_apart(tx, group)
        return tx

    def _begin(self, connection: apsw.Connection) -> SqliteTransaction:
        """A transaction, with a memory that can be trusted: cleared of what others may have changed."""
        # It counts everybody's commits. Unless it is as it was after our last one, someone else's came since.
        changed = connection.data_version() != self._data_version
        if changed:
            definitions = connection.execute(queries()["definitions"]).fetchone()
            if definitions == self._definitions:
                self._memory.pass_over()
            else:
                self._memory.clear()
            self._definitions = definitions
        tx = SqliteTransaction(
            connection,
            now_ms=self._clock.now_ms(),
            incarnation=self._incarnation,
            memory=self._memory,
            cache=self._cache,
            stored=self._stored,
            keyring=self._keyring,
        )
        if self._kept is not None:
            tx.now_ms = self._kept.begin(tx.clock_mark() if changed else None, reread=changed)
        return tx

    def _mark_time(self, tx: SqliteTransaction) -> None:
        """Takes the clock's mark along, now and then, with what is written anyway."""
        if self._kept is not None and tx.wrote and (mark := self._kept.mark_due(tx.now_ms)) is not None:
            tx.clock_mark_put(mark)

    def _run_apart(self, tx: SqliteTransaction, jobs: list[Job]) -> None:
        """Runs jobs of one verb, together if possible, else each alone."""
        mark = tx.mark()
        try:
            run_together(tx, jobs)
        except apsw.Error:
            raise
        except Exception as error:
            tx.back_to(mark)
            if len(jobs) == 1:
                jobs[0].answer = translate(error)
            else:
                for job in jobs:
                    self._run_apart(tx, [job])
            return
        tx.release()

    def _roll_back(self, connection: apsw.Connection) -> None:
        """Leaves the transaction, whatever is left of it, and trusts nothing remembered."""
        self._forget()
        if connection.in_transaction:
            try:
                connection.execute("ROLLBACK")
            except apsw.Error:
                self._in_doubt = True

    def _forget(self) -> None:
        self._memory.clear()
        self._cache.clear()
        self._data_version = -1

    # Doubt

    def _ready_connection(self, patience_s: float) -> apsw.Connection:
        if self._connection is None:
            if self._in_doubt:
                self._rewrite_log()
            connection = self._connect()
            try:
                self._sync_log(connection)
            except apsw.Error:
                connection.close()
                self._let_go()
                raise
            self._connection = connection
            self._memory.clear()
            self._data_version = -1
        if self._in_doubt:
            self._write_over(self._connection, patience_s)
        if self._checkpointer is not None and self._checkpointer.broken:
            self._rebuild(self._checkpointer)
        assert self._connection is not None
        return self._connection

    def _rebuild(self, checkpointer: Checkpointer) -> None:
        """After a checkpoint failed: reads the whole log anew, copies it and syncs it, or refuses to write.

        Only the first to open a file reads its log from the start; so everyone in this process gets out first.
        """
        with self._inside.alone(_REBUILD_WAIT_S) as alone:
            if not alone:
                raise StoreError("The device failed, and readers have not let go of the store yet. Try again.")
            self.disconnect()
            self._let_go()
            connection = self._connect()
            try:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.Error as error:
                connection.close()
                self._let_go()
                raise StoreError(
                    f"The device failed while the log was copied, and fails still ({error}). Nothing is written until "
                    "the log has been read anew: close the store in every process and open it again."
                ) from error
            self._connection = connection
            checkpointer.broken = False

    def _sync_log(self, connection: apsw.Connection) -> None:
        """Folds in what the log holds before anything is added to it.

        Its end may stem from a commit whose sync failed before its process died: frames that only the
        page cache has. Whatever came after them would be lost with them.
        """
        if self._checkpointer is None:
            return
        connection.set_busy_timeout(_SYNC_WAIT_MS)
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.BusyError, apsw.LockedError):
            # Others have the file open, and the first of them did this.
            pass
        finally:
            connection.set_busy_timeout(0)

    def _clear_doubt(self, error: apsw.Error) -> NoReturn:
        """After a failed commit: makes sure that nothing of it can come back, then raises."""
        if isinstance(error, (apsw.BusyError, apsw.FullError)):
            # Not even its last frame, which makes a commit of it, was written.
            raise translate(error) from error
        self._in_doubt = True
        try:
            if self._connection is not None:
                _cut_off(self._connection)
            self.disconnect()
            self._ready_connection(_BUSY_S)
        except (apsw.Error, StoreError, _Locked):
            raise _Doubt(f"The commit failed ({error}) and the store cannot be written now. Try again.") from error
        raise translate(error) from error

    def _write_over(self, connection: apsw.Connection, patience_s: float) -> None:
        """Writes and syncs a mark, over frames of a failed commit that a crash could bring back."""
        try:
            _commit_one(connection, patience_s, _MARK)
        except apsw.Error:
            _cut_off(connection)
            raise
        self._in_doubt = False


def _take_lock(connection: apsw.Connection, patience_s: float) -> None:
    """Begins a transaction. Whoever queues at the gate finds the lock free; a foreign program may hold it."""
    until = monotonic_s() + patience_s
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except apsw.BusyError as error:
            if monotonic_s() >= until:
                raise _Locked("Another program holds the store's write lock. Nothing was done; try again.") from error
            threading.Event().wait(0.002)


def _commit_one(connection: apsw.Connection, patience_s: float, statement: str) -> None:
    """One statement in a transaction of its own."""
    _take_lock(connection, patience_s)
    try:
        connection.execute(statement)
        connection.execute("COMMIT")
    except apsw.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _cut_off(connection: apsw.Connection) -> None:
    """Ends the log before the frames of a failed commit, by one over the first of them that commits nothing.

    Else whoever reads the log anew would take them for committed and copy them into the file, while the disk may never
    get them: a power loss in the middle would leave a half-copied transaction and no log to make it whole.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_MARK)
        connection.cache_flush()
    except apsw.Error:
        # Busy: whoever writes now writes over them. Anything else: the doubt stays as it is.
        pass
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class _Locked(Busy):
    """The store's write lock could not be had in time."""

    code = Busy.code


class _Doubt(StoreError):
    """It is unknown whether the transaction was stored."""

    code = StoreError.code
