"""claim on a log: take due messages of a group under a lease.

A claim serves, partition by partition, what is due again (retries, and leases whose holder let
them expire) and what was never delivered (from the group's cursor on). When both are there each
gets half, so that neither a storm of retries nor a flood of new messages starves the other.

What comes from an expired lease is *suspect*: it may have killed its consumer. It is handed out
by itself, in halves, so that the innocent are told from the guilty (DESIGN.md §5, rule 8).

A corrupt block is never skipped: what lies before it is delivered, other partitions go on, and a
claim that finds nothing else raises CorruptBlock.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..errors import CorruptBlock
from ..limits import LIMITS
from ..message import Failure
from ..store.contract import LEASED, WAITING, GroupRow, LeaseRow, TopicRow, Transaction
from .agenda import note_settled
from .block import Block
from .bury import bury, tell, tell_expired
from .claimed import Claim, Claimed, Parcel, Slice
from .find import cursor_of, head_of, set_cursor
from .gates import Passage, outcomes
from .lease import add_failure, live_offsets, over, settle_bits
from .read import look_up
from .record import of_lease, record_claim

# One claim looks at no more expired messages than this before it lets others have the writer.
EXPIRED_LOOK_MAX = 100_000


class LogClaiming:
    """One claim on a log at work."""

    def __init__(
        self, tx: Transaction, command: Claim, topic: TopicRow, group: GroupRow, passage: Passage | None = None
    ) -> None:
        self.tx = tx
        self.topic = topic
        self.group = group
        self.passage = passage
        self.outcomes = None if passage is None else outcomes(tx, topic, group)
        self.consumer = command.consumer
        self.retry = group.settings.retry or topic.settings.retry
        lease_ms = command.lease_ms or group.settings.lease_ms or topic.settings.lease_ms
        self._want = command.max_messages
        self.budget = command.max_bytes
        self.got = Claimed(
            topic.name, group.name, tx.incarnation, lease_ms, tx.now_ms + lease_ms, partitions=topic.partitions
        )
        self.corrupt: CorruptBlock | None = None
        # Leases to write once the claim is complete: only then is it known whether one message is alone.
        self.leases: list[tuple[int, LeaseRow, list[Slice]]] = []
        # Expired leases whose messages it got, or buried. The breaker hears of them when the claim is complete.
        self.taken_over: list[LeaseRow] = []

    def run(self) -> Claimed | CorruptBlock:
        if self.topic.paused or self.group.paused:
            return self.got
        if self.want > 0 and self.passage is not None and self.passage.probes:
            self._end_probe(self.passage)
        for number in self._partitions_in_turn() if self.want > 0 else ():
            if self._serve(number, self.topic.partitions[number]):
                break
        self._write_leases()
        if self.outcomes is not None and self.passage is not None and self.taken_over:
            for row in self.taken_over:
                self.outcomes.expired(row)
            self.passage.look()
        active = bool(self.got.parcels)
        self.tx.consumer_seen(self.topic.tenant_id, self.group.id, self.consumer, active=active)
        if not active:
            if self.corrupt is not None:
                return self.corrupt
            if self.got.next_due is None:
                self.got.next_due = self._next_due()
        return self.got

    @property
    def want(self) -> int:
        """How many more messages it takes, and may have."""
        return self._want if self.passage is None else min(self._want, self.passage.left)

    def _partitions_in_turn(self) -> list[int]:
        """Partition numbers, beginning with another one each time."""
        many = len(self.topic.partitions)
        if many == 1:
            return [0]
        key = ("claim turn", self.group.id)
        turn = (self.tx.recall(key) or 0) % many
        self.tx.remember(key, turn + 1)
        return [*range(turn, many), *range(turn)]

    def _serve(self, number: int, partition: int) -> bool:
        """Takes from one partition. True ends the claim: it is full, or it got suspects."""
        head = head_of(self.tx, self.topic.tenant_id, partition)
        cursor = cursor_of(self.tx, self.topic.tenant_id, partition, self.group.id)
        if cursor > head.next_offset:
            self._report(_missing_end(partition, head.next_offset, cursor), partition)
            return False
        fresh = head.next_offset > max(cursor, head.first_offset)
        share = max(1, self.want // 2) if fresh else self.want
        if self.passage is not None:
            # A probe is one that has not failed, as long as there is one: poison shall not be all that is tried.
            share = 0 if fresh and self.passage.probes else min(share, self.passage.retries)
        if self._take_due(number, partition, share):
            return True
        if fresh and self.want > 0:
            self._take_fresh(number, partition)
            if not share and self.want > 0 and self.passage is not None and self.passage.probes:
                # Of the fresh ones none could be had.
                self._take_due(number, partition, min(self.want, self.passage.retries))
        return self.want <= 0 or self.budget <= 0

    # What is due again

    def _take_due(self, number: int, partition: int, share: int) -> bool:
        """Takes up to `share` messages that are due again. True when suspects were handed out."""
        passed: set[int] = set()
        while share > 0 and self.budget > 0 and self.want > 0:
            limit = min(share + len(passed), LIMITS.page_max)
            due = self.tx.leases_due(self.topic.tenant_id, partition, self.group.id, self.tx.now_ms, limit)
            rows = [row for row in due if row.id not in passed]
            gave_nothing = False
            for row in rows:
                if share <= 0 or self.budget <= 0 or self.want <= 0:
                    break
                suspect = row.state == LEASED or row.suspect
                taken = None if suspect and self.leases else self._take_row(number, row, share)
                if taken is None:
                    passed.add(row.id)
                    continue
                share -= taken
                gave_nothing |= not taken
                if suspect and taken:
                    return True
            # Rows that gave nothing (expired, buried) must not hide others that are due as well, nor their own rest.
            if not rows or (len(due) < limit and not gave_nothing):
                break
        return False

    def _take_row(self, number: int, row: LeaseRow, share: int) -> int | None:
        """Hands out what it can of a row that is due. None: not now, look at the next."""
        if row.state == LEASED:
            return self._take_expired(number, row)
        return self._hand_out(number, row, live_offsets(row), share)

    def _take_expired(self, number: int, row: LeaseRow) -> int | None:
        """Takes over a lease whose time ran out."""
        offsets = live_offsets(row)
        failure = Failure(row.attempts, self.tx.now_ms, "expired", "the lease expired", row.consumer)
        suspects = replace(row, state=WAITING, suspect=True, history=add_failure(row.history, failure))
        if len(offsets) == 1 and row.alone and row.attempts >= self.retry.max_attempts and not self._is_spared(row):
            self.tx.lease_delete(row.tenant_id, row.id)
            if self.outcomes is not None and self.outcomes.is_open:
                self.outcomes.expired(row)
            else:
                self.taken_over.append(row)
            bury(self.tx, self.topic, self.group, suspects, offsets, f"the lease expired {row.attempts} times")
            return 0
        if self.outcomes is not None and self.outcomes.is_open:
            return self._rest(row, suspects, offsets)
        half = (len(offsets) + 1) // 2
        most = min(half, self.want) if self.passage is None else min(half, self.want, self.passage.retries)
        return self._hand_out(number, suspects, offsets, most, expired=row)

    def _is_spared(self, row: LeaseRow) -> bool:
        """Whether its running out uses no attempt: the breaker is open, and it is not the probe."""
        return self.outcomes is not None and self.outcomes.is_open and not self.outcomes.is_probe(row)

    def _rest(self, row: LeaseRow, suspects: LeaseRow, offsets: list[int]) -> int:
        """Puts messages back, of a lease that ran out while the breaker is open; others have their turn before."""
        assert self.outcomes is not None
        self.tx.lease_delete(row.tenant_id, row.id)
        self._tell_taken_over(row)
        spared = self.outcomes.expired(row)
        if spared:
            suspects = replace(suspects, suspect=row.suspect, attempts=row.attempts - 1)
        rests = replace(suspects, alone=False, consumer="", due_at=self.tx.now_ms + self.outcomes.rest_ms())
        self.tx.lease_insert(over(rests, offsets))
        return 0

    def _end_probe(self, passage: Passage) -> None:
        """Puts back what ran out while the breaker is open, the probe as well: then the next one waits for longer."""
        for partition in self.topic.partitions:
            rows = self.tx.leases_due(self.topic.tenant_id, partition, self.group.id, self.tx.now_ms, LIMITS.page_max)
            for row in rows:
                if row.state == LEASED:
                    self._take_expired(self.topic.partitions.index(partition), row)
        passage.look()

    def _tell_taken_over(self, row: LeaseRow) -> None:
        facts: dict[str, object] = {"from": row.consumer, "to": self.consumer, "attempts": row.attempts}
        tell(self.tx, self.topic, self.group, "lease_taken_over", facts=facts, **of_lease(row))

    def _hand_out(
        self, number: int, row: LeaseRow, offsets: list[int], most: int, *, expired: LeaseRow | None = None
    ) -> int | None:
        """Leases the first `most` of the row's messages anew and leaves the rest where they wait."""
        found = look_up(self.tx, row.tenant_id, row.partition, offsets[:most])
        if found.error is not None:
            self._report(found.error, row.partition)
        slices: list[Slice] = []
        held: list[int] = []
        gone: list[int] = []
        for offset, block, index in found.readable:
            if has_expired(block, index, self.tx.now_ms):
                gone.append(offset)
                continue
            size = block.columns.size(index)
            if (held or self.leases) and size > self.budget:
                break
            slices.append(Slice(block, index, index + 1, len(held)))
            held.append(offset)
            self.budget -= size
        if not held and not gone:
            return None
        self.tx.lease_delete(row.tenant_id, row.id)
        if expired is not None:
            self._tell_taken_over(expired)
            self.taken_over.append(expired)
        out = {*held, *gone}
        # What cannot be read stays by itself, so that it holds up nothing but itself.
        for rest in (found.corrupt, [o for o in offsets if o not in out and o not in found.corrupt]):
            if rest:
                self.tx.lease_insert(replace(over(row, rest), due_at=min(row.due_at, self.tx.now_ms)))
        if gone:
            tell_expired(self.tx, self.topic, self.group, row.partition, gone)
            note_settled(self.tx, self.topic, row.partition)
        if held:
            self._lease(number, over(row, held), row.attempts + 1, slices)
        return len(held)

    # What was never delivered

    def _take_fresh(self, number: int, partition: int) -> None:
        """Takes messages from the cursor on, as one range."""
        head = head_of(self.tx, self.topic.tenant_id, partition)
        cursor = cursor_of(self.tx, self.topic.tenant_id, partition, self.group.id)
        start = max(cursor, head.first_offset)
        if start > cursor:
            self._tell("skipped", partition, cursor, start - cursor, {"why": "retention dropped unsettled messages"})
        looked = 0
        while start < head.next_offset and self.want > 0 and self.budget > 0:
            stop = min(head.next_offset, start + self.want)
            slices, gone, end = self._read_fresh(partition, start, stop)
            if end == start:
                break
            set_cursor(self.tx, self.topic.tenant_id, partition, self.group.id, end)
            if gone:
                tell_expired(self.tx, self.topic, self.group, partition, [start + index for index in gone])
                note_settled(self.tx, self.topic, partition)
            if end - start > len(gone):
                self._lease_range(number, partition, start, end, gone, slices)
            looked += end - start
            start = end
            if self.corrupt is not None:
                break
            if looked >= EXPIRED_LOOK_MAX and not self.leases:
                self.got.next_due = self.tx.now_ms
                break

    def _read_fresh(self, partition: int, start: int, stop: int) -> tuple[list[Slice], list[int], int]:
        """Slices of [start, stop), the indexes of the expired, and where the byte budget or corruption ended it."""
        slices: list[Slice] = []
        gone: list[int] = []
        at = start
        try:
            for block in self.tx.blocks(self.topic.tenant_id, partition, start, stop):
                low, high = at - block.base, min(stop, block.end) - block.base
                high, full = self._within_budget(block, low, high, first=at == start and not self.leases)
                if high > low:
                    slices.append(Slice(block, low, high, at - start))
                    expired = _expired_shifts(block, low, high, self.tx.now_ms)
                    gone.extend(at - start + shift for shift in expired)
                    # What is not delivered takes nothing of what may be.
                    self.budget += sum(block.columns.size(low + shift) for shift in expired)
                    at += high - low
                if full:
                    break
        except CorruptBlock as error:
            self._report(error, partition)
        return slices, gone, at

    def _within_budget(self, block: Block, low: int, high: int, *, first: bool) -> tuple[int, bool]:
        """How far into the block the byte budget reaches; the very first message always fits."""
        whole = block.columns.bytes
        if whole <= self.budget:
            if low == 0 and high == block.count:
                self.budget -= whole
            else:
                self.budget -= int(block.columns.sizes()[low:high].sum())
            return high, False
        for index, size in enumerate(block.columns.sizes()[low:high].tolist(), start=low):
            if size > self.budget and not (first and index == low):
                return index, True
            self.budget -= size
        return high, self.budget <= 0

    def _lease_range(
        self, number: int, partition: int, start: int, end: int, gone: list[int], slices: list[Slice]
    ) -> None:
        row = LeaseRow(
            tenant_id=self.topic.tenant_id,
            partition=partition,
            group=self.group.id,
            due_at=0,
            state=LEASED,
            consumer="",
            claimed_at=0,
            base=start,
            count=end - start,
            live=end - start,
            attempts=0,
        )
        if gone:
            row = replace(row, settled=settle_bits(row, gone), live=row.live - len(gone))
            slices = _without(slices, set(gone))
        self._lease(number, row, 1, slices)

    # Writing it down

    def _lease(self, number: int, row: LeaseRow, attempt: int, slices: list[Slice]) -> None:
        """Puts messages into the claim."""
        row = replace(
            row,
            state=LEASED,
            due_at=self.got.expires_at,
            consumer=self.consumer,
            claimed_at=self.tx.now_ms,
            attempts=attempt,
        )
        self.leases.append((number, row, slices))
        self._want -= row.live
        if self.passage is not None:
            fresh = row.live if attempt == 1 else 0
            self.passage.take(row.live, fresh=fresh, again=row.live - fresh, until=row.due_at)

    def _write_leases(self) -> None:
        """Writes the claim's leases and puts their messages into the answer."""
        alone = sum(row.live for _, row, _ in self.leases) == 1
        for number, row, slices in self.leases:
            lease_id = self.tx.lease_insert(replace(row, alone=alone))
            record_claim(self.tx, self.topic, self.group.name, row, lease_id)
            if self.passage is not None:
                self.passage.leased(lease_id, row.due_at)
            self.got.parcels.append(Parcel(lease_id, number, row.partition, row.attempts, row.live, tuple(slices)))

    def _next_due(self) -> int | None:
        """The earliest moment at which something of the group is due again by itself."""
        tenant_id, group = self.topic.tenant_id, self.group.id
        if self.passage is not None and self.passage.left <= 0:
            return self.passage.look_at
        moments = [self.tx.lease_next_due(tenant_id, partition, group) for partition in self.topic.partitions]
        first = min((moment for moment in moments if moment is not None), default=None)
        if first is not None and self.passage is not None and self.passage.retries <= 0:
            # They are due, and wait for more fresh ones, or for this.
            return max(first, self.passage.retry_at)
        return first

    def _report(self, error: CorruptBlock, partition: int) -> None:
        self.corrupt = error
        self._tell("block_corrupt", partition, error.facts["base"], 0, {"why": str(error)})

    def _tell(self, kind: str, partition: int, offset: int, count: int, facts: dict[str, object]) -> None:
        tell(
            self.tx,
            self.topic,
            self.group,
            kind,
            partition=partition,
            offset=offset,
            count=count,
            facts=facts,
        )


