"""What a process remembers between transactions, and may only trust inside one.

`Memory` is written through, with a journal to undo: a rollback puts back what was there, a
commit forgets the journal, and whoever cannot know whether a commit happened clears it all.
Definitions (and hints that cannot be wrong, only old) outlast other processes' commits as long as
those changed no definition; positions in the log do not. Only the thread that holds the write
transaction touches it. `BlockCache` holds what is immutable once it is committed, and readers share it; but ids
and offsets given in a transaction that is rolled back are given again, so a rollback clears it.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from .block import Block

_ABSENT = object()

# The first words of the keys that last until a definition is changed.
_LASTING = frozenset(
    {
        *("paused", "topic", "group", "seen", "turn", "claim turn", "operation turn"),
        *("young", "fold owed", "consumers", "outlook", "lease floor", "sealing", "unseal", "service", "tails"),
    }
)


class Memory:
    """Values by key, bounded in number, undone with the transaction. `lasting`: what else outlasts others' commits."""

    def __init__(self, entries_max: int = 300_000, *, lasting: Iterable[str] = ()) -> None:
        self._lasts = _LASTING.union(lasting)
        self._lasting: dict[tuple[Any, ...], Any] = {}
        self._passing: dict[tuple[Any, ...], Any] = {}
        self._undo: list[tuple[tuple[Any, ...], Any]] = []
        self._entries_max = entries_max

    def get(self, key: tuple[Any, ...]) -> Any:
        """The value, or None."""
        return (self._lasting if key[0] in self._lasts else self._passing).get(key)

    def put(self, key: tuple[Any, ...], value: Any) -> None:
        """Sets a value; None removes it."""
        values = self._lasting if key[0] in self._lasts else self._passing
        self._undo.append((key, values.get(key, _ABSENT)))
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value

    def forget_topics(self, tenant: str) -> None:
        """Removes the definitions of a tenant's topics."""
        for key in [key for key in self._lasting if key[0] == "topic" and key[1] == tenant]:
            self.put(key, None)

    def mark(self) -> int:
        """A point to go back to."""
        return len(self._undo)

    def undo_to(self, mark: int) -> None:
        """Puts back what was there at the mark."""
        while len(self._undo) > mark:
            key, before = self._undo.pop()
            values = self._lasting if key[0] in self._lasts else self._passing
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
    """The immutable things used last (blocks of the log, blocks and entries of runs), bounded in bytes.

    Keys begin with what it is; a log block's is ("block", partition, base).
    """

    def __init__(self, bytes_max: int = 48 * 1024 * 1024) -> None:
        self._held: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        # The log blocks held of every partition, by base: to find the one that holds an offset.
        self._bases: dict[int, list[int]] = {}
        self._bytes = 0
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...]) -> Any:
        """What is held under exactly that key."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return None
            self._held.move_to_end(key)
            return held[0]

    def block_with(self, partition: int, offset: int) -> Block | None:
        """The log block that holds an offset."""
        with self._lock:
            bases = self._bases.get(partition, ())
            at = bisect.bisect_right(bases, offset) - 1
            if at < 0:
                return None
            key = ("block", partition, bases[at])
            block: Block = self._held[key][0]
            self._held.move_to_end(key)
            return block if offset < block.end else None

    def put(self, key: tuple[Any, ...], value: Any, size: int) -> None:
        """Keeps something, dropping the oldest to make room."""
        if size > self._bytes_max // 4:
            return
        with self._lock:
            before = self._held.pop(key, None)
            self._held[key] = (value, size)
            self._bytes += size - (before[1] if before else 0)
            if key[0] == "block" and before is None:
                bisect.insort(self._bases.setdefault(key[1], []), key[2])
            while self._bytes > self._bytes_max:
                dropped, (_, freed) = self._held.popitem(last=False)
                self._bytes -= freed
                if dropped[0] == "block":
                    self._drop_base(dropped[1], dropped[2])

    def clear(self) -> None:
        """Forgets everything: what was read inside a transaction that is undone may be of no other."""
        with self._lock:
            self._held.clear()
            self._bases.clear()
            self._bytes = 0

    def _drop_base(self, partition: int, base: int) -> None:
        bases = self._bases[partition]
        del bases[bisect.bisect_left(bases, base)]
        if not bases:
            del self._bases[partition]
