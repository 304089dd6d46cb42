"""The Python API: the same names and meanings whichever store or broker is underneath.

Durations are seconds or timedelta, moments are aware datetimes. Every call takes `timeout`;
without one it takes the client's. A client is thread-safe.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..clock import ClockReading, Duration, from_ms, moment_ms, monotonic_s
from ..engine.claimed import Claim
from ..engine.dead import ListDead, PurgeDead, Redrive
from ..engine.event_log import ListEvents, Page
from ..engine.groups import (
    CreateGroup,
    DeleteGroup,
    DescribeGroup,
    ListGroups,
    PurgeGroup,
    Seek,
    UpdateGroup,
)
from ..engine.incoming import check_batch, check_priority, due_at
from ..engine.inquiry import Browse, Cancel, Coming, Get, Move
from ..engine.pause import PauseStore
from ..engine.publish import MADE_PUBLISH_ID_MARK, Publish, check_publish_id, make_publish_id
from ..engine.read import OffsetAt, Read
from ..engine.settle import Held, ReleaseConsumer
from ..engine.settling import Settle, Token, Verdicts
from ..engine.tail import Tail
from ..engine.topics import (
    Archived,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    PurgeTopic,
    UpdateTopic,
)
from ..engine.wellbeing import CheckHealth
from ..errors import Closed, InvalidArgument
from ..events import Event
from ..health import Finding, GroupHealth
from ..interrupt import SHIELD
from ..limits import LIMITS
from ..message import DeadLetter, Message, QueuedMessage, Receipt, StoredMessage
from ..store.contract import Backup, Progress
from ..tenant import check_name
from ..topic import GroupDescription, GroupSettings, TopicDescription
from .arguments import (
    after_name,
    byte_budget,
    bytes_a_second,
    count,
    delay_ms,
    filter_text,
    flag,
    folder_path,
    group_named,
    lease_ms,
    message_ids,
    named,
    page_size,
    place_after,
    priority_span,
    queue_ids,
    reason_text,
    start_at,
    timeout_s,
    topic_settings,
    wait_ms,
    whole,
)
from .arguments import message_id as one_id
from .batch import Batch, Delivery, Settled
from .consume import Consumption
from .embedded import Port, Watch
from .renewal import Renewal

if TYPE_CHECKING:
    from ..store.sqlite.application import Transaction

_PAGE = 1000
# Topics looked at in one transaction.
_HEALTH_PAGE = 100
_STATES = ("ready", "waiting", "retrying", "leased", "dead")


class Client:
    """A tenant's way into Duly. Made by `duly.connect`; close it, or use it as a context manager."""

    def __init__(self, port: Port, *, tenant: str, consumer: str | None, timeout: Duration) -> None:
        self._port = port
        self._tenant = check_name(tenant, "tenant name")
        self._consumer = consumer
        self._pid = os.getpid()
        self._timeout_s = timeout_s(timeout)
        self._renewal = Renewal(self._renew)
        self._closed = False
        if consumer is not None:
            check_name(consumer, "consumer name", LIMITS.consumer_chars_max)
        self._own_name = _consumer_name()

    # Topics

    def create_topic(
        self,
        topic: str,
        *,
        kind: str,
        exist_ok: bool = False,
        timeout: Duration | None = None,
        **settings: Any,
    ) -> TopicDescription:
        """Makes a topic: a `log` or a `queue`. With `exist_ok` an equal one is left as it is; one with
        other settings is TopicExists. Settings are those of duly.TopicSettings.
        """
        wanted = topic_settings(kind, settings)
        return self._do(
            CreateTopic(self._tenant, check_name(topic, "topic name"), wanted, flag(exist_ok, "exist_ok")), timeout
        )

    def update_topic(
        self, topic: str, *, version: int | None = None, timeout: Duration | None = None, **changes: Any
    ) -> TopicDescription:
        """Changes settings. With `version`, only if nobody changed it since."""
        if version is not None:
            version = whole(version, "version")
        return self._do(UpdateTopic(self._tenant, named(topic), changes, None, version), timeout)

    def describe_topic(self, topic: str, *, timeout: Duration | None = None) -> TopicDescription:
        """The topic's settings and how much it holds."""
        return self._do(DescribeTopic(self._tenant, named(topic)), timeout)

    def list_topics(self, *, after: str = "", limit: int | None = None, timeout: Duration | None = None) -> list[str]:
        """Topic names in order: all of them, or a page of `limit` after a name."""
        most = page_size(limit)
        after = after_name(after)
        found: list[str] = []
        while len(found) < most:
            command = ListTopics(self._tenant, found[-1] if found else after, min(_PAGE, most - len(found)))
            page = self._do(command, timeout)
            found.extend(page)
            if len(page) < command.limit:
                break
        return found

    def delete_topic(self, topic: str, *, force: bool = False, timeout: Duration | None = None) -> None:
        """Removes a topic with its groups. One that has messages is TopicNotEmpty, unless `force`."""
        self._do(DeleteTopic(self._tenant, named(topic), flag(force, "force")), timeout)

    def pause(self, topic: str, *, group: str | None = None, timeout: Duration | None = None) -> None:
        """Stops deliveries of a topic, or of one group. Publishing and settling go on."""
        self._set_paused(topic, group, True, timeout)

    def resume(self, topic: str, *, group: str | None = None, timeout: Duration | None = None) -> None:
        """Starts deliveries again."""
        self._set_paused(topic, group, False, timeout)

    def pause_store(self, *, timeout: Duration | None = None) -> None:
        """Stops all deliveries, of every topic and tenant. Publishing and settling go on; nothing is dropped by age."""
        self._do(PauseStore(self._tenant, True), timeout)

    def resume_store(self, *, timeout: Duration | None = None) -> None:
        """Starts deliveries again. Of a restored store, which opens paused, it frees what its consumers held."""
        self._do(PauseStore(self._tenant, False), timeout)

    def _set_paused(self, topic: str, group: str | None, paused: bool, timeout: Duration | None) -> None:
        if group is None:
            self._do(UpdateTopic(self._tenant, named(topic), {}, paused), timeout)
        else:
            self._do(UpdateGroup(self._tenant, named(topic), named(group), {}, paused), timeout)

    def purge(
        self, topic: str, *, group: str | None = None, dead: bool = False, timeout: Duration | None = None
    ) -> int:
        """Drops messages: a topic's, what one group has not settled, or (`dead`) a group's dead letters."""
        if flag(dead, "dead"):
            return int(self._do(PurgeDead(self._tenant, named(topic), group_named(group)), timeout))
        if group is not None:
            return int(self._do(PurgeGroup(self._tenant, named(topic), named(group)), timeout))
        return int(self._do(PurgeTopic(self._tenant, named(topic)), timeout))

    def archived(self, topic: str, *, partition: int = 0, offset: int, timeout: Duration | None = None) -> None:
        """Says that a partition is in the archive up to `offset`: truncation may go so far."""
        self._do(
            Archived(self._tenant, named(topic), whole(partition, "partition"), whole(offset, "offset")),
            timeout,
        )

    # Groups

    def create_group(
        self,
        topic: str,
        group: str,
        *,
        start: str | int | Mapping[int, int] | datetime = "earliest",
        exist_ok: bool = False,
        timeout: Duration | None = None,
        **settings: Any,
    ) -> None:
        """Makes a group of a log, starting at "earliest", "latest", an offset, offsets by partition, or a time."""
        wanted = GroupSettings().changed(settings)
        command = CreateGroup(
            self._tenant,
            named(topic),
            check_name(group, "group name"),
            wanted,
            start_at(start),
            flag(exist_ok, "exist_ok"),
        )
        self._do(command, timeout)

    def update_group(self, topic: str, group: str, *, timeout: Duration | None = None, **changes: Any) -> None:
        """Changes a group's own lease, retry or dead_letters; None takes the topic's."""
        self._do(UpdateGroup(self._tenant, named(topic), named(group), changes), timeout)

    def describe_group(self, topic: str, group: str, *, timeout: Duration | None = None) -> GroupDescription:
        """Where a group stands, and its consumers."""
        return self._do(DescribeGroup(self._tenant, named(topic), named(group)), timeout)

    def list_groups(self, topic: str, *, timeout: Duration | None = None) -> list[str]:
        """The names of a topic's groups."""
        return self._do(ListGroups(self._tenant, named(topic)), timeout)

    def delete_group(self, topic: str, group: str, *, timeout: Duration | None = None) -> None:
        """Removes a group; its open leases are lost."""
        self._do(DeleteGroup(self._tenant, named(topic), named(group)), timeout)

    def seek(
        self,
        topic: str,
        group: str,
        *,
        offset: int | Mapping[int, int] | None = None,
        at: datetime | None = None,
        to: str | None = None,
        timeout: Duration | None = None,
    ) -> dict[int, int]:
        """Moves a group's cursor to an offset, a time, or "earliest"/"latest". Its open leases are fenced off."""
        given = [value for value in (offset, at, to) if value is not None]
        if len(given) != 1:
            raise InvalidArgument("Seek to one of offset=, at= or to=.")
        return self._do(Seek(self._tenant, named(topic), named(group), start_at(given[0], "at")), timeout)

    # Publish and read

    def publish(
        self,
        topic: str,
        messages: bytes | Message | Sequence[bytes | Message] | Any,
        *,
        publish_id: str | None = None,
        tx: Transaction | None = None,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Stores a batch whole; returns when it is on stable storage, or with `tx` as part of that transaction.

        Takes bytes, a Message, a list of them, or an Arrow table with the columns payload, id, key,
        headers, expires_at, for a log partition, for a queue due_at, priority and lane. Repeating a
        `publish_id` within a day stores nothing twice.
        Raises PublishUnknown, with the publish id to repeat it with, when the outcome cannot be told.
        """
        name = named(topic)
        batch = check_batch(messages)
        deadline = self._deadline(timeout)
        repeated = publish_id is not None and check_publish_id(publish_id).startswith(MADE_PUBLISH_ID_MARK)
        own = make_publish_id(self._port.now_ms()) if publish_id is None else publish_id
        command = Publish(self._tenant, name, batch, own, repeated)
        receipt: Receipt = self._alive().do(command, deadline=deadline, cost=batch.bytes, publish_id=own, tx=tx)
        return receipt

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
        tx: Transaction | None = None,
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
        self, topic: str, ids: str | Iterable[str], *, tx: Transaction | None = None, timeout: Duration | None = None
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

    # Claim and settle

    def claim(
        self,
        topic: str,
        *,
        group: str | None = None,
        max_messages: int = 100,
        max_bytes: int | None = None,
        wait: Duration = 0,
        lease: Duration | None = None,
        consumer: str | None = None,
        timeout: Duration | None = None,
    ) -> Batch:
        """Takes up to `max_messages` due messages under a lease, waiting up to `wait` for the first.

        The batch is empty when nothing came. Use it in a `with` block to have it renewed and settled.
        """
        waits_s = wait_ms(wait) / 1000
        command = self._claim_of(topic, group, max_messages, max_bytes, lease, consumer)
        wait_until = monotonic_s() + waits_s if waits_s else None
        deadline = self._deadline(timeout)
        if deadline is not None and wait_until is not None:
            deadline += waits_s
        return Batch(self, self._alive().claim(command, wait_until=wait_until, deadline=deadline))

    def _claim_of(
        self,
        topic: str,
        group: str | None,
        max_messages: int,
        max_bytes: int | None,
        lease: Duration | None,
        consumer: str | None,
    ) -> Claim:
        return Claim(
            self._tenant,
            named(topic),
            group_named(group),
            self._consumer_name(consumer),
            count(max_messages, "max_messages", LIMITS.claim_messages_max),
            byte_budget(max_bytes),
            None if lease is None else lease_ms(lease),
        )

    def consume(
        self,
        topic: str,
        *,
        group: str | None = None,
        max_messages: int = 1,
        wait: Duration | None = None,
        lease: Duration | None = None,
        consumer: str | None = None,
        timeout: Duration | None = None,
    ) -> Consumption:
        """Deliveries one by one, without end: `for d in q.consume("emails")`. Each is renewed while you work on it
        and acked when you ask for the next, unless you settled it.

        Leaving the loop by `break` or by an exception looks the same from here: what was not settled is nacked.
        In `with q.consume(…) as deliveries:` the end of the block acks it and only an exception nacks.
        It claims up to `max_messages` at a time, one unless told otherwise; what the loop never came to is released.
        With `wait` it ends when nothing came for so long. A lease that was lost is logged, and the loop goes on.
        """
        command = self._claim_of(topic, group, max_messages, None, lease, consumer)
        if timeout is not None:
            timeout_s(timeout)
        return Consumption(self, command, None if wait is None else wait_ms(wait) / 1000, timeout)

    def ack(
        self,
        deliveries: Batch | Iterable[Delivery],
        *,
        tx: Transaction | None = None,
        timeout: Duration | None = None,
    ) -> Settled:
        """Finishes deliveries; with `tx` if and when that transaction commits, and exactly then."""
        return self._settle("ack", deliveries, tx=tx, timeout=timeout)

    def nack(
        self,
        deliveries: Batch | Iterable[Delivery],
        *,
        delay: Duration | None = None,
        reason: str = "",
        tx: Transaction | None = None,
        timeout: Duration | None = None,
    ) -> Settled:
        """Gives deliveries back to be tried again: after `delay`, or as the retry policy says."""
        later_ms = None if delay is None else delay_ms(delay)
        return self._settle("nack", deliveries, delay_ms=later_ms, reason=reason, tx=tx, timeout=timeout)

    def release(
        self,
        deliveries: Batch | Iterable[Delivery] | None = None,
        *,
        consumer: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        tx: Transaction | None = None,
        timeout: Duration | None = None,
    ) -> Settled:
        """Gives deliveries back at once, without counting an attempt; or all that a (hung) consumer holds."""
        if (deliveries is None) == (consumer is None):
            raise InvalidArgument("Release deliveries, or everything of consumer=.")
        if deliveries is not None:
            return self._settle("release", deliveries, tx=tx, timeout=timeout)
        command = ReleaseConsumer(self._tenant, *self._of_consumer(consumer, topic, group))
        return Settled(self._do(command, timeout, tx))

    def extend(
        self,
        deliveries: Batch | Iterable[Delivery],
        lease: Duration | None = None,
        *,
        timeout: Duration | None = None,
    ) -> Settled:
        """Holds deliveries for `lease` from now on; by default as long as they were first held for."""
        longer_ms = None if lease is None else lease_ms(lease)
        return self._settle("extend", deliveries, delay_ms=longer_ms, timeout=timeout)

    def bury(
        self,
        deliveries: Batch | Iterable[Delivery],
        *,
        reason: str = "",
        tx: Transaction | None = None,
        timeout: Duration | None = None,
    ) -> Settled:
        """Moves deliveries to the dead letters now."""
        return self._settle("bury", deliveries, reason=reason, tx=tx, timeout=timeout)

    def held(
        self,
        *,
        consumer: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        timeout: Duration | None = None,
    ) -> list[Batch]:
        """Gives a restarted consumer its unexpired leases back, a batch a group, and fences its former self off."""
        command = Held(self._tenant, *self._of_consumer(consumer, topic, group))
        return [Batch(self, claimed) for claimed in self._do(command, timeout)]

    def _of_consumer(
        self, consumer: str | None, topic: str | None, group: str | None
    ) -> tuple[str, str | None, str | None]:
        return (
            self._consumer_name(consumer),
            None if topic is None else named(topic),
            None if group is None else named(group),
        )

    def _settle(
        self,
        verdict: str,
        deliveries: Batch | Iterable[Delivery],
        *,
        delay_ms: int | None = None,
        reason: str = "",
        tx: Transaction | None = None,
        timeout: Duration | None = None,
    ) -> Settled:
        reason = reason_text(reason)
        # What the store answers is also noted here: an interruption must not come between the two.
        with SHIELD:
            if isinstance(deliveries, Batch):
                return self._settle_open(verdict, deliveries, delay_ms, reason, timeout, tx)
            chosen = [deliveries] if isinstance(deliveries, Delivery) else deliveries
            return self._settle_chosen(verdict, chosen, delay_ms, reason, timeout, tx)

    def _settle_chosen(
        self,
        verdict: str,
        deliveries: Iterable[Delivery],
        delay_ms: int | None,
        reason: str,
        timeout: Duration | None,
        tx: Transaction | None,
    ) -> Settled:
        done, lost = 0, []
        cancelled: list[Delivery] = []
        for batch, chosen in _by_batch(deliveries).items():
            tokens = _tokens(chosen)
            delay = batch.lease_ms if verdict == "extend" and delay_ms is None else delay_ms
            command = Settle(self._tenant, batch.incarnation, batch.topic, batch.group, verdict, tokens, delay, reason)
            verdicts: Verdicts = self._do(command, timeout, tx)
            if tx is not None:
                tx.when_undone(batch.as_it_is())
            batch.apply(verdict, tokens, verdicts)
            done += verdicts.done
            lost += _mark(chosen, verdict, verdicts)
            if verdict == "extend":
                cancelled += [delivery for delivery in chosen if delivery.cancelled]
        return Settled(done, tuple(lost), tuple(cancelled))

    def _settle_open(
        self,
        verdict: str,
        batch: Batch,
        delay_ms: int | None,
        reason: str,
        timeout: Duration | None,
        tx: Transaction | None = None,
    ) -> Settled:
        tokens = batch.open_tokens()
        if not tokens:
            return Settled(0, tuple(batch.lost_deliveries()))
        delay = batch.lease_ms if verdict == "extend" and delay_ms is None else delay_ms
        command = Settle(self._tenant, batch.incarnation, batch.topic, batch.group, verdict, tokens, delay, reason)
        verdicts: Verdicts = self._do(command, timeout, tx)
        if tx is not None:
            tx.when_undone(batch.as_it_is())
        batch.apply(verdict, tokens, verdicts)
        if verdict != "extend":
            batch.mark_settled()
            return Settled(verdicts.done, tuple(batch.lost_deliveries()))
        return Settled(verdicts.done, tuple(batch.lost_deliveries()), tuple(batch.cancelled_deliveries()))

    def renew(self, batch: Batch) -> Callable[[], None]:
        """Renews a batch in the background until the returned function is called."""
        return self._renewal.start(batch)

    def _renew(self, batch: Batch) -> None:
        self._settle_open("extend", batch, batch.lease_ms, "", None)

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
        if rate is not None and (
            isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= LIMITS.rate_per_s_max
        ):
            raise InvalidArgument(f"rate must be more than 0 and at most {LIMITS.rate_per_s_max} a second.")
        wanted = None if ids is None else message_ids(ids)
        most = None if limit is None else page_size(limit)
        return int(self._do(Redrive(self._tenant, named(topic), group_named(group), wanted, rate, most), timeout))

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

    # The application's own transaction

    def transaction(self, *, timeout: Duration | None = None) -> Transaction:
        """A transaction on the store's file for the application's own tables, which commands join with `tx=`.

        `with q.transaction() as tx:` commits when the block ends and undoes everything when it raises. Nobody else
        writes meanwhile: keep it short. Whoever waits for longer than ten seconds gets Busy; and so does this,
        when others write for longer than `timeout`. Reads inside the block answer from before it on a file, and with
        what the transaction did so far in `:memory:`.
        """
        transaction: Transaction = self._alive().transaction(self._timeout_s if timeout is None else timeout_s(timeout))
        return transaction

    # Housekeeping

    @property
    def tenant(self) -> str:
        """The tenant whose topics these are."""
        return self._tenant

    @property
    def consumer(self) -> str:
        """The name under which this client claims."""
        return self._consumer_name(None)

    def examine(self) -> Iterator[Finding]:
        """Looks the whole store over: integrity, checksums, references, clock, disk, settings."""
        return self._alive().examine()

    def clock(self) -> ClockReading:
        """The store's time beside the host's, and whether the store follows it."""
        return self._alive().clock()

    def accept_clock(self, *, timeout: Duration | None = None) -> ClockReading:
        """Confirms the host's clock: the store's time becomes the host's, in every process on the file.

        For a leap ahead that was refused and is right. It takes the store back, too, if the host's clock is behind:
        leases and retries then wait that much longer.
        """
        self._alive().accept_clock(deadline=self._deadline(timeout))
        return self.clock()

    def backup(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int | None = None,
        rate: float | None = None,
        on_progress: Progress | None = None,
        timeout: Duration | None = None,
    ) -> Backup:
        """Copies the whole store, your own tables included, as it is at one moment, while everyone goes on.

        Backups in one folder share what did not change. `keep` drops all but the newest so many; `rate` bounds the
        bytes read a second; `on_progress` is told the bytes done and all of them. `timeout` is how long it may wait
        for its moment, not how long it may take. `duly.restore` puts one back.
        """
        most = None if keep is None else count(keep, "keep", LIMITS.page_max)
        return self._alive().back_up(
            folder_path(folder),
            keep=most,
            rate=None if rate is None else bytes_a_second(rate),
            on_progress=on_progress,
            deadline=self._deadline(timeout),
        )

    def health(
        self,
        topic: str | None = None,
        *,
        after: str = "",
        limit: int | None = None,
        timeout: Duration | None = None,
    ) -> list[GroupHealth]:
        """How each group does by its topic's thresholds (duly.Health), with reasons and figures.

        Of one topic; of all of them; or of a page of `limit` topics after a name. Each topic is there at least once.
        """
        if topic is not None:
            return self._do(CheckHealth(self._tenant, named(topic), "", 1), timeout)
        most, seen = page_size(limit), 0
        found: list[GroupHealth] = []
        while seen < most:
            command = CheckHealth(self._tenant, None, after_name(after), min(_HEALTH_PAGE, most - seen))
            page: list[GroupHealth] = self._do(command, timeout)
            found.extend(page)
            topics = len({one.topic for one in page})
            if topics < command.limit:
                break
            seen, after = seen + topics, page[-1].topic
        return found

    def limits(self) -> dict[str, int]:
        """The hard limits, published."""
        from ..limits import published

        return published()

    def close(self) -> None:
        """Finishes what was accepted and lets go of the store. Twice does nothing."""
        if not self._closed:
            self._port.check_leaving()
            self._closed = True
            if os.getpid() == self._pid:
                self._renewal.close()
            self._port.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _alive(self) -> Port:
        if self._closed:
            raise Closed()
        if os.getpid() != self._pid:
            # The child of a fork: a consumer of its own, with its own renewals.
            self._pid = os.getpid()
            self._own_name = _consumer_name()
            self._renewal = Renewal(self._renew)
        return self._port

    def _watch(self, command: Claim) -> Watch:
        return self._alive().watch(command)

    def _wake(self) -> None:
        self._alive().wake()

    def _do(self, command: Any, timeout: Duration | None, tx: Transaction | None = None) -> Any:
        return self._alive().do(command, deadline=self._deadline(timeout), tx=tx)

    def _deadline(self, timeout: Duration | None) -> float | None:
        return monotonic_s() + (self._timeout_s if timeout is None else timeout_s(timeout))

    def _consumer_name(self, consumer: str | None) -> str:
        if consumer is not None:
            return check_name(consumer, "consumer name", LIMITS.consumer_chars_max)
        return self._consumer or self._own_name


def _consumer_name() -> str:
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(3)}"


def _by_batch(deliveries: Iterable[Delivery]) -> dict[Batch, list[Delivery]]:
    found: dict[Batch, list[Delivery]] = defaultdict(list)
    try:
        for delivery in deliveries:
            found[delivery._batch].append(delivery)
    except (AttributeError, TypeError) as error:
        raise InvalidArgument("Settle a Batch, or Delivery objects that a claim gave you.") from error
    return found


def _tokens(deliveries: Iterable[Delivery]) -> tuple[Token, ...]:
    indexes: dict[int, list[int]] = defaultdict(list)
    for delivery in deliveries:
        indexes[delivery._lease_id].append(delivery._index)
    return tuple(Token(lease, tuple(dict.fromkeys(chosen))) for lease, chosen in indexes.items())


def _mark(deliveries: Iterable[Delivery], verdict: str, verdicts: Verdicts) -> list[Delivery]:
    """Notes on each delivery how it was answered; returns the lost ones."""
    lost = []
    gone = set(verdicts.lost)
    for delivery in deliveries:
        token = (delivery._lease_id, delivery._index)
        if token in gone or (delivery._lease_id, None) in gone:
            delivery._lost = not delivery._settled
            lost.append(delivery)
        elif token in verdicts.renewed:
            delivery._lease_id, delivery._index = verdicts.renewed[token]
        elif verdict != "extend":
            delivery._settled = True
    return lost
