"""Dead letters: list, send back, purge."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from ..grants import NOBODY, By
from ..message import DeadLetter, StoredMessage, made_id
from ..store.contract import WAITING, DeadRow, GroupRow, LeaseRow, LooseRow, TopicRow, Transaction
from .audit import note_done
from .entries import lane_hash
from .find import cursor_of, find_group, find_topic
from .lease import live_offsets, read_history
from .lookup import every, messages_at
from .read import look_up, stored_messages
from .record import record, record_some

_BATCH = 1000


class Redrive(msgspec.Struct, frozen=True):
    """Dead letters to send back: all, or some by id; at once, or so many a second."""

    tenant: str
    topic: str
    group: str
    ids: frozenset[str] | None = None
    rate_per_s: float | None = None
    limit: int | None = None


class ListDead(msgspec.Struct, frozen=True):
    """A page of dead letters, after a place (partition, offset)."""

    tenant: str
    topic: str
    group: str
    after: tuple[int, int]
    limit: int


class PurgeDead(msgspec.Struct, frozen=True):
    """Drop a group's dead letters."""

    tenant: str
    topic: str
    group: str
    by: By = NOBODY


def list_dead(tx: Transaction, command: ListDead) -> list[DeadLetter]:
    """Dead letters with payload and history, by partition and offset."""
    topic = find_topic(tx, command.tenant, command.topic)
    group = find_group(tx, topic, command.group)
    page: list[DeadLetter] = []
    for row in _walk(tx, topic, group, *command.after):
        if len(page) == command.limit:
            break
        page.append(_letter(tx, topic, row))
    return page


def redrive(tx: Transaction, command: Redrive) -> int:
    """Sends dead letters back to their group with no attempts used. Returns how many.

    With a rate they fall due one after another, so nothing has to run to keep the pace.
    """
    topic = find_topic(tx, command.tenant, command.topic)
    group = find_group(tx, topic, command.group)
    sent = 0
    back: dict[int, list[int]] = {partition: [] for partition in topic.partitions}
    for partition in topic.partitions:
        coming = _Coming(tx, topic, group, partition) if topic.settings.kind == "log" else ()
        for row in list(_walk(tx, topic, group, topic.partitions.index(partition), -1, one=True)):
            if command.limit is not None and sent == command.limit:
                break
            if command.ids is not None and _letter(tx, topic, row).id not in command.ids:
                continue
            wait_ms = 0 if command.rate_per_s is None else int(sent * 1000 / command.rate_per_s)
            tx.dead_delete(row)
            back[partition].append(row.offset)
            if topic.settings.kind == "queue":
                _send_back_loose(tx, row, tx.now_ms + wait_ms)
            elif row.offset not in coming:
                _send_back(tx, row, tx.now_ms + wait_ms)
            sent += 1
    for partition, offsets in back.items():
        record_some(tx, topic, "redriven", partition, offsets, group=group.name)
    tx.aftermath.rings.update(topic.partitions)
    return sent


def purge_dead(tx: Transaction, command: PurgeDead) -> int:
    """Drops a group's dead letters. Returns how many."""
    topic = find_topic(tx, command.tenant, command.topic)
    group = find_group(tx, topic, command.group)
    dropped = sum(tx.dead_purge(topic.tenant_id, partition, group.id) for partition in topic.partitions)
    record(tx, topic, "dead_purged", group=group.name, facts={"messages": dropped})
    note_done(tx, topic.tenant_id, command, messages=dropped)
    return dropped


class _Coming:
    """The offsets that a group gets anyway, because it went back over them: a second copy would be one too many."""

    def __init__(self, tx: Transaction, topic: TopicRow, group: GroupRow, partition: int) -> None:
        self._cursor = cursor_of(tx, topic.tenant_id, partition, group.id)
        self._pending: set[int] = set()
        for row in tx.leases(topic.tenant_id, partition, group.id):
            self._pending.update(live_offsets(row))

    def __contains__(self, offset: int) -> bool:
        return offset >= self._cursor or offset in self._pending


def _walk(
    tx: Transaction, topic: TopicRow, group: GroupRow, number: int, offset: int, *, one: bool = False
) -> Iterator[DeadRow]:
    """Dead rows after a place, in pages; of `one` partition, or of all from there on."""
    for at in range(number, number + 1 if one else len(topic.partitions)):
        after = offset if at == number else -1
        partition = topic.partitions[at]
        yield from every(partial(tx.dead, topic.tenant_id, partition, group.id, limit=_BATCH), after)


def _letter(tx: Transaction, topic: TopicRow, row: DeadRow) -> DeadLetter:
    number = topic.partitions.index(row.partition)
    found = look_up(tx, row.tenant_id, row.partition, [row.offset])
    history = read_history(row.history)
    if found.error is not None:
        lost = StoredMessage(number, row.offset, made_id(row.partition, row.offset), b"", None, {}, 0, None)
        return DeadLetter(lost, row.attempts, row.reason, row.buried_at, history, corrupt=str(found.error))
    ((_, block, index),) = found.readable
    (message,) = stored_messages(block, index, index + 1, number)
    return DeadLetter(message, row.attempts, row.reason, row.buried_at, history)


def _send_back(tx: Transaction, row: DeadRow, due_at: int) -> None:
    tx.lease_insert(
        LeaseRow(
            tenant_id=row.tenant_id,
            partition=row.partition,
            group=row.group,
            due_at=due_at,
            state=WAITING,
            consumer="",
            claimed_at=0,
            base=row.offset,
            count=1,
            live=1,
            attempts=0,
            history=row.history,
        )
    )


def _send_back_loose(tx: Transaction, row: DeadRow, due_at: int) -> None:
    columns = messages_at(tx, row.tenant_id, row.partition, [row.offset])
    (lane,) = columns.values("lane") or [None]
    tx.loose_put(
        row.tenant_id,
        LooseRow(
            row.partition,
            row.offset,
            due_at,
            True,
            int(columns.numbers("priority", 0)[0]),
            0 if lane is None else lane_hash(lane),
            history=row.history,
        ),
    )
