"""replay: messages of a log go back to one group, under their own offsets; no other group sees anything of it.

    asked for, by offset or as a copy
      ├─ in the group's backlog (not claimed yet, leased, waiting, dead)    left alone, and counted
      ├─ in the log                                                         by reference
      └─ truncated                                                          the copy, kept as if it had been re-homed
    ──▶ WAITING, due at once, no attempt used

What goes back is a lease row that nobody holds, as after a release; claims, retries, dead letters and retention know it
as such. Copies go when nothing refers to them any more (retain.py).

Offsets of another log mean nothing. So whoever replays names the partition's id and the store's incarnation: after a
restore, or when the topic was made again, nothing is done.

Exactly once: a version of a job, in the transaction (stage.py has the same jobs). A group that does not keep up is sent
no more: what waits is looked through with every call, and is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import msgspec

from ..errors import Busy, CorruptBlock, InvalidArgument, LimitExceeded, OffsetTruncated, StaleVersion
from ..limits import LIMITS
from ..message import MADE_ID_MARK, Replayed, StoredMessage
from ..store.contract import WAITING, GroupRow, JobRow, LeaseRow, TopicRow, Transaction
from .agenda import TRUNCATE, schedule
from .block import Place
from .columns import Columns, listed
from .find import cursor_of, find_group, find_log, head_of
from .incoming import check_columns
from .lease import live_offsets, over
from .lookup import every, keep_message
from .publish import check_stored, note_stored
from .read import partition_id
from .record import record_some
from .stage import remember_job

# A row is rewritten when a part of it is claimed.
_MESSAGES_A_ROW = 1000
_DEAD_A_PAGE = 1000
_SWEEP_AFTER_MS = 60_000


class Replay(msgspec.Struct, frozen=True):
    """Messages to send back to a group: by offset, or as copies of what the log may have lost."""

    tenant: str
    topic: str
    group: str
    partition: int
    incarnation: str
    partition_id: int
    job: str
    version: int
    offsets: tuple[int, ...] = ()
    copies: tuple[StoredMessage, ...] = ()


def check_copies(copies: Sequence[StoredMessage]) -> Columns:
    """The copies as columns. Raises what publishing such messages would."""
    lists: dict[str, list[Any]] = {
        "payload": [copy.payload for copy in copies],
        # One that was made says where the message is, which is where it goes back to.
        "id": [None if copy.id.startswith(MADE_ID_MARK) else copy.id for copy in copies],
        "key": [copy.key for copy in copies],
        "headers": [dict(copy.headers) or None for copy in copies],
        "expires_at": [copy.expires_at_ms for copy in copies],
    }
    used = {name: values for name, values in lists.items() if any(value is not None for value in values)}
    return listed(check_columns(used, None, relative=False).columns) if copies else Columns(0)


def check_replayed(offsets: Sequence[int], copies: Sequence[StoredMessage]) -> None:
    """How much a call takes."""
    if len(offsets) + len(copies) > LIMITS.replay_messages_max:
        raise LimitExceeded(
            f"At most {LIMITS.replay_messages_max} messages are replayed at a time; got {len(offsets) + len(copies)}."
        )
    check_copies(copies)


def replay(tx: Transaction, command: Replay) -> Replayed:
    """Sends messages back. Raises StaleVersion; OffsetTruncated for what needs a copy; Busy while the group is full."""
    topic = find_log(tx, command.tenant, command.topic)
    group = find_group(tx, topic, command.group)
    partition = partition_id(topic, command.partition)
    _check_same(tx, command, partition)
    job = tx.job_find(topic, command.job)
    if job is not None and job.stages:
        raise Busy(f"Version {job.version} of job {command.job!r} is still being published. Try again.")
    if job is not None and job.version >= command.version:
        known = (job.messages, job.duplicates) if job.version == command.version else (0, 0)
        return Replayed(*known, duplicate=True)
    wanted = sorted({*command.offsets, *(copy.offset for copy in command.copies)})
    back = _not_pending(tx, topic, group, partition, wanted)
    _keep(tx, topic, partition, command, back)
    _send_back(tx, topic, group, partition, back)
    left = len(wanted) - len(back)
    remember_job(
        tx, JobRow(topic.tenant_id, topic.id, topic.name, command.job, command.version, len(back), duplicates=left)
    )
    record_some(tx, topic, "replayed", partition, back, group=group.name, facts={"job": command.job})
    return Replayed(len(back), left)


def _check_same(tx: Transaction, command: Replay, partition: int) -> None:
    if command.incarnation != tx.incarnation:
        raise StaleVersion(
            "These offsets are of the store before it was restored, or of another store. Publish instead."
        )
    if command.partition_id != partition:
        raise StaleVersion(
            f"These offsets are of another topic {command.topic!r}, that was deleted since. Publish instead."
        )


def _not_pending(tx: Transaction, topic: TopicRow, group: GroupRow, partition: int, wanted: Sequence[int]) -> list[int]:
    """Those that are not in the group's backlog already. Raises Busy when it is full."""
    if not wanted:
        return []
    head = head_of(tx, topic.tenant_id, partition)
    if wanted[-1] >= head.next_offset:
        raise InvalidArgument(
            f"Partition {topic.partitions.index(partition)} of {topic.name!r} ends at offset {head.next_offset}; "
            f"{wanted[-1]} is beyond it.",
            next_offset=head.next_offset,
        )
    rows = list(tx.leases(topic.tenant_id, partition, group.id))
    waiting = sum(row.live for row in rows if row.state == WAITING)
    if waiting + len(wanted) > LIMITS.replay_waiting_max:
        raise Busy(
            f"Group {group.name!r} has {waiting} messages to deliver again, and may have {LIMITS.replay_waiting_max} "
            "a partition. Go on when it has worked some off."
        )
    cursor = cursor_of(tx, topic.tenant_id, partition, group.id)
    pending = {offset for row in rows for offset in live_offsets(row)}
    dead = every(partial(tx.dead, topic.tenant_id, partition, group.id, limit=_DEAD_A_PAGE), wanted[0] - 1)
    pending.update(takewhile(lambda offset: offset <= wanted[-1], (row.offset for row in dead)))
    return [offset for offset in wanted if offset < cursor and offset not in pending]


