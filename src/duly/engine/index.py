"""A queue partition's index: sorted runs over the log, and how messages pass through it.

    log ──absorb──▶ due? ──▶ ready runs (priority, tag, due, seq) ──front──▶ claimed
                     │  not yet                    ▲
                     └────▶ timed runs (due, seq) ─┘ promoted when due, in bounded steps
    failed, moved ──▶ loose rows (due) ────────────┘

A run is immutable and consumed from the front only: what is left of it is one position, and the holes of
messages that were cancelled or moved. Everything that is in no run yet is *fresh*: a claim serves from it
directly. What was just published (the *young* end of the log) may stay so for a while: which of it has been
served is a few bits in the queue's row, and what is left is written as runs once a few thousand have come. So a
queue whose consumers keep up writes no runs at all.

A run carries its messages beside its entries, in the order in which they will be served: looked up in the log
each would lie in another block. Only big payloads stay in the log alone.

All of this happens under the partition's lock (on SQLite: inside the one write transaction). What an `Index`
knows is remembered between transactions and dropped when another process has written (memory.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace

from ..errors import CorruptBlock
from ..store.contract import LANED, READY, TIMED, HoleRow, QueueRow, RunRow, TopicRow, Transaction
from .agenda import TRUNCATE, schedule
from .block import Block, Place, encode
from .columns import Columns, gather
from .entries import Entries, concat, lane_hash, make_entries, order_ready, order_waiting, place_of
from .fairness import Clocks, Tails, give_tags, tails_of, weigh
from .find import head_of
from .limited import admit, enter, is_limited
from .lookup import messages_at, without_big

# So many messages are absorbed at once, and left unabsorbed by publishers at most.
ABSORB_MAX = 16_384
ABSORB_FROM = 4_096
# So many that have come due are promoted by one claim.
PROMOTE_MAX = 8_192
# Entries a block of a run.
RUN_BLOCK = 1_000
MINUTE_MS = 60_000
_NEVER = 2**62


class View(Protocol):
    """Sorted entries that can be looked at from the front, and consumed."""

    @property
    def left(self) -> int:
        """Entries not consumed."""
        ...

    def peek(self, count: int) -> Entries:
        """The next entries."""
        ...

    def messages(self, count: int) -> Columns:
        """The messages of the next entries."""
        ...

    def consume(self, count: int) -> None:
        """Passes over the next entries."""
        ...


class Fresh:
    """Entries that are in no run yet. `young`: they are of the end of the log, and may stay so."""

    def __init__(
        self,
        kind: int,
        entries: Entries,
        fetch: Callable[[Entries], Columns],
        columns: Columns | None = None,
        *,
        young: bool = False,
    ) -> None:
        self.kind = kind
        self.entries = entries
        self.young = young
        self._fetch = fetch
        # Given when the messages are at hand already, in the order of the entries.
        self.columns = columns
        self.pos = 0

    @property
    def left(self) -> int:
        return len(self.entries) - self.pos

    def peek(self, count: int) -> Entries:
        return self.entries.take(slice(self.pos, self.pos + count))

    def messages(self, count: int) -> Columns:
        if self.columns is not None:
            return self.columns.slice(self.pos, min(self.pos + count, len(self.entries)))
        return self._fetch(self.peek(count))

    def consume(self, count: int) -> None:
        self.pos += count

    def drop(self, which: np.ndarray[Any, Any]) -> None:
        """Takes messages out, as if they had been served; `which` is a mask over what is left."""
        at = np.arange(self.pos, len(self.entries))
        order = np.concatenate((np.arange(self.pos), at[which], at[~which]))
        self.entries = self.entries.take(order)
        if self.columns is not None:
            self.columns = self.columns.take(order)
        self.pos += int(which.sum())


class Stored:
    """A run, from a position on."""

    def __init__(self, index: Index, run: RunRow, pos: int | None = None) -> None:
        self.index = index
        self.run = run
        self.pos = run.pos if pos is None else pos

    @property
    def kind(self) -> int:
        """What kind of run it is."""
        return self.run.kind

    @property
    def left(self) -> int:
        return self.run.count - self.pos

    def peek(self, count: int) -> Entries:
        return concat([part for _, part in self._parts(count)])

    def messages(self, count: int) -> Columns:
        found = []
        for number, low, high in self._blocks(count):
            try:
                columns = self.index.block(self.run.id, number).columns.slice(low, high)
            except CorruptBlock:
                # The log has them too.
                columns = self.index.fetch(self.index.entries(self.run.id, number).take(slice(low, high)))
            found.append(columns)
        return gather(found)

    def consume(self, count: int) -> None:
        self.pos += count

    def _parts(self, count: int) -> list[tuple[int, Entries]]:
        return [
            (number, self.index.entries(self.run.id, number).take(slice(low, high)))
            for number, low, high in self._blocks(count)
        ]

    def _blocks(self, count: int) -> list[tuple[int, int, int]]:
        """(block, from, to) of the next entries."""
        end = min(self.run.count, self.pos + count)
        found, at = [], self.pos
        while at < end:
            number = at // RUN_BLOCK
            first = number * RUN_BLOCK
            stop = min(end, first + RUN_BLOCK)
            found.append((number, at - first, stop - first))
            at = stop
        return found


class Proposal(msgspec.Struct):
    """The next entries of several views in one order; nothing is consumed yet."""

    views: list[Any]
    entries: Entries
    # By entry: its view, and its place behind that view's front.
    origin: np.ndarray[Any, Any]
    place: np.ndarray[Any, Any]

    def messages(self, count: int) -> Columns:
        """The messages of the first entries, in order."""
        origin, place = self.origin[:count], self.place[:count]
        counts = np.bincount(origin, minlength=len(self.views))
        starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
        parts = [view.messages(int(n)) for view, n in zip(self.views, counts, strict=True) if n]
        at = starts[origin] + place
        in_order = len(parts) == 1 and bool((at == np.arange(count)).all())
        return gather(parts, None if in_order else at)

    def consume(self, count: int) -> None:
        """Passes over the first entries."""
        for view, n in zip(self.views, np.bincount(self.origin[:count], minlength=len(self.views)), strict=True):
            if n:
                view.consume(int(n))


def front(views: Sequence[View], want: int, order: Callable[[Entries], Any] = order_ready) -> Proposal:
    """The next `want` entries of all views together, or all when there are fewer."""
    views = [view for view in views if view.left]
    if not views:
        return Proposal([], concat([]), np.zeros(0, np.int64), np.zeros(0, np.int64))
    widths = [min(view.left, max(32, 2 * want // len(views))) for view in views]
    while True:
        windows = [view.peek(width) for view, width in zip(views, widths, strict=True)]
        sizes = [len(window) for window in windows]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        together = concat(windows)
        sequence = order(together)
        # Past the last entry of a window that has more behind it nothing is known.
        place_of_entry = np.empty(len(sequence), np.int64)
        place_of_entry[sequence] = np.arange(len(sequence))
        cut = [(int(place_of_entry[starts[n + 1] - 1]), n) for n, view in enumerate(views) if view.left > sizes[n]]
        safe = min(cut)[0] + 1 if cut else len(sequence)
        if safe >= want or not cut:
            break
        for at, n in cut:
            if at < want:
                widths[n] = min(views[n].left, widths[n] * 4)
    chosen = sequence[: min(want, safe)]
    origin = np.searchsorted(starts, chosen, side="right") - 1
    return Proposal(list(views), together.take(chosen), origin, chosen - starts[origin])


class Index:
    """One partition's index inside a transaction."""

    def __init__(self, tx: Transaction, topic: TopicRow, partition: int, *, reading: bool = False) -> None:
        self._limited = is_limited(topic) and not reading
        self.tx = tx
        self.topic = topic
        self.partition = partition
        known = tx.recall(("queue", partition))
        if known is None:
            known = (
                tx.queue(topic.tenant_id, partition),
                {run.id: run for run in tx.runs(topic.tenant_id, partition)},
                _by_run(tx.holes(topic.tenant_id, partition)),
                None,
                (),
            )
        self.row: QueueRow = known[0]
        self._row_stored = self.row
        self.runs: dict[int, RunRow] = dict(known[1])
        self.holes: dict[int, frozenset[int]] = dict(known[2])
        # How far the young end has been looked at; None: not yet.
        self._seen_to: int | None = known[3]
        self._behind = False
        # What kept the log from being absorbed.
        self.damage: CorruptBlock | None = None
        self._fresh: list[Fresh] = [Fresh(kind, entries, self.fetch, young=True) for kind, entries in known[4]]
        # Of named lanes, just come in: they get their tags together, so that each lane's are in order of due time.
        self._untagged: list[tuple[Entries, Any, Columns | None, bool]] = []
        self._stored: dict[int, Stored] = {}

    # Reading

    def entries(self, run: int, number: int) -> Entries:
        """A block of a run's entries."""
        found: Entries = self.tx.run_entries(self.topic.tenant_id, self.partition, run, number)
        return found

    def block(self, run: int, number: int) -> Block:
        """A block of a run's messages."""
        found: Block = self.tx.run_block(self.topic.tenant_id, self.partition, run, number)
        return found

    def fetch(self, entries: Entries) -> Columns:
        """The messages of entries, from the log."""
        return messages_at(self.tx, self.topic.tenant_id, self.partition, entries.seq)

    def stored(self, kind: int) -> list[Stored]:
        """The runs of a kind that can be served from."""
        for run in self.runs.values():
            if run.id not in self._stored and run.sources is None:
                self._stored[run.id] = Stored(self, run)
        return [view for view in self._stored.values() if view.run.kind == kind]

    def views(self, kind: int) -> list[View]:
        """Everything of a kind that can be served: its runs, and what is fresh."""
        if kind == LANED and self._untagged:
            self._tag()
        return [*self.stored(kind), *(fresh for fresh in self._fresh if fresh.kind == kind)]

    @property
    def young(self) -> list[Fresh]:
        """What is left of the end of the log that is in no run yet."""
        if self._untagged:
            self._tag()
        return [fresh for fresh in self._fresh if fresh.young and fresh.left]

    @property
    def live(self) -> int:
        """How many messages stand in runs; without those in loose rows or under leases."""
        standing = sum(run.left for run in self.runs.values() if run.sources is None)
        return standing - sum(map(len, self.holes.values()))

    def next_due(self) -> int | None:
        """When the next message of the timed runs and loose rows falls due."""
        moments = [int(view.peek(1).due[0]) for view in self.views(TIMED) if view.left]
        others = [self.tx.loose_next_due(self.topic.tenant_id, self.partition)]
        if self._limited:
            others.append(self.tx.lane_next_look(self.topic.tenant_id, self.partition))
        return min([*moments, *(moment for moment in others if moment is not None)], default=None)

    # Absorbing and promoting

    def absorb(self, most: int = ABSORB_MAX) -> int:
        """Takes in what was published, as fresh entries. Returns how many were taken.

        Not while messages of named lanes that fell due before are still to be promoted: they go first.
        """
        if self._behind:
            return 0
        head = head_of(self.tx, self.topic.tenant_id, self.partition)
        known = self._seen_to is not None
        start = max(self.row.absorbed_to if self._seen_to is None else self._seen_to, head.first_offset)
        stop = min(head.next_offset, start + most)
        self._seen_to = max(start, stop)
        if stop <= start:
            return 0
        blocks: list[Block] = []
        try:
            blocks.extend(self.tx.blocks(self.topic.tenant_id, self.partition, start, stop))
        except CorruptBlock as error:
            # What lies before it is served. It is not passed over: nobody would know what it held.
            self.damage = error
        self._seen_to = stop = blocks[-1].end if blocks else start
        if not blocks:
            return 0
        entries, weights = _entries_of(blocks, self.topic)
        wanted = entries.seq >= start
        if not known and self.row.taken:
            wanted &= ~self._taken(entries.seq)
        if not wanted.all():
            at = np.flatnonzero(wanted)
            entries, weights = entries.take(at), weights[at]
        self._take_in(entries, weights, None, young=True)
        return stop - start

    def _taken(self, seqs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Which of the messages at the young end have been served."""
        bits = np.unpackbits(np.frombuffer(self.row.taken, np.uint8), bitorder="little")
        at = seqs - self.row.absorbed_to
        inside = (at >= 0) & (at < len(bits))
        found = np.zeros(len(seqs), bool)
        found[inside] = bits[at[inside]] == 1
        return found

    def promote(self, most: int = PROMOTE_MAX) -> int:
        """Makes ready what has come due, up to a bound. Returns how many there were."""
        now = self.tx.now_ms
        views = [view for view in self.views(TIMED) if view.left and view.peek(1).due[0] <= now]
        proposal = front(views, most, order_waiting)
        due = int(np.searchsorted(proposal.entries.due, now, side="right"))
        loose = self._promote_loose(most)
        # More is due than was promoted: in a named lane what is younger must not come first (see `absorb`).
        self._behind = (due == most or loose == most) and (self._limited or self._has_lanes(proposal.entries))
        if due:
            columns = proposal.messages(due)
            entries = proposal.entries.take(slice(0, due))
            gone = np.isin(entries.seq, self._holes_of(views)) if self.holes else None
            proposal.consume(due)
            if gone is not None and gone.any():
                kept = np.flatnonzero(~gone)
                entries, columns = entries.take(kept), columns.take(kept)
            self._take_in(entries, weigh(self.topic, columns), columns, young=False)
        return due + loose

    def _has_lanes(self, entries: Entries) -> bool:
        return bool(entries.lane.any()) or bool(self._untagged)

    def _promote_loose(self, most: int) -> int:
        rows = self.tx.loose_due(self.topic.tenant_id, self.partition, self.tx.now_ms, most)
        if not rows:
            return 0
        for row in rows:
            self.tx.loose_put(self.topic.tenant_id, replace(row, waits=False))
        for admitted in (False, True):
            some = [row for row in rows if (row.slot and self._limited) == admitted]
            if some:
                entries = make_entries(
                    [row.offset for row in some],
                    [row.due_at for row in some],
                    [row.priority for row in some],
                    [row.lane for row in some],
                    loose=True,
                )
                self._take_in(entries, self._weights(entries), None, young=False, admitted=admitted)
        return len(rows)

    def admit(self, most: int = PROMOTE_MAX) -> int:
        """Makes ready the heads of limited lanes that have room for them. Returns how many there were."""
        entries = admit(self.tx, self.topic, self.partition, most) if self._limited else None
        if entries is None:
            return 0
        self._take_in(entries, self._weights(entries), None, young=False, admitted=True)
        return len(entries)

    def _weights(self, entries: Entries) -> Any:
        """The weights of entries whose messages are not at hand."""
        lanes = self.topic.settings.lanes
        if lanes is None or not lanes.weights or not entries.lane.any():
            return np.ones(len(entries))
        return weigh(self.topic, self.fetch(entries))

    def _enter_lanes(self, entries: Entries, *, young: bool) -> Entries:
        """What is due waits in its lane, where lanes have limits; what is left is not due yet."""
        due = entries.due <= self.tx.now_ms
        inside = entries.take(due)
        enter(self.tx, self.topic, self.partition, inside)
        if young and len(inside):
            served = Fresh(READY, inside, self.fetch, young=True)
            served.consume(len(inside))
            self._fresh.append(served)
        return entries.take(~due)

    def _take_in(
        self, entries: Entries, weights: Any, columns: Columns | None, *, young: bool, admitted: bool = False
    ) -> None:
        """Sorts entries into what is ready, in the default lane and in named ones, and what is not yet due."""
        if self._limited and not admitted:
            entries = self._enter_lanes(entries, young=young)
            columns = None
        late = entries.due > self.tx.now_ms
        named = entries.lane != 0
        for kind, which in ((READY, ~late & ~named), (LANED, ~late & named), (TIMED, late)):
            at = np.flatnonzero(which)
            if not len(at):
                continue
            part = entries.take(at)
            own = None if columns is None else columns.take(at)
            if kind == LANED:
                self._untagged.append((part, weights[at], own, young))
            else:
                self._add_fresh(kind, part, own, young=young)

    def _add_fresh(self, kind: int, entries: Entries, columns: Columns | None, *, young: bool) -> None:
        order = order_waiting(entries) if kind == TIMED else order_ready(entries)
        own = None if columns is None else columns.take(order)
        self._fresh.append(Fresh(kind, entries.take(order), self.fetch, own, young=young))

    def _tag(self) -> None:
        """Gives tags to what has come into named lanes."""
        parts, self._untagged = self._untagged, []
        together = concat([part for part, _, _, _ in parts])
        weights = np.concatenate([weight for _, weight, _, _ in parts])
        tagged = give_tags(together, weights, self.clocks, self._tails())
        at = 0
        for part, _, columns, young in parts:
            self._add_fresh(LANED, tagged.take(slice(at, at + len(part))), columns, young=young)
            at += len(part)

    @property
    def clocks(self) -> Clocks:
        """The fair clocks."""
        return {priority: (clock, end) for priority, clock, end in self.row.times}

    def set_clocks(self, clocks: Clocks) -> None:
        """Moves the fair clocks."""
        self.row = replace(self.row, times=tuple((p, *times) for p, times in sorted(clocks.items())))

    def _tails(self) -> list[Tails]:
        """The last tag of every lane that has something ready."""
        found = []
        for view in self.views(LANED):
            if isinstance(view, Stored) and view.left:
                found.append(self._stored_tails(view))
            elif isinstance(view, Fresh) and view.left:
                found.append(tails_of(view.peek(view.left)))
        return found

    def _stored_tails(self, view: Stored) -> Tails:
        key = ("tails", view.run.id)
        known: Tails | None = self.tx.recall(key)
        if known is None:
            known = tails_of(Stored(self, view.run, 0).peek(view.run.count))
            self.tx.remember(key, known)
        return known.after(view.pos)

    # Leaving

    def _holes_of(self, views: Sequence[Any]) -> np.ndarray[Any, Any]:
        seqs = [seq for view in views if isinstance(view, Stored) for seq in self.holes.get(view.run.id, ())]
        return np.array(seqs, np.int64)

    def is_hole(self, proposal: Proposal) -> np.ndarray[Any, Any] | None:
        """Which of the entries were cancelled or moved; None when none can be."""
        if not self.holes:
            return None
        found = np.isin(proposal.entries.seq, self._holes_of(proposal.views))
        # The same message may have come back, in another run.
        for n, view in enumerate(proposal.views):
            if not isinstance(view, Stored) or view.run.id not in self.holes:
                found[proposal.origin == n] = False
        return found

    def add_hole(self, run: int, seq: int, due_at: int) -> None:
        """Takes a message out of the middle of a run."""
        self.tx.hole_insert(self.topic.tenant_id, self.partition, HoleRow(run, seq, due_at))
        self.holes[run] = self.holes.get(run, frozenset()) | {seq}

    def close_holes(self, proposal: Proposal, count: int, which: Any) -> None:
        """Forgets holes that have been passed over."""
        for n, view in enumerate(proposal.views):
            if isinstance(view, Stored) and view.run.id in self.holes and not view.run.target:
                seqs = proposal.entries.seq[:count][which & (proposal.origin[:count] == n)].tolist()
                if seqs:
                    self.tx.holes_delete(self.topic.tenant_id, self.partition, view.run.id, seqs)
                    left = self.holes[view.run.id] - set(seqs)
                    self.holes[view.run.id] = left
                    if not left:
                        del self.holes[view.run.id]

    # Writing

    def write(self, *, all_young: bool = False) -> int:
        """Writes positions, and what is fresh and still there; returns how much that was.

        With `all_young` the young end becomes runs now.
        """
        if self._untagged:
            self._tag()
        for view in self._stored.values():
            if view.pos != view.run.pos:
                self._move(view.run, view.pos)
        written = 0
        settle = self._young_ends(all_young)
        for fresh in self._fresh:
            if fresh.left and (settle or not fresh.young):
                written += fresh.left
                self.add_run(fresh.kind, 0, fresh.peek(fresh.left), fresh.messages(fresh.left))
        self._fresh = [] if settle else [fresh for fresh in self._fresh if fresh.young and fresh.left]
        self._stored = {}
        return written

    def _young_ends(self, now: bool) -> bool:
        """Notes what was served of the young end. True if it is to become runs now, or nothing is left of it."""
        if self._seen_to is None:
            return False
        length = self._seen_to - self.row.absorbed_to
        left = sum(fresh.left for fresh in self._fresh if fresh.young)
        if now or length >= ABSORB_FROM or not left:
            if length:
                self.row = replace(self.row, absorbed_to=self._seen_to, taken=b"")
            return True
        served = [fresh.entries.seq[: fresh.pos] for fresh in self._fresh if fresh.young and fresh.pos]
        if served:
            bits = np.zeros(length, np.uint8)
            before = np.unpackbits(np.frombuffer(self.row.taken, np.uint8), bitorder="little")[:length]
            bits[: len(before)] = before
            bits[np.concatenate(served) - self.row.absorbed_to] = 1
            self.row = replace(self.row, taken=np.packbits(bits, bitorder="little").tobytes())
        return False

    def remember(self) -> None:
        """Writes how far the log was absorbed, and keeps all this for the next transaction."""
        if self.row != self._row_stored:
            self.tx.queue_put(self.topic.tenant_id, self.partition, self.row)
        young = _few([(fresh.kind, fresh.peek(fresh.left)) for fresh in self._fresh])
        self.tx.remember(("queue", self.partition), (self.row, self.runs, self.holes, self._seen_to, young))

    def _move(self, run: RunRow, pos: int) -> None:
        if pos >= run.count and not run.target:
            self.drop_run(run.id)
        else:
            self.tx.run_move(run.id, pos)
            self.runs[run.id] = replace(run, pos=pos)

    def drop_run(self, run: int) -> None:
        """Deletes a run and what belongs to it."""
        self.tx.run_delete(self.topic.tenant_id, self.partition, run)
        self.tx.remember(("tails", run), None)
        self.runs.pop(run, None)
        self.holes.pop(run, None)

    def add_run(self, kind: int, level: int, entries: Entries, columns: Columns) -> RunRow:
        """Writes sorted entries as a run, with their messages."""
        run = RunRow(
            partition=self.partition,
            kind=kind,
            level=level,
            count=len(entries),
            pos=0,
            blocks=-(-len(entries) // RUN_BLOCK),
            low=int(entries.seq.min()),
            high=int(entries.seq.max()),
            coming=coming_of(entries) if kind == TIMED else None,
            expires_max=_expire_all_by(columns),
        )
        if run.expires_max is not None:
            schedule(self.tx, self.topic.tenant_id, self.partition, TRUNCATE, run.expires_max)
        run = replace(run, id=self.tx.run_insert(self.topic.tenant_id, run))
        self.add_blocks(run, 0, entries, columns)
        self.runs[run.id] = run
        return run

    def add_blocks(self, run: RunRow, first: int, entries: Entries, columns: Columns) -> int:
        """Writes blocks of a run from number `first` on; returns how many."""
        tenant_id = self.topic.tenant_id
        columns = without_big(columns)
        starts = range(0, len(entries), RUN_BLOCK)
        for number, start in enumerate(starts, start=first):
            stop = min(start + RUN_BLOCK, len(entries))
            place = Place(tenant_id, self.partition, place_of(run.id, number))
            some = columns.slice(start, stop)
            block = Block(place, some.count, 0, some, [])
            stored = encode(place, some, 0, [])
            part = entries.take(slice(start, stop))
            self.tx.run_block_insert(tenant_id, self.partition, run.id, number, part, block, stored)
        return len(starts)


def _few(young: list[tuple[int, Entries]]) -> tuple[tuple[int, Entries], ...]:
    """Stretches of entries as one of each kind, when they have become many."""
    if len(young) <= 8:
        return tuple(young)
    together = []
    for kind in (READY, LANED, TIMED):
        parts = [entries for of_kind, entries in young if of_kind == kind]
        if parts:
            entries = concat(parts)
            together.append((kind, entries.take(order_waiting(entries) if kind == TIMED else order_ready(entries))))
    return tuple(together)


def _by_run(holes: list[HoleRow]) -> dict[int, frozenset[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for hole in holes:
        found[hole.run].add(hole.seq)
    return {run: frozenset(seqs) for run, seqs in found.items()}


def _entries_of(blocks: Sequence[Block], topic: TopicRow) -> tuple[Entries, Any]:
    """The entries of log blocks, and the weights of their lanes."""
    parts, weights = [], []
    for block in blocks:
        columns = block.columns
        names = columns.names
        lane: Any = 0
        if "lane" in names:
            codes, distinct = columns.coded("lane")
            hashes = np.array([*(lane_hash(name) for name in distinct), 0], np.uint64)
            lane = hashes[codes]
        parts.append(
            make_entries(
                np.arange(block.base, block.end, dtype=np.int64),
                columns.numbers("due_at", block.published_at) if "due_at" in names else block.published_at,
                columns.numbers("priority", 0) if "priority" in names else 0,
                lane,
            )
        )
        weights.append(weigh(topic, columns))
    return concat(parts), np.concatenate(weights)


def _expire_all_by(columns: Columns) -> int | None:
    """When the last of some messages expires; None: not all of them do."""
    if "expires_at" not in columns.names:
        return None
    last = int(columns.numbers("expires_at", _NEVER).max())
    return None if last == _NEVER else last


def coming_of(entries: Entries) -> bytes:
    """How many fall due in each minute: [[minute, count], …]."""
    minutes, counts = np.unique(entries.due // MINUTE_MS, return_counts=True)
    return msgspec.msgpack.encode(list(zip(minutes.tolist(), counts.tolist(), strict=True)))


def coming_together(parts: Sequence[bytes | None]) -> bytes:
    """Several such counts as one."""
    total: dict[int, int] = defaultdict(int)
    for part in parts:
        for minute, count in msgspec.msgpack.decode(part) if part else ():
            total[minute] += count
    return msgspec.msgpack.encode(sorted(total.items()))
