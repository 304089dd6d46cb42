"""Lanes with limits: so many at once (`max_in_flight`), so many a second (`rate`).

A message that falls due in such a queue first waits in its lane, as a row in the lane's order; only as many
heads as the lane has free slots and tokens enter what is ready. From then on a message holds its slot until it
is settled. The lane's row counts slots, says when the next token is there, and when somebody should look at
it again; a lane with nothing to say has no row.

With `max_in_flight=1` a message that failed keeps its slot while it waits for its next attempt, so the lane's
order stands. With more, it gives the slot back and waits in its lane like any other.

Tokens and breakers are those of gate.py; a lane is the destination. While its breaker is open its messages wait in
their lane like those of one without tokens: nothing is moved but its row (broken.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np
from msgspec.structs import replace

from ..store.contract import GroupRow, LaneRow, LooseRow, TopicRow, Transaction, WaitRow
from ..topic import Breaker
from .entries import Entries, make_entries
from .find import find_group
from .gate import (
    CLOSED,
    OPEN,
    PASSES_MAX,
    RAMP,
    Circuit,
    is_blank,
    judged,
    next_look,
    probing,
    rate_of,
    shut_until,
    tokens,
)
from .gates import tell_circuit
from .lookup import messages_at

_decode = msgspec.msgpack.Decoder(Circuit).decode
_encode = msgspec.msgpack.Encoder().encode


def is_limited(topic: TopicRow) -> bool:
    """Whether the topic's lanes have limits."""
    lanes = topic.settings.lanes
    if lanes is None:
        return False
    return lanes.max_in_flight is not None or lanes.rate is not None or lanes.breaker is not None


def breaker_of(topic: TopicRow) -> Breaker | None:
    """What breaks the circuit of a lane."""
    return None if topic.settings.lanes is None else topic.settings.lanes.breaker


def keeps_slot(topic: TopicRow) -> bool:
    """Whether a failed message holds its lane until it is settled."""
    lanes = topic.settings.lanes
    return lanes is not None and lanes.max_in_flight == 1


def enter(tx: Transaction, topic: TopicRow, partition: int, entries: Entries) -> None:
    """Messages that are due take their places in their lanes."""
    tenant_id = topic.tenant_id
    rows = zip(
        entries.lane.tolist(),
        entries.priority.tolist(),
        entries.due.tolist(),
        entries.seq.tolist(),
        entries.loose.tolist(),
        strict=True,
    )
    for lane, priority, due, seq, loose in rows:
        tx.lane_wait_insert(tenant_id, WaitRow(partition, lane, priority, due, seq, loose))
    for lane in np.unique(entries.lane).tolist():
        _look(tx, tenant_id, partition, lane, freed=0)


def leave_lanes(tx: Transaction, topic: TopicRow, partition: int) -> None:
    """There are no limits any more: what waits for its lane becomes loose, and due."""
    tenant_id = topic.tenant_id
    while waits := tx.lane_waits(tenant_id, partition, -1, 1000):
        known = {row.offset: row for row in tx.loose(tenant_id, partition, [wait.offset for wait in waits])}
        for wait in waits:
            row = known.get(wait.offset) or LooseRow(partition, wait.offset, 0, True, wait.priority, wait.lane)
            tx.loose_put(tenant_id, replace(row, waits=True, due_at=wait.due_at, slot=False))
            tx.lane_wait_delete(tenant_id, wait)


def _look(tx: Transaction, tenant_id: int, partition: int, lane: int, *, freed: int) -> None:
    """Sees to it that a lane is looked at; some of its slots may have become free."""
    row = tx.lane(tenant_id, partition, lane) or LaneRow(partition, lane)
    # No sooner than its next token: that moment it has already.
    look_at = tx.now_ms if row.look_at is None or freed else min(row.look_at, tx.now_ms)
    tx.lane_put(tenant_id, replace(row, in_flight=max(0, row.in_flight - freed), look_at=look_at))


def free(tx: Transaction, topic: TopicRow, partition: int, lanes: Iterable[int]) -> None:
    """Messages of these lanes no longer hold their slots."""
    if not is_limited(topic):
        return
    for lane, count in Counter(lanes).items():
        _look(tx, topic.tenant_id, partition, lane, freed=count)
    tx.aftermath.rings.add(partition)


def admit(tx: Transaction, topic: TopicRow, partition: int, most: int) -> Entries | None:
    """The heads of lanes that have slots and tokens for them, up to a bound."""
    taken: list[WaitRow] = []
    for row in tx.lanes_to_look(topic.tenant_id, partition, tx.now_ms, most):
        taken.extend(_admit_lane(tx, topic, partition, row))
        if len(taken) >= most:
            break
    if not taken:
        return None
    return make_entries(
        [wait.offset for wait in taken],
        [wait.due_at for wait in taken],
        [wait.priority for wait in taken],
        [wait.lane for wait in taken],
        loose=[wait.loose for wait in taken],
    )


