"""The writer on PostgreSQL: a transaction a topic at a time, group commit, and what becomes of a lost connection.

Callers leave jobs at the seat of their topic (seat.py). Whoever finds the seat free leads: it begins a transaction,
which waits for the topic's lock among all brokers, takes the jobs that have gathered, runs them, commits once and
answers them all. Topics do not wait for each other; each has its own lock, and lines (line.py) are taken from a small
pool.

While nobody waits callers lead, as many as there are lines for; else a seat waits for one of a few leaders, and tenants
have turns there: one with a thousand topics has one transaction, and then it is the next one's turn
(engine/fair_queue.py). At a topic's seat there is one tenant only. A tenant that fills the memory in which jobs wait is
refused, and nobody else is (engine/allowance.py).

    queued ──▶ running ──commit──▶ answered
      │  ▲        ├──rollback──▶ answered with the error; nothing was done
      │  └────────┤ the line was lost before COMMIT was sent: nothing was done, run again on another
      │           └ lost behind it: in doubt. Publishes are repeated, by their ids; the others are told so
      └─ timeout: withdrawn, nothing was done      (a timeout while running: outcome unknown)

The main thread never leads: a signal's exception could come up between any two steps.

    careful    BEGIN, enter ══▶ the lock, whose turn it was, what is needed ══▶ computed ══▶ written, COMMIT
    trusting   computed from what is remembered ══▶ BEGIN, guard, written, COMMIT    (refused whole if it was not true)

Where nobody else works on a topic, one trip makes a transaction. Where somebody does, guards fail; then it is looked
first for a while, and whoever is busy keeps the topic for some milliseconds (see _stays).

A commit that was cancelled while it waited for its synchronous standby is reported as done, with a warning alone
("might not have been replicated"): it is in doubt here.

Claims that wrote nothing else are committed without waiting for the disk. Should the server lose them, their leases
never were: whoever holds one is refused, and the messages are delivered again. (Ids of leases are given by the
thousand, durably, so a lost one's is not used again.)
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from msgspec.structs import replace

from ...clock import Clock, monotonic_s
from ...engine.allowance import Backlog
from ...engine.audit import end_chains
from ...engine.claim import claim
from ...engine.claimed import Claim, Claimed
from ...engine.fair_queue import QUANTUM, FairQueue
from ...engine.memory import BlockCache, Memory
from ...engine.publish import Publish
from ...engine.record import write_records
from ...engine.secrets import Keyring
from ...engine.verdict import Settle
from ...errors import Busy, Closed, Error, StoreError, Timeout, Unavailable
from ...events import Event, Listener, tell
from ...limits import LIMITS
from ...tenant import Weights
from ..contract import Aftermath, Verb
from ..jobs import FINISHED, QUEUED, RUNNING, Job, answer_of, by_verb, remembering, run_together, unknown
from ..sql.stored import StoredBytes
from .bell import NotifyBell
from .clock import PostgresClock
from .faults import CHANGED, GOING_AWAY, LOCK_NOT_AVAILABLE, PASSING, translate
from .hints import hints_of
from .inbox import leave_verdict, spoken_of, take_in
from .line import Line, LineLost, Refused
from .pool import Pool
from .seat import CHORES, DEFINITIONS, Seat, new_epoch, topic_of
from .statements import statements
from .transaction import PostgresTransaction, Turn

_JOBS_A_TRANSACTION = 1024
# Its topic's other jobs wait for its end, and a line for others' topics does.
_COST_A_TRANSACTION = 8 * 1024 * 1024
_LEADERS = 6
# A caller with less time than this does not lead.
_LEADS_FROM_S = 20.0
_SEATS_MAX = 10_000
_AGAIN_S = 0.05
# How long a job waits for a lost server that nobody waits for.
_SUBMITTED_S = 20.0
_AGAIN_S_MAX = 1.0
# How often a transaction is run again that another one got in the way of.
_TRIES = 8
# How long it is looked how things stand first, after somebody else had a turn.
_CAREFUL_S = 0.5
# From so many callers on a topic that others want, too, is kept; for so long; and waited so long for the next.
_MANY_JOBS = 3
_KEPT_S = 0.02
_LINGER_S = 0.002


class Doubt(StoreError):
    """It is unknown whether the transaction was stored."""

    code = StoreError.code


class PostgresWriter:
    """Runs jobs in group commits, a topic at a time."""

    def __init__(
        self,
        pool: Pool,
        *,
        clock: Clock,
        server_clock: PostgresClock,
        incarnation: str,
        session: int,
        space: int,
        new_lease_id: Callable[[], int],
        cache: BlockCache,
        stored: StoredBytes,
        keyring: Keyring,
        weights: Weights,
        bell: NotifyBell,
        listener: Listener | None,
        freed: Callable[[], None],
    ) -> None:
        self._pool = pool
        # So many callers may lead: there is a line for each of them, and for each leader.
        self._guests_max = max(1, pool.most - _LEADERS)
        self._clock = clock
        self._server_clock = server_clock
        self._incarnation = incarnation
        self._session = session
        # What tells the locks of one store from those of another in the same database.
        self._space = space
        self._new_lease_id = new_lease_id
        self._cache = cache
        self._stored = stored
        self._keyring = keyring
        self._bell = bell
        self._listener = listener
        # Told when space was freed inside the store.
        self._freed = freed
        self._sql = statements()
        self._seats: OrderedDict[tuple[str, str | None], Seat] = OrderedDict()
        # Seats with jobs and nobody at them yet. Each turn is a transaction, whatever is in it: a round of the tenants.
        self._weights = weights
        self._ready: FairQueue[Seat] = FairQueue(weights, each=QUANTUM)
        self._backlog = Backlog()
        self._busy = 0
        # Callers that lead.
        self._guests = 0
        self._lock = threading.Lock()
        # Each wakes those alone that it is for: whoever is woken for nothing takes the interpreter from those at work.
        self._room = threading.Condition(self._lock)
        self._work_left = threading.Condition(self._lock)
        self._more = threading.Condition(self._lock)
        self._rest = threading.Condition(self._lock)
        self._leaders: list[threading.Thread] = []
        # Leaders that sleep, and that nobody has woken yet.
        self._idle = 0
        self._closing = False

    # Handing over

    def run(
        self, verb: Verb[Any, Any], command: Any, *, tenant: str, cost: int, deadline: float | None, publish_id: str
    ) -> Any:
        """Queues a job and waits for its answer; an answer that is an error is raised."""
        job = Job(verb, command, tenant, publish_id, cost)
        # Whoever leads waits for the server, however long that is silent; the others are woken when their time is over.
        has_time = deadline is None or deadline - monotonic_s() >= _LEADS_FROM_S
        leads = has_time and threading.current_thread() is not threading.main_thread()
        seat = self._hand_over(job, deadline, leads=leads)
        if seat is not None:
            self._lead(seat, job)
        in_time = False
        try:
            in_time = job.done.acquire(timeout=-1 if deadline is None else max(0.0, deadline - monotonic_s()))
        finally:
            withdrawn = not in_time and self._abandon(job)
        if job.abandoned:
            _give_up(job, withdrawn=withdrawn)
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
        """Queues a job and returns; `then` gets its answer, or the error that it is, on the thread that wrote."""
        job = Job(verb, command, tenant, publish_id, cost)
        job.caller, job.then = None, then
        job.give_up_at = monotonic_s() + _SUBMITTED_S
        self._hand_over(job, 0.0, leads=False)

    def _hand_over(self, job: Job, deadline: float | None, *, leads: bool) -> Seat | None:
        """Leaves a job at its seat. Answers the seat if the caller is to lead there."""
        with self._lock:
            while not self._backlog.allows(job.tenant, LIMITS.writer_commands_max, LIMITS.writer_bytes_max):
                left = None if deadline is None else deadline - monotonic_s()
                if self._closing or (left is not None and left <= 0) or not self._room.wait(left):
                    raise Busy()
            if self._closing:
                raise Closed()
            seat = self._seat_of(job)
            return self._seat_job(seat, job, leads=leads)

    def _seat_job(self, seat: Seat, job: Job, *, leads: bool) -> Seat | None:
        job.stage = QUEUED
        seat.come(job)
        self._backlog.come(job.tenant, job.cost)
        if seat.busy:
            if seat.lingers:
                self._more.notify_all()
            return None
        seat.busy = True
        self._busy += 1
        # Not past those who wait for their turn.
        if leads and self._guests < self._guests_max and not self._ready.count:
            self._guests += 1
            return seat
        self._call_leader(seat)
        return None

    def _seat_of(self, job: Job) -> Seat:
        name = topic_of(job.command)
        # A chore's command names the topic's tenant; the job's is the chores' own.
        key = ("" if name is None else getattr(job.command, "tenant", job.tenant), name)
        seat = self._seats.get(key)
        if seat is None:
            seat = self._seats[key] = Seat(*key, self._weights)
            if len(self._seats) > _SEATS_MAX:
                self._forget_seats()
        else:
            self._seats.move_to_end(key)
        return seat

    def _forget_seats(self) -> None:
        for key in list(itertools.islice(self._seats, _SEATS_MAX // 10)):
            if not self._seats[key].busy:
                del self._seats[key]

    def _call_leader(self, seat: Seat) -> None:
        self._ready.put(seat.tenant, 0, seat)
        if self._idle:
            self._idle -= 1
            self._work_left.notify()
        elif len(self._leaders) < _LEADERS:
            thread = threading.Thread(target=self._serve, name="duly-writer", daemon=True)
            self._leaders.append(thread)
            thread.start()

    def _abandon(self, job: Job) -> bool:
        """The caller waits no longer. True if the job was withdrawn in time; a finished one is not abandoned."""
        with self._lock:
            job.abandoned = job.stage != FINISHED
            return job.stage == QUEUED

    def close(self) -> None:
        """Finishes what is queued and stops."""
        with self._lock:
            self._closing = True
            self._room.notify_all()
            self._more.notify_all()
            self._wake_leaders()
            while self._busy:
                self._rest.wait()
        for thread in self._leaders:
            thread.join()

    # Leading

    def _serve(self) -> None:
        while True:
            with self._lock:
                while not self._ready.count:
                    if self._closing and not self._busy:
                        return
                    self._idle += 1
                    # Whoever wakes it has counted it out.
                    self._work_left.wait()
                (seat,) = self._ready.take(1, QUANTUM)
            self._lead(seat, None)

    def _wake_leaders(self) -> None:
        """All of them: it is being closed."""
        self._idle = 0
        self._work_left.notify_all()

    def _lead(self, seat: Seat, own: Job | None) -> None:
        """Serves a seat until nothing waits there, or others' turn has come; a caller's thread, until its own job is
        done or put off.
        """
        pause = _AGAIN_S
        while True:
            done = self._transact(seat)
            with self._lock:
                if not seat.jobs or (self._closing and not done):
                    left = list(seat.jobs)
                    for job in left:
                        seat.leave(job)
                    seat.busy = False
                    self._busy -= 1
                    self._guests -= own is not None
                    if self._closing:
                        self._rest.notify_all()
                        self._wake_leaders()
                    break
                if own is not None and (own.stage == FINISHED or not done):
                    self._guests -= 1
                    self._call_leader(seat)
                    return
                if own is None and done and self._ready.count:
                    self._ready.put(seat.tenant, 0, seat)
                    return
            if not done:
                threading.Event().wait(pause)
                pause = min(2 * pause, _AGAIN_S_MAX)
            else:
                pause = _AGAIN_S
        for job in left:
            _refuse(job, Unavailable("PostgreSQL cannot be reached, and this is being closed. Nothing was done."))
        self._finish(left)

    def _take(self, seat: Seat) -> list[Job]:
        """The next group of a seat's jobs."""
        taken: list[Job] = []
        cost = 0
        with self._lock:
            while seat.jobs and len(taken) < _JOBS_A_TRANSACTION and cost < _COST_A_TRANSACTION:
                job = seat.next()
                self._backlog.go(job.tenant, job.cost)
                if not job.abandoned:
                    job.stage = RUNNING
                    taken.append(job)
                    cost += job.price
                if seat.name is None:
                    break
            self._room.notify_all()
        return taken

    def _put_back(self, seat: Seat, jobs: Sequence[Job]) -> None:
        """Nothing was done of them: they wait again, and can be withdrawn."""
        with self._lock:
            for job in reversed(jobs):
                job.stage = QUEUED
                seat.come_back(job)
                self._backlog.come(job.tenant, job.cost)

    def _transact(self, seat: Seat) -> bool:
        """One group commit. False: the server could not be reached; the jobs are still there."""
        jobs: list[Job] = []
        aftermath = Aftermath()
        try:
            with self._pool.line() as line:
                aftermath = self._attempt(line, seat, jobs)
                while self._stays(line, seat, len(jobs)):
                    self._conclude(jobs, aftermath)
                    jobs.clear()
                    aftermath = Aftermath()
                    aftermath = self._attempt(line, seat, jobs)
        except LineLost as error:
            seat.doubt()
            seat.kept_until = 0.0
            self._cache.clear()
            self._put_back(seat, jobs)
            self._turn_away(seat, error)
            return False
        except Doubt as error:
            seat.doubt()
            seat.kept_until = 0.0
            self._cache.clear()
            jobs = self._repeat(seat, jobs, error)
        except Error as error:
            jobs = jobs or self._take(seat)
            self._answer_all(jobs, error)
        self._conclude(jobs, aftermath)
        return True

    def _conclude(self, jobs: Sequence[Job], aftermath: Aftermath) -> None:
        """What follows a commit: those who wait are woken, callers answered, events told."""
        self._bell.ring(aftermath.rings)
        self._finish(jobs)
        for event in aftermath.events:
            tell(event, self._listener)
        if aftermath.freed:
            self._freed()

    # Staying

    def _stays(self, line: Line, seat: Seat, served: int) -> bool:
        """Whether the topic is kept for another transaction at once, though others want it; if not, it is let go of.

        Where several brokers are busy on one topic each would have it for one small transaction and find all it
        remembers outdated. So whoever has many callers keeps it for some milliseconds, and waits a moment for the next.
        """
        if not seat.kept_until:
            return False
        with self._lock:
            left = seat.kept_until - monotonic_s()
            if left > 0 and not seat.jobs and served >= _MANY_JOBS and not self._closing:
                seat.lingers = True
                self._more.wait(min(left, _LINGER_S))
                seat.lingers = False
            stays = bool(seat.jobs) and seat.kept_until > monotonic_s()
        if not stays:
            seat.kept_until = 0.0
            try:
                line.ask(self._sql["unlock"], {"space": self._space, "key": seat.topic_id})
            except (LineLost, Refused):
                # The lock goes with the connection. What was served is stored: run again, it would be stored twice.
                line.close()
        return stays

    def _turn_away(self, seat: Seat, error: LineLost) -> None:
        """Jobs that nobody waits for are not kept for ever for a server that does not come back."""
        now = monotonic_s()
        late: list[Job] = []
        with self._lock:
            for job in list(seat.jobs):
                if job.then is not None and now >= job.give_up_at:
                    seat.leave(job)
                    self._backlog.go(job.tenant, job.cost)
                    late.append(job)
        for job in late:
            _refuse(job, translate(error))
        self._finish(late)

    def _repeat(self, seat: Seat, jobs: list[Job], error: Doubt) -> list[Job]:
        """Publishes in doubt are asked again, by their ids; the others are told. Answers those that are done with."""
        again = [job for job in jobs if isinstance(job.command, Publish) and job.publish_id and not job.abandoned]
        for job in again:
            job.command = replace(job.command, repeated=True)
        others = [job for job in jobs if job not in again]
        for job in others:
            job.answer = unknown(job) if job.publish_id else error
        self._put_back(seat, again)
        return others

    def _answer_all(self, jobs: Sequence[Job], error: Error) -> None:
        for job in jobs:
            _refuse(job, error)
        if error.code == "store_full":
            tell(Event("store_full", self._clock.now_ms(), facts={"why": str(error)}), self._listener)

    def _finish(self, jobs: Sequence[Job]) -> None:
        """Answers everyone. A publisher that gave up and was stored after all is remembered by its publish id."""
        told: list[Job] = []
        with self._lock:
            for job in jobs:
                job.stage = FINISHED
                if job.then is not None:
                    told.append(job)
                elif job.publish_id and job.abandoned and not isinstance(job.answer, Exception):
                    own = remembering(job)
                    self._seat_job(self._seat_of(own), own, leads=False)
                else:
                    job.done.release()
        for job in told:
            assert job.then is not None
            job.then(job.answer)

    # One transaction

    def _attempt(self, line: Line, seat: Seat, jobs: list[Job]) -> Aftermath:
        """Runs a seat's jobs and commits; those that it took are added to `jobs`. Raises when nothing was stored."""
        for left in reversed(range(_TRIES)):
            try:
                tx = self._begin(line, seat)
                if not jobs:
                    jobs += self._take(seat)
                    if self._clock is not self._server_clock:
                        # A test may have moved its clock since, and then called: no job is older than its time.
                        tx.now_ms = self._clock.now_ms()
                tx = self._work(tx, seat, jobs)
                end_chains(tx)
                write_records(tx)
                if any(_is_repeated(job) for job in jobs):
                    # One that found its batch stored wrote nothing, and would not wait for the standby to have that.
                    tx.write_turns()
                tx.finish(0 if seat.name is None or seat.topic_id is None else self._session)
                self._commit(tx, seat, jobs)
                return tx.aftermath
            except (LineLost, Doubt):
                # In doubt, it is over for this line: to undo what is gone would say that nothing was done.
                raise
            except Exception as error:
                # Whatever it was: a transaction left open would shut everyone out.
                changed = isinstance(error, Refused) and error.state == CHANGED
                self._roll_back(line, seat, nothing_read=changed)
                if changed:
                    # Somebody else is at this topic, too: it is looked at before anything is computed, for a while.
                    seat.careful_until = monotonic_s() + _CAREFUL_S
                if isinstance(error, Refused) and error.state in GOING_AWAY:
                    line.close()
                    raise LineLost(str(error)) from error
                if not left or not isinstance(error, Refused) or error.state not in PASSING:
                    raise translate(error) from error
        raise AssertionError

    def _begin(self, line: Line, seat: Seat) -> PostgresTransaction:
        """A transaction with the topic's lock, and a memory that can be trusted."""
        sql = self._sql
        if line.opened_at > seat.memory_at:
            # Nothing that is remembered is of this server's life, perhaps.
            seat.doubt()
        if seat.name is not None and seat.topic_id is None:
            found = line.ask(sql["topic_by_name"], {"tenant": seat.tenant, "topic": seat.name})
            seat.topic_id = found[0][0] if found else None
        seat.begun_at = monotonic_s()
        line.command(b"BEGIN")
        if seat.topic_id is None:
            return self._begin_cold(line, seat)
        now = seat.begun_at
        trusts = seat.turn >= 0 and self._server_clock.is_fresh()
        if trusts and (seat.kept_until or now > seat.careful_until):
            return self._begin_trusting(line, seat)
        if now < seat.careful_until and len(seat.jobs) >= _MANY_JOBS and not seat.kept_until:
            line.put(sql["keep"], {"space": self._space, "key": seat.topic_id})
            seat.kept_until = now + _KEPT_S
        asked = {"space": self._space, "topic": seat.topic_id, "floor": seat.mail_floor}
        hints = hints_of(seat.memory, seat.tenant, seat.name, self._clock.now_ms())
        entered, *hinted = line.ask_all([(sql["enter"], asked), *hints.asked(sql)])
        now_us, n, session, next_id, definitions, has_mail = entered[0]
        turn = Turn(n or 0, session or 0, next_id or 0)
        if definitions != seat.definitions:
            seat.forget(definitions=True)
            seat.definitions = definitions
            if self._is_another(line, seat):
                line.command(b"ROLLBACK")
                self._let_go(line, seat)
                return self._begin(line, seat)
        elif turn.session != self._session or turn.n != seat.turn:
            seat.forget(definitions=False)
            hints.useful = True
            if turn.session:
                seat.careful_until = now + _CAREFUL_S
        seat.next_id = turn.next_id
        tx = self._transaction(line, self._time(now_us), seat.memory, {seat.topic_id: turn})
        tx.lease_epoch = seat.lease_epoch
        tx.mail_floor = seat.mail_floor
        if hints.useful:
            hints.apply(tx, hinted)
        if has_mail:
            tx.mail_floor = take_in(tx, seat.tenant, seat.name or "", seat.topic_id, tx.mail_floor)
        return tx

    def _begin_trusting(self, line: Line, seat: Seat) -> PostgresTransaction:
        """One that computes by what is remembered, and is refused as a whole if that is not true: a trip less."""
        assert seat.topic_id is not None
        now_ms = self._clock.now_ms()
        line.put(
            self._sql["guard"],
            {
                "space": self._space,
                "topic": seat.topic_id,
                "n": seat.turn,
                "session": self._session,
                "definitions": seat.definitions,
                "floor": seat.mail_floor,
                # A clock that a test moves is its affair.
                "at_ms": now_ms if self._clock is self._server_clock else None,
            },
        )
        turn = Turn(seat.turn, self._session, seat.next_id)
        tx = self._transaction(line, now_ms, seat.memory, {seat.topic_id: turn})
        tx.lease_epoch = seat.lease_epoch
        tx.mail_floor = seat.mail_floor
        return tx

    def _time(self, now_us: int) -> int:
        """What time it is, by a reading of the server's clock that has just come."""
        server_ms = self._server_clock.note(now_us)
        return server_ms if self._clock is self._server_clock else self._clock.now_ms()

    def _let_go(self, line: Line, seat: Seat) -> None:
        """Whatever was kept of a topic beyond its transaction is free again."""
        if seat.kept_until:
            seat.kept_until = 0.0
            line.ask(self._sql["unlock_all"], {})

    def _is_another(self, line: Line, seat: Seat) -> bool:
        """Whether the topic was deleted meanwhile, and perhaps made again."""
        found = line.ask(self._sql["topic_by_name"], {"tenant": seat.tenant, "topic": seat.name})
        before, seat.topic_id = seat.topic_id, found[0][0] if found else None
        return seat.topic_id != before

    def _begin_cold(self, line: Line, seat: Seat) -> PostgresTransaction:
        """A transaction that remembers nothing: on several topics, on the store, or on a topic that is not there."""
        key = DEFINITIONS if seat.name is not None else CHORES
        now_us = line.ask_all(
            [(self._sql["lock"], {"space": self._space, "key": key}), (self._sql["now"], {})],
        )[1][0][0]
        tx = self._transaction(line, self._time(now_us), Memory(), {})
        tx.lease_epoch = new_epoch()
        tx.event_floor = seat.event_floor if line.opened_at <= seat.memory_at else 0
        tx.read_time = lambda: self._time(line.ask(self._sql["now"], {})[0][0])
        return tx

    def _transaction(self, line: Line, now_ms: int, memory: Memory, turns: dict[int, Turn]) -> PostgresTransaction:
        tx = PostgresTransaction(
            line,
            now_ms=now_ms,
            incarnation=self._incarnation,
            memory=memory,
            cache=self._cache,
            stored=self._stored,
            keyring=self._keyring,
            new_lease_id=self._new_lease_id,
            enter=lambda topic: self._enter(line, topic),
            turns=turns,
        )
        tx.spoken_of = partial(spoken_of, tx)
        return tx

    def _enter(self, line: Line, topic: int) -> Turn:
        asked = {"space": self._space, "topic": topic, "floor": 0}
        _, n, session, next_id, _, _ = line.ask(self._sql["enter"], asked)[0]
        return Turn(n or 0, session or 0, next_id or 0)

    def _work(self, tx: PostgresTransaction, seat: Seat, jobs: Sequence[Job]) -> PostgresTransaction:
        """Runs the jobs. If one fails all run again, each group under a savepoint; so it is undone alone."""
        groups = by_verb(jobs)
        try:
            for group in groups:
                _run(tx, group)
            return tx
        except LineLost:
            raise
        except Exception as error:
            alone = len(jobs) == 1 and not _can_be_left(jobs[0], error)
            if isinstance(error, Refused) and (alone or error.state in PASSING or error.state in GOING_AWAY):
                raise
            self._roll_back(tx.line, seat)
        tx = self._begin(tx.line, seat)
        for group in groups:
            self._run_apart(tx, group)
        return tx

    def _run_apart(self, tx: PostgresTransaction, jobs: list[Job]) -> None:
        """Runs jobs of one verb, together if possible, else each alone."""
        mark = tx.mark()
        try:
            _run(tx, jobs)
            tx.release()
        except LineLost:
            raise
        except Exception as error:
            tx.back_to(mark)
            if len(jobs) == 1:
                jobs[0].answer = _leave(tx, jobs[0]) if _can_be_left(jobs[0], error) else translate(error)
            else:
                for job in jobs:
                    self._run_apart(tx, [job])

    def _commit(self, tx: PostgresTransaction, seat: Seat, jobs: Sequence[Job]) -> None:
        line = tx.line
        if tx.wrote and not tx.lasting and all(_claims_alone(job) for job in jobs):
            line.command(b"SET LOCAL synchronous_commit = off")
        # What is refused up to here is refused; from here on it is in doubt.
        line.command(b"COMMIT")
        try:
            line.flush()
        except LineLost as error:
            raise Doubt(f"The connection broke during a commit ({error}): it may have been done, or not.") from error
        if any("replicat" in warning for warning in line.warnings):
            raise Doubt("The commit was not confirmed by the standby: it may be lost with this server.")
        seat.memory.commit()
        tx.committed()
        if tx.wrote and seat.topic_id is not None:
            turn = tx.turns.get(seat.topic_id)
            seat.turn = -1 if turn is None else turn.n
            seat.next_id = 0 if turn is None else turn.next_id
        seat.mail_floor = max(seat.mail_floor, tx.mail_floor)
        seat.event_floor = tx.event_floor
        seat.memory_at = seat.begun_at

    def _roll_back(self, line: Line, seat: Seat, *, nothing_read: bool = False) -> None:
        """Leaves the transaction, whatever is left of it, and trusts nothing remembered.

        Of one that was refused before it read anything nothing is in the cache; and what it remembered is forgotten by
        the next, which looks first.
        """
        if nothing_read:
            seat.memory.undo_to(0)
            seat.turn = -1
        else:
            seat.doubt()
            self._cache.clear()
        line.settle()
        line.command(b"ROLLBACK")
        line.flush()
        self._let_go(line, seat)


