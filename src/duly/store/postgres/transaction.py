"""The store contract's transaction on PostgreSQL.

Statements that answer nothing wait on the line and go with the next that does, or with the end (line.py); so what is
remembered costs no trip. What every claim changes (how far a queue's runs are consumed, a group's cursor) is appended
under the next number and the one before it deleted: a row that is updated is found ever slower while anybody holds an
old snapshot (DESIGN.md §5, rule 5).

A transaction has the locks of the topics that it works on: the one it was begun for (seat.py), and any other from the
moment that it is looked up. Two that want each other's are told apart by PostgreSQL; one is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...engine.block import Block, Place, decode
from ...engine.memory import BlockCache, Memory
from ...engine.seal import bound_to, is_sealed, open_value
from ...engine.secrets import Keyring
from ...errors import CorruptBlock, StoreError
from ...tenant import TenantSettings
from ...topic import TopicSettings
from ..contract import (
    LEASED,
    AgendaRow,
    BlockMeta,
    DeadRow,
    EventRow,
    GroupRow,
    Head,
    HoleRow,
    JobRow,
    LaneRow,
    LeaseRow,
    LooseRow,
    QueueRow,
    RunRow,
    SecretRow,
    TopicRow,
)
from ..sql.stored import StoredBytes
from ..sql.transaction import SqlTransaction
from .line import Line
from .statements import statements

# No moment comes after it.
_NEVER = 2**62
_METAS_A_PAGE, _METAS_A_PAGE_MAX = 16, 4096
_BLOCKS_A_PAGE = 32
# What looks at leases: those that were ended have to be gone by then.
_OF_LEASES = frozenset(
    {
        *("lease", "leases", "leases_due", "lease_next_due", "leased_groups"),
        *("lease_looking", "leases_shared", "leases_lock", "leases_open"),
    }
)
_NO_LEASE = LeaseRow(0, 0, 0, 0, 0, "", 0, 0, 0, 0, 0)
# How far ahead it is looked for leases that will be due.
LOOK_AHEAD_MS = 100
# How often is looked whether a lease has become free whose time is up.
_SHARED_MS = 50

_times = msgspec.msgpack.Decoder(tuple[tuple[int, float, float], ...])
_positions = msgspec.msgpack.Decoder(dict[int, int])
_encode = msgspec.msgpack.Encoder().encode


class Turn(msgspec.Struct):
    """The last turn at a topic, as it was when its lock was had; `next_id` goes on from there."""

    n: int
    session: int
    next_id: int
    # Ids were given: where they go on has to be written down.
    gave_ids: bool = False


class State(msgspec.Struct, frozen=True):
    """The newest row of a queue partition: its number, and how far runs have been consumed beside what is in it."""

    n: int
    row: QueueRow
    positions: dict[int, int]


class PostgresTransaction(SqlTransaction):
    """Rows and blocks inside one transaction. Without `enter` it only reads, and has no locks."""

    def __init__(
        self,
        line: Line,
        *,
        now_ms: int,
        incarnation: str,
        memory: Memory | None,
        cache: BlockCache,
        stored: StoredBytes,
        keyring: Keyring,
        new_lease_id: Callable[[], int] | None = None,
        enter: Callable[[int], Turn] | None = None,
        turns: dict[int, Turn] | None = None,
    ) -> None:
        super().__init__(
            now_ms=now_ms, incarnation=incarnation, memory=memory, cache=cache, stored=stored, keyring=keyring
        )
        self.line = line
        self.wrote = False
        # Beside leases and the like it stored something that must not be lost with the machine.
        self.lasting = False
        self.turns: dict[int, Turn] = turns or {}
        self._enter = enter
        self._new_lease_id = new_lease_id
        self._sql = statements()
        self._topics: dict[int, int] = {}
        self._partitions: tuple[int, ...] = ()
        # Where leases are that were seen.
        self._lease_at: dict[int, int] = {}
        # Ended, and not put on the line yet: by partition.
        self._ended: dict[int, list[int]] = {}
        # How those were that were seen, or left: so many messages live, and marked or not. Whoever changes one says so.
        self._lease_as: dict[int, tuple[int, int]] = {}
        # What was remembered of leases under another one is not even looked at.
        self.lease_epoch = 0
        # Those that are locked. Whoever changes another locks it first, and does not wait for an application's share.
        self._leases_locked: set[int] = set()
        # Of those, what mail settles: it is being taken in, one after the other.
        self._mail_settles: set[int] = set()
        # The groups whose leases were taken over as far as they could be.
        self._looked_for_due: set[tuple[int, int]] = set()
        self._dirty: dict[int, None] = {}
        # Groups whose gates were changed, and their tenants.
        self._gates: dict[int, int] = {}
        # The leases that a topic's mail speaks of (inbox.py).
        self.spoken_of: Callable[[int], set[int]] | None = None
        # Below it nothing more comes into the inbox, once this is committed.
        self.mail_floor = 0
        # Below it there are no events left to be packed, once this is committed.
        self.event_floor = 0
        self._events_read: tuple[int, int] | None = None
        # What time it is by now.
        self.read_time: Callable[[], int] | None = None
        # Rows that were asked for at the beginning, for the first who wants them.
        self._hinted: dict[tuple[str, int], list[Any]] = {}
        # A reader's states: it remembers nothing.
        self._states: dict[int, State] = {}

    # How statements run

    def _rows(self, query: str, **values: Any) -> Iterable[Any]:
        statement = self._sql[query]
        if statement.answers:
            if self._ended and query in _OF_LEASES:
                self._put_ended()
            return self.line.ask(statement, values)
        self.wrote = True
        self.line.put(statement, values)
        return ()

    def _one(self, query: str, **values: Any) -> Any:
        if self._ended and query in _OF_LEASES:
            self._put_ended()
        rows = self.line.ask(self._sql[query], values)
        return rows[0] if rows else None

    def _count(self, query: str, **values: Any) -> int:
        self.wrote = True
        self._put_ended()
        return self.line.count(self._sql[query], values)

    def _insert(self, query: str, **values: Any) -> int:
        if query == "lease_insert":
            assert self._new_lease_id is not None
            given = self._new_lease_id()
            self._lease_at[given] = values["partition"]
            self._leases_locked.add(given)
        else:
            self.lasting = True
            given = self._next_id(values["topic"] if query == "id_run_insert" else self._topics[values["partition"]])
        self._rows(query, **values | {"id": given})
        return given

    def _next_id(self, topic: int) -> int:
        """An id that this topic never had."""
        turn = self.turns[topic]
        turn.next_id += 1
        turn.gave_ids = True
        return turn.next_id

    def _savepoint(self) -> None:
        self._put_ended()
        self.line.command(b"SAVEPOINT duly")
        self.line.flush()

    def _savepoint_release(self) -> None:
        # What was refused inside has to come up inside.
        self._put_ended()
        self.line.flush()
        self.line.command(b"RELEASE duly")

    def _savepoint_undo(self) -> None:
        self._ended.clear()
        # With what was written since go the locks that were taken since.
        self._leases_locked.clear()
        self.line.settle()
        self.line.command(b"ROLLBACK TO duly")
        self.line.command(b"RELEASE duly")
        self.line.flush()

    # What is known from the beginning (hints.py)

    def begin_with_head(self, partition: int, rows: list[Any], newest: list[Any]) -> None:
        if rows:
            self.remember(("head", partition), _head(rows[0], newest))

    def begin_with_queue(self, partition: int, state: list[Any], runs: list[Any], holes: list[Any]) -> None:
        self._set_state(partition, _state_of(state[0] if state else None))
        self._hinted["runs", partition] = runs
        self._hinted["holes", partition] = holes

    def begin_with_loose_low(self, partition: int, found: int | None) -> None:
        self.remember(("loose low", partition), _NEVER if found is None else found)

    # Locks

    def finish(self, session: int) -> None:
        """Puts down what is written once a transaction: states of queues, and whose turn it was.

        `session` 0: nobody's; whoever remembers anything of the topics has to look again.
        """
        self._put_ended()
        for partition in self._dirty:
            self._put_state(partition)
        for group, tenant_id in self._gates.items():
            self._put_gate(tenant_id, group)
        if not self.wrote:
            return
        for topic, turn in self.turns.items():
            if turn.session != session or not session or turn.gave_ids:
                self._rows("turn_put", topic=topic, n=turn.n + 1, session=session, next_id=turn.next_id)
                self._rows("turn_forget", topic=topic, n=turn.n)
                turn.n, turn.session, turn.gave_ids = turn.n + 1, session, False

    def write_turns(self) -> None:
        """Has something written, so that the commit is waited for."""
        self.wrote = True
        for turn in self.turns.values():
            turn.gave_ids = True

    def _locked(self, topic: TopicRow | None, again: Callable[[], TopicRow | None]) -> TopicRow | None:
        """A topic as it is once its lock is had."""
        while topic is not None and self._take(topic.id):
            topic = again()
        if topic is not None:
            self._know(topic)
        return topic

    def _take(self, topic: int) -> bool:
        """Has a topic's lock from now on. False: it had it before, or only reads."""
        if self._enter is None or topic in self.turns:
            return False
        self.turns[topic] = self._enter(topic)
        return True

    def _know(self, topic: TopicRow) -> None:
        for partition in topic.partitions:
            self._topics[partition] = topic.id
        self._partitions = tuple(self._topics)

    # Definitions

    def recall(self, key: tuple[Any, ...]) -> Any:
        found = super().recall(key)
        if found is not None and key[0] == "topic" and found.partitions[0] not in self._topics:
            self._know(found)
        return found

    def topic_find(self, tenant: str, name: str) -> TopicRow | None:
        find = super().topic_find
        return self._locked(find(tenant, name), lambda: find(tenant, name))

    def topic_insert(self, tenant: str, name: str, settings: TopicSettings) -> TopicRow:
        tenant_id = self.tenant_id(tenant) or self.tenant_insert(tenant, TenantSettings())
        text = msgspec.json.encode(settings).decode()
        row = self._one("topic_insert", tenant=tenant_id, name=name, settings=text, now=self.now_ms)
        self.wrote = self.lasting = True
        if row is not None:
            for number in range(settings.partitions):
                self._rows("part_insert", tenant=tenant_id, topic=row[0], number=number)
        topic = self.topic_find(tenant, name)
        assert topic is not None
        return topic

    def group_delete(self, topic: TopicRow, group: GroupRow) -> None:
        for partition in topic.partitions:
            self._rows("leases_lock", partition=partition, grp=group.id)
        super().group_delete(topic, group)
        self._gates.pop(group.id, None)
        self.remember(("gate n", group.id), None)

    def topic_delete(self, topic: TopicRow) -> None:
        super().topic_delete(topic)
        self._rows("inbox_erase", topic=topic.id)
        self._rows("refused_erase", topic=topic.id)

    # The log

    def head(self, tenant_id: int, partition: int) -> Head:  # noqa: ARG002
        place = {"partition": partition}
        rows, newest = self.line.ask_all([(self._sql["head"], place), (self._sql["block_newest"], place)])
        if not rows:
            raise StoreError(f"Partition {partition} is gone from the store. Run `duly doctor`.")
        return _head(rows[0], newest)

    def block_insert(
        self, tenant_id: int, partition: int, meta: BlockMeta, block: Any, stored: bytes, chunk: int | None = None
    ) -> None:
        self.lasting = True
        super().block_insert(tenant_id, partition, meta, block, stored, chunk)

    def blocks(self, tenant_id: int, partition: int, low: int, high: int) -> Iterator[Block]:
        """The blocks that hold [low, high), checked. Raises CorruptBlock when it gets to a bad or missing one."""
        at = low
        while at < high:
            cached = self.block_at_hand(partition, at)
            if cached is not None:
                yield cached
                at = cached.end
                continue
            found = self._rows("blocks", partition=partition, low=at, high=high, limit=_BLOCKS_A_PAGE)
            before = at
            for base, data in found:
                block = decode(Place(tenant_id, partition, base), data, self.chunk, unseal=self.unseal)
                if not block.base <= at < block.end:
                    break
                self._cache.put(("block", partition, block.base), block, len(data) + block.columns.bytes)
                yield block
                at = block.end
            if at == before:
                raise CorruptBlock(
                    f"Offsets {at} to {high - 1} of partition {partition} are missing from the store. Run "
                    "`duly doctor`.",
                    partition_id=partition,
                    base=at,
                )

    def block_metas(
        self,
        tenant_id: int,  # noqa: ARG002
        partition: int,
        low: int,
        *,
        newest_first: bool = False,
    ) -> Iterator[BlockMeta]:
        # A page after the other: most look at the first few.
        limit, high = _METAS_A_PAGE, _NEVER
        while True:
            if newest_first:
                rows = self._rows("block_metas_newest_first", partition=partition, low=low, high=high, limit=limit)
            else:
                rows = self._rows("block_metas", partition=partition, low=low, limit=limit)
            metas = [BlockMeta(*row) for row in rows]
            yield from metas
            if len(metas) < limit:
                return
            low, high = (low, metas[-1].base) if newest_first else (metas[-1].base + 1, high)
            limit = min(limit * 4, _METAS_A_PAGE_MAX)

    def receipt(self, topic: TopicRow, publish_id: str) -> bytes | None:
        found = super().receipt(topic, publish_id)
        if found is not None and self._memory is not None:
            self._rows("receipt_touch", topic=topic.id, publish_id=publish_id)
            self.lasting = True
        return found

    def receipt_insert(self, topic: TopicRow, publish_id: str, expires_at: int, receipt: bytes) -> None:
        self.lasting = True
        super().receipt_insert(topic, publish_id, expires_at, receipt)

    def secret_insert(self, tenant_id: int, version: int, wrapped: bytes | None) -> None:
        self.lasting = True
        super().secret_insert(tenant_id, version, wrapped)

    def secret_rewrap(self, row: SecretRow, wrapped: bytes) -> None:
        self.lasting = True
        super().secret_rewrap(row, wrapped)

    def secret_shred(self, tenant_id: int) -> None:
        self.lasting = True
        super().secret_shred(tenant_id)

    def tenant_settings_put(self, tenant_id: int, settings: str) -> None:
        self.lasting = True
        super().tenant_settings_put(tenant_id, settings)

    # Groups at work

    def cursor(self, tenant_id: int, partition: int, group: int) -> int:  # noqa: ARG002
        row = self._one("cursor", partition=partition, grp=group)
        if row is None:
            raise StoreError(f"Group {group} has no cursor in partition {partition}. Run `duly doctor`.")
        self.remember(("cursor n", partition, group), row[1])
        offset: int = row[0]
        return offset

    def cursor_update(self, tenant_id: int, partition: int, group: int, offset: int) -> None:  # noqa: ARG002
        key = ("cursor n", partition, group)
        n: int | None = self.recall(key)
        if n is None:
            row = self._one("cursor", partition=partition, grp=group)
            n = 0 if row is None else row[1]
        self._rows("cursor_update", partition=partition, grp=group, n=n + 1, offset=offset)
        if n:
            self._rows("cursor_forget", partition=partition, grp=group, n=n)
        self.remember(key, n + 1)

    def leases_open(
        self,
        tenant_id: int,  # noqa: ARG002
        partitions: Sequence[int],
        group: int,
        now_ms: int,
    ) -> tuple[int, int | None]:
        self._put_ended()
        place = {"grp": group, "now": now_ms, "leased": LEASED}
        asked = [(self._sql["leases_open"], {"partition": partition, **place}) for partition in partitions]
        found = [rows[0] for rows in self.line.ask_all(asked)]
        first = min((due_at for _, due_at in found if due_at is not None), default=None)
        return sum(live for live, _ in found), first

    def gate(self, tenant_id: int, group: int) -> bytes | None:  # noqa: ARG002
        row = self._one("gate", grp=group)
        self.remember(("gate n", group), 0 if row is None else row[1])
        return None if row is None else row[0]

    def gate_put(self, tenant_id: int, group: int, state: bytes) -> None:
        """For the end of the transaction: a gate changes with every message of a batch that is settled one by one."""
        self.wrote = True
        self._gates[group] = tenant_id
        self.remember(("gate state", group), state)

    def _put_gate(self, tenant_id: int, group: int) -> None:
        state: bytes | None = self.recall(("gate state", group))
        if state is None:
            # What was written was undone.
            return
        self.remember(("gate state", group), None)
        n: int | None = self.recall(("gate n", group))
        if n is None:
            self.gate(tenant_id, group)
            n = self.recall(("gate n", group)) or 0
        self._rows("gate_put", grp=group, n=n + 1, state=state)
        if n:
            self._rows("gate_forget", grp=group, n=n)
        self.remember(("gate n", group), n + 1)

    def expect_leases(self, lease_ids: Sequence[int]) -> None:
        """Asks for leases in one trip that would be asked for one after the other."""
        unknown = [lease_id for lease_id in lease_ids if self._at_hand(("lease", self.lease_epoch, lease_id)) is None]
        if len(unknown) < 2 or not self._partitions:
            return
        self._put_ended()
        asked = [(self._sql["lease"], {"partitions": self._partitions_of(one), "id": one}) for one in unknown]
        for lease_id, rows in zip(unknown, self.line.ask_all(asked), strict=True):
            self._found(lease_id, rows[0] if rows else None)

    def lease(self, tenant_id: int, lease_id: int) -> LeaseRow | None:  # noqa: ARG002
        # What mail says is done without asking how the lease was remembered (`_own`): so it is looked at.
        if self._memory is None:
            return self.lease_looking(lease_id)
        looks = lease_id in self._mail_settles and lease_id not in self._leases_locked
        known = None if looks else self._at_hand(("lease", self.lease_epoch, lease_id))
        if known is not None:
            return self._seen(known) if known.id else None
        return self._found(lease_id, self._one("lease", partitions=self._partitions_of(lease_id), id=lease_id))

    def _found(self, lease_id: int, row: Any) -> LeaseRow | None:
        """A lease that was asked for, at hand from now on; or that it is not there."""
        if row is None:
            self._forget_lease(lease_id)
            return None
        lease = self._seen(self._lease(row), locked=True)
        self._keep_lease(lease)
        return lease

    def lease_looking(self, lease_id: int) -> LeaseRow | None:
        """A lease as it stands, whoever has a share of it."""
        row = self._one("lease_looking", partitions=self._partitions_of(lease_id), id=lease_id)
        return None if row is None else self._seen(self._lease(row))

    def leases_shared(self, lease_ids: Iterable[int]) -> set[int]:
        """Those that applications' open transactions have a share of."""
        asked = list(lease_ids)
        rows = self._rows("leases_shared", partitions=self._partitions, ids=asked)
        shared = {lease_id for (lease_id,) in rows}
        self._mail_settles.update(lease_id for lease_id in asked if lease_id not in shared)
        return shared

    def _lock_lease(self, lease_id: int, *, surely: bool = False) -> None:
        """Locks a lease without waiting. One that is at hand need not be: what changes it is guarded (`_own`)."""
        if lease_id in self._leases_locked or (not surely and self._at_hand(("lease", self.lease_epoch, lease_id))):
            return
        row = self._one("lease", partitions=self._partitions_of(lease_id), id=lease_id)
        if row is not None:
            self._seen(self._lease(row), locked=True)

    def _partitions_of(self, lease_id: int) -> tuple[int, ...]:
        known = self._lease_at.get(lease_id)
        return self._partitions if known is None else (known,)

    def _seen(self, row: LeaseRow, *, locked: bool = False) -> LeaseRow:
        self._lease_at[row.id] = row.partition
        self._lease_as[row.id] = (row.live, int(row.marked))
        if locked:
            self._leases_locked.add(row.id)
        return row

    def lease_insert(self, row: LeaseRow) -> int:
        self._not_before("lease low", row.partition, row.group, row.due_at)
        given = super().lease_insert(row)
        self._lease_as[given] = (row.live, int(row.marked))
        if row.state == LEASED:
            self._keep_lease(replace(row, id=given))
        return given

    def _keep_lease(self, row: LeaseRow) -> None:
        """At hand for whoever settles it. Somebody else may change it meanwhile: see `_own`."""
        self.keep(("lease", self.lease_epoch, row.id), row, 300 + 40 * row.count)

    def _forget_lease(self, lease_id: int) -> None:
        """It is not there any more."""
        self.keep(("lease", self.lease_epoch, lease_id), _NO_LEASE, 100)

    def lease_settle(self, row: LeaseRow, settled: bytes, live: int) -> None:
        self._own(row.partition, [row.id])
        self._rows("lease_settle", partition=row.partition, id=row.id, settled=settled, live=live)
        self._lease_as[row.id] = (live, int(row.marked))
        self._keep_lease(replace(row, settled=settled, live=live))

    def lease_mark(self, lease_id: int) -> None:
        self._lock_lease(lease_id, surely=True)
        self._rows("lease_mark", partitions=self._partitions_of(lease_id), id=lease_id)
        if lease_id in self._lease_as:
            self._lease_as[lease_id] = (self._lease_as[lease_id][0], 1)
        known = self._at_hand(("lease", self.lease_epoch, lease_id))
        if known is not None and known.id:
            self._keep_lease(replace(known, marked=True))

    def lease_extend(self, row: LeaseRow, due_at: int) -> None:
        self._not_before("lease low", row.partition, row.group, due_at)
        self._own(row.partition, [row.id])
        self._rows("lease_extend", partition=row.partition, id=row.id, due_at=due_at)
        self._keep_lease(replace(row, due_at=due_at))

    def lease_delete(self, tenant_id: int, lease_id: int) -> None:  # noqa: ARG002
        self._lock_lease(lease_id)
        # Whoever ends one has seen it.
        self._end(self._lease_at[lease_id], lease_id)

    def _end(self, partition: int, lease_id: int) -> None:
        self.wrote = True
        self._ended.setdefault(partition, []).append(lease_id)
        self._forget_lease(lease_id)

    def _put_ended(self) -> None:
        """All that were ended so far, in one statement a partition."""
        ended, self._ended = self._ended, {}
        for partition, ids in ended.items():
            self._own(partition, ids)
            self._rows("lease_delete", partition=partition, ids=ids)

    def _own(self, partition: int, ids: list[int]) -> None:
        """These leases are as they were seen, and no application's transaction settles them; or all is refused."""
        unsure = [lease_id for lease_id in ids if lease_id not in self._mail_settles]
        if unsure:
            topic = self._topics[partition]
            lives, marks = zip(*(self._lease_as[lease_id] for lease_id in unsure), strict=True)
            place = {"partition": partition, "topic": topic, "floor": self.mail_floor}
            self._rows("own_leases", ids=unsure, lives=lives, marks=marks, **place)

    def lease_end(self, tenant_id: int, lease_id: int, group: int) -> LeaseRow | None:
        row = self.lease(tenant_id, lease_id)
        if row is None or row.group != group or row.state != LEASED:
            return None
        self._end(row.partition, lease_id)
        return row

    def leases_due(
        self,
        tenant_id: int,  # noqa: ARG002
        partition: int,
        group: int,
        now_ms: int,
        limit: int,
    ) -> list[LeaseRow]:
        low = self.recall(("lease low", partition, group))
        if low is not None and low > now_ms:
            return []
        query = "leases_due_looking" if self._memory is None else "leases_due"
        low = self._floor(("lease low", partition, group)) if low is None else low
        rows = self._rows(query, partition=partition, grp=group, low=low, now=now_ms, limit=limit)
        if self._memory is not None:
            self._looked_for_due.add((partition, group))
        found = [self._seen(self._lease(row), locked=True) for row in rows]
        if not found:
            self._look_ahead(partition, group, low)
        elif self.spoken_of is not None and any(row.state == LEASED for row in found):
            # An application has committed since the mail was taken in, perhaps a verdict on one of these. It is for the
            # next turn: whoever asks here has begun to work on the queue as it is.
            spoken_of = self.spoken_of(self._topics[partition])
            return [row for row in found if row.id not in spoken_of]
        return found

    def leases(self, tenant_id: int, partition: int, group: int) -> Iterator[LeaseRow]:
        for row in super().leases(tenant_id, partition, group):
            if (partition, group) in self._looked_for_due and row.id not in self._leases_locked:
                # Though its time may be up nobody could take it over: an application's transaction has a share of it.
                row = replace(row, due_at=max(row.due_at, self.now_ms + 1))
            yield self._seen(row)

    def leases_delete(self, tenant_id: int, partition: int, group: int) -> int:
        self._rows("leases_lock", partition=partition, grp=group)
        return super().leases_delete(tenant_id, partition, group)

    def lease_next_due(self, tenant_id: int, partition: int, group: int) -> int | None:  # noqa: ARG002
        key = ("lease low", partition, group)
        place = {"partition": partition, "grp": group, "until": _NEVER}
        ahead = self.recall(("lease ahead", partition, group))
        if ahead is not None and ahead == self.recall(key):
            # It was only looked ahead: whoever sleeps until then wants to know better.
            self._set_low(key, self._one("lease_next_due", **place, low=self._floor(key))[0] or _NEVER)
        due_at = self._earliest(key, "lease_next_due", place)
        if due_at is not None and due_at <= self.now_ms and (partition, group) in self._looked_for_due:
            # An application's transaction has a share of it, and nobody tells when that ends.
            return self.now_ms + _SHARED_MS
        return due_at

    def _earliest(self, key: tuple[Any, ...], query: str, place: Mapping[str, int]) -> int | None:
        """The earliest due time of some rows; none is earlier than what is remembered, and perhaps none that early."""
        low: int | None = self.recall(key)
        if low is None or low <= self.now_ms:
            found = self._one(query, **place, low=self._floor(key) if low is None else low)[0]
            low = _NEVER if found is None else found
            self._set_low(key, low)
        assert low is not None
        return None if low == _NEVER else low

    def _look_ahead(self, partition: int, group: int, low: int) -> None:
        """Finds out when to look for due leases again: a little ahead, and no further.

        Those that were ended lie behind, dead, as many as were claimed in the time of a lease while anybody holds an
        old snapshot: whoever looked for the earliest that is left would read them all.
        """
        until = self.now_ms + LOOK_AHEAD_MS
        found = self._one("lease_next_due", partition=partition, grp=group, low=low, until=until)[0]
        self.begin_with_lease_low(partition, group, found, until)

    def begin_with_lease_low(self, partition: int, group: int, found: int | None, until: int) -> None:
        """The earliest lease that is due by `until`; None: there is none."""
        self._set_low(("lease low", partition, group), until if found is None else found)
        self.remember(("lease ahead", partition, group), until if found is None else None)

    def _set_low(self, key: tuple[Any, ...], low: int) -> None:
        """No row is due before that."""
        self.remember(key, low)
        if key[0] == "lease low":
            # Nor will one ever be that is due before both, whoever writes it: a lease ends later than it begins, and
            # what is put back keeps its time. So dead rows of leases long over are not looked through again.
            self.remember(("lease floor", *key[1:]), min(low, self.now_ms))

    def _floor(self, key: tuple[Any, ...]) -> int:
        """Before which no row is due, though somebody else had a turn."""
        floor: int | None = self.recall(("lease floor", *key[1:])) if key[0] == "lease low" else None
        return floor or 0

    def _not_before(self, what: str, *place_and_due: int) -> None:
        """A row is written that is due then: whoever remembers the earliest has to know."""
        *place, due_at = place_and_due
        key = (what, *place)
        low: int | None = self.recall(key)
        if low is not None and due_at < low:
            self.remember(key, due_at)

    def _reason(self, row: DeadRow) -> str | bytes:
        # A reason may hold what PostgreSQL's texts cannot.
        reason = super()._reason(row)
        return reason if isinstance(reason, bytes) else reason.encode("utf-8", "surrogatepass")

    # Queues

    def _state(self, partition: int) -> State:
        state: State | None = self.recall(("state", partition)) or self._states.get(partition)
        if state is None:
            state = _state_of(self._one("queue", partition=partition))
            self._set_state(partition, state)
        return state

    def _set_state(self, partition: int, state: State) -> None:
        if self._memory is None:
            self._states[partition] = state
        else:
            self.remember(("state", partition), state)

    def _change(self, partition: int, state: State) -> None:
        self.wrote = True
        self._dirty[partition] = None
        self._set_state(partition, state)

    def _put_state(self, partition: int) -> None:
        state = self._state(partition)
        row = state.row
        self._rows(
            "queue_put",
            partition=partition,
            n=state.n + 1,
            absorbed_to=row.absorbed_to,
            taken=row.taken,
            times=_encode(row.times),
            positions=_encode(state.positions),
        )
        if state.n:
            self._rows("queue_forget", partition=partition, n=state.n)
        self._set_state(partition, replace(state, n=state.n + 1))

    def queue(self, tenant_id: int, partition: int) -> QueueRow:  # noqa: ARG002
        return self._state(partition).row

    def queue_put(self, tenant_id: int, partition: int, row: QueueRow) -> None:  # noqa: ARG002
        self._change(partition, replace(self._state(partition), row=row))

    def runs(self, tenant_id: int, partition: int) -> list[RunRow]:
        positions = self._state(partition).positions
        hinted = self._hinted.pop(("runs", partition), None)
        rows = super().runs(tenant_id, partition) if hinted is None else [RunRow(*row) for row in hinted]
        return [replace(row, pos=positions[row.id]) if row.id in positions else row for row in rows]

    def holes(self, tenant_id: int, partition: int) -> list[HoleRow]:
        hinted = self._hinted.pop(("holes", partition), None)
        return super().holes(tenant_id, partition) if hinted is None else [HoleRow(*row) for row in hinted]

    def runs_move(self, tenant_id: int, partition: int, positions: Mapping[int, int]) -> None:  # noqa: ARG002
        state = self._state(partition)
        self._change(partition, replace(state, positions={**state.positions, **positions}))

    def _place_run(self, partition: int, run: int, pos: int | None) -> None:
        """A run's row says where it is consumed to, or it is gone: what was noted beside it is void."""
        state = self._state(partition)
        if run in state.positions and state.positions[run] != pos:
            positions = {known: at for known, at in state.positions.items() if known != run}
            if pos is not None:
                positions[run] = pos
            self._change(partition, replace(state, positions=positions))

    def run_update(self, row: RunRow) -> None:
        super().run_update(row)
        self._place_run(row.partition, row.id, row.pos)

    def run_delete(self, tenant_id: int, partition: int, run: int) -> None:
        super().run_delete(tenant_id, partition, run)
        self._place_run(partition, run, None)

    def queue_erase(self, tenant_id: int, partition: int) -> None:
        super().queue_erase(tenant_id, partition)
        self._dirty.pop(partition, None)
        self.remember(("state", partition), None)
        self.remember(("loose low", partition), None)

    def loose(self, tenant_id: int, partition: int, offsets: Sequence[int]) -> list[LooseRow]:
        if not offsets:
            return []
        rows = self._rows("loose", partition=partition, offsets=list(offsets))
        return [self._loose(tenant_id, row) for row in rows]

    def loose_put(self, tenant_id: int, row: LooseRow) -> None:
        if row.waits:
            self._not_before("loose low", row.partition, row.due_at)
        super().loose_put(tenant_id, row)

    def loose_due(self, tenant_id: int, partition: int, now_ms: int, limit: int) -> list[LooseRow]:
        low = self.recall(("loose low", partition))
        if low is not None and low > now_ms:
            return []
        found = super().loose_due(tenant_id, partition, now_ms, limit)
        if not found:
            self.loose_next_due(tenant_id, partition)
        return found

    def loose_next_due(self, tenant_id: int, partition: int) -> int | None:  # noqa: ARG002
        return self._earliest(("loose low", partition), "loose_next_due", {"partition": partition})

    def loose_delete(self, tenant_id: int, partition: int, offsets: Sequence[int]) -> None:  # noqa: ARG002
        if offsets:
            self._rows("loose_delete", partition=partition, offsets=list(offsets))

    def lanes(self, tenant_id: int, partition: int, lanes: Sequence[int]) -> list[LaneRow]:  # noqa: ARG002
        if not lanes:
            return []
        asked = [(self._sql["lane"], {"partition": partition, "lane": lane}) for lane in lanes]
        return [LaneRow(*rows[0]) for rows in self.line.ask_all(asked) if rows]

    def _begun(self, tenant_id: int, ids: Sequence[int]) -> Iterable[Any]:
        return self._rows("operations", tenant=tenant_id, ids=ids)

    # Mail (inbox.py)

    def mail(self, topic: int, after: tuple[int, int], limit: int) -> list[Any]:
        """What is visible of a topic's mail behind a place (transaction, number)."""
        return list(self._rows("inbox", topic=topic, xid=after[0], id=after[1], limit=limit))

    def verdicts(self, topic: int) -> list[bytes]:
        """What is visible of a topic's mail that settles."""
        return [data for (data,) in self._rows("inbox_verdicts", topic=topic, floor=self.mail_floor)]

    def mail_opened(self, topic: int, kind: str, data: bytes) -> bytes:
        """What a mail says. Raises CorruptBlock if its seal is broken, and Sealed."""
        if not is_sealed(data):
            return data
        ((tenant_id,),) = self._rows("tenant_of_topic", topic=topic)
        opened: bytes = open_value(data, tenant_id, bound_to("mail", topic, kind), self.unseal)
        return opened

    def mail_put(self, topic: int, kind: str, data: bytes, leases: list[int]) -> None:
        self.lasting = True
        self._rows("inbox_put", topic=topic, kind=kind, data=data, leases=leases)

    def mail_delete(self, topic: int, xid: int, number: int) -> None:
        self.lasting = True
        self._rows("inbox_delete", topic=topic, xid=xid, id=number)

    def mail_refuse(self, topic: int, kind: str, data: bytes, payload: bytes | None, why: str) -> None:
        self.lasting = True
        self._rows("mail_refuse", topic=topic, now=self.now_ms, why=why, kind=kind, data=data, payload=payload)

    # Stages

    def job_under_way(self) -> JobRow | None:
        row = super().job_under_way()
        while row is not None and self._take(row.topic_id):
            # Whoever had the topic may have finished it meanwhile.
            row = super().job_under_way()
        return row

    def stage_expired(self) -> tuple[int, int] | None:
        row = self._one("stage_expired", now=self.now_ms)
        while row is not None and self._take(row[2]):
            row = self._one("stage_expired", now=self.now_ms)
        return None if row is None else (row[0], row[1])

    # Events

    def event_rows(self, limit: int) -> list[EventRow]:
        found = list(self._rows("event_rows", floor=self.event_floor, limit=limit))
        rows = [self._events(EventRow(*row[:3])) for row in found]
        # Below which there is nothing left, if all of these go.
        self._events_read = (len(found), found[0][3]) if found and len(found) < limit else None
        if self.read_time is not None:
            # They may be of transactions that began later than this one: what holds them is not older than they are.
            self.now_ms = max(self.now_ms, self.read_time())
        return rows

    def event_rows_of(self, tenant_id: int) -> Iterator[bytes]:  # noqa: ARG002
        # Transactions commit in another order than they began: what is not packed yet has no place yet.
        return iter(())

    def event_rows_delete(self, ids: Sequence[int]) -> None:
        self._rows("event_rows_delete", ids=list(ids))
        if self._events_read is not None and self._events_read[0] == len(ids):
            self.event_floor = self._events_read[1]

    # Chores

    def agenda_next(self) -> AgendaRow | None:
        row = self._one("agenda_next")
        while row is not None and row[4] and self._take(row[4]):
            # A topic's rows are changed under its lock alone; what was to be done may be done once it is had.
            row = self._one("agenda_next")
        return None if row is None else AgendaRow(*row[:4])

    def agenda_delete(self, row: AgendaRow) -> None:
        if row.partition:
            super().agenda_delete(row)
        else:
            self._rows("agenda_delete", chore=row.chore, now=self.now_ms)

    def give_back_space(self, pages_max: int) -> bool:  # noqa: ARG002
        # Those who decide what is worth a VACUUM go by what sessions reported: else this one waits a second with it.
        self.line.ask(self._sql["report_dead"], {})
        self.aftermath.freed = True
        return False


def _head(row: Any, newest: list[Any]) -> Head:
    """A partition's bounds, of its row and its newest block."""
    first_offset, next_offset, published_at, archived_to, archive_from, look_at = row
    if newest:
        next_offset, published_at = max(next_offset, newest[0][0]), max(published_at, newest[0][1])
    return Head(first_offset, next_offset, published_at, archived_to, archive_from, look_at)


def _state_of(row: Any) -> State:
    if row is None:
        return State(0, QueueRow(), {})
    absorbed_to, taken, times, positions, n = row
    return State(n, QueueRow(absorbed_to, taken, _times.decode(times)), _positions.decode(positions))
