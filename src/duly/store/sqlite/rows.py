"""What every statement of a transaction goes through: named queries, memory, cache, savepoints."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from ...engine.memory import BlockCache, Memory
from ..contract import Aftermath
from .queries import queries

# Where memory, new things, events and rings stood.
Mark = tuple[int, int, tuple[int, int], set[int]]


class Rows:
    """One transaction on a connection. Without `memory` it is a reader's."""

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        now_ms: int,
        incarnation: str,
        memory: Memory | None,
        cache: BlockCache,
    ) -> None:
        self.now_ms = now_ms
        self.incarnation = incarnation
        self.aftermath = Aftermath()
        self._connection = connection
        self._execute = connection.execute
        self._memory = memory
        self._cache = cache
        # What this transaction wrote, for the cache once it is committed: ids of one rolled back are used again.
        self._new: dict[tuple[Any, ...], tuple[Any, int]] = {}
        self._sql = queries()
        self._changes_before = connection.total_changes()

    @property
    def wrote(self) -> bool:
        """Whether it has changed anything so far."""
        return self._connection.total_changes() != self._changes_before

    def clock_mark(self) -> str | None:
        """Where the store's clock stood; see store_clock.py."""
        row = self._execute(self._sql["clock_mark"]).fetchone()
        return None if row is None else str(row[0])

    def clock_mark_put(self, mark: str) -> None:
        self._execute(self._sql["clock_mark_put"], {"mark": mark})

    def recall(self, key: tuple[Any, ...]) -> Any:
        return None if self._memory is None else self._memory.get(key)

    def remember(self, key: tuple[Any, ...], value: Any) -> None:
        if self._memory is not None:
            self._memory.put(key, value)

    def cache(self, key: tuple[Any, ...], value: Any, size: int) -> None:
        self._cache.put(key, value, size)

    def cached(self, key: tuple[Any, ...]) -> Any:
        return self._cache.get(key)

    def committed(self) -> None:
        """Lets readers share the new blocks, now that they are there."""
        for key, (value, size) in self._new.items():
            self._cache.put(key, value, size)

    def mark(self) -> Mark:
        """A savepoint, with everything that is kept beside the rows."""
        self._execute("SAVEPOINT duly")
        memory = 0 if self._memory is None else self._memory.mark()
        told = (len(self.aftermath.events), len(self.aftermath.records))
        return memory, len(self._new), told, set(self.aftermath.rings)

    def release(self) -> None:
        """Keeps what was done since the last mark."""
        self._execute("RELEASE duly")

    def back_to(self, mark: Mark) -> None:
        """Undoes what was done since the mark."""
        self._execute("ROLLBACK TO duly")
        self._execute("RELEASE duly")
        self._cache.clear()
        memory, blocks, (events, records), rings = mark
        if self._memory is not None:
            self._memory.undo_to(memory)
        for key in list(self._new)[blocks:]:
            del self._new[key]
        del self.aftermath.events[events:]
        del self.aftermath.records[records:]
        self.aftermath.rings = rings

    def _rows(self, query: str, **values: Any) -> Any:
        return self._execute(self._sql[query], values)

    def _one(self, query: str, **values: Any) -> Any:
        return self._execute(self._sql[query], values).fetchone()

    def _count(self, query: str, **values: Any) -> int:
        self._execute(self._sql[query], values)
        return self._connection.changes()


def values_of(row: msgspec.Struct) -> dict[str, Any]:
    """A row as the values of a statement."""
    return {name: getattr(row, name) for name in row.__struct_fields__}
