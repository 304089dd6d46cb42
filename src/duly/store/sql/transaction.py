"""The store contract's transaction in SQL: one method, one named statement. Stores override what they do otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...engine.block import KEPT, Block, Place, decode
from ...engine.seal import bound_to, open_value
from ...engine.secrets import Shredded
from ...errors import CorruptBlock, StoreError
from ...events import Event
from ...tenant import TenantSettings
from ...topic import GroupSettings, TopicSettings
from ..contract import (
    LEASED,
    AgendaRow,
    BlockMeta,
    DeadRow,
    EventRow,
    GroupRow,
    Head,
    LeaseRow,
    TenantRow,
    TopicRow,
)
from .audit_rows import AuditRows
from .operation_rows import OperationRows
from .principal_rows import PrincipalRows
from .push_rows import PushRows
from .schedule_rows import ScheduleRows
from .secret_rows import BROKEN_HISTORY, encrypts
from .stage_rows import StageRows

# How stale a consumer's "last seen" may be: one that gets messages, and one that only waits.
_SEEN_ACTIVE_MS, _SEEN_IDLE_MS = 5_000, 60_000

_BROKEN = "(the seal of this reason is broken: run `duly doctor`)"
_NO_EVENTS = b"[]"

_topic_settings = msgspec.json.Decoder(TopicSettings)
_group_settings = msgspec.json.Decoder(GroupSettings)
_offsets = msgspec.msgpack.Decoder(tuple[int, ...])
_tenant_settings = msgspec.json.Decoder(TenantSettings)
_unset = TenantSettings()
# Topics mostly share a handful of settings: a hundred thousand of them share the objects too.
_parsed: dict[str, TopicSettings] = {}


def parse_settings(text: str) -> TopicSettings:
    """Settings as stored, one object for equal texts."""
    settings = _parsed.get(text)
    if settings is None:
        if len(_parsed) > 1000:
            _parsed.clear()
        settings = _parsed[text] = _topic_settings.decode(text)
    return settings


def parse_tenant(text: str) -> TenantSettings:
    """A tenant's settings as stored; most have none."""
    return _unset if text == "{}" else _tenant_settings.decode(text)


def _tenant(row: Any) -> TenantRow | None:
    if row is None:
        return None
    tenant_id, name, state, settings, version, created_at = row
    return TenantRow(tenant_id, name, state, parse_tenant(settings), version, created_at)


