"""What a store must do. Small enough to read in one sitting; it contains no SQL.

A store keeps rows and blocks, tells the time, and runs verbs of the engine inside
transactions that are whole or nothing. It knows no algorithm: offsets, leases, back-off and
retention are decided by the engine over the plain values below.

Ids (topic, group, partition, lease) are made by the store and never reused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol, TypeVar

import msgspec

from ..clock import from_ms
from ..events import Event
from ..member import Member
from ..tenant import ACTIVE, Budget, TenantSettings, Weights
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
    # Of the tenant: one of tenant.py's states, and how many bytes its topics may take.
    tenant_state: int = ACTIVE
    stored_bytes_max: int | None = None
    # What its tenant had stored cannot be read any more.
    shredded: bool = False
    # What each operation of the tenant's may publish; None: they are not counted.
    budget: Budget | None = Budget()


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant's definition; `state` is one of tenant.py's."""

    id: int
    name: str
    state: int
    settings: TenantSettings
    version: int
    created_at: int


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
    # Where it ended when archiving was turned on.
    archive_from: int = 0
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
    # Of a queue's messages: their priorities and lanes (engine/queue_lease.py).
    keys: bytes | None = None
    # A message of it has been cancelled meanwhile.
    marked: bool = False
    id: int = 0


class StageRow(msgspec.Struct, frozen=True):
    """Messages that wait to be published together with others: how many, and the number of the call to come.

    It has no expiry once it was decided to publish it.
    """

    id: int
    messages: int
    next_number: int
    expires_at: int | None


class OperationRow(msgspec.Struct, frozen=True):
    """What an operation has published and, at a moment, had left. At rest it may be forgotten: from `expires_at` on.

    `stopped_at`: it was refused then, and has not been at rest since. `held`: by hand, until it is resumed.
    """

    name: str
    left: float
    at: int
    published: int = 0
    stopped_at: int | None = None
    held: bool = False
    expires_at: int | None = None


class ScheduleRow(msgspec.Struct, frozen=True):
    """A schedule: its settings and its state (engine/schedules.py), as they are encoded.

    `next_at` is the tick that is next, None if there is none; `look_at`, when somebody wants to look at it: then, or
    later where that tick could not be published. `settings` None: they cannot be read, or ever again.
    """

    tenant_id: int
    name: str
    topic_id: int
    topic: str
    settings: bytes | None
    paused: bool
    version: int
    created_at: int
    next_at: int | None
    look_at: int | None
    state: bytes


class ScheduleLook(msgspec.Struct, frozen=True):
    """When the next schedule wants to be looked at, and whose it is."""

    at: int
    tenant: str
    topic: str


class PushRow(msgspec.Struct, frozen=True):
    """A push (engine/pushes.py), with the names of what it belongs to.

    `settings` and `secrets` are opened; None: they were shredded, or their seals are broken.
    """

    tenant_id: int
    tenant: str
    name: str
    topic_id: int
    topic: str
    group_id: int
    group: str
    settings: bytes | None
    secrets: bytes | None
    state: str
    reason: str
    version: int
    created_at: int
    # The id of the topic that it goes to.
    target: int | None = None
    # The broker that runs it, by its name among members.
    holder: str | None = None


class HeldRow(msgspec.Struct, frozen=True):
    """A push that is to run, and who runs it."""

    tenant: str
    name: str
    tenant_id: int
    holder: str | None
    version: int


class JobRow(msgspec.Struct, frozen=True):
    """Who publishes stages: what of its newest version was published, and the stages (by id) that are left of it."""

    tenant_id: int
    topic_id: int
    topic: str
    name: str
    version: int
    messages: int = 0
    duplicates: int = 0
    # Messages that were decided upon and are not published yet.
    left: int = 0
    stages: tuple[int, ...] = ()


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


# Kinds of run: what is due, in the default lane and in named ones, and what is not due yet.
READY, LANED, TIMED = 0, 1, 2
# From here on: what was LANED when weights were changed, and still has its tags of before. The later, the higher.
STALE = 3


