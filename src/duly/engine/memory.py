"""What a process remembers between transactions, and may only trust inside one.

`Memory` is written through, with a journal to undo: a rollback puts back what was there, a
commit forgets the journal, and whoever cannot know whether a commit happened clears it all.
Definitions (and hints that cannot be wrong, only old) outlast other processes' commits as long as
those changed no definition; positions in the log do not. Only the thread that holds the write
transaction touches it. `BlockCache` holds immutable blocks, which cannot go stale: readers share it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from .block import Block

_ABSENT = object()

# The first words of the keys that last until a definition is changed.
_LASTING = frozenset({"topic", "group", "seen", "turn", "claim turn"})


class Memory:
    """Values by key, bounded in number, undone with the transaction."""

    def __init__(self, entries_max: int = 300_000) -> None:
        self._lasting: dict[tuple[Any, ...], Any] = {}
        self._passing: dict[tuple[Any, ...], Any] = {}
        self._undo: list[tuple[tuple[Any, ...], Any]] = []
        self._entries_max = entries_max

    def get(self, key: tuple[Any, ...]) -> Any:
        """The value, or None."""
        return (self._lasting if key[0] in _LASTING else self._passing).get(key)

    def put(self, key: tuple[Any, ...], value: Any) -> None:
        """Sets a value; None removes it."""
        values = self._lasting if key[0] in _LASTING else self._passing
        self._undo.append((key, values.get(key, _ABSENT)))
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value

    def mark(self) -> int:
        """A point to go back to."""
        return len(self._undo)

    def undo_to(self, mark: int) -> None:
        """Puts back what was there at the mark."""
        while len(self._undo) > mark:
            key, before = self._undo.pop()
            values = self._lasting if key[0] in _LASTING else self._passing
            if before is _ABSENT:
                values.pop(key, None)
            else:
                values[key] = before

    def commit(self) -> None:
        """Keeps everything; drops the oldest tenth when there is too much."""
        self._undo.clear()
        for values in (self._lasting, self._passing):
            if len(values) > self._entries_max:
                for key in list(values)[: self._entries_max // 10]:
                    del values[key]

    def pass_over(self) -> None:
        """Somebody else wrote, but changed no definition."""
        self._passing.clear()

    def clear(self) -> None:
        """Forgets everything: a definition was changed elsewhere, or an outcome is unknown."""
        self._lasting.clear()
        self._passing.clear()
        self._undo.clear()


class BlockCache:
    """The blocks used last, bounded in bytes."""

    def __init__(self, bytes_max: int = 16 * 1024 * 1024) -> None:
        self._blocks: OrderedDict[tuple[int, int], tuple[Block, int]] = OrderedDict()
        self._bytes = 0
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    def get(self, partition: int, base: int) -> Block | None:
        """The block that begins exactly there."""
        with self._lock:
            held = self._blocks.get((partition, base))
            return None if held is None else held[0]

    def put(self, block: Block, size: int) -> None:
        """Keeps a block, dropping the oldest to make room."""
        if size > self._bytes_max // 4:
            return
        key = (block.place.partition, block.place.base)
        with self._lock:
            before = self._blocks.pop(key, None)
            self._blocks[key] = (block, size)
            self._bytes += size - (before[1] if before else 0)
            while self._bytes > self._bytes_max:
                _, (_, dropped) = self._blocks.popitem(last=False)
                self._bytes -= dropped
