"""Stages: messages that are put down by many, piece by piece, and published together, all of them or none.

A publish is one transaction, so it is bounded (limits.py). A job of Spark writes millions of messages from many tasks,
some of which fail and run again; only what the job at its end commits may ever be seen. So:

    stage ──▶ stage ──▶ …          any number of stages, each written by one task, a call after the other
       └──────────┴──▶ commit (job, version, the stages that count)
                          │ decided: one small transaction; from here on it happens, whoever dies
                          ▼
                       admitted, a slice a transaction, in the order of the stages ──▶ done

Whoever commits admits: the verb is asked again until nothing is left. Should it die, a chore goes on. Stages that
nobody commits go after a day, a piece at a time.

Exactly once: a call to stage has a number, and one that comes again is known by it. A commit has a job and a version; a
version that is not above the job's newest was done before, and stores nothing (the stages that it brings are dropped).
What is remembered is one row a job.

Nothing is written twice. A stage's messages are laid down as the bodies of blocks to be, a row each (a *chunk*); to
publish one is to insert a block that says where its body is (block.py, apart). Only where a queue has some of its ids
already it is written anew, without those.

Due times and lifetimes that are durations count from the staging.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from ..errors import Busy, Error, InvalidArgument, NotFound
from ..limits import DAY_MS, LIMITS
from ..message import Admitted
from ..store.contract import AgendaRow, JobRow, StageRow, TopicRow, Transaction
from .agenda import ADMIT, FORGET, SOON_MS, schedule_store
from .block import Chunk, cut, decode_chunk, encode_chunk
from .columns import Columns
from .find import find_topic, head_of
from .incoming import Checked
from .inquiry import ids_in_use
from .pause import refuse_if_moved
from .publish import (
    Repeated,
    Tail,
    Tails,
    check_due,
    check_kind,
    check_sizes,
    check_stored,
    note_stored,
    repeated_ids,
    route,
    split,
)
from .seal import Unseal, bound_to

# Blocks admitted by one transaction: about 10 ms, on a queue 20.
_LOG_BLOCKS_A_SLICE = 100
_QUEUE_BLOCKS_A_SLICE = 8
_SWEPT_A_SLICE = 64
# A stage that nobody adds to or commits for so long is nobody's.
_STAGE_MS = DAY_MS
# A job that has not published for so long may be forgotten.
_JOB_MS = 30 * DAY_MS
_PIECES_A_CALL = 1 << 20
STAGES_MAX = 100_000


class Stage(msgspec.Struct, frozen=True):
    """A batch for a stage of a topic; `number` counts the calls of the stage, from 0."""

    tenant: str
    topic: str
    stage: str
    number: int
    batch: Checked
    publisher: str = ""


class CommitStages(msgspec.Struct, frozen=True):
    """Publishes stages, each with how many messages it must have, as a version of a job."""

    tenant: str
    topic: str
    job: str
    version: int
    stages: tuple[tuple[str, int], ...]


class DropStages(msgspec.Struct, frozen=True):
    """Gives stages up."""

    tenant: str
    topic: str
    stages: tuple[str, ...]


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a stage: its chunk, the partition it goes to, its payload bytes."""

    chunk: Chunk
    partition: int
    bytes: int
    publisher: str = ""


