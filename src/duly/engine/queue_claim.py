"""claim on a queue: one merge serves all claims that came together.

What is due is served by priority; among equals lanes take turns (fairness.py); inside a lane by due time, then
arrival. A claim never skips an entry to take a later one, so every run is consumed from the front.

Messages of an expired lease are *suspects*: one of them may have killed its consumer. They re-enter like any
failed message and are served in their order; but a claim that comes to one gets only suspects of that lease,
half of them, and one that would come to one later stops before it. So the guilty one ends up alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from ..errors import CorruptBlock
from ..limits import LIMITS
from ..message import Failure
from ..store.contract import LANED, LEASED, READY, GroupRow, LeaseRow, LooseRow, TopicRow, Transaction
from .broken import Broken, lane_outcomes
from .bury import bury, tell, tell_expired
from .claimed import Claim, Claimed
from .columns import NEVER, Columns
from .done import note_done
from .entries import Entries
from .fairness import interleave, moved
from .fold import finish
from .gates import Outcomes, Passage, outcomes
from .index import Index
from .lease import add_failure, live_indexes
from .limited import breaker_of, free, keeps_slot
from .lookup import with_big
from .queue_lease import encode_keys, keys_of, make_keys, parcel_of
from .record import of_lease, record_claim, record_some
from .service import note_served
from .views import Proposal, front, joined

# One merge serves no more than this, however many ask.
_MERGE_MAX = 20_000
# One claim drops no more expired messages than about this.
_DROP_MAX = 20_000
# So many expired leases are taken over by one claim.
_TAKE_OVER_MAX = 100


def claim_queue(
    tx: Transaction, topic: TopicRow, group: GroupRow, commands: Sequence[Claim], passage: Passage | None = None
) -> list[Claimed | Exception]:
    """Serves claims on one queue, in turn, from one merge a partition."""
    lease_ms = group.settings.lease_ms or topic.settings.lease_ms
    claims = [_Wish(tx, topic, group, command, command.lease_ms or lease_ms, passage) for command in commands]
    if not topic.paused and not group.paused:
        many = len(topic.partitions)
        turn = 0
        if many > 1:
            turn = (tx.recall(("claim turn", group.id)) or 0) % many
            tx.remember(("claim turn", group.id), turn + 1)
        for number in [*range(turn, many), *range(turn)]:
            open_claims = [claim for claim in claims if claim.open]
            if open_claims:
                _Serving(tx, topic, group, number, passage).serve(open_claims)
        for claim in claims:
            if passage is not None and passage.left <= 0 and not claim.count:
                claim.got.next_due = passage.look_at
    return [claim.answer() for claim in claims]


class _Wish:
    """One claim and what it got so far."""

    def __init__(
        self,
        tx: Transaction,
        topic: TopicRow,
        group: GroupRow,
        command: Claim,
        lease_ms: int,
        passage: Passage | None,
    ) -> None:
        self.tx = tx
        self.topic = topic
        self.group = group
        self.passage = passage
        self.consumer = command.consumer
        self._want = command.max_messages
        self.budget = command.max_bytes
        self.full = False
        self.count = 0
        # The expired lease whose messages it gets, if it gets such.
        self.suspects = 0
        # Written when the claim is complete: only then is it known whether a message is alone.
        self.leases: list[tuple[LeaseRow, int, Columns, list[int] | None]] = []
        self.corrupt: CorruptBlock | None = None
        self.got = Claimed(
            topic.name, group.name, tx.incarnation, lease_ms, tx.now_ms + lease_ms, partitions=topic.partitions
        )

    @property
    def want(self) -> int:
        """How many more messages it takes, and may have."""
        return self._want if self.passage is None else min(self._want, self.passage.left)

    def take(self, row: LeaseRow, number: int, columns: Columns, attempts: list[int] | None) -> None:
        """Messages become its own."""
        self.leases.append((row, number, columns, attempts))
        self.count += row.count
        self._want -= row.count
        if self.passage is not None:
            # Those that were delivered before were paid for when they were made ready.
            fresh = row.count if attempts is None else attempts.count(1)
            self.passage.take(row.count, fresh=fresh, again=0, until=row.due_at)

    @property
    def open(self) -> bool:
        """Whether it would take more."""
        return not self.full and self.want > 0 and self.budget > 0

    def look_again(self, moment: int | None) -> None:
        """Something of the queue is due then."""
        if moment is not None:
            known = self.got.next_due
            self.got.next_due = moment if known is None else min(known, moment)

    def answer(self) -> Claimed | CorruptBlock:
        """Writes its leases; what its caller is told."""
        for row, number, columns, attempts in self.leases:
            lease_id = self.tx.lease_insert(replace(row, alone=self.count == 1))
            record_claim(self.tx, self.topic, self.group.name, row, lease_id)
            if self.passage is not None:
                self.passage.leased(lease_id, row.due_at)
            self.got.parcels.append(parcel_of(row, lease_id, number, columns, attempts))
        active = bool(self.leases)
        self.tx.consumer_seen(self.topic.tenant_id, self.group.id, self.consumer, active=active)
        return self.got if active or self.corrupt is None else self.corrupt


class _Serving:
    """One partition being served."""

    def __init__(self, tx: Transaction, topic: TopicRow, group: GroupRow, number: int, passage: Passage | None) -> None:
        self.tx = tx
        self.topic = topic
        self.group = group
        self.passage = passage
        self.number = number
        self.partition = topic.partitions[number]
        self.index = Index(tx, topic, self.partition)
        if passage is not None and passage.terms.budget is not None:
            self.index.retries = passage.retries

    def serve(self, wishes: list[_Wish]) -> None:
        more = take_over(self.tx, self.topic, self.group, self.partition, wishes[0].consumer)
        if more and self.passage is not None:
            # The probe may have been among them.
            self.passage.look()
        try:
            # In this order: what came due before it was published goes first in its lane.
            more |= self.index.promote() > 0
            more |= self.index.absorb() > 0
            more |= self.index.admit() > 0
            # What has expired gives its slot back: the next of its lane may come in its place.
            while self._deal(wishes) and any(wish.open for wish in wishes) and self.index.admit():
                more = True
            if self.index.damage is not None:
                self._report(self.index.damage, wishes)
        except CorruptBlock as error:
            # Nothing before this point was consumed: what lies before it has been dealt.
            self._report(error, wishes)
        finish(self.index)
        if self.passage is not None and self.index.retried:
            self.passage.take_again(self.index.retried)
        for wish in wishes:
            if not wish.count:
                wish.look_again(self._next_due(more))

    def _next_due(self, more: bool) -> int | None:
        if more:
            return self.tx.now_ms
        moments = [
            self.index.next_due(),
            self.tx.lease_next_due(self.topic.tenant_id, self.partition, self.group.id),
        ]
        if self.passage is not None and self.index.retries is not None and self.passage.retries <= 0:
            moments.append(self._retry_at())
        return min((moment for moment in moments if moment is not None), default=None)

    def _retry_at(self) -> int | None:
        """When the next retry may go, if one waits for that."""
        first = self.tx.loose_next_due(self.topic.tenant_id, self.partition)
        waits = first is not None and first <= self.tx.now_ms
        return self.passage.retry_at if self.passage is not None and waits else None

    def _report(self, error: CorruptBlock, wishes: list[_Wish]) -> None:
        for wish in wishes:
            wish.corrupt = error
        facts: dict[str, object] = {"why": str(error)}
        tell(
            self.tx,
            self.topic,
            self.group,
            "block_corrupt",
            partition=self.partition,
            offset=error.facts["base"],
            count=0,
            facts=facts,
        )

    # Dealing

    def _deal(self, wishes: list[_Wish]) -> int:
        """Deals out what is ready; returns how many messages were dropped on the way."""
        waiting = [wish for wish in wishes if wish.open]
        dropped = at_least = 0
        while waiting:
            want = sum(wish.want for wish in waiting)
            if self.passage is not None:
                want = min(want, self.passage.left)
            want = min(_MERGE_MAX, max(at_least, want))
            self.index.refill(want)
            round_ = _Round(self, want)
            if not len(round_.entries):
                return dropped
            for wish in waiting:
                round_.give(wish)
            round_.consume()
            dropped += round_.dropped
            if round_.served == 0 and not round_.dropped:
                return dropped
            waiting = [wish for wish in waiting if wish.open]
            if dropped >= _DROP_MAX:
                # There is time for others: the rest is dropped by the next claim, which comes at once.
                for wish in waiting:
                    wish.look_again(self.tx.now_ms)
                return 0
            at_least = 4 * round_.dropped
        return dropped


class _Round:
    """One merge, dealt out to claims one after another."""

    def __init__(self, serving: _Serving, want: int) -> None:
        self.serving = serving
        self.tx = serving.tx
        index = serving.index
        plain = front(index.views(READY), want)
        self.proposal = plain
        self.tags: Any = None
        lanes = index.views(LANED)
        laned = front(lanes, want) if lanes else None
        if laned is not None and not len(plain.entries):
            # Which is the order of service already.
            self.proposal, self.tags = laned, laned.entries.tag
        elif laned is not None and len(laned.entries):
            both = joined([plain, laned])
            order, tags = interleave(plain.entries, laned.entries, index.clocks, index.cost)
            order = order[:want]
            self.tags = tags[order]
            self.proposal = Proposal(both.views, both.entries.take(order), both.origin[order], both.place[order])
        self.entries: Entries = self.proposal.entries
        self.columns: Columns = Columns(0)
        if len(self.entries):
            stubs = self.proposal.messages(len(self.entries))
            self.columns = with_big(self.tx, serving.topic.tenant_id, serving.partition, stubs)
        # Which were cancelled or moved, and which have expired; None: none.
        self.holes: Any = index.is_hole(self.proposal)
        self.past: Any = None
        self.expires: Any = None
        if self.columns.has("expires_at"):
            self.expires = self.columns.numbers("expires_at", NEVER)
            past = self.expires <= self.tx.now_ms
            if past.any():
                self.past = past if self.holes is None else past & ~self.holes
        # Those of lanes whose breakers are open.
        self.broken: Broken | None = None
        self.shut: Any = None
        if len(self.entries) and breaker_of(serving.topic) is not None:
            self.broken = Broken(self.tx, serving.topic, serving.partition, self.entries)
            shut, gone = self.broken.held_back(self.entries), _either(self.holes, self.past)
            self.shut = shut if shut is None or gone is None else shut & ~gone
        self.gone: Any = _either(_either(self.holes, self.past), self.shut)
        # Which are not just handed out as they come.
        self.special: Any = _either(self.gone, self.entries.loose if self.entries.has_loose else None)
        # How many bytes they are, with all before them.
        self.ends: Any = self.columns.sizes().cumsum() if len(self.entries) else np.zeros(0, np.int64)
        self.seqs: list[int] = self.entries.seq.tolist()
        self.keys = make_keys(self.entries, self.expires)
        self.loose: dict[int, LooseRow] = self._loose_rows() if self.entries.has_loose else {}
        self.at = 0
        self.served = 0
        self.dropped = 0
        # Until when the leases hold that are made of it.
        self.until = 0

    def _loose_rows(self) -> dict[int, LooseRow]:
        there = self.entries.loose if self.gone is None else self.entries.loose & ~self.gone
        serving = self.serving
        offsets = self.entries.seq[there].tolist()
        rows = self.tx.loose(serving.topic.tenant_id, serving.partition, offsets) if offsets else []
        return {row.offset: row for row in rows}

    def give(self, wish: _Wish) -> None:
        """As many of the next messages as a claim may have."""
        picked: list[int] = []
        while self.at < len(self.entries) and len(picked) < wish.want:
            at = self.at
            row = None
            if self.special is not None and self.special[at]:
                if self.gone is not None and self.gone[at]:
                    self.at += 1
                    continue
                row = self.loose.get(self.seqs[at])
            suspects = 0 if row is None else row.suspects
            any_yet = bool(wish.count or picked)
            if any_yet and suspects != wish.suspects:
                break
            if row is not None and suspects and wish.count + len(picked) >= row.half:
                break
            taken = self._fitting(wish, at, 1 if row is not None else wish.want - len(picked), any_yet)
            if not taken:
                break
            wish.suspects = suspects
            picked.extend(range(at, at + taken))
            self.at += taken
        if self.at < len(self.entries) and len(picked) < wish.want:
            # It came to something that it may not have: the next claim begins with that.
            wish.full = True
        if picked:
            self._lease(wish, picked)

    def _fitting(self, wish: _Wish, at: int, most: int, any_yet: bool) -> int:
        """How many ordinary messages from `at` on the claim has room for; the very first always fits."""
        stop = min(at + most, len(self.entries))
        if self.special is not None and most > 1:
            special = np.flatnonzero(self.special[at + 1 : stop])
            if len(special):
                stop = at + 1 + int(special[0])
        before = int(self.ends[at - 1]) if at else 0
        if int(self.ends[stop - 1]) - before > wish.budget:
            stop = max(int(self.ends.searchsorted(before + wish.budget, side="right")), at if any_yet else at + 1)
        if stop > at:
            wish.budget -= int(self.ends[stop - 1]) - before
        return stop - at

    def _lease(self, wish: _Wish, picked: list[int]) -> None:
        serving = self.serving
        count, start, stop = len(picked), picked[0], picked[-1] + 1
        if stop - start == count:
            offsets = tuple(self.seqs[start:stop])
            columns, keys = self.columns.slice(start, stop), self.keys.stretch(start, stop)
        else:
            offsets = tuple([self.seqs[at] for at in picked])
            columns, keys = self.columns.take(picked), self.keys.some(picked)
        attempts = [self.loose[seq].attempts + 1 if seq in self.loose else 1 for seq in offsets] if self.loose else [1]
        again = attempts if max(attempts) > 1 else None
        row = LeaseRow(
            tenant_id=serving.topic.tenant_id,
            partition=serving.partition,
            group=serving.group.id,
            due_at=wish.got.expires_at,
            state=LEASED,
            consumer=wish.consumer,
            claimed_at=self.tx.now_ms,
            base=min(offsets),
            count=count,
            live=count,
            attempts=max(attempts),
            offsets=offsets,
            keys=encode_keys(keys, again),
        )
        wish.take(row, serving.number, columns, again)
        self.until = max(self.until, row.due_at)
        self.served += count

    def consume(self) -> None:
        """Passes over what was dealt or dropped."""
        if not self.at:
            return
        self.proposal.consume(self.at)
        served = self.entries.take(slice(self.at))
        if self.tags is not None:
            index = self.serving.index
            index.set_clocks(moved(index.clocks, served, self.tags[: self.at], index.cost))
        if self.broken is not None:
            # Before some are put back: only then is it known what was let pass.
            self.broken.claimed(served if self.gone is None else served.take(~self.gone[: self.at]), self.until)
        if self.gone is not None and self.gone[: self.at].any():
            self._drop(served)

    def _drop(self, served: Entries) -> None:
        """Forgets what is not delivered."""
        serving = self.serving
        topic, partition = serving.topic, serving.partition
        self.dropped = int(self.gone[: self.at].sum())
        if self.holes is not None:
            serving.index.close_holes(self.proposal, self.holes[: self.at])
        shut = None if self.shut is None else self.shut[: self.at]
        if shut is not None and shut.any() and self.broken is not None:
            self.broken.put_back(served.take(shut))
        past = None if self.past is None else self.past[: self.at]
        if past is not None and past.any():
            serving.tx.loose_delete(topic.tenant_id, partition, served.seq[past & served.loose].tolist())
            ended_at = int(self.expires[: self.at][past].max())
            note_done(serving.tx, topic, partition, served.seq[past].tolist(), ended_at)
            free(serving.tx, topic, partition, served.lane[past].tolist())
            tell_expired(serving.tx, topic, serving.group, partition, served.seq[past].tolist())


def _either(one: Any, other: Any) -> Any:
    """Which are in one of two masks; None is a mask with none in it."""
    if one is None or other is None:
        return other if one is None else one
    return one | other


def take_over(tx: Transaction, topic: TopicRow, group: GroupRow, partition: int, consumer: str) -> bool:
    """Puts messages of leases that ran out back, on behalf of a consumer. True if there were any."""
    rows = tx.leases_due(topic.tenant_id, partition, group.id, tx.now_ms, _TAKE_OVER_MAX)
    attempts_max = (group.settings.retry or topic.settings.retry).max_attempts
    breaker = outcomes(tx, topic, group) if rows else None
    for row in rows:
        tx.lease_delete(row.tenant_id, row.id)
        facts: dict[str, object] = {"from": row.consumer, "to": consumer, "attempts": row.attempts}
        tell(tx, topic, group, "lease_taken_over", facts=facts, **of_lease(row))
        _put_back(tx, topic, group, row, attempts_max, breaker)
    return bool(rows)


def _put_back(
    tx: Transaction, topic: TopicRow, group: GroupRow, row: LeaseRow, attempts_max: int, breaker: Outcomes | None
) -> None:
    """Puts the messages of a lease that ran out back into the queue, under suspicion."""
    assert row.offsets is not None
    keys = keys_of(row)
    indexes = live_indexes(row)
    # What waits while a breaker is open, and for how long at least; and whose attempt does not count, too.
    rests, spared = _heard(tx, topic, group, row, indexes, breaker)
    note_served(tx, row, keys, indexes, row.due_at)
    # Also of those that had no row when they were claimed: they may have been cancelled since.
    known = {loose.offset: loose for loose in tx.loose(row.tenant_id, row.partition, [row.offsets[i] for i in indexes])}
    half = (len(indexes) + 1) // 2
    for index in indexes:
        offset, attempts = row.offsets[index], keys.attempt(index)
        before = known.get(offset)
        if before is not None and before.cancelled:
            tx.loose_delete(row.tenant_id, row.partition, [offset])
            note_done(tx, topic, row.partition, [offset])
            free(tx, topic, row.partition, [keys.lane(index)])
            record_some(tx, topic, "cancelled", row.partition, [offset], group=group.name)
            continue
        failure = Failure(attempts, tx.now_ms, "expired", "the lease expired", row.consumer)
        history = add_failure(None if before is None else before.history, failure)
        if len(indexes) == 1 and row.alone and attempts >= attempts_max and index not in spared:
            tx.loose_delete(row.tenant_id, row.partition, [offset])
            dead = replace(row, attempts=attempts, history=history)
            bury(tx, topic, group, dead, [offset], f"the lease expired {attempts} times")
            free(tx, topic, row.partition, [keys.lane(index)])
            continue
        if not keeps_slot(topic):
            free(tx, topic, row.partition, [keys.lane(index)])
        tx.loose_put(
            row.tenant_id,
            LooseRow(
                row.partition,
                offset,
                tx.now_ms + rests[index] if index in rests else row.due_at,
                True,
                keys.priority(index),
                keys.lane(index),
                attempts - 1 if index in spared else attempts,
                0 if index in spared else row.id,
                0 if index in spared else half,
                history=history,
                slot=keeps_slot(topic),
            ),
        )


def _heard(
    tx: Transaction, topic: TopicRow, group: GroupRow, row: LeaseRow, indexes: list[int], breaker: Outcomes | None
) -> tuple[dict[int, int], set[int]]:
    """Breakers hear that a lease ran out. Which messages rest for how long, and whose attempt is not counted."""
    rests: dict[int, int] = {}
    spared: set[int] = set()
    if breaker is not None:
        if breaker.expired(row):
            spared.update(indexes)
        if breaker.is_open:
            rests = dict.fromkeys(indexes, breaker.rest_ms())
    lanes = lane_outcomes(tx, topic, group, row)
    if lanes is not None:
        own_rests, others = lanes.failed(indexes, expired=True)
        rests |= {index: max(rest_ms, rests.get(index, 0)) for index, rest_ms in own_rests.items()}
        spared |= others
    return rests, spared


assert LIMITS.attempts_max < 2**16
