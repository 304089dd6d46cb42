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


def block(base: int) -> Block:
    return Block(Place(1, 1, base), 1, 0, Columns(1, lists={"payload": [b"x"]}), [])


def test_the_block_cache_is_bounded_in_bytes_and_drops_the_oldest() -> None:
    cache = BlockCache(bytes_max=1000)
    for base in range(20):
        cache.put(block(base), 100)
    held = [base for base in range(20) if cache.get(1, base) is not None]
    assert held == list(range(10, 20))


def test_the_block_cache_does_not_take_what_would_fill_it() -> None:
    cache = BlockCache(bytes_max=1000)
    cache.put(block(1), 100)
    cache.put(block(2), 600)
    assert cache.get(1, 2) is None
    assert cache.get(1, 1) is not None


def test_putting_a_block_again_counts_it_once() -> None:
    cache = BlockCache(bytes_max=1000)
    for _ in range(50):
        cache.put(block(1), 100)
    for base in range(2, 11):
        cache.put(block(base), 100)
    assert cache.get(1, 1) is not None


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