def check_stage(stage: object, number: object) -> str:
    """A stage's name and the number of a call that a caller may give."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**40:
        raise InvalidArgument(f"number counts the calls of a stage, from 0; got {number!r}.")
    return check_label(stage, "stage")


def check_label(text: object, what: str) -> str:
    """The name of a stage or a job."""
    if not isinstance(text, str) or not 1 <= len(text) <= LIMITS.publish_id_chars_max or not text.isprintable():
        raise InvalidArgument(f"A {what} is named by 1 to {LIMITS.publish_id_chars_max} printable characters.")
    return text


Ids = Sequence[str | None]

_pieces = msgspec.msgpack.Decoder(Staged)


def stage(tx: Transaction, commands: Sequence[Stage]) -> list[int | Exception]:
    """Adds batches to stages; answers how many messages each has then."""
    answers: list[int | Exception] = []
    for command in commands:
        try:
            answers.append(_stage(tx, command))
        except Error as error:
            answers.append(error)
    return answers


def _stage(tx: Transaction, command: Stage) -> int:
    topic = _find(tx, command.tenant, command.topic)
    row = tx.stage_find(topic, command.stage)
    expires_at = tx.now_ms + _STAGE_MS
    if row is not None and row.expires_at is None:
        raise InvalidArgument(f"Stage {command.stage!r} has been committed. Begin another one.")
    if row is not None and _is_given_up(tx, row):
        raise NotFound(f"Stage {command.stage!r} was given up. Begin another one.")
    if command.number > (0 if row is None else row.next_number):
        raise NotFound(f"Stage {command.stage!r} has nothing before call {command.number}. Stage it from the start.")
    if row is not None and command.number < row.next_number:
        return row.messages
    columns = _checked(tx, topic, command.batch)
    if row is None:
        row = tx.stage_insert(topic, command.stage, expires_at)
    _put_down(tx, topic, row, Checked(columns, command.batch.bytes, command.batch.partitions), command.publisher)
    row = StageRow(row.id, row.messages + columns.count, row.next_number + 1, expires_at)
    tx.stage_update(row)
    schedule_store(tx, ADMIT, expires_at)
    return row.messages


def _put_down(tx: Transaction, topic: TopicRow, row: StageRow, batch: Checked, publisher: str) -> None:
    """Writes a call's messages as the bodies of blocks to be, by partition."""
    number = row.next_number * _PIECES_A_CALL
    tenant_id, seal = topic.tenant_id, tx.sealing(topic.tenant_id)
    for partition, columns, _ in split(batch.columns, batch.bytes, route(tx, topic, batch)):
        for part in cut(columns):
            bound = _place_of(row.id, number, partition)
            insert = partial(tx.chunk_insert, tenant_id)
            chunk = encode_chunk(part, insert, tenant=tenant_id, seal=seal, bound=bound)
            note_stored(tx, topic, chunk.length)
            piece = msgspec.msgpack.encode(Staged(chunk, partition, part.bytes, publisher))
            tx.staged_insert(tenant_id, row.id, number, chunk.number, piece)
            number += 1


def _place_of(stage: int, number: int, partition: int) -> bytes:
    """What a piece is bound to, if it is sealed: it has no place in the log yet."""
    return bound_to("stage", stage, number, partition)


def _checked(tx: Transaction, topic: TopicRow, batch: Checked) -> Columns:
    """What publish would check, now and not in the middle of a commit."""
    if batch.bytes > topic.settings.payload_bytes_max:
        check_sizes(topic, batch.columns)
    if topic.stored_bytes_max is not None:
        check_stored(tx, topic, batch.bytes)
    check_kind(topic, batch)
    times = batch.relative or topic.settings.ttl_ms is not None
    columns = batch.columns.at_times(tx.now_ms, topic.settings.ttl_ms) if times else batch.columns
    check_due(tx, columns)
    return columns


def commit_stages(tx: Transaction, command: CommitStages) -> Admitted:
    """Decides, or goes on with what was decided. Ask again while something is left."""
    topic = _find(tx, command.tenant, command.topic)
    job = tx.job_find(topic, command.job)
    if job is not None and job.stages and job.version != command.version:
        _admit(tx, topic, job)
        raise Busy(f"Version {job.version} of job {command.job!r} is still being published. Try again.")
    if job is not None and (job.version > command.version or (job.version == command.version and not job.stages)):
        drop_stages(tx, DropStages(command.tenant, command.topic, tuple(name for name, _ in command.stages)))
        known = (job.messages, job.duplicates) if job.version == command.version else (0, 0)
        return Admitted(*known, duplicate=True)
    if job is None or job.version < command.version:
        job = _decide(tx, topic, command)
    job = _admit(tx, topic, job)
    return Admitted(job.messages, job.duplicates, job.left)


