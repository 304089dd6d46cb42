"""The embedded home: operations run in this process, on a store it has open.

Everyone in a process who opens one path shares one store. After a fork the child opens its own.
"""

from __future__ import annotations

import getpass
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, TypeVar

from msgspec.structs import replace

from ..clock import ClockReading, monotonic_s
from ..engine.audit import NoteCall, note_calls
from ..engine.audit_check import examine_audit
from ..engine.claimed import Acks, Claim, Claimed
from ..engine.operations import READS, WRITES
from ..engine.pause import is_paused
from ..engine.publish import make_publish_id
from ..engine.queue_retain import Look, empty, look_closely, slices_of
from ..engine.retain import Chores, put_off
from ..engine.stretch import Stretch, read_piece
from ..engine.tail import Tail, Tailed
from ..errors import Error, Sealed, StoreError
from ..events import log
from ..grants import EMBEDDED, NOBODY, OPERATORS, By
from ..health import Finding
from ..interrupt import SHIELD
from ..member import Member
from ..store.contract import AgendaRow, Backup, TenantRow, Transaction
from .ticker import Ticker

R = TypeVar("R")

CHORES_TENANT = "$chores"
_LOOK_AGAIN_S = 60.0
_HEED_S = 1.0
_NOTED_S = 30.0
_RESTORE = "Restore the newest backup."


class Embedded:
    """Operations on a store in this process."""

    def __init__(self, open_store: Callable[[], Any]) -> None:
        self._open_store = open_store
        self._lock = threading.Lock()
        with SHIELD:
            self._open: Any = open_store()
            self._caretaker = Caretaker(self._open)

    @property
    def store(self) -> Any:
        """The open store; in a forked child, a new one."""
        if self._open.forked:
            with self._lock:
                if self._open.fork_unsafe:
                    raise StoreError(
                        "This process was forked while its parent was inside the store, or the store is in memory: "
                        "it cannot be used here. Connect in the child, before anything else, or use spawn."
                    )
                if self._open.forked:
                    self._open = self._open_store()
                    self._caretaker = Caretaker(self._open)
        return self._open

    def do(self, command: Any, *, deadline: float | None, cost: int = 0, publish_id: str = "", tx: Any = None) -> Any:
        kind = type(command)
        if getattr(command, "by", None) == NOBODY:
            command = replace(command, by=_whoever_runs_this())
        with SHIELD:
            if tx is not None:
                return self.store.join(tx, WRITES[kind], command)
            if kind in READS:
                self.store.refresh(command)
                with self.store.read(command.tenant) as reading:
                    return READS[kind](reading, command)
            return self.store.write(
                WRITES[kind], command, tenant=command.tenant, cost=cost, deadline=deadline, publish_id=publish_id
            )

    def transaction(self, patience_s: float) -> Any:
        return self.store.transaction(patience_s)

    def when_undone(self, tx: Any, act: Callable[[], None]) -> bool:
        heard: bool = self.store.when_undone(tx, act)
        return heard

    def claim(self, command: Claim, *, wait_until: float | None, deadline: float | None) -> Claimed:
        watch = self.watch(command)
        while True:
            claimed = watch.claim(command.max_messages, deadline=deadline, acks=command.acks)
            # What comes with acks does not wait: they are to be heard of.
            if claimed.parcels or command.acks is not None or wait_until is None or monotonic_s() >= wait_until:
                return claimed
            watch.wait(wait_until)

    def watch(self, command: Claim) -> EmbeddedWatch:
        return EmbeddedWatch(self, command)

    def wake(self) -> None:
        self.store.wake_all_here()

    def tail(self, command: Tail, *, wait_until: float) -> Tailed:
        store = self.store
        ticket = None
        while True:
            tailed: Tailed = self.do(command, deadline=None)
            if tailed.grown or monotonic_s() >= wait_until:
                return tailed
            if ticket is not None:
                store.wait(ticket, until_ms=None, deadline=wait_until)
            # Taken before the next look: what comes between the look and the wait is not missed.
            ticket = store.ticket(tailed.partitions)

    def look(self, verb: Callable[[Transaction, Any], R], command: Any) -> R:
        """Looks at the store by a verb that is no operation of its own."""
        with SHIELD:
            self.store.refresh(command)
            with self.store.read(getattr(command, "tenant", "")) as tx:
                return verb(tx, command)

    def batches(self, stretch: Stretch, *, patience_s: float) -> Iterator[Any]:  # noqa: ARG002
        from ..engine.stretch_arrow import read_pieces, read_schema

        read_schema(stretch.columns)
        look = partial(self.look, read_piece)
        yield from read_pieces(look, stretch, look(stretch))

    def examine(self) -> Iterator[Finding]:
        with SHIELD:
            findings = list(self.store.examine())
        yield from findings
        try:
            yield from examine_audit(self.look)
        except (Error, TypeError, ValueError) as error:
            # Of a store that is damaged below (there may be text where a number belongs), everything else that was
            # found is worth telling.
            yield Finding("alert", f"The audit cannot be read: {error}", "It is damaged below Duly.", _RESTORE)

    def back_up(self, folder: str, **how: Any) -> Backup:
        backup: Backup = self.store.back_up(folder, **how)
        self.note("backup", number=backup.number)
        return backup

    def now_ms(self) -> int:
        now: int = self.store.clock.now_ms()
        return now

    def own_tenant(self) -> str:
        return OPERATORS

    def make_publish_id(self) -> str:
        return make_publish_id(self.now_ms())

    def clock(self) -> ClockReading:
        read: ClockReading = self.store.read_clock()
        return read

    def accept_clock(self, *, deadline: float | None, by: By = NOBODY) -> None:
        self.store.accept_clock(deadline=deadline)
        self._note(NoteCall("", "accept_clock", {}, _whoever_runs_this() if by == NOBODY else by))

    def note(self, call: str, **facts: Any) -> None:
        """Adds to the audit that whoever runs this did something to the store as a whole."""
        self._note(NoteCall("", call, facts, _whoever_runs_this()))

    def _note(self, call: NoteCall) -> None:
        self.store.write(note_calls, call, tenant=CHORES_TENANT, cost=0, deadline=monotonic_s() + _NOTED_S)

    def members(self, *, deadline: float | None) -> list[Member]:  # noqa: ARG002
        with SHIELD:
            members: list[Member] = self.store.members()
        return members

    def check_leaving(self) -> None:
        self._open.check_leaving()

    def close(self) -> None:
        with SHIELD:
            self._caretaker.stop()
            self._open.close()