class RunRow(msgspec.Struct, frozen=True):
    """A sorted run of a queue's index (engine/runs.py). Entries before `pos` are gone.

    Its entries and their messages lie in `blocks` blocks.
    `low` and `high` bound the offsets in it; `expires_max` says when all of it has expired, if ever.
    `sources` is set while it is being made by a fold; `target` names the run that a fold makes of it.
    """

    partition: int
    kind: int
    level: int
    count: int
    pos: int
    blocks: int
    # Entries a block; the last one may have fewer.
    block: int
    low: int
    high: int
    expires_max: int | None = None
    sources: bytes | None = None
    target: int = 0
    coming: bytes | None = None
    # All its messages are in the default lane.
    plain: bool = False
    id: int = 0

    @property
    def left(self) -> int:
        """Entries not consumed."""
        return self.count - self.pos


class QueueRow(msgspec.Struct, frozen=True):
    """How far a queue partition's log has been absorbed, and the fair clocks of priorities being served.

    `taken` has a bit for every message from there on that was served before it was absorbed.
    """

    absorbed_to: int = 0
    taken: bytes = b""
    times: tuple[tuple[int, float, float], ...] = ()


class LooseRow(msgspec.Struct, frozen=True):
    """A message of a queue that left the runs: it failed, was moved, or was cancelled under its lease.

    `waits`: it is in no run and due at `due_at`. `suspects` names the expired lease it comes from, and
    `half` how many of those are handed out at once.
    """

    partition: int
    offset: int
    due_at: int
    waits: bool
    priority: int
    lane: int
    attempts: int = 0
    suspects: int = 0
    half: int = 0
    cancelled: bool = False
    history: bytes | None = None
    # It still holds its lane's slot.
    slot: bool = False


class LaneRow(msgspec.Struct, frozen=True):
    """A lane with limits: slots in use, when its next token is there, and when to look at it again."""

    partition: int
    lane: int
    in_flight: int = 0
    next_at: float = 0.0
    look_at: int | None = None
    # Its breaker (engine/gate.py), and the state of that; 0: closed.
    circuit: bytes | None = None
    circuit_state: int = 0


class WaitRow(msgspec.Struct, frozen=True):
    """A message that is due and waits for its lane."""

    partition: int
    lane: int
    priority: int
    due_at: int
    offset: int
    loose: bool = False


class IdRunRow(msgspec.Struct, frozen=True):
    """A sorted run of hashed ids of a topic (engine/ids.py)."""

    topic: int
    level: int
    count: int
    filter: bytes
    id: int = 0


class HoleRow(msgspec.Struct, frozen=True):
    """A message that was taken out of the middle of a run; `late`: after a fold had copied it."""

    run: int
    seq: int
    due_at: int
    late: bool = False


class AgendaRow(msgspec.Struct, frozen=True):
    """A chore and when it is due; of a partition, or (tenant and partition 0) of the store."""

    tenant_id: int
    partition: int
    chore: str
    due_at: int


class PrincipalRow(msgspec.Struct, frozen=True):
    """Who may do what: its grants and its certificates' names are JSON. Tenant 0: an operator of the store."""

    tenant_id: int
    name: str
    grants: str
    certificates: str
    version: int
    created_at: int


class KeyRow(msgspec.Struct, frozen=True):
    """What a principal shows: the mac of a key, and when it ends."""

    id: str
    tenant_id: int
    principal: str
    mac: bytes
    note: str
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    used_at: int | None = None


class KeyHolder(msgspec.Struct, frozen=True):
    """A key with the name of its tenant, "" of the operators, and the grants of its principal."""

    key: KeyRow
    tenant: str
    grants: str


