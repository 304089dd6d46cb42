"""`$events`: the tenant's system log of what happened, and reading it.

Every message of it holds the events of one transaction, a JSON list. What is not packed into it yet stands in rows;
whoever reads sees both as one: a row's offset is the one that it is going to have. So a place, (offset, index in the
list), stays true when rows are packed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain

import msgspec

from ..errors import CorruptBlock, InvalidArgument
from ..events import EVENTS, Event
from ..limits import DAY_MS, LIMITS
from ..store.contract import AgendaRow, TopicRow, Transaction
from ..tenant import DELETING
from ..topic import Retention, TopicSettings
from .agenda import PACK, schedule_store
from .columns import Columns
from .find import find_owner, find_topic, head_of
from .ids import find_places
from .publish import Tail
from .read import offset_at

# Rows packed by one transaction, and bytes: a millisecond. The next slice follows after a breath: whoever waits for a
# due time would feel a second's events packed in one go.
_ROWS_A_SLICE = 250
_BYTES_A_SLICE = 256 * 1024
_BREATH_MS = 10
# A page looks at no more messages than this, whatever it finds.
_LOOK_MAX = 20_000
# Of those who look back.
_SLICE = 500


class Brief(msgspec.Struct, frozen=True):
    """Of an event, what those need to know who look at very many."""

    kind: str
    at: int
    topic: str = ""
    group: str = ""
    count: int = 0
    consumer: str = ""
    lease: int = 0
    facts: Mapping[str, object] = {}


_events = msgspec.json.Decoder(list[Event])
_briefly = msgspec.json.Decoder(list[Brief])


def pack(tx: Transaction, _: AgendaRow) -> None:
    """Moves rows of events into their tenants' logs, a slice at a time."""
    rows = tx.event_rows(_ROWS_A_SLICE)
    size = at = 0
    by_tenant: dict[int, list[bytes]] = {}
    while at < len(rows) and size < _BYTES_A_SLICE:
        by_tenant.setdefault(rows[at].tenant_id, []).append(rows[at].data)
        size += len(rows[at].data)
        at += 1
    for tenant_id, payloads in by_tenant.items():
        topic = _log_of(tx, tenant_id)
        if topic is None or topic.shredded:
            continue
        partition = topic.partitions[0]
        tail = Tail(topic, partition, head_of(tx, tenant_id, partition))
        for start in range(0, len(payloads), LIMITS.block_messages_max):
            some = payloads[start : start + LIMITS.block_messages_max]
            tail.add("", Columns(len(some), lists={"payload": some}), sum(map(len, some)))
        tail.write(tx)
    if at:
        tx.event_rows_delete([row.id for row in rows[:at]])
    if at < len(rows) or len(rows) == _ROWS_A_SLICE:
        schedule_store(tx, PACK, tx.now_ms + _BREATH_MS)


def _log_of(tx: Transaction, tenant_id: int) -> TopicRow | None:
    """The tenant's `$events`, made when there is something to put into it. None: the tenant is being deleted."""
    tenant = tx.tenant_by_id(tenant_id)
    if tenant is None or tenant.state == DELETING:
        return None
    topic = tx.topic_find(tenant.name, EVENTS)
    if topic is None:
        kept = Retention(age=7 * DAY_MS / 1000, bytes=10**9, drop_unsettled=True)
        topic = tx.topic_insert(tenant.name, EVENTS, TopicSettings(kind="log", retention=kept))
    return topic


class ListEvents(msgspec.Struct, frozen=True):
    """Events of a tenant in order: after a place, since a moment, of one topic, of one message of it."""

    tenant: str
    after: tuple[int, int] = (-1, -1)
    since: int | None = None
    topic: str | None = None
    message: str | None = None
    limit: int = 1000
    # Of a message: the lease that each group is known to have it under.
    leases: tuple[tuple[str, int], ...] = ()


class Page(msgspec.Struct, frozen=True):
    """Some events, the place after which the next ones come, and whether there may be any."""

    events: tuple[Event, ...]
    after: tuple[int, int]
    more: bool
    leases: tuple[tuple[str, int], ...] = ()


def list_events(tx: Transaction, command: ListEvents) -> Page:
    """A page of events. One that finds nothing may still have `more`: it looked far enough for one read."""
    find_owner(tx, command.tenant)
    wanted = _Wanted(tx, command)
    found: list[Event] = []
    after, looked = command.after, 0
    for offset, data in _from(tx, command, wanted.look_from):
        looked += 1
        for index, event in enumerate(_events.decode(data)):
            if (offset, index) <= command.after:
                continue
            if wanted.begins(event):
                found.clear()
            if wanted.takes(event):
                found.append(event)
            after = (offset, index)
            if len(found) == command.limit:
                return Page(tuple(found), after, True, tuple(wanted.leases.items()))
        if looked == _LOOK_MAX:
            return Page(tuple(found), after, True, tuple(wanted.leases.items()))
    return Page(tuple(found), after, False, tuple(wanted.leases.items()))


