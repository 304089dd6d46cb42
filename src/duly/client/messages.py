"""A client's calls about messages: publish, read, those of a queue by id, dead letters, what happened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..causal import current_operation
from ..clock import Duration, from_ms, moment_ms, monotonic_s
from ..engine.dead import ListDead, Redrive
from ..engine.event_log import ListEvents, Page
from ..engine.incoming import check_batch, check_priority, due_at
from ..engine.inquiry import Browse, Cancel, Coming, Get, Move
from ..engine.publish import MADE_PUBLISH_ID_MARK, Publish, check_publish_id
from ..engine.read import OffsetAt, Read
from ..engine.replay import Replay, check_replayed
from ..engine.stage import STAGES_MAX, CommitStages, DropStages, Stage, check_label, check_stage
from ..engine.stretch import Stretch
from ..engine.tail import Tail
from ..errors import InvalidArgument, LimitExceeded
from ..events import Event
from ..limits import LIMITS
from ..message import Admitted, DeadLetter, Message, QueuedMessage, Receipt, Replayed, StoredMessage
from .arguments import (
    byte_budget,
    column_names,
    count,
    filter_text,
    flag,
    group_named,
    message_ids,
    named,
    page_size,
    per_second,
    place_after,
    priority_span,
    queue_ids,
    timeout_s,
    wait_ms,
    whole,
)
from .arguments import message_id as one_id
from .calls import Calls
from .producer import Producer, make_producer

if TYPE_CHECKING:
    import pyarrow as pa


_STATES = ("ready", "waiting", "retrying", "leased", "dead")


class MessageCalls(Calls):
    """Messages, without holding them."""

    # Publish and read

    def publish(
        self,
        topic: str,
        messages: bytes | Message | Sequence[bytes | Message] | Any,
        *,
        publish_id: str | None = None,
        tx: Any = None,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Stores a batch whole; returns when it is on stable storage, or with `tx` as part of that transaction.

        Takes bytes, a Message, a list of them, or an Arrow table with the columns payload, id, key,
        headers, expires_at, for a log partition, for a queue due_at, priority and lane. Repeating a
        `publish_id` within a day stores nothing twice.
        In a handler of workers, or inside `with duly.operation(…)`, messages carry their operation.
        Raises PublishUnknown, with the publish id to repeat it with, when the outcome cannot be told.
        """
        name = named(topic)
        batch = check_batch(messages)
        if (operation := current_operation()) is not None:
            batch = batch.carrying(operation)
        deadline = self._deadline(timeout)
        repeated = publish_id is not None and check_publish_id(publish_id).startswith(MADE_PUBLISH_ID_MARK)
        own = self._alive().make_publish_id() if publish_id is None else publish_id
        command = Publish(self._tenant, name, batch, own, repeated)
        receipt: Receipt = self._alive().do(command, deadline=deadline, cost=batch.bytes, publish_id=own, tx=tx)
        return receipt

    def producer(
        self, *, linger: Duration = 0.005, max_bytes: int | None = None, timeout: Duration | None = None
    ) -> Producer:
        """Gathers single publishes into batches: `with q.producer() as p: p.publish("orders", b"one")`.

        A batch is sent when it is full, or `linger` after its first message; its messages share a future. `max_bytes`
        bounds what waits to be sent (64 MiB); `timeout` is how long publish waits for room, and a batch for its store.
        """
        return make_producer(self, linger=linger, max_bytes=max_bytes, timeout=timeout, timeout_default=self._timeout_s)

    # Stages: what many put down piece by piece is published together

    def stage(
        self,
        topic: str,
        messages: bytes | Message | Sequence[bytes | Message] | Any,
        *,
        stage: str,
        number: int,
        timeout: Duration | None = None,
    ) -> int:
        """Adds a batch to a stage; nobody sees it before `commit_stages`. Returns how many messages the stage has.

        `number` counts the calls for the stage, from 0: one that is repeated stores nothing twice. A stage that nobody
        adds to or commits for a day is dropped.
        """
        batch = check_batch(messages)
        command = Stage(self._tenant, named(topic), check_stage(stage, number), number, batch)
        staged: int = self._alive().do(command, deadline=self._deadline(timeout), cost=batch.bytes)
        return staged

    def commit_stages(
        self,
        topic: str,
        stages: Mapping[str, int],
        *,
        job: str,
        version: int = 0,
        timeout: Duration | None = None,
    ) -> Admitted:
        """Publishes stages, all of them or none; `stages` says how many messages each must have.

        Once it is decided it happens, whoever dies. A `version` of a `job` is published once: one that is not above the
        newest before it stores nothing, and the answer is a `duplicate`.
        """
        given = tuple((check_label(name, "stage"), whole(many, "messages")) for name, many in stages.items())
        if len(given) > STAGES_MAX:
            raise LimitExceeded(f"A commit takes at most {STAGES_MAX} stages; got {len(given)}.")
        command = CommitStages(self._tenant, named(topic), check_label(job, "job"), whole(version, "version"), given)
        deadline = self._deadline(timeout)
        while True:
            admitted: Admitted = self._alive().do(command, deadline=deadline)
            if not admitted.left:
                return admitted

    def drop_stages(self, topic: str, stages: Iterable[str], *, timeout: Duration | None = None) -> None:
        """Gives stages up."""
        names = tuple(check_label(name, "stage") for name in stages)
        self._do(DropStages(self._tenant, named(topic), names), timeout)

    def read(
        self,
        topic: str,
        *,
        partition: int = 0,
        offset: int = 0,
        max_messages: int = 1000,
        max_bytes: int | None = None,
        timeout: Duration | None = None,
    ) -> list[StoredMessage]:
        """Reads a log from an offset on, without a lease. Raises OffsetTruncated; never skips in silence."""
        command = Read(
            self._tenant,
            named(topic),
            whole(partition, "partition"),
            whole(offset, "offset"),
            count(max_messages, "max_messages", LIMITS.read_messages_max),
            byte_budget(max_bytes),
        )
        return self._do(command, timeout)

    def read_arrow(
        self,
        topic: str,
        *,
        partition: int = 0,
        offset: int = 0,
        end: int | None = None,
        columns: Iterable[str] | None = None,
        missing_ok: bool = False,
        timeout: Duration | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Reads a partition from an offset on, up to `end` or what is there, as Arrow record batches of about 64k rows.

        `columns` names those that are wanted; times are in milliseconds. Of a queue it is the log beneath: every
        message that is still there, settled or not. Raises OffsetTruncated; never skips in silence what a log should
        have, nor, unless `missing_ok`, what a queue with archiving on should. A broken connection to a broker is made
        anew, and the reading goes on; `timeout` is how long nothing may come.
        """
        stretch = Stretch(
            self._tenant,
            named(topic),
            whole(partition, "partition"),
            whole(offset, "offset"),
            None if end is None else whole(end, "end"),
            column_names(columns),
            flag(missing_ok, "missing_ok"),
        )
        return self._batches(stretch, self._timeout_s if timeout is None else timeout_s(timeout))

    def _batches(self, stretch: Stretch, patience_s: float) -> Iterator[pa.RecordBatch]:
        for batch in self._alive().batches(stretch, patience_s=patience_s):
            yield batch
            self._alive()

    def await_messages(self, topic: str, offsets: Mapping[int, int], *, wait: Duration) -> list[int]:
        """Waits at the end of a log. `offsets` names a place in each partition that is waited for.

        Returns the partitions that have a message there, as soon as there is one; none when `wait` is over.
        """
        places = tuple((whole(partition, "partition"), whole(at, "offset")) for partition, at in offsets.items())
        until = monotonic_s() + wait_ms(wait) / 1000
        return list(self._alive().tail(Tail(self._tenant, named(topic), places), wait_until=until).grown)

    def offset_at(self, topic: str, when: datetime, *, timeout: Duration | None = None) -> dict[int, int]:
        """By partition: the first offset published at or after a time."""
        return self._do(OffsetAt(self._tenant, named(topic), moment_ms(when, "when")), timeout)

    # A queue's messages by id

    def move(
        self,
        topic: str,
        ids: str | Iterable[str],
        *,
        due: datetime | Duration | None = None,
        priority: int | None = None,
        tx: Any = None,
        timeout: Duration | None = None,
    ) -> dict[str, str]:
        """Gives queued messages another due time or priority. Answers each id: "moved", "leased" (a consumer
        has it, nothing changed), "finished" or "not_found".
        """
        if due is None and priority is None:
            raise InvalidArgument("Move to another due= or priority=.")
        at = None if due is None else due_at(due)
        level = None if priority is None else check_priority(priority)
        return self._do(Move(self._tenant, named(topic), queue_ids(ids), at, level), timeout, tx)

    def cancel(
        self, topic: str, ids: str | Iterable[str], *, tx: Any = None, timeout: Duration | None = None
    ) -> dict[str, str]:
        """Removes queued messages. Answers each id: "cancelled", "leased" (a consumer has it: if it acks,
        it is done, otherwise it is gone), "finished" or "not_found".
        """
        return self._do(Cancel(self._tenant, named(topic), queue_ids(ids)), timeout, tx)

    def get(self, topic: str, message_id: str, *, timeout: Duration | None = None) -> QueuedMessage | None:
        """One message of a queue with its state and history; None when there is none under that id."""
        return self._do(Get(self._tenant, named(topic), one_id(message_id)), timeout)

    def browse(
        self,
        topic: str,
        *,
        state: str | None = None,
        lane: str | None = None,
        priority: int | tuple[int, int] | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
        key: str | None = None,
        after: tuple[int, int] = (0, -1),
        limit: int = 100,
        timeout: Duration | None = None,
    ) -> list[QueuedMessage]:
        """A page of a queue's unsettled messages, by partition and offset, without claiming them.

        `state` is ready, waiting, retrying, leased or dead; `priority` one, or (lowest, highest). The next page
        comes after the `place` of the last message.
        """
        if state is not None and state not in _STATES:
            raise InvalidArgument(f"state is one of {', '.join(_STATES)}; got {state!r}.")
        command = Browse(
            self._tenant,
            named(topic),
            place_after(after),
            count(limit, "limit", LIMITS.page_max),
            state,
            filter_text(lane, "lane"),
            priority_span(priority),
            None if due_from is None else moment_ms(due_from, "due_from"),
            None if due_before is None else moment_ms(due_before, "due_before"),
            filter_text(key, "key"),
        )
        return self._do(command, timeout)

    def coming(self, topic: str, *, minutes: int = 60, timeout: Duration | None = None) -> list[tuple[datetime, int]]:
        """How many messages of a queue fall due in each of the next minutes, beginning with what is left of this one.

        What is due already is not ahead any more: describe_group counts it.
        """
        command = Coming(self._tenant, named(topic), count(minutes, "minutes", LIMITS.page_max))
        found: list[tuple[int, int]] = self._do(command, timeout)
        return [(from_ms(moment), many) for moment, many in found]

    # Dead letters

    def dead(
        self,
        topic: str,
        *,
        group: str | None = None,
        after: tuple[int, int] = (0, -1),
        limit: int | None = None,
        timeout: Duration | None = None,
    ) -> Iterator[DeadLetter]:
        """A group's dead letters with payload and history, oldest offset first."""
        name, group_name, most = named(topic), group_named(group), page_size(limit)
        after = place_after(after)
        given = 0
        while given < most:
            command = ListDead(self._tenant, name, group_name, after, min(100, most - given))
            page: list[DeadLetter] = self._do(command, timeout)
            yield from page
            given += len(page)
            if len(page) < command.limit:
                return
            after = (page[-1].message.partition, page[-1].message.offset)

    def redrive(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        rate: float | None = None,
        limit: int | None = None,
        timeout: Duration | None = None,
    ) -> int:
        """Sends dead letters back with fresh attempts: all, some by id, at most `limit`, `rate` a second."""
        if rate is not None:
            rate = per_second(rate, "rate")
        wanted = None if ids is None else message_ids(ids)
        most = None if limit is None else page_size(limit)
        return int(self._do(Redrive(self._tenant, named(topic), group_named(group), wanted, rate, most), timeout))

    def replay(
        self,
        topic: str,
        messages: Iterable[int | StoredMessage],
        *,
        group: str,
        of: tuple[str, int],
        job: str,
        version: int = 0,
        partition: int = 0,
        timeout: Duration | None = None,
    ) -> Replayed:
        """Sends messages of a log's partition back to one group, under their own offsets, with fresh attempts.

        Each is named by its offset, or given whole, if the log may have dropped it; what the group has in its backlog
        anyway is left alone. `of` is the incarnation and the partition's id that the offsets belong to: StaleVersion if
        the store was restored or the topic made again since. A `version` of a `job` is done once. Busy, while the
        group has too many to deliver again: let it work them off.
        """
        given = list(messages)
        copies = tuple(one for one in given if isinstance(one, StoredMessage))
        offsets = tuple(whole(one, "offset") for one in given if not isinstance(one, StoredMessage))
        check_replayed(offsets, copies)
        incarnation, partition_id = of
        command = Replay(
            self._tenant,
            named(topic),
            named(group),
            whole(partition, "partition"),
            incarnation,
            whole(partition_id, "partition id"),
            check_label(job, "job"),
            whole(version, "version"),
            offsets,
            copies,
        )
        return self._do(command, timeout)

    # What happened

    def events(
        self,
        *,
        since: datetime | None = None,
        topic: str | None = None,
        message: str | None = None,
        timeout: Duration | None = None,
    ) -> Iterator[Event]:
        """What happened, in order: all that is still recorded, or since a moment; of one topic, of one message of it.

        Events of everything but lease renewals are kept in the system topic `$events`, for a week or a gigabyte
        (change that with update_topic). With `message` they are the whole history of one message.
        """
        if message is not None and topic is None:
            raise InvalidArgument("The history of a message takes its topic= too: ids are a topic's own.")
        command = ListEvents(
            self._tenant,
            since=None if since is None else moment_ms(since, "since"),
            topic=None if topic is None else named(topic),
            message=None if message is None else one_id(message),
        )
        while True:
            page: Page = self._do(command, timeout)
            yield from page.events
            if not page.more:
                return
            command = replace(command, after=page.after, leases=page.leases)
