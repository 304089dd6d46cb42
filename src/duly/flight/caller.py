"""Who is on the other end of a stream, and whether it still is.

A client that dies or gives up while its request waits here must not be handed anything: it would lie under a lease that
nobody holds. gRPC tells, if asked; so waits are cut in slices, and between them the caller is looked for.

    waiting ──something came──▶ still there? ──▶ answered
       │                            └─ no: released at once
       ├─ the caller left: out of the waiting room, nothing is claimed for it
       └─ the broker goes down: told so
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..broker.broker import LOOK_S, Broker
from ..broker.entry import Entry
from ..client.port import Watch
from ..clock import monotonic_s
from ..engine.claimed import Claim, Claimed
from ..engine.tail import Tail, Tailed
from ..errors import Timeout
from .shown import shown_in

# How long nobody notices that a client left that would only be told, or may not stay.
_IDLE_SLICE_S = 2.0


class Left(Exception):
    """The client is gone: there is nobody to answer."""


class Caller:
    """The client of one call."""

    def __init__(self, entry: Entry, is_gone: Callable[[], bool], check_open: Callable[[], None]) -> None:
        self.entry = entry
        # The one that its key is of; None: it has none, and each command says whose it is.
        self.tenant = entry.known_tenant()
        self.is_gone = is_gone
        # Raises Closed when nothing more is to be done for it here.
        self.check_open = check_open
        # What was claimed and is not yet on its way.
        self._claimed: tuple[Claim, Claimed] | None = None

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.entry.leave_broker()

    def claim(self, command: Claim, *, wait_until: float | None, deadline: float) -> Claimed:
        """Claims for the caller, in turn. Raises Left."""
        command = self.entry.admit(command)
        try:
            claimed = self.entry.claim(command, wait_until=wait_until, deadline=deadline, is_gone=self.is_gone)
        except Timeout:
            if self.is_gone():
                raise Left from None
            raise
        return self.holding(command, claimed)

    def tail(self, command: Tail, *, wait_until: float) -> Tailed:
        """Looks whether a log has grown, until it has. Raises Left."""
        while True:
            tailed = self.entry.tail(command, wait_until=min(wait_until, monotonic_s() + LOOK_S))
            if tailed.grown or monotonic_s() >= wait_until:
                return tailed
            self._check_staying()

    def wait(self, command: Claim, watch: Watch, until: float) -> None:
        """Waits for something to claim, holding nothing. Raises Left, and what ends the caller's rights."""
        while True:
            slice_end = min(until, monotonic_s() + _IDLE_SLICE_S)
            watch.wait(slice_end)
            if monotonic_s() < slice_end or slice_end >= until:
                return
            self._check_staying()
            self.entry.admit(command)

    def _check_staying(self) -> None:
        if self.is_gone():
            raise Left
        self.check_open()

    # What is claimed and not yet sent

    def holding(self, command: Claim, claimed: Claimed) -> Claimed:
        """Keeps in mind what a claim got, until it is sent."""
        if claimed.parcels:
            self._claimed = (command, claimed)
        return claimed

    def sent(self) -> None:
        """The answer is on its way: its messages are the client's now."""
        self._claimed = None

    def give_back(self) -> None:
        """The answer cannot be sent: its messages are due again."""
        held, self._claimed = self._claimed, None
        if held is not None:
            self.entry.release(*held)


def caller_of(broker: Broker, context: Any, check_open: Callable[[], None]) -> Caller:
    """The caller that a call's context of Flight's knows, let in. Raises Unauthenticated, QuotaExceeded."""
    entry = Entry(broker, shown_in(context), context.peer())
    entry.enter()
    return Caller(entry, context.is_cancelled, check_open)