def _missing_end(partition: int, ends: int, cursor: int) -> CorruptBlock:
    return CorruptBlock(
        f"Partition {partition} ends at offset {ends}, but a group has read up to {cursor}: blocks are missing. "
        "Run `duly doctor`; restore a backup, or seek the group back.",
        partition_id=partition,
        base=ends,
    )


def has_expired(block: Block, index: int, now_ms: int) -> bool:
    """Whether a message is past its expiry."""
    moments = block.columns.values("expires_at", index, index + 1)
    return moments is not None and moments[0] is not None and moments[0] <= now_ms


def _expired_shifts(block: Block, low: int, high: int, now_ms: int) -> list[int]:
    """Which of the messages [low, high) are past their expiry, counted from `low`."""
    moments = block.columns.values("expires_at", low, high)
    if moments is None:
        return []
    return [shift for shift, moment in enumerate(moments) if moment is not None and moment <= now_ms]


def _without(slices: list[Slice], gone: set[int]) -> list[Slice]:
    """The slices cut so that they leave out the lease indexes in `gone`."""
    cut: list[Slice] = []
    for part in slices:
        start = part.start
        for index in range(part.start, part.stop + 1):
            at = part.first_index + index - part.start
            if index == part.stop or at in gone:
                if index > start:
                    cut.append(Slice(part.block, start, index, part.first_index + start - part.start))
                start = index + 1
    return cut