@cache
def _whoever_runs_this() -> By:
    """Who has the store itself open: nobody asks them for a key."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "unknown"
    return By(f"{EMBEDDED}{name}")


class EmbeddedWatch:
    """A watch that sleeps on the store's bell."""

    def __init__(self, port: Embedded, command: Claim) -> None:
        self._port = port
        self._command = command
        self._partitions: tuple[int, ...] = ()
        self._ticket: Any = None
        self._next_due: int | None = None

    def claim(self, max_messages: int, *, deadline: float | None, acks: Acks | None = None) -> Claimed:
        with SHIELD:
            # Before looking: a ring between the look and the wait must not be missed.
            self._ticket = self._port.store.ticket(self._partitions) if self._partitions else None
        command = replace(self._command, max_messages=max_messages, acks=acks)
        claimed: Claimed = self._port.do(command, deadline=deadline)
        self._partitions, self._next_due = claimed.partitions, claimed.next_due
        return claimed

    def wait(self, deadline: float) -> None:
        # The first look told which partitions to listen to; only a second one can be waited for.
        if self._ticket is not None:
            with SHIELD:
                self._port.store.wait(self._ticket, until_ms=self._next_due, deadline=deadline)


def heed_weights(store: Any) -> list[TenantRow]:
    """Reads what is set on tenants, which share the store's time by their weights from then on."""
    tx: Transaction
    with store.read() as tx:
        rows = tx.tenants_set()
    store.weights.heed({row.name: row.settings for row in rows})
    return rows