class Backup(msgspec.Struct, frozen=True):
    """A copy of a store's whole file as it was at one moment, in a folder that it shares with others."""

    number: int
    taken_at_ms: int
    # The Duly that took it, and what it took it of.
    duly: str
    incarnation: str
    schema: int
    page_bytes: int
    pages: int
    piece_bytes: int
    # What no earlier backup in the folder had.
    new_bytes: int
    pieces: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """How big the file is."""
        return self.pages * self.page_bytes

    @property
    def taken_at(self) -> datetime:
        """The moment, by the store's clock."""
        return from_ms(self.taken_at_ms)

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Each piece and how many bytes it has: all alike, but the last."""
        for at, name in enumerate(self.pieces):
            yield name, min(self.piece_bytes, self.bytes - at * self.piece_bytes)


# Told how many bytes are done, of how many.
Progress = Callable[[int, int], None]

C = TypeVar("C")
R = TypeVar("R")
# A verb takes commands of one kind and answers each; an answer may be an error of that command alone.
Verb = Callable[["Transaction", Sequence[C]], "Sequence[R | Exception]"]


class EventRow(msgspec.Struct, frozen=True):
    """The events of a transaction, not packed yet."""

    id: int
    tenant_id: int
    data: bytes


class SecretRow(msgspec.Struct, frozen=True):
    """A secret of the store's own (tenant 0) or a version of a tenant's data key. `wrapped` None: shredded."""

    tenant_id: int
    version: int
    wrapped: bytes | None
    created_at: int


class ChainHead(msgspec.Struct, frozen=True):
    """Where a chain of the audit ends: how many entries it has, the mac of the last, and a seal (engine/chain.py)."""

    n: int = 0
    mac: bytes = b""
    seal: bytes = b""


class AuditRow(msgspec.Struct, frozen=True):
    """An entry of the audit, as it is stored."""

    n: int
    at_ms: int
    entry: bytes
    mac: bytes


class Aftermath(msgspec.Struct):
    """What follows a commit, and is forgotten by a rollback."""

    # For whoever listens.
    events: list[Event] = msgspec.field(default_factory=list)
    # To be stored with the transaction: (tenant, event).
    records: list[tuple[int, Event]] = msgspec.field(default_factory=list)
    # Bytes that were added to the logs of tenants which have a quota of them.
    stored: dict[int, int] = msgspec.field(default_factory=dict)
    # Partitions in which something became claimable, or will at another time than thought.
    rings: set[int] = msgspec.field(default_factory=set)
    # Space was freed inside the store; the device has yet to get it.
    freed: bool = False
    # By how much the sum of the audit's chains was changed (engine/chain.py).
    audited: int = 0
    # By tenant: what operations have published that was committed before anybody counted it (engine/budget.py).
    owed: dict[int, dict[str, int]] = msgspec.field(default_factory=dict)


class Transaction(Protocol):
    """Rows and blocks, read and written inside one transaction. One method, one statement."""

    now_ms: int
    aftermath: Aftermath
    incarnation: str
    # The master and what was unwrapped with it (engine/secrets.py).
    keyring: Any

    def recall(self, key: tuple[Any, ...]) -> Any:
        """What is remembered under a key, valid inside this transaction; None when nothing is."""
        ...

    def remember(self, key: tuple[Any, ...], value: Any) -> None:
        """Keeps a value for later transactions, once this one has committed."""
        ...

    def forget_topics(self, tenant: str) -> None:
        """Forgets the definitions of a tenant's topics, here; others learn that some were changed."""
        ...

    def cache(self, key: tuple[Any, ...], value: Any, size: int) -> None:
        """Keeps something immutable at hand, of so many bytes; it may be forgotten at any time."""
        ...

    def keep(self, key: tuple[Any, ...], value: Any, size: int) -> None:
        """The same, from the commit on: for what is made of something that may be stored by this very transaction."""
        ...

    def cached(self, key: tuple[Any, ...]) -> Any:
        """What was kept under a key, or None."""
        ...

    def block_at_hand(self, partition: int, offset: int) -> Any:
        """The log block that holds an offset, if it need not be read; else None."""
        ...

    # The store as a whole
    def store_paused(self) -> str | None: ...
    def store_pause(self, why: str | None) -> None: ...
    def leased_groups(self) -> list[tuple[int, int]]: ...

    # Definitions
    def tenant_id(self, name: str) -> int | None: ...
    def tenant_insert(self, name: str, settings: TenantSettings) -> int: ...
    def tenant_name(self, tenant_id: int) -> str: ...
    def tenant_find(self, name: str) -> TenantRow | None: ...
    def tenant_by_id(self, tenant_id: int) -> TenantRow | None: ...
    def tenant_list(self, after: str, limit: int) -> list[str]: ...
    def tenants_set(self) -> list[TenantRow]: ...
    def tenant_update(self, row: TenantRow) -> None: ...
    def tenant_deleting(self) -> TenantRow | None: ...
    def tenant_parts(self, tenant_id: int) -> int: ...
    def tenant_shut(self, tenant_id: int) -> None: ...
    def tenant_erase(self, tenant_id: int) -> None: ...
    def topic_count(self, tenant_id: int) -> int: ...
    def topics_some(self, tenant_id: int, limit: int) -> list[str]: ...
    def stored_bytes(self, tenant_id: int) -> int: ...
    def stored_about(self, tenant_id: int) -> int: ...
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

    # Secrets, wrapped; those of tenant 0 are the store's own. Of no tenant (None): all there are
    def secret(self, tenant_id: int, version: int) -> SecretRow | None: ...
    def secrets(self, tenant_id: int | None) -> list[SecretRow]: ...
    def secret_insert(self, tenant_id: int, version: int, wrapped: bytes | None) -> None: ...
    def secret_rewrap(self, row: SecretRow, wrapped: bytes) -> None: ...
    def secret_shred(self, tenant_id: int) -> None: ...

    # The audit's chains. Claiming one's head keeps it from everybody else until this transaction ends; it also answers
    # the number of the last entry that is there
    def audit_claim(self, tenant_id: int) -> tuple[ChainHead, int]: ...
    def audit_head_put(self, tenant_id: int, head: ChainHead) -> None: ...
    def audit_heads(self) -> list[tuple[int, ChainHead]]: ...
    def audit_owners(self) -> list[int]: ...
    def audit_insert(self, tenant_id: int, n: int, at_ms: int, entry: bytes, mac: bytes) -> None: ...
    def audit_rows(self, tenant_id: int, above: int, since_ms: int, limit: int) -> list[AuditRow]: ...
    def audit_erase(self, tenant_id: int) -> None: ...
    # Principals and their keys; those of tenant 0 are the operators'
    def principal(self, tenant_id: int, name: str) -> PrincipalRow | None: ...
    def principals(self, tenant_id: int, after: str, limit: int) -> list[PrincipalRow]: ...
    def principals_with_certificates(self) -> list[PrincipalRow]: ...
    def principal_put(self, row: PrincipalRow) -> None: ...
    def principal_lock(self, tenant_id: int, name: str) -> None: ...
    def principal_delete(self, tenant_id: int, name: str) -> None: ...
    def key(self, key_id: str) -> KeyRow | None: ...
    def keys(self, tenant_id: int, principal: str | None, after: str, limit: int) -> list[KeyRow]: ...
    def key_any(self) -> bool: ...
    def key_holder(self, key_id: str) -> KeyHolder | None: ...
    def key_insert(self, row: KeyRow) -> None: ...
    def key_expire(self, key_id: str, expires_at: int) -> None: ...
    def key_revoke(self, key_id: str) -> None: ...
    def key_used(self, key_id: str, before_ms: int) -> None: ...
    def tenant_settings(self, tenant_id: int) -> str: ...
    def tenant_settings_put(self, tenant_id: int, settings: str) -> None: ...

    def sealing(self, tenant_id: int) -> Any:
        """What a tenant's content is sealed with; None: it is not encrypted. Raises Sealed where it was shredded."""
        ...

    def unseal(self, tenant_id: int, version: int) -> Any:
        """What opens that which was sealed with a version of a tenant's data key. Raises Sealed."""
        ...

    # The log
    def head(self, tenant_id: int, partition: int) -> Head: ...
    def head_update(self, tenant_id: int, partition: int, head: Head) -> None: ...
    def block_insert(
        self, tenant_id: int, partition: int, meta: BlockMeta, block: Any, stored: bytes, chunk: int | None = None
    ) -> None: ...
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

    # Stages, the chunks that their messages lie in, and the jobs that publish them
    def stage_find(self, topic: TopicRow, name: str) -> StageRow | None: ...
    def stage_insert(self, topic: TopicRow, name: str, expires_at: int) -> StageRow: ...
    def stage_update(self, row: StageRow) -> None: ...
    def stage_delete(self, stage: int) -> None: ...
    def stage_expired(self) -> tuple[int, int] | None: ...
    def stages_next_expiry(self) -> int | None: ...
    def staged_insert(self, tenant_id: int, stage: int, number: int, chunk: int, piece: bytes) -> None: ...
    def staged(self, tenant_id: int, stage: int, limit: int) -> list[tuple[int, int, bytes]]: ...
    def staged_delete(self, tenant_id: int, stage: int, number: int) -> None: ...
    def chunk_insert(self, tenant_id: int, body: Any) -> int: ...
    def chunk(self, chunk: int) -> bytes | None: ...
    def chunk_delete(self, chunk: int) -> None: ...
    def job_find(self, topic: TopicRow, name: str) -> JobRow | None: ...
    def job_put(self, row: JobRow, expires_at: int) -> None: ...
    def job_under_way(self) -> JobRow | None: ...
    def jobs_expire(self, limit: int) -> int | None: ...

    # What operations have published. Asked for, they are nobody else's until this transaction ends, and those that were
    # not there are made, with so many messages left
    def operations(self, tenant_id: int, names: Collection[str], left: int) -> dict[str, OperationRow]: ...
    def operation(self, tenant_id: int, name: str) -> OperationRow | None: ...
    def operation_put(self, tenant_id: int, row: OperationRow) -> None: ...
    def operation_page(self, tenant_id: int, after: str, limit: int, *, stopped: bool) -> list[OperationRow]: ...
    def operations_expire(self, now_ms: int, limit: int) -> int | None: ...

    # Schedules. Asked for with `lock`, or because they are due, they are nobody else's until this transaction ends
    def schedule(self, tenant_id: int, name: str, *, lock: bool = False) -> ScheduleRow | None: ...
    def schedule_page(self, tenant_id: int, after: str, limit: int) -> list[ScheduleRow]: ...
    def schedules_due(self, topic: TopicRow, limit: int) -> list[ScheduleRow]: ...
    def schedule_next(self) -> ScheduleLook | None: ...
    def schedule_insert(self, row: ScheduleRow) -> bool: ...
    def schedule_put(self, row: ScheduleRow) -> None: ...
    def schedule_judged(self, row: ScheduleRow) -> None: ...
    def schedule_delete(self, row: ScheduleRow) -> None: ...
    def schedules_put_off(self, topic: TopicRow, until_ms: int) -> int: ...
    def schedules_wake(self, tenant_id: int) -> None: ...
    # Pushes, and who runs which. `push_claim` keeps a row from everybody else until this transaction ends;
    # `push_insert` answers False where the name is taken, or the group has one; `push_pulse` differs after any change
    def push(self, tenant_id: int, name: str) -> PushRow | None: ...
    def push_claim(self, tenant_id: int, name: str) -> PushRow | None: ...
    def push_page(self, tenant_id: int, after: str, limit: int) -> list[PushRow]: ...
    def pushes_of_topic(self, topic_id: int) -> list[PushRow]: ...
    def pushes_to_topic(self, topic_id: int) -> list[PushRow]: ...
    def push_insert(self, row: PushRow) -> bool: ...
    def push_put(self, row: PushRow) -> None: ...
    def push_state(self, row: PushRow) -> None: ...
    def push_delete(self, row: PushRow) -> None: ...
    def push_pulse(self) -> tuple[int, int]: ...
    def pushes_active(self) -> list[HeldRow]: ...
    def push_hold(self, tenant_id: int, name: str, holder: str | None) -> None: ...
    def members_seen(self) -> list[Member]: ...

    # Publish ids given by callers
    def block_head(self, tenant_id: int, partition: int, base: int, size: int) -> bytes: ...
    def gone_insert(self, tenant_id: int, partition: int, base: int, until_ms: int, publishes: bytes) -> None: ...
    def gone(self, tenant_id: int, partition: int) -> Iterator[tuple[int, bytes]]: ...
    def gone_expire(self, now_ms: int, limit: int) -> int | None: ...
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
    def lease_mark(self, lease_id: int) -> None: ...
    def lease_delete(self, tenant_id: int, lease_id: int) -> None: ...
    def lease_end(self, tenant_id: int, lease_id: int, group: int) -> LeaseRow | None: ...
    def leases_due(self, tenant_id: int, partition: int, group: int, now_ms: int, limit: int) -> list[LeaseRow]: ...
    def leases(self, tenant_id: int, partition: int, group: int) -> Iterator[LeaseRow]: ...
    def lease_next_due(self, tenant_id: int, partition: int, group: int) -> int | None: ...
    def leases_delete(self, tenant_id: int, partition: int, group: int) -> int: ...
    def leases_open(
        self, tenant_id: int, partitions: Sequence[int], group: int, now_ms: int
    ) -> tuple[int, int | None]: ...
    def gate(self, tenant_id: int, group: int) -> bytes | None: ...
    def gate_put(self, tenant_id: int, group: int, state: bytes) -> None: ...
    def dead_insert(self, row: DeadRow) -> None: ...
    def dead(self, tenant_id: int, partition: int, group: int, after: int, limit: int) -> list[DeadRow]: ...
    def dead_delete(self, row: DeadRow) -> None: ...
    def dead_count(self, tenant_id: int, partition: int, group: int) -> int: ...
    def dead_purge(self, tenant_id: int, partition: int, group: int) -> int: ...
    def consumer_seen(self, tenant_id: int, group: int, name: str, *, active: bool) -> None: ...
    def consumers(self, tenant_id: int, group: int) -> list[tuple[str, int]]: ...
    def consumer_count(self, tenant_id: int, topic: int) -> int: ...
    def consumers_forget(self, before_ms: int) -> bool: ...
    def has_consumer(self, tenant_id: int, group: int, name: str) -> bool: ...
    def consumer_groups(self, tenant: str, name: str) -> list[tuple[str, str]]: ...

    # Events
    def events_insert(self, tenant_id: int, data: bytes) -> None: ...
    def event_rows(self, limit: int) -> list[EventRow]: ...
    def event_rows_of(self, tenant_id: int) -> Iterator[bytes]: ...
    def event_rows_delete(self, ids: Sequence[int]) -> None: ...

    # Queues
    def queue(self, tenant_id: int, partition: int) -> QueueRow: ...
    def queue_put(self, tenant_id: int, partition: int, row: QueueRow) -> None: ...
    def runs(self, tenant_id: int, partition: int) -> list[RunRow]: ...
    def run_insert(self, tenant_id: int, row: RunRow) -> int: ...
    def runs_move(self, tenant_id: int, partition: int, positions: Mapping[int, int]) -> None: ...
    def run_update(self, row: RunRow) -> None: ...
    def run_delete(self, tenant_id: int, partition: int, run: int) -> None: ...
    def run_trim(self, tenant_id: int, partition: int, row: RunRow) -> None: ...
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
    ) -> None: ...
    def run_entries(self, tenant_id: int, partition: int, run: int, index: int) -> Any: ...
    def run_block(self, tenant_id: int, partition: int, run: int, index: int) -> Any: ...
    def holes(self, tenant_id: int, partition: int) -> list[HoleRow]: ...
    def hole_insert(self, tenant_id: int, partition: int, row: HoleRow) -> None: ...
    def holes_move(self, tenant_id: int, partition: int, run: int, target: int) -> None: ...
    def holes_delete(self, tenant_id: int, partition: int, run: int, seqs: Sequence[int]) -> None: ...
    def loose(self, tenant_id: int, partition: int, offsets: Sequence[int]) -> list[LooseRow]: ...
    def loose_put(self, tenant_id: int, row: LooseRow) -> None: ...
    def loose_due(self, tenant_id: int, partition: int, now_ms: int, limit: int) -> list[LooseRow]: ...
    def loose_due_fresh(self, tenant_id: int, partition: int, now_ms: int, limit: int) -> list[LooseRow]: ...
    def loose_next_after(self, tenant_id: int, partition: int, now_ms: int) -> int | None: ...
    def loose_all(self, tenant_id: int, partition: int, after: int, limit: int) -> list[LooseRow]: ...
    def loose_count(self, tenant_id: int, partition: int) -> int: ...
    def loose_next_due(self, tenant_id: int, partition: int) -> int | None: ...
    def loose_delete(self, tenant_id: int, partition: int, offsets: Sequence[int]) -> None: ...
    def lane(self, tenant_id: int, partition: int, lane: int) -> LaneRow | None: ...
    def lane_put(self, tenant_id: int, row: LaneRow) -> None: ...
    def lane_delete(self, tenant_id: int, partition: int, lane: int) -> None: ...
    def lanes_to_look(self, tenant_id: int, partition: int, now_ms: int, limit: int) -> list[LaneRow]: ...
    def lanes_look(self, tenant_id: int, partition: int, now_ms: int) -> None: ...
    def lanes(self, tenant_id: int, partition: int, lanes: Sequence[int]) -> list[LaneRow]: ...
    def lanes_mend(self, tenant_id: int, partition: int) -> None: ...
    def lanes_broken(self, tenant_id: int, partition: int, limit: int) -> list[LaneRow]: ...
    def lane_next_look(self, tenant_id: int, partition: int) -> int | None: ...
    def lane_wait_insert(self, tenant_id: int, row: WaitRow) -> None: ...
    def lane_wait_delete(self, tenant_id: int, row: WaitRow) -> None: ...
    def lane_wait_heads(self, tenant_id: int, partition: int, lane: int, limit: int) -> list[WaitRow]: ...
    def lane_waits(self, tenant_id: int, partition: int, after: int, limit: int) -> list[WaitRow]: ...
    def lane_wait_count(self, tenant_id: int, partition: int) -> int: ...
    def id_runs(self, tenant_id: int, topic: int) -> list[IdRunRow]: ...
    def id_run_insert(self, tenant_id: int, row: IdRunRow) -> int: ...
    def id_run_delete(self, tenant_id: int, topic: int, run: int) -> None: ...
    def id_block_insert(self, tenant_id: int, topic: int, run: int, index: int, first: int, stored: bytes) -> None: ...
    def id_block(self, tenant_id: int, topic: int, run: int, index: int) -> bytes | None: ...
    def id_firsts(self, tenant_id: int, topic: int, run: int) -> list[int]: ...
    def ids_indexed_to(self, tenant_id: int, partition: int) -> int: ...
    def ids_index_to(self, tenant_id: int, partition: int, offset: int) -> None: ...
    def done_insert(self, tenant_id: int, partition: int, first: int, last: int, until_ms: int) -> None: ...
    def done_until(self, tenant_id: int, partition: int, offset: int) -> int | None: ...
    def done_low(self, tenant_id: int, partition: int) -> int | None: ...
    def done_expire(self, now_ms: int, limit: int) -> int | None: ...
    def block_delete(self, tenant_id: int, partition: int, base: int) -> None: ...
    def queue_erase(self, tenant_id: int, partition: int) -> None: ...

    # Chores
    def agenda_put(self, row: AgendaRow) -> None: ...
    def agenda_next(self) -> AgendaRow | None: ...
    def agenda_delete(self, row: AgendaRow) -> None: ...
    def erase(self, tenant_id: int, partition: int, limit: int) -> bool: ...
    def give_back_space(self, pages_max: int) -> bool: ...


