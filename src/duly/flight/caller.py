"""Who is on the other end of a stream, and whether it still is.

A client that dies or gives up while its request waits here must not be handed anything: it would lie under a lease that
nobody holds. gRPC tells, if asked; so waits are cut in slices, and between them the caller is looked for.

    waiting ──something came──▶ still there? ──▶ answered
       │                            └─ no: released at once
       ├─ the caller left: out of the waiting room, nothing is claimed for it
       └─ the broker goes down: told so
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..broker.broker import Broker
from ..client.port import Watch
from ..clock import monotonic_s
from ..engine.claimed import Claim, Claimed
from ..engine.tail import Tail, Tailed
from ..errors import Timeout

# How long nobody notices that a client left: one for whom something may be claimed, and one that would only be told.
SLICE_S = 1.0
_IDLE_SLICE_S = 5.0
# Over the time that a claim may wait: it may be served in the last moment.
_GRACE_S = 10.0


class Left(Exception):
    """The client is gone: there is nobody to answer."""


class Caller:
    """The client of one call."""

    def __init__(self, broker: Broker, is_gone: Callable[[], bool]) -> None:
        self._broker = broker
        self.is_gone = is_gone
        # What was claimed and is not yet on its way.
        self._claimed: tuple[Claim, Claimed] | None = None

    def claim(self, command: Claim, *, wait_until: float | None, deadline: float) -> Claimed:
        """Claims for the caller, in turn. Raises Left."""
        broker = self._broker
        claimed: Claimed | None = None
        if wait_until is None or not broker.room.is_waited_at(command):
            claimed = broker.claim(command, wait_until=None, deadline=deadline)
        if claimed is None or (not claimed.parcels and wait_until is not None):
            claimed = self._claim_in_turn(command, wait_until or 0.0)
        return self.holding(command, claimed)

    def _claim_in_turn(self, command: Claim, wait_until: float) -> Claimed:
        answers: list[Claimed | Exception] = []
        told = threading.Event()

        def then(answer: Claimed | Exception) -> None:
            answers.append(answer)
            told.set()

        waiter = self._broker.submit_claim(command, wait_until=wait_until, then=then)
        end = wait_until + _GRACE_S
        while not told.wait(min(SLICE_S, max(0.01, end - monotonic_s()))):
            if (self.is_gone() or monotonic_s() >= end) and self._broker.leave(waiter):
                raise Left if self.is_gone() else Timeout()
            # Too late to leave: it is being told at this moment, and whoever sends it finds nobody there.
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def tail(self, command: Tail, *, wait_until: float) -> Tailed:
        """Looks whether a log has grown, until it has. Raises Left."""
        while True:
            tailed = self._broker.tail(command, wait_until=min(wait_until, monotonic_s() + SLICE_S))
            if tailed.grown or monotonic_s() >= wait_until:
                return tailed
            self._check_staying()

    def wait(self, watch: Watch, until: float) -> None:
        """Waits for something to claim, holding nothing. Raises Left."""
        while True:
            slice_end = min(until, monotonic_s() + _IDLE_SLICE_S)
            watch.wait(slice_end)
            if monotonic_s() < slice_end or slice_end >= until:
                return
            self._check_staying()

    def _check_staying(self) -> None:
        if self.is_gone():
            raise Left
        self._broker.check_open()

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
            self._broker.release(*held)


def caller_of(broker: Broker, context: Any) -> Caller:
    """The caller that a call's context of Flight's knows."""
    return Caller(broker, context.is_cancelled)
