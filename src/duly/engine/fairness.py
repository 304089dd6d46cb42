"""Fair shares among the lanes of one priority: start-time fair queueing.

A message of a named lane gets a *tag* when it becomes ready: the later of the priority's clock and the end
of its lane's last message, which is that message's tag plus cost / weight: 1 / weight, unless messages of the lane
take longer than others, or not as long (service.py). The smallest tag is served first, and
the clock of a priority is the tag served last. So a lane with a million messages has them spread over a
million turns, and one that comes in with its first message has its turn now. A lane that has nothing ready
starts at the clock again: what it scheduled for next month, or had served last week, costs it nothing today.

Weights and costs are those of the moment at which a tag is given; when others hold for what stands ready already, it
is given other tags (index.py).

The default lane is a lane like others, of weight 1, but its messages carry no tags: they are in one order, by
due time, so the next one's tag is known when it is looked at.

Strict priority comes first, so when a message is served all smaller priorities have nothing ready, and their
clocks are forgotten. What remains is a clock for each priority that was interrupted: few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import numpy as np

from ..store.contract import TopicRow
from .columns import Columns
from .entries import Entries, lane_hash

# By priority: its clock, and where the default lane's next message may start.
Clocks = dict[int, tuple[float, float]]
_START = (0.0, 0.0)
# What makes a pattern of a lane's name.
_PATTERN = frozenset("*?[")


class Tails(msgspec.Struct, frozen=True):
    """For every (priority, lane) of some sorted entries: where its last one stands, and its tag."""

    pairs: Any
    last: Any
    tags: Any
    # From here on they have not been consumed.
    pos: int = 0

    def after(self, pos: int) -> Tails:
        """Of what stands from a position on. Nothing is copied: every claim asks, of any number of lanes."""
        return Tails(self.pairs, self.last, self.tags, pos)

    def has(self, lanes: Any) -> bool:
        """Whether any of some lanes still has an entry, of whatever priority."""
        found = np.isin(self.pairs >> np.uint64(16), lanes & np.uint64(2**48 - 1))
        return bool((self.last[found] >= self.pos).any())

    def find(self, pairs: Any) -> tuple[Any, Any]:
        """Which of some pairs still have an entry, and where their tails are."""
        if not len(self.pairs):
            return np.zeros(len(pairs), bool), np.zeros(len(pairs), np.int64)
        at = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        return (self.pairs[at] == pairs) & (self.last[at] >= self.pos), at


def pair_of(entries: Entries) -> Any:
    """(priority, lane) as one number."""
    return (entries.lane << np.uint64(16)) ^ entries.priority.astype(np.uint64) ^ (entries.lane >> np.uint64(48))


def tails_of(entries: Entries) -> Tails:
    """The tails of sorted entries."""
    pairs = pair_of(entries)
    # The last of each: the first when read backwards.
    found, backwards = np.unique(pairs[::-1], return_index=True)
    last = len(entries) - 1 - backwards
    return Tails(found, last.astype(np.int32), entries.tag[last])


def weigh(topic: TopicRow, columns: Columns) -> Any:
    """The weight of every message's lane."""
    lanes = topic.settings.lanes
    if lanes is None or not lanes.weights or "lane" not in columns.names:
        return np.ones(columns.count)
    codes, names = columns.coded("lane")
    by_lane = np.array([*(_weight(lanes.weights, name) for name in names), 1.0])
    return by_lane[codes]


def lanes_reweighed(before: Mapping[str, float], after: Mapping[str, float]) -> Any:
    """The numbers of the lanes whose weights were changed; None: there are patterns among them, it may be any."""
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    if any(not _PATTERN.isdisjoint(name) for name in changed):
        return None
    changed = [name for name in changed if _weight(before, name) != _weight(after, name)]
    return np.array([lane_hash(name) for name in changed], np.uint64)


def _weight(weights: Any, name: str) -> float:
    """An exact name first, then the first pattern that fits."""
    if name in weights:
        return float(weights[name])
    return float(next((weight for pattern, weight in weights.items() if fnmatchcase(name, pattern)), 1.0))


def standing_in(entries: Entries, tails: Sequence[Tails]) -> Any:
    """Which of some entries are of a (priority, lane) that has one of these tails."""
    pairs = pair_of(entries)
    found = np.zeros(len(pairs), bool)
    for tail in tails:
        found |= tail.find(pairs)[0]
    return found


def give_tags(entries: Entries, weights: Any, clocks: Clocks, tails: Sequence[Tails], turns: Any = None) -> Entries:
    """The entries with tags: each lane's in the order of due time, behind what it has ready already.

    `turns`: where entries stood before, if they did; those come first in their lanes, in that order.
    """
    pairs = pair_of(entries)
    if turns is None:
        order = np.lexsort((entries.seq, entries.due, pairs))
    else:
        order = np.lexsort((entries.seq, entries.due, turns, pairs))
    sorted_pairs = pairs[order]
    first = np.flatnonzero(np.concatenate(([True], sorted_pairs[1:] != sorted_pairs[:-1])))
    own = sorted_pairs[first]
    starts = np.array([clocks.get(int(p), _START)[0] for p in entries.priority[order[first]]])
    for tail in tails:
        known, at = tail.find(own)
        if known.any():
            # Each has its own cost behind it; the last one's is that of its lane.
            starts = np.where(known, np.maximum(starts, tail.tags[at] + 1.0 / weights[order[first]]), starts)
    cost = 1.0 / weights[order]
    spent = np.concatenate(([0.0], np.cumsum(cost)))[:-1]
    group = np.cumsum(np.concatenate(([False], sorted_pairs[1:] != sorted_pairs[:-1])))
    tags = np.empty(len(entries))
    tags[order] = starts[group] + spent - spent[first][group]
    # A tag of 0 would be taken for none.
    return Entries(entries.priority, np.maximum(tags, 1e-9), entries.due, entries.seq, entries.lane, entries.loose)


def interleave(plain: Entries, laned: Entries, clocks: Clocks, cost: float = 1.0) -> tuple[Any, Any]:
    """The order of service of default-lane entries followed by laned ones, and everybody's tags.

    `cost` is what a message of the default lane is charged.
    """
    tags = np.zeros(len(plain))
    if len(plain):
        found, begins, group = np.unique(plain.priority, return_index=True, return_inverse=True)
        starts = np.array([max(clocks.get(int(p), _START)) for p in found])
        tags = starts[group] + cost * (np.arange(len(plain)) - begins[group])
    priority = np.concatenate((plain.priority, laned.priority))
    all_tags = np.concatenate((tags, laned.tag))
    due = np.concatenate((plain.due, laned.due))
    seq = np.concatenate((plain.seq, laned.seq))
    return np.lexsort((seq, due, all_tags, priority)), all_tags


def moved(clocks: Clocks, entries: Entries, tags: Any, cost: float = 1.0) -> Clocks:
    """The clocks after entries were served, in that order."""
    if not len(entries):
        return clocks
    last = int(entries.priority[-1])
    clock, default_end = clocks.get(last, _START)
    of_last = entries.priority == last
    clock = max(clock, float(tags[of_last].max()))
    default = of_last & (entries.lane == 0)
    if default.any():
        default_end = float(tags[default].max()) + cost
    kept = {priority: times for priority, times in clocks.items() if priority > last}
    kept[last] = (clock, default_end)
    return kept
