"""move, cancel, get, browse, coming: a queue's messages by id, wherever they are, and what is ahead.

young      in the log, in no run yet          taken out by its bit
in a run   ready, or not yet due              taken out by a hole
loose      failed or moved, in its own row    the row is changed or deleted
leased     a consumer has it                  not moved; cancelled when it comes back
dead       buried                             stays
otherwise  it was there once: finished
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np
from msgspec.structs import replace

from ..errors import InvalidArgument, LimitExceeded
from ..limits import LIMITS
from ..message import QueuedMessage, made_id
from ..store.contract import LEASED, TIMED, GroupRow, LeaseRow, LooseRow, TopicRow, Transaction, WaitRow
from .columns import NAMES, NEVER, Columns
from .done import note_done
from .entries import lane_hash
from .find import find_group, find_queue, head_of
from .fold import finish
from .ids import find_places
from .index import MINUTE_MS, Index
from .lease import is_live, read_history
from .limited import free, is_limited
from .lookup import every, messages_at
from .publisher import own_alone
from .queue_claim import take_over
from .queue_lease import keys_of
from .record import record_some
from .views import Fresh, Stored, walk

EVERYTHING = 2**40


class Move(msgspec.Struct, frozen=True):
    """Another due time or priority for messages. `due` negative: -1 - d milliseconds from now."""

    tenant: str
    topic: str
    ids: tuple[str, ...]
    due: int | None = None
    priority: int | None = None
    # Only of messages that this principal published.
    own: str | None = None


class Cancel(msgspec.Struct, frozen=True):
    """Remove messages."""

    tenant: str
    topic: str
    ids: tuple[str, ...]
    # Only of messages that this principal published.
    own: str | None = None


class Get(msgspec.Struct, frozen=True):
    """One message."""

    tenant: str
    topic: str
    id: str


class Browse(msgspec.Struct, frozen=True):
    """A page of messages after a place (partition, offset); each filter None takes all."""

    tenant: str
    topic: str
    after: tuple[int, int]
    limit: int
    state: str | None = None
    lane: str | None = None
    priorities: tuple[int, int] | None = None
    due_from: int | None = None
    due_before: int | None = None
    key: str | None = None


class Coming(msgspec.Struct, frozen=True):
    """How much falls due in each of the next minutes."""

    tenant: str
    topic: str
    minutes: int


class Standing(msgspec.Struct, frozen=True):
    """Where a message stands, and what is known of it there."""

    state: str
    priority: int = 0
    due_at: int = 0
    # In which run, or fresh, or in its lane; None: in none of these. In a run: at which position.
    view: Any = None
    pos: int = 0
    lane: int = 0
    loose: LooseRow | None = None
    lease: LeaseRow | None = None
    attempts: int = 0
    history: bytes | None = None


def locate(index: Index, group: GroupRow, offsets: Sequence[int]) -> dict[int, Standing]:
    """Where the messages at these offsets stand."""
    tx, tenant_id, partition = index.tx, index.topic.tenant_id, index.partition
    wanted = np.array(sorted(set(offsets)), np.int64)
    index.absorb(EVERYTHING)
    loose = {row.offset: row for row in tx.loose(tenant_id, partition, wanted.tolist())}
    found: dict[int, Standing] = {}
    for offset, row in loose.items():
        if row.waits:
            state = "ready" if row.due_at <= tx.now_ms else "retrying" if row.attempts else "waiting"
            found[offset] = Standing(
                state, row.priority, row.due_at, None, 0, row.lane, row, None, row.attempts, row.history
            )
    if is_limited(index.topic):
        for offset in wanted.tolist():
            waits = tx.lane_waits(tenant_id, partition, offset - 1, 1)
            if waits and waits[0].offset == offset:
                own = loose.get(offset)
                attempts, history = (0, None) if own is None else (own.attempts, own.history)
                found[offset] = Standing(
                    "ready",
                    waits[0].priority,
                    waits[0].due_at,
                    waits[0],
                    0,
                    waits[0].lane,
                    own,
                    None,
                    attempts,
                    history,
                )
    left = wanted[~np.isin(wanted, list(found))]
    for kind, view in index.all_views():
        if not len(left):
            break
        for offset, priority, due, pos, lane in _search(index, view, left):
            own = loose.get(offset)
            state = "waiting" if due > tx.now_ms else "ready"
            attempts, history = (0, None) if own is None else (own.attempts, own.history)
            found[offset] = Standing(state, priority, due, (kind, view), pos, lane, own, None, attempts, history)
        left = left[~np.isin(left, list(found))]
    if len(left):
        _locate_leased(index, group, left, loose, found)
    for offset in left.tolist():
        dead = [] if offset in found else tx.dead(tenant_id, partition, group.id, offset - 1, 1)
        if dead and dead[0].offset == offset:
            found[offset] = Standing("dead", attempts=dead[0].attempts, history=dead[0].history)
    for offset in left.tolist():
        found.setdefault(offset, Standing("finished"))
    return found


def _locate_leased(
    index: Index, group: GroupRow, left: Any, loose: dict[int, LooseRow], found: dict[int, Standing]
) -> None:
    wanted = set(left.tolist())
    for row in index.tx.leases(index.topic.tenant_id, index.partition, group.id):
        if row.state != LEASED or row.offsets is None or wanted.isdisjoint(row.offsets):
            continue
        keys = keys_of(row)
        for at, offset in enumerate(row.offsets):
            if offset in wanted and is_live(row, at):
                own = loose.get(offset)
                over = row.due_at <= index.tx.now_ms
                found[offset] = Standing(
                    "ready" if over else "leased",
                    keys.priority(at),
                    row.claimed_at,
                    None,
                    0,
                    keys.lane(at),
                    own,
                    None if over else row,
                    keys.attempt(at),
                    None if own is None else own.history,
                )


def _search(index: Index, view: Any, wanted: Any) -> Iterator[tuple[int, int, int, int, int]]:
    """(offset, priority, due, position, lane) of those wanted that a view still holds."""
    holes: frozenset[int] = frozenset()
    if isinstance(view, Stored):
        if view.run.high < wanted[0] or view.run.low > wanted[-1]:
            return
        holes = index.holes.get(view.run.id, frozenset())
    for start, part in walk(view):
        for at in np.flatnonzero(np.isin(part.seq, wanted)).tolist():
            seq = int(part.seq[at])
            if seq not in holes:
                yield seq, int(part.priority[at]), int(part.due[at]), start + at, int(part.lane[at])


def _by_partition(
    tx: Transaction, topic: TopicRow, ids: Sequence[str]
) -> tuple[dict[str, tuple[int, int]], dict[int, list[int]]]:
    """Where ids lead, and the offsets asked for in each partition; without those that the log never had."""
    places: dict[str, tuple[int, int]] = {}
    offsets: dict[int, list[int]] = {}
    for text, found in find_places(tx, topic, ids).items():
        there = [p for p in found if p[1] < head_of(tx, topic.tenant_id, topic.partitions[p[0]]).next_offset]
        if there:
            places[text] = there[0] if len(there) == 1 else _unsettled(tx, topic, there)
            offsets.setdefault(places[text][0], []).append(places[text][1])
    return places, offsets


def _unsettled(tx: Transaction, topic: TopicRow, places: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Of several messages that had an id one after another: the one that is not settled, or any."""
    group = find_group(tx, topic, "")
    for number, offset in places:
        index = Index(tx, topic, topic.partitions[number], reading=True)
        if locate(index, group, [offset])[offset].state != "finished":
            return number, offset
    return places[0]