class Store(Protocol):
    """Runs verbs in transactions and wakes those who wait for their outcome."""

    # Which of those who wait have longer turns: whoever looks at tenants keeps it up to date (client/embedded.py).
    weights: Weights

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

    def submit(
        self,
        verb: Verb[C, R],
        command: C,
        *,
        tenant: str,
        cost: int,
        publish_id: str = "",
        then: Callable[[R | Exception], None],
    ) -> None:
        """Queues a command and returns; `then` gets its answer after the commit, or the error that it is.

        `then` runs on a thread of the store's and must not wait. Raises Busy at once when too much is queued.
        """
        ...

    def read(self, tenant: str = "") -> AbstractContextManager[Transaction]:
        """A transaction that sees one moment and writes nothing. Where these are few, tenants have them in turn."""
        ...

    def together(self, patience_s: float) -> AbstractContextManager[Any]:
        """A transaction for commands on several topics, which join it as an application's (`tx=`): all or none.

        Others write before it for so long, then it is Busy. Raises PublishUnknown when nobody can tell whether it was
        committed: whoever settled something in it asks again what it holds, and does not settle that once more.
        """
        ...

    def ticket(self, partitions: Sequence[int], *, here_only: bool = False) -> Any:
        """Taken before looking for work; `wait` on it misses nothing that comes after.

        With `here_only` it hears of this process's own commits alone, which costs nothing.
        """
        ...

    def wait(self, ticket: Any, *, until_ms: int | None, deadline: float | None) -> None:
        """Sleeps until one of the ticket's partitions rings, a moment of the store's clock, or the deadline.

        Raises Interrupted as soon as the thread's patience ends (store/patience.py).
        """
        ...

    def listen(self, listener: Callable[[Collection[int]], None]) -> None:
        """Calls back with the slots of partitions that ring, here and in other processes. It must not wait."""
        ...

    def slot(self, partition: int) -> int:
        """The slot that a partition rings; others may share it."""
        ...

    def member_put(self, member: Member) -> None:
        """Notes a broker as seen now, by the store's clock, whatever its `seen_at_ms` says; forgets those long gone.

        Raises Unavailable when the store does not answer within some seconds.
        """
        ...

    def member_remove(self, name: str) -> None:
        """Notes that a broker has left."""
        ...

    def members(self) -> list[Member]:
        """The brokers that were seen in the last seconds (member.py), by name."""
        ...

    def close(self) -> None:
        """Finishes what was accepted and lets go of the file."""
        ...
