"""What a process remembers: undone with the transaction, bounded, never trusted too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duly.engine.block import Block, Place
from duly.engine.columns import Columns
from duly.engine.memory import BlockCache, Memory

Writes = list[tuple[int, int | None]]
writes = st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 9)), max_size=12)


def contents(memory: Memory) -> list[object]:
    return [memory.get((key,)) for key in range(6)]


@given(writes, writes)
def test_going_back_to_a_mark_puts_everything_back(before: Writes, after: Writes) -> None:
    memory = Memory()
    for key, value in before:
        memory.put((key,), value)
    memory.commit()
    kept, mark = contents(memory), memory.mark()
    for key, value in after:
        memory.put((key,), value)
    memory.undo_to(mark)
    assert contents(memory) == kept


def test_a_mark_inside_keeps_what_came_before_it() -> None:
    memory = Memory()
    memory.put(("a",), 1)
    mark = memory.mark()
    memory.put(("a",), 2)
    memory.put(("b",), 3)
    memory.undo_to(mark)
    assert (memory.get(("a",)), memory.get(("b",))) == (1, None)


def test_memory_is_bounded() -> None:
    memory = Memory(entries_max=100)
    for n in range(1000):
        memory.put((n,), n)
        memory.commit()
    assert sum(memory.get((n,)) is not None for n in range(1000)) <= 100
    assert memory.get((999,)) == 999


def test_clearing_forgets_everything() -> None:
    memory = Memory()
    memory.put(("a",), 1)
    memory.clear()
    memory.undo_to(0)
    assert memory.get(("a",)) is None


def block(base: int, *, count: int = 1, partition: int = 1) -> Block:
    return Block(Place(1, partition, base), count, 0, Columns(count, lists={"payload": [b"x"] * count}), [])


def keep(cache: BlockCache, kept: Block, size: int) -> None:
    cache.put(("block", kept.place.partition, kept.place.base), kept, size)


def test_the_block_cache_is_bounded_in_bytes_and_drops_the_oldest() -> None:
    cache = BlockCache(bytes_max=1000)
    for base in range(20):
        keep(cache, block(base), 100)
    held = [base for base in range(20) if cache.get(("block", 1, base)) is not None]
    assert held == list(range(10, 20))
    assert [base for base in range(20) if cache.block_with(1, base) is not None] == held


def test_the_block_cache_does_not_take_what_would_fill_it() -> None:
    cache = BlockCache(bytes_max=1000)
    keep(cache, block(1), 100)
    keep(cache, block(2), 600)
    assert cache.get(("block", 1, 2)) is cache.block_with(1, 2) is None
    assert cache.get(("block", 1, 1)) is not None


def test_putting_a_block_again_counts_it_once() -> None:
    cache = BlockCache(bytes_max=1000)
    for _ in range(50):
        keep(cache, block(1), 100)
    for base in range(2, 11):
        keep(cache, block(base), 100)
    # All ten fit. Looking at one makes it the newest.
    assert cache.get(("block", 1, 1)) is not None
    keep(cache, block(11), 100)
    assert cache.get(("block", 1, 1)) is not None
    assert cache.block_with(1, 2) is cache.get(("block", 1, 2)) is None


def test_a_block_is_found_by_any_offset_that_it_holds() -> None:
    cache = BlockCache(bytes_max=1000)
    low, high, elsewhere = block(10, count=5), block(20, count=3), block(12, count=100, partition=2)
    for kept in (high, elsewhere, low):
        keep(cache, kept, 10)
    found = {offset: cache.block_with(1, offset) for offset in range(8, 26)}
    assert [offset for offset, at in found.items() if at is low] == [10, 11, 12, 13, 14]
    assert [offset for offset, at in found.items() if at is high] == [20, 21, 22]
    assert sum(at is None for at in found.values()) == len(found) - 8
    assert cache.block_with(2, 111) is elsewhere
    assert cache.block_with(3, 12) is None


def test_the_cache_keeps_other_things_beside_blocks_under_their_own_keys() -> None:
    cache = BlockCache(bytes_max=1000)
    keep(cache, block(7), 100)
    cache.put(("entries", 1, 7), "entries of a run", 100)
    assert cache.get(("entries", 1, 7)) == "entries of a run"
    assert cache.get(("entries", 1, 8)) is None
    assert cache.block_with(1, 7) is cache.get(("block", 1, 7))
    for number in range(10):
        cache.put(("entries", 2, number), number, 100)
    assert cache.block_with(1, 7) is None
    assert cache.get(("entries", 2, 8)) == 8


places = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 12)), max_size=60)


@given(places)
def test_the_cache_finds_by_offset_exactly_what_it_holds(kept: list[tuple[int, int]]) -> None:
    cache = BlockCache(bytes_max=500)
    for partition, number in kept:
        keep(cache, block(10 * number, count=7, partition=partition), 100)
    for partition in (1, 2):
        for offset in range(130):
            held = cache.get(("block", partition, offset - offset % 10))
            assert cache.block_with(partition, offset) is (held if offset % 10 < 7 else None)


def test_definitions_outlast_other_processes_commits_and_positions_do_not() -> None:
    memory = Memory()
    memory.put(("topic", "t", "orders"), "definition")
    memory.put(("head", 1), "position")
    memory.commit()
    memory.pass_over()
    assert memory.get(("topic", "t", "orders")) == "definition"
    assert memory.get(("head", 1)) is None
    memory.clear()
    assert memory.get(("topic", "t", "orders")) is None


def test_a_cleared_cache_holds_nothing() -> None:
    cache = BlockCache(bytes_max=10_000)
    cache.put(("run", 1, 0), "old", 10)
    cache.put(("block", 7, 0), Block(Place(1, 7, 0), 1, 0, Columns(1, lists={"payload": [b"x"]}), []), 10)
    cache.clear()
    assert cache.get(("run", 1, 0)) is None
    assert cache.block_with(7, 0) is None
    cache.put(("run", 1, 0), "new", 10)
    assert cache.get(("run", 1, 0)) == "new"
