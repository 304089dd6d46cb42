"""What every statement of a transaction goes through: named queries, memory, cache, savepoints.

Both stores that speak SQL share the rows (transaction.py, queue_rows.py, stage_rows.py). What differs is how a
statement reaches its database; a store says that in the few methods below that are not implemented here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ...engine.memory import BlockCache, Memory
from ...engine.secrets import Keyring
from ..contract import Aftermath
from .stored import StoredBytes

# Where memory, new things, events, rings, bytes stored and the audit stood.
Mark = tuple[int, int, tuple[int, int], set[int], dict[int, int], int]


class Rows:
    """One transaction. Without `memory` it is a reader's."""

    def __init__(
        self,
        *,
        now_ms: int,
        incarnation: str,
        memory: Memory | None,
        cache: BlockCache,
        stored: StoredBytes,
        keyring: Keyring,
    ) -> None:
        self.now_ms = now_ms
        self.keyring = keyring
        self.incarnation = incarnation
        self.aftermath = Aftermath()
        self._memory = memory
        self._cache = cache
        self._stored = stored
        # What this transaction wrote, for the cache once it is committed: ids of one rolled back are used again.
        self._new: dict[tuple[Any, ...], tuple[Any, int]] = {}

    # What a store has to add

    def _rows(self, query: str, **values: Any) -> Iterable[Any]:
        """Runs a named statement; its rows."""
        raise NotImplementedError

    def _one(self, query: str, **values: Any) -> Any:
        """The first row of a named statement, or None."""
        raise NotImplementedError

    def _count(self, query: str, **values: Any) -> int:
        """Runs a named statement; how many rows it changed."""
        raise NotImplementedError

    def _insert(self, query: str, **values: Any) -> int:
        """Inserts a row and answers the id that it got."""
        raise NotImplementedError

    def _savepoint(self) -> None:
        raise NotImplementedError

    def _savepoint_release(self) -> None:
        raise NotImplementedError

    def _savepoint_undo(self) -> None:
        raise NotImplementedError

    # Memory and cache

    def recall(self, key: tuple[Any, ...]) -> Any:
        return None if self._memory is None else self._memory.get(key)

    def remember(self, key: tuple[Any, ...], value: Any) -> None:
        if self._memory is not None:
            self._memory.put(key, value)

    def forget_topics(self, tenant: str) -> None:
        if self._memory is not None:
            self._memory.forget_topics(tenant)

    def cache(self, key: tuple[Any, ...], value: Any, size: int) -> None:
        self._cache.put(key, value, size)

    def cached(self, key: tuple[Any, ...]) -> Any:
        return self._cache.get(key)

    def committed(self) -> None:
        """Lets readers share the new blocks, now that they are there, and notes what they take."""
        if self.aftermath.stored:
            self._stored.add(self.aftermath.stored)
        for key, (value, size) in self._new.items():
            self._cache.put(key, value, size)

    def mark(self) -> Mark:
        """A savepoint, with everything that is kept beside the rows."""
        self._savepoint()
        memory = 0 if self._memory is None else self._memory.mark()
        after = self.aftermath
        told = (len(after.events), len(after.records))
        return memory, len(self._new), told, set(after.rings), dict(after.stored), after.audited

    def release(self) -> None:
        """Keeps what was done since the last mark."""
        self._savepoint_release()

    def back_to(self, mark: Mark) -> None:
        """Undoes what was done since the mark."""
        self._savepoint_undo()
        self._cache.clear()
        memory, blocks, (events, records), rings, stored, audited = mark
        if self._memory is not None:
            self._memory.undo_to(memory)
        for key in list(self._new)[blocks:]:
            del self._new[key]
        del self.aftermath.events[events:]
        del self.aftermath.records[records:]
        self.aftermath.rings = rings
        self.aftermath.stored = stored
        self.aftermath.audited = audited


def values_of(row: msgspec.Struct) -> dict[str, Any]:
    """A row as the values of a statement."""
    return {name: getattr(row, name) for name in row.__struct_fields__}
