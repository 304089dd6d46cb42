"""Messages of named lanes that have just become ready, before they get their tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from .columns import Columns
from .entries import Entries
from .fairness import Tails, standing_in


class Untagged(msgspec.Struct, frozen=True):
    """Messages of named lanes that have just become ready. `turns`: they had tags, in this order within each lane."""

    entries: Entries
    weights: Any
    columns: Columns | None
    young: bool
    turns: Any = None


def weights_or_ones(weights: Any, count: int) -> Any:
    """Weights of so many messages; None: all have the usual."""
    return np.ones(count) if weights is None else weights


def split(part: Untagged, stale: Sequence[Tails]) -> tuple[Untagged | None, Untagged | None]:
    """What gets its turn now, and what goes behind messages of its lane that wait for theirs."""
    if part.turns is not None:
        return part, None
    behind = standing_in(part.entries, stale)
    if not behind.any():
        return part, None
    return (None if behind.all() else _some(part, np.flatnonzero(~behind))), _some(part, np.flatnonzero(behind))


def _some(part: Untagged, at: Any) -> Untagged:
    columns = None if part.columns is None else part.columns.take(at)
    return Untagged(part.entries.take(at), part.weights[at], columns, part.young)
