"""The store as a whole, paused and resumed.

A paused store delivers nothing, of any topic or tenant, and drops nothing: claims wait as on a paused topic, `held`
gives nothing back, retention rests, cron does not tick. Publishing goes on, and so does settling what was held.

A restored store opens paused (store/sqlite/restore.py). The leases in it were given by the store it is a copy of,
whose tokens are refused here: nobody can settle them. So resuming it frees them, at once and without counting an
attempt; to let them run out would hold their messages for as long, and take them for the victims of a crash.

A store that moved (`duly migrate`) stays behind paused, and refuses to publish and to claim: who still comes should be
where it went, and would neither notice nor be served. Resumed, it is a store like any other, with the same messages
as the one that it became.
"""

from __future__ import annotations

import msgspec

from ..errors import Conflict
from ..grants import NOBODY, By
from ..store.contract import LEASED, Transaction
from ..tenant import OPERATORS
from .audit import note_done
from .release import release_rows

BY_HAND = "paused by hand"
RESTORED = "restored"
MOVED = "moved to "
# Partitions share so many slots of the bell: ringing these wakes everyone.
EVERYONE = range(1024)


class PauseStore(msgspec.Struct, frozen=True):
    """Stop all deliveries, or start them again."""

    tenant: str
    paused: bool
    by: By = NOBODY


def is_paused(tx: Transaction) -> bool:
    """Whether the whole store is paused."""
    return bool(_why(tx))


def refuse_if_moved(tx: Transaction) -> None:
    """Raises Conflict in a store that has moved elsewhere."""
    if _why(tx).startswith(MOVED):
        raise Conflict(
            f"This store has {_why(tx)}. Nothing was done: connect there. To use this one all the same, beside the "
            "other, with the messages of both: duly resume."
        )


def _why(tx: Transaction) -> str:
    why: str | None = tx.recall(("paused",))
    if why is None:
        why = tx.store_paused() or ""
        tx.remember(("paused",), why)
    return why


def pause_store(tx: Transaction, command: PauseStore) -> None:
    """Pauses or resumes. What was restored stays so until it is resumed."""
    why = tx.store_paused()
    if command.paused:
        tx.store_pause(why or BY_HAND)
    elif why is not None:
        tx.store_pause(None)
        if why.startswith(RESTORED):
            _free_everything(tx)
        tx.aftermath.rings.update(EVERYONE)
    tx.remember(("paused",), None)
    # Of a store that was restored nobody could note that while it was closed.
    note_done(tx, OPERATORS, command, ended=None if command.paused else why)


def _free_everything(tx: Transaction) -> None:
    for partition, group_id in tx.leased_groups():
        topic = tx.topic_of_partition(partition)
        groups = [] if topic is None else [group for group in tx.group_list(topic.id) if group.id == group_id]
        for group in groups:
            assert topic is not None
            rows = [row for row in tx.leases(topic.tenant_id, partition, group_id) if row.state == LEASED]
            release_rows(tx, topic, group, rows)
