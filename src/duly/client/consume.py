"""q.consume(): deliveries one by one, for a loop that never ends.

One delivery is *at hand*: the loop's body works on it and its lease is renewed. Asking for the next one acks it,
in one transaction with the claim where one is made. A `for` loop does not tell its iterator why it was left, by
`break` or by an exception; so what is at hand then is nacked: a message that makes every consumer fail has to run out
of attempts. A `with` block does tell, and there the rules are those of `with q.claim(…)`: ack at the end, nack when it
raised.

Deliveries that were claimed along and never came to hand are released: nobody tried them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from ..clock import Duration, monotonic_s
from ..engine.claimed import Claim
from ..errors import Closed, Error, LeaseLost, QuotaExceeded
from ..events import log
from ..interrupt import SHIELD
from .batch import Batch, Delivery

if TYPE_CHECKING:
    from .consuming import ConsumeCalls
    from .port import Watch

# A loop that waits without end looks by itself this often, should a wake-up from another process be lost.
LOOK_AGAIN_S = 60.0

# Longer than settling takes, and short enough to be borne where the collector struck.
_LEAVE_WAIT_S = 2.0

LEFT = "the consumer left its loop"


class Consumption(Iterator[Delivery]):
    """Deliveries one by one. For one thread; each thread consumes for itself."""

    def __init__(self, client: ConsumeCalls, command: Claim, wait_s: float | None, timeout: Duration | None) -> None:
        self._client = client
        self._command = command
        self._wait_s = wait_s
        self._timeout = timeout
        self._at_hand: Delivery | None = None
        self._ahead: deque[Delivery] = deque()
        self._stop_renewal: Callable[[], None] | None = None
        self._closed = False

    def __next__(self) -> Delivery:
        if self._ahead or self._closed:
            self._settle_at_hand()
        else:
            self._claim()
        if not self._ahead:
            raise StopIteration
        self._at_hand = self._ahead.popleft()
        return self._at_hand

    def close(self) -> None:
        """Ends it: what is at hand is nacked unless it was settled, the rest released. Twice does nothing."""
        self._leave(LEFT)

    def _claim(self) -> None:
        """Waits for messages; without a limit, for ever."""
        watch = self._client._watch(self._command)
        until = None if self._wait_s is None else monotonic_s() + self._wait_s
        while True:
            try:
                batch = self._look(watch)
            except QuotaExceeded as error:
                if error.retry_after_ms is None or (until is not None and monotonic_s() >= until):
                    raise
                # There will be more in a moment: nothing to end a loop for.
                threading.Event().wait(error.retry_after_ms / 1000)
                continue
            if batch:
                self._hold(batch)
                return
            now = monotonic_s()
            if until is not None and now >= until:
                return
            watch.wait(now + LOOK_AGAIN_S if until is None else until)

    def _look(self, watch: Watch) -> Batch:
        """What is due now. What is at hand is acked in the same transaction; by itself, if no claim can be had."""
        claim = partial(watch.claim, self._command.max_messages, deadline=self._client._deadline(self._timeout))
        delivery, self._at_hand = self._at_hand, None
        if delivery is None or delivery.settled:
            return Batch(self._client, claim())
        try:
            batch = self._client._acking(self._command, delivery, lambda acks: claim(acks=acks))
        except Error:
            self._at_hand = delivery
            self._settle_at_hand()
            raise
        if delivery.lost:
            log.warning("consuming %r: %s", self._command.topic, delivery._lease_lost())
        return batch

    def _hold(self, batch: Batch) -> None:
        with SHIELD:
            self._stop_renewing()
            self._stop_renewal = self._client.renew(batch)
            self._ahead.extend(batch)

    def _settle_at_hand(self, reason: str | None = None) -> None:
        """Ends the delivery at hand, if it is open: acked, or nacked for a reason."""
        delivery, self._at_hand = self._at_hand, None
        if delivery is None or delivery.settled:
            return
        try:
            if reason is None:
                delivery.ack(timeout=self._timeout)
            else:
                delivery.nack(reason=reason, timeout=self._timeout)
        except LeaseLost as error:
            log.warning("consuming %r: %s", self._command.topic, error)

    def _leave(self, reason: str | None) -> None:
        self._closed = True
        try:
            self._settle_at_hand(reason)
            if self._ahead:
                self._client.release(self._ahead, timeout=self._timeout)
        except Closed:
            # The client went first: what was held comes back when its lease ends.
            log.warning("the client was closed before a loop over %r was left", self._command.topic)
        finally:
            self._ahead.clear()
            self._stop_renewing()

    def _stop_renewing(self) -> None:
        if self._stop_renewal is not None:
            self._stop_renewal()
            self._stop_renewal = None

    def __enter__(self) -> Consumption:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(None if error is None else f"{type(error).__name__}: {error}")

    def __del__(self) -> None:
        if self._closed or (self._at_hand is None and not self._ahead):
            return
        # A loop that is left drops this object there and then. But the collector may also come upon it anywhere, even
        # inside the store, where waiting for the store would never end: so another thread does it, with a bounded wait.
        leaving = threading.Thread(target=self.close, name="duly-consume-left", daemon=True)
        with suppress(RuntimeError):  # The interpreter is going down: the leases end by themselves.
            leaving.start()
            leaving.join(_LEAVE_WAIT_S)
