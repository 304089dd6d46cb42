"""Retention: what may be dropped, what must be kept, and giving the space back.

A partition is truncated by whole blocks, from the front, never past
  - what its retention still wants (age, bytes, or unsettled messages of a group),
  - the archive's watermark, where archiving is on,
  - a live reference: a message that is leased, retrying or dead while its block goes is re-homed
    first, copied alone into `kept`, so that one old message pins nothing.

The chores run from the agenda (agenda.py), each a short transaction that ends by writing down
when it wants to run again. Whoever has the store open runs them; the entry is taken inside the
transaction, so no two do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import msgspec
from msgspec.structs import replace

from ..limits import DAY_MS, LIMITS
from ..store.contract import AgendaRow, BlockMeta, GroupRow, TopicRow, Transaction
from .agenda import ADMIT, ERASE, ERASE_TENANTS, FORGET, GIVE_BACK, PACK, SOON_MS, TRUNCATE, schedule, schedule_store
from .block import Place
from .bury import tell
from .erase import erase_tenants
from .event_log import pack
from .find import cursor_of, head_of, set_head
from .fold import retag_some
from .gone import remember_gone
from .lease import live_offsets
from .lookup import every, keep_message
from .pause import is_paused
from .queue_retain import Look, drop_expired, droppable
from .read import look_up, offset_at
from .record import record
from .stage import admit_or_sweep

# What is deleted in one transaction: about 10 ms of other people's time.
_BLOCKS_A_SLICE = 512
_BYTES_A_SLICE = 4 * 1024 * 1024
_PAGES_A_SLICE = 1024
# How often a partition is looked at while a group keeps it from being truncated.
_PINNED_AGAIN_MS = 60_000
_SEALED_AGAIN_MS = 60_000
_RECEIPTS_A_SLICE = 10_000
# A message that is unsettled for so long is copied out of its block, unless there are too many of them.
_REHOME_AFTER_MS = 60_000
_REHOMED_MAX = 1000


class Chores(msgspec.Struct, frozen=True):
    """Run what is due: of one topic's partition, or of the store itself (`partition` 0, no topic)."""

    tenant: str = ""
    topic: str | None = None
    partition: int = 0


def run_chores(tx: Transaction, commands: Sequence[Chores]) -> list[Look | Exception | None]:
    """Does the most overdue chore. Answers what should be looked at closely, beside everyone else."""
    look: Look | None = None
    row = tx.agenda_next()
    if row is not None and row.partition != commands[0].partition:
        # Something else has become more urgent: whoever asked asks for that next.
        row = None
    if row is not None and row.due_at <= tx.now_ms and not is_paused(tx):
        tx.agenda_delete(row)
        tx.remember(("head", row.partition) if row.partition else ("agenda", row.chore), None)
        look = _CHORES[row.chore](tx, row)
    return [look for _ in commands]


def put_off(tx: Transaction, commands: Sequence[AgendaRow]) -> list[None]:
    """A verb: a chore that cannot be done now, for want of a key, is due a minute later; others are not held up."""
    for row in commands:
        tx.agenda_delete(row)
        tx.remember(("head", row.partition) if row.partition else ("agenda", row.chore), None)
        tx.agenda_put(AgendaRow(row.tenant_id, row.partition, row.chore, tx.now_ms + _SEALED_AGAIN_MS))
    return [None] * len(commands)


def _truncate(tx: Transaction, row: AgendaRow) -> Look | None:
    topic = tx.topic_of_partition(row.partition)
    if topic is None or topic.shredded:
        return None
    head = head_of(tx, row.tenant_id, row.partition)
    look: Look | None = None
    if topic.settings.kind == "queue" and retag_some(tx, topic, row.partition):
        return None
    if topic.settings.kind == "queue":
        limit, look = _empty_queue(tx, topic, row.partition)
    else:
        limit = _may_drop_below(tx, topic, row.partition)
    if limit > head.first_offset:
        if topic.settings.kind == "log":
            rehome(tx, topic, row.partition, limit)
            count = limit - head.first_offset
            record(tx, topic, "truncated", partition=row.partition, offset=head.first_offset, count=count)
        head = replace(head, first_offset=limit)
        set_head(tx, row.tenant_id, row.partition, head)
    count = _a_slice(tx, row)
    remember_gone(tx, row.tenant_id, row.partition, _below(tx, row, head.first_offset, count))
    deleted = tx.blocks_delete(row.tenant_id, row.partition, head.first_offset, count)
    oldest = next(tx.block_metas(row.tenant_id, row.partition, 0), None)
    if oldest is not None and oldest.base < head.first_offset:
        schedule(tx, row.tenant_id, row.partition, TRUNCATE, tx.now_ms)
        return look
    if deleted:
        schedule_store(tx, GIVE_BACK, tx.now_ms)
    if topic.settings.kind == "log":
        _sweep_kept(tx, topic, row.partition)
        _schedule_next(tx, topic, row.partition)
    return look


