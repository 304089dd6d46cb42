"""The part of the store contract's transaction that holds schedules. Their settings are sealed: they have payloads."""

from __future__ import annotations

from typing import Any

from ..contract import ScheduleLook, ScheduleRow, TopicRow
from .secret_rows import SecretRows


class ScheduleRows(SecretRows):
    """The rows of schedules inside one transaction."""

    def schedule(self, tenant_id: int, name: str, *, lock: bool = False) -> ScheduleRow | None:
        query = "schedule_lock" if lock else "schedule"
        row = self._one(query, tenant=tenant_id, name=name)
        return None if row is None else self._schedule(tenant_id, row)

    def schedule_page(self, tenant_id: int, after: str, limit: int) -> list[ScheduleRow]:
        rows = self._rows("schedule_page", tenant=tenant_id, after=after, limit=limit)
        return [self._schedule(tenant_id, row) for row in list(rows)]

    def schedules_due(self, topic: TopicRow, limit: int) -> list[ScheduleRow]:
        rows = self._rows("schedules_due", topic=topic.id, now=self.now_ms, limit=limit)
        return [self._schedule(topic.tenant_id, row) for row in list(rows)]

    def schedule_next(self) -> ScheduleLook | None:
        row = self._one("schedule_next")
        return None if row is None else ScheduleLook(*row)

    def schedule_insert(self, row: ScheduleRow) -> bool:
        return bool(
            self._count(
                "schedule_insert",
                tenant=row.tenant_id,
                name=row.name,
                topic=row.topic_id,
                settings=self._settings(row),
                paused=int(row.paused),
                now=row.created_at,
                next_at=row.next_at,
                look_at=row.look_at,
                state=row.state,
            )
        )

    def schedule_put(self, row: ScheduleRow) -> None:
        self._rows(
            "schedule_put",
            tenant=row.tenant_id,
            name=row.name,
            settings=self._settings(row),
            paused=int(row.paused),
            version=row.version,
            next_at=row.next_at,
            look_at=row.look_at,
            state=row.state,
        )

    def schedule_judged(self, row: ScheduleRow) -> None:
        self._rows(
            "schedule_judged",
            tenant=row.tenant_id,
            name=row.name,
            next_at=row.next_at,
            look_at=row.look_at,
            state=row.state,
        )

    def schedule_delete(self, row: ScheduleRow) -> None:
        self._rows("schedule_delete", tenant=row.tenant_id, name=row.name)

    def schedules_put_off(self, topic: TopicRow, until_ms: int) -> int:
        return self._count("schedules_put_off", topic=topic.id, now=self.now_ms, until=until_ms)

    def schedules_wake(self, tenant_id: int) -> None:
        self._rows("schedules_wake", tenant=tenant_id)
        self.aftermath.rings.add(0)

    def _settings(self, row: ScheduleRow) -> bytes | None:
        return self._sealed(row.tenant_id, row.settings, "schedule", row.name)

    def _schedule(self, tenant_id: int, row: Any) -> ScheduleRow:
        name, topic_id, topic, stored, paused, version, created_at, next_at, look_at, state = row
        settings = self._opened(tenant_id, stored, "schedule", name)
        return ScheduleRow(
            tenant_id, name, topic_id, topic, settings, bool(paused), version, created_at, next_at, look_at, state
        )
