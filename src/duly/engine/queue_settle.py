"""Ending a claim on a queue: what failed goes back into it by itself, as a loose message."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..message import Failure
from ..store.contract import LeaseRow, LooseRow
from .broken import lane_outcomes
from .bury import bury, tell_expired
from .done import note_done
from .lease import add_failure, live_indexes
from .limited import free, is_limited, keeps_slot
from .queue_lease import keys_of, part_of
from .record import record_some
from .service import note_served
from .settling import Settling


class QueueSettling(Settling):
    """On a queue what failed goes back into it by itself, as a loose message."""

    def _acked(self, row: LeaseRow, indexes: Sequence[int] | None = None) -> None:
        """Forgets what was known of messages that had failed before, or were cancelled meanwhile."""
        assert row.offsets is not None
        indexes = live_indexes(row) if indexes is None else indexes
        offsets = [row.offsets[index] for index in indexes]
        keys = keys_of(row)
        note_done(self.tx, self.topic, row.partition, offsets)
        lanes = lane_outcomes(self.tx, self.topic, self.group, row)
        if lanes is not None:
            lanes.acked(indexes)
        note_served(self.tx, row, keys, indexes, self.tx.now_ms)
        if is_limited(self.topic):
            free(self.tx, self.topic, row.partition, [keys.lane(index) for index in indexes])
        if row.marked or keys.loose is not None:
            self.tx.loose_delete(row.tenant_id, row.partition, offsets)

    def _part(self, row: LeaseRow, indexes: list[int]) -> LeaseRow:
        return part_of(row, indexes)

    def _dispose(self, row: LeaseRow, indexes: list[int], *, spared: bool) -> None:
        if self.command.verdict == "ack":
            self._acked(row, indexes)
            return
        assert row.offsets is not None
        rests: dict[int, int] = {}
        without_attempt = set(indexes) if spared else set()
        lanes = lane_outcomes(self.tx, self.topic, self.group, row)
        if lanes is not None and self.command.verdict == "nack":
            rests, others = lanes.failed(indexes)
            without_attempt |= others
        elif lanes is not None:
            lanes.ended(indexes)
        keys = keys_of(row)
        if self.command.verdict != "release":
            note_served(self.tx, row, keys, indexes, self.tx.now_ms)
        known = {r.offset: r for r in self.tx.loose(row.tenant_id, row.partition, [row.offsets[i] for i in indexes])}
        for index in indexes:
            offset = row.offsets[index]
            before = known.get(offset)
            expired = self.command.verdict == "nack" and keys.expired(index, self.tx.now_ms)
            if expired or (before is not None and before.cancelled):
                self.tx.loose_delete(row.tenant_id, row.partition, [offset])
                note_done(self.tx, self.topic, row.partition, [offset])
                free(self.tx, self.topic, row.partition, [keys.lane(index)])
                if expired:
                    tell_expired(self.tx, self.topic, self.group, row.partition, [offset])
                else:
                    record_some(self.tx, self.topic, "cancelled", row.partition, [offset], group=self.group.name)
                continue
            self._put_back(
                row,
                LooseRow(
                    row.partition,
                    offset,
                    self.tx.now_ms,
                    True,
                    keys.priority(index),
                    keys.lane(index),
                    keys.attempt(index),
                    history=None if before is None else before.history,
                ),
                spared=index in without_attempt,
                rest_ms=rests.get(index, 0),
            )

    def _put_back(self, row: LeaseRow, loose: LooseRow, *, spared: bool, rest_ms: int) -> None:
        verdict, now, reason = self.command.verdict, self.tx.now_ms, self.command.reason
        if verdict == "release":
            due_at = now + (self.command.delay_ms or 0)
            self._again(row, replace(loose, attempts=loose.attempts - 1, due_at=due_at))
            return
        if verdict == "bury":
            reason = reason or "buried by its consumer"
        failure = Failure(loose.attempts, now, verdict, reason, row.consumer)
        loose = replace(loose, history=add_failure(loose.history, failure))
        if spared and verdict == "nack":
            loose = replace(loose, attempts=loose.attempts - 1)
        if verdict == "bury" or loose.attempts >= self.retry.max_attempts:
            self.tx.loose_delete(row.tenant_id, row.partition, [loose.offset])
            dead = replace(row, attempts=loose.attempts, history=loose.history)
            bury(self.tx, self.topic, self.group, dead, [loose.offset], reason or f"failed {loose.attempts} times")
            free(self.tx, self.topic, row.partition, [loose.lane])
            return
        self._again(row, replace(loose, due_at=now + self._wait_ms(loose.attempts, rest_ms)))

    def _again(self, row: LeaseRow, loose: LooseRow) -> None:
        if not keeps_slot(self.topic):
            free(self.tx, self.topic, row.partition, [loose.lane])
        self.tx.loose_put(row.tenant_id, replace(loose, slot=keeps_slot(self.topic)))
        self.tx.aftermath.rings.add(row.partition)

    def _extend(self, row: LeaseRow, indexes: list[int]) -> None:
        assert row.offsets is not None
        if row.marked:
            offsets = [row.offsets[index] for index in indexes]
            cancelled = {r.offset for r in self.tx.loose(row.tenant_id, row.partition, offsets) if r.cancelled}
            self.verdicts.cancelled.extend((row.id, i) for i in indexes if row.offsets[i] in cancelled)
        super()._extend(row, indexes)
