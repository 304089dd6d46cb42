"""What the examination of a store looks for in every database, and how it says so."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from ...engine.block import OF_A_RUN, Place, decode
from ...engine.entries import decode_entries, place_of
from ...engine.ids import is_whole
from ...errors import Sealed
from ...health import Finding
from .sealed_examination import Opening

_CLOCK_BEHIND_MS_WARN = 1000
# What rows lead to that hold something else than they should: it ends one check, and no other.
NONSENSE = (ValueError, TypeError, LookupError, ArithmeticError, struct.error)


def paused(why: str) -> Finding:
    return Finding(
        "warn",
        f"The store is paused: {why}.",
        "Nothing is delivered and nothing is dropped by age. Publishing goes on.",
        "When it may work again, run: duly resume",
    )


def clock(*, now_ms: int, newest_ms: int) -> Finding:
    """How the clock stands to the newest moment that the store has seen."""
    behind = newest_ms - now_ms
    if behind <= _CLOCK_BEHIND_MS_WARN:
        return Finding("ok", "The clock is not behind the store")
    return Finding(
        "warn",
        f"The clock is {behind / 1000:.1f} s behind the newest claim in the store.",
        "It was set back, or another machine wrote here: leases and retries wait that much longer.",
        "Check the host's time synchronisation.",
    )


def bad_block(what: str) -> Finding:
    return Finding(
        "alert",
        what,
        "Its messages are refused, and a group that gets there stops.",
        "Restore the newest backup, or give the messages up: duly groups seek TOPIC GROUP --offset N",
    )


def missing_offsets(partition: int, low: int, high: int) -> Finding:
    """[low, high) are in no block."""
    return bad_block(f"Offsets {low} to {high - 1} of partition {partition} are missing.")


def read_too_far(partition: int, ends: int, reached: int) -> Finding:
    return bad_block(f"Partition {partition} ends at offset {ends}, but a group has read up to {reached}.")


def good_blocks(count: int, closed: int) -> Finding:
    """`closed`: those that are sealed, and whose key is not here."""
    more = f", and of {closed} more that are sealed, and not opened" if closed else ""
    return Finding("ok", f"{count} blocks, every checksum right{more}")


def bad_run(what: str) -> Finding:
    return Finding(
        "alert",
        what,
        "Where the log still has the messages they are served from there; else their queue stops before them.",
        "Restore the newest backup.",
    )


def good_runs(count: int) -> Finding:
    return Finding("ok", f"{count} blocks of queues' runs, every checksum right")


def check_run_block(
    place: Place, run: int, index: int, *, entries: object, stored: Any, opened: Opening
) -> Finding | None:
    """Whether a block of a run is whole: None. Raises CorruptBlock."""
    found = decode_entries(entries, place_of(run, index), partition=place.partition, run=run)
    where = Place(place.tenant, place.partition, place_of(run, index))
    try:
        block = decode(where, stored, unseal=opened.unseal, bound=OF_A_RUN)
    except Sealed:
        # Its checksum is right, and there is no key to look further.
        return None
    if block.count != len(found):
        return bad_run(f"Block {index} of run {run} has {len(found)} entries for {block.count} messages.")
    return opened.forged_run(place, stored, found.seq.tolist())


def pieces_of_nobody(count: int, size: int) -> Iterator[Finding]:
    if count:
        yield Finding(
            "warn",
            f"{count} pieces of the log, {size / 1e6:.1f} MB, belong to no block.",
            "They take space, and nothing else: nobody reads them.",
            "Send this report to us; a backup that is restored keeps them.",
        )


def lost_references(table: str, count: int) -> Iterator[Finding]:
    if count:
        yield Finding(
            "alert",
            f"{count} rows of {table} refer to messages that are gone.",
            "Their payloads cannot be delivered.",
            "Restore the newest backup; please report this.",
        )


def id_blocks(rows: Iterable[tuple[Any, ...]]) -> Iterator[Finding]:
    """Every block of the index of ids, given as (topic, run, index, stored)."""
    good = bad = 0
    for topic, run, index, stored in rows:
        if isinstance(stored, bytes) and isinstance(run, int) and is_whole(stored, run):
            good += 1
            continue
        bad += 1
        yield Finding(
            "alert",
            f"Block {index} of run {run} of the index of ids of topic {topic} is corrupt.",
            "Publishes with ids to that topic, and whoever looks for one of them, are refused.",
            "Restore the newest backup.",
        )
    if not bad:
        yield Finding("ok", f"{good} blocks of the index of ids, every checksum right")


def unreadable(error: Exception, what: str) -> Finding:
    why = "It is damaged below Duly."
    return Finding("alert", f"{what} cannot be read: {error}", why, "Restore the newest backup.")