def ids_in_use(tx: Transaction, topic: TopicRow, ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The ids whose message is not settled, or was a moment ago by the topic's dedupe window; and its place."""
    places, offsets = _by_partition(tx, topic, ids)
    if not places:
        return {}
    group = find_group(tx, topic, "")
    unused: set[tuple[int, int]] = set()
    for number, wanted in offsets.items():
        partition = topic.partitions[number]
        for offset, standing in locate(Index(tx, topic, partition, reading=True), group, wanted).items():
            if standing.state not in ("finished", "leased", "dead"):
                # It may have expired, and nobody has come by to drop it.
                if _expires_at(tx, topic, partition, offset) + topic.settings.dedupe_ms <= tx.now_ms:
                    unused.add((number, offset))
            elif standing.state == "finished":
                until = tx.done_until(topic.tenant_id, partition, offset)
                if until is None or until <= tx.now_ms:
                    unused.add((number, offset))
    return {text: place for text, place in places.items() if place not in unused}


def _expires_at(tx: Transaction, topic: TopicRow, partition: int, offset: int) -> int:
    columns = messages_at(tx, topic.tenant_id, partition, [offset])
    return int(columns.numbers("expires_at", NEVER)[0])


def move(tx: Transaction, command: Move) -> dict[str, str]:
    """Answers each id: moved, leased, not_found or finished."""
    topic = find_queue(tx, command.tenant, command.topic)
    lanes = topic.settings.lanes
    if lanes is not None and lanes.max_in_flight == 1:
        raise InvalidArgument(
            f"The lanes of {topic.name!r} run one message at a time, in order: none can be moved. Cancel it instead."
        )
    return _change(tx, topic, command.ids, _Mover(tx, topic, command), command.own)


def cancel(tx: Transaction, command: Cancel) -> dict[str, str]:
    """Answers each id: cancelled, leased (gone unless it is acked), not_found or finished."""
    topic = find_queue(tx, command.tenant, command.topic)
    return _change(tx, topic, command.ids, _Canceller(tx, topic), command.own)


def _change(tx: Transaction, topic: TopicRow, ids: Sequence[str], changer: Any, own: str | None) -> dict[str, str]:
    group = find_group(tx, topic, "")
    places, offsets = _by_partition(tx, topic, ids)
    if own is not None:
        # What others published is not there.
        ours = own_alone(tx, topic, places.values(), own)
        places = {text: place for text, place in places.items() if place in ours}
        offsets = {number: [at for at in some if (number, at) in ours] for number, some in offsets.items()}
        offsets = {number: some for number, some in offsets.items() if some}
    answers: dict[tuple[int, int], str] = {}
    for number, wanted in offsets.items():
        take_over(tx, topic, group, topic.partitions[number], "")
        index = Index(tx, topic, topic.partitions[number])
        for offset, standing in locate(index, group, wanted).items():
            answers[number, offset] = changer.change(index, offset, standing)
        changed = [offset for offset in wanted if answers[number, offset] == changer.done]
        record_some(tx, topic, changer.done, topic.partitions[number], changed, facts=changer.facts)
        # It was only looked through: what is due has not been promoted, so nothing may get its turn yet.
        finish(index, "none")
        tx.aftermath.rings.add(topic.partitions[number])
    return {text: answers[places[text]] if text in places else "not_found" for text in ids}


class _Canceller:
    """Takes messages out."""

    done = "cancelled"
    facts: ClassVar[dict[str, object]] = {}

    def __init__(self, tx: Transaction, topic: TopicRow) -> None:
        self.tx = tx
        self.topic = topic

    def change(self, index: Index, offset: int, standing: Standing) -> str:
        """Takes one out, wherever it stands."""
        tenant_id, partition = self.topic.tenant_id, index.partition
        if standing.state in ("finished", "dead"):
            return "finished"
        if standing.lease is not None:
            self._mark(index, offset, standing)
            return "leased"
        _take_out(index, offset, standing)
        if standing.loose is not None:
            self.tx.loose_delete(tenant_id, partition, [offset])
        note_done(self.tx, self.topic, partition, [offset])
        return "cancelled"

    def _mark(self, index: Index, offset: int, standing: Standing) -> None:
        assert standing.lease is not None
        at = (standing.lease.offsets or ()).index(offset)
        keys = keys_of(standing.lease)
        row = standing.loose or LooseRow(
            index.partition, offset, 0, False, keys.priority(at), keys.lane(at), keys.attempt(at)
        )
        self.tx.loose_put(self.topic.tenant_id, replace(row, waits=False, cancelled=True))
        self.tx.lease_mark(standing.lease.id)


class _Mover:
    """Gives messages another due time or priority."""

    done = "moved"

    def __init__(self, tx: Transaction, topic: TopicRow, command: Move) -> None:
        self.tx = tx
        self.topic = topic
        self.priority = command.priority
        self.due = command.due
        if command.due is not None and command.due < 0:
            self.due = tx.now_ms - 1 - command.due
        if self.due is not None and self.due > tx.now_ms + LIMITS.due_ms_ahead_max:
            raise LimitExceeded(f"due is more than {LIMITS.due_ms_ahead_max // 86_400_000} days ahead.")
        asked = {"due_at": self.due, "priority": self.priority}
        self.facts: dict[str, object] = {name: value for name, value in asked.items() if value is not None}

    def change(self, index: Index, offset: int, standing: Standing) -> str:
        """Moves one, unless it is under a lease or gone."""
        if standing.state in ("finished", "dead"):
            return "finished"
        if standing.lease is not None:
            return "leased"
        _take_out(index, offset, standing)
        row = standing.loose or LooseRow(index.partition, offset, 0, True, 0, standing.lane)
        self.tx.loose_put(
            self.topic.tenant_id,
            replace(
                row,
                waits=True,
                slot=False,
                due_at=standing.due_at if self.due is None else self.due,
                priority=standing.priority if self.priority is None else self.priority,
            ),
        )
        return "moved"


def _take_out(index: Index, offset: int, standing: Standing) -> None:
    """Takes a message out of its run, of the young end, or of its lane."""
    if isinstance(standing.view, WaitRow):
        index.tx.lane_wait_delete(index.topic.tenant_id, standing.view)
        return
    holds_slot = standing.loose is not None and standing.loose.slot
    if standing.view is not None:
        _, view = standing.view
        holds_slot = view.kind != TIMED
        if isinstance(view, Stored):
            index.add_hole(view.run.id, offset, standing.due_at, standing.pos)
        else:
            view.drop(view.entries.seq[view.pos :] == offset)
    if holds_slot:
        free(index.tx, index.topic, index.partition, [standing.lane])


def get(tx: Transaction, command: Get) -> QueuedMessage | None:
    """A message with its state and history; None when there is none under that id."""
    topic = find_queue(tx, command.tenant, command.topic)
    group = find_group(tx, topic, "")
    places, _ = _by_partition(tx, topic, [command.id])
    if command.id not in places:
        return None
    number, offset = places[command.id]
    index = Index(tx, topic, topic.partitions[number], reading=True)
    standing = locate(index, group, [offset])[offset]
    if standing.state == "finished":
        return QueuedMessage(command.id, "finished", number, offset)
    columns = messages_at(tx, topic.tenant_id, index.partition, [offset])
    found = _queued(topic, number, _listed(columns), 0, standing)
    if _is_gone(found, tx.now_ms):
        return QueuedMessage(command.id, "finished", number, offset)
    return found


def _listed(columns: Columns) -> dict[str, list[Any] | None]:
    """Messages as lists: a column is read once, for all of them."""
    return {name: columns.values(name) for name in NAMES}


def _queued(
    topic: TopicRow, number: int, listed: dict[str, list[Any] | None], at: int, standing: Standing
) -> QueuedMessage:
    def value(name: str) -> Any:
        found = listed[name]
        return None if found is None else found[at]

    offset = value("offset")
    due_at = standing.due_at
    if standing.state in ("leased", "dead"):
        moved = standing.loose is not None and not standing.loose.cancelled and standing.loose.due_at
        due_at = moved or value("due_at") or value("published_at")
    return QueuedMessage(
        id=value("id") or made_id(topic.partitions[number], offset),
        state=standing.state,
        partition=number,
        offset=offset,
        payload=value("payload"),
        key=value("key"),
        headers=value("headers") or {},
        lane=value("lane"),
        priority=(value("priority") or 0) if standing.state == "dead" else standing.priority,
        due_at_ms=due_at,
        expires_at_ms=value("expires_at"),
        published_at_ms=value("published_at"),
        attempts=standing.attempts,
        consumer=standing.lease.consumer if standing.lease else None,
        lease_expires_at_ms=standing.lease.due_at if standing.lease else None,
        cancelled=bool(standing.loose and standing.loose.cancelled),
        history=read_history(standing.history),
    )


def browse(tx: Transaction, command: Browse) -> list[QueuedMessage]:
    """A page of unsettled messages that fit, by partition and offset; nothing is claimed."""
    topic = find_queue(tx, command.tenant, command.topic)
    group = find_group(tx, topic, "")
    page: list[QueuedMessage] = []
    for number in range(command.after[0], len(topic.partitions)):
        after = command.after[1] if number == command.after[0] else -1
        index = Index(tx, topic, topic.partitions[number], reading=True)
        while len(page) < command.limit:
            offsets = _next_offsets(index, group, command, after)
            if not offsets:
                break
            page.extend(_fitting(index, group, command, number, offsets, command.limit - len(page)))
            after = offsets[-1]
    return page


def _next_offsets(index: Index, group: GroupRow, command: Browse, after: int) -> list[int]:
    """The next candidates after an offset, ascending: what the entries alone say is looked at here."""
    index.absorb(EVERYTHING)
    most = max(100, 2 * command.limit)
    parts: list[Any] = []
    if command.state in (None, "ready", "waiting", "retrying"):
        for _, view in index.all_views():
            parts.extend(_offsets_of(view, command, after, most))
    tx, tenant_id = index.tx, index.topic.tenant_id
    others: list[int] = []
    if command.state in (None, "retrying", "waiting", "ready"):
        others.extend(row.offset for row in tx.loose_all(tenant_id, index.partition, after, most) if row.waits)
        others.extend(row.offset for row in tx.lane_waits(tenant_id, index.partition, after, most))
    if command.state in (None, "leased"):
        for row in tx.leases(tenant_id, index.partition, group.id):
            others.extend(o for at, o in enumerate(row.offsets or ()) if o > after and is_live(row, at))
    if command.state in (None, "dead"):
        others.extend(row.offset for row in tx.dead(tenant_id, index.partition, group.id, after, most))
    found = np.unique(np.concatenate([*parts, np.array(others, np.int64)]))
    smallest: list[int] = found[:most].tolist()
    return smallest


def _offsets_of(view: Any, command: Browse, after: int, most: int) -> Iterator[Any]:
    if isinstance(view, Stored) and view.run.high <= after:
        return
    lane = None if command.lane is None else np.uint64(lane_hash(command.lane))
    for _, part in walk(view):
        fits = part.seq > after
        if lane is not None:
            fits &= part.lane == lane
        if command.priorities is not None:
            fits &= (part.priority >= command.priorities[0]) & (part.priority <= command.priorities[1])
        if command.due_from is not None:
            fits &= part.due >= command.due_from
        if command.due_before is not None:
            fits &= part.due < command.due_before
        seqs = part.seq[fits]
        yield np.partition(seqs, most)[:most] if len(seqs) > most else seqs


def _fitting(
    index: Index, group: GroupRow, command: Browse, number: int, offsets: list[int], most: int
) -> list[QueuedMessage]:
    standings = locate(index, group, offsets)
    known = [offset for offset in offsets if standings[offset].state != "finished"]
    if not known:
        return []
    listed = _listed(messages_at(index.tx, index.topic.tenant_id, index.partition, known))
    found = [_queued(index.topic, number, listed, at, standings[offset]) for at, offset in enumerate(known)]
    now = index.tx.now_ms
    return [message for message in found if _fits(command, message) and not _is_gone(message, now)][:most]


def _is_gone(message: QueuedMessage, now_ms: int) -> bool:
    """Whether it has expired, and only has not been dropped yet."""
    waits = message.state not in ("leased", "dead")
    return waits and message.expires_at_ms is not None and message.expires_at_ms <= now_ms


def _fits(command: Browse, message: QueuedMessage) -> bool:
    due = message.due_at_ms or 0
    low, high = command.priorities or (0, 2**16)
    return (
        command.state in (None, message.state)
        and command.lane in (None, message.lane)
        and command.key in (None, message.key)
        and low <= message.priority <= high
        and (command.due_from is None or due >= command.due_from)
        and (command.due_before is None or due < command.due_before)
    )


def coming(tx: Transaction, command: Coming) -> list[tuple[int, int]]:
    """(minute, messages) for this minute, as far as it is to come, and those after it."""
    counts = count_coming(tx, find_queue(tx, command.tenant, command.topic))
    now = tx.now_ms // MINUTE_MS
    return [(minute * MINUTE_MS, counts[minute]) for minute in range(now, now + command.minutes)]


def count_coming(tx: Transaction, topic: TopicRow) -> Counter[int]:
    """How many messages of a queue fall due, by the minute; nothing is counted of what is due already."""
    now = tx.now_ms // MINUTE_MS
    counts: Counter[int] = Counter()
    for partition in topic.partitions:
        index = Index(tx, topic, partition, reading=True)
        index.absorb(EVERYTHING)
        for view in index.views(TIMED):
            if isinstance(view, Stored):
                ahead = dict(msgspec.msgpack.decode(view.run.coming or b"\x90"))
                counts.update({minute: count for minute, count in ahead.items() if minute >= now})
                # Of this minute some may have come due already.
                counts[now] -= _due_in(view, now, tx.now_ms)
            else:
                due = view.peek(view.left).due
                counts.update((due[due > tx.now_ms] // MINUTE_MS).tolist())
        timed = {run.id for run in index.runs.values() if run.kind == TIMED}
        for hole in tx.holes(topic.tenant_id, partition):
            if hole.run in timed and hole.due_at > tx.now_ms:
                counts[hole.due_at // MINUTE_MS] -= 1
        loose = every(partial(tx.loose_all, topic.tenant_id, partition, limit=1000))
        counts.update(row.due_at // MINUTE_MS for row in loose if row.waits and row.due_at > tx.now_ms)
    return counts


def count_standing(tx: Transaction, topic: TopicRow, partition: int) -> tuple[int, int]:
    """How many messages of a queue were never claimed, and how many failed and wait for another attempt."""
    index = Index(tx, topic, partition, reading=True)
    index.absorb(EVERYTHING)
    standing = index.live + sum(view.left for _, view in index.all_views() if isinstance(view, Fresh))
    standing += tx.lane_wait_count(topic.tenant_id, partition)
    failed = 0
    for row in every(partial(tx.loose_all, topic.tenant_id, partition, limit=1000)):
        failed += bool(row.attempts and row.waits)
        standing += bool(not row.attempts and row.waits)
    return standing, failed


def _due_in(view: Stored, minute: int, now_ms: int) -> int:
    """How many entries of a timed run have fallen due in this minute up to now, consumed or not."""
    start = Stored(view.index, view.run, 0)
    low = first_from(start, minute * MINUTE_MS)
    return first_from(start, now_ms + 1) - low


def first_from(view: Stored, moment: int) -> int:
    """The position of the first entry that is due at a moment or later: a binary search over blocks."""
    low, high = 0, view.run.count
    while low < high:
        middle = (low + high) // 2
        if int(Stored(view.index, view.run, middle).peek(1).due[0]) < moment:
            low = middle + 1
        else:
            high = middle
    return low