class SqlTransaction(StageRows, OperationRows, PushRows, ScheduleRows, AuditRows, PrincipalRows):
    """Rows and blocks inside one transaction."""

    # The store as a whole

    def store_paused(self) -> str | None:
        row = self._one("store_paused")
        return None if row is None else str(row[0])

    def store_pause(self, why: str | None) -> None:
        self._rows("definitions_changed")
        if why is None:
            self._rows("store_resume")
        else:
            self._rows("store_pause", why=why)

    def leased_groups(self) -> list[tuple[int, int]]:
        return [(partition, group) for partition, group in self._rows("leased_groups")]

    # Definitions

    def tenant_id(self, name: str) -> int | None:
        row = self._one("tenant_id", name=name)
        return None if row is None else row[0]

    def tenant_insert(self, name: str, settings: TenantSettings) -> int:
        text = msgspec.json.encode(settings.given()).decode()
        found: int = self._one("tenant_insert", name=name, settings=text, now=self.now_ms)[0]
        return found

    def tenant_name(self, tenant_id: int) -> str:
        name: str = self._one("tenant_name", tenant=tenant_id)[0]
        return name

    def tenant_find(self, name: str) -> TenantRow | None:
        return _tenant(self._one("tenant_find", name=name))

    def tenant_by_id(self, tenant_id: int) -> TenantRow | None:
        return _tenant(self._one("tenant_by_id", tenant=tenant_id))

    def tenant_list(self, after: str, limit: int) -> list[str]:
        return [name for (name,) in self._rows("tenant_list", after=after, limit=limit)]

    def tenants_set(self) -> list[TenantRow]:
        return [row for found in self._rows("tenants_set") if (row := _tenant(found)) is not None]

    def tenant_update(self, row: TenantRow) -> None:
        self._rows("definitions_changed")
        settings = msgspec.json.encode(row.settings.given()).decode()
        self._rows("tenant_update", id=row.id, state=row.state, settings=settings)
        self.remember(("sealing", row.id), None)

    def tenant_deleting(self) -> TenantRow | None:
        return _tenant(self._one("tenant_deleting"))

    def tenant_parts(self, tenant_id: int) -> int:
        count: int = self._one("tenant_parts", tenant=tenant_id)[0]
        return count

    def tenant_shut(self, tenant_id: int) -> None:
        """Ends its API keys: nobody comes in any more."""
        self._rows("tenant_keys_end", tenant=tenant_id, now=self.now_ms)

    def tenant_erase(self, tenant_id: int) -> None:
        self._rows("definitions_changed")
        for query in (
            "tenant_events_erase",
            "tenant_principals_erase",
            "tenant_secrets_erase",
            "tenant_operations_erase",
            "tenant_pushes_erase",
            "tenant_delete",
        ):
            self._rows(query, tenant=tenant_id)

    def topic_count(self, tenant_id: int) -> int:
        count: int = self._one("topic_count", tenant=tenant_id)[0]
        return count

    def topics_some(self, tenant_id: int, limit: int) -> list[str]:
        return [name for (name,) in self._rows("topics_some", tenant=tenant_id, limit=limit)]

    def stored_bytes(self, tenant_id: int) -> int:
        size: int = self._one("stored_bytes", tenant=tenant_id)[0]
        return size

    def stored_about(self, tenant_id: int) -> int:
        """What its messages take, by the last look and what was added here since; and what this adds."""
        added = self.aftermath.stored.get(tenant_id, 0)
        known = self._stored.known(tenant_id)
        if known is None:
            look = self._stored.begin(tenant_id)
            known = look.end(self.stored_bytes(tenant_id) - added)
        elif self._stored.is_old(tenant_id):
            # The caretaker looks again.
            self.aftermath.rings.add(0)
        return known + added

    def topic_find(self, tenant: str, name: str) -> TopicRow | None:
        rows = list(self._rows("topic_find", tenant=tenant, name=name))
        if not rows:
            return None
        topic_id, tenant_id, tenant, name, settings, paused, version, created_at, state, owner, shredded, _ = rows[0]
        if not shredded and not encrypts(owner):
            self.remember(("sealing", tenant_id), False)
        owned = parse_tenant(owner)
        partitions = tuple(row[-1] for row in rows if row[-1] is not None)
        if not partitions:
            raise StoreError(f"The partitions of topic {name!r} are missing from the store. Run `duly doctor`.")
        return TopicRow(
            topic_id,
            tenant_id,
            tenant,
            name,
            parse_settings(settings),
            bool(paused),
            version,
            created_at,
            partitions,
            state,
            owned.stored_bytes,
            bool(shredded),
            owned.budget,
        )

    def topic_list(self, tenant: str, after: str, limit: int) -> list[str]:
        return [name for (name,) in self._rows("topic_list", tenant=tenant, after=after, limit=limit)]

    def topic_of_partition(self, partition: int) -> TopicRow | None:
        row = self._one("topic_of_partition", partition=partition)
        return None if row is None else self.topic_find(*row)

    def topic_insert(self, tenant: str, name: str, settings: TopicSettings) -> TopicRow:
        tenant_id = self.tenant_id(tenant) or self.tenant_insert(tenant, TenantSettings())
        text = msgspec.json.encode(settings).decode()
        (topic_id,) = self._one("topic_insert", tenant=tenant_id, name=name, settings=text, now=self.now_ms)
        for number in range(settings.partitions):
            self._one("part_insert", tenant=tenant_id, topic=topic_id, number=number)
        topic = self.topic_find(tenant, name)
        assert topic is not None
        return topic

    def topic_update(self, topic: TopicRow, settings: TopicSettings, paused: bool) -> TopicRow:
        self._rows("definitions_changed")
        self._one("topic_update", id=topic.id, settings=msgspec.json.encode(settings).decode(), paused=paused)
        changed = self.topic_find(topic.tenant, topic.name)
        assert changed is not None
        return changed

    def topic_delete(self, topic: TopicRow) -> None:
        self._rows("definitions_changed")
        self._rows("topic_delete", id=topic.id)
        self._rows("part_orphan", topic=topic.id)
        erased = ("receipts_erase", "ids_erase", "id_blocks_erase", "jobs_erase", "stages_erase", "schedules_erase")
        for query in erased:
            self._rows(query, tenant=topic.tenant_id, topic=topic.id)

    def group_find(self, topic_id: int, name: str) -> GroupRow | None:
        row = self._one("group_find", topic=topic_id, name=name)
        return None if row is None else _group(row)

    def group_list(self, topic_id: int) -> list[GroupRow]:
        return [_group(row) for row in self._rows("group_list", topic=topic_id)]

    def group_insert(self, topic: TopicRow, name: str, settings: GroupSettings) -> GroupRow:
        text = msgspec.json.encode(settings).decode()
        (group_id,) = self._one(
            "group_insert", tenant=topic.tenant_id, topic=topic.id, name=name, settings=text, now=self.now_ms
        )
        return GroupRow(group_id, topic.id, name, settings, False, self.now_ms)

    def group_update(self, group: GroupRow, settings: GroupSettings, paused: bool) -> None:
        self._rows("definitions_changed")
        self._rows("group_update", id=group.id, settings=msgspec.json.encode(settings).decode(), paused=paused)

    def group_delete(self, topic: TopicRow, group: GroupRow) -> None:
        for partition in topic.partitions:
            place = {"tenant": topic.tenant_id, "partition": partition, "grp": group.id}
            for query in ("leases_delete", "dead_purge", "cursor_delete"):
                self._rows(query, **place)
        self._rows("consumers_delete", tenant=topic.tenant_id, grp=group.id)
        self._rows("gate_delete", tenant=topic.tenant_id, grp=group.id)
        self.remember(("gate", group.id), None)
        self._rows("definitions_changed")
        self._rows("group_delete", id=group.id)

    # The log

    def head(self, tenant_id: int, partition: int) -> Head:
        row = self._one("head", tenant=tenant_id, partition=partition)
        if row is None:
            raise StoreError(f"Partition {partition} is gone from the store. Run `duly doctor`.")
        first_offset, next_offset, published_at, archived_to, archive_from, look_at = row
        newest = self._one("block_newest", tenant=tenant_id, partition=partition)
        if newest is not None:
            next_offset, published_at = max(next_offset, newest[0]), max(published_at, newest[1])
        return Head(first_offset, next_offset, published_at, archived_to, archive_from, look_at)

    def head_update(self, tenant_id: int, partition: int, head: Head) -> None:
        self._rows(
            "head_update",
            tenant=tenant_id,
            partition=partition,
            first_offset=head.first_offset,
            next_offset=head.next_offset,
            published_at=head.published_at,
            archived_to=head.archived_to,
            archive_from=head.archive_from,
        )

    def block_insert(
        self, tenant_id: int, partition: int, meta: BlockMeta, block: Any, stored: bytes, chunk: int | None = None
    ) -> None:
        self._rows(
            "block_insert",
            tenant=tenant_id,
            partition=partition,
            base=meta.base,
            count=meta.count,
            bytes=meta.bytes,
            published_at=meta.published_at,
            data=stored,
            chunk=chunk,
        )
        if block is not None:
            self.keep(("block", partition, meta.base), block, meta.bytes)

    def blocks(self, tenant_id: int, partition: int, low: int, high: int) -> Iterator[Block]:
        """The blocks that hold [low, high), checked. Raises CorruptBlock when it gets to a bad or missing one."""
        at = low
        while at < high and (cached := self.block_at_hand(partition, at)) is not None:
            yield cached
            at = cached.end
        if at >= high:
            return
        for base, data in self._rows("blocks", tenant=tenant_id, partition=partition, low=at, high=high):
            block = decode(Place(tenant_id, partition, base), data, self.chunk, unseal=self.unseal)
            if not block.base <= at < block.end:
                break
            self._cache.put(("block", partition, block.base), block, len(data) + block.columns.bytes)
            yield block
            at = block.end
        if at < high:
            raise CorruptBlock(
                f"Offsets {at} to {high - 1} of partition {partition} are missing from the store. Run `duly doctor`.",
                partition_id=partition,
                base=at,
            )

    def block_at_hand(self, partition: int, offset: int) -> Block | None:
        """The log block that holds an offset, if it need not be read."""
        for key, (block, _) in reversed(self._new.items()):
            if key[0] == "block" and key[1] == partition and block.base <= offset < block.end:
                found: Block = block
                return found
        return self._cache.block_with(partition, offset)

    def block_metas(
        self, tenant_id: int, partition: int, low: int, *, newest_first: bool = False
    ) -> Iterator[BlockMeta]:
        query = "block_metas_newest_first" if newest_first else "block_metas"
        for row in self._rows(query, tenant=tenant_id, partition=partition, low=low):
            yield BlockMeta(*row)

    def block_before(self, tenant_id: int, partition: int, offset: int) -> BlockMeta | None:
        row = self._one("block_before", tenant=tenant_id, partition=partition, offset=offset)
        return None if row is None else BlockMeta(*row)

    def blocks_delete(self, tenant_id: int, partition: int, below: int, limit: int) -> int:
        return self._drop_blocks("blocks_delete", tenant=tenant_id, partition=partition, below=below, limit=limit)

    def log_size(self, tenant_id: int, partition: int, low: int) -> tuple[int, int]:
        blocks, size = self._one("log_size", tenant=tenant_id, partition=partition, low=low)
        return blocks, size

    def kept_insert(self, tenant_id: int, partition: int, offset: int, stored: bytes) -> None:
        self._rows("kept_insert", tenant=tenant_id, partition=partition, offset=offset, data=stored)

    def kept(self, tenant_id: int, partition: int, offset: int) -> Block:
        row = self._one("kept", tenant=tenant_id, partition=partition, offset=offset)
        if row is None:
            raise CorruptBlock(
                f"The message at offset {offset} of partition {partition} is missing. Run `duly doctor`.",
                partition_id=partition,
                base=offset,
            )
        return decode(Place(tenant_id, partition, offset), row[0], unseal=self.unseal, bound=KEPT)

    def kept_offsets(self, tenant_id: int, partition: int) -> list[int]:
        return [offset for (offset,) in self._rows("kept_offsets", tenant=tenant_id, partition=partition)]

    def kept_delete(self, tenant_id: int, partition: int, offset: int) -> None:
        self._rows("kept_delete", tenant=tenant_id, partition=partition, offset=offset)

    # Publish ids

    def block_head(self, tenant_id: int, partition: int, base: int, size: int) -> bytes:
        row = self._one("block_head", tenant=tenant_id, partition=partition, base=base, size=size)
        # A long block whose chunk is lost has none.
        return b"" if row is None or row[0] is None else row[0]

    def gone_insert(self, tenant_id: int, partition: int, base: int, until_ms: int, publishes: bytes) -> None:
        place = {"tenant": tenant_id, "partition": partition, "base": base}
        self._rows("gone_insert", **place, until=until_ms, publishes=publishes)

    def gone(self, tenant_id: int, partition: int) -> Iterator[tuple[int, bytes]]:
        yield from self._rows("gone", tenant=tenant_id, partition=partition)

    def gone_expire(self, now_ms: int, limit: int) -> int | None:
        self._rows("gone_expire", now=now_ms, limit=limit)
        until: int | None = self._one("gone_next")[0]
        return until

    def receipt(self, topic: TopicRow, publish_id: str) -> bytes | None:
        row = self._one("receipt", tenant=topic.tenant_id, topic=topic.id, publish_id=publish_id, now=self.now_ms)
        if row is None:
            return None
        return open_value(row[0], topic.tenant_id, bound_to("receipt", topic.id, publish_id), self.unseal)

    def receipt_insert(self, topic: TopicRow, publish_id: str, expires_at: int, receipt: bytes) -> None:
        self._rows(
            "receipt_insert",
            tenant=topic.tenant_id,
            topic=topic.id,
            publish_id=publish_id,
            expires_at=expires_at,
            receipt=self._sealed(topic.tenant_id, receipt, "receipt", topic.id, publish_id),
        )

    def receipts_expire(self, now_ms: int, limit: int) -> int | None:
        self._rows("receipts_expire", now=now_ms, limit=limit)
        row = self._one("receipt_oldest")
        return None if row is None else row[0]

    # Groups at work

    def cursor(self, tenant_id: int, partition: int, group: int) -> int:
        row = self._one("cursor", tenant=tenant_id, partition=partition, grp=group)
        if row is None:
            raise StoreError(f"Group {group} has no cursor in partition {partition}. Run `duly doctor`.")
        offset: int = row[0]
        return offset

    def cursor_update(self, tenant_id: int, partition: int, group: int, offset: int) -> None:
        self._rows("cursor_update", tenant=tenant_id, partition=partition, grp=group, offset=offset)

    def lease(self, tenant_id: int, lease_id: int) -> LeaseRow | None:
        row = self._one("lease", tenant=tenant_id, id=lease_id)
        return None if row is None else self._lease(row)

    def lease_insert(self, row: LeaseRow) -> int:
        return self._insert(
            "lease_insert",
            tenant=row.tenant_id,
            partition=row.partition,
            grp=row.group,
            due_at=row.due_at,
            state=row.state,
            consumer=row.consumer,
            claimed_at=row.claimed_at,
            base=row.base,
            count=row.count,
            live=row.live,
            attempts=row.attempts,
            alone=row.alone,
            suspect=row.suspect,
            offsets=None if row.offsets is None else msgspec.msgpack.encode(row.offsets),
            settled=row.settled,
            history=self._sealed(row.tenant_id, row.history, "lease", row.partition, row.group, row.base),
            keys=row.keys,
            marked=row.marked,
        )

    def _lease(self, stored: Any) -> LeaseRow:
        row = lease_of(stored)
        if row.history is None:
            return row
        place = ("lease", row.partition, row.group, row.base)
        return replace(row, history=self._opened(row.tenant_id, row.history, *place, instead=BROKEN_HISTORY))

    def lease_settle(self, row: LeaseRow, settled: bytes, live: int) -> None:
        self._rows("lease_settle", id=row.id, settled=settled, live=live)

    def lease_mark(self, lease_id: int) -> None:
        self._rows("lease_mark", id=lease_id)

    def lease_extend(self, row: LeaseRow, due_at: int) -> None:
        self._rows("lease_extend", id=row.id, due_at=due_at)

    def lease_delete(self, tenant_id: int, lease_id: int) -> None:
        self._rows("lease_delete", tenant=tenant_id, id=lease_id)

    def lease_end(self, tenant_id: int, lease_id: int, group: int) -> LeaseRow | None:
        row = self._one("lease_end", tenant=tenant_id, id=lease_id, grp=group, leased=LEASED)
        return None if row is None else self._lease(row)

    def leases_due(self, tenant_id: int, partition: int, group: int, now_ms: int, limit: int) -> list[LeaseRow]:
        rows = self._rows("leases_due", tenant=tenant_id, partition=partition, grp=group, now=now_ms, limit=limit)
        return [self._lease(row) for row in rows]

    def leases(self, tenant_id: int, partition: int, group: int) -> Iterator[LeaseRow]:
        for row in self._rows("leases", tenant=tenant_id, partition=partition, grp=group):
            yield self._lease(row)

    def lease_next_due(self, tenant_id: int, partition: int, group: int) -> int | None:
        due_at: int | None = self._one("lease_next_due", tenant=tenant_id, partition=partition, grp=group)[0]
        return due_at

    def leases_delete(self, tenant_id: int, partition: int, group: int) -> int:
        return self._count("leases_delete", tenant=tenant_id, partition=partition, grp=group)

    def leases_open(self, tenant_id: int, partitions: Sequence[int], group: int, now_ms: int) -> tuple[int, int | None]:
        place = {"tenant": tenant_id, "grp": group, "now": now_ms, "leased": LEASED}
        found = [self._one("leases_open", partition=partition, **place) for partition in partitions]
        first = min((due_at for _, due_at in found if due_at is not None), default=None)
        return sum(live for live, _ in found), first

    def gate(self, tenant_id: int, group: int) -> bytes | None:
        row = self._one("gate", tenant=tenant_id, grp=group)
        return None if row is None else row[0]

    def gate_put(self, tenant_id: int, group: int, state: bytes) -> None:
        self._rows("gate_put", tenant=tenant_id, grp=group, state=state)

    def dead_insert(self, row: DeadRow) -> None:
        self._rows(
            "dead_insert",
            tenant=row.tenant_id,
            partition=row.partition,
            grp=row.group,
            offset=row.offset,
            buried_at=row.buried_at,
            attempts=row.attempts,
            reason=self._reason(row),
            history=self._sealed(row.tenant_id, row.history, "dead history", *_place(row)),
        )

    def _reason(self, row: DeadRow) -> str | bytes:
        """Why it is dead, as it is stored."""
        if self.sealing(row.tenant_id) is None:
            return row.reason
        sealed = self._sealed(row.tenant_id, row.reason.encode("utf-8", "surrogatepass"), "dead", *_place(row))
        assert sealed is not None
        return sealed

    def dead(self, tenant_id: int, partition: int, group: int, after: int, limit: int) -> list[DeadRow]:
        rows = self._rows("dead", tenant=tenant_id, partition=partition, grp=group, after=after, limit=limit)
        return [self._dead(DeadRow(*row)) for row in rows]

    def _dead(self, row: DeadRow) -> DeadRow:
        if not isinstance(row.reason, bytes) and row.history is None:
            return row
        tenant_id, place = row.tenant_id, _place(row)
        reason: Any = self._opened(tenant_id, row.reason, "dead", *place)
        if isinstance(reason, bytes):
            reason = reason.decode("utf-8", "surrogatepass")
        elif reason is None:
            reason = _BROKEN
        history = self._opened(tenant_id, row.history, "dead history", *place, instead=BROKEN_HISTORY)
        return replace(row, reason=reason, history=history)

    def dead_delete(self, row: DeadRow) -> None:
        self._rows("dead_delete", tenant=row.tenant_id, partition=row.partition, grp=row.group, offset=row.offset)

    def dead_count(self, tenant_id: int, partition: int, group: int) -> int:
        count: int = self._one("dead_count", tenant=tenant_id, partition=partition, grp=group)[0]
        return count

    def dead_purge(self, tenant_id: int, partition: int, group: int) -> int:
        return self._count("dead_purge", tenant=tenant_id, partition=partition, grp=group)

    def consumer_seen(self, tenant_id: int, group: int, name: str, *, active: bool) -> None:
        key = ("seen", group, name)
        seen = self.recall(key)
        if seen is None or self.now_ms - seen >= (_SEEN_ACTIVE_MS if active else _SEEN_IDLE_MS):
            self._rows("consumer_seen", tenant=tenant_id, grp=group, name=name, now=self.now_ms)
            self.remember(key, self.now_ms)

    def consumers(self, tenant_id: int, group: int) -> list[tuple[str, int]]:
        return list(self._rows("consumers", tenant=tenant_id, grp=group))

    def consumer_count(self, tenant_id: int, topic: int) -> int:
        count: int = self._one("consumer_count", tenant=tenant_id, topic=topic)[0]
        return count

    def has_consumer(self, tenant_id: int, group: int, name: str) -> bool:
        return self._one("has_consumer", tenant=tenant_id, grp=group, name=name) is not None

    def consumers_forget(self, before_ms: int) -> bool:
        self._rows("consumers_forget", before=before_ms)
        return self._one("any_consumer") is not None

    def consumer_groups(self, tenant: str, name: str) -> list[tuple[str, str]]:
        return list(self._rows("consumer_groups", tenant=tenant, name=name))

    # Events

    def events_insert(self, tenant_id: int, data: bytes) -> None:
        try:
            sealed = self._sealed(tenant_id, data, "events", tenant_id)
        except Shredded:
            # Nobody will ever be able to ask for it.
            return
        self._rows("events_insert", tenant=tenant_id, data=sealed)

    def event_rows(self, limit: int) -> list[EventRow]:
        return [self._events(EventRow(*row)) for row in self._rows("event_rows", limit=limit)]

    def event_rows_of(self, tenant_id: int) -> Iterator[bytes]:
        for (data,) in self._rows("event_rows_of", tenant=tenant_id):
            yield self._events_in(tenant_id, data)

    def _events(self, row: EventRow) -> EventRow:
        data = self._events_in(row.tenant_id, row.data)
        return row if data is row.data else replace(row, data=data)

    def _events_in(self, tenant_id: int, stored: bytes) -> bytes:
        """A row of events, opened. Of what nobody can read any more there are none; of what is broken, that it is."""
        try:
            events: bytes = open_value(stored, tenant_id, bound_to("events", tenant_id), self.unseal)
        except Shredded:
            return _NO_EVENTS
        except CorruptBlock as error:
            # Once packed it shows no more in the row: here it has to be told.
            told = Event("events_corrupt", self.now_ms, self.tenant_name(tenant_id), facts={"why": str(error)})
            self.aftermath.events.append(told)
            return msgspec.json.encode([told])
        return events

    # Chores

    def agenda_put(self, row: AgendaRow) -> None:
        if row.partition:
            self._rows("part_look", tenant=row.tenant_id, partition=row.partition, due_at=row.due_at)
        else:
            self._rows("agenda_put", chore=row.chore, due_at=row.due_at)

    def agenda_next(self) -> AgendaRow | None:
        row = self._one("agenda_next")
        return None if row is None else AgendaRow(*row)

    def agenda_delete(self, row: AgendaRow) -> None:
        if row.partition:
            self._rows("part_look", tenant=row.tenant_id, partition=row.partition, due_at=None)
        else:
            self._rows("agenda_delete", chore=row.chore)

    def erase(self, tenant_id: int, partition: int, limit: int) -> bool:
        place = {"tenant": tenant_id, "partition": partition}
        if self.blocks_delete(tenant_id, partition, 2**62, limit) == limit:
            return True
        self._rows("kept_erase", **place)
        self._rows("gone_erase", **place)
        self.queue_erase(tenant_id, partition)
        self._rows("part_delete", partition=partition)
        return False


def _place(row: DeadRow) -> tuple[int, ...]:
    """What the sealed parts of a dead letter are bound to."""
    return row.partition, row.group, row.offset, row.buried_at, row.attempts


def _group(row: Any) -> GroupRow:
    group_id, topic_id, name, settings, paused, created_at = row
    return GroupRow(group_id, topic_id, name, _group_settings.decode(settings), bool(paused), created_at)


def lease_of(row: Any) -> LeaseRow:
    """A lease as its row has it."""
    (
        lease_id,
        tenant_id,
        partition,
        group,
        due_at,
        state,
        consumer,
        claimed_at,
        base,
        count,
        live,
        attempts,
        alone,
        suspect,
        offsets,
        settled,
        history,
        keys,
        marked,
    ) = row
    return LeaseRow(
        tenant_id=tenant_id,
        partition=partition,
        group=group,
        due_at=due_at,
        state=state,
        consumer=consumer,
        claimed_at=claimed_at,
        base=base,
        count=count,
        live=live,
        attempts=attempts,
        offsets=None if offsets is None else _offsets.decode(offsets),
        settled=settled,
        alone=bool(alone),
        suspect=bool(suspect),
        history=history,
        keys=keys,
        marked=bool(marked),
        id=lease_id,
    )
