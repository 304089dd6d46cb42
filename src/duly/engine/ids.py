"""Which message has an id: for dedupe, move, cancel and get.

Ids that Duly makes say where their message is. Ids given by publishers are kept as sorted runs of hashes, each
run with a filter that says "not here" nearly always when it is so, and folded like the runs of the index: a
B-tree of random ids would dirty a page for every message. The ids of the young end of the log (index.py) are
in no run yet; they are read from the log once, and remembered.

A hash leads to the place of the newest message with that id. Whether it is still there, and really has that
id, is for the caller to see (inquiry.py): the index forgets nothing before the log does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from ..errors import CorruptBlock
from ..message import MADE_ID_MARK, made_id
from ..store.contract import IdRunRow, TopicRow, Transaction
from .find import head_of

_FAN = 16
_BLOCK = 8192
# One id in four hundred that a run has not is looked for in it; in big ones, of which there are few, one in sixty.
_FILTER_BITS, _FILTER_BITS_BIG = 20, 10
_BIG = 1 << 20
_PLACE_BITS = 50
_COLUMNS = np.dtype([("hash", "<u8"), ("place", "<i8")])

Array = np.ndarray[Any, Any]


def made_place(topic: TopicRow, message_id: str) -> tuple[int, int] | None:
    """(partition number, offset) that an id made by Duly names, if it is of this topic."""
    if not message_id.startswith(MADE_ID_MARK):
        return None
    partition, _, offset = message_id[1:30].partition("-")
    try:
        place = int(partition), int(offset)
    except ValueError:
        return None
    # Written in the one way that Duly writes it.
    if made_id(*place) != message_id or place[0] not in topic.partitions:
        return None
    return topic.partitions.index(place[0]), place[1]


def hashes_of(ids: Sequence[str]) -> Array:
    """The hashes of ids."""
    return np.array([xxhash.xxh3_64_intdigest(text.encode()) for text in ids], np.uint64)


def find_places(tx: Transaction, topic: TopicRow, ids: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
    """(partition number, offset) of the newest message under each id; ids never seen are left out.

    In the young end there may be one in each partition: an id that was free again went into another lane.
    """
    made = {text: place for text in ids if (place := made_place(topic, text)) is not None}
    found: dict[str, list[tuple[int, int]]] = {text: [place] for text, place in made.items()}
    asked = set(ids)
    for number in range(len(topic.partitions)):
        newest: dict[str, int] = {}
        for part in young_ids(tx, topic, number):
            for text in part.keys() & asked:
                newest[text] = max(part[text], newest.get(text, 0))
        for text, offset in newest.items():
            found.setdefault(text, []).append((number, offset))
    unknown = [text for text in ids if text not in made] if made else ids
    runs = tx.id_runs(topic.tenant_id, topic.id) if unknown else []
    if runs:
        hashed = _search(tx, topic, runs, hashes_of(unknown))
        for text, place_number in zip(unknown, hashed.tolist(), strict=True):
            if place_number >= 0:
                place = (place_number >> _PLACE_BITS, place_number & (1 << _PLACE_BITS) - 1)
                found.setdefault(text, []).append(place)
    return found


def young_ids(tx: Transaction, topic: TopicRow, number: int) -> list[dict[str, int]]:
    """The ids of messages that are in the log and in no run of ids yet, with their offsets."""
    partition = topic.partitions[number]
    head = head_of(tx, topic.tenant_id, partition)
    known = tx.recall(("ids", partition))
    indexed_to = tx.ids_indexed_to(topic.tenant_id, partition) if known is None else known[0]
    seen_to: int = indexed_to if known is None else known[1]
    parts: list[dict[str, int]] = [] if known is None else list(known[2])
    start = max(seen_to, head.first_offset)
    if start < head.next_offset:
        parts.append(_read_ids(tx, topic, partition, start, head.next_offset))
    parts = [part for part in parts if part]
    if len(parts) > 8:
        parts = [{text: offset for part in parts for text, offset in part.items()}]
    tx.remember(("ids", partition), (indexed_to, head.next_offset, tuple(parts)))
    return parts


def _read_ids(tx: Transaction, topic: TopicRow, partition: int, start: int, stop: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for block in tx.blocks(topic.tenant_id, partition, start, stop):
        given = block.columns.values("id")
        for at, text in enumerate(given or ()):
            if text is not None and block.base + at >= start:
                found[text] = block.base + at
    return found


def index_ids(tx: Transaction, topic: TopicRow, partition: int, stop: int) -> None:
    """Makes a run of the ids of the young end, up to an offset."""
    number = topic.partitions.index(partition)
    try:
        parts = young_ids(tx, topic, number)
    except CorruptBlock:
        # Nobody can be told by an id that cannot be read.
        parts = []
    together = {text: offset for part in parts for text, offset in part.items() if offset < stop}
    if together:
        entries = np.empty(len(together), _COLUMNS)
        entries["hash"] = hashes_of(list(together))
        entries["place"] = np.fromiter(together.values(), np.int64, len(together)) | number << _PLACE_BITS
        _add(tx, topic, 0, entries)
        _fold(tx, topic)
    left = [{text: offset for text, offset in part.items() if offset >= stop} for part in parts]
    known = tx.recall(("ids", partition))
    seen_to = stop if known is None else known[1]
    if together or known is None or known[0] != stop:
        tx.ids_index_to(topic.tenant_id, partition, stop)
    tx.remember(("ids", partition), (stop, max(seen_to, stop), tuple(part for part in left if part)))


def _add(tx: Transaction, topic: TopicRow, level: int, entries: Array) -> None:
    """Writes a run; of equal hashes, given in the order of their age, the newest stays."""
    entries = entries[np.argsort(entries["hash"], kind="stable")]
    last = np.concatenate((entries["hash"][1:] != entries["hash"][:-1], [True]))
    entries = entries[last]
    row = IdRunRow(topic.id, level, len(entries), _filter(entries["hash"]))
    run = tx.id_run_insert(topic.tenant_id, row)
    for start in range(0, len(entries), _BLOCK):
        part = entries[start : start + _BLOCK]
        body = part.tobytes()
        stored = xxhash.xxh3_64_digest(body, run) + body
        tx.id_block_insert(
            topic.tenant_id, topic.id, run, start // _BLOCK, int(part["hash"][0] >> np.uint64(1)), stored
        )


def _fold(tx: Transaction, topic: TopicRow) -> None:
    """Makes one run of sixteen of a size."""
    level = 0
    while True:
        runs = sorted([run for run in tx.id_runs(topic.tenant_id, topic.id) if run.level == level], key=_age)
        if len(runs) < _FAN:
            return
        parts = [_block(tx, topic, run, number) for run in runs for number in range(-(-run.count // _BLOCK))]
        for run in runs:
            tx.id_run_delete(topic.tenant_id, topic.id, run.id)
        left = _still_wanted(tx, topic, np.concatenate(parts))
        if len(left):
            _add(tx, topic, level + 1, left)
        level += 1


def _still_wanted(tx: Transaction, topic: TopicRow, entries: Array) -> Array:
    """Without those whose message is gone from the log, and from the dedupe window."""
    lows = np.array([_known_from(tx, topic, partition) for partition in topic.partitions], np.int64)
    numbers = entries["place"] >> _PLACE_BITS
    wanted: Array = entries[(entries["place"] & (1 << _PLACE_BITS) - 1) >= lows[numbers]]
    return wanted


def _known_from(tx: Transaction, topic: TopicRow, partition: int) -> int:
    head = head_of(tx, topic.tenant_id, partition)
    kept = tx.kept_offsets(topic.tenant_id, partition)
    done = tx.done_low(topic.tenant_id, partition)
    return min([head.first_offset, *kept[:1], *([] if done is None else [done])])


def _age(run: IdRunRow) -> tuple[int, int]:
    """Oldest first: a fold is newer than those of its level, and older than all below."""
    return -run.level, run.id


def _block(tx: Transaction, topic: TopicRow, run: IdRunRow, number: int) -> Array:
    stored = tx.id_block(topic.tenant_id, topic.id, run.id, number)
    if stored is None or not is_whole(stored, run.id):
        raise CorruptBlock(
            f"The index of ids of topic {topic.name!r} is corrupt. Run `duly doctor`; restore a backup.",
            partition_id=0,
            base=0,
        )
    return np.frombuffer(stored, _COLUMNS, offset=8)


def is_whole(stored: bytes, run: int) -> bool:
    """Whether a block of a run of ids is as it was written, and where."""
    return xxhash.xxh3_64_digest(stored[8:], run) == stored[:8]


def _search(tx: Transaction, topic: TopicRow, runs: Sequence[IdRunRow], hashes: Array) -> Array:
    """The newest place of each hash, -1 for none."""
    places = np.full(len(hashes), -1, np.int64)
    for run in sorted(runs, key=_age):
        maybe = np.flatnonzero(_may_have(run.filter, hashes))
        if not len(maybe):
            continue
        firsts = tx.id_firsts(topic.tenant_id, topic.id, run.id)
        blocks = np.searchsorted(firsts, (hashes[maybe] >> np.uint64(1)).astype(np.int64), side="right") - 1
        for number in np.unique(blocks[blocks >= 0]).tolist():
            which = maybe[blocks == number]
            _look_up(_block(tx, topic, run, number), hashes, which, places)
            # A hash that begins a block may also end the one before: halves of hashes are compared here.
            begins = which[hashes[which] >> np.uint64(1) == np.uint64(firsts[number])]
            if number and len(begins):
                _look_up(_block(tx, topic, run, number - 1), hashes, begins, places)
    return places


def _look_up(entries: Array, hashes: Array, which: Array, places: Array) -> None:
    """Notes the places of those hashes that a block has."""
    found = np.ascontiguousarray(entries["hash"])
    at = np.minimum(np.searchsorted(found, hashes[which]), len(found) - 1)
    same = found[at] == hashes[which]
    places[which[same]] = entries["place"][at[same]]


# The filter: for every hash three bits, taken from different parts of it.


def _filter(hashes: Array) -> bytes:
    size = max(64, len(hashes) * (_FILTER_BITS if len(hashes) <= _BIG else _FILTER_BITS_BIG))
    bits = np.zeros(size, np.uint8)
    for at in _bits_of(hashes, size):
        bits[at] = 1
    return np.packbits(bits).tobytes() + size.to_bytes(4, "little")


def _may_have(stored: bytes, hashes: Array) -> Array:
    packed = np.frombuffer(stored, np.uint8)
    # As many as were asked for: rounding up to whole bytes must not change where a hash's bits are.
    size = int.from_bytes(stored[-4:], "little")
    found = np.ones(len(hashes), bool)
    for at in _bits_of(hashes, size):
        found &= (packed[at >> np.uint64(3)] >> (np.uint64(7) - (at & np.uint64(7))).astype(np.uint8)) & 1 == 1
    return found


def _bits_of(hashes: Array, size: int) -> list[Array]:
    count = np.uint64(size)
    return [hashes % count, (hashes >> np.uint64(17)) % count, (hashes * np.uint64(0x9E3779B97F4A7C15)) % count]