def _keep(tx: Transaction, topic: TopicRow, partition: int, command: Replay, back: Sequence[int]) -> None:
    """Keeps the copies of what the log has lost. Raises OffsetTruncated when there is none, and QuotaExceeded."""
    first = head_of(tx, topic.tenant_id, partition).first_offset
    lost = [offset for offset in back if offset < first and not _is_kept(tx, topic, partition, offset)]
    if not lost:
        return
    columns = check_copies(command.copies)
    indexes = {copy.offset: index for index, copy in enumerate(command.copies)}
    if topic.stored_bytes_max is not None:
        size = sum(len(command.copies[indexes[offset]].payload) for offset in lost if offset in indexes)
        check_stored(tx, topic, size)
        note_stored(tx, topic, size)
    for offset in lost:
        index = indexes.get(offset)
        if index is None:
            raise OffsetTruncated(
                f"Partition {command.partition} of {topic.name!r} begins at offset {first}; {offset} was truncated. "
                "Send a copy of it.",
                first_offset=first,
            )
        place = Place(topic.tenant_id, partition, offset)
        published_at = command.copies[index].published_at_ms
        keep_message(tx, place, columns.slice(index, index + 1), published_at)
    schedule(tx, topic.tenant_id, partition, TRUNCATE, tx.now_ms + _SWEEP_AFTER_MS)


def _is_kept(tx: Transaction, topic: TopicRow, partition: int, offset: int) -> bool:
    """Whether somebody else's reference keeps it. A copy that cannot be read is as good as none."""
    try:
        tx.kept(topic.tenant_id, partition, offset)
    except CorruptBlock:
        return False
    return True


def _send_back(tx: Transaction, topic: TopicRow, group: GroupRow, partition: int, back: Sequence[int]) -> None:
    row = LeaseRow(
        tenant_id=topic.tenant_id,
        partition=partition,
        group=group.id,
        due_at=tx.now_ms,
        state=WAITING,
        consumer="",
        claimed_at=0,
        base=0,
        count=0,
        live=0,
        attempts=0,
    )
    for at in range(0, len(back), _MESSAGES_A_ROW):
        tx.lease_insert(over(row, back[at : at + _MESSAGES_A_ROW]))
    if back:
        tx.aftermath.rings.add(partition)
