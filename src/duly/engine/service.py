"""What lanes cost: service time, beside the count of messages.

A turn for a turn is fair where all messages take as long. A lane whose messages take ten times as long as others has
ten times their share of the consumers. So what a message is charged is what those of its lane have taken lately,
divided by the mean of all messages of the queue that were settled as many at a time; its lane's next one stands so
many turns (÷ weight) behind it (fairness.py). Over time lanes get equal time, or by weight, and not equal counts:

    settled         time since it was claimed, or since some of its lease was settled last, ÷ how many are settled now
      └─▶ lane      a moving average over about sixteen messages
            └─▶ cost      ÷ mean of the queue, of as many settled at a time: 1/64 to 64; within a quarter of 1 it is 1
                  └─▶ tags      of what becomes ready from now on; of what stands ready once costs are off by half

- Only ratios count: what a consumer fetched early, or settles all at once, is charged to all lanes in it alike, and to
  none where there are many.
- A claim takes its trips, whatever is in it: of a lane that gets its messages one by one, because they come so, each
  takes as long as a hundred of another's together. So one is compared with others that came alone, and a hundred with
  hundreds.
- Times below a millisecond are one millisecond. A queue whose messages are fast, or all alike, learns nothing and pays
  for a comparison a settled batch.
- Who is cheap gets credit, down to 1/64. Without it the mean, which the dear lanes raise, would be the least that any
  pays, and shares of time would end up between equal counts and equal times. It takes nothing from a quiet lane:
  whoever has nothing ready starts at the clock, before whatever the others have ready (promise 8), at whatever cost.
- A lease that ran out took its time too. What is given back untouched (release) took none.
- A backlog was given its tags when it became ready, by what was known then. When that has come to be off by a factor of
  two, it gets other tags like after a change of weights (index.py): not before a quarter as many messages were settled.
- All of this is in memory that may be lost, changed in place and not undone: it is an estimate. Each process learns by
  what is settled through it. At most LANES_MAX lanes are known, the latest; an unknown one costs 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..store.contract import LeaseRow, Transaction
from .queue_lease import Keys

NOISE_MS = 1.0
COST_MAX = 64.0
LANES_MAX = 4_096
# A quarter more or less than the mean is the mean.
_USUAL = (0.8, 1.25)
# A message's part in the average of its lane.
_SHARE = 1 / 16
# Of a lane that is less than one in so many of what was settled together, that tells nothing.
_TELLING = 16
# About so many messages make the mean of a queue.
_WINDOW = 1_000
# Costs are looked at after so many settled messages.
_LOOK_AFTER = 64
# Leases of which a part was settled, and when.
_LEASES_MAX = 1_000


class _Mean:
    """What a message takes, of about the last thousand."""

    __slots__ = ("_count", "_total_ms")

    def __init__(self) -> None:
        self._count = 0.0
        self._total_ms = 0.0

    @property
    def ms(self) -> float:
        """The mean."""
        return self._total_ms / self._count

    def note(self, count: int, each_ms: float) -> float:
        """So many took so long each: how much of that is believed."""
        if self._count:
            each_ms = min(each_ms, COST_MAX * self.ms)
        self._count += count
        self._total_ms += count * each_ms
        if self._count > _WINDOW:
            self._count, self._total_ms = self._count / 2, self._total_ms / 2
        return each_ms


class Service:
    """What the messages of a queue partition have cost lately, by lane."""

    def __init__(self) -> None:
        # By how many were settled at a time, in powers of two.
        self._means: dict[int, _Mean] = {}
        # What its messages take, and which of the means that is to be held against.
        self._lanes: dict[int, tuple[float, _Mean]] = {}
        self._settled_at: dict[int, int] = {}
        # What was known when tags were given last, and how many messages were settled since.
        self._given: dict[int, float] = {}
        self._since = 0
        self._look_at = _LOOK_AFTER
        self._costs: tuple[Any, Any] | None = None

    def note(self, row: LeaseRow, lanes: Any, count: int, until_ms: int) -> None:
        """Some messages of a lease were settled; `lanes` None: all of the default lane."""
        began_ms = self._settled_at.pop(row.id, row.claimed_at)
        if count < row.live:
            self._settled_at[row.id] = until_ms
            if len(self._settled_at) > _LEASES_MAX:
                del self._settled_at[next(iter(self._settled_at))]
        mean = self._means.setdefault(count.bit_length(), _Mean())
        each_ms = mean.note(count, max((until_ms - began_ms) / count, NOISE_MS))
        self._since += count
        if not self._lanes and _is_usual(each_ms / mean.ms):
            return
        if lanes is None:
            self._learn(0, count, each_ms, mean)
            return
        for lane, some in zip(*(found.tolist() for found in np.unique(lanes, return_counts=True)), strict=True):
            if some * _TELLING >= count:
                self._learn(lane, some, each_ms, mean)

    def _learn(self, lane: int, count: int, each_ms: float, mean: _Mean) -> None:
        before = self._ratio(self._lanes.pop(lane, None))
        if before is None:
            if _is_usual(each_ms / mean.ms):
                return
            before = 1.0
        each = each_ms + (before * mean.ms - each_ms) * (1 - _SHARE) ** count
        self._costs = None
        if _is_usual(each_ms / mean.ms) and _is_usual(each / mean.ms):
            # As much as is known of any other.
            return
        self._lanes[lane] = each, mean
        if len(self._lanes) > LANES_MAX:
            del self._lanes[next(iter(self._lanes))]

    def _ratio(self, known: tuple[float, _Mean] | None) -> float | None:
        return None if known is None else known[0] / known[1].ms

    def cost(self, lane: int) -> float:
        """What a message of a lane is charged, in turns."""
        cost = self._ratio(self._lanes.get(lane))
        return 1.0 if cost is None or _is_usual(cost) else min(max(cost, 1 / COST_MAX), COST_MAX)

    def costs(self, lanes: Any) -> Any:
        """What a message of each of these lanes is charged; None: all are charged alike."""
        if not self._lanes:
            return None
        if self._costs is None:
            known = np.array(sorted(self._lanes), np.uint64)
            self._costs = known, np.array([self.cost(lane) for lane in known.tolist()])
        known, costs = self._costs
        at = np.minimum(np.searchsorted(known, lanes), len(known) - 1)
        return np.where(known[at] == lanes, costs[at], 1.0)

    def is_off(self, standing: int) -> bool:
        """Whether what stands has tags by costs that are off by half, and enough was settled to give it others."""
        if self._since < self._look_at or self._since < standing // 4:
            return False
        self._look_at = self._since + max(_LOOK_AFTER, len(self._lanes))
        return any(
            not 0.5 < self.cost(lane) / self._given.get(lane, 1.0) < 2.0 for lane in self._lanes.keys() | self._given
        )

    def note_tags(self) -> None:
        """What stands gets tags by what is known now."""
        self._given = {lane: self.cost(lane) for lane in self._lanes}
        self._since, self._look_at = 0, _LOOK_AFTER


def _is_usual(cost: float) -> bool:
    return _USUAL[0] <= cost <= _USUAL[1]


def service_of(tx: Transaction, partition: int) -> Service | None:
    """What is known of a partition's lanes; None: all cost the same."""
    found: Service | None = tx.recall(("service", partition))
    return found


def note_served(tx: Transaction, row: LeaseRow, keys: Keys, indexes: Sequence[int], until_ms: int) -> None:
    """Messages of a lease have been served, well or not."""
    service = service_of(tx, row.partition)
    if service is None:
        if keys.lanes is None:
            return
        service = Service()
        tx.remember(("service", row.partition), service)
    if len(indexes):
        lanes: Any = None if keys.lanes is None else np.frombuffer(keys.lanes, np.uint64)
        if lanes is not None and len(indexes) < row.count:
            lanes = lanes[list(indexes)]
        service.note(row, lanes, len(indexes), until_ms)
