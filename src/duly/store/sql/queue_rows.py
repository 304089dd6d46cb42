"""A queue's part of the store contract's transaction: runs, holes, loose messages, lanes, ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...engine.block import OF_A_RUN, Block, Place, decode
from ...engine.entries import Entries, decode_entries, encode_entries, place_of
from ..contract import (
    HoleRow,
    IdRunRow,
    LaneRow,
    LooseRow,
    QueueRow,
    RunRow,
    WaitRow,
)
from .rows import values_of
from .secret_rows import BROKEN_HISTORY, SecretRows

# What is erased with a queue's partition.
OF_A_QUEUE = (
    "queue_delete",
    "queue_runs_erase",
    "queue_blocks_erase",
    "queue_data_erase",
    "queue_holes_erase",
    "queue_loose_erase",
    "ids_to_delete",
    "done_erase",
    "lanes_erase",
    "lane_waits_erase",
)

_times = msgspec.msgpack.Decoder(tuple[tuple[int, float, float], ...])


class QueueRows(SecretRows):
    """The rows of queues inside one transaction."""

    # Queues

    def queue(self, tenant_id: int, partition: int) -> QueueRow:
        row = self._one("queue", tenant=tenant_id, partition=partition)
        return QueueRow() if row is None else QueueRow(row[0], row[1], _times.decode(row[2]))

    def queue_put(self, tenant_id: int, partition: int, row: QueueRow) -> None:
        times = msgspec.msgpack.encode(row.times)
        self._rows(
            "queue_put",
            tenant=tenant_id,
            partition=partition,
            absorbed_to=row.absorbed_to,
            taken=row.taken,
            times=times,
        )

    def runs(self, tenant_id: int, partition: int) -> list[RunRow]:
        rows = self._rows("runs", tenant=tenant_id, partition=partition)
        return [RunRow(*row) for row in rows]

    def run_insert(self, tenant_id: int, row: RunRow) -> int:
        return self._insert("run_insert", tenant=tenant_id, **values_of(row))

    def run_update(self, row: RunRow) -> None:
        self._rows("run_update", **values_of(row))

    def run_delete(self, tenant_id: int, partition: int, run: int) -> None:
        self._rows("run_delete", partition=partition, id=run)
        for query in ("run_blocks_delete", "run_data_delete", "holes_delete"):
            self._rows(query, tenant=tenant_id, partition=partition, run=run)

    def run_trim(self, tenant_id: int, partition: int, row: RunRow) -> None:
        for query in ("run_blocks_trim", "run_data_trim"):
            self._rows(query, tenant=tenant_id, partition=partition, run=row.id, blocks=row.blocks)
        self.run_update(row)

    def run_block_insert(
        self,
        tenant_id: int,
        partition: int,
        run: int,
        index: int,
        entries: Any,
        block: Any,
        stored: bytes,
        *,
        soon: bool,
    ) -> None:
        place = {"tenant": tenant_id, "partition": partition, "run": run, "idx": index}
        self._rows("run_block_insert", **place, entries=encode_entries(entries, place_of(run, index)))
        self._rows("run_data_insert", **place, data=stored)
        if soon:
            self.keep(("entries", partition, run, index), entries, entries.bytes)
            self.keep(("run", partition, run, index), block, len(stored))

    def run_entries(self, tenant_id: int, partition: int, run: int, index: int) -> Entries:
        key = ("entries", partition, run, index)
        entries: Entries | None = self._at_hand(key)
        if entries is None:
            row = self._one("run_entries", tenant=tenant_id, partition=partition, run=run, idx=index)
            entries = decode_entries(row and row[0], place_of(run, index), partition=partition, run=run)
            self._cache.put(key, entries, entries.bytes)
        return entries

    def run_block(self, tenant_id: int, partition: int, run: int, index: int) -> Block:
        key = ("run", partition, run, index)
        block: Block | None = self._at_hand(key)
        if block is None:
            row = self._one("run_data", tenant=tenant_id, partition=partition, run=run, idx=index)
            place = Place(tenant_id, partition, place_of(run, index))
            block = decode(place, row and row[0], unseal=self.unseal, bound=OF_A_RUN)
            self._cache.put(key, block, len(row[0]))
        return block

    def _at_hand(self, key: tuple[Any, ...]) -> Any:
        new = self._new.get(key)
        return self._cache.get(key) if new is None else new[0]

    def keep(self, key: tuple[Any, ...], value: Any, size: int) -> None:
        """For the cache, once it is committed."""
        # At the end, also if it was there: a savepoint undoes from the end.
        self._new.pop(key, None)
        self._new[key] = (value, size)

    def holes(self, tenant_id: int, partition: int) -> list[HoleRow]:
        return [HoleRow(*row) for row in self._rows("holes", tenant=tenant_id, partition=partition)]

    def hole_insert(self, tenant_id: int, partition: int, row: HoleRow) -> None:
        self._rows("hole_insert", tenant=tenant_id, partition=partition, **values_of(row))

    def holes_move(self, tenant_id: int, partition: int, run: int, target: int) -> None:
        self._rows("holes_move", tenant=tenant_id, partition=partition, run=run, target=target)

    def holes_delete(self, tenant_id: int, partition: int, run: int, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self._rows("hole_delete", tenant=tenant_id, partition=partition, run=run, seq=seq)

    def loose(self, tenant_id: int, partition: int, offsets: Sequence[int]) -> list[LooseRow]:
        found = (self._one("loose", tenant=tenant_id, partition=partition, offset=offset) for offset in offsets)
        return [self._loose(tenant_id, row) for row in found if row is not None]

    def loose_put(self, tenant_id: int, row: LooseRow) -> None:
        if row.history is not None:
            row = replace(row, history=self._sealed(tenant_id, row.history, "loose", row.partition, row.offset))
        self._rows("loose_put", tenant=tenant_id, **values_of(row))

    def _loose(self, tenant_id: int, stored: Any) -> LooseRow:
        row = LooseRow(*stored)
        if row.history is None:
            return row
        place = ("loose", row.partition, row.offset)
        return replace(row, history=self._opened(tenant_id, row.history, *place, instead=BROKEN_HISTORY))

    def loose_due(self, tenant_id: int, partition: int, now_ms: int, limit: int) -> list[LooseRow]:
        rows = self._rows("loose_due", tenant=tenant_id, partition=partition, now=now_ms, limit=limit)
        return [self._loose(tenant_id, row) for row in rows]

    def loose_due_fresh(self, tenant_id: int, partition: int, now_ms: int, limit: int) -> list[LooseRow]:
        rows = self._rows("loose_due_fresh", tenant=tenant_id, partition=partition, now=now_ms, limit=limit)
        return [self._loose(tenant_id, row) for row in rows]

    def loose_next_after(self, tenant_id: int, partition: int, now_ms: int) -> int | None:
        due_at: int | None = self._one("loose_next_after", tenant=tenant_id, partition=partition, now=now_ms)[0]
        return due_at

    def loose_all(self, tenant_id: int, partition: int, after: int, limit: int) -> list[LooseRow]:
        rows = self._rows("loose_all", tenant=tenant_id, partition=partition, after=after, limit=limit)
        return [self._loose(tenant_id, row) for row in rows]

    def loose_count(self, tenant_id: int, partition: int) -> int:
        count: int = self._one("loose_count", tenant=tenant_id, partition=partition)[0]
        return count

    def loose_next_due(self, tenant_id: int, partition: int) -> int | None:
        due_at: int | None = self._one("loose_next_due", tenant=tenant_id, partition=partition)[0]
        return due_at

    def loose_delete(self, tenant_id: int, partition: int, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self._rows("loose_delete", tenant=tenant_id, partition=partition, offset=offset)

    def lane(self, tenant_id: int, partition: int, lane: int) -> LaneRow | None:
        row = self._one("lane", tenant=tenant_id, partition=partition, lane=lane)
        return None if row is None else LaneRow(*row)

    def lane_put(self, tenant_id: int, row: LaneRow) -> None:
        self._rows("lane_put", tenant=tenant_id, **values_of(row))

    def lane_delete(self, tenant_id: int, partition: int, lane: int) -> None:
        self._rows("lane_delete", tenant=tenant_id, partition=partition, lane=lane)

    def lanes_to_look(self, tenant_id: int, partition: int, now_ms: int, limit: int) -> list[LaneRow]:
        rows = self._rows("lanes_to_look", tenant=tenant_id, partition=partition, now=now_ms, limit=limit)
        return [LaneRow(*row) for row in rows]

    def lanes_look(self, tenant_id: int, partition: int, now_ms: int) -> None:
        self._rows("lanes_look", tenant=tenant_id, partition=partition, now=now_ms)

    def lanes(self, tenant_id: int, partition: int, lanes: Sequence[int]) -> list[LaneRow]:
        found = (self.lane(tenant_id, partition, lane) for lane in lanes)
        return [row for row in found if row is not None]

    def lanes_mend(self, tenant_id: int, partition: int) -> None:
        self._rows("lanes_mend", tenant=tenant_id, partition=partition)

    def lanes_broken(self, tenant_id: int, partition: int, limit: int) -> list[LaneRow]:
        rows = self._rows("lanes_broken", tenant=tenant_id, partition=partition, limit=limit)
        return [LaneRow(*row) for row in rows]

    def lane_next_look(self, tenant_id: int, partition: int) -> int | None:
        look_at: int | None = self._one("lane_next_look", tenant=tenant_id, partition=partition)[0]
        return look_at

    def lane_wait_insert(self, tenant_id: int, row: WaitRow) -> None:
        self._rows("lane_wait_insert", tenant=tenant_id, **values_of(row))

    def lane_wait_delete(self, tenant_id: int, row: WaitRow) -> None:
        self._rows("lane_wait_delete", tenant=tenant_id, **values_of(row))

    def lane_wait_heads(self, tenant_id: int, partition: int, lane: int, limit: int) -> list[WaitRow]:
        rows = self._rows("lane_wait_heads", tenant=tenant_id, partition=partition, lane=lane, limit=limit)
        return [WaitRow(*row) for row in rows]

    def lane_waits(self, tenant_id: int, partition: int, after: int, limit: int) -> list[WaitRow]:
        rows = self._rows("lane_waits", tenant=tenant_id, partition=partition, after=after, limit=limit)
        return [WaitRow(*row) for row in rows]

    def lane_wait_count(self, tenant_id: int, partition: int) -> int:
        count: int = self._one("lane_wait_count", tenant=tenant_id, partition=partition)[0]
        return count

    def id_runs(self, tenant_id: int, topic: int) -> list[IdRunRow]:
        key = ("id runs", topic)
        known: list[IdRunRow] | None = self.recall(key)
        if known is None:
            known = [IdRunRow(*row) for row in self._rows("id_runs", tenant=tenant_id, topic=topic)]
            self.remember(key, known)
        return known

    def id_run_insert(self, tenant_id: int, row: IdRunRow) -> int:
        self.remember(("id runs", row.topic), None)
        return self._insert("id_run_insert", tenant=tenant_id, **values_of(row))

    def id_run_delete(self, tenant_id: int, topic: int, run: int) -> None:
        self.remember(("id runs", topic), None)
        for query in ("id_run_delete", "id_blocks_delete"):
            self._rows(query, tenant=tenant_id, topic=topic, run=run)

    def id_block_insert(self, tenant_id: int, topic: int, run: int, index: int, first: int, stored: bytes) -> None:
        place = {"tenant": tenant_id, "topic": topic, "run": run, "idx": index}
        self._rows("id_block_insert", **place, first=first, data=stored)
        self.keep(("ids", topic, run, index), stored, len(stored))

    def id_block(self, tenant_id: int, topic: int, run: int, index: int) -> bytes | None:
        key = ("ids", topic, run, index)
        stored: bytes | None = self._at_hand(key)
        if stored is None:
            row = self._one("id_block", tenant=tenant_id, topic=topic, run=run, idx=index)
            stored = None if row is None else row[0]
            if stored is not None:
                self._cache.put(key, stored, len(stored))
        return stored

    def id_firsts(self, tenant_id: int, topic: int, run: int) -> list[int]:
        # A run never changes, and SQLite reads all of it for this.
        key = ("id firsts", topic, run)
        firsts: list[int] | None = self._at_hand(key)
        if firsts is None:
            firsts = [first for (first,) in self._rows("id_firsts", tenant=tenant_id, topic=topic, run=run)]
            self.keep(key, firsts, 64 * len(firsts))
        return firsts

    def ids_indexed_to(self, tenant_id: int, partition: int) -> int:
        row = self._one("ids_indexed_to", tenant=tenant_id, partition=partition)
        return 0 if row is None else row[0]

    def ids_index_to(self, tenant_id: int, partition: int, offset: int) -> None:
        self._rows("ids_index_to", tenant=tenant_id, partition=partition, offset=offset)

    def done_insert(self, tenant_id: int, partition: int, first: int, last: int, until_ms: int) -> None:
        self._rows("done_insert", tenant=tenant_id, partition=partition, first=first, last=last, until=until_ms)

    def done_until(self, tenant_id: int, partition: int, offset: int) -> int | None:
        row = self._one("done_until", tenant=tenant_id, partition=partition, offset=offset)
        return row[1] if row is not None and row[0] >= offset else None

    def done_low(self, tenant_id: int, partition: int) -> int | None:
        low: int | None = self._one("done_low", tenant=tenant_id, partition=partition)[0]
        return low

    def done_expire(self, now_ms: int, limit: int) -> int | None:
        self._rows("done_expire", now=now_ms, limit=limit)
        until: int | None = self._one("done_next")[0]
        return until

    def block_delete(self, tenant_id: int, partition: int, base: int) -> None:
        self._drop_blocks("block_delete", tenant=tenant_id, partition=partition, base=base)

    def _drop_blocks(self, query: str, **which: Any) -> int:
        """Deletes blocks with what lies outside them; how many they were."""
        chunks = [chunk for (chunk,) in self._rows(query, **which)]
        for chunk in chunks:
            if chunk is not None:
                self._rows("chunk_delete", id=chunk)
        return len(chunks)

    def queue_erase(self, tenant_id: int, partition: int) -> None:
        for query in OF_A_QUEUE:
            self._rows(query, tenant=tenant_id, partition=partition)