def _run(tx: PostgresTransaction, jobs: list[Job]) -> None:
    """Runs jobs of one verb as one call; leases that they settle and that are not at hand are asked for in one trip."""
    verdicts = [verdict for job in jobs if (verdict := _verdict_of(job)) is not None]
    if verdicts:
        tx.recall(("topic", jobs[0].tenant, verdicts[0].topic))
        tx.expect_leases([token.lease_id for verdict in verdicts for token in verdict.tokens])
    run_together(tx, jobs)


def _verdict_of(job: Job) -> Settle | None:
    """What a job says of leases, if it does."""
    if isinstance(job.command, Claim):
        return None if job.command.acks is None else job.command.settle
    return job.command if isinstance(job.command, Settle) else None


def _claims_alone(job: Job) -> bool:
    """Whether it only takes leases, which may be lost."""
    return job.verb is claim and job.command.acks is None


def _is_repeated(job: Job) -> bool:
    """Whether it was tried before, and may be stored."""
    return isinstance(job.command, Publish) and job.command.repeated


def _refuse(job: Job, error: Error) -> None:
    """This try came to nothing. What an earlier one did, nobody knows."""
    job.answer = unknown(job) if _is_repeated(job) else error


def _can_be_left(job: Job, error: Exception) -> bool:
    """Whether it is a verdict that an application's open transaction is in the way of: it is left beside that one's."""
    return _verdict_of(job) is not None and isinstance(error, Refused) and error.state == LOCK_NOT_AVAILABLE


def _leave(tx: PostgresTransaction, job: Job) -> Any:
    """Leaves a verdict as mail. A claim that came with it is served without it."""
    verdict = _verdict_of(job)
    assert verdict is not None
    verdicts = leave_verdict(tx, verdict)
    if verdict is job.command:
        return verdicts
    # Not the job itself: should the transaction be run again, it has its verdict still.
    alone = Job(job.verb, replace(job.command, acks=None), job.tenant, job.publish_id, job.cost)
    run_together(tx, [alone])
    if isinstance(alone.answer, Claimed):
        alone.answer.settled = verdicts
    return alone.answer


def _give_up(job: Job, *, withdrawn: bool) -> NoReturn:
    if withdrawn and not _is_repeated(job):
        raise Timeout()
    if job.publish_id:
        raise unknown(job)
    raise Timeout("The time allowed ran out while the store was at it: it may have been done, or not.")
