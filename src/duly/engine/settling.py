"""Ending a claim on a log, message by message.

A token is a lease id and indexes into it. Whatever it names that is no longer held under that id
is answered as lost, one message at a time, and nothing of it changes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ..message import Failure
from ..store.contract import LEASED, WAITING, GroupRow, LeaseRow, TopicRow, Transaction
from .agenda import note_settled
from .bury import bury, tell_expired
from .gates import Outcomes, outcomes, terms_of
from .lease import add_failure, is_live, live_indexes, offset_of, over, settle_bits
from .log_claim import has_expired
from .read import look_up
from .record import of_lease, record, record_some
from .verdict import Settle, Token, Verdicts

draw = random.Random()

_KINDS = {"ack": "acked", "nack": "nacked", "release": "released"}


class Settling:
    """One settle command at work."""

    def __init__(self, tx: Transaction, command: Settle, topic: TopicRow, group: GroupRow) -> None:
        self.tx = tx
        self.command = command
        self.topic = topic
        self.group = group
        self.retry = group.settings.retry or topic.settings.retry
        self.verdicts = Verdicts()
        self.touched: set[int] = set()
        self.terms = terms_of(topic, group)
        self.outcomes = None if self.terms is None else outcomes(tx, topic, group)

    def run(self) -> Verdicts:
        if self.command.incarnation != self.tx.incarnation:
            for token in self.command.tokens:
                self.verdicts.lost.extend((token.lease_id, index) for index in token.indexes or (None,))
            return self.verdicts
        for token in self.command.tokens:
            if self.command.verdict == "ack" and token.indexes is None:
                self._ack_all(token)
            else:
                self._settle(token)
        if self.command.verdict != "extend":
            for partition in self.touched:
                note_settled(self.tx, self.topic, partition)
            if self.terms is not None and self.terms.max_in_flight is not None:
                # There is room for others.
                self.tx.aftermath.rings.update(self.touched)
        if self.outcomes is not None:
            self.outcomes.end()
        return self.verdicts

    def _ack_all(self, token: Token) -> None:
        """The common case: one statement ends the whole lease."""
        row = self.tx.lease_end(self.topic.tenant_id, token.lease_id, self.group.id)
        if row is None:
            self.verdicts.lost.append((token.lease_id, None))
        else:
            self.touched.add(row.partition)
            self.verdicts.done += row.live
            if self.outcomes is not None:
                self.outcomes.acked(row, row.live)
            self._acked(row)
            record(self.tx, self.topic, "acked", **of_lease(row), **self._told(row))

    def _acked(self, row: LeaseRow, indexes: Sequence[int] | None = None) -> None:
        """Messages are finished: some of a lease, or all that were left of it."""

    def _mine(self, row: LeaseRow) -> bool:
        """Whether the row is a lease of the group that the command names."""
        return row.state == LEASED and row.group == self.group.id

    def _settle(self, token: Token) -> None:
        row = self.tx.lease(self.topic.tenant_id, token.lease_id)
        if row is None or not self._mine(row):
            self.verdicts.lost.extend((token.lease_id, index) for index in token.indexes or (None,))
            return
        wanted = live_indexes(row) if token.indexes is None else list(dict.fromkeys(token.indexes))
        held = [index for index in wanted if is_live(row, index)]
        self.verdicts.lost.extend((row.id, index) for index in wanted if not is_live(row, index))
        if not held:
            return
        held.sort()
        self.touched.add(row.partition)
        if self.command.verdict == "extend":
            self._extend(row, held)
        else:
            self._take_out(row, held)
            # First the verdict, then what came of it: buried, expired.
            self._record(row, held)
            self._dispose(row, held, spared=self.outcomes is not None and self._heard(self.outcomes, row, len(held)))
        self.verdicts.done += len(held)

    def _heard(self, outcomes: Outcomes, row: LeaseRow, count: int) -> bool:
        """The group's breaker hears of it. True: it is open, and a failure uses no attempt."""
        if self.command.verdict == "nack":
            return outcomes.failed(row, count)
        if self.command.verdict == "ack":
            outcomes.acked(row, count)
        else:
            outcomes.ended(row)
        return False

    def _record(self, row: LeaseRow, indexes: list[int]) -> None:
        kind = _KINDS.get(self.command.verdict)
        if kind is None:
            # Burying tells for itself.
            return
        more = self._told(row)
        if len(indexes) == row.live:
            record(self.tx, self.topic, kind, **of_lease(row), **more)
        else:
            offsets = [offset_of(row, index) for index in indexes]
            record_some(self.tx, self.topic, kind, row.partition, offsets, lease=row.id, **more)

    def _told(self, row: LeaseRow) -> dict[str, Any]:
        """What every event of a verdict tells beside its messages."""
        facts = {"reason": self.command.reason} if self.command.reason else {}
        return {"group": self.group.name, "consumer": row.consumer, "facts": facts}

    def _take_out(self, row: LeaseRow, indexes: list[int]) -> None:
        """Marks the messages done in their lease; the last one deletes it."""
        if len(indexes) == row.live:
            self.tx.lease_delete(row.tenant_id, row.id)
        else:
            self.tx.lease_settle(row, settle_bits(row, indexes), row.live - len(indexes))

    def _dispose(self, row: LeaseRow, indexes: list[int], *, spared: bool) -> None:
        """Where messages go that were taken out of their lease; `spared`: a failure uses no attempt."""
        verdict, now = self.command.verdict, self.tx.now_ms
        offsets = [offset_of(row, index) for index in indexes]
        row = replace(row, state=WAITING, suspect=False, alone=False)
        if verdict == "release":
            self._wait(replace(row, attempts=row.attempts - 1, due_at=now + (self.command.delay_ms or 0)), offsets)
        elif verdict in ("nack", "bury"):
            reason = self.command.reason or ("buried by its consumer" if verdict == "bury" else "")
            failure = Failure(row.attempts, now, verdict, reason, row.consumer)
            row = replace(row, history=add_failure(row.history, failure))
            if verdict == "bury":
                bury(self.tx, self.topic, self.group, row, offsets, reason)
            else:
                self._nack(replace(row, attempts=row.attempts - 1) if spared else row, offsets, reason)

    def _nack(self, row: LeaseRow, offsets: list[int], reason: str) -> None:
        """Back with a delay; expired ones are dropped, and after the last attempt they are buried."""
        offsets = self._drop_expired(row, offsets)
        if not offsets:
            return
        if row.attempts >= self.retry.max_attempts:
            bury(self.tx, self.topic, self.group, row, offsets, reason or f"failed {row.attempts} times")
            return
        self._wait(replace(row, due_at=self.tx.now_ms + self._wait_ms(row.attempts)), offsets)

    def _wait_ms(self, attempts: int, at_least: int = 0) -> int:
        """How long what failed waits for its next attempt; while a breaker is open, until it was another's turn."""
        delay_ms = self.command.delay_ms
        wait_ms = self.retry.delay_ms(max(1, attempts), draw) if delay_ms is None else delay_ms
        rest_ms = 0 if self.outcomes is None else self.outcomes.rest_ms()
        return max(wait_ms, rest_ms, at_least)

    def _drop_expired(self, row: LeaseRow, offsets: list[int]) -> list[int]:
        found = look_up(self.tx, row.tenant_id, row.partition, offsets)
        past = {offset for offset, block, index in found.readable if has_expired(block, index, self.tx.now_ms)}
        # Whether a message of a corrupt block expired cannot be read; the next claim will report it.
        alive = [offset for offset in offsets if offset not in past]
        if len(alive) < len(offsets):
            tell_expired(self.tx, self.topic, self.group, row.partition, sorted(past))
        return alive

    def _wait(self, row: LeaseRow, offsets: list[int]) -> None:
        self.tx.lease_insert(replace(over(row, offsets), consumer=""))
        self.tx.aftermath.rings.add(row.partition)

    def _extend(self, row: LeaseRow, indexes: list[int]) -> None:
        """Moves the lease's end; a part of a lease gets one of its own."""
        lease_ms = self.command.delay_ms or self.group.settings.lease_ms or self.topic.settings.lease_ms
        self.verdicts.expires_at = self.tx.now_ms + lease_ms
        # A consumer that only renews is at work too.
        self.tx.consumer_seen(row.tenant_id, row.group, row.consumer, active=True)
        if len(indexes) == row.live:
            self.tx.lease_extend(row, self.verdicts.expires_at)
            if self.outcomes is not None:
                self.outcomes.extended(row, row.id, self.verdicts.expires_at)
            return
        self._take_out(row, indexes)
        part = self._part(row, indexes)
        lease_id = self.tx.lease_insert(replace(part, due_at=self.verdicts.expires_at))
        offsets = [offset_of(row, index) for index in indexes]
        record_some(self.tx, self.topic, "extended", row.partition, offsets, group=self.group.name, lease=lease_id)
        for new_index, index in enumerate(indexes):
            self.verdicts.renewed[row.id, index] = (lease_id, new_index)

    def _part(self, row: LeaseRow, indexes: list[int]) -> LeaseRow:
        return over(row, [offset_of(row, index) for index in indexes])
