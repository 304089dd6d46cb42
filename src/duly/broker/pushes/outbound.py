"""The way out: one thread with an event loop for all pushes to HTTP of a broker.

    claims ──writer's thread──▶ arrived ──▶ the loop: requests ──▶ outcomes gather for some milliseconds ──▶ the tick

At a *tick* everyone who has something to say does: first all settle, then all claim. They reach the writer together,
which makes one transaction of them, where acks come before the claims that want their places. A push that waits for
messages costs a place in the broker's waiting room, and no thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import uvloop

from ...engine.allowance import Allowance
from ...errors import Closed
from ...events import log
from ...push import PushAnswer, RunningPush, ToHttp
from .content import trial_of
from .lookups import Lookups
from .reach import Reach
from .sending import Sender, Sockets, trust

if TYPE_CHECKING:
    from ..broker import Broker

T = TypeVar("T")

# How long outcomes gather. It is what an ack, and the claim of the next message, comes later.
_GATHER_S = 0.003
_TRIAL_S = 5.0
_BYTES_MAX = 512 * 1024 * 1024


class Spoken(Protocol):
    """Who has a say at a tick."""

    def settle(self) -> None:
        """Hands over what became of messages."""
        ...

    def claim(self) -> None:
        """Asks for more."""
        ...


class Outbound:
    """Runs what sends to endpoints, and what that needs."""

    def __init__(
        self,
        broker: Broker,
        *,
        reach: Reach | None = None,
        ca_file: str | None = None,
        lookups: Lookups | None = None,
    ) -> None:
        """Raises InvalidArgument if the file of authorities cannot be read."""
        self.broker = broker
        self.reach = reach or Reach()
        self.lookups = lookups or Lookups()
        self.sockets = Sockets()
        # Bytes of payloads that are on their way.
        self._bytes = Allowance()
        self._tls = trust(ca_file)
        self._arrived: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._awake = False
        self._speaking: dict[Spoken, None] = {}
        self._ticking = False
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="duly-push", daemon=True)
        self._thread.start()

    def sender(self, push: RunningPush) -> Sender:
        """A push's connections."""
        assert isinstance(push.to, ToHttp)
        return Sender(
            push.to, tenant=push.tenant, reach=self.reach, lookups=self.lookups, sockets=self.sockets, tls=self._tls
        )

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Has something done on the loop, from another thread. Raises TimeoutError, and Closed when it has ended."""
        try:
            future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError as error:
            work.close()
            raise Closed("The broker is going down. Try another, or again in a moment.") from error
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def try_out(self, push: RunningPush) -> PushAnswer:
        """Sends a request that delivers nothing, signed like all others, and tells what came back."""
        assert isinstance(push.to, ToHttp)
        return self.run(self._try_out(push), push.to.timeout_ms / 1000 + _TRIAL_S)

    async def _try_out(self, push: RunningPush) -> PushAnswer:
        sender = self.sender(push)
        try:
            answer = await sender.send(trial_of(push, at_ms=self.broker.now_ms()))
        finally:
            await sender.close()
        return answer.told

    def may_carry(self, tenant: str) -> bool:
        """Whether a tenant's pushes may have more in memory: as much as it leaves to the others."""
        return self._bytes.allows(tenant, _BYTES_MAX)

    def carry(self, tenant: str, size: int) -> None:
        """So many bytes more; or less, when they are delivered."""
        self._bytes.take(tenant, size)

    def begin(self, act: Callable[[], None]) -> None:
        """Has something begun on the loop, from another thread."""
        self.loop.call_soon_threadsafe(act)

    def arrive(self, then: Callable[[Any], None], answer: Any) -> None:
        """From the writer's thread: an answer for somebody on the loop. Those that come together wake it once."""
        self._arrived.append((then, answer))
        if self._awake:
            return
        self._awake = True
        try:
            self.loop.call_soon_threadsafe(self._hand_out)
        except RuntimeError:
            # The loop is closed: nobody is there to hear it. Leases end by themselves.
            return

    def _hand_out(self) -> None:
        # Before looking: what arrives after the look wakes the loop again.
        self._awake = False
        while self._arrived:
            then, answer = self._arrived.popleft()
            try:
                then(answer)
            except Exception:
                # One push's trouble is no other's.
                log.exception("the answer to a push was not taken")

    def speak(self, who: Spoken) -> None:
        """On the loop: somebody has something to say at the next tick."""
        self._speaking[who] = None
        if not self._ticking:
            self._ticking = True
            self.loop.call_later(_GATHER_S, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        speaking, self._speaking = self._speaking, {}
        for who in speaking:
            who.settle()
        for who in speaking:
            who.claim()

    def close(self) -> None:
        """Ends the thread. Whoever sends was stopped before. Called again, it does nothing."""
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(_note)
        self.loop.run_forever()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))


def _note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    log.warning("pushes: %s", context.get("message"), exc_info=context.get("exception"))
