"""Runs of ids: every hash is found in whichever block it lies, and no other is."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from duly.engine import ids
from duly.store.contract import IdRunRow, TopicRow, Transaction

BLOCK = ids._BLOCK


class Rows:
    """The rows of runs, in memory."""

    def __init__(self) -> None:
        self.runs: list[IdRunRow] = []
        self.blocks: dict[tuple[int, int], tuple[int, bytes]] = {}

    def id_run_insert(self, _: int, row: IdRunRow) -> int:
        self.runs.append(IdRunRow(row.topic, row.level, row.count, row.filter, len(self.runs) + 1))
        return len(self.runs)

    def id_block_insert(self, _: int, __: int, run: int, index: int, first: int, stored: bytes) -> None:
        self.blocks[run, index] = first, stored

    def id_block(self, _: int, __: int, run: int, index: int) -> bytes:
        return self.blocks[run, index][1]

    def id_firsts(self, _: int, __: int, run: int) -> list[int]:
        return [first for (mine, _), (first, _) in sorted(self.blocks.items()) if mine == run]


class Topic:
    id, tenant_id, name = 1, 1, "t"


def places(rows: Rows, hashes: list[int]) -> list[int]:
    found = ids._search(cast(Transaction, rows), cast(TopicRow, Topic()), rows.runs, np.array(hashes, np.uint64))
    return [int(place) for place in found]


def add(rows: Rows, entries: dict[int, int]) -> None:
    given: Any = np.array(list(entries.items()), ids._COLUMNS)
    ids._add(cast(Transaction, rows), cast(TopicRow, Topic()), 0, given)


def test_hashes_that_differ_in_their_last_bit_on_both_sides_of_a_block_s_end() -> None:
    rows = Rows()
    # The first block ends with an even hash, the second begins with the odd one above it: their halves are the same.
    below = {10 * n: n for n in range(1, BLOCK)}
    twins = {10 * BLOCK: 100_001, 10 * BLOCK + 1: 100_002}
    add(rows, {**below, **twins, **{10 * BLOCK + 10 * n: 200_000 + n for n in range(1, 50)}})
    assert len(rows.blocks) == 2
    assert places(rows, list(twins)) == [100_001, 100_002]
    assert places(rows, list(below)) == list(below.values())
    assert places(rows, [7, 10 * BLOCK + 2, 10 * BLOCK - 1, 2**64 - 1]) == [-1] * 4


def test_the_newest_run_wins() -> None:
    rows = Rows()
    add(rows, {5: 1, 6: 2})
    add(rows, {6: 3, 7: 4})
    assert places(rows, [5, 6, 7, 8]) == [1, 3, 4, -1]
