"""The writer: one at a time has the write connection, and group commit.

Callers put jobs into a bounded queue and wait. A thread takes what is there (tenants in fair
turn), runs it in one transaction, syncs once, and answers everybody. While it syncs, the next
jobs gather: the slower the disk, the bigger the group.

A caller that finds nobody writing and nobody waiting runs its job itself: two thread switches less,
and its data still in the processor's cache. Not so the main thread, where a signal's exception
(KeyboardInterrupt) or a handler that publishes can come up between any two steps of a transaction.

    queued ──▶ running ──commit──▶ answered
      │           └──rollback──▶ answered with the error; nothing was done
      └─ timeout: withdrawn, nothing was done      (a timeout while running: outcome unknown)

Inside a transaction neighbouring jobs of one verb run as one call under a savepoint. Should that
call raise, it is undone and each job runs again alone under its own: one caller's error is nobody else's.

A commit whose sync fails leaves a doubt: its frames may have reached the disk, and a crash before the
next write would bring them back. So the writer reopens the file and writes and syncs a mark over
them; only then does it answer "nothing was stored". If even that fails, publishers get PublishUnknown,
and the next transaction begins by clearing the doubt. (Reopening alone would not do: the last to close
a file and the first to open it again *recover* the log, unsynced frames and all. So the store keeps one
more connection open, the anchor; and whoever opens a file first syncs what its log holds before adding to it.
A checkpoint that fails leaves a hole of another kind (checkpoint.py): nothing is written before _rebuild closed it.)
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import apsw

from ...clock import Clock, monotonic_s
from ...engine.fair_queue import FairQueue
from ...engine.memory import BlockCache, Memory
from ...engine.publish import Remember, remember_publish
from ...errors import Busy, Closed, Error, PublishUnknown, StoreError, StoreFull, Timeout
from ...events import Event, Listener, tell
from ...limits import LIMITS
from ..contract import Aftermath, Verb
from .bell import Bell
from .checkpoint import Checkpointer
from .faults import translate
from .fork_gate import ForkGate
from .gate import Gate
from .transaction import SqliteTransaction

_JOBS_A_TRANSACTION = 1024
_COST_A_TRANSACTION = 32 * 1024 * 1024
_BUSY_S = 10.0
_SYNC_WAIT_MS = 100
_REBUILD_WAIT_S = 5.0


_GIVEN, _QUEUED, _RUNNING, _FINISHED = range(4)

# A job that costs no more is handed over without the lock, and bounded by number alone.
_SMALL_COST = 1024


class Job:
    """One command on its way through the writer."""

    __slots__ = ("abandoned", "answer", "command", "cost", "done", "publish_id", "stage", "tenant", "verb")

    def __init__(self, verb: Verb[Any, Any], command: Any, tenant: str, publish_id: str, cost: int = 0) -> None:
        self.verb = verb
        self.command = command
        self.tenant = tenant
        self.cost = cost
        self.publish_id = publish_id
        self.answer: Any = None
        # Both under the writer's lock: how far it has come, and whether its caller gave up.
        self.stage = _GIVEN
        self.abandoned = False
        self.done = threading.Lock()
        self.done.acquire()


class Writer:
    """Runs jobs in group commits on the one connection that writes."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        *,
        clock: Clock,
        incarnation: str,
        cache: BlockCache,
        bell: Bell,
        gate: Gate,
        inside: ForkGate,
        checkpointer: Checkpointer | None,
        let_go: Callable[[], None],
        listener: Listener | None,
    ) -> None:
        self._connect = connect
        self._connection: apsw.Connection | None = None
        self._clock = clock
        self._incarnation = incarnation
        self._memory = Memory()
        self._cache = cache
        self._bell = bell
        self._gate = gate
        self._inside = inside
        self._checkpointer = checkpointer
        # Closes the other idle connections, so that the next one to open begins from the file.
        self._let_go = let_go
        self._listener = listener
        self._data_version = -1
        self._in_doubt = False
        # Callers hand jobs over here without a lock; whoever writes moves them into the fair queue.
        self._given: deque[Job] = deque()
        self._queue: FairQueue[Job] = FairQueue()
        self._changed = threading.Condition()
        self._asleep = False
        self._ended = False
        # Held by whoever runs a transaction: the thread below, or a caller.
        self._pen = threading.Lock()
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
        if self._run_here(job):
            return _answer(job)
        self._hand_over(job, deadline)
        if not job.done.acquire(timeout=-1 if deadline is None else max(0.0, deadline - monotonic_s())):
            self._give_up(job)
        return _answer(job)

    def _run_here(self, job: Job) -> bool:
        """Runs the job on the caller's thread, if nobody writes or waits."""
        if self._given or self._queue.count:
            return False
        if threading.current_thread() is threading.main_thread():
            return False
        if not self._pen.acquire(blocking=False):
            return False
        try:
            # Never waits here: a caller has a deadline, and the thread below has time.
            if self._closing or self._given or self._queue.count or not self._gate.try_enter():
                return False
            return self._transact([job], waits=False)
        finally:
            self._pen.release()

    def _hand_over(self, job: Job, deadline: float | None) -> None:
        if self._full() or job.cost > _SMALL_COST or self._closing:
            self._wait_for_room(job, deadline)
        else:
            self._given.append(job)
        # Read after the job is there, and set before the thread looks: one of the two notices the other.
        if self._asleep or self._closing:
            with self._changed:
                if self._ended and job.stage == _GIVEN:
                    raise Closed()
                self._changed.notify_all()

    def _full(self) -> bool:
        many = len(self._given) + self._queue.count >= LIMITS.writer_commands_max
        return many or self._queue.cost >= LIMITS.writer_bytes_max

    def _wait_for_room(self, job: Job, deadline: float | None) -> None:
        with self._changed:
            while self._full():
                left = None if deadline is None else deadline - monotonic_s()
                if self._closing or (left is not None and left <= 0) or not self._changed.wait(left):
                    raise Busy()
            if self._closing:
                raise Closed()
            job.stage = _QUEUED
            self._queue.put(job.tenant, job.cost, job)

    def _give_up(self, job: Job) -> None:
        """The caller's time is over: withdraws the job, or says that its outcome is unknown."""
        with self._changed:
            job.abandoned = job.stage != _FINISHED
            if job.stage == _GIVEN or (job.stage == _QUEUED and self._queue.remove(job.tenant, job)):
                raise Timeout()
        if not job.abandoned:
            job.done.acquire()
        elif job.publish_id:
            raise _unknown(job)
        else:
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

    def disconnect(self) -> None:
        """Closes the connection between transactions; the next one opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _loop(self) -> None:
        while self._sleep():
            with self._pen:
                # Taken as late as can be: what gathered while a caller wrote goes along.
                jobs = self._take()
                if jobs:
                    self._transact(jobs, waits=True)
        # A caller may still be writing on its own.
        with self._pen, self._inside:
            self.disconnect()

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
            was_full = self._full()
            while self._given:
                job = self._given.popleft()
                if not job.abandoned:
                    job.stage = _QUEUED
                    self._queue.put(job.tenant, job.cost, job)
            jobs = self._queue.take(_JOBS_A_TRANSACTION, _COST_A_TRANSACTION)
            for job in jobs:
                job.stage = _RUNNING
            if was_full:
                self._changed.notify_all()
        return jobs

    def _transact(self, jobs: Sequence[Job], *, waits: bool) -> bool:
        """One group commit, entered at the gate if it does not wait. Whatever happens, every job is answered.

        False, which only one that does not wait answers: the store is locked, nothing was done.
        """
        with self._inside:
            aftermath = Aftermath()
            try:
                if waits:
                    self._gate.enter()
                try:
                    aftermath = self._attempt(jobs, patience_s=_BUSY_S if waits else 0.0).aftermath
                finally:
                    self._gate.leave()
            except _Locked as error:
                if not waits:
                    return False
                for job in jobs:
                    job.answer = error
            except Error as error:
                self._tell_full(error)
                for job in jobs:
                    job.answer = _unknown(job) if job.publish_id and isinstance(error, _Doubt) else error
            self._bell.ring(aftermath.rings)
            self._finish(jobs)
            if self._checkpointer is not None and self._connection is not None:
                self._checkpointer.after_commit(self._connection, freed=aftermath.freed)
        for event in aftermath.events:
            tell(event, self._listener)
        return True

    def _finish(self, jobs: Sequence[Job]) -> None:
        """Answers everyone. A publisher that gave up and was stored after all is remembered by its publish id."""
        with self._changed:
            for job in jobs:
                job.stage = _FINISHED
                if job.abandoned and job.publish_id and not isinstance(job.answer, Exception):
                    stored = Remember(job.command, job.answer)
                    self._given.append(Job(remember_publish, stored, job.tenant, ""))
        for job in jobs:
            job.done.release()

    def _tell_full(self, error: Exception) -> None:
        if isinstance(error, StoreFull):
            tell(Event("store_full", self._clock.now_ms(), facts={"why": str(error)}), self._listener)

    def _attempt(self, jobs: Sequence[Job], *, patience_s: float) -> SqliteTransaction:
        """Runs the jobs and commits. Raises one of our errors when nothing was stored."""
        try:
            connection = self._ready_connection(patience_s)
            _take_lock(connection, patience_s)
        except (apsw.Error, StoreError) as error:
            if self._in_doubt:
                # An earlier commit may yet turn out to be stored, and this may be its repetition.
                raise _Doubt(f"An earlier commit is in doubt, and the store cannot be written now: {error}") from error
            raise translate(error) from error
        try:
            tx = self._begin(connection)
            for _, group in itertools.groupby(jobs, key=lambda job: job.verb):
                self._run_group(tx, list(group))
        except Exception as error:
            # Whatever it was: a transaction left open would shut everyone out for ever.
            self._roll_back(connection)
            raise translate(error) from error
        try:
            connection.execute("COMMIT")
        except apsw.Error as error:
            self._roll_back(connection)
            self._clear_doubt(error)
        self._memory.commit()
        tx.committed()
        return tx

    def _begin(self, connection: apsw.Connection) -> SqliteTransaction:
        """A transaction, with a memory that can be trusted: cleared if anyone else wrote."""
        # The pragma, not the file control of that name: it tells of others' commits alone.
        ((version,),) = connection.execute("PRAGMA data_version")
        if version != self._data_version:
            self._memory.clear()
            self._data_version = version
        return SqliteTransaction(
            connection,
            now_ms=self._clock.now_ms(),
            incarnation=self._incarnation,
            memory=self._memory,
            cache=self._cache,
        )

    def _run_group(self, tx: SqliteTransaction, jobs: list[Job]) -> None:
        """Runs neighbouring jobs of one verb, together if possible, else each alone."""
        mark = tx.mark()
        try:
            answers = jobs[0].verb(tx, [job.command for job in jobs])
        except apsw.Error:
            raise
        except Exception as error:
            tx.back_to(mark)
            if len(jobs) == 1:
                jobs[0].answer = translate(error)
            else:
                for job in jobs:
                    self._run_group(tx, [job])
            return
        tx.release()
        for job, answer in zip(jobs, answers, strict=True):
            job.answer = answer

    def _roll_back(self, connection: apsw.Connection) -> None:
        """Leaves the transaction, whatever is left of it, and trusts nothing remembered."""
        self._memory.clear()
        self._data_version = -1
        if connection.in_transaction:
            try:
                connection.execute("ROLLBACK")
            except apsw.Error:
                self._in_doubt = True

    # Doubt

    def _ready_connection(self, patience_s: float) -> apsw.Connection:
        if self._connection is None:
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
            self.disconnect()
            self._ready_connection(_BUSY_S)
        except (apsw.Error, StoreError, _Locked):
            raise _Doubt(f"The commit failed ({error}) and the store cannot be written now. Try again.") from error
        raise translate(error) from error

    def _write_over(self, connection: apsw.Connection, patience_s: float) -> None:
        """Writes and syncs a mark, over frames of a failed commit that a crash could bring back."""
        mark = "INSERT INTO duly_meta (key, value) VALUES ('doubts', 1) ON CONFLICT DO UPDATE SET value = value + 1"
        _commit_one(connection, patience_s, mark)
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


class _Locked(Busy):
    """The store's write lock could not be had in time."""

    code = Busy.code


class _Doubt(StoreError):
    """It is unknown whether the transaction was stored."""

    code = StoreError.code


def _answer(job: Job) -> Any:
    if isinstance(job.answer, Exception):
        raise job.answer
    return job.answer


def _unknown(job: Job) -> PublishUnknown:
    return PublishUnknown(
        f"It is unknown whether the batch was stored. Publish it again with publish_id={job.publish_id!r}: "
        "it is stored once, whatever happened.",
        publish_id=job.publish_id,
    )
