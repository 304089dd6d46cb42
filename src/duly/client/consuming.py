"""A client's calls that hold messages and settle them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from ..clock import Duration, monotonic_s
from ..engine.claimed import Acks, Claim, Claimed
from ..engine.settle import Held, ReleaseConsumer
from ..engine.verdict import Settle, Token, Verdicts
from ..errors import InvalidArgument
from ..interrupt import SHIELD
from ..limits import LIMITS
from .arguments import (
    byte_budget,
    count,
    delay_ms,
    group_named,
    lease_ms,
    named,
    reason_text,
    timeout_s,
    wait_ms,
)
from .batch import Batch, Delivery, Settled
from .calls import Calls
from .consume import Consumption
from .port import Watch
from .renewal import Renewal


class ConsumeCalls(Calls):
    """Claim and settle."""

    _renewal: Renewal

    # Claim and settle

    def claim(
        self,
        topic: str,
        *,
        group: str | None = None,
        max_messages: int = 100,
        max_bytes: int | None = None,
        wait: Duration = 0,
        lease: Duration | None = None,
        consumer: str | None = None,
        acks: Batch | Iterable[Delivery] | None = None,
        timeout: Duration | None = None,
    ) -> Batch:
        """Takes up to `max_messages` due messages under a lease, waiting up to `wait` for the first.

        The batch is empty when nothing came. Use it in a `with` block to have it renewed and settled.

        `acks`: deliveries of the same topic and group that are done with, acked in the same transaction: half the
        calls and commits of a loop that acks each batch and claims the next. What became of them is in `acked` of the
        batch. A claim that fails may have acked them or not: ack them again, it does no harm.
        """
        waits_s = wait_ms(wait) / 1000
        command = self._claim_of(topic, group, max_messages, max_bytes, lease, consumer)
        wait_until = monotonic_s() + waits_s if waits_s else None
        deadline = self._deadline(timeout)
        if deadline is not None and wait_until is not None:
            deadline += waits_s
        acked = None
        if acks is not None:
            batch = self._claim_acking(command, acks, deadline)
            if batch or wait_until is None or monotonic_s() >= wait_until:
                return batch
            acked = batch.acked
        return Batch(self, self._alive().claim(command, wait_until=wait_until, deadline=deadline), acked)

    def _claim_acking(self, command: Claim, acks: Batch | Iterable[Delivery], deadline: float | None) -> Batch:
        """Claims what is due now, and in the same transaction acks deliveries of that group."""

        def claim(acks: Acks | None) -> Claimed:
            return self._alive().claim(replace(command, acks=acks), wait_until=None, deadline=deadline)

        return self._acking(command, acks, claim)

    def _acking(
        self, command: Claim, acks: Batch | Delivery | Iterable[Delivery], claim: Callable[[Acks | None], Claimed]
    ) -> Batch:
        """The batch of a claim that also acks; notes with the deliveries how they were answered."""
        leaving = _leaving(command, acks)
        # What the store answers is also noted here: an interruption must not come between the two.
        with SHIELD:
            tokens = [batch.open_tokens() if some is None else _tokens(some) for batch, some in leaving]
            together = tuple(token for some in tokens for token in some)
            wanted = Acks(leaving[0][0].incarnation, together) if together else None
            claimed = claim(wanted)
            if wanted is not None and claimed.settled is None:
                # A broker of an earlier version took no notice of them.
                claimed.settled = self._do(replace(command, acks=wanted).settle, None, None)
            verdicts = claimed.settled or Verdicts()
            lost: list[Delivery] = []
            for (batch, some), named in zip(leaving, tokens, strict=True):
                batch.apply("ack", named, verdicts)
                if some is None:
                    batch.mark_settled()
                lost += batch.lost_deliveries() if some is None else _mark(some, "ack", verdicts)
            return Batch(self, claimed, Settled(verdicts.done, tuple(lost)))

    def _claim_of(
        self,
        topic: str,
        group: str | None,
        max_messages: int,
        max_bytes: int | None,
        lease: Duration | None,
        consumer: str | None,
    ) -> Claim:
        return Claim(
            self._tenant,
            named(topic),
            group_named(group),
            self._consumer_name(consumer),
            count(max_messages, "max_messages", LIMITS.claim_messages_max),
            byte_budget(max_bytes),
            None if lease is None else lease_ms(lease),
        )

    def consume(
        self,
        topic: str,
        *,
        group: str | None = None,
        max_messages: int = 1,
        wait: Duration | None = None,
        lease: Duration | None = None,
        consumer: str | None = None,
        timeout: Duration | None = None,
    ) -> Consumption:
        """Deliveries one by one, without end: `for d in q.consume("emails")`. Each is renewed while you work on it
        and acked when you ask for the next, unless you settled it.

        Leaving the loop by `break` or by an exception looks the same from here: what was not settled is nacked.
        In `with q.consume(…) as deliveries:` the end of the block acks it and only an exception nacks.
        It claims up to `max_messages` at a time, one unless told otherwise; what the loop never came to is released.
        With `wait` it ends when nothing came for so long. A lease that was lost is logged, and the loop goes on.
        """
        command = self._claim_of(topic, group, max_messages, None, lease, consumer)
        if timeout is not None:
            timeout_s(timeout)
        return Consumption(self, command, None if wait is None else wait_ms(wait) / 1000, timeout)

    def ack(
        self,
        deliveries: Batch | Iterable[Delivery],
        *,
        tx: Any = None,
        timeout: Duration | None = None,
    ) -> Settled:
        """Finishes deliveries; with `tx` if and when that transaction commits, and exactly then."""
        return self._settle("ack", deliveries, tx=tx, timeout=timeout)

    def nack(
        self,
        deliveries: Batch | Iterable[Delivery],
        *,
        delay: Duration | None = None,
        reason: str = "",
        tx: Any = None,
        timeout: Duration | None = None,
    ) -> Settled:
        """Gives deliveries back to be tried again: after `delay`, or as the retry policy says."""
        later_ms = None if delay is None else delay_ms(delay)
        return self._settle("nack", deliveries, delay_ms=later_ms, reason=reason, tx=tx, timeout=timeout)

    def release(
        self,
        deliveries: Batch | Iterable[Delivery] | None = None,
        *,
        delay: Duration | None = None,
        consumer: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        tx: Any = None,
        timeout: Duration | None = None,
    ) -> Settled:
        """Gives deliveries back without counting an attempt, at once or after `delay`; or all that a (hung) consumer
        holds.
        """
        if (deliveries is None) == (consumer is None) or (consumer is not None and delay is not None):
            raise InvalidArgument("Release deliveries, perhaps after delay=, or everything of consumer=.")
        if deliveries is not None:
            later_ms = None if delay is None else delay_ms(delay)
            return self._settle("release", deliveries, delay_ms=later_ms, tx=tx, timeout=timeout)
        command = ReleaseConsumer(self._tenant, *self._of_consumer(consumer, topic, group))
        return Settled(self._do(command, timeout, tx))

    def extend(
        self,
        deliveries: Batch | Iterable[Delivery],
        lease: Duration | None = None,
        *,
        timeout: Duration | None = None,
    ) -> Settled:
        """Holds deliveries for `lease` from now on; by default as long as they were first held for."""
        longer_ms = None if lease is None else lease_ms(lease)
        return self._settle("extend", deliveries, delay_ms=longer_ms, timeout=timeout)

    def bury(
        self,
        deliveries: Batch | Iterable[Delivery],
        *,
        reason: str = "",
        tx: Any = None,
        timeout: Duration | None = None,
    ) -> Settled:
        """Moves deliveries to the dead letters now."""
        return self._settle("bury", deliveries, reason=reason, tx=tx, timeout=timeout)

    def held(
        self,
        *,
        consumer: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        timeout: Duration | None = None,
    ) -> list[Batch]:
        """Gives a restarted consumer its unexpired leases back, a batch a group, and fences its former self off."""
        command = Held(self._tenant, *self._of_consumer(consumer, topic, group))
        return [Batch(self, claimed) for claimed in self._do(command, timeout)]

    def _of_consumer(
        self, consumer: str | None, topic: str | None, group: str | None
    ) -> tuple[str, str | None, str | None]:
        return (
            self._consumer_name(consumer),
            None if topic is None else named(topic),
            None if group is None else named(group),
        )

    def _settle(
        self,
        verdict: str,
        deliveries: Batch | Iterable[Delivery],
        *,
        delay_ms: int | None = None,
        reason: str = "",
        tx: Any = None,
        timeout: Duration | None = None,
    ) -> Settled:
        reason = reason_text(reason)
        # What the store answers is also noted here: an interruption must not come between the two.
        with SHIELD:
            if isinstance(deliveries, Batch):
                return self._settle_open(verdict, deliveries, delay_ms, reason, timeout, tx)
            chosen = [deliveries] if isinstance(deliveries, Delivery) else deliveries
            return self._settle_chosen(verdict, chosen, delay_ms, reason, timeout, tx)

    def _settle_chosen(
        self,
        verdict: str,
        deliveries: Iterable[Delivery],
        delay_ms: int | None,
        reason: str,
        timeout: Duration | None,
        tx: Any,
    ) -> Settled:
        done, lost = 0, []
        cancelled: list[Delivery] = []
        for batch, chosen in _by_batch(deliveries).items():
            tokens = _tokens(chosen)
            delay = batch.lease_ms if verdict == "extend" and delay_ms is None else delay_ms
            command = Settle(self._tenant, batch.incarnation, batch.topic, batch.group, verdict, tokens, delay, reason)
            verdicts: Verdicts = self._do(command, timeout, tx)
            if tx is not None:
                self._pledge(batch, tx)
            batch.apply(verdict, tokens, verdicts)
            done += verdicts.done
            lost += _mark(chosen, verdict, verdicts)
            if verdict == "extend":
                cancelled += [delivery for delivery in chosen if delivery.cancelled]
        return Settled(done, tuple(lost), tuple(cancelled))

    def _settle_open(
        self,
        verdict: str,
        batch: Batch,
        delay_ms: int | None,
        reason: str,
        timeout: Duration | None,
        tx: Any = None,
    ) -> Settled:
        tokens = batch.open_tokens()
        if not tokens:
            return Settled(0, tuple(batch.lost_deliveries()))
        delay = batch.lease_ms if verdict == "extend" and delay_ms is None else delay_ms
        command = Settle(self._tenant, batch.incarnation, batch.topic, batch.group, verdict, tokens, delay, reason)
        verdicts: Verdicts = self._do(command, timeout, tx)
        if tx is not None:
            self._pledge(batch, tx)
        batch.apply(verdict, tokens, verdicts)
        if verdict != "extend":
            batch.mark_settled()
            return Settled(verdicts.done, tuple(batch.lost_deliveries()))
        return Settled(verdicts.done, tuple(batch.lost_deliveries()), tuple(batch.cancelled_deliveries()))

    def _pledge(self, batch: Batch, tx: Any) -> None:
        """What is noted of a batch from here on counts if the transaction commits."""
        undo = batch.as_it_is()
        if not self._alive().when_undone(tx, undo):
            batch.pledged(undo)

    def _watch(self, command: Claim) -> Watch:
        return self._alive().watch(command)

    def _wake(self) -> None:
        self._alive().wake()

    def renew(self, batch: Batch) -> Callable[[], None]:
        """Renews a batch in the background until the returned function is called."""
        return self._renewal.start(batch)

    def _renew(self, batch: Batch) -> None:
        self._settle_open("extend", batch, batch.lease_ms, "", None)


def _leaving(command: Claim, acks: Batch | Delivery | Iterable[Delivery]) -> list[tuple[Batch, list[Delivery] | None]]:
    """Deliveries to ack with a claim, by batch; None: all that is open of it. Raises InvalidArgument."""
    if isinstance(acks, Batch):
        leaving: list[tuple[Batch, list[Delivery] | None]] = [(acks, None)]
    else:
        leaving = list(_by_batch([acks] if isinstance(acks, Delivery) else acks).items())
    if len({batch.incarnation for batch, _ in leaving}) > 1:
        raise InvalidArgument("These deliveries were claimed before and after a restore: ack them by themselves.")
    for batch, _ in leaving:
        if batch.topic != command.topic or (command.group and batch.group != command.group):
            raise InvalidArgument(
                f"A claim acks deliveries of its own topic and group alone; these are of {batch.topic!r}, group "
                f"{batch.group!r}: ack them by themselves."
            )
    return leaving


def _by_batch(deliveries: Iterable[Delivery]) -> dict[Batch, list[Delivery]]:
    found: dict[Batch, list[Delivery]] = defaultdict(list)
    try:
        for delivery in deliveries:
            found[delivery._batch].append(delivery)
    except (AttributeError, TypeError) as error:
        raise InvalidArgument("Settle a Batch, or Delivery objects that a claim gave you.") from error
    return found


def _tokens(deliveries: Iterable[Delivery]) -> tuple[Token, ...]:
    indexes: dict[int, list[int]] = defaultdict(list)
    for delivery in deliveries:
        indexes[delivery._lease_id].append(delivery._index)
    return tuple(Token(lease, tuple(dict.fromkeys(chosen))) for lease, chosen in indexes.items())


def _mark(deliveries: Iterable[Delivery], verdict: str, verdicts: Verdicts) -> list[Delivery]:
    """Notes on each delivery how it was answered; returns the lost ones."""
    lost = []
    gone = set(verdicts.lost)
    for delivery in deliveries:
        token = (delivery._lease_id, delivery._index)
        if token in gone or (delivery._lease_id, None) in gone:
            delivery._lost = not delivery._settled
            lost.append(delivery)
        elif token in verdicts.renewed:
            delivery._lease_id, delivery._index = verdicts.renewed[token]
        elif verdict != "extend":
            delivery._settled = True
    return lost
