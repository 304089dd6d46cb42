"""What a store must do. Small enough to read in one sitting; it contains no SQL.

A store keeps rows and blocks, tells the time, and runs verbs of the engine inside
transactions that are whole or nothing. It knows no algorithm: offsets, leases, back-off and
retention are decided by the engine over the plain values below.

Ids (topic, group, partition, lease) are made by the store and never reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import msgspec

from ..events import Event
from ..topic import GroupSettings, TopicSettings

LEASED, WAITING = 0, 1


class TopicRow(msgspec.Struct, frozen=True):
    """A topic's definition. `partitions` are partition ids, in the order of their numbers."""

    id: int
    tenant_id: int
    tenant: str
    name: str
    settings: TopicSettings
    paused: bool
    version: int
    created_at: int
    partitions: tuple[int, ...]


class GroupRow(msgspec.Struct, frozen=True):
    """A group's definition."""

    id: int
    topic_id: int
    name: str
    settings: GroupSettings
    paused: bool
    created_at: int


class Head(msgspec.Struct, frozen=True):
    """A partition's bounds: messages from `first_offset` up to `next_offset`."""

    first_offset: int
    next_offset: int
    published_at: int
    archived_to: int
    # When a chore wants to look at the partition; None while there is nothing to do.
    look_at: int | None = None


class BlockMeta(msgspec.Struct, frozen=True):
    """A block without its content."""

    base: int
    count: int
    bytes: int
    published_at: int

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.base + self.count


class LeaseRow(msgspec.Struct, frozen=True):
    """Some messages of one group in one partition whose time is moved ahead.

    LEASED: a consumer holds them until `due_at`. WAITING: nobody does; they are due then.
    `offsets` is None for the range [base, base + count), else the list, ascending.
    `settled` has a bit for every message that is done; `live` counts the others.
    `attempts` counts deliveries so far, the present one included. `suspect`: they come from a
    lease that expired, so they are handed out by themselves; `alone`: the claim held just one.
    """

    tenant_id: int
    partition: int
    group: int
    due_at: int
    state: int
    consumer: str
    claimed_at: int
    base: int
    count: int
    live: int
    attempts: int
    offsets: tuple[int, ...] | None = None
    settled: bytes | None = None
    alone: bool = False
    suspect: bool = False
    history: bytes | None = None
    id: int = 0


class DeadRow(msgspec.Struct, frozen=True):
    """A buried message of one group."""

    tenant_id: int
    partition: int
    group: int
    offset: int
    buried_at: int
    attempts: int
    reason: str
    history: bytes | None


class AgendaRow(msgspec.Struct, frozen=True):
    """A chore and when it is due; of a partition, or (tenant and partition 0) of the store."""

    tenant_id: int
    partition: int
    chore: str
    due_at: int


C = TypeVar("C")
R = TypeVar("R")
# A verb takes commands of one kind and answers each; an answer may be an error of that command alone.
Verb = Callable[["Transaction", Sequence[C]], "Sequence[R | Exception]"]


class Aftermath(msgspec.Struct):
    """What follows a commit, and is forgotten by a rollback."""

    events: list[Event] = msgspec.field(default_factory=list)
    # Partitions in which something became claimable, or will at another time than thought.
    rings: set[int] = msgspec.field(default_factory=set)
    # Space was freed inside the store; the device has yet to get it.
    freed: bool = False


