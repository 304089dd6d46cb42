"""replay: messages of the lake are published again, or go back to one group of the log that they came from.

    order ──▶ plan (replay_plan.py): a version of the lake, cut into slices in the order of publishing
    slice i ──▶ a topic: rows as messages, marked with where they come from, as version i of the plan's job
            └─▶ a group: their own offsets, in calls of some thousand (engine/replay.py), each a version of the job
    all of them ──▶ the plan is finished

Exactly once: a version is done once, and the store says which were. Killed at any moment, the next run with the same
order finds the plan, asks how far it came, and goes on. A finished one does nothing.

At a rate, slices are what goes out in a few seconds, and each waits for its turn.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from threading import Event
from typing import Any

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ...client.client import Client
from ...clock import monotonic_s
from ...errors import Busy, InvalidArgument, LakeError, NotFound, OffsetTruncated, QuotaExceeded, StaleVersion
from ...message import MADE_ID_MARK, StoredMessage
from ..causes import explained
from ..lake import Lake, Version
from ..messages import column_as, with_expressions
from ..options import home_of
from ..progress import Progress
from ..selection import ORDER, Portion, Selection, check_one_store, portions
from ..writing import check_columns
from .replay_plan import Order, Plan, Slice, Target, check_plan_name, cut, finish, load, make_plan, save
from .versions import published

MARK = "duly-replayed-from"
# What the job wants of a session, unless somebody says otherwise: a slice is small.
SESSION_CONF = {"spark.sql.shuffle.partitions": "8"}
# A slice is done again when it is broken off.
_TOPIC_ROWS, _TOPIC_BYTES = 250_000, 128 * 1024**2
_GROUP_ROWS, _GROUP_BYTES = 50_000, 32 * 1024**2
# At a rate, a slice is what goes out in so long; but a plan has no more slices than this.
_SLICE_S = 5.0
_SLICES_MAX = 100_000
_TASK_ROWS = 250_000
_ROWS_A_CALL = 2_000
# Calls of a slice have versions of their own. The last one ends the slice.
_CALLS = 1 << 20
_FULL_AGAIN_S = 1.0
_PATIENCE_S = 600


class Outcome(msgspec.Struct, frozen=True):
    """What a run sent, and what runs before it; what was there anyway, by its id or in the group; what is left."""

    name: str
    messages: int = 0
    before: int = 0
    pending: int = 0
    left: int = 0


class Sent(msgspec.Struct, frozen=True):
    """What came of a slice, or of a part of it: sent, there anyway, sent by a run before this one."""

    messages: int = 0
    pending: int = 0
    before: int = 0

    def and_also(self, other: Sent) -> Sent:
        """Both together."""
        return Sent(self.messages + other.messages, self.pending + other.pending, self.before + other.before)

    def added_to(self, done: Outcome, rows: int) -> Outcome:
        """The outcome with a slice of so many rows more."""
        return Outcome(
            done.name,
            done.messages + self.messages,
            done.before + self.before,
            done.pending + self.pending,
            done.left - rows,
        )


def order_of(
    q: Client,
    selection: Selection,
    *,
    topic: str,
    group: str | None = None,
    payload: str | None = None,
    headers: str | None = None,
) -> Order:
    """What is asked for, checked. Raises InvalidArgument, TopicNotFound, GroupNotFound."""
    known = q.describe_topic(topic)
    if group is not None:
        if known.kind != "log" or (selection.tenant, selection.topic) != (q.tenant, topic):
            raise InvalidArgument(
                "A group gets back what is of its own log: leave --to out, or name a topic without a group."
            )
        if payload is not None or headers is not None:
            raise InvalidArgument("What goes back to a group goes as it is. Publish to a topic to change it.")
        q.describe_group(topic, group)
    ids = tuple(part.id for part in known.partitions)
    return Order(selection, Target(q.tenant, topic, known.incarnation, ids, group), payload, headers)


class Replayer:
    """One replay of a lake into a store."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        url: str,
        order: Order,
        *,
        name: str | None = None,
        again: bool = False,
        rate_per_s: float | None = None,
        remark: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._url = url
        self._home = home_of({"url": url, "tenant": order.target.tenant})
        self._order = order
        self._rate_per_s = rate_per_s
        self._remark = remark
        self.name = self._chosen(check_plan_name(name or order.name()), again)
        self.plan = load(lake, self.name)
        if self.plan is not None and self.plan.order != order:
            raise InvalidArgument(f"The replay {self.name!r} was planned for something else. Choose another name.")

    def _chosen(self, name: str, again: bool) -> str:
        """The name; to begin anew, the first after it under which nothing was finished."""
        chosen, number = name, 1
        while again and (known := load(self._lake, chosen)) is not None and known.finished:
            number += 1
            chosen = f"{name}-{number}"
        return chosen

    def count(self) -> list[Portion]:
        """What it would send, or sends: by incarnation of the store that it came from."""
        version = self._lake.newest() if self.plan is None else self._version(self.plan)
        return portions(self._order.selection.rows(self._spark, version))

    def run(self, *, progress: Callable[[Progress], None], stop: Event | None = None) -> Outcome:
        """Goes on from where runs before it came to, to the end or until `stop` is set between two slices."""
        halt = stop or Event()
        plan = self.plan = self.plan or self._planned()
        if plan.finished:
            return Outcome(self.name, before=plan.rows)
        with self._home.connect() as q:
            first = bisect_left(range(len(plan.slices)), True, key=lambda at: not self._is_done(q, plan, at))
            done = self._replay(q, plan, first, progress, halt)
        if not done.left:
            finish(self._lake, plan)
        return done

    # The plan

    def _planned(self) -> Plan:
        version = self._lake.newest()
        rows = self._order.selection.rows(self._spark, version)
        found = portions(rows)
        if not found:
            raise NotFound("The lake has no such messages. See what it has: --dry-run with less of a filter.")
        check_one_store(found, self._order.selection.incarnation)
        group = self._order.target.group is not None
        if group:
            self._check_own(rows)
        most, size = (_GROUP_ROWS, _GROUP_BYTES) if group else (_TOPIC_ROWS, _TOPIC_BYTES)
        if self._rate_per_s is not None:
            some = max(1, int(self._rate_per_s * _SLICE_S), sum(one.messages for one in found) // _SLICES_MAX)
            most = min(most, some)
        # An expression that means nothing is said now: once there is a plan, it stands.
        check_columns(as_replayed(rows, self._order, queue=False).schema)
        plan = make_plan(self.name, version.number, self._order, cut(rows, most, size))
        saved = save(self._lake, plan)
        if saved.order != self._order:
            raise InvalidArgument(f"The replay {self.name!r} was planned for something else. Choose another name.")
        return saved

    def _check_own(self, rows: DataFrame) -> None:
        """Refuses what is not of the log that the group reads. Raises StaleVersion."""
        target = self._order.target
        own = (f.col("incarnation") == target.incarnation) & f.col("partition_id").isin(list(target.partition_ids))
        if others := rows.where(~own).count():
            raise StaleVersion(
                f"{others} of these messages are of the store before it was restored, or of a topic {target.topic!r} "
                "that was deleted since: they have no place in its group. Narrow it down, or replay them to a topic."
            )

    def _version(self, plan: Plan) -> Version:
        try:
            table = DeltaTable(self._lake.uri, version=plan.version, storage_options=self._lake.storage)
        except DeltaError as error:
            raise LakeError(
                f"The lake has no version {plan.version} any more, on which {plan.name!r} was planned. Replay what is "
                "left under another name."
            ) from error
        return Version(self._lake, table)

    # Slices

    def _replay(self, q: Client, plan: Plan, first: int, progress: Callable[[Progress], None], halt: Event) -> Outcome:
        version = self._version(plan)
        before = sum(one.rows for one in plan.slices[:first])
        state, done = Progress(), Outcome(self.name, before=before, left=plan.rows - before)
        began_s = last_s = monotonic_s()
        for at in range(first, len(plan.slices)):
            if halt.is_set():
                break
            rows = self._rows(plan, version, at)
            sent = (
                self._publish(q, plan, at, rows)
                if plan.order.target.group is None
                else self._send(q, plan, at, rows, halt)
            )
            if sent is None:
                break
            done = sent.added_to(done, plan.slices[at].rows)
            if self._rate_per_s is not None and done.left:
                # The next one's turn comes when all before it had their time.
                halt.wait(max(0.0, began_s + (done.messages + done.pending) / self._rate_per_s - monotonic_s()))
            now_s = monotonic_s()
            this = plan.slices[at]
            state = state.after(rows=this.rows, bytes=this.bytes, lag=done.left, took_s=now_s - last_s)
            last_s = now_s
            progress(state)
        return done

    def _rows(self, plan: Plan, version: Version, at: int) -> DataFrame:
        """The messages of a slice."""
        this = plan.slices[at]
        following = plan.slices[at + 1] if at + 1 < len(plan.slices) else None
        end_us = this.published_us if following is None else following.published_us
        span = (this.published_us // 1000, 2**62 if following is None else end_us // 1000)
        rows = plan.order.selection.rows(self._spark, version, span)
        rows = rows.where(f.col("published_at") >= f.timestamp_micros(f.lit(this.published_us)))
        place = f.struct(f.unix_micros("published_at"), *ORDER[1:])
        rows = rows.where(place >= _place(this))
        if following is None:
            return rows
        return rows.where(f.col("published_at") <= f.timestamp_micros(f.lit(end_us))).where(place < _place(following))

    def _is_done(self, q: Client, plan: Plan, at: int) -> bool:
        version = at if plan.order.target.group is None else (at + 1) * _CALLS - 1
        return published(q, plan.order.target.topic, plan.job, version) is not None

    # To a topic

    def _publish(self, q: Client, plan: Plan, at: int, rows: DataFrame) -> Sent:
        target = plan.order.target
        queue = q.describe_topic(target.topic).kind == "queue"
        options = {
            "url": self._url,
            "tenant": target.tenant,
            "topic": json.dumps([target.topic]),
            "job": plan.job,
            "version": str(at),
        }
        try:
            messages = as_replayed(_in_order(rows, plan.slices[at].rows), plan.order, queue=queue)
            messages.write.format("duly").mode("append").options(**options).save()
        except Exception as error:
            raise explained(error) from error
        done = published(q, target.topic, plan.job, at)
        assert done is not None
        return Sent(done.messages, done.duplicates)

    # To a group

    def _send(self, q: Client, plan: Plan, at: int, rows: DataFrame, halt: Event) -> Sent | None:
        """Sends a slice back, call by call; None when it was stopped before the end."""
        target = plan.order.target
        firsts = {part.id: part.first_offset for part in q.describe_topic(target.topic).partitions}
        sent = Sent()
        for number, (partition_id, some) in enumerate(_calls(rows)):
            version = at * _CALLS + number
            done = self._send_some(q, plan, version, partition_id, some, firsts[partition_id], halt)
            if done is None:
                return None
            sent = sent.and_also(done)
        # From now on the slice counts as done.
        self._send_some(q, plan, (at + 1) * _CALLS - 1, target.partition_ids[0], [], 0, halt)
        return sent

    def _send_some(
        self,
        q: Client,
        plan: Plan,
        version: int,
        partition_id: int,
        messages: list[StoredMessage],
        first_offset: int,
        halt: Event,
    ) -> Sent | None:
        """One call, repeated while the group, or a quota, is full; None when it was stopped."""
        target = plan.order.target
        assert target.group is not None
        full = False
        while not halt.is_set():
            given = [message if message.offset < first_offset else message.offset for message in messages]
            try:
                done = q.replay(
                    target.topic,
                    given,
                    group=target.group,
                    of=(target.incarnation, partition_id),
                    job=plan.job,
                    version=version,
                    partition=target.partition_ids.index(partition_id),
                    timeout=_PATIENCE_S,
                )
            except OffsetTruncated:
                # Dropped a moment ago.
                first_offset = 2**62
            except (Busy, QuotaExceeded) as error:
                if not full:
                    self._remark(f"{error} Waiting.")
                full = True
                halt.wait(_FULL_AGAIN_S)
            else:
                return Sent(before=len(messages)) if done.duplicate else Sent(done.messages, done.pending)
        return None


def _place(slice: Slice) -> Column:
    return f.struct(*(f.lit(part).cast("bigint") for part in slice.place))


def _in_order(rows: DataFrame, count: int) -> DataFrame:
    """The rows of a slice in the order of publishing, across the tasks that stage them."""
    return rows.repartition(1).sortWithinPartitions(*ORDER) if count <= _TASK_ROWS else rows.orderBy(*ORDER)


def as_replayed(rows: DataFrame, order: Order, *, queue: bool) -> DataFrame:
    """Rows of the lake as messages that say where they come from.

    Id, key and headers go along; on a queue also priority, lane and due time. The expiry was the old message's.
    """
    given = with_expressions(rows, payload=order.payload, headers=order.headers)
    origin = f.concat_ws("/", "incarnation", "tenant", "topic", "partition", "offset")
    columns = {
        "payload": column_as(given, "payload"),
        "id": f.when(~f.startswith("id", f.lit(MADE_ID_MARK)), f.col("id")),
        "key": f.col("key"),
        "headers": _marked(column_as(given, "headers"), origin),
    }
    if queue:
        columns |= {name: f.col(name) for name in ("priority", "lane", "due_at")}
    return given.select(*(column.alias(name) for name, column in columns.items()))


def _marked(headers: Column, origin: Column) -> Column:
    none = f.expr("cast(map() AS map<string,string>)")
    own = f.map_filter(f.coalesce(headers, none), lambda name, _: name != MARK)
    return f.map_concat(own, f.create_map(f.lit(MARK), origin))


def _calls(rows: DataFrame) -> Iterator[tuple[int, list[StoredMessage]]]:
    """The messages of a slice, partition by partition, in the calls in which they go back."""
    wanted = rows.select(
        "partition",
        "partition_id",
        "offset",
        "id",
        "key",
        "headers",
        "payload",
        f.unix_millis("published_at").alias("published_at_ms"),
        f.unix_millis("expires_at").alias("expires_at_ms"),
    ).orderBy("partition_id", "offset")
    try:
        table = wanted.toArrow()
    except Exception as error:
        raise explained(error) from error
    for partition_id, some in groupby(table.to_pylist(), key=lambda row: int(row["partition_id"])):
        messages = [_stored(row) for row in some]
        for at in range(0, len(messages), _ROWS_A_CALL):
            yield partition_id, messages[at : at + _ROWS_A_CALL]


def _stored(row: Mapping[str, Any]) -> StoredMessage:
    return StoredMessage(
        partition=row["partition"],
        offset=row["offset"],
        id=row["id"],
        payload=row["payload"],
        key=row["key"],
        headers=dict(row["headers"] or {}),
        published_at_ms=row["published_at_ms"],
        expires_at_ms=row["expires_at_ms"],
    )
