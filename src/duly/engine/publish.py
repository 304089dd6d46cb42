"""publish: store batches, whole or not at all, each exactly once per publish id.

All batches that reach a partition in one transaction are laid end to end: the small ones share a
block, so that sixteen producers of one message each cost one row and not sixteen. Offsets are
given here, under the writer's lock, in the order of the commands.

A publish id given by the caller is remembered as a row for a day. An id that Duly made is only
written into the block; should its outcome ever be in doubt, the id says when it was made, and the
blocks since then are searched (and a batch that turns out to be stored after its publisher was told
"unknown" gets its row then). So the common case pays nothing for a promise that is called on once in a crash.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Union

import msgspec
import xxhash
from msgspec.structs import replace

from ..errors import Error, InvalidArgument, LimitExceeded, QuotaExceeded
from ..limits import LIMITS, MINUTE_MS
from ..message import Receipt, Span
from ..store.contract import BlockMeta, Head, TopicRow, Transaction
from .agenda import FORGET, TRUNCATE, note_published, schedule, schedule_store
from .block import Block, Chunk, Piece, Place, encode, encode_apart, form_blocks, publishes_of
from .budget import Ledger, owe
from .columns import Columns
from .find import find_topic, head_of
from .fold import absorb_some
from .gone import PUBLISH_MS_MAX, REPEATABLE_MARK, find_gone
from .incoming import Checked
from .inquiry import ids_in_use
from .limited import keeps_slot
from .pause import refuse_if_moved
from .read import offset_at
from .record import record

if TYPE_CHECKING:
    import numpy as np

MADE_PUBLISH_ID_MARK = "~"
# A client of a broker reckons the store's time, and may be ahead of it when it makes an id.
_AHEAD_MS_MAX = MINUTE_MS

# What is freed is seen by then, or a little later.
_STORED_AGAIN_MS = 5000

_counter = itertools.count()
# Drawn once a process and not once an id: the system call lets go of the interpreter's lock, and among busy
# threads it takes longer to get that back than everything else takes together.
_process = os.urandom(6).hex()


def _after_fork_in_child() -> None:
    global _process
    _process = os.urandom(6).hex()


os.register_at_fork(after_in_child=_after_fork_in_child)

# One partition number for the whole batch, or an array with one for each message.
Routes = Union[int, "np.ndarray[Any, Any]"]

# By the number of a message: where the one that has its id is, or which of the same batch.
Repeated = dict[int, tuple[int, int] | int]


class Publish(msgspec.Struct, frozen=True):
    """A batch for a topic. `repeated` is set when a made id comes back: it may be stored already.

    `publisher` is who a broker knows the caller to be.
    """

    tenant: str
    topic: str
    batch: Checked
    publish_id: str
    repeated: bool = False
    publisher: str = ""
    # It is committed already, by an application's transaction: neither a quota nor its operation's budget refuses it.
    taken: bool = False


def make_publish_id(now_ms: int, *, repeatable: bool = False) -> str:
    """A new id that nobody else makes, beginning with the time; `repeatable` by one who may not get the answer."""
    end = REPEATABLE_MARK if repeatable else ""
    return f"{MADE_PUBLISH_ID_MARK}{now_ms:011x}{_process}{next(_counter):x}{end}"


def check_publish_id(publish_id: object) -> str:
    """An id that a caller may give."""
    if not isinstance(publish_id, str) or not 1 <= len(publish_id) <= LIMITS.publish_id_chars_max:
        raise InvalidArgument(f"A publish_id is a str of 1 to {LIMITS.publish_id_chars_max} characters.")
    if not publish_id.isprintable():
        raise InvalidArgument(f"A publish_id has printable characters only; got {publish_id!r}.")
    if publish_id.startswith(MADE_PUBLISH_ID_MARK):
        try:
            int(publish_id[1:12], 16)
        except ValueError as error:
            raise InvalidArgument(
                f"A publish_id that begins with {MADE_PUBLISH_ID_MARK!r} is one that Duly made; this is none."
            ) from error
    return publish_id


def publish(tx: Transaction, commands: Sequence[Publish]) -> list[Receipt | Exception]:
    """Stores every batch of every command. A batch that cannot be stored leaves the others be."""
    answers: list[Receipt | Exception] = []
    tails = Tails()
    ledger = Ledger(tx, [(command.tenant, command.batch) for command in commands if not command.taken])
    # Not in any block yet: a made id that is repeated by several callers at once.
    placed: dict[tuple[str, str, str], Receipt] = {}
    for command in commands:
        try:
            if command.repeated:
                key = (command.tenant, command.topic, command.publish_id)
                first = placed.get(key)
                receipt = _place(tx, command, tails, ledger) if first is None else replace(first, duplicate=True)
                placed.setdefault(key, receipt)
            else:
                receipt = _place(tx, command, tails, ledger)
            answers.append(receipt)
        except Error as error:
            answers.append(error)
    for tail in tails.values():
        tail.write(tx)
    ledger.write()
    return answers


class Tails(dict[int, "Tail"]):
    """The partitions that this transaction adds to, and the ids given in queues: they are in no block yet."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: dict[int, dict[str, tuple[int, int]]] = {}