class _Wanted:
    """Which events are asked for."""

    def __init__(self, tx: Transaction, command: ListEvents) -> None:
        self.since = command.since or 0
        self.look_from = self.since
        self.topic = command.topic
        self.leases = dict(command.leases)
        self.place: tuple[int, int] | None = None
        if command.message is not None:
            if command.topic is None:
                raise InvalidArgument("The history of a message takes its topic too: ids are a topic's own.")
            topic = find_topic(tx, command.tenant, command.topic)
            places = find_places(tx, topic, [command.message]).get(command.message)
            # Where none is known nothing matches.
            self.place = max(places) if places else (-1, -1)
            # Leases from before `since` have to be known; another topic that had the name does not matter.
            self.look_from = topic.created_at
            self.since = max(self.since, topic.created_at)

    def begins(self, event: Event) -> bool:
        """Whether the topic of the message was made here: nothing before this is about the message."""
        return self.place is not None and event.kind == "topic_created" and event.topic == self.topic

    def takes(self, event: Event) -> bool:
        """Whether an event is one of them."""
        if self.topic is not None and event.topic != self.topic:
            return False
        # Of what is not asked for, too: it tells which leases the message is under.
        return (self.place is None or self._is_about(event, *self.place)) and event.at >= self.since

    def _is_about(self, event: Event, partition: int, offset: int) -> bool:
        if not event.count or event.partition != partition:
            return False
        about = event.lease == self.leases.get(event.group)
        if not event.whole:
            about = event.offset <= offset and offset in event.offsets
        if about and event.kind in ("claimed", "extended"):
            self.leases[event.group] = event.lease
        elif about:
            # Whatever else happens to a message that a group holds ends its lease; others hold theirs.
            self.leases.pop(event.group, None)
        return about


def late_events(tx: Transaction, tenant: str, transactions: int, events: int) -> tuple[list[list[Brief]], bool]:
    """What happened last in a tenant, by transaction, in order; and whether that is all that is recorded.

    Looks back at so many transactions, or at the last that have about so many events. Raises CorruptBlock.
    """
    topic, tenant_id = tx.topic_find(tenant, EVENTS), tx.tenant_id(tenant)
    rows = deque(() if tenant_id is None else tx.event_rows_of(tenant_id), transactions)
    # Backwards, by the slice, until there are enough.
    slices = [[_briefly.decode(data) for data in rows]]
    seen, found = len(rows), sum(map(len, slices[0]))
    if topic is None:
        return slices[0], seen < transactions
    partition = topic.partitions[0]
    head = head_of(tx, topic.tenant_id, partition)
    at = head.next_offset
    while at > head.first_offset and seen < transactions and found < events:
        end, at = at, max(head.first_offset, at - min(_SLICE, transactions - seen))
        some = [_briefly.decode(data) for data in _payloads(tx, topic, at, end)]
        slices.append(some)
        seen, found = seen + len(some), found + sum(map(len, some))
    return list(chain.from_iterable(reversed(slices))), at <= head.first_offset and seen < transactions


def _payloads(tx: Transaction, topic: TopicRow, low: int, high: int) -> Iterator[bytes]:
    for block in tx.blocks(topic.tenant_id, topic.partitions[0], low, high):
        start, stop = max(low, block.base) - block.base, min(high, block.end) - block.base
        yield from block.columns.values("payload", start, stop) or []


def _from(tx: Transaction, command: ListEvents, since: int) -> Iterator[tuple[int, bytes]]:
    """(offset, list of events) in order, from where the command begins: of the log, then of the rows."""
    topic = tx.topic_find(command.tenant, EVENTS)
    at = 0
    if topic is not None:
        tenant_id, partition = topic.tenant_id, topic.partitions[0]
        head = head_of(tx, tenant_id, partition)
        at = max(head.first_offset, command.after[0])
        if since:
            at = max(at, offset_at(tx, tenant_id, partition, since))
        try:
            for block in tx.blocks(tenant_id, partition, at, head.next_offset):
                payloads = block.columns.values("payload", max(at, block.base) - block.base, block.count) or []
                yield from enumerate(payloads, start=max(at, block.base))
        except CorruptBlock as error:
            raise CorruptBlock(f"Events cannot be read: {error}", **error.facts) from error
        at = head.next_offset
    tenant_id_or_none = tx.tenant_id(command.tenant)
    if tenant_id_or_none is not None:
        rows = tx.event_rows_of(tenant_id_or_none)
        yield from ((at + number, data) for number, data in enumerate(rows) if at + number >= command.after[0])
