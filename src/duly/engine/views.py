"""Sorted entries that can be looked at from the front: of a run, of several as one, or of none yet; and their merge."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from ..errors import CorruptBlock
from ..store.contract import TIMED, RunRow
from .block import Block
from .columns import Columns, gather
from .entries import Entries, concat, order_ready, order_waiting

# So far several runs are merged ahead of what is asked for: at first, and when all of it was asked for.
AHEAD_FIRST, _AHEAD_MAX = 2_048, 16_384
_AHEAD_BYTES_MAX = 4 * 1024 * 1024
# So many entries of a run are looked at at once, by those who look at all of them.
_STRETCH = 10_000

_serial = itertools.count()


class Source(Protocol):
    """Where runs and messages are read from."""

    def entries(self, run: int, number: int) -> Entries:
        """A block of a run's entries."""
        ...

    def block(self, run: int, number: int) -> Block:
        """A block of a run's messages."""
        ...

    def fetch(self, entries: Entries) -> Columns:
        """The messages of entries, from the log."""
        ...

    def gather(self, entries: Entries, views: Sequence[Fresh], /) -> Columns:
        """The same of entries that these views begin with: those that come next may be picked with them."""
        ...


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

    def runs(self, count: int, /) -> Any:
        """The run of each of the next entries, or of them all; 0 for none."""
        ...


class Fresh:
    """Entries that are in no run yet. `young`: they are of the end of the log, and may stay so."""

    def __init__(
        self,
        kind: int,
        entries: Entries,
        index: Source,
        columns: Columns | None = None,
        *,
        young: bool = False,
    ) -> None:
        self.kind = kind
        self.entries = entries
        self.young = young
        self.index = index
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
        return self.index.gather(self.peek(count), [self])

    def light(self, read: Callable[[Entries], Columns]) -> Columns:
        """The messages of all that is left, as a run carries them; `read` knows how, if they are not at hand."""
        return read(self.peek(self.left)) if self.columns is None else self.messages(self.left)

    def consume(self, count: int) -> None:
        self.pos += count

    def runs(self, _: int) -> Any:
        return 0

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

    def __init__(self, index: Source, run: RunRow, pos: int | None = None) -> None:
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
        return concat([self._whole(number, high).take(slice(low, high)) for number, low, high in self._blocks(count)])

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

    def runs(self, _: int) -> Any:
        return self.run.id

    def _whole(self, number: int, high: int) -> Entries:
        entries = self.index.entries(self.run.id, number)
        if len(entries) < high:
            raise CorruptBlock(
                f"Block {number} of run {self.run.id} has {len(entries)} entries, not {high}. Run `duly doctor`.",
                partition_id=self.run.partition,
                base=0,
            )
        return entries

    def _blocks(self, count: int) -> list[tuple[int, int, int]]:
        """(block, from, to) of the next entries."""
        end = min(self.run.count, self.pos + count)
        found, at, size = [], self.pos, self.run.block
        while at < end:
            number = at // size
            first = number * size
            stop = min(end, first + size)
            found.append((number, at - first, stop - first))
            at = stop
        return found


def walk(view: Stored | Fresh) -> Iterator[tuple[int, Entries]]:
    """What a view still holds, a stretch at a time with its position; nothing is consumed."""
    if isinstance(view, Fresh):
        yield view.pos, view.peek(view.left)
        return
    view = Stored(view.index, view.run, view.pos)
    while view.left:
        part = view.peek(_STRETCH)
        yield view.pos, part
        view.consume(len(part))


def order_of(kind: int) -> Callable[[Entries], Any]:
    """The order in which entries of a kind of run stand."""
    return order_waiting if kind == TIMED else order_ready


class Ahead(msgspec.Struct, frozen=True):
    """The next entries of several runs in one order, with their messages."""

    entries: Entries
    columns: Columns | None
    # By entry: its run. By run: how far this reaches.
    runs: Any
    upto: dict[int, int]
    # So far the next merge reaches.
    width: int
    places: dict[int, Any] = msgspec.field(default_factory=dict)
    serial: int = msgspec.field(default_factory=_serial.__next__)

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        return self.entries.bytes + (0 if self.columns is None else self.columns.bytes + 50 * self.columns.count)

    def position(self, consumed_to: Mapping[int, int]) -> int | None:
        """How far this is consumed when its runs are consumed so far; runs that are not named are gone.

        None: that is no beginning of it. Whoever serves does it in this order; so if somebody else did, it is one.
        """
        done: dict[int, int] = {}
        for run, upto in self.upto.items():
            count = len(self._places.get(run, ()))
            at = consumed_to.get(run, upto) - (upto - count)
            if not 0 <= at <= count:
                return None
            if at:
                done[run] = at
        pos = sum(done.values())
        # Of each run exactly so many lie before that: its last one does, and the next does not.
        for run, at in done.items():
            if self._places[run][at - 1] >= pos:
                return None
        return pos

    @property
    def _places(self) -> dict[int, Any]:
        """By run: where its entries stand. Found once, for all who look."""
        if not self.places:
            order = np.argsort(self.runs, kind="stable")
            found, first = np.unique(self.runs[order], return_index=True)
            self.places.update(zip(found.tolist(), np.split(order, first[1:]), strict=True))
        return self.places


