"""The PostgreSQL store: Duly's own schema in a database that may be the application's, and the connections to it.

Any number of processes, brokers or applications, have it open at once; none is special. Each transaction works under
the lock of its topic (writer.py). Only a server that takes writes is ever used: of several hosts the primary is looked
for, and a standby is neither claimed nor read from.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn, TypeVar

import msgspec
import psycopg
from msgspec.structs import replace

from ...clock import Clock, ClockReading, SystemClock, from_ms, monotonic_s
from ...engine.event_log import ListEvents, pack
from ...engine.forecast import ListForecasts
from ...engine.memory import BlockCache
from ...engine.secrets import Keyring
from ...errors import InvalidArgument, StoreError
from ...events import Listener
from ...health import Finding
from ...member import FORGET_MS, SEEN_MS_MAX, Member
from ...tenant import Weights
from ..bell import SLOTS, Ticket
from ..contract import AgendaRow, Backup, Verb
from ..sql.stored import StoredBytes
from .address import Address
from .application import Joining
from .bell import NotifyBell
from .clock import PostgresClock
from .doctor import examine
from .faults import translate
from .inbox import TakeIn, take_in_mail
from .line import Line, LineLost, Refused
from .mail_watch import MailWatch
from .migrate import prepare
from .pool import Pool
from .space import Sweeper
from .statements import statements
from .together import Together
from .transaction import PostgresTransaction
from .writer import PostgresWriter

_LINES_MAX = 8
_READERS_MAX = 6
# A server that says nothing for so long is taken for lost.
_SILENCE_S = 30.0
_IDS_A_BLOCK = 1000
_JOINED_S = 30.0
_PACKS_MAX = 50
# Whoever waits looks again after this, should nobody have told it: a process may die before it tells.
_LOOK_AGAIN_S = 5.0

_member = msgspec.json.Decoder(Member)

C = TypeVar("C")
R = TypeVar("R")


class PostgresStore:
    """An open store. Thread-safe."""

    def __init__(self, url: str, *, clock: Clock, listener: Listener | None = None, master: Any = None) -> None:
        self.address = Address(url)
        # Under which a thread knows that it has a transaction open here.
        self.key = url
        self._server_clock = PostgresClock()
        # A clock that a test moves, or made its own, is its affair; else it is PostgreSQL's.
        self.clock: Clock = self._server_clock if type(clock) is SystemClock else clock
        self.forked = False
        # A child opens connections of its own, whatever its parent was doing.
        self.fork_unsafe = False
        self._listener = listener
        self._cache = BlockCache()
        self._stored = StoredBytes()
        self.weights = Weights()
        self.keyring = Keyring(master)
        self._closed = False
        self._sql = statements()
        try:
            with self.address.connect() as connection:
                self.incarnation, self.space = prepare(connection, self.address.schema)
        except psycopg.OperationalError as error:
            raise translate(error) from error
        except psycopg.Error as error:
            raise StoreError(f"The store cannot be opened: {str(error).strip()}.") from error
        self._ids_lock = threading.Lock()
        self._ids = range(0)
        self._ids_line: Line | None = None
        # Drawn and not counted: a standby that takes over may lack what was counted last.
        session = secrets.randbelow(2**62) + 1
        self._bell = NotifyBell(self.address.connect, f"duly.{self.address.schema}")
        self._pool = Pool(self._open_line, _LINES_MAX, self._forget, self.weights)
        self._readers = Pool(self._open_line, _READERS_MAX, self._forget, self.weights)
        self._sweeper = Sweeper(self.address.connect, self.address.schema, self.space)
        self._writer = PostgresWriter(
            self._pool,
            clock=self.clock,
            server_clock=self._server_clock,
            incarnation=self.incarnation,
            session=session,
            space=self.space,
            new_lease_id=self._new_lease_id,
            cache=self._cache,
            stored=self._stored,
            keyring=self.keyring,
            weights=self.weights,
            bell=self._bell,
            listener=listener,
            freed=self._sweeper.owe,
        )
        self._mail_watch = MailWatch(self._open_line, self._bell)
        self._together = Together(self.address.connect)
        clock.on_change(self._bell.ring_all_here)
        _open_stores.add(self)

    @property
    def path(self) -> str:
        """Where it is, without secrets."""
        return self.address.shown

    # Connections

    def _open_line(self) -> Line:
        try:
            return Line(self.address.connect(), _SILENCE_S)
        except psycopg.Error as error:
            raise LineLost(str(error).strip()) from error

    def _forget(self) -> None:
        """The server went away. A standby that nobody waited for may take over: it lacks what came last, and will have
        something else at the same offsets.
        """
        self._cache.clear()

    def _new_lease_id(self) -> int:
        with self._ids_lock:
            # Those of a server that went away may be given again by the one that took over.
            if not self._ids or self._ids_line is None or not self._ids_line.is_quiet():
                self._ids = self._thousand()
            given, self._ids = self._ids[0], self._ids[1:]
            return given

    def _thousand(self) -> range:
        """A thousand ids that nobody else has, or ever will: they are stored before they are used."""
        if self._ids_line is not None and not self._ids_line.is_quiet():
            self._ids_line.close()
        if self._ids_line is None or self._ids_line.lost:
            self._ids_line = self._open_line()
        first: int = self._ids_line.ask(self._sql["a_thousand_ids"], {})[0][0]
        return range(first, first + _IDS_A_BLOCK)

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

    # Reading

    @contextmanager
    def read(self, tenant: str = "") -> Iterator[PostgresTransaction]:
        try:
            with self._readers.line(tenant) as line:
                yield from self._reading(line)
        except LineLost as error:
            raise translate(error) from error

    def _reading(self, line: Line) -> Iterator[PostgresTransaction]:
        line.command(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            now_ms = self._server_clock.note(line.ask(self._sql["now"], {})[0][0])
            yield PostgresTransaction(
                line,
                now_ms=now_ms if self.clock is self._server_clock else self.clock.now_ms(),
                incarnation=self.incarnation,
                memory=None,
                cache=self._cache,
                stored=self._stored,
                keyring=self.keyring,
            )
        except LineLost:
            raise
        except Exception as error:
            line.settle()
            line.command(b"ROLLBACK")
            line.flush()
            if isinstance(error, Refused):
                raise translate(error) from error
            raise
        line.command(b"ROLLBACK")
        line.flush()

    def ticket(self, partitions: Sequence[int], *, here_only: bool = False) -> Ticket:
        return self._bell.ticket(partitions, here_only=here_only)

    def wait(self, ticket: Any, *, until_ms: int | None, deadline: float | None) -> None:
        waits: list[float] = [_LOOK_AGAIN_S]
        if deadline is not None:
            waits.append(max(0.0, deadline - monotonic_s()))
        if until_ms is not None and (due_s := self.clock.wait_s(until_ms)) is not None:
            waits.append(due_s)
        self._bell.sleep(ticket, min(waits))

    def listen(self, listener: Callable[[Collection[int]], None]) -> None:
        self._bell.listen(listener)

    def slot(self, partition: int) -> int:
        return partition % SLOTS

    # The application's transactions

    def join(self, tx: object, verb: Verb[C, R], command: C) -> R:  # noqa: ARG002
        """Runs a command in the application's transaction; see application.py."""
        joining = Joining(
            tx,
            schema=self.address.schema,
            incarnation=self.incarnation,
            now_ms=None if self.clock is self._server_clock else self.clock.now_ms,
            has_mail=self._has_mail,
            write=lambda tried, asked: self.write(tried, asked, tenant=asked.tenant, cost=0, deadline=_joined_by()),
            take_in=self._take_in,
            read=self.read,
        )
        answer: R = joining.run(command)
        return answer

    def when_undone(self, tx: object, act: Callable[[], None]) -> bool:  # noqa: ARG002
        """Nobody tells when an application's own transaction is rolled back. False: it will not be heard of."""
        return False

    def _has_mail(self, tenant: str, topic: str) -> bool:
        with self._readers.line(tenant) as line:
            return bool(line.ask(self._sql["has_mail"], {"tenant": tenant, "topic": topic}))

    def _take_in(self, tenant: str, topic: str) -> None:
        self.write(take_in_mail, TakeIn(tenant, topic), tenant=tenant, cost=0, deadline=_joined_by())

    def refresh(self, command: Any) -> None:
        """Before a read: takes in what applications left and packs events, so that it sees them."""
        try:
            topic = None if isinstance(command, ListEvents) else getattr(command, "topic", None)
            if topic and self._has_mail(command.tenant, topic):
                self._take_in(command.tenant, topic)
            if isinstance(command, (ListEvents, ListForecasts)):
                self._pack()
        except LineLost as error:
            raise translate(error) from error

    def _pack(self) -> None:
        for _ in range(_PACKS_MAX):
            with self._readers.line() as line:
                if not line.ask(self._sql["any_event"], {}):
                    return
            self.write(pack_events, None, tenant="$events", cost=0, deadline=_joined_by())

    def transaction(self, patience_s: float) -> NoReturn:  # noqa: ARG002
        """There is none of ours: the application has its own connection."""
        raise InvalidArgument(
            "On PostgreSQL the transaction is your own: open one on your connection (psycopg, SQLAlchemy, Django) and "
            "pass that as tx=."
        )

    def together(self, patience_s: float) -> AbstractContextManager[Any]:  # noqa: ARG002
        """See the contract, and together.py; nobody waits for anybody."""
        return self._together.transaction()

    # Looking after it

    def examine(self) -> Iterator[Finding]:
        """Looks the store over; see doctor.py."""
        reading = self.read_clock()
        try:
            with self.address.connect() as connection:
                yield from examine(connection, reading, self.clock.now_ms(), self.keyring)
        except psycopg.OperationalError as error:
            raise translate(error) from error

    def look_at_clock(self) -> None:
        """PostgreSQL's clock is looked at by every transaction."""

    def look_at_stored(self) -> None:
        """Looks again at what those tenants store that have a quota of it, where that is wanted."""
        self._stored.look_again(self.read)

    def look_at_disk(self) -> None:
        """The device is the server's affair."""

    def read_clock(self) -> ClockReading:
        """The store's time beside the host's."""
        if self.clock is not self._server_clock:
            now = from_ms(self.clock.now_ms())
            return ClockReading(now, now, "together")
        with self.read():
            return self._server_clock.reading()

    def accept_clock(self, *, deadline: float | None) -> None:
        """PostgreSQL's clock is followed wherever it goes: there is nothing to confirm."""

    def back_up(self, folder: str, **how: Any) -> Backup:  # noqa: ARG002
        """PostgreSQL has its own ways."""
        raise InvalidArgument(
            "A store on PostgreSQL is backed up with its database: pg_basebackup, pg_dump, your provider's snapshots. "
            "One backup has your tables and Duly's."
        )

    # The brokers on it

    def member_put(self, member: Member) -> None:
        """Notes a broker as seen now, and forgets those long gone."""
        now, facts = self.clock.now_ms(), msgspec.json.encode(member).decode()
        with self._looking() as line:
            line.put(self._sql["members_forget"], {"before": now - FORGET_MS})
            line.put(self._sql["member_put"], {"name": member.name, "now": now, "facts": facts})
            line.flush()

    def member_remove(self, name: str) -> None:
        """Notes that a broker has left."""
        with self._looking() as line:
            line.put(self._sql["member_remove"], {"name": name})
            line.flush()

    def members(self) -> list[Member]:
        """The brokers that were seen in the last seconds, by name."""
        with self._looking() as line:
            rows = line.ask(self._sql["members"], {"since": self.clock.now_ms() - SEEN_MS_MAX})
        return [replace(_member.decode(facts), seen_at_ms=seen_at_ms) for seen_at_ms, facts in rows]

    @contextmanager
    def _looking(self) -> Iterator[Line]:
        """A line for single statements, outside of transactions."""
        try:
            with self._readers.line() as line:
                yield line
        except (LineLost, Refused) as error:
            raise translate(error) from error

    def wake_all_here(self) -> None:
        """Wakes whoever waits in this process, for messages or for chores."""
        self._bell.ring_all_here()

    def check_leaving(self) -> None:
        """Nothing keeps it."""

    def close(self) -> None:
        """Finishes what was accepted and lets go of the connections."""
        if self._closed or self.forked:
            return
        self._closed = True
        self._writer.close()
        self._mail_watch.close()
        self._together.close()
        self._sweeper.close()
        self._bell.close()
        self._pool.close()
        self._readers.close()
        if self._ids_line is not None:
            self._ids_line.close()
        _open_stores.discard(self)

    def after_fork_in_child(self) -> None:
        """This object is done for: its threads are not here, and its connections are the parent's."""
        self.forked = True
        self._pool.let_go()
        self._readers.let_go()
        self._together.let_go()


def _joined_by() -> float:
    return monotonic_s() + _JOINED_S


def pack_events(tx: Any, commands: Sequence[None]) -> list[None]:
    """A verb: moves rows of events into their logs."""
    for _ in commands:
        pack(tx, AgendaRow(0, 0, "pack", 0))
    return [None] * len(commands)


_open_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_open_stores):
        store.after_fork_in_child()
    _open_stores.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