class Tail:
    """The growing end of one partition inside this transaction."""

    def __init__(self, topic: TopicRow, partition: int, head: Head) -> None:
        self.topic = topic
        self.partition = partition
        self.head = head
        self.next_offset = head.next_offset
        self.pieces: list[Piece] = []

    def add(self, publish_id: str, columns: Columns, size: int, chunk: Chunk | None = None, publisher: str = "") -> int:
        """Lays a piece at the end and returns its first offset."""
        first = self.next_offset
        self.pieces.append(Piece(publish_id, columns, size, chunk, publisher))
        self.next_offset += columns.count
        return first

    def write(self, tx: Transaction) -> None:
        """Forms blocks and inserts them."""
        base = self.head.next_offset
        # Never earlier than the block before: offset_at searches by time.
        published_at = max(tx.now_ms, self.head.published_at)
        seal = tx.sealing(self.topic.tenant_id)
        for columns, publishes, chunk in form_blocks(self.pieces):
            place = Place(self.topic.tenant_id, self.partition, base)
            if chunk is None:
                stored = encode(place, columns, published_at, publishes, seal=seal)
                size = len(stored)
                note_stored(tx, self.topic, size)
            else:
                # What was sealed while it was staged stays so, though the tenant be encrypted no more.
                own = tx.unseal(place.tenant, chunk.key) if chunk.key and seal is None else seal
                stored = encode_apart(place, chunk, published_at, publishes, seal=own)
                size = len(stored) + chunk.length
                # The rest of it was counted when it was staged.
                note_stored(tx, self.topic, len(stored))
            meta = BlockMeta(base, columns.count, size, published_at)
            block = Block(place, columns.count, published_at, columns, publishes)
            lies_in = None if chunk is None else chunk.number
            tx.block_insert(place.tenant, place.partition, meta, block, stored, lies_in)
            base += columns.count
        tx.remember(("head", self.partition), replace(self.head, next_offset=base, published_at=published_at))
        tx.aftermath.rings.add(self.partition)
        note_published(tx, self.topic, self.partition)
        first = self.head.next_offset
        more = self._told(published_at)
        record(tx, self.topic, "published", partition=self.partition, offset=first, count=base - first, **more)
        if self.topic.settings.kind == "queue":
            self._note_expiries(tx)
            absorb_some(tx, self.topic, self.partition, sum(piece.bytes for piece in self.pieces))

    def _told(self, now_ms: int) -> dict[str, Any]:
        """What the event tells besides: how many were published for later, which no forecast may count twice."""
        timed = [piece.columns.numbers("due_at", 0) for piece in self.pieces if "due_at" in piece.columns.names]
        later = sum(int((due >= now_ms + MINUTE_MS).sum()) for due in timed)
        return {"facts": {"later": later}} if later else {}

    def _note_expiries(self, tx: Transaction) -> None:
        """A queue is looked at when the last of what came in has expired: nobody may ever claim it."""
        ends = [int(p.columns.numbers("expires_at", 0).max()) for p in self.pieces if "expires_at" in p.columns.names]
        if ends:
            schedule(tx, self.topic.tenant_id, self.partition, TRUNCATE, max(ends))