def nothing_ahead(width: int) -> Ahead:
    """Nothing merged yet."""
    return Ahead(concat([]), None, np.zeros(0, np.int64), {}, width)


class Merged:
    """Several runs as one view, merged a stretch ahead: one merge serves many claims.

    What is ahead ends at one entry, the *horizon*: of every run it has all entries before that, and none after.
    """

    def __init__(self, index: Source, kind: int, runs: Sequence[RunRow], ahead: Ahead, pos: int) -> None:
        self.index = index
        self.kind = kind
        self.of = {run.id: run for run in runs}
        self.ahead = ahead
        self.pos = pos
        self._began = pos
        self._done: Counter[int] = Counter()
        self._left = sum(run.left for run in runs)

    @property
    def left(self) -> int:
        return self._left

    def peek(self, count: int) -> Entries:
        self._reach(count)
        return self.ahead.entries.take(slice(self.pos, self.pos + count))

    def messages(self, count: int) -> Columns:
        self._reach(count)
        assert self.ahead.columns is not None
        return self.ahead.columns.slice(self.pos, self.pos + count)

    def consume(self, count: int) -> None:
        self.pos += count
        self._left -= count

    def runs(self, count: int) -> Any:
        return self.ahead.runs[self.pos : self.pos + count]

    def served(self) -> Counter[int]:
        """How many entries of each run were consumed."""
        now = Counter(self.ahead.runs[self._began : self.pos].tolist())
        return self._done + now

    def join(self, runs: Sequence[RunRow]) -> None:
        """Takes more runs in: what of them lies before the horizon goes to where it belongs."""
        if not runs:
            return
        views = [Stored(self.index, run) for run in runs]
        rest = self.ahead.entries.take(slice(self.pos, None))
        windows = [_before(view, rest.take(slice(-1, None))) if len(rest) else rest for view in views]
        columns = [view.messages(len(window)) for view, window in zip(views, windows, strict=True) if len(window)]
        for view, window in zip(views, windows, strict=True):
            view.consume(len(window))
        order = order_ready(concat([rest, *windows])) if columns else None
        origins = [np.full(len(window), view.run.id) for view, window in zip(views, windows, strict=True)]
        self.of |= {run.id: run for run in runs}
        self._left += sum(run.left for run in runs)
        self._put(windows, columns, origins, order, {view.run.id: view.pos for view in views}, self.ahead.width)

    def _reach(self, count: int) -> None:
        """Merges further, if less than that lies ahead."""
        have = len(self.ahead.entries) - self.pos
        if have >= min(count, self._left):
            return
        views = [Stored(self.index, run, self.ahead.upto[run.id]) for run in self.of.values()]
        try:
            self._extend(views, max(self.ahead.width, count - have))
        except CorruptBlock:
            # It may lie behind what is asked for.
            self._extend(views, min(count, self._left) - have)

    def _extend(self, views: list[Stored], count: int) -> None:
        proposal = front(views, count)
        found = len(proposal.entries)
        columns = proposal.messages(found)
        runs = np.array([view.run.id for view in proposal.views], np.int64)[proposal.origin]
        proposal.consume(found)
        upto = {view.run.id: view.pos for view in views}
        width = min(2 * self.ahead.width, _AHEAD_MAX, _AHEAD_BYTES_MAX // (1 + columns.bytes // max(1, found)))
        self._put([proposal.entries], [columns], [runs], None, upto, max(width, AHEAD_FIRST // 16))

    def _put(
        self,
        entries: list[Entries],
        columns: list[Columns],
        runs: list[Any],
        order: Any,
        upto: dict[int, int],
        width: int,
    ) -> None:
        """What is left of what was ahead, and more behind it or, with an order, among it."""
        self._done, self._began = self.served(), 0
        rest = slice(self.pos, len(self.ahead.entries))
        self.pos = 0
        if self.ahead.columns is not None and rest.stop > rest.start:
            columns = [self.ahead.columns.slice(rest.start, rest.stop), *columns]
        together = concat([self.ahead.entries.take(rest), *entries])
        origin = np.concatenate([self.ahead.runs[rest], *runs])
        if order is not None:
            together, origin = together.take(order), origin[order]
        found = gather(columns, order) if columns else None
        reaches = {run: at for run, at in self.ahead.upto.items() if run in self.of}
        self.ahead = Ahead(together, found, origin, reaches | upto, width)


def _before(view: Stored, horizon: Entries) -> Entries:
    """The entries of a run that come before one of another."""
    width = 64
    while True:
        window = view.peek(width)
        place = np.flatnonzero(order_ready(concat([window, horizon])) == len(window))
        if place[0] < len(window) or len(window) == view.left:
            return window.take(slice(0, int(place[0])))
        width *= 4


class Proposal(msgspec.Struct):
    """The next entries of several views in one order; nothing is consumed yet."""

    views: list[Any]
    entries: Entries
    # By entry: its view, and its place behind that view's front.
    origin: np.ndarray[Any, Any]
    place: np.ndarray[Any, Any]
    _runs: Any = None

    def messages(self, count: int) -> Columns:
        """The messages of the first entries, in order."""
        if all(isinstance(view, Fresh) and view.columns is None for view in self.views):
            # All of it is read from the log, wherever it stands here: in one go, and in this order.
            entries = self.entries if count == len(self.entries) else self.entries.take(slice(count))
            found: Columns = self.views[0].index.gather(entries, self.views)
            return found
        origin, place = self.origin[:count], self.place[:count]
        counts = np.bincount(origin, minlength=len(self.views))
        starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
        parts = [view.messages(int(n)) for view, n in zip(self.views, counts, strict=True) if n]
        at = starts[origin] + place
        in_order = len(parts) == 1 and bool((at == np.arange(count)).all())
        return gather(parts, None if in_order else at)

    def runs(self) -> Any:
        """The run of each entry; 0 for none. Asked for before anything is consumed, and remembered."""
        if self._runs is not None:
            return self._runs
        found = np.zeros(len(self.entries), np.int64)
        for n, view in enumerate(self.views):
            own = self.origin == n
            runs = view.runs(int(own.sum()))
            found[own] = runs if isinstance(runs, int) else runs[self.place[own]]
        self._runs = found
        return found

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
    # As much of each as it would give if all were mixed evenly, and some more.
    share = 1.25 * want / sum(view.left for view in views)
    widths = [min(view.left, int(share * view.left) + 32) for view in views]
    windows = [view.peek(width) for view, width in zip(views, widths, strict=True)]
    while True:
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
                windows[n] = views[n].peek(widths[n])
    chosen = sequence[: min(want, safe)]
    origin = np.searchsorted(starts, chosen, side="right") - 1
    return Proposal(list(views), together.take(chosen), origin, chosen - starts[origin])


def joined(proposals: Sequence[Proposal]) -> Proposal:
    """Several proposals, one behind the other."""
    if len(proposals) == 1:
        return proposals[0]
    views = [view for proposal in proposals for view in proposal.views]
    firsts = np.cumsum([0, *(len(proposal.views) for proposal in proposals[:-1])])
    origin = np.concatenate([proposal.origin + first for proposal, first in zip(proposals, firsts, strict=True)])
    place = np.concatenate([proposal.place for proposal in proposals])
    return Proposal(views, concat([proposal.entries for proposal in proposals]), origin, place)


def by_priority(proposals: Sequence[Proposal], want: int) -> Proposal:
    """The first `want` entries of several proposals as one: by priority, and of one priority in the order given."""
    together = joined(proposals)
    if len(proposals) == 1:
        return together
    order = np.argsort(together.entries.priority, kind="stable")[:want]
    return Proposal(together.views, together.entries.take(order), together.origin[order], together.place[order])


def due_front(views: Sequence[View], now_ms: int, most: int) -> Proposal:
    """The entries of timed views that are due, the first `most` of them."""
    views = [view for view in views if view.left]
    windows = [_due_window(view, now_ms, most) for view in views]
    together = concat(windows)
    chosen = order_waiting(together)[:most]
    starts = np.concatenate(([0], np.cumsum([len(window) for window in windows], dtype=np.int64)))
    origin = np.searchsorted(starts, chosen, side="right") - 1
    return Proposal(views, together.take(chosen), origin, chosen - starts[origin])


def _due_window(view: View, now_ms: int, most: int) -> Entries:
    """What of a view is due, or the first `most`."""
    width = 64
    while True:
        window = view.peek(min(width, most))
        due = int(np.searchsorted(window.due, now_ms, side="right"))
        if due < len(window) or len(window) in (view.left, most):
            return window.take(slice(0, due))
        width *= 8