def _empty_queue(tx: Transaction, topic: TopicRow, partition: int) -> tuple[int, Look | None]:
    """Below which offset all of a queue's log may go, and whether it should be looked at closely."""
    drop_expired(tx, topic, partition)
    head, kept = head_of(tx, topic.tenant_id, partition), topic.settings.kept
    bound = head.next_offset
    if not kept.settled:
        bound = max(_too_old_below(tx, topic, partition), _too_big_below(tx, topic, partition))
    if topic.settings.archive:
        bound = min(bound, head.archived_to)
    limit, look = droppable(tx, topic, partition, bound)
    return _block_boundary(tx, topic, partition, limit), look


def _a_slice(tx: Transaction, row: AgendaRow) -> int:
    """How many blocks from the front make a slice."""
    held = count = 0
    for block in tx.block_metas(row.tenant_id, row.partition, 0):
        held += block.bytes
        count += 1
        if count == _BLOCKS_A_SLICE or held >= _BYTES_A_SLICE:
            break
    return count


def _below(tx: Transaction, row: AgendaRow, offset: int, count: int) -> list[BlockMeta]:
    """The first so many blocks that lie below an offset."""
    metas = islice(tx.block_metas(row.tenant_id, row.partition, 0), count)
    return [block for block in metas if block.base < offset]


def _schedule_next(tx: Transaction, topic: TopicRow, partition: int) -> None:
    """When the oldest block that is left will be too old; a minute from now when something holds it."""
    kept = topic.settings.kept
    head = head_of(tx, topic.tenant_id, partition)
    if head.first_offset == head.next_offset:
        return
    again = tx.now_ms + _PINNED_AGAIN_MS
    wanted = max(_too_old_below(tx, topic, partition), _too_big_below(tx, topic, partition))
    if kept.settled and tx.group_list(topic.id):
        wanted = max(wanted, _claimed_below(tx, topic, partition))
    oldest = next(tx.block_metas(topic.tenant_id, partition, head.first_offset), None)
    if oldest is not None and oldest.end <= wanted:
        schedule(tx, topic.tenant_id, partition, TRUNCATE, again)
    elif oldest is not None and kept.age_ms is not None:
        schedule(tx, topic.tenant_id, partition, TRUNCATE, max(oldest.published_at + kept.age_ms, tx.now_ms + SOON_MS))


def _claimed_below(tx: Transaction, topic: TopicRow, partition: int) -> int:
    """What every group has claimed, settled or not."""
    groups = tx.group_list(topic.id)
    return min(cursor_of(tx, topic.tenant_id, partition, group.id) for group in groups)


def _may_drop_below(tx: Transaction, topic: TopicRow, partition: int) -> int:
    """The offset below which whole blocks may go."""
    kept = topic.settings.kept
    wanted = max(
        _too_old_below(tx, topic, partition),
        _too_big_below(tx, topic, partition),
        _settled_below(tx, topic, partition),
    )
    if not kept.drop_unsettled:
        wanted = _not_past_groups(tx, topic, partition, wanted)
    if topic.settings.archive:
        wanted = min(wanted, head_of(tx, topic.tenant_id, partition).archived_to)
    return _block_boundary(tx, topic, partition, wanted)


def _block_boundary(tx: Transaction, topic: TopicRow, partition: int, offset: int) -> int:
    head = head_of(tx, topic.tenant_id, partition)
    if offset >= head.next_offset:
        return head.next_offset
    block = tx.block_before(topic.tenant_id, partition, offset)
    return max(head.first_offset, 0 if block is None else block.base)


def _too_old_below(tx: Transaction, topic: TopicRow, partition: int) -> int:
    age_ms = topic.settings.kept.age_ms
    return 0 if age_ms is None else offset_at(tx, topic.tenant_id, partition, tx.now_ms - age_ms + 1)


def _too_big_below(tx: Transaction, topic: TopicRow, partition: int) -> int:
    most = topic.settings.kept.bytes
    if most is None:
        return 0
    first = head_of(tx, topic.tenant_id, partition).first_offset
    held = 0
    for block in tx.block_metas(topic.tenant_id, partition, first, newest_first=True):
        held += block.bytes
        if held > most:
            return block.end
    return 0


def _settled_below(tx: Transaction, topic: TopicRow, partition: int) -> int:
    """With retention by settling: what every group is done with. No group, nothing to go by."""
    groups = tx.group_list(topic.id)
    if not topic.settings.kept.settled or not groups:
        return 0
    return min(_needs_from(tx, topic, partition, group) for group in groups)


def _needs_from(tx: Transaction, topic: TopicRow, partition: int, group: GroupRow) -> int:
    """The first offset whose block a group still needs.

    That is its cursor, and what it claimed of late. A few old messages, leased or retrying, need no
    block: they are re-homed. Many are left where they are.
    """
    cursor = cursor_of(tx, topic.tenant_id, partition, group.id)
    first = head_of(tx, topic.tenant_id, partition).first_offset
    rows = tx.leases(topic.tenant_id, partition, group.id)
    # What lies below has no block any more.
    unsettled = [offset for row in rows for offset in live_offsets(row) if offset >= first]
    recent = offset_at(tx, topic.tenant_id, partition, tx.now_ms - _REHOME_AFTER_MS)
    old = sum(offset < recent for offset in unsettled)
    needed = unsettled if old > _REHOMED_MAX else [offset for offset in unsettled if offset >= recent]
    return min([cursor, *needed])


