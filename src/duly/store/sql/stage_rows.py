"""Stages in the store contract's transaction: their pieces, the chunks that hold messages, and jobs."""

from __future__ import annotations

from typing import Any

import msgspec

from ..contract import JobRow, StageRow, TopicRow
from .queue_rows import QueueRows

_stages = msgspec.msgpack.Decoder(tuple[int, ...])


class StageRows(QueueRows):
    """The rows of stages inside one transaction."""

    def stage_find(self, topic: TopicRow, name: str) -> StageRow | None:
        row = self._one("stage_find", tenant=topic.tenant_id, topic=topic.id, name=name)
        return None if row is None else StageRow(*row)

    def stage_insert(self, topic: TopicRow, name: str, expires_at: int) -> StageRow:
        (stage,) = self._one("stage_insert", tenant=topic.tenant_id, topic=topic.id, name=name, expires_at=expires_at)
        return StageRow(stage, 0, 0, expires_at)

    def stage_update(self, row: StageRow) -> None:
        self._rows(
            "stage_update", id=row.id, messages=row.messages, next_number=row.next_number, expires_at=row.expires_at
        )

    def stage_delete(self, stage: int) -> None:
        self._rows("stage_delete", id=stage)

    def stage_expired(self) -> tuple[int, int] | None:
        row = self._one("stage_expired", now=self.now_ms)
        return None if row is None else (row[0], row[1])

    def stages_next_expiry(self) -> int | None:
        found: int | None = self._one("stage_next_expiry")[0]
        return found

    def staged_insert(self, tenant_id: int, stage: int, number: int, chunk: int, piece: bytes) -> None:
        self._rows("staged_insert", tenant=tenant_id, stage=stage, number=number, chunk=chunk, piece=piece)

    def staged(self, tenant_id: int, stage: int, limit: int) -> list[tuple[int, int, bytes]]:
        return list(self._rows("staged", tenant=tenant_id, stage=stage, limit=limit))

    def staged_delete(self, tenant_id: int, stage: int, number: int) -> None:
        self._rows("staged_delete", tenant=tenant_id, stage=stage, number=number)

    def chunk_insert(self, tenant_id: int, body: Any) -> int:
        chunk: int = self._one("chunk_insert", tenant=tenant_id, data=body)[0]
        return chunk

    def chunk(self, chunk: int) -> bytes | None:
        row = self._one("chunk", id=chunk)
        return None if row is None else row[0]

    def chunk_delete(self, chunk: int) -> None:
        self._rows("chunk_delete", id=chunk)

    def job_find(self, topic: TopicRow, name: str) -> JobRow | None:
        return _job(self._one("job_find", tenant=topic.tenant_id, topic=topic.id, name=name))

    def job_put(self, row: JobRow, expires_at: int) -> None:
        self._rows(
            "job_put",
            tenant=row.tenant_id,
            topic=row.topic_id,
            name=row.name,
            version=row.version,
            messages=row.messages,
            duplicates=row.duplicates,
            left_over=row.left,
            stages=msgspec.msgpack.encode(row.stages) if row.stages else None,
            expires_at=expires_at,
        )

    def job_under_way(self) -> JobRow | None:
        return _job(self._one("job_under_way"))

    def jobs_expire(self, limit: int) -> int | None:
        self._rows("jobs_expire", now=self.now_ms, limit=limit)
        found: int | None = self._one("job_next_expiry")[0]
        return found


def _job(row: Any) -> JobRow | None:
    if row is None:
        return None
    tenant_id, topic_id, topic, name, version, messages, duplicates, left, stages = row
    ids = () if stages is None else _stages.decode(stages)
    return JobRow(tenant_id, topic_id, topic, name, version, messages, duplicates, left, ids)