def _place(tx: Transaction, command: Publish, tails: Tails, ledger: Ledger) -> Receipt:
    """Gives a batch its offsets; nothing is written that would have to be undone when it is refused."""
    topic = find_topic(tx, command.tenant, command.topic)
    if topic.name[0] == "$":
        raise InvalidArgument(f"{topic.name!r} is Duly's own: read it, or claim from it.")
    refuse_if_moved(tx)
    made = command.publish_id.startswith(MADE_PUBLISH_ID_MARK)
    if not made or command.repeated:
        known = tx.receipt(topic, command.publish_id)
        if known is not None:
            return replace(msgspec.msgpack.decode(known, type=Receipt), duplicate=True)
    if command.repeated and (found := _search(tx, topic, command)) is not None:
        return found
    batch = command.batch
    if batch.bytes > topic.settings.payload_bytes_max:
        check_sizes(topic, batch.columns)
    check_kind(topic, batch)
    if topic.stored_bytes_max is not None and not command.taken:
        check_stored(tx, topic, batch.bytes, tails)
    times = batch.relative or topic.settings.ttl_ms is not None
    columns = batch.columns.at_times(tx.now_ms, topic.settings.ttl_ms) if times else batch.columns
    check_due(tx, columns)
    duplicates: Repeated = {}
    if topic.settings.kind == "queue" and "id" in columns.names:
        duplicates = duplicates_of(tx, topic, columns, tails.ids.setdefault(topic.id, {}))
        if duplicates:
            columns = columns.take([at for at in range(columns.count) if at not in duplicates])
            batch = Checked(columns, columns.bytes)
    spans: list[Span] = []
    routes: Routes = 0
    if columns.count:
        routes = route(tx, topic, batch)
        if command.taken:
            owe(tx, topic, batch)
        else:
            ledger.take(topic, batch)
        for number, part, size in split(columns, batch.bytes, routes):
            partition = topic.partitions[number]
            tail = tails.get(partition)
            if tail is None:
                tail = tails[partition] = Tail(topic, partition, head_of(tx, topic.tenant_id, partition))
            first = tail.add(command.publish_id, part, size, publisher=command.publisher)
            spans.append(Span(number, partition, first, part.count))
    receipt = _receipt(command, spans, routes)
    if duplicates:
        receipt = _with_duplicates(receipt, duplicates)
    if topic.settings.kind == "queue" and receipt.given_ids is not None:
        placed = zip(receipt.given_ids, receipt.positions, strict=True)
        tails.ids.setdefault(topic.id, {}).update({text: place for text, place in placed if text})
    if not made or duplicates:
        # What was left out cannot be read from the blocks, should this be repeated.
        _remember(tx, topic, receipt)
    return receipt


def note_stored(tx: Transaction, topic: TopicRow, size: int) -> None:
    """Counts what is added for a topic, where somebody asks for that."""
    if topic.stored_bytes_max is not None and topic.name[0] != "$":
        tx.aftermath.stored[topic.tenant_id] = tx.aftermath.stored.get(topic.tenant_id, 0) + size


def check_stored(tx: Transaction, topic: TopicRow, size: int, tails: Tails | None = None) -> None:
    """Raises QuotaExceeded if what the tenant stores would take more than it may with so many bytes more."""
    assert topic.stored_bytes_max is not None
    others = (tails or {}).values()
    coming = sum(piece.bytes for tail in others if tail.topic.tenant_id == topic.tenant_id for piece in tail.pieces)
    if tx.stored_about(topic.tenant_id) + coming + size > topic.stored_bytes_max:
        raise QuotaExceeded(
            f"The tenant's topics would take more than {topic.stored_bytes_max} bytes. Consume, purge or shorten "
            "retention, or have the quota raised.",
            retry_after_ms=_STORED_AGAIN_MS,
        )


def duplicates_of(tx: Transaction, topic: TopicRow, columns: Columns, pending: dict[str, tuple[int, int]]) -> Repeated:
    """Which messages have an id that is in use, or was until a moment ago; and where, or by which of this batch."""
    ids = columns.values("id") or []
    used = ids_in_use(tx, topic, [text for text in ids if text is not None and text not in pending])
    return repeated_ids(ids, pending, used)


def repeated_ids(
    ids: Sequence[str | None], pending: dict[str, tuple[int, int]], used: dict[str, tuple[int, int]]
) -> Repeated:
    """The same, of ids of which it is known which are in use."""
    found: Repeated = {}
    first: dict[str, int] = {}
    for at, text in enumerate(ids):
        if text is None:
            continue
        place = pending.get(text) or used.get(text)
        if place is not None:
            found[at] = place
        elif text in first:
            found[at] = first[text]
        else:
            first[text] = at
    return found