def _decide(tx: Transaction, topic: TopicRow, command: CommitStages) -> JobRow:
    ids: list[int] = []
    for name, messages in command.stages:
        row = tx.stage_find(topic, name)
        if row is None or row.messages != messages or row.expires_at is None or _is_given_up(tx, row):
            has = "is not there" if row is None or row.messages == messages else f"has {row.messages}"
            raise NotFound(f"Stage {name!r} should have {messages} messages, and {has}. Stage them again.")
        if messages:
            ids.append(row.id)
            # From now on it is the job's, and does not expire.
            tx.stage_update(replace(row, expires_at=None))
    left = sum(messages for _, messages in command.stages)
    job = JobRow(topic.tenant_id, topic.id, topic.name, command.job, command.version, left=left, stages=tuple(ids))
    tx.job_put(job, tx.now_ms + _JOB_MS)
    return job


def _is_given_up(tx: Transaction, row: StageRow) -> bool:
    return row.expires_at is not None and row.expires_at <= tx.now_ms


def _admit(tx: Transaction, topic: TopicRow, job: JobRow) -> JobRow:
    """Publishes a slice of what was decided."""
    budget = _LOG_BLOCKS_A_SLICE if topic.settings.kind == "log" else _QUEUE_BLOCKS_A_SLICE
    tails = Tails()
    stages = list(job.stages)
    while stages and budget > 0:
        rows = tx.staged(topic.tenant_id, stages[0], budget)
        for staged, columns, ids, known in _found(tx, topic, stages[0], rows, tails):
            messages, duplicates = _admit_piece(tx, topic, staged, columns, ids, known, tails)
            job = replace(
                job,
                messages=job.messages + messages,
                duplicates=job.duplicates + duplicates,
                left=job.left - messages - duplicates,
            )
        if rows:
            tx.staged_delete(topic.tenant_id, stages[0], rows[-1][0])
        # With nothing left the last rows were taken just now, though they filled the slice.
        if len(rows) < budget or not job.left:
            tx.stage_delete(stages.pop(0))
        budget -= len(rows)
    for tail in tails.values():
        tail.write(tx)
    job = replace(job, stages=tuple(stages))
    remember_job(tx, job)
    if stages:
        schedule_store(tx, ADMIT, tx.now_ms + SOON_MS)
    return job


def remember_job(tx: Transaction, job: JobRow) -> None:
    """Notes a job's newest version, and what came of it; kept for a month."""
    tx.job_put(job, tx.now_ms + _JOB_MS)
    if not job.stages:
        schedule_store(tx, FORGET, tx.now_ms + _JOB_MS)


def _found(
    tx: Transaction, topic: TopicRow, stage_id: int, rows: Sequence[tuple[int, int, bytes]], tails: Tails
) -> Iterator[tuple[Staged, Columns, Ids, Repeated]]:
    """Pieces with their messages, the ids of these, and which of them a queue has already. It is asked once for all."""
    pieces = [_piece(stage_id, number, stored) for number, _, stored in rows]
    read = [
        decode_chunk(piece.chunk, tx.chunk(chunk), tenant=topic.tenant_id, unseal=tx.unseal)
        for piece, (_, chunk, _) in zip(pieces, rows, strict=True)
    ]
    ids: list[Ids] = [() for _ in read]
    if topic.settings.kind == "queue":
        ids = [columns.values("id") or () for columns in read]
    pending = tails.ids.setdefault(topic.id, {})
    asked = {text: None for some in ids for text in some if text is not None and text not in pending}
    used = ids_in_use(tx, topic, list(asked)) if asked else {}
    for piece, columns, some in zip(pieces, read, ids, strict=True):
        # Of two with one id the first has been admitted by now, and its id is pending.
        yield piece, columns, some, repeated_ids(some, pending, used) if some else {}