class Caretaker:
    """A thread that sleeps until the next chore is due, and does it; and until schedules tick (ticker.py).

    Chores are transactions like any other and queue behind everyone else's, as a tenant of their own.
    The process that notes a chore sees to it; the others look once a minute, in case it is gone.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._stopping = False
        # When it last looked at what is set on tenants; a change wakes it.
        self._heeded_at = -_HEED_S
        self._ticker = Ticker(store, self._write)
        self._thread = threading.Thread(target=self._loop, name="duly-caretaker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends after the chore at hand."""
        self._stopping = True
        if not self._store.forked:
            self._store.wake_all_here()
            self._thread.join()

    def _loop(self) -> None:
        while not self._stopping:
            ticket = self._store.ticket([0], here_only=True)
            tick_at: int | None = None
            try:
                tick_at = self._ticker.run()
                self._store.look_at_clock()
                self._store.look_at_disk()
                self._store.look_at_stored()
                heeds = self._heed()
                next_due, chores = self._next()
                if next_due is not None and next_due <= self._store.clock.now_ms():
                    look = self._do(chores)
                    if look is not None:
                        self._look_closely(look)
                    continue
            except Error as error:
                if self._stopping:
                    break
                # The disk is full, or another process holds the lock: there is time.
                log.warning("a chore failed and will be tried again: %s", error)
                next_due, heeds = self._store.clock.now_ms() + 5000, True
            if not self._stopping:
                look_again_s = _LOOK_AGAIN_S if heeds else _HEED_S
                self._rest(ticket, next_due, tick_at, look_again_s)

    def _rest(self, ticket: Any, next_due: int | None, tick_at: int | None, seconds: float) -> None:
        """Sleeps until there is something to do, or something has changed; what others do to schedules is looked at."""
        until = monotonic_s() + seconds
        while True:
            pause_s = min(until - monotonic_s(), self._ticker.rest_s())
            slept_until = monotonic_s() + pause_s
            moments = [moment for moment in (next_due, tick_at) if moment is not None]
            self._store.wait(ticket, until_ms=min(moments, default=None), deadline=slept_until)
            if monotonic_s() < slept_until or slept_until >= until or self._stopping:
                return
            try:
                tick_at = self._ticker.run()
            except Error as error:
                log.warning("schedules cannot be looked at: %s", error)

    def _heed(self) -> bool:
        """Reads the weights of tenants. False: that was a moment ago; they may have changed since."""
        now = monotonic_s()
        if now < self._heeded_at + _HEED_S:
            return False
        self._heeded_at = now
        heed_weights(self._store)
        return True

    def _write(self, verb: Any, command: Any) -> Any:
        return self._store.write(verb, command, tenant=CHORES_TENANT, cost=0, deadline=monotonic_s() + 60)

    def _do(self, chores: Chores) -> Look | None:
        try:
            look: Look | None = self._write(WRITES[Chores], chores)
        except Sealed as error:
            log.warning("a chore needs a key that is not here, and is put off: %s", error)
            self._put_off()
            return None
        return look

    def _put_off(self) -> None:
        tx: Transaction
        with self._store.read() as tx:
            row: AgendaRow | None = tx.agenda_next()
        if row is not None and row.due_at <= self._store.clock.now_ms():
            self._write(put_off, row)

    def _look_closely(self, look: Look) -> None:
        """Finds out what a queue's log may lose, beside everyone else, and drops it in small steps."""
        tx: Transaction
        with self._store.read() as tx:
            emptied = look_closely(tx, look)
        for part in slices_of(emptied) if emptied is not None else ():
            if self._stopping:
                return
            self._write(empty, part)

    def _next(self) -> tuple[int | None, Chores]:
        """When the next chore is due, and whose it is: a topic's is done like any other command on that topic."""
        tx: Transaction
        with self._store.read() as tx:
            row = None if is_paused(tx) else tx.agenda_next()
            topic = tx.topic_of_partition(row.partition) if row is not None and row.partition else None
        if row is None:
            return None, Chores()
        if topic is None:
            return row.due_at, Chores(partition=row.partition)
        return row.due_at, Chores(topic.tenant, topic.name, row.partition)