def _with_duplicates(receipt: Receipt, duplicates: Repeated) -> Receipt:
    stored = iter(replace(receipt, count=receipt.count - len(duplicates)).positions)
    places = {at: next(stored) for at in range(receipt.count) if at not in duplicates}
    found = {at: places[place] if isinstance(place, int) else place for at, place in duplicates.items()}
    return replace(receipt, duplicates=found)


def check_kind(topic: TopicRow, batch: Checked) -> None:
    """Refuses what only the other kind of topic knows."""
    if topic.settings.kind == "queue":
        if batch.partitions is not None:
            index = int((batch.partitions >= 0).nonzero()[0][0])
            raise InvalidArgument(f"Message {index}: partition belongs to logs. A queue spreads by lane.", index=index)
        if keeps_slot(topic) and (given := batch.columns.values("priority")) and any(given):
            index = next(at for at, value in enumerate(given) if value)
            raise InvalidArgument(
                f"Message {index}: the lanes of {topic.name!r} run in order, one at a time: no priorities.", index=index
            )
        return
    for name in ("due_at", "priority", "lane"):
        given = batch.columns.values(name)
        if given is not None:
            index = next(at for at, value in enumerate(given) if value is not None)
            what = name.removesuffix("_at")
            raise InvalidArgument(f"Message {index}: {what} belongs to queues; this topic is a log.", index=index)


def check_due(tx: Transaction, columns: Columns) -> None:
    if "due_at" not in columns.names:
        return
    due = columns.numbers("due_at", 0)
    index = int(due.argmax())
    if due[index] > tx.now_ms + LIMITS.due_ms_ahead_max:
        days = LIMITS.due_ms_ahead_max // 86_400_000
        raise LimitExceeded(f"Message {index}: due is more than {days} days ahead.", index=index)


def _remember(tx: Transaction, topic: TopicRow, receipt: Receipt) -> None:
    expires_at = tx.now_ms + LIMITS.publish_id_ms
    tx.receipt_insert(topic, receipt.publish_id, expires_at, msgspec.msgpack.encode(receipt))
    schedule_store(tx, FORGET, expires_at)


class Remember(msgspec.Struct, frozen=True):
    """A batch that was stored after its publisher had been told that this is unknown."""

    command: Publish
    receipt: Receipt


def remember_publish(tx: Transaction, commands: Sequence[Remember]) -> list[None]:
    """Keeps the receipts of publishers that gave up, so that a late repetition finds them whatever retention did."""
    for stored in commands:
        topic = tx.topic_find(stored.command.tenant, stored.command.topic)
        if topic is not None:
            _remember(tx, topic, stored.receipt)
    return [None] * len(commands)


def split(columns: Columns, size: int, routes: Routes) -> list[tuple[int, Columns, int]]:
    """The batch by partition number, each part with its payload bytes."""
    if isinstance(routes, int):
        return [(routes, columns, size)]
    parts = [(number, columns.take((routes == number).nonzero()[0])) for number in sorted(set(routes.tolist()))]
    return [(number, part, part.bytes) for number, part in parts]


def _receipt(command: Publish, spans: list[Span], routes: Routes) -> Receipt:
    ids = command.batch.columns.values("id")
    order: tuple[int, ...] | None = None
    if len(spans) > 1 and not isinstance(routes, int):
        at = {span.partition: index for index, span in enumerate(spans)}
        order = tuple(map(at.__getitem__, routes.tolist()))
    given = None if ids is None else tuple(ids)
    return Receipt(command.publish_id, command.batch.columns.count, tuple(spans), routes=order, given_ids=given)


def check_sizes(topic: TopicRow, columns: Columns) -> None:
    allowed = topic.settings.payload_bytes_max
    sizes = columns.sizes()
    index = int(sizes.argmax())
    if sizes[index] > allowed:
        raise LimitExceeded(
            f"Message {index}: the payload has {sizes[index]} bytes; topic {topic.name!r} takes {allowed}. "
            "Raise payload_bytes_max, or store it elsewhere and send a reference.",
            index=index,
        )


