"""Forwards a group's messages into another topic: published there and acked here in one transaction of the store.

    claimed ──row──▶ published and acked, committed together            (Store.together)
       │  └─ its expression makes no sense of it, or the target refuses it alone ──▶ nacked, with the reason
       │  └─ its operation's budget is spent ──▶ released until that may publish again; no attempt is counted
       ├─ the target cannot take anything now (full, a quota, busy) ──▶ held, its lease extended, tried again
       ├─ the target is gone ──▶ released, and the push disabled
       ├─ nobody knows whether it was committed ──▶ forgotten, and asked for: what do I hold?
       └─ killed ──▶ whoever runs the push next is given it back, or claims it when its lease has ended

Exactly once inside one store, and why:

- On SQLite the transaction is the writer's: all of it or nothing, and whose lease has ended meanwhile is told so
  inside it, and publishes nothing of that.
- On PostgreSQL both halves are mail of one transaction (postgres/application.py). Its share of the lease's row keeps
  others from taking the lease over while it is open, and once it is committed its mail does. Two transactions could
  take a share of one lease at once, and both commit: so a token is never put into a second transaction before the
  first is known to be undone. When that is not known the tokens are forgotten, and `held` gives new ones for what is
  still held; it is refused while the transaction in doubt is open, and finds nothing of what that has committed.
  A runner that is stopped with its transaction open is thrown out by PostgreSQL after ten seconds.

Order: one claim after the other, each published in the order in which it came. So a partition of a log is forwarded in
its order, but for what failed or was refused (it comes behind) and for a takeover from a runner that is not dead but
slow, whose last claim may come behind the first ones of its successor.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...clock import monotonic_s
from ...engine.budget import CheckOperations, check_operations
from ...engine.claimed import Claim, Claimed
from ...engine.publish import Publish
from ...engine.settle import Held
from ...engine.topics import DescribeTopic
from ...engine.verdict import Settle, Token
from ...errors import Closed, Error, InvalidArgument, NotFound, OperationExhausted, PublishUnknown, TopicNotFound
from ...events import log
from ...limits import LIMITS
from ...message import OPERATION
from ...push import RunningPush, ToTopic
from .forwarding import HEADERS, Forwarding, Taken, batch_of, taken_of, tokens_of

if TYPE_CHECKING:
    from ...client.client import Client

Tell = Callable[[RunningPush, str, dict[str, object]], None]

BATCH_MAX = 1_000
# A transaction that takes longer keeps the others of a file waiting.
_BATCH_BYTES = 8 * 1024 * 1024
# As long as nobody gives it back a dead runner's claim waits for this; a batch takes milliseconds.
_LEASE_MS = 60_000
_LOOK_AGAIN_S = 30.0
_CALL_S = 10.0
_PAUSE_S, _PAUSE_S_MAX = 0.2, 15.0
# What it leaves the target as mail is taken in by somebody every so many batches, should nobody ask for messages.
_TAKE_IN_EVERY = 16
# So many messages of a claim are told one by one that the target refuses them.
_REFUSED_SINGLY = 4


class TopicRunner:
    """One push to a topic at work, in a thread of its own from the start on."""

    def __init__(self, client: Client, push: RunningPush, tell: Tell, *, batch: int = BATCH_MAX) -> None:
        assert isinstance(push.to, ToTopic)
        self.push = push
        # Messages published into the target by this runner.
        self.forwarded = 0
        self._to = push.to
        # How it reaches the store; of its own home, which a broker's is.
        self.port: Any = client._alive()
        self._tell = tell
        self._batch = batch
        self._consumer = f"push:{push.name}"[: LIMITS.consumer_chars_max]
        claim = Claim(push.tenant, push.topic, push.group, self._consumer, batch, _BATCH_BYTES, _LEASE_MS)
        self._watch = client._watch(claim)
        self._stopping = threading.Event()
        self._pause_s = _PAUSE_S
        self._said = ""
        # What a runner of this push held before, or this one when a commit was in doubt, is to be asked for.
        self._asks = True
        self._batches_left = 0
        self._thread = threading.Thread(target=self._run, name=f"duly-push-{push.name}", daemon=True)
        self._thread.start()

    def stop(self, patience_s: float) -> None:
        """Claims nothing any more, and finishes or releases what is under way. Returns when that is done."""
        self._stopping.set()
        self.port.wake()
        self._thread.join(patience_s)

    @property
    def running(self) -> bool:
        """Whether it is at work; not so once it was stopped, or has disabled its push."""
        return self._thread.is_alive()

    # The loop

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._round()
            except Closed:
                return
            except Error as error:
                self._complain(error)
            except Exception as error:  # A push that ended in silence would deliver nothing until the broker restarts.
                log.exception("push %s failed and goes on: %s", self.push.name, error)
                self._asks = True
                self._complain(error)
        self._end()

    def _end(self) -> None:
        """What is left as mail is nobody's worry any more."""
        try:
            self._take_in(now=True)
        except Error as error:
            log.info("push %s leaves its last messages for others to take in: %s", self.push.name, error)

    def _round(self) -> None:
        forwarding, in_places = self._prepared()
        if forwarding is None:
            return
        while not self._stopping.is_set():
            for claimed in self._claims():
                taken = taken_of(claimed, in_places=in_places)
                if not self._forward(_Work(self, forwarding, claimed.incarnation, taken)):
                    return
                self._pause_s, self._said = _PAUSE_S, ""
            self._take_in()

    def _prepared(self) -> tuple[Forwarding | None, bool]:
        """How messages are forwarded as the target is now, and whether they come from a log; None: they cannot be."""
        try:
            into = self._do(DescribeTopic(self.push.tenant, self._to.topic)).settings.kind
        except TopicNotFound:
            self._disable(f"the topic {self._to.topic!r} is gone")
            return None, False
        own = self._do(DescribeTopic(self.push.tenant, self.push.topic)).settings.kind
        forwarding = Forwarding(self.push.topic, self._to, into_queue=into == "queue")
        if forwarding.asks and into != "queue":
            self._disable(f"{self._to.topic!r} is a log: due, priority and lane belong to queues")
            return None, False
        return forwarding, own == "log"

    def _claims(self) -> Iterator[Claimed]:
        """What there is now: what this push holds already, and then what is due. Waits where there is nothing."""
        if self._asks:
            found = self._do(Held(self.push.tenant, self._consumer, self.push.topic, self.push.group))
            self._asks = False
            yield from found
            return
        claimed: Claimed = self._watch.claim(self._batch, deadline=monotonic_s() + _CALL_S)
        if claimed.parcels:
            yield claimed
        elif not self._stopping.is_set():
            self._take_in(now=True)
            self._watch.wait(monotonic_s() + _LOOK_AGAIN_S)

    def _take_in(self, *, now: bool = False) -> None:
        """Has what was left as mail for the target taken in, where there is such a thing."""
        if self._batches_left >= (1 if now else _TAKE_IN_EVERY):
            self._batches_left = 0
            self.port.store.refresh(DescribeTopic(self.push.tenant, self._to.topic))

    def _do(self, command: Any, tx: Any = None) -> Any:
        return self.port.do(command, deadline=monotonic_s() + _CALL_S, tx=tx)

    def _complain(self, error: Exception) -> None:
        """Waits a moment, longer each time; what is wrong is said when it is new."""
        if str(error) != self._said:
            log.warning("push %s cannot forward, and tries again: %s", self.push.name, error)
            self._said = str(error)
        self._rest(None)

    def _rest(self, at_least_ms: int | None) -> None:
        wait_s = max(self._pause_s, (at_least_ms or 0) / 1000)
        self._stopping.wait(min(wait_s, _PAUSE_S_MAX))
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)

    def _disable(self, why: str) -> None:
        self._stopping.set()
        self._tell(self.push, "disabled", {"reason": why})

    # One claim

    def _forward(self, work: _Work) -> bool:
        """Until every message of it is done with. False: begin anew, what was still held is to be asked for."""
        if self._stopping.is_set():
            work.settle("release", work.taken)
            return False
        work.make_rows(self._batch)
        while work.left:
            try:
                self.forwarded += work.forward_next()
                self._batches_left += 1
            except OperationExhausted as error:
                work.put_off(error)
            except InvalidArgument as error:
                if self._has_changed(work):
                    return self._let_go(work)
                work.refuse(error)
            except (PublishUnknown, NotFound, Closed) as error:
                # Of what may have been committed no more is said; a topic that is gone is looked at anew.
                self._asks = True
                if isinstance(error, NotFound):
                    self._let_go(work)
                raise
            except Error as error:
                if not self._hold(work, error):
                    return self._let_go(work)
        return True

    def _let_go(self, work: _Work) -> bool:
        work.settle("release", work.rest())
        return False

    def _has_changed(self, work: _Work) -> bool:
        """Whether the target is of another kind than it was: then it is not the message's fault. Looked at once."""
        if work.doubted:
            return False
        work.doubted = True
        forwarding, _ = self._prepared()
        return forwarding is None or forwarding.into_queue != work.forwarding.into_queue

    def _hold(self, work: _Work, error: Error) -> bool:
        """Waits with the batch in hand: given back it would come behind others. False: this is the end."""
        if str(error) != self._said:
            log.warning("push %s holds what %r does not take now: %s", self.push.name, self._to.topic, error)
            self._said = str(error)
        self._rest(getattr(error, "retry_after_ms", None))
        if self._stopping.is_set():
            return False
        try:
            work.extend()
        except Error as worse:
            log.warning("push %s cannot keep hold of its messages: %s", self.push.name, worse)
        return True


