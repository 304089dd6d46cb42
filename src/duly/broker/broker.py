"""The broker: the embedded home served to others. The surfaces (flight, http) call it by an entry (entry.py), which
asks who is there and what they may; nothing here does.

It adds to the embedded home what strangers make necessary: claims wait in turn and without a thread each (room.py), it
knows the other brokers on its store (membership.py), and it ends in order: on SIGTERM it is `draining`, takes nobody
in, lets what is under way finish, and then goes.

While its host's clock is off (drift.py) it is not *ready*: publishes and claims are refused, so that clients go
elsewhere, and all else is done; above all, leases are settled.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from ..client.embedded import Embedded, heed_weights
from ..client.port import Watch
from ..clock import ClockReading, monotonic_s
from ..engine.claimed import Acks, Claim, Claimed
from ..engine.operations import WRITES
from ..engine.publish import Publish
from ..engine.pushes import DescribePush, TestPush
from ..engine.replay import Replay
from ..engine.stage import CommitStages, Stage
from ..engine.stretch import Stretch
from ..engine.tail import Tail, Tailed
from ..engine.verdict import Verdicts
from ..errors import Closed, Error, InvalidArgument, NotReady, Timeout
from ..events import Listener
from ..grants import NOBODY, By
from ..health import Finding
from ..limits import LIMITS
from ..member import Member
from ..push import PushAnswer, RunningPush
from ..store.contract import Backup, Transaction
from ..tenant import Weights
from .authority import Authority
from .denials import Denials
from .desk import Answered, Waiter
from .drift import Drift
from .membership import Membership, member_name
from .meters import Meters
from .pushes.keeper import Keeper, Makers
from .room import Room

R = TypeVar("R")
TryOut = Callable[[RunningPush], PushAnswer]
OnDenied = Callable[[By, str, str, "str | None", Error], None]

# How long nobody notices that the one a claim waits for has gone.
LOOK_S = 1.0
# Over the time that a claim may wait: it may be served in the last moment.
_GRACE_S = 10.0
# What only a broker takes that is ready.
_NEW_WORK = frozenset({Publish, Stage, CommitStages, Claim})


def _sends_nothing(_: RunningPush) -> PushAnswer:
    raise NotReady("This broker runs no pushes. Ask another.")


class MeteredWatch:
    """A watch whose claims count."""

    def __init__(self, watch: Watch, meters: Meters, tenant: str) -> None:
        self._watch = watch
        self._meters = meters
        self._tenant = tenant

    def claim(self, max_messages: int, *, deadline: float | None, acks: Acks | None = None) -> Claimed:
        self._meters.check_claim(self._tenant)
        claimed = self._watch.claim(max_messages, deadline=deadline, acks=acks)
        self._meters.claimed(self._tenant, claimed.count)
        return claimed

    def wait(self, deadline: float) -> None:
        self._watch.wait(deadline)


class Broker:
    """A Port for many: the same operations, with claims in turn. Surfaces call it from any thread."""

    def __init__(
        self,
        home: Embedded,
        *,
        drift_ms_max: int = LIMITS.drift_ms_max,
        on_event: Listener | None = None,
        require_keys: bool = False,
    ) -> None:
        self._home = home
        self.authority = Authority(home, require=require_keys)
        self.room = Room(home.store)
        self.drift = Drift(home.clock, drift_ms_max, on_event)
        self.meters = Meters()
        self._denials = Denials(home)
        # Told of everything that was refused to somebody: by whom, which action, of which tenant, on what, and why.
        self.on_denied: OnDenied = self._denials.note
        self._draining = threading.Event()
        self._membership: Membership | None = None
        self._keeper: Keeper | None = None
        self._try_out: TryOut = _sends_nothing
        # Where clients may go instead, `host:port` of Flight's. Another tuple when that has changed.
        self.peers: tuple[str, ...] = ()
        self._scheme = ""

    @property
    def draining(self) -> bool:
        """Whether it is going down: nobody is taken in any more."""
        return self._draining.is_set()

    @property
    def incarnation(self) -> str:
        """The store's, which changes when it is restored."""
        incarnation: str = self._home.store.incarnation
        return incarnation

    @property
    def weights(self) -> Weights:
        """The shares of tenants where they compete, as of the last beat."""
        weights: Weights = self._home.store.weights
        return weights

    # Without waiting

    def submit(
        self, command: Any, *, cost: int = 0, publish_id: str = "", then: Callable[[Any | Exception], None]
    ) -> None:
        """Has one writing operation done; `then` gets the answer, or the error, on a thread that must not be kept.

        Raises Busy when too much is queued.
        """
        self._check_taking(command)
        self._home.store.submit(
            WRITES[type(command)], command, tenant=command.tenant, cost=cost, publish_id=publish_id, then=then
        )

    def submit_claim(self, command: Claim, *, wait_until: float | None, then: Answered) -> Waiter:
        """Claims in turn; `then` as above, perhaps before this returns. `leave` ends it early."""
        self.check_ready()
        self.meters.check_claim(command.tenant)
        return self.room.claim(command, wait_until=wait_until, then=partial(self._metered, command.tenant, then))

    def _metered(self, tenant: str, then: Answered, answer: Claimed | Exception) -> None:
        """Counts what a claim got before it is told."""
        if isinstance(answer, Claimed):
            self.meters.claimed(tenant, answer.count)
        then(answer)

    def leave(self, waiter: Waiter) -> bool:
        """Forgets a claim that nobody waits for any more: nothing is told, and nothing stays claimed.

        False: too late. `then` was told, or is at this moment; what it got is to be settled, or `release`d.
        """
        return self.room.leave(waiter)

    def release(self, command: Claim, claimed: Claimed) -> None:
        """Gives back, without waiting, what came for somebody who is not there any more."""
        self.room.release(command, claimed)

    # A Port

    def do(self, command: Any, *, deadline: float | None, cost: int = 0, publish_id: str = "", tx: Any = None) -> Any:
        if isinstance(command, Claim):
            return self.claim(command, wait_until=None, deadline=deadline)
        self._check_taking(command)
        answer = self._home.do(command, deadline=deadline, cost=cost, publish_id=publish_id, tx=tx)
        if isinstance(command, TestPush):
            return self._try_out(answer)
        if isinstance(command, DescribePush) and self._keeper is not None:
            return dataclasses.replace(answer, last=self._keeper.last(command.tenant, command.name))
        return answer

    def when_undone(self, tx: Any, act: Callable[[], None]) -> bool:
        return self._home.when_undone(tx, act)

    def look(self, verb: Callable[[Transaction, Any], R], command: Any) -> R:
        """Looks at the store by a verb that is no operation of its own."""
        return self._home.look(verb, command)

    def batches(self, stretch: Stretch, *, patience_s: float) -> Iterator[Any]:
        return self._home.batches(stretch, patience_s=patience_s)

    def claim(
        self,
        command: Claim,
        *,
        wait_until: float | None,
        deadline: float | None,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> Claimed:
        """Claims in turn. Whoever it is for may go meanwhile: then nothing stays claimed, and it is a Timeout."""
        self.check_ready()
        self.meters.check_claim(command.tenant)
        claimed = self._claim(command, wait_until, deadline, is_gone)
        self.meters.claimed(command.tenant, claimed.count)
        return claimed

    def _claim(
        self, command: Claim, wait_until: float | None, deadline: float | None, is_gone: Callable[[], bool]
    ) -> Claimed:
        claimed: Claimed
        if not self.room.is_waited_at(command):
            claimed = self._home.do(command, deadline=deadline)
            if claimed.parcels or command.acks is not None or wait_until is None or monotonic_s() >= wait_until:
                return claimed
        if command.acks is None:
            return self._claim_in_turn(command, wait_until, is_gone)
        # Whoever stands at the desk comes first; what is done with does not wait for that.
        verdicts: Verdicts = self._home.do(command.settle, deadline=deadline)
        claimed = self._claim_in_turn(replace(command, acks=None), None, is_gone)
        return replace(claimed, settled=verdicts)

    def _claim_in_turn(self, command: Claim, wait_until: float | None, is_gone: Callable[[], bool]) -> Claimed:
        answers: list[Claimed | Exception] = []
        told = threading.Event()

        def then(answer: Claimed | Exception) -> None:
            answers.append(answer)
            told.set()

        waiter = self.room.claim(command, wait_until=wait_until, then=then)
        end = _GRACE_S + (monotonic_s() if wait_until is None else wait_until)
        while not told.wait(min(LOOK_S, max(0.01, end - monotonic_s()))):
            if (is_gone() or monotonic_s() >= end) and self.room.leave(waiter):
                raise Timeout()
            # Too late to leave: it is being told at this moment.
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def transaction(self, patience_s: float) -> Any:  # noqa: ARG002
        raise InvalidArgument("A broker's store is not yours to have a transaction in: connect to the file itself.")

    def watch(self, command: Claim) -> Watch:
        return MeteredWatch(self._home.watch(command), self.meters, command.tenant)

    def wake(self) -> None:
        self._home.wake()

    def tail(self, command: Tail, *, wait_until: float) -> Tailed:
        return self._home.tail(command, wait_until=wait_until)

    def examine(self) -> Iterator[Finding]:
        return self._home.examine()

    def back_up(self, folder: str, **how: Any) -> Backup:
        return self._home.back_up(folder, **how)

    def now_ms(self) -> int:
        return self._home.now_ms()

    def make_publish_id(self) -> str:
        return self._home.make_publish_id()

    def clock(self) -> ClockReading:
        return self._home.clock()

    def accept_clock(self, *, deadline: float | None, by: By = NOBODY) -> None:
        self._home.accept_clock(deadline=deadline, by=by)

    def members(self, *, deadline: float | None) -> list[Member]:
        return self._home.members(deadline=deadline)

    def check_leaving(self) -> None:
        """A client of it can always be closed: the broker stays."""

    # Among others

    def join(self, *, url: str, http_url: str, version: str) -> str:
        """Makes itself known to the other brokers on its store, as one that clients reach there. Returns its name."""
        self._scheme = url.partition("://")[0] + "://"
        member = Member(member_name(), url, http_url, version, started_at_ms=self.now_ms())
        self._membership = Membership(self._home.store, member, state=self._state, found=self._meet)
        return member.name

    def keep_pushes(self, makers: Makers, try_out: TryOut) -> None:
        """Runs its share of the pushes from now on, once it has joined: each by what `makers` has for where it goes.

        `try_out` sends a request to a push's endpoint, and tells what came back.
        """
        assert self._membership is not None
        self._try_out = try_out
        self._keeper = Keeper(self._home, self._membership.name, makers, is_ready=lambda: not self.drift.reason)

    def reason(self) -> str:
        """Why it takes no work; "" when it does. The clocks are compared anew."""
        if self.draining:
            return "The broker is going down. Try another."
        self.drift.measure()
        if not self.drift.reason and self.clock().state == "refused":
            return "The host's clock leapt ahead. Check it, then POST /v1/clock/accept."
        return self.drift.reason

    def check_ready(self) -> None:
        """Raises NotReady while the host's clock is off."""
        if self.drift.reason:
            raise NotReady(self.drift.reason)

    def _check_taking(self, command: Any) -> None:
        if type(command) in _NEW_WORK:
            self.check_ready()
        if isinstance(command, (Publish, Stage)):
            self.meters.publish(command.tenant, command.batch.columns.count, command.batch.bytes)
        elif isinstance(command, Replay) and command.copies:
            # They bring content of their own.
            size = sum(len(copy.payload) for copy in command.copies)
            self.meters.publish(command.tenant, len(command.copies), size)

    def _state(self) -> tuple[int, str]:
        """Its drift, and why it is not ready. Who waits here while it is not is sent away."""
        reason = self.reason()
        if self.drift.reason:
            self.room.turn_away(lambda: NotReady(reason))
            self._home.wake()
        return self.drift.ms, reason

    def _meet(self, members: list[Member]) -> None:
        """Notes where clients may go (to those that are ready, or if nobody is, to anyone), and its share of quotas."""
        share = sum(member.ready for member in members) or len(members)
        self.meters.heed(heed_weights(self._home.store), share)
        # Whoever came by TLS stays with it, and whoever came without has no certificates to go on with.
        alike = [member for member in members if member.url.startswith(self._scheme)]
        ready = [member for member in alike if member.ready] or alike
        peers = tuple(member.url.removeprefix(self._scheme) for member in ready)
        if peers and peers != self.peers:
            self.peers = peers

    # The end

    def drain(self) -> None:
        """Takes nobody in any more, and lets those go who only wait."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.begin_to_end()
        if self._membership is not None:
            self._membership.leave()
        self._draining.set()
        self.room.close()
        # Watches too: they ask again, and are told.
        self._home.wake()
        if keeper is not None:
            keeper.close()

    def check_open(self) -> None:
        """Raises Closed when it is going down."""
        if self.draining:
            raise Closed("The broker is going down. Try another, or again in a moment.")

    def close(self) -> None:
        """For a client of it: does nothing, the broker stays. Its end is `shut`."""

    def shut(self) -> None:
        """Lets go of the store, when nothing is under way any more."""
        if not self.draining:
            self.drain()
        self._denials.close()
        self._home.close()
