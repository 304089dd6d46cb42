"""Messages of the log's young end, gathered ahead in the order in which they will be served.

Where many lanes take turns, each claim's messages lie in as many blocks as there are lanes: to pick one from each of a
hundred takes longer than all the rest of the claim. So whoever asks for such messages has those of the next few claims
picked with them, block by block. They are kept by offset, so whatever comes between is looked up by itself; and only
once the transaction is committed, as it may have stored some of them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from ..errors import CorruptBlock
from ..store.contract import Transaction
from .columns import Columns, gather
from .lookup import light_messages_at, messages_at, without_big

# So many lie ahead at most: what is gathered for nobody, because somebody else serves it, costs as much.
AHEAD_MAX = 2_048
# Nothing is gathered ahead for fewer, nor where one in so many is followed by its neighbour.
_FEW = 16
_DENSE = 2


class Gathered(msgspec.Struct, frozen=True):
    """Messages by offset: big payloads left out, as in a run."""

    # Ascending, and where each is.
    seqs: Any
    places: Any
    columns: Columns

    def find(self, seqs: Any) -> tuple[Any, Any]:
        """Which of some offsets are here, and where those are."""
        at = np.minimum(np.searchsorted(self.seqs, seqs), len(self.seqs) - 1)
        here = self.seqs[at] == seqs
        return here, self.places[at[here]]


def gathered_at(tx: Transaction, tenant_id: int, partition: int, seqs: Any, coming: Callable[[], Any]) -> Columns:
    """The messages at these offsets, in this order; `coming`: the offsets that will be asked for next."""
    known: Gathered | None = tx.cached(("gathered", partition))
    if known is not None:
        here, at = known.find(seqs)
        if here.all():
            return _picked(known.columns, at)
        if 2 * len(at) >= len(seqs):
            others = messages_at(tx, tenant_id, partition, seqs[~here])
            order = np.empty(len(seqs), np.int64)
            order[here] = np.arange(len(at))
            order[~here] = len(at) + np.arange(others.count)
            return gather([_picked(known.columns, at), others], order)
    if not _scattered(seqs):
        return messages_at(tx, tenant_id, partition, seqs)
    ahead = coming()
    try:
        columns = without_big(light_messages_at(tx, tenant_id, partition, ahead))
    except CorruptBlock:
        # It may lie behind what is asked for.
        return messages_at(tx, tenant_id, partition, seqs)
    order = np.argsort(ahead)
    found = Gathered(ahead[order], order, columns)
    tx.keep(("gathered", partition), found, columns.bytes + 100 * columns.count)
    return _picked(columns, found.find(seqs)[1])


def _scattered(seqs: Any) -> bool:
    """Whether messages lie in many places of the log."""
    if len(seqs) < _FEW:
        return False
    ascending = np.sort(seqs)
    return int((np.diff(ascending) == 1).sum()) * _DENSE < len(seqs)


def _picked(columns: Columns, at: Any) -> Columns:
    """Some of a batch; those that stand together are not copied."""
    first = int(at[0])
    if bool((np.diff(at) == 1).all()):
        return columns.slice(first, first + len(at))
    return columns.take(at)
