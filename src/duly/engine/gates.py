"""Gates of groups in a transaction (gate.py draws them): what claims may have, and what settling tells them.

A group without limits has no gate, and nothing of this costs it anything: `terms_of` says None. A gate is one small
row, remembered like a cursor is. Slots are not in it: they are the leases that are open, and those are counted anew for
each claim, so nothing can drift from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from ..store.contract import GroupRow, LeaseRow, TopicRow, Transaction
from ..topic import GateDescription, LaneBreaker
from .bury import tell
from .find import find_group
from .gate import (
    CLOSED,
    OPEN,
    STATES,
    Circuit,
    Gate,
    Room,
    Terms,
    as_set,
    probing,
    rate_of,
    room,
    spent,
    told,
    unanswered,
)

_decode = msgspec.msgpack.Decoder(Gate).decode
_encode = msgspec.msgpack.Encoder().encode


def terms_of(topic: TopicRow, group: GroupRow) -> Terms | None:
    """What is set for a group; None: nothing limits it."""
    own, common = group.settings, topic.settings
    rate = common.rate if own.rate is None else own.rate
    most = common.max_in_flight if own.max_in_flight is None else own.max_in_flight
    budget = (own.retry or common.retry).budget
    breaker = own.breaker or common.breaker
    if rate is None and most is None and budget is None and breaker is None:
        return None
    return Terms(rate, most, budget, breaker)


def has_budget(tx: Transaction, topic: TopicRow) -> bool:
    """Whether a queue's retries have a budget."""
    return (find_group(tx, topic, "").settings.retry or topic.settings.retry).budget is not None


def gate_of(tx: Transaction, topic: TopicRow, group: GroupRow) -> Gate:
    """A group's gate, remembered."""
    key = ("gate", group.id)
    gate: Gate | None = tx.recall(key)
    if gate is None:
        stored = tx.gate(topic.tenant_id, group.id)
        gate = Gate() if stored is None else _decode(stored)
        tx.remember(key, gate)
    return gate


def set_gate(tx: Transaction, topic: TopicRow, group: GroupRow, gate: Gate) -> None:
    """Writes it. When its breaker opens or closes that is told, and those who wait look again."""
    before = gate_of(tx, topic, group).circuit
    if gate == gate_of(tx, topic, group):
        return
    tx.gate_put(topic.tenant_id, group.id, _encode(gate))
    tx.remember(("gate", group.id), gate)
    if before.state != gate.circuit.state:
        tx.aftermath.rings.update(topic.partitions)
        tell_circuit(tx, topic, group, before, gate.circuit)


def tell_circuit(
    tx: Transaction, topic: TopicRow, group: GroupRow, before: Circuit, after: Circuit, **facts: object
) -> None:
    """Tells that a breaker opened, or closed after all."""
    if after.state == OPEN and before.state != OPEN:
        tell(tx, topic, group, "breaker_opened", facts={"probe_at": math.ceil(after.probe_at), **facts})
    elif after.state == CLOSED and before.state != CLOSED:
        tell(tx, topic, group, "breaker_closed", facts=dict(facts))


def mend_gate(tx: Transaction, topic: TopicRow, group: GroupRow) -> None:
    """Another breaker is set, or none: what was known to the one before is forgotten."""
    gate = gate_of(tx, topic, group)
    set_gate(tx, topic, group, replace(gate, circuit=Circuit()))


class Passage:
    """The claims of one transaction at a group's gate."""

    def __init__(self, tx: Transaction, topic: TopicRow, group: GroupRow, terms: Terms) -> None:
        self.tx = tx
        self.topic = topic
        self.group = group
        self.terms = terms
        self._in_flight = 0
        self._free_at: int | None = None
        self._counted = False
        self.room = Room()
        self.look()

    @property
    def left(self) -> int:
        """How many messages may pass yet."""
        return self.room.most

    @property
    def retries(self) -> int:
        """How many of them may have been delivered before."""
        return self.room.retries

    @property
    def look_at(self) -> int | None:
        """When there will be room again; None: it is told."""
        return math.ceil(self.room.look_at) or None

    @property
    def retry_at(self) -> int:
        """When a retry may go again."""
        return math.ceil(self.room.retry_at)

    @property
    def gate(self) -> Gate:
        return gate_of(self.tx, self.topic, self.group)

    @property
    def probes(self) -> bool:
        """Whether only a probe may pass."""
        return self.terms.breaker is not None and self.gate.circuit.state == OPEN

    def look(self) -> None:
        """Looks how things stand."""
        if self.terms.max_in_flight is not None and not self._counted:
            partitions = self.topic.partitions
            open_ = self.tx.leases_open(self.topic.tenant_id, partitions, self.group.id, self.tx.now_ms)
            self._in_flight, self._free_at = open_
            self._counted = True
        now = self.tx.now_ms
        gate = as_set(self.gate, self.terms, now)
        set_gate(self.tx, self.topic, self.group, gate)
        self.room = room(gate, self.terms, now, in_flight=self._in_flight, free_at=self._free_at)

    def take(self, count: int, *, fresh: int, again: int, until: int) -> None:
        """So many messages pass, under leases until then."""
        self._in_flight += count
        self._free_at = until if self._free_at is None else min(self._free_at, until)
        probes = self.probes
        self._spend(count, fresh=fresh, again=again)
        if probes:
            # It is not on its way before its lease is written.
            self.room = replace(self.room, most=0, look_at=until)

    def take_again(self, again: int) -> None:
        """So many retries are made ready; they pass when their turn comes."""
        self._spend(0, fresh=0, again=again)

    def _spend(self, count: int, *, fresh: int, again: int) -> None:
        gate = spent(self.gate, self.terms, self.tx.now_ms, count=count, fresh=fresh, again=again)
        set_gate(self.tx, self.topic, self.group, gate)
        self.look()

    def leased(self, lease_id: int, until: int) -> None:
        """A lease was written; while the gate is open, it is the probe."""
        if self.probes:
            gate = self.gate
            set_gate(self.tx, self.topic, self.group, replace(gate, circuit=probing(gate.circuit, lease_id, until)))
            self.look()