def _admit_lane(tx: Transaction, topic: TopicRow, partition: int, row: LaneRow) -> list[WaitRow]:
    lanes = topic.settings.lanes
    assert lanes is not None
    now, breaker = tx.now_ms, lanes.breaker
    known = Circuit() if breaker is None else circuit_of(row)
    circuit = known if breaker is None else judged(known, breaker, now, lanes.rate)
    slots = 1000 if lanes.max_in_flight is None else lanes.max_in_flight - row.in_flight
    held_until = None
    if circuit.state == OPEN:
        held_until = shut_until(circuit, now)
        slots = min(slots, 1 if held_until is None else 0)
    elif circuit.state == RAMP:
        slots = min(slots, PASSES_MAX - len(circuit.passes))
    rate, next_at = rate_of(circuit, lanes.rate), row.next_at
    if rate is not None:
        # One that was raised holds at once.
        there, next_at = tokens(min(next_at, now + 1000.0 / rate), rate, now)
        slots = min(slots, there)
    slots = min(max(slots, 0), 1000)
    heads = tx.lane_wait_heads(topic.tenant_id, partition, row.lane, slots + 1)
    taken, more = heads[:slots], len(heads) > slots
    if circuit.state != known.state and heads:
        tell_lane(tx, topic, find_group(tx, topic, ""), partition, heads[0].offset, known, circuit)
    for wait in taken:
        tx.lane_wait_delete(topic.tenant_id, wait)
    if rate is not None:
        next_at += len(taken) * 1000.0 / rate
    if taken and circuit.state != CLOSED:
        circuit = replace(circuit, passes=(*circuit.passes, *(wait.offset for wait in taken)))
        if circuit.state == OPEN:
            # It may be long before it is claimed, or it may never be: then the next one goes.
            held_until = now + lanes.breaker.probe_max_ms if lanes.breaker is not None else now
            circuit = probing(circuit, taken[0].offset, held_until)
    in_flight = row.in_flight + (len(taken) if lanes.max_in_flight is not None else 0)
    look_at: int | None = None
    if more and (lanes.max_in_flight is None or in_flight < lanes.max_in_flight):
        moments = [now if held_until is None else held_until]
        if rate is not None:
            moments.append(next_look(next_at, rate, now))
        look_at = math.ceil(max(moments))
    _put(tx, topic, replace(row, in_flight=in_flight, next_at=next_at, look_at=look_at), circuit, idle=not heads)
    return taken


def _put(tx: Transaction, topic: TopicRow, row: LaneRow, circuit: Circuit, *, idle: bool) -> None:
    """Writes a lane's row, or forgets one that has nothing to say."""
    now, breaker = tx.now_ms, breaker_of(topic)
    row = with_circuit(row, circuit)
    if row.look_at is None and idle and not row.in_flight:
        blank = is_blank(circuit, breaker, now)
        if blank and row.next_at <= now:
            tx.lane_delete(topic.tenant_id, row.partition, row.lane)
            return
        if circuit.state == CLOSED:
            # Looked at once more when its tokens are full again and its window is over, to be forgotten.
            over_at = now if breaker is None or blank else now + breaker.window_ms
            row = replace(row, look_at=math.ceil(max(row.next_at, over_at)) + 1000)
    tx.lane_put(topic.tenant_id, row)


def circuit_of(row: LaneRow) -> Circuit:
    """A lane's circuit."""
    return Circuit() if row.circuit is None else _decode(row.circuit)


def with_circuit(row: LaneRow, circuit: Circuit) -> LaneRow:
    """The row with another circuit."""
    plain = circuit == Circuit()
    return replace(row, circuit=None if plain else _encode(circuit), circuit_state=circuit.state)


def tell_lane(
    tx: Transaction, topic: TopicRow, group: GroupRow, partition: int, offset: int, before: Circuit, after: Circuit
) -> None:
    """Tells that the breaker of a message's lane opened, or closed after all; those who wait look again."""
    if before.state != after.state:
        tx.aftermath.rings.add(partition)
        if after.state != RAMP:
            tell_circuit(tx, topic, group, before, after, lane=lane_name(tx, topic, partition, offset))


def lane_name(tx: Transaction, topic: TopicRow, partition: int, offset: int) -> str:
    """What the lane of a message is called; "" is the default lane."""
    names = messages_at(tx, topic.tenant_id, partition, [offset]).values("lane")
    return "" if names is None or names[0] is None else str(names[0])