Row = tuple[Any, ...]
Part = list[tuple[Taken, Row]]


class _Work:
    """What was claimed at once, on its way."""

    def __init__(self, runner: TopicRunner, forwarding: Forwarding, incarnation: str, taken: list[Taken]) -> None:
        self.forwarding = forwarding
        self.taken = taken
        # Whether it was asked if it is not the target that has changed.
        self.doubted = False
        # What is to be published, each part by itself, in this order.
        self.left: list[Part] = []
        self._refused = 0
        # How many messages of each lease are not settled.
        self._open = Counter(one.lease_id for one in taken)
        self._port = runner.port
        self._push = runner.push
        self._target = runner.push.to.topic if isinstance(runner.push.to, ToTopic) else ""
        self._incarnation = incarnation

    def rest(self) -> list[Taken]:
        """What is not done with yet."""
        return [one for part in self.left for one, _ in part]

    def make_rows(self, batch: int) -> None:
        """Makes what will be published, in parts; messages that this makes no sense of are nacked."""
        now_ms = self._port.now_ms()
        rows: Part = []
        senseless: dict[str, list[Taken]] = {}
        for one in self.taken:
            try:
                rows.append((one, self.forwarding.row(one, now_ms)))
            except InvalidArgument as error:
                senseless.setdefault(str(error), []).append(one)
        self.left = [rows[at : at + batch] for at in range(0, len(rows), batch)]
        for why, some in senseless.items():
            self.settle("nack", some, reason=why)

    def forward_next(self) -> int:
        """Publishes and acks the next part in one transaction, as far as it is still held. Returns how many."""
        part = self.left[0]
        batch = batch_of([row for _, row in part])
        tokens = tokens_of([one for one, _ in part], self._open)
        with self._port.store.together(_CALL_S) as tx:
            lost = set(self._do(self._settling("ack", tokens), tx).lost)
            if lost:
                part[:] = [pair for pair in part if not lost & {_place(pair), (pair[0].lease_id, None)}]
            if part:
                batch = batch_of([row for _, row in part]) if lost else batch
                self._do(Publish(self._push.tenant, self._target, batch, self._port.make_publish_id()), tx)
        self._count([one for one, _ in self.left.pop(0)])
        return len(part)

    def refuse(self, error: InvalidArgument) -> None:
        """The message that is at fault is nacked. Where that is not said, or many are, they are looked for in halves:
        each try costs what its part is long.
        """
        part, index = self.left[0], error.facts.get("index")
        self._refused += 1
        if isinstance(index, int) and index < len(part) and (self._refused <= _REFUSED_SINGLY or len(part) == 1):
            self._give_back("nack", [part[index][0]], reason=str(error))
        elif len(part) == 1:
            self._give_back("nack", [part[0][0]], reason=str(error))
        else:
            middle = len(part) // 2
            self.left[:1] = [part[:middle], part[middle:]]

    def put_off(self, error: OperationExhausted) -> None:
        """Messages of an operation that has published enough come again when it may publish."""
        pairs = [pair for part in self.left for pair in part]
        some = [(one, row) for one, row in pairs if (row[HEADERS] or {}).get(OPERATION) == error.operation]
        try:
            self._check_operation([row for _, row in some])
        except OperationExhausted as stopped:
            self._give_back("release", [one for one, _ in some], delay_ms=stopped.retry_after_ms)

    def _check_operation(self, rows: list[Row]) -> None:
        """That an operation was stopped has to be noted by itself: with the transaction it was undone."""
        command = CheckOperations(self._push.tenant, self._target, batch_of(rows))
        deadline = monotonic_s() + _CALL_S
        self._port.store.write(check_operations, command, tenant=self._push.tenant, cost=0, deadline=deadline)

    def _give_back(self, verdict: str, some: Sequence[Taken], **how: Any) -> None:
        out = {(one.lease_id, one.index) for one in some}
        kept = [[pair for pair in part if _place(pair) not in out] for part in self.left]
        self.left = [part for part in kept if part]
        self.settle(verdict, some, **how)

    def settle(self, verdict: str, some: Sequence[Taken], *, delay_ms: int | None = None, reason: str = "") -> None:
        """Gives messages back. What is lost by now is somebody else's."""
        if some:
            tokens = tokens_of(some, self._open)
            self._count(some)
            self._do(self._settling(verdict, tokens, delay_ms, reason[: LIMITS.reason_chars_max]))

    def extend(self) -> None:
        """Keeps hold of what is left."""
        # Whole leases keep their ids.
        tokens = tuple(Token(lease_id) for lease_id in dict.fromkeys(one.lease_id for one in self.rest()))
        self._do(self._settling("extend", tokens, _LEASE_MS))

    def _count(self, settled: Sequence[Taken]) -> None:
        self._open.subtract(one.lease_id for one in settled)

    def _settling(self, verdict: str, tokens: tuple[Token, ...], delay_ms: int | None = None, why: str = "") -> Settle:
        push = self._push
        return Settle(push.tenant, self._incarnation, push.topic, push.group, verdict, tokens, delay_ms, why)

    def _do(self, command: Any, tx: Any = None) -> Any:
        return self._port.do(command, deadline=monotonic_s() + _CALL_S, tx=tx)


def _place(pair: tuple[Taken, Row]) -> tuple[int, int]:
    return pair[0].lease_id, pair[0].index
