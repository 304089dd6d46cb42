"""Lanes with breakers: what a claim may pass over, and what the breakers hear of (gate.py, limited.py).

What had been made ready of a lane before its breaker opened goes back to its lane when a claim comes to it, a row at
a time and never all at once; so a lane whose breaker is not closed knows what it made ready since (`Circuit.passes`).
With `max_in_flight=1` there is nothing of the kind: the message that holds the slot is the probe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec.structs import replace

from ..store.contract import GroupRow, LaneRow, LeaseRow, TopicRow, Transaction
from ..topic import LaneBreaker
from .entries import Entries
from .gate import CLOSED, OPEN, RAMP, STATES, Circuit, judged, probing, told, unanswered
from .limited import breaker_of, circuit_of, enter, free, keeps_slot, lane_name, tell_lane, with_circuit
from .queue_lease import keys_of


class Broken:
    """Of one partition's lanes that a claim comes to: those whose breakers are not closed."""

    def __init__(self, tx: Transaction, topic: TopicRow, partition: int, entries: Entries) -> None:
        self._tx = tx
        self._topic = topic
        self._partition = partition
        lanes = np.unique(entries.lane).tolist()
        rows = tx.lanes(topic.tenant_id, partition, lanes)
        self._circuits = {row.lane: circuit_of(row) for row in rows if row.circuit_state != CLOSED}

    def held_back(self, entries: Entries) -> Any:
        """Which entries are of a lane that did not let them pass; None: none."""
        if not self._circuits or keeps_slot(self._topic):
            return None
        held = np.zeros(len(entries), bool)
        for lane, circuit in self._circuits.items():
            held |= (entries.lane == np.uint64(lane)) & ~np.isin(entries.seq, np.array(circuit.passes, np.int64))
        return held if held.any() else None

    def put_back(self, entries: Entries) -> None:
        """Entries wait in their lanes again."""
        enter(self._tx, self._topic, self._partition, entries)
        free(self._tx, self._topic, self._partition, entries.lane.tolist())

    def claimed(self, entries: Entries, until: int) -> None:
        """Entries were handed out, under leases until then."""
        for lane in self._circuits:
            seqs = entries.seq[entries.lane == np.uint64(lane)].tolist()
            row = self._tx.lane(self._topic.tenant_id, self._partition, lane) if seqs else None
            if row is None:
                continue
            circuit = circuit_of(row)
            circuit = replace(circuit, passes=tuple(seq for seq in circuit.passes if seq not in set(seqs)))
            if circuit.state == OPEN and (circuit.probe in seqs or keeps_slot(self._topic)):
                circuit = probing(circuit, seqs[0] if circuit.probe not in seqs else circuit.probe or 0, until)
            self._tx.lane_put(self._topic.tenant_id, with_circuit(row, circuit))


class LaneOutcomes:
    """What the breakers of lanes hear of one lease's messages."""

    def __init__(self, tx: Transaction, topic: TopicRow, group: GroupRow, row: LeaseRow) -> None:
        self._tx = tx
        self._topic = topic
        self._group = group
        self._partition = row.partition
        self._keys = keys_of(row)
        assert row.offsets is not None
        self._offsets = row.offsets
        self._alone = row.alone

    def acked(self, indexes: Iterable[int]) -> None:
        """They are done."""
        for lane, members in self._by_lane(indexes).items():
            self._tell(lane, members, acked=len(members))

    def failed(self, indexes: Iterable[int], *, expired: bool = False) -> tuple[dict[int, int], set[int]]:
        """How long some have to wait at least, by index, and those whose lane was open: no attempt is used."""
        rests: dict[int, int] = {}
        spared: set[int] = set()
        for lane, members in self._by_lane(indexes).items():
            before, after = self._tell(lane, members, failed=1 if expired else len(members))
            for index in members:
                is_probe = before.state == OPEN and self._offsets[index] == before.probe
                if keeps_slot(self._topic) and after.state == OPEN:
                    # It holds its lane's slot: it is the next probe.
                    rests[index] = math.ceil(after.probe_at - self._tx.now_ms)
                elif is_probe and after.state == OPEN:
                    # Until it has been another's turn.
                    rests[index] = math.ceil(2 * after.wait_ms)
                # One that ran alone, and took its consumer with it, uses its attempt: see gate.py.
                if before.state == OPEN and not (expired and is_probe and self._alone):
                    spared.add(index)
        return rests, spared

    def ended(self, indexes: Iterable[int]) -> None:
        """They are held no longer, and that says nothing of their destinations."""
        now = self._tx.now_ms
        for lane, members in self._by_lane(indexes).items():
            row = self._tx.lane(self._topic.tenant_id, self._partition, lane)
            circuit = Circuit() if row is None else circuit_of(row)
            if row is not None and circuit.state == OPEN and circuit.probe in {self._offsets[at] for at in members}:
                self._tx.lane_put(
                    self._topic.tenant_id, with_circuit(replace(row, look_at=now), unanswered(circuit, now))
                )

    def _by_lane(self, indexes: Iterable[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for index in indexes:
            found.setdefault(self._keys.lane(index), []).append(index)
        return found

    def _tell(self, lane: int, members: list[int], *, acked: int = 0, failed: int = 0) -> tuple[Circuit, Circuit]:
        tx, breaker = self._tx, breaker_of(self._topic)
        assert breaker is not None
        assert self._topic.settings.lanes is not None
        row = tx.lane(self._topic.tenant_id, self._partition, lane) or LaneRow(self._partition, lane)
        rate = self._topic.settings.lanes.rate
        known = circuit_of(row)
        before = judged(known, breaker, tx.now_ms, rate)
        probe = before.probe in {self._offsets[index] for index in members}
        after = told(before, breaker, tx.now_ms, acked=acked, failed=failed, probe=probe, rate=rate)
        if after is known and row.look_at is not None:
            return before, after
        if row.look_at is None or after.state != before.state or after.probe != before.probe:
            row = replace(row, look_at=tx.now_ms)
        tx.lane_put(self._topic.tenant_id, with_circuit(row, after))
        tell_lane(tx, self._topic, self._group, self._partition, self._offsets[members[0]], known, after)
        return before, after


def lane_outcomes(tx: Transaction, topic: TopicRow, group: GroupRow, row: LeaseRow) -> LaneOutcomes | None:
    """Who is to hear of what becomes of a lease's messages, if lanes have breakers."""
    return None if breaker_of(topic) is None else LaneOutcomes(tx, topic, group, row)


def broken_lanes(tx: Transaction, topic: TopicRow, most: int) -> list[LaneBreaker]:
    """The first of the lanes whose breakers are not closed."""
    found: list[LaneBreaker] = []
    for partition in topic.partitions if breaker_of(topic) is not None else ():
        for row in tx.lanes_broken(topic.tenant_id, partition, most - len(found)):
            heads = tx.lane_wait_heads(topic.tenant_id, partition, row.lane, 1)
            name = lane_name(tx, topic, partition, heads[0].offset) if heads else f"#{row.lane:x}"
            circuit = circuit_of(row)
            found.append(LaneBreaker(name, STATES[circuit.state], circuit.rate if circuit.state == RAMP else None))
        if len(found) >= most:
            break
    return found
