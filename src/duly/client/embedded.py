"""The embedded home: operations run in this process, on a store it has open.

Everyone in a process who opens one path shares one store. After a fork the child opens its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ..clock import monotonic_s
from ..engine.claimed import Claim, Claimed
from ..engine.operations import READS, WRITES
from ..engine.retain import Chores
from ..errors import Error, StoreError
from ..events import log
from ..health import Finding
from ..store.contract import Transaction

CHORES_TENANT = "$chores"
_LOOK_AGAIN_S = 60.0


class Port(Protocol):
    """Carries out operations, wherever the store is."""

    def do(self, command: Any, *, deadline: float | None, cost: int = 0, publish_id: str = "", tx: Any = None) -> Any:
        """Runs one operation, inside the application's transaction if given one, and returns its answer."""
        ...

    def transaction(self, patience_s: float) -> Any:
        """A transaction for the application."""
        ...

    def claim(self, command: Claim, *, wait_until: float | None, deadline: float | None) -> Claimed:
        """Claims, waiting for something to claim until `wait_until`."""
        ...

    def examine(self) -> Iterator[Finding]:
        """Looks the store over."""
        ...

    def now_ms(self) -> int:
        """The store's time."""
        ...

    def check_leaving(self) -> None:
        """Raises if it cannot be let go of now."""
        ...

    def close(self) -> None:
        """Lets go of the store."""
        ...


class Embedded:
    """Operations on a store in this process."""

    def __init__(self, open_store: Callable[[], Any]) -> None:
        self._open_store = open_store
        self._lock = threading.Lock()
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
        if tx is not None:
            return self.store.join(tx, WRITES[kind], command)
        if kind in READS:
            with self.store.read() as tx:
                return READS[kind](tx, command)
        return self.store.write(
            WRITES[kind], command, tenant=command.tenant, cost=cost, deadline=deadline, publish_id=publish_id
        )

    def transaction(self, patience_s: float) -> Any:
        return self.store.transaction(patience_s)

    def claim(self, command: Claim, *, wait_until: float | None, deadline: float | None) -> Claimed:
        store = self.store
        partitions: tuple[int, ...] = ()
        while True:
            # Before looking: a ring between the look and the wait must not be missed.
            ticket = store.ticket(partitions) if partitions else None
            claimed: Claimed = self.do(command, deadline=deadline)
            if claimed.parcels or wait_until is None or monotonic_s() >= wait_until:
                return claimed
            if ticket is None:
                partitions = claimed.partitions
                continue
            store.wait(ticket, until_ms=claimed.next_due, deadline=wait_until)

    def examine(self) -> Iterator[Finding]:
        yield from self.store.examine()

    def now_ms(self) -> int:
        now: int = self.store.clock.now_ms()
        return now

    def check_leaving(self) -> None:
        self._open.check_leaving()

    def close(self) -> None:
        self._caretaker.stop()
        self._open.close()


class Caretaker:
    """A thread that sleeps until the next chore is due, and does it.

    Chores are transactions like any other and queue behind everyone else's, as a tenant of their own.
    The process that notes a chore sees to it; the others look once a minute, in case it is gone.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="duly-caretaker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends after the chore at hand."""
        self._stopping = True
        if not self._store.forked:
            self._store.wake_caretaker()
            self._thread.join()

    def _loop(self) -> None:
        while not self._stopping:
            ticket = self._store.ticket([0], here_only=True)
            try:
                next_due = self._next_due()
                if next_due is not None and next_due <= self._store.clock.now_ms():
                    verb = WRITES[Chores]
                    self._store.write(verb, Chores(), tenant=CHORES_TENANT, cost=0, deadline=monotonic_s() + 60)
                    continue
            except Error as error:
                if self._stopping:
                    break
                # The disk is full, or another process holds the lock: there is time.
                log.warning("a chore failed and will be tried again: %s", error)
                next_due = self._store.clock.now_ms() + 5000
            if not self._stopping:
                self._store.wait(ticket, until_ms=next_due, deadline=monotonic_s() + _LOOK_AGAIN_S)

    def _next_due(self) -> int | None:
        tx: Transaction
        with self._store.read() as tx:
            row = tx.agenda_next()
        return None if row is None else row.due_at
