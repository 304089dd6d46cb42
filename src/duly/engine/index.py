"""A queue partition's index: sorted runs over the log, and how messages pass through it.

    log ──absorb──▶ due? ──▶ ready runs (priority, tag, due, seq) ──front──▶ claimed
                     │  not yet                    ▲
                     └────▶ timed runs (due, seq) ─┘ promoted when due, in bounded steps
    failed, moved ──▶ loose rows (due) ────────────┘
    weights changed: ready runs of named lanes ──▶ stale runs ──retag──▶ ready again, in bounded steps

A run is immutable and consumed from the front only: what is left of it is one position, and the holes of
messages that were cancelled or moved. Everything that is in no run yet is *fresh*: a claim serves from it
directly. What was just published (the *young* end of the log) may stay so for a while: which of it has been
served is a few bits in the queue's row, and what is left is written as runs once a few thousand have come. So a
queue whose consumers keep up writes no runs at all.

A run carries its messages beside its entries, in the order in which they will be served: looked up in the log
each would lie in another block. Only big payloads stay in the log alone.

A tag is given on entering ready, by the weight that a lane has then, and runs are sorted by tag. So when weights are
changed while a backlog stands, its runs become *stale*, as they are: the order within each lane is right, the tags
are not. From then on claims, publishers and a chore retag the front of what is stale a step at a time, as what falls
due is promoted, until none is left. Meanwhile whatever becomes ready in a lane that has something stale goes behind
it there; every other lane, and the default one, is served as ever. What was retagged when weights are changed once
more becomes stale again, under a higher number: in each lane it stands before what is stale since earlier. Until a
message's step has come it is not served, so a lane whose share grows a hundredfold has it when its messages have been
reached. Folds go on: the order of entries has not changed.

All of this happens under the partition's lock (on SQLite: inside the one write transaction). What an `Index`
knows is remembered between transactions and dropped when another process has written (memory.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ..errors import CorruptBlock
from ..store.contract import LANED, READY, STALE, TIMED, HoleRow, LooseRow, QueueRow, RunRow, TopicRow, Transaction
from .agenda import TRUNCATE, schedule
from .block import OF_A_RUN, Block, Place, encode
from .columns import NEVER, Columns, gather
from .entries import Entries, concat, make_entries, place_of
from .fairness import Clocks, Tails, give_tags, tails_of, weigh
from .find import head_of
from .gathered import AHEAD_MAX, gathered_at
from .limited import admit, enter, is_limited
from .lookup import light_messages_at, messages_at, with_big, without_big
from .service import service_of
from .untagged import Untagged, split, weights_or_ones
from .views import (
    AHEAD_FIRST,
    Ahead,
    Fresh,
    Merged,
    Proposal,
    Stored,
    View,
    by_priority,
    due_front,
    front,
    nothing_ahead,
    order_of,
)
from .young import Outlook, entries_of, few, is_taken, packed, young_after

# So many messages are absorbed at once, and left unabsorbed by publishers at most.
ABSORB_MAX = 16_384
ABSORB_FROM = 8_192
# Blocks of consumed runs that one transaction deletes.
SWEEP_BLOCKS = 64
# So many that have come due are promoted by one claim.
PROMOTE_MAX = 8_192
# So many get other tags at once: with their messages, that is twenty milliseconds.
RETAG_MAX = 4_096
# From so many runs on they are merged ahead.
_MERGED_MIN = 5
# Entries a block of a run that is made now.
RUN_BLOCK = 1_000
MINUTE_MS = 60_000


class Index:
    """One partition's index inside a transaction."""

    def __init__(self, tx: Transaction, topic: TopicRow, partition: int, *, reading: bool = False) -> None:
        self._limited = is_limited(topic) and not reading
        self._reading = reading
        self.tx = tx
        self.topic = topic
        self.partition = partition
        known = tx.recall(("queue", partition))
        # Somebody else had a turn: what was prepared before it may still be good.
        self._outlook: Outlook | None = None
        if known is None:
            self._outlook = tx.recall(("outlook", partition))
            row = tx.queue(topic.tenant_id, partition)
            known = (
                row,
                {run.id: run for run in tx.runs(topic.tenant_id, partition)},
                *_by_run(tx.holes(topic.tenant_id, partition)),
                *young_after(self._outlook, row),
                {},
            )
        self.row: QueueRow = known[0]
        self._row_stored = self.row
        self.runs: dict[int, RunRow] = dict(known[1])
        self.holes: dict[int, frozenset[int]] = dict(known[2])
        # Of those, the ones that a fold had copied before.
        self.late_holes: dict[int, frozenset[int]] = dict(known[3])
        # How far the young end has been looked at; None: not yet.
        self._seen_to: int | None = known[4]
        # As it was found: what is only looked through gets no turn.
        self._young_before: tuple[int | None, tuple[tuple[int, Entries], ...]] = (known[4], known[5])
        self._behind = False
        # What kept the log from being absorbed.
        self.damage: CorruptBlock | None = None
        # How many that failed before may be made ready; None: all that are due. Told when, if there were more.
        self.retries: int | None = None
        self.retried = 0
        self._fresh: list[Fresh] = [Fresh(kind, entries, self, young=True) for kind, entries in known[5]]
        # Of named lanes, just come in: they get their tags together, so that each lane's are in order of due time.
        self._untagged: list[Untagged] = []
        self._stored: dict[int, Stored] = {}
        # By kind: what lies ahead in its runs, merged by an earlier claim, and how far that has been consumed.
        self._ahead: dict[int, tuple[int, int, frozenset[int]]] = dict(known[6])
        self._merged: dict[int, Merged] = {}

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

    def gather(self, entries: Entries, views: Sequence[Fresh]) -> Columns:
        """The messages of entries that views begin with, from the log: with those that come next, if that pays."""

        def coming() -> Any:
            width = max(len(entries), AHEAD_MAX // len(views))
            ahead = concat([view.peek(width) for view in views])
            return ahead.seq if len(views) == 1 else ahead.seq[order_of(views[0].kind)(ahead)]

        return gathered_at(self.tx, self.topic.tenant_id, self.partition, entries.seq, coming)

    def _light(self, entries: Entries) -> Columns:
        """The messages of entries as a run carries them: those with big payloads are not even read."""
        return light_messages_at(self.tx, self.topic.tenant_id, self.partition, entries.seq)

    def servable(self, kind: int) -> list[RunRow]:
        """The runs of a kind that can be served from."""
        return [run for run in self.runs.values() if run.kind == kind and run.sources is None]

    def views(self, kind: int) -> list[View]:
        """Everything of a kind that can be served: its runs, many of them as one, and what is fresh."""
        if kind not in (READY, TIMED) and self._untagged:
            self._tag()
        runs = {run.id: run for run in self.servable(kind)}
        found: list[View] = []
        merged = self._merged_runs(kind, runs)
        if merged is not None:
            found.append(merged)
        for run in runs.values():
            if merged is None or run.id not in merged.of:
                if run.id not in self._stored:
                    self._stored[run.id] = Stored(self, run)
                found.append(self._stored[run.id])
        return [*found, *(fresh for fresh in self._fresh if fresh.kind == kind)]

    def _merged_runs(self, kind: int, runs: dict[int, RunRow]) -> Merged | None:
        """Many runs as one view: what was merged of them before, and those that came since merged into it."""
        if kind == TIMED or kind in self._merged:
            return self._merged.get(kind)
        serial, pos, covered = self._ahead.get(kind) or self._ahead_after(kind)
        ahead: Ahead | None = self.tx.cached(("ahead", self.partition, serial))
        width = AHEAD_FIRST if ahead is None else ahead.width
        if ahead is None or not covered <= runs.keys():
            if len(runs) < _MERGED_MIN:
                return None
            ahead, pos, covered = nothing_ahead(width), 0, frozenset()
        merged = Merged(self, kind, [runs[run] for run in sorted(covered)], ahead, pos)
        merged.join([run for run in runs.values() if run.id not in covered])
        self._merged[kind] = merged
        return merged

    def _ahead_after(self, kind: int) -> tuple[int, int, frozenset[int]]:
        """What was merged before somebody else had a turn, and where that one left it."""
        serial, covered = (-1, frozenset[int]()) if self._outlook is None else self._outlook.ahead.get(kind, (-1, ()))
        ahead: Ahead | None = self.tx.cached(("ahead", self.partition, serial))
        pos = None if ahead is None else ahead.position({run.id: run.pos for run in self.servable(kind)})
        return (-1, 0, frozenset()) if pos is None else (serial, pos, frozenset(covered) & self.runs.keys())

    def all_views(self) -> list[tuple[int, Stored | Fresh]]:
        """Every run by itself, and what is fresh, with their kinds."""
        if self._untagged:
            self._tag()
        stored = [(kind, Stored(self, run)) for kind in self._kinds() for run in self.servable(kind)]
        return [*stored, *((fresh.kind, fresh) for fresh in self._fresh)]

    def _kinds(self) -> list[int]:
        """All kinds that there are."""
        return [READY, LANED, *self._stale_kinds(), TIMED]

    def _stale_kinds(self) -> list[int]:
        """The kinds that wait for new tags: what comes first in its lane first."""
        kinds = {run.kind for run in self.runs.values()} | {fresh.kind for fresh in self._fresh}
        return sorted((kind for kind in kinds if kind >= STALE), reverse=True)

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
        others = [self._loose_next_due()]
        if self._limited:
            others.append(self.tx.lane_next_look(self.topic.tenant_id, self.partition))
        return min([*moments, *(moment for moment in others if moment is not None)], default=None)

    def _loose_next_due(self) -> int | None:
        tenant_id = self.topic.tenant_id
        first = self.tx.loose_next_due(tenant_id, self.partition)
        if first is None or self.retries is None or self.retried < self.retries or first > self.tx.now_ms:
            return first
        # Those that are due wait for a budget (see `Passage.retry_at`).
        return self.tx.loose_next_after(tenant_id, self.partition, self.tx.now_ms)

    # Absorbing and promoting

    def absorb(self, most: int = ABSORB_MAX) -> int:
        """Takes in what was published, as fresh entries. Returns how many were taken.

        Not while messages of named lanes that fell due before are still to be promoted: they go first.
        """
        if self._behind:
            return 0
        head = head_of(self.tx, self.topic.tenant_id, self.partition)
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
        entries = concat([entries_of(self.tx, self.partition, block) for block in blocks])
        weights = None
        if entries.has_lanes:
            weights = np.concatenate([weigh(self.topic, block.columns) for block in blocks])
        wanted = entries.seq >= start
        if self.row.taken:
            # Also behind what was looked at here: somebody else may have seen further.
            wanted &= ~is_taken(self.row, entries.seq)
        if not wanted.all():
            at = np.flatnonzero(wanted)
            entries, weights = entries.take(at), None if weights is None else weights[at]
        self._take_in(entries, weights, None, young=True)
        return stop - start

    def promote(self, most: int = PROMOTE_MAX) -> int:
        """Makes ready what has come due, and some of what is stale, up to a bound. Returns how many there were."""
        self._look_at_costs()
        at_once = self.retag() + self._turn_over()
        timed = [view for view in self.views(TIMED) if view.left]
        proposal = due_front(timed, self.tx.now_ms, most) if timed else None
        due = 0 if proposal is None else len(proposal.entries)
        loose = self._promote_loose(most)
        # More is due than was promoted: in a named lane what is younger must not come first (see `absorb`).
        self._behind = due == most or loose == most
        if self._behind and not self._limited:
            self._behind = any(part.turns is None for part in self._untagged) or (
                proposal is not None and proposal.entries.has_lanes
            )
        if proposal is not None and due:
            entries, columns = self._take_out(proposal)
            self._take_in(entries, self._weights(entries, columns), columns, young=False)
        return at_once + due + loose

    def _take_out(self, proposal: Proposal) -> tuple[Entries, Columns]:
        """Takes the next entries out of their runs, without those that are holes."""
        count, entries = len(proposal.entries), proposal.entries
        columns = proposal.messages(count)
        gone = self.is_hole(proposal)
        proposal.consume(count)
        if gone is None or not gone.any():
            return entries, columns
        self.close_holes(proposal, gone)
        kept = np.flatnonzero(~gone)
        return entries.take(kept), columns.take(kept)

    # Other weights

    def outdate(self, lanes: Any = None) -> None:
        """Weights, or costs, have changed: the tags of what is ready in named lanes hold no longer.

        `lanes`: only of these lanes; None: of all. If they have nothing ready, all others keep their tags.
        """
        if lanes is None or any(tails.has(lanes) for tails in self._tails([LANED])):
            stale = max([STALE, *(kind + 1 for kind in self._stale_kinds())])
            for run in [run for run in self.runs.values() if run.kind == LANED]:
                self.runs[run.id] = replace(run, kind=stale)
                self.tx.run_update(self.runs[run.id])
            self._ahead.pop(LANED, None)
            service = service_of(self.tx, self.partition)
            if service is not None:
                service.note_tags()
        # It is looked at anew.
        self._fresh, self._seen_to, self._young_before = [], None, (None, ())
        if self.is_stale:
            schedule(self.tx, self.topic.tenant_id, self.partition, TRUNCATE, self.tx.now_ms)

    def _look_at_costs(self) -> None:
        """Has tags given anew where lanes have come to cost something else than when they were given."""
        service = service_of(self.tx, self.partition)
        if service is None or self.is_stale:
            return
        if service.is_off(sum(run.left for run in self.runs.values() if run.kind == LANED)):
            self.outdate()

    @property
    def cost(self) -> float:
        """What a message of the default lane is charged."""
        service = service_of(self.tx, self.partition)
        return 1.0 if service is None else service.cost(0)

    def retag(self, most: int = RETAG_MAX) -> int:
        """Gives new tags to what comes first of what is stale, up to a bound. Returns how much of it there was."""
        kinds = self._stale_kinds()
        if not kinds:
            return 0
        proposal = by_priority([front(self.views(kind), most) for kind in kinds], most)
        count = len(proposal.entries)
        if count:
            entries, columns = self._take_out(proposal)
            weights = self._weights(entries, columns)
            turns = np.arange(len(entries))
            self._untagged.append(
                Untagged(entries, weights_or_ones(weights, len(entries)), columns, young=False, turns=turns)
            )
        return count

    def refill(self, want: int) -> None:
        """Retags until the next `want` messages of named lanes are known, whatever is stale."""
        while stale := [view for kind in self._stale_kinds() for view in self.views(kind) if view.left]:
            head = min(int(view.peek(1).priority[0]) for view in stale)
            ready = front(self.views(LANED), want).entries
            if len(ready) == want and int(ready.priority[-1]) <= head:
                return
            self.retag()

    @property
    def is_stale(self) -> bool:
        """Whether anything waits for new tags."""
        return any(run.kind >= STALE and run.left for run in self.runs.values())

    def _turn_over(self) -> int:
        """Makes ready, as they are, the runs of which all that is left falls due in one moment that has come.

        What falls due together stands in the order of service (entries.py): at midnight nothing is copied.
        """
        turned = 0
        for run in [] if self._limited else self.servable(TIMED):
            view = Stored(self, run)
            if run.plain and not run.target and run.left and self._one_moment(view):
                ready = replace(run, kind=READY, coming=None)
                self.tx.run_update(ready)
                self.runs[run.id] = ready
                self._stored.pop(run.id, None)
                turned += run.left
        return turned

    def _one_moment(self, view: Stored) -> bool:
        first = int(view.peek(1).due[0])
        if first > self.tx.now_ms:
            return False
        last = Stored(self, view.run, view.run.count - 1).peek(1)
        return int(last.due[0]) == first

    def _promote_loose(self, most: int) -> int:
        rows = self._loose_due(most)
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

    def _loose_due(self, most: int) -> list[LooseRow]:
        place = (self.topic.tenant_id, self.partition, self.tx.now_ms)
        if self.retries is None:
            return self.tx.loose_due(*place, most)
        left = min(most, self.retries - self.retried)
        found = {row.offset: row for row in self.tx.loose_due_fresh(*place, most)}
        for row in self.tx.loose_due(*place, left) if left > 0 else ():
            if row.offset not in found:
                found[row.offset] = row
                self.retried += 1
        return list(found.values())[:most]

    def admit(self, most: int = PROMOTE_MAX) -> int:
        """Makes ready the heads of limited lanes that have room for them. Returns how many there were."""
        entries = admit(self.tx, self.topic, self.partition, most) if self._limited else None
        if entries is None:
            return 0
        self._take_in(entries, self._weights(entries), None, young=False, admitted=True)
        return len(entries)

    def _weights(self, entries: Entries, columns: Columns | None = None) -> Any:
        """The weights of entries, None if all have the usual; messages are read only if they are needed for that."""
        lanes = self.topic.settings.lanes
        if lanes is None or not lanes.weights or not entries.has_lanes:
            return None
        if columns is None:
            return weigh(self.topic, self.fetch(entries))
        return weigh(self.topic, with_big(self.tx, self.topic.tenant_id, self.partition, columns))

    def _enter_lanes(self, entries: Entries, *, young: bool) -> Entries:
        """What is due waits in its lane, where lanes have limits; what is left is not due yet."""
        due = entries.due <= self.tx.now_ms
        inside = entries.take(due)
        enter(self.tx, self.topic, self.partition, inside)
        if young and len(inside):
            served = Fresh(READY, inside, self, young=True)
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
        if not entries.has_lanes and not late.any():
            if len(entries):
                self._add_fresh(READY, entries, columns, young=young)
            return
        named = entries.lane != 0
        for kind, which in ((READY, ~late & ~named), (LANED, ~late & named), (TIMED, late)):
            at = np.flatnonzero(which)
            if not len(at):
                continue
            part = entries.take(at)
            own = None if columns is None else columns.take(at)
            if kind == LANED:
                some = None if weights is None else weights[at]
                self._untagged.append(Untagged(part, weights_or_ones(some, len(at)), own, young=young))
            else:
                self._add_fresh(kind, part, own, young=young)

    def _add_fresh(self, kind: int, entries: Entries, columns: Columns | None, *, young: bool) -> None:
        order = order_of(kind)(entries)
        own = None if columns is None else columns.take(order)
        self._fresh.append(Fresh(kind, entries.take(order), self, own, young=young))

    def _tag(self) -> None:
        """Gives tags to what has come into named lanes: behind what is stale, in lanes that have something stale."""
        parts, self._untagged = self._untagged, []
        kinds = self._stale_kinds()
        stale = self._tails(kinds) if kinds else []
        if stale:
            behind = [split(part, stale) for part in parts]
            parts = [part for part, _ in behind if part is not None]
            self._give_tags(kinds[-1], [part for _, part in behind if part is not None], stale)
        self._give_tags(LANED, parts, self._tails([LANED]))

    def _give_tags(self, kind: int, parts: Sequence[Untagged], tails: Sequence[Tails]) -> None:
        if not parts:
            return
        together = concat([part.entries for part in parts])
        weights = np.concatenate([part.weights for part in parts])
        service = service_of(self.tx, self.partition)
        costs = None if service is None else service.costs(together.lane)
        if costs is not None:
            weights = weights / costs
        turns: Any = None
        if any(part.turns is not None for part in parts):
            # In its lane it comes before whatever has just become ready.
            last = len(together)
            turns = [np.full(len(part.entries), last) if part.turns is None else part.turns for part in parts]
            turns = np.concatenate(turns)
        tagged = give_tags(together, weights, self.clocks, tails, turns)
        at = 0
        for part in parts:
            self._add_fresh(kind, tagged.take(slice(at, at + len(part.entries))), part.columns, young=part.young)
            at += len(part.entries)

    @property
    def clocks(self) -> Clocks:
        """The fair clocks."""
        return {priority: (clock, end) for priority, clock, end in self.row.times}

    def set_clocks(self, clocks: Clocks) -> None:
        """Moves the fair clocks."""
        self.row = replace(self.row, times=tuple((p, *times) for p, times in sorted(clocks.items())))

    def _tails(self, kinds: Sequence[int]) -> list[Tails]:
        """The last tag of every lane that has something of some kinds."""
        if self._reading:
            # Nobody is served: whose turn it is need not be known.
            return []
        found, moved = [], self._moved()
        known: dict[int, Tails] = self.tx.recall(("tails", self.partition)) or {}
        standing = [run for kind in kinds for run in self.servable(kind) if moved.get(run.id, run.pos) < run.count]
        if new := [run for run in standing if run.id not in known]:
            known = {run: tails for run, tails in known.items() if run in self.runs}
            known |= {run.id: tails_of(Stored(self, run, 0).peek(run.count)) for run in new}
            self.tx.remember(("tails", self.partition), known)
        found += [known[run.id].after(moved.get(run.id, run.pos)) for run in standing]
        for fresh in self._fresh:
            if fresh.kind in kinds and fresh.left:
                found.append(tails_of(fresh.peek(fresh.left)))
        return found

    def _moved(self) -> dict[int, int]:
        """How far runs have been consumed, where that is further than their rows say."""
        moved = {view.run.id: view.pos for view in self._stored.values() if view.pos != view.run.pos}
        for merged in self._merged.values():
            moved |= {run: self.runs[run].pos + count for run, count in merged.served().items()}
        return moved

    # Leaving

    def is_hole(self, proposal: Proposal) -> np.ndarray[Any, Any] | None:
        """Which of the entries were cancelled or moved; None when none can be."""
        if not self.holes:
            return None
        runs = proposal.runs()
        found = np.zeros(len(runs), bool)
        for run, seqs in self.holes.items():
            own = runs == run
            if own.any():
                found[own] = np.isin(proposal.entries.seq[own], list(seqs))
        return found

    def add_hole(self, run: int, seq: int, due_at: int, pos: int) -> None:
        """Takes a message out of the middle of a run, where it stands at a position."""
        late = self._is_copied(self.runs[run], pos)
        self.tx.hole_insert(self.topic.tenant_id, self.partition, HoleRow(run, seq, due_at, late))
        self.holes[run] = self.holes.get(run, frozenset()) | {seq}
        if late:
            self.late_holes[run] = self.late_holes.get(run, frozenset()) | {seq}

    def _is_copied(self, run: RunRow, pos: int) -> bool:
        """Whether a fold has copied an entry of a run already."""
        if not run.target:
            return False
        return any(source.run == run.id and pos < source.copied for source in progress_of(self.runs[run.target]))

    def close_holes(self, proposal: Proposal, which: Any) -> None:
        """Forgets holes that have been passed over. (A fold passes over them too, or has counted them as consumed.)"""
        if not which.any():
            return
        runs = proposal.runs()[: len(which)]
        seqs = proposal.entries.seq[: len(which)]
        for run in np.unique(runs[which]).tolist():
            passed = seqs[which & (runs == run)].tolist()
            self.tx.holes_delete(self.topic.tenant_id, self.partition, run, passed)
            for holes in (self.holes, self.late_holes):
                if run in holes:
                    holes[run] = holes[run] - set(passed)
                    if not holes[run]:
                        del holes[run]

    # Writing

    def write(self, young: str = "") -> int:
        """Writes positions, and what is fresh and still there; returns how much that was.

        The young end becomes runs when it is long; with `young` "all" now, and with "none" not: it is left as it was
        found, less what was taken out, as if it had not been looked at.
        """
        if self._untagged:
            self._tag()
        self._move(self._moved())
        for kind, merged in self._merged.items():
            self._keep_ahead(kind, merged)
        self._merged = {}
        written = 0
        if not young and any(_has_tags(fresh.kind) and fresh.left and not fresh.young for fresh in self._fresh):
            # Tags are about to be stored that were given after those of the young end, which are only remembered:
            # forgotten and given anew, those would come out behind.
            young = "all"
        settle = self._young_ends(young)
        for kind in self._kinds():
            parts = [part for part in self._fresh if part.kind == kind and part.left and (settle or not part.young)]
            if parts:
                written += self._write_fresh(kind, parts)
        self._fresh = [] if settle else [fresh for fresh in self._fresh if fresh.young and fresh.left]
        if young == "none":
            self._seen_to, before = (None, ()) if settle else self._young_before
            left = [(kind, entries.take(~is_taken(self.row, entries.seq))) for kind, entries in before]
            self._fresh = [Fresh(kind, entries, self, young=True) for kind, entries in left if len(entries)]
        self._stored = {}
        return written

    def _write_fresh(self, kind: int, parts: list[Fresh]) -> int:
        """Writes what is fresh of a kind as one run."""
        entries = concat([part.peek(part.left) for part in parts])
        order = None if len(parts) == 1 else order_of(kind)(entries)
        entries = entries if order is None else entries.take(order)
        if all(part.columns is None for part in parts):
            columns = self._light(entries)
        else:
            found = [
                self._light(part.peek(part.left)) if part.columns is None else part.messages(part.left)
                for part in parts
            ]
            columns = gather(found, order)
        self.add_run(kind, 0, entries, columns)
        return len(entries)

    def _keep_ahead(self, kind: int, merged: Merged) -> None:
        """What lies ahead, for the next claim, in a cache that may forget it."""
        ahead = merged.ahead
        key = ("ahead", self.partition, ahead.serial)
        if self.tx.cached(key) is None:
            self.tx.cache(key, ahead, ahead.bytes)
        covered = frozenset(run for run in merged.of if run in self.runs)
        self._ahead[kind] = (ahead.serial, merged.pos, covered)

    def _young_ends(self, young: str) -> bool:
        """Notes what was served of the young end. True if it is to become runs now, or nothing is left of it."""
        if self._seen_to is None:
            return False
        length = self._seen_to - self.row.absorbed_to
        left = sum(fresh.left for fresh in self._fresh if fresh.young)
        if young == "all" or (length >= ABSORB_FROM and young != "none") or not left:
            if length:
                self.row = replace(self.row, absorbed_to=self._seen_to, taken=packed(self._bits()[length:]))
            return True
        served = [fresh.entries.seq[: fresh.pos] for fresh in self._fresh if fresh.young and fresh.pos]
        if served:
            before = self._bits()
            # As far as anybody has seen, who may have seen further than this one.
            bits = np.zeros(max(length, len(before)), np.uint8)
            bits[: len(before)] = before
            bits[np.concatenate(served) - self.row.absorbed_to] = 1
            self.row = replace(self.row, taken=packed(bits))
        return False

    def _bits(self) -> np.ndarray[Any, Any]:
        """A bit for every message of the young end as far as some were served: whether it was."""
        return np.unpackbits(np.frombuffer(self.row.taken, np.uint8), bitorder="little")

    def remember(self) -> None:
        """Writes how far the log was absorbed, and keeps all this for the next transaction."""
        if self.row != self._row_stored:
            self.tx.queue_put(self.topic.tenant_id, self.partition, self.row)
        young = few([(fresh.kind, fresh.peek(fresh.left)) for fresh in self._fresh])
        self.tx.remember(("outlook", self.partition), self._look_out(young))
        self.tx.remember(
            ("queue", self.partition),
            (self.row, self.runs, self.holes, self.late_holes, self._seen_to, young, self._ahead),
        )

    def _look_out(self, young: tuple[tuple[int, Entries], ...]) -> Outlook:
        # Tags of named lanes, too: given anew after each turn of somebody else, who was served would be first again.
        # Not what waits for new ones: somebody else may have given them.
        plain = not any(kind >= STALE for kind, _ in young) and not self._limited
        seen_to = self._seen_to if plain else None
        ahead = {kind: (serial, tuple(covered)) for kind, (serial, _, covered) in self._ahead.items()}
        return Outlook(self.row.absorbed_to, seen_to, young if plain else (), ahead)

    def _move(self, positions: dict[int, int]) -> None:
        """Notes how far runs have been consumed; what is consumed wholly goes."""
        self.runs |= {run: replace(self.runs[run], pos=pos) for run, pos in positions.items()}
        self.sweep()
        if left := {run: pos for run, pos in positions.items() if run in self.runs}:
            self.tx.runs_move(self.topic.tenant_id, self.partition, left)

    def sweep(self) -> None:
        """Drops runs that are consumed wholly, as much of them as takes a few milliseconds; a chore does the rest."""
        budget = SWEEP_BLOCKS
        for run in [run for run in self.runs.values() if not (run.left or run.target or run.sources is not None)]:
            if run.blocks <= budget:
                self.drop_run(run.id)
                budget -= run.blocks
                continue
            # From its end: what is left of it is a run still, with fewer blocks.
            rest = replace(run, blocks=run.blocks - budget)
            self.tx.run_trim(self.topic.tenant_id, self.partition, rest)
            self.runs[run.id] = rest
            schedule(self.tx, self.topic.tenant_id, self.partition, TRUNCATE, self.tx.now_ms)
            return

    def drop_run(self, run: int) -> None:
        """Deletes a run and what belongs to it."""
        self.tx.run_delete(self.topic.tenant_id, self.partition, run)
        gone = self.runs.pop(run, None)
        self.holes.pop(run, None)
        self.late_holes.pop(run, None)
        if gone is not None and gone.left and not gone.sources:
            # It went before it was consumed: what was merged of it is void.
            self._ahead.pop(gone.kind, None)

    def add_run(self, kind: int, level: int, entries: Entries, columns: Columns) -> RunRow:
        """Writes sorted entries as a run, with their messages."""
        run = RunRow(
            partition=self.partition,
            kind=kind,
            level=level,
            count=len(entries),
            pos=0,
            blocks=-(-len(entries) // RUN_BLOCK),
            block=RUN_BLOCK,
            low=int(entries.seq.min()),
            high=int(entries.seq.max()),
            coming=coming_of(entries) if kind == TIMED else None,
            plain=not entries.has_lanes,
            expires_max=_expire_all_by(columns),
        )
        if run.expires_max is not None:
            schedule(self.tx, self.topic.tenant_id, self.partition, TRUNCATE, run.expires_max)
        run = replace(run, id=self.tx.run_insert(self.topic.tenant_id, run))
        if _has_tags(kind):
            # While it is at hand: a claim would have to read it.
            known = self.tx.recall(("tails", self.partition)) or {}
            known = {at: tails for at, tails in known.items() if at in self.runs}
            self.tx.remember(("tails", self.partition), {**known, run.id: tails_of(entries)})
        self.add_blocks(run, 0, entries, columns)
        self.runs[run.id] = run
        return run

    def add_blocks(self, run: RunRow, first: int, entries: Entries, columns: Columns, *, soon: bool = True) -> int:
        """Writes blocks of a run from number `first` on; returns how many. `soon`: they may be read again soon."""
        tenant_id = self.topic.tenant_id
        columns = without_big(columns)
        seal = self.tx.sealing(tenant_id)
        starts = range(0, len(entries), run.block)
        for number, start in enumerate(starts, start=first):
            stop = min(start + run.block, len(entries))
            place = Place(tenant_id, self.partition, place_of(run.id, number))
            some = columns.slice(start, stop)
            block = Block(place, some.count, 0, some, [])
            stored = encode(place, some, 0, [], seal=seal, bound=OF_A_RUN)
            part = entries.take(slice(start, stop))
            self.tx.run_block_insert(tenant_id, self.partition, run.id, number, part, block, stored, soon=soon)
        return len(starts)


def _has_tags(kind: int) -> bool:
    """Whether entries of a kind of run are of named lanes, and ready."""
    return kind not in (READY, TIMED)


def _by_run(holes: list[HoleRow]) -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]]:
    """All holes, and the late ones, by run."""
    found: dict[int, set[int]] = defaultdict(set)
    late: dict[int, set[int]] = defaultdict(set)
    for hole in holes:
        found[hole.run].add(hole.seq)
        if hole.late:
            late[hole.run].add(hole.seq)
    return {run: frozenset(s) for run, s in found.items()}, {run: frozenset(s) for run, s in late.items()}


class Progress(msgspec.Struct, array_like=True):
    """A run that a fold copies: how far it has come in it, and the stretches of positions that it copied."""

    run: int
    copied: int
    stretches: list[list[int]]


_progress = msgspec.msgpack.Decoder(list[Progress])


def progress_of(target: RunRow) -> list[Progress]:
    """How far the runs that a fold copies have been copied."""
    return _progress.decode(target.sources) if target.sources else []


def _expire_all_by(columns: Columns) -> int | None:
    """When the last of some messages expires; None: not all of them do."""
    if "expires_at" not in columns.names:
        return None
    last = int(columns.numbers("expires_at", NEVER).max())
    return None if last == NEVER else last


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