def route(tx: Transaction, topic: TopicRow, batch: Checked) -> Routes:
    """Where every message goes; those that name no partition and have no key to another one for each batch."""
    many = len(topic.partitions)
    if many == 1:
        return _routes(topic, batch, 0)
    turn: int = tx.recall(("turn", topic.id)) or 0
    tx.remember(("turn", topic.id), turn + 1)
    return _routes(topic, batch, turn % many)


def _routes(topic: TopicRow, batch: Checked, anywhere: int) -> Routes:
    """The partition number of every message; one number when all go to the same."""
    many = len(topic.partitions)
    if batch.partitions is not None and (beyond := (batch.partitions >= many).nonzero()[0]).size:
        index = int(beyond[0])
        raise InvalidArgument(
            f"Message {index}: topic {topic.name!r} has {many} partitions, numbered from 0; "
            f"got {batch.partitions[index]}.",
            index=index,
        )
    if many == 1:
        return anywhere
    # What must stay together: of a log a key, of a queue a lane.
    by = "key" if topic.settings.kind == "log" else "lane"
    keyed = by in batch.columns.names
    if not keyed and batch.partitions is None:
        return anywhere
    import numpy as np

    routes = np.full(batch.columns.count, anywhere, dtype=np.int64)
    if keyed:
        codes, keys = batch.columns.coded(by)
        by_key = np.array([slot_of(key) * many // LIMITS.partitions_max for key in keys] or [0])
        routes = np.where(codes >= 0, by_key[codes], routes)
    if batch.partitions is not None:
        routes = np.where(batch.partitions >= 0, batch.partitions, routes)
    return routes


def slot_of(key: str) -> int:
    """The slot that a key hashes to: the same for ever, whatever the number of partitions."""
    return xxhash.xxh3_64_intdigest(key.encode()) % LIMITS.partitions_max


def _search(tx: Transaction, topic: TopicRow, command: Publish) -> Receipt | None:
    """Looks for a made publish id in the blocks since it was made, and among those that are gone."""
    made_at = int(command.publish_id[1:12], 16)
    spans: list[Span] = []
    for number, partition in enumerate(topic.partitions):
        for first, count in find_gone(tx, topic.tenant_id, partition, command.publish_id):
            spans.append(Span(number, partition, first, count))
        since = offset_at(tx, topic.tenant_id, partition, made_at - _AHEAD_MS_MAX)
        for meta in list(tx.block_metas(topic.tenant_id, partition, since)):
            if meta.published_at > made_at + PUBLISH_MS_MAX:
                break
            spans += [
                Span(number, partition, *found) for found in _inside(tx, topic, partition, meta, command.publish_id)
            ]
    return _found(topic, command, _merge(spans)) if spans else None


def _inside(
    tx: Transaction, topic: TopicRow, partition: int, meta: BlockMeta, publish_id: str
) -> Iterator[tuple[int, int]]:
    """Where in a block messages of a publish lie: (first offset, how many).

    Only its head is read: after a crash many look at once, each through everything since. One whose ids do not add up
    is read whole, which says what is wrong with it.
    """
    publishes = publishes_of(partial(tx.block_head, topic.tenant_id, partition, meta.base))
    if sum(count for _, count, *_ in publishes) != meta.count:
        (block,) = tx.blocks(topic.tenant_id, partition, meta.base, meta.end)
        publishes = block.publishes
    at = meta.base
    for found, count, *_ in publishes:
        if found == publish_id:
            yield at, count
        at += count


def _found(topic: TopicRow, command: Publish, spans: list[Span]) -> Receipt:
    """The receipt as it was first given. Which partition was "anywhere" shows in how many went where."""
    counts = {span.partition: span.count for span in spans}
    routes: Routes = spans[0].partition
    for anywhere in range(len(topic.partitions)):
        routes = _routes(topic, command.batch, anywhere)
        placed = Counter([routes] * command.batch.columns.count if isinstance(routes, int) else routes.tolist())
        if placed == counts:
            break
    return replace(_receipt(command, spans, routes), duplicate=True)


def _merge(spans: list[Span]) -> list[Span]:
    """Neighbouring spans of one partition as one: a big batch was cut into several blocks."""
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last and last.partition == span.partition and last.first_offset + last.count == span.first_offset:
            merged[-1] = replace(last, count=last.count + span.count)
        else:
            merged.append(span)
    return merged