def _not_past_groups(tx: Transaction, topic: TopicRow, partition: int, wanted: int) -> int:
    """The bound, held back by groups that have not come so far; each such group is an alert."""
    head = head_of(tx, topic.tenant_id, partition)
    if wanted <= head.first_offset:
        return wanted
    for group in tx.group_list(topic.id):
        needs = _needs_from(tx, topic, partition, group)
        if needs < wanted:
            facts: dict[str, object] = {"needs_from": needs, "retention_reached": wanted}
            tell(
                tx,
                topic,
                group,
                "group_pins_log",
                partition=partition,
                offset=needs,
                count=wanted - needs,
                facts=facts,
            )
            wanted = needs
    return wanted


def rehome(tx: Transaction, topic: TopicRow, partition: int, below: int) -> None:
    """Copies every message below the bound that something still refers to out of its block."""
    head = head_of(tx, topic.tenant_id, partition)
    wanted = [offset for offset in _references(tx, topic, partition, below) if offset >= head.first_offset]
    # What cannot be read cannot be copied; the reference stays and says so when it is claimed.
    for offset, block, index in look_up(tx, topic.tenant_id, partition, sorted(set(wanted))).readable:
        place = Place(topic.tenant_id, partition, offset)
        columns = block.columns.slice(index, index + 1)
        keep_message(tx, place, columns, block.published_at)


def _references(tx: Transaction, topic: TopicRow, partition: int, below: int) -> list[int]:
    """Offsets below the bound that a lease, a retry or a dead letter names."""
    found: list[int] = []
    for group in tx.group_list(topic.id):
        found.extend(_unsettled(tx, topic, partition, group, below))
        dead = every(partial(tx.dead, topic.tenant_id, partition, group.id, limit=1000))
        found.extend(row.offset for row in dead if row.offset < below)
    return found


def _unsettled(tx: Transaction, topic: TopicRow, partition: int, group: GroupRow, below: int) -> list[int]:
    rows = tx.leases(topic.tenant_id, partition, group.id)
    return [offset for row in rows for offset in live_offsets(row) if offset < below]


def _sweep_kept(tx: Transaction, topic: TopicRow, partition: int) -> None:
    """Drops re-homed messages that nothing refers to any more."""
    kept = tx.kept_offsets(topic.tenant_id, partition)
    if not kept:
        return
    wanted = set(_references(tx, topic, partition, head_of(tx, topic.tenant_id, partition).first_offset))
    for offset in kept:
        if offset not in wanted:
            tx.kept_delete(topic.tenant_id, partition, offset)
    # A dead letter may stay for ever; what is to be delivered again goes some day, and is looked for.
    if any(_unsettled(tx, topic, partition, group, kept[-1] + 1) for group in tx.group_list(topic.id)):
        schedule(tx, topic.tenant_id, partition, TRUNCATE, tx.now_ms + _PINNED_AGAIN_MS)


def _erase(tx: Transaction, row: AgendaRow) -> None:
    """Deletes what is left of a deleted topic's partition, a slice at a time."""
    more = tx.erase(row.tenant_id, row.partition, max(1, _a_slice(tx, row)))
    if more:
        schedule(tx, row.tenant_id, row.partition, ERASE, tx.now_ms)
    else:
        schedule_store(tx, GIVE_BACK, tx.now_ms)


def _give_back(tx: Transaction, _: AgendaRow) -> None:
    """Returns free pages to the device, a slice at a time."""
    if tx.give_back_space(_PAGES_A_SLICE):
        schedule_store(tx, GIVE_BACK, tx.now_ms)


def _forget(tx: Transaction, _: AgendaRow) -> None:
    """Forgets publish ids whose day is over, message ids whose dedupe window is, operations at rest, and consumers that
    are gone.
    """
    # Not before its longest lease can have ended: it may come back for it.
    more = tx.consumers_forget(tx.now_ms - LIMITS.consumer_forget_ms)
    moments = [
        tx.receipts_expire(tx.now_ms, _RECEIPTS_A_SLICE),
        tx.done_expire(tx.now_ms, _RECEIPTS_A_SLICE),
        tx.gone_expire(tx.now_ms, _RECEIPTS_A_SLICE),
        tx.jobs_expire(_RECEIPTS_A_SLICE),
        tx.operations_expire(tx.now_ms, _RECEIPTS_A_SLICE),
        tx.now_ms + DAY_MS if more else None,
    ]
    oldest = min((moment for moment in moments if moment is not None), default=None)
    if oldest is not None:
        schedule_store(tx, FORGET, max(oldest, tx.now_ms + SOON_MS))


_CHORES: dict[str, Callable[[Transaction, AgendaRow], Look | None]] = {
    TRUNCATE: _truncate,
    ERASE: _erase,
    GIVE_BACK: _give_back,
    FORGET: _forget,
    PACK: pack,
    ADMIT: admit_or_sweep,
    ERASE_TENANTS: erase_tenants,
}