def passage(tx: Transaction, topic: TopicRow, group: GroupRow) -> Passage | None:
    """What a claim goes through, if anything limits its group."""
    terms = terms_of(topic, group)
    return None if terms is None else Passage(tx, topic, group, terms)


class Outcomes:
    """What a group's breaker hears of its deliveries."""

    def __init__(self, tx: Transaction, topic: TopicRow, group: GroupRow, terms: Terms) -> None:
        self._tx = tx
        self._topic = topic
        self._group = group
        self._terms = terms
        # Acks are told together.
        self._acked = 0

    def acked(self, row: LeaseRow, count: int) -> None:
        """Messages of a lease are done."""
        if self._circuit.state == OPEN:
            self._tell(row, acked=count)
        else:
            self._acked += count

    def failed(self, row: LeaseRow, count: int) -> bool:
        """Messages of a lease failed. True: the gate was open, and no attempt is used."""
        self.end()
        was_open = self._circuit.state == OPEN
        self._tell(row, failed=count)
        return was_open

    def expired(self, row: LeaseRow) -> bool:
        """A lease ran out. True: the gate was open, and no attempt is used; not so of a probe, which ran alone."""
        is_probe = self.is_probe(row)
        return self.failed(row, 1) and not is_probe

    def ended(self, row: LeaseRow) -> None:
        """Messages of a lease are held no longer, and that says nothing of where they were to go."""
        if self.is_probe(row):
            self._set(unanswered(self._circuit, self._tx.now_ms))

    def extended(self, row: LeaseRow, lease_id: int, until: int) -> None:
        """A lease holds for longer."""
        if self.is_probe(row):
            self._set(probing(self._circuit, lease_id, until))

    @property
    def is_open(self) -> bool:
        """Whether the breaker is open."""
        return self._circuit.state == OPEN

    def is_probe(self, row: LeaseRow) -> bool:
        circuit = self._circuit
        return circuit.state == OPEN and circuit.probe == row.id

    def rest_ms(self) -> int:
        """How long what failed while the gate is open waits, so that it is another's turn before."""
        circuit = self._circuit
        return 0 if circuit.state != OPEN else math.ceil(2 * circuit.wait_ms)

    def end(self) -> None:
        """Tells what was not told yet."""
        if self._acked:
            acked, self._acked = self._acked, 0
            self._tell(None, acked=acked)

    @property
    def _circuit(self) -> Circuit:
        return gate_of(self._tx, self._topic, self._group).circuit

    def _tell(self, row: LeaseRow | None, *, acked: int = 0, failed: int = 0) -> None:
        assert self._terms.breaker is not None
        self._set(
            told(
                self._circuit,
                self._terms.breaker,
                self._tx.now_ms,
                acked=acked,
                failed=failed,
                probe=row is not None and self.is_probe(row),
                rate=self._terms.rate,
            )
        )

    def _set(self, circuit: Circuit) -> None:
        gate = gate_of(self._tx, self._topic, self._group)
        if circuit is not gate.circuit:
            set_gate(self._tx, self._topic, self._group, replace(gate, circuit=circuit))


def outcomes(tx: Transaction, topic: TopicRow, group: GroupRow) -> Outcomes | None:
    """Who is to hear of outcomes, if the group has a breaker."""
    terms = terms_of(topic, group)
    return None if terms is None or terms.breaker is None else Outcomes(tx, topic, group, terms)


def describe_gate(
    tx: Transaction, topic: TopicRow, group: GroupRow, *, in_flight: int, lanes: Sequence[LaneBreaker]
) -> GateDescription | None:
    """What holds a group back; None: nothing does."""
    terms = terms_of(topic, group)
    if terms is None and not lanes:
        return None
    terms = terms or Terms()
    circuit = gate_of(tx, topic, group).circuit if terms.breaker is not None else Circuit()
    waits = circuit.state == OPEN and circuit.probe is None
    return GateDescription(
        rate=rate_of(circuit, terms.rate),
        max_in_flight=terms.max_in_flight,
        in_flight=in_flight,
        breaker=STATES[circuit.state],
        probe_at_ms=math.ceil(circuit.probe_at) if waits else None,
        lanes=tuple(lanes),
    )