def _piece(stage_id: int, number: int, stored: bytes) -> Staged:
    """A piece as its row says; what is sealed is bound to where it lies, whatever it says of that."""
    piece = _pieces.decode(stored)
    if not piece.chunk.key:
        return piece
    return replace(piece, chunk=replace(piece.chunk, bound=_place_of(stage_id, number, piece.partition)))


def check_piece(tenant_id: int, stage_id: int, number: int, stored: bytes, body: bytes | None, unseal: Unseal) -> None:
    """Raises CorruptBlock for a piece of a stage that could not be published, and Sealed for want of the key."""
    decode_chunk(_piece(stage_id, number, stored).chunk, body, tenant=tenant_id, unseal=unseal)


def _admit_piece(
    tx: Transaction, topic: TopicRow, staged: Staged, columns: Columns, ids: Ids, known: Repeated, tails: Tails
) -> tuple[int, int]:
    """Publishes one chunk: how many messages of it, and how many of it the queue has already."""
    chunk: Chunk | None = staged.chunk
    if known:
        left = [at for at in range(columns.count) if at not in known]
        columns, chunk, ids = columns.take(left), None, [ids[at] for at in left]
        tx.chunk_delete(staged.chunk.number)
    if not columns.count:
        return 0, len(known)
    partition = topic.partitions[staged.partition]
    tail = tails.get(partition)
    if tail is None:
        tail = tails[partition] = Tail(topic, partition, head_of(tx, topic.tenant_id, partition))
    first = tail.add("", columns, columns.bytes, chunk, staged.publisher)
    pending = tails.ids[topic.id]
    for at, text in enumerate(ids, first):
        if text is not None:
            pending[text] = (staged.partition, at)
    return columns.count, len(known)


def drop_stages(tx: Transaction, command: DropStages) -> None:
    """Gives stages up: their space is free a little later."""
    topic = _find(tx, command.tenant, command.topic)
    for name in command.stages:
        row = tx.stage_find(topic, name)
        if row is not None and row.expires_at is not None:
            tx.stage_update(replace(row, expires_at=tx.now_ms))
    schedule_store(tx, ADMIT, tx.now_ms)


def admit_or_sweep(tx: Transaction, _: AgendaRow) -> None:
    """The chore: goes on with what somebody decided and left, or frees what nobody wanted."""
    job = tx.job_under_way()
    if job is not None:
        topic = find_topic(tx, tx.tenant_name(job.tenant_id), job.topic, suspended=True, shredded=True)
        if topic.shredded:
            # Nobody can read what was decided upon; other jobs wait behind it.
            remember_job(tx, replace(job, stages=()))
        else:
            _admit(tx, topic, job)
        schedule_store(tx, ADMIT, tx.now_ms)
        return
    expired = tx.stage_expired()
    if expired is not None:
        _sweep(tx, *expired)
        schedule_store(tx, ADMIT, tx.now_ms)
        return
    following = tx.stages_next_expiry()
    if following is not None:
        schedule_store(tx, ADMIT, following)


def _sweep(tx: Transaction, stage_id: int, tenant_id: int) -> None:
    rows = tx.staged(tenant_id, stage_id, _SWEPT_A_SLICE)
    for _, chunk, _ in rows:
        tx.chunk_delete(chunk)
    if rows:
        tx.staged_delete(tenant_id, stage_id, rows[-1][0])
    if len(rows) < _SWEPT_A_SLICE:
        tx.stage_delete(stage_id)


def _find(tx: Transaction, tenant: str, name: str) -> TopicRow:
    topic = find_topic(tx, tenant, name)
    if topic.name[0] == "$":
        raise InvalidArgument(f"{topic.name!r} is Duly's own: read it, or claim from it.")
    refuse_if_moved(tx)
    return topic
