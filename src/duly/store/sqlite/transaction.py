"""The store contract's transaction on an SQLite connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import apsw

from ...engine.memory import BlockCache, Memory
from ...engine.secrets import Keyring
from ..contract import BlockMeta
from ..sql.stored import StoredBytes
from ..sql.transaction import SqlTransaction
from .queries import queries

# Free pages worth giving back: fewer are soon used again.
_FREE_PAGES_MIN = 512
# A row of a table by key has so much in its page (of 4096 bytes), and what is more in pages of its own; where SQLite
# compares keys it reads all of them. Longer blocks are kept out of the table.
_SHORT_BYTES = 900


class SqliteTransaction(SqlTransaction):
    """Rows and blocks inside one transaction."""

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        now_ms: int,
        incarnation: str,
        memory: Memory | None,
        cache: BlockCache,
        stored: StoredBytes,
        keyring: Keyring,
    ) -> None:
        super().__init__(
            now_ms=now_ms, incarnation=incarnation, memory=memory, cache=cache, stored=stored, keyring=keyring
        )
        self._connection = connection
        self._execute = connection.execute
        self._sql = queries()
        self._changes_before = connection.total_changes()

    @property
    def wrote(self) -> bool:
        """Whether it has changed anything so far."""
        return self._connection.total_changes() != self._changes_before

    def clock_mark(self) -> str | None:
        """Where the store's clock stood; see store_clock.py."""
        row = self._one("clock_mark")
        return None if row is None else str(row[0])

    def clock_mark_put(self, mark: str) -> None:
        self._rows("clock_mark_put", mark=mark)

    # How statements run

    def _rows(self, query: str, **values: Any) -> Iterable[Any]:
        return self._execute(self._sql[query], values)

    def _one(self, query: str, **values: Any) -> Any:
        return self._execute(self._sql[query], values).fetchone()

    def _count(self, query: str, **values: Any) -> int:
        self._execute(self._sql[query], values)
        return self._connection.changes()

    def _insert(self, query: str, **values: Any) -> int:
        self._execute(self._sql[query], values)
        return self._connection.last_insert_rowid()

    def _savepoint(self) -> None:
        self._execute("SAVEPOINT duly")

    def _savepoint_release(self) -> None:
        self._execute("RELEASE duly")

    def _savepoint_undo(self) -> None:
        self._execute("ROLLBACK TO duly")
        self._execute("RELEASE duly")

    # What SQLite does its own way

    def block_insert(
        self, tenant_id: int, partition: int, meta: BlockMeta, block: Any, stored: bytes, chunk: int | None = None
    ) -> None:
        if len(stored) > _SHORT_BYTES and chunk is None:
            chunk, stored = self.chunk_insert(tenant_id, stored), b""
        super().block_insert(tenant_id, partition, meta, block, stored, chunk)

    def runs_move(self, tenant_id: int, partition: int, positions: Mapping[int, int]) -> None:  # noqa: ARG002
        self._connection.executemany(self._sql["run_move"], [{"id": run, "pos": pos} for run, pos in positions.items()])

    def event_rows_delete(self, ids: Sequence[int]) -> None:
        # They are read in order, and nobody else writes meanwhile: all up to the last.
        self._rows("event_rows_delete", upto=ids[-1])

    def give_back_space(self, pages_max: int) -> bool:
        ((free,),) = self._execute("PRAGMA freelist_count")
        self.aftermath.freed = free < _FREE_PAGES_MIN + pages_max
        if free < _FREE_PAGES_MIN:
            return False
        self._execute(f"PRAGMA incremental_vacuum({min(free, pages_max)})").fetchall()
        return free - pages_max >= _FREE_PAGES_MIN
