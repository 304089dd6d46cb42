"""What a transaction will most likely ask for when somebody else had the turn before: asked with its beginning.

Two brokers on one topic take turns, and each finds what it remembers outdated. Asked for one after the other, what it
needs would take six trips; so it goes along with the first. Definitions outlast others' turns, and say what that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engine.block import Place, decode
from ...engine.find import QUEUE_GROUP
from ...engine.memory import Memory
from ...errors import CorruptBlock, Sealed
from ..contract import Head, TopicRow
from .line import Row, Statement
from .transaction import LOOK_AHEAD_MS, PostgresTransaction

_BLOCKS = 32
_END = 2**62


class Hints:
    """What is asked for of one topic, and what to do with the answers; nothing of a topic that is not known."""

    def __init__(
        self,
        topic: TopicRow | None,
        group: int | None,
        heads: Mapping[int, Head],
        floors: Mapping[int, int],
        until: int,
    ) -> None:
        self._topic = topic
        self._group = group
        # How far each partition was known to reach: what lies behind is new.
        self._heads = heads
        # Before which no lease is due.
        self._floors = floors
        # How far ahead it is looked for one.
        self._until = until
        self.useful = False

    def asked(self, sql: Mapping[str, Statement]) -> list[tuple[Statement, Mapping[str, Any]]]:
        """The statements, to be asked behind the one that waits for the lock."""
        asked: list[tuple[Statement, Mapping[str, Any]]] = []
        for partition in self._partitions:
            place = {"partition": partition}
            low = self._heads[partition].next_offset if partition in self._heads else _END - 1
            asked += [(sql["head"], place), (sql["block_newest"], place)]
            asked.append((sql["blocks"], {**place, "low": low, "high": _END, "limit": _BLOCKS}))
            if self._group is not None:
                asked += [(sql["queue"], place), (sql["runs"], place), (sql["holes"], place)]
                asked.append((sql["loose_next_due"], place))
                low = self._floors.get(partition, 0)
                asked.append((sql["lease_next_due"], {**place, "grp": self._group, "low": low, "until": self._until}))
        return asked

    @property
    def _partitions(self) -> tuple[int, ...]:
        # Of a topic with many, who knows which will be wanted.
        return self._topic.partitions if self._topic is not None and len(self._topic.partitions) <= 2 else ()

    def apply(self, tx: PostgresTransaction, found: list[list[Row]]) -> None:
        """Has a transaction begin with the answers."""
        answers = iter(found)
        assert self._topic is not None or not found
        for partition in self._partitions:
            tx.begin_with_head(partition, next(answers), next(answers))
            for base, data in next(answers):
                place = Place(self._topic.tenant_id, partition, base)  # type: ignore[union-attr]
                try:
                    block = decode(place, data, tx.chunk, unseal=tx.unseal)
                except (CorruptBlock, Sealed):
                    # Whoever comes to it says so.
                    break
                tx.cache(("block", partition, base), block, len(data) + block.columns.bytes)
            if self._group is not None:
                tx.begin_with_queue(partition, next(answers), next(answers), next(answers))
                tx.begin_with_loose_low(partition, next(answers)[0][0])
                tx.begin_with_lease_low(partition, self._group, next(answers)[0][0], self._until)


def hints_of(memory: Memory, tenant: str, name: str | None, now_ms: int) -> Hints:
    """What to ask for at about that time, by what is remembered of a topic."""
    until = now_ms + LOOK_AHEAD_MS
    topic: TopicRow | None = memory.get(("topic", tenant, name))
    if topic is None:
        return Hints(None, None, {}, {}, until)
    heads = {partition: head for partition in topic.partitions if (head := memory.get(("head", partition))) is not None}
    group = memory.get(("group", topic.id, QUEUE_GROUP)) if topic.settings.kind == "queue" else None
    if group is None:
        return Hints(topic, None, heads, {}, until)
    floors = {partition: memory.get(("lease floor", partition, group.id)) or 0 for partition in topic.partitions}
    return Hints(topic, group.id, heads, floors, until)