class Transaction(Protocol):
    """Rows and blocks, read and written inside one transaction. One method, one statement."""

    now_ms: int
    aftermath: Aftermath
    incarnation: str

    def recall(self, key: tuple[Any, ...]) -> Any:
        """What is remembered under a key, valid inside this transaction; None when nothing is."""
        ...

    def remember(self, key: tuple[Any, ...], value: Any) -> None:
        """Keeps a value for later transactions, once this one has committed."""
        ...

    # Definitions
    def tenant_id(self, name: str) -> int | None: ...
    def tenant_insert(self, name: str) -> int: ...
    def topic_find(self, tenant: str, name: str) -> TopicRow | None: ...
    def topic_list(self, tenant: str, after: str, limit: int) -> list[str]: ...
    def topic_insert(self, tenant: str, name: str, settings: TopicSettings) -> TopicRow: ...
    def topic_update(self, topic: TopicRow, settings: TopicSettings, paused: bool) -> TopicRow: ...
    def topic_delete(self, topic: TopicRow) -> None: ...
    def topic_of_partition(self, partition: int) -> TopicRow | None: ...
    def group_find(self, topic_id: int, name: str) -> GroupRow | None: ...
    def group_list(self, topic_id: int) -> list[GroupRow]: ...
    def group_insert(self, topic: TopicRow, name: str, settings: GroupSettings) -> GroupRow: ...
    def group_update(self, group: GroupRow, settings: GroupSettings, paused: bool) -> None: ...
    def group_delete(self, topic: TopicRow, group: GroupRow) -> None: ...

    # The log
    def head(self, tenant_id: int, partition: int) -> Head: ...
    def head_update(self, tenant_id: int, partition: int, head: Head) -> None: ...
    def block_insert(self, tenant_id: int, partition: int, meta: BlockMeta, block: Any, stored: bytes) -> None: ...
    def blocks(self, tenant_id: int, partition: int, low: int, high: int) -> Iterator[Any]: ...
    def block_metas(
        self, tenant_id: int, partition: int, low: int, *, newest_first: bool = False
    ) -> Iterator[BlockMeta]: ...
    def block_before(self, tenant_id: int, partition: int, offset: int) -> BlockMeta | None: ...
    def blocks_delete(self, tenant_id: int, partition: int, below: int, limit: int) -> int: ...
    def log_size(self, tenant_id: int, partition: int, low: int) -> tuple[int, int]: ...

    # Messages kept after their block is gone, because something still refers to them
    def kept_insert(self, tenant_id: int, partition: int, offset: int, stored: bytes) -> None: ...
    def kept(self, tenant_id: int, partition: int, offset: int) -> Any: ...
    def kept_offsets(self, tenant_id: int, partition: int) -> list[int]: ...
    def kept_delete(self, tenant_id: int, partition: int, offset: int) -> None: ...

    # Publish ids given by callers
    def receipt(self, topic: TopicRow, publish_id: str) -> bytes | None: ...
    def receipt_insert(self, topic: TopicRow, publish_id: str, expires_at: int, receipt: bytes) -> None: ...
    def receipts_expire(self, now_ms: int, limit: int) -> int | None: ...

    # Groups at work
    def cursor(self, tenant_id: int, partition: int, group: int) -> int: ...
    def cursor_update(self, tenant_id: int, partition: int, group: int, offset: int) -> None: ...
    def lease(self, tenant_id: int, lease_id: int) -> LeaseRow | None: ...
    def lease_insert(self, row: LeaseRow) -> int: ...
    def lease_settle(self, row: LeaseRow, settled: bytes, live: int) -> None: ...
    def lease_extend(self, row: LeaseRow, due_at: int) -> None: ...
    def lease_delete(self, tenant_id: int, lease_id: int) -> LeaseRow | None: ...
    def leases_due(self, tenant_id: int, partition: int, group: int, now_ms: int, limit: int) -> list[LeaseRow]: ...
    def leases(self, tenant_id: int, partition: int, group: int) -> Iterator[LeaseRow]: ...
    def lease_next_due(self, tenant_id: int, partition: int, group: int) -> int | None: ...
    def leases_delete(self, tenant_id: int, partition: int, group: int) -> int: ...
    def dead_insert(self, row: DeadRow) -> None: ...
    def dead(self, tenant_id: int, partition: int, group: int, after: int, limit: int) -> list[DeadRow]: ...
    def dead_delete(self, row: DeadRow) -> None: ...
    def dead_count(self, tenant_id: int, partition: int, group: int) -> int: ...
    def dead_purge(self, tenant_id: int, partition: int, group: int) -> int: ...
    def consumer_seen(self, tenant_id: int, group: int, name: str, *, active: bool) -> None: ...
    def consumers(self, tenant_id: int, group: int) -> list[tuple[str, int]]: ...
    def consumer_groups(self, tenant: str, name: str) -> list[tuple[str, str]]: ...

    # Chores
    def agenda_put(self, row: AgendaRow) -> None: ...
    def agenda_next(self) -> AgendaRow | None: ...
    def agenda_delete(self, row: AgendaRow) -> None: ...
    def erase(self, tenant_id: int, partition: int, limit: int) -> bool: ...
    def give_back_space(self, pages_max: int) -> bool: ...


class Store(Protocol):
    """Runs verbs in transactions and wakes those who wait for their outcome."""

    def write(
        self,
        verb: Verb[C, R],
        command: C,
        *,
        tenant: str,
        cost: int,
        deadline: float | None,
        publish_id: str = "",
    ) -> R:
        """Runs one command of a verb and returns after its commit is on stable storage."""
        ...

    def read(self) -> AbstractContextManager[Transaction]:
        """A transaction that sees one moment and writes nothing."""
        ...

    def ticket(self, partitions: Sequence[int], *, here_only: bool = False) -> Any:
        """Taken before looking for work; `wait` on it misses nothing that comes after.

        With `here_only` it hears of this process's own commits alone, which costs nothing.
        """
        ...

    def wait(self, ticket: Any, *, until_ms: int | None, deadline: float | None) -> None:
        """Sleeps until one of the ticket's partitions rings, a moment of the store's clock, or the deadline."""
        ...

    def close(self) -> None:
        """Finishes what was accepted and lets go of the file."""
        ...
