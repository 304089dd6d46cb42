"""HttpRunner: delivers a group's messages to an endpoint, as long as a broker runs the push.

    claim for the slots that are free ──▶ one request each ──▶ what its answer means ──▶ settled at the next tick
         ▲                                                                                        │
         └────────────────────────────────────────────────────────────────────────────────────────┘

A slot is a request: there are `concurrency` of them, and nothing is claimed that has none. So every message is sent at
once, and a lease of the push's timeout and a margin never has to be renewed. One claim of a push is under way at a
time; it waits in the broker's waiting room, like any consumer's. How many it gets is the group's business: its rate,
what it may have in flight, and its breaker, by which a dead endpoint gets probes alone.

    running ──410──▶ gone: nothing is claimed, what is under way is given back; the keeper makes the push disabled
       │ ▲
       │ └── Retry-After: nothing is claimed for so long, at most a day
       └──stop──▶ ending: what is under way is finished, or given back when patience ends

Failure cases. A broker that is killed leaves leases, which end after timeout and margin. A settling that fails is
repeated until its lease has ended; then the messages are delivered again. What a request did whose answer was not heard
is not known: it is tried again, under the same webhook-id.

All but `stop` and making one happens on the loop of outbound.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...client.batch import Batch, Delivery
from ...client.client import Client
from ...clock import monotonic_s
from ...engine.claimed import Claim, Claimed
from ...engine.verdict import Settle, Verdicts
from ...errors import Error
from ...events import log
from ...push import RunningPush, ToHttp
from ..desk import Waiter
from .answers import Answer, Meaning, meaning_of
from .content import content_of
from .keeper import Tell
from .outbound import Outbound
from .outcomes import Outcomes
from .sending import Sender

# Over the time that a request may take: for the way to the writer and back, on a machine that is busy.
_MARGIN_MS = 15_000
# A claim that waits is asked again after this.
_WAIT_S = 300.0
# What one claim takes at most; a message that is bigger comes by itself.
_BYTES_MAX = 4 * 1024 * 1024
_CROWDED_S = 0.05
_AGAIN_S, _AGAIN_S_MAX = 0.5, 5.0
_SETTLE_S = 5.0
_LOOK_S = 0.005


class HttpRunner:
    """Runs a push from now on."""

    def __init__(self, client: Client, push: RunningPush, tell: Tell, *, outbound: Outbound) -> None:
        self._outbound = outbound
        self._work = _Work(client, push, tell, outbound)
        outbound.begin(self._work.begin)

    def stop(self, patience_s: float) -> None:
        """Claims nothing more, waits for what is under way, and gives back what is not over by then."""
        self._outbound.run(self._work.end(patience_s), patience_s + 2 * _SETTLE_S)


class _Work:
    """A push at work."""

    def __init__(self, client: Client, push: RunningPush, tell: Tell, outbound: Outbound) -> None:
        assert isinstance(push.to, ToHttp)
        self._client = client
        self._push = push
        self._to = push.to
        self._outbound = outbound
        self._broker = outbound.broker
        self._tell = tell
        self._sender: Sender | None = None
        self._lease_ms = push.to.timeout_ms + _MARGIN_MS
        self._requests: dict[asyncio.Task[None], Sequence[Delivery]] = {}
        self._outcomes = Outcomes(push)
        self._unsettled = 0
        self._claiming = False
        self._waiter: Waiter | None = None
        self._over = False
        self._held_until = 0.0
        self._again_s = _AGAIN_S

    def begin(self) -> None:
        """Opens the way to the endpoint, and claims."""
        self._sender = self._outbound.sender(self._push)
        self._outbound.speak(self)

    # Claiming

    def claim(self) -> None:
        """Claims for the slots that are free, unless that is under way."""
        free = self._to.concurrency - len(self._requests)
        if self._over or self._claiming or free <= 0 or self._held():
            return
        if not self._outbound.may_carry(self._push.tenant):
            self._hold(_CROWDED_S)
            return
        command = self._command(free * self._to.batch)
        self._claiming = True
        then = partial(self._outbound.arrive, partial(self._claimed, command))
        try:
            self._waiter = self._broker.submit_claim(command, wait_until=monotonic_s() + _WAIT_S, then=then)
        except Error as error:
            self._claimed(command, error)

    def _command(self, messages: int) -> Claim:
        push = self._push
        who = self._client.consumer
        return Claim(push.tenant, push.topic, push.group, who, messages, _BYTES_MAX, self._lease_ms)

    def _claimed(self, command: Claim, answer: Claimed | Exception) -> None:
        self._claiming, self._waiter = False, None
        if isinstance(answer, Exception):
            self._try_again(answer)
            return
        if self._over or self._held():
            # It came while this was ended, or told to wait.
            if answer.parcels:
                self._broker.release(command, answer)
            return
        self._again_s = _AGAIN_S
        deliveries = Batch(self._client, answer).deliveries
        size = self._to.batch
        for start in range(0, len(deliveries), size):
            self._send(deliveries[start : start + size])
        self._outbound.speak(self)

    def _try_again(self, error: Exception) -> None:
        """It is paused for a while: full, not ready, or the group is gone, and the keeper will know."""
        if self._over:
            return
        log.info("a claim of push %s failed, and is tried again: %s", self._push.name, error)
        self._hold(self._again_s)
        self._again_s = min(2 * self._again_s, _AGAIN_S_MAX)

    def _held(self) -> bool:
        return monotonic_s() < self._held_until

    def _hold(self, wait_s: float) -> None:
        """Claims nothing for so long."""
        self._held_until = max(self._held_until, monotonic_s() + wait_s)
        self._leave()
        self._outbound.loop.call_at(self._outbound.loop.time() + wait_s + 0.001, self._outbound.speak, self)

    def _leave(self) -> None:
        """Ends a claim that waits. One that is being answered gives back what it got, or is sent all the same."""
        if self._waiter is not None and self._broker.leave(self._waiter):
            self._claiming, self._waiter = False, None

    # Sending

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        task = self._outbound.loop.create_task(self._deliver(deliveries))
        self._requests[task] = deliveries
        self._outbound.carry(self._push.tenant, _size(deliveries))
        task.add_done_callback(self._ended)

    async def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        assert self._sender is not None
        batch = self._to.batch > 1
        now_ms = self._broker.now_ms()
        answer = await self._sender.send(content_of(self._push, deliveries, batch=batch, at_ms=now_ms))
        sent = {one.id for one in deliveries} if batch else ()
        self._heed(deliveries, answer, meaning_of(answer, sent=sent, batch=batch, now_ms=now_ms))

    def _heed(self, deliveries: Sequence[Delivery], answer: Answer, meaning: Meaning) -> None:
        self._outcomes.note(deliveries, answer, meaning)
        self._say("answered", {"status": answer.status, "ms": answer.ms})
        if meaning.hold_s:
            self._hold(meaning.hold_s)
        if meaning.gone and not self._over:
            self._stop_claiming()
            self._give_back_all()
            self._say("disabled", {"reason": f"The endpoint answered {meaning.reason}: it is gone for good."})

    def _say(self, kind: str, facts: dict[str, Any]) -> None:
        """The keeper hears it, if need be later: nothing here is running that would say it anew."""
        try:
            self._tell(self._push, kind, facts)
        except Error as error:
            log.warning("push %s is %s, which could not be told: %s", self._push.name, kind, error)
            self._outbound.loop.call_later(_AGAIN_S_MAX, self._say, kind, facts)

    def _ended(self, task: asyncio.Task[None]) -> None:
        deliveries = self._requests.pop(task)
        self._outbound.carry(self._push.tenant, -_size(deliveries))
        if task.cancelled():
            self._outcomes.release(deliveries)
        elif (error := task.exception()) is not None:
            log.error("a request of push %s failed", self._push.name, exc_info=error)
            self._outcomes.release(deliveries, delay_ms=1_000)
        self._outbound.speak(self)

    # Settling

    def settle(self) -> None:
        """Hands over what became of messages since the last tick."""
        for command in self._outcomes.take():
            self._unsettled += 1
            self._submit(command, monotonic_s() + self._lease_ms / 1000)

    def _submit(self, command: Settle, until: float) -> None:
        then = partial(self._outbound.arrive, partial(self._settled, command, until))
        try:
            self._broker.submit(command, then=then)
        except Error as error:
            self._settled(command, until, error)

    def _settled(self, command: Settle, until: float, answer: Verdicts | Exception) -> None:
        if isinstance(answer, Exception) and monotonic_s() < until and not self._over:
            self._outbound.loop.call_later(_AGAIN_S, self._submit, command, until)
            return
        self._unsettled -= 1
        if isinstance(answer, Exception):
            log.warning("what push %s delivered could not be settled: %s", self._push.name, answer)
        elif answer.lost:
            log.info("push %s: %d leases were lost before they were settled", self._push.name, len(answer.lost))

    # The end

    def _stop_claiming(self) -> None:
        self._over = True
        self._leave()

    def _give_back_all(self) -> None:
        current = asyncio.current_task()
        for task in self._requests:
            if task is not current:
                task.cancel()

    def _is_busy(self) -> bool:
        return bool(self._requests or self._claiming or self._unsettled or self._outcomes)

    async def end(self, patience_s: float) -> None:
        """Finishes what is under way, or gives it back when patience ends."""
        self._stop_claiming()
        if self._requests:
            await asyncio.wait(list(self._requests), timeout=patience_s)
        self._give_back_all()
        until = monotonic_s() + _SETTLE_S
        while self._is_busy() and monotonic_s() < until:
            self.settle()
            await asyncio.sleep(_LOOK_S)
        if self._sender is not None:
            await self._sender.close()


def _size(deliveries: Sequence[Delivery]) -> int:
    return sum(len(one.payload) for one in deliveries)
