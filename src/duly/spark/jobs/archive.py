"""archive: every topic with archiving on, and `$events`, into the lake, exactly once; then the watermarks follow.

A round, on one version of the lake:

    survey      what there is: topics, their partitions and ids, where their logs begin and end
    plan        a range of each partition that the lake lacks, together bounded in rows and bytes (plan.py)
    settle      the lake has more than a watermark says: a killed archiver's. Verify it, move the watermark
    write       one Spark job reads all of them and writes Parquet into the round's folder
    look again  a topic that was deleted or made again meanwhile is left out: its files may hold either's messages; so
                is one whose archiving was turned off: what it let go of then may be missing
    commit      files and offsets in one commit (lake.py); refused if somebody else archived meanwhile
    verify      read back from the committed version: every offset once, every checksum (verify.py)
    advance     only now the watermarks move, each for the partition that was read and no other

Killed anywhere, the next run begins where the lake says. Nothing is kept beside it: no checkpoints, no state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from threading import Event
from typing import TYPE_CHECKING

import msgspec

from ...client.client import Client
from ...client.connect import connect
from ...clock import monotonic_s
from ...errors import CorruptLake, InvalidArgument, LakeTaken, NotFound, StaleVersion, TopicNotFound, Unavailable
from ...events import EVENTS
from ...topic import TopicDescription
from ..causes import explained
from ..lake import PARTITIONED_BY, SCHEMA, DataFile, Lake, Origin, Range, Version
from ..plan import Plan, Standing, debts, plan
from ..progress import Progress
from ..verify import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_MAX = 4_000_000
# What the job wants of a session, unless somebody says otherwise.
SESSION_CONF = {
    # Spark's own kind has no bounds in the files, and others read it as something else.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": "8",
}
_SOURCE_COLUMNS = tuple(name for name in SCHEMA.names if name != "date")
_ORDER = ("tenant", "topic", "date", "partition", "offset")
# What is different in every row makes no dictionary, and nobody looks for payloads between two others.
_FILES = {
    # At its first level: the next ones cost a fifth of a round for a few per cent.
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    **{f"parquet.enable.dictionary#{name}": "false" for name in ("offset", "id", "payload", "checksum")},
    "parquet.column.statistics.enabled#payload": "false",
}
# A topic that comes and goes faster than a round takes is left for later.
_TRIES = 3


class Archiver:
    """Archives topics of some tenants of one store into one lake. Close it, or use it as a context manager."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        store: str,
        tenants: Sequence[str],
        *,
        rows_max: int = ROWS_MAX,
        remark: Callable[[str], None] = lambda _: None,
    ) -> None:
        if store == ":memory:":
            raise InvalidArgument("A store in memory is this process's alone: Spark cannot read it. Use a file.")
        self._spark = spark
        self._lake = lake
        # Spark's processes may stand in another folder.
        self._store = store if "://" in store else os.path.abspath(store)
        self._rows_max = rows_max
        self._remark = remark
        self._opened = ExitStack()
        self._clients = {tenant: self._opened.enter_context(connect(store, tenant=tenant)) for tenant in tenants}

    def __enter__(self) -> Archiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the store. Spark is the caller's."""
        self._opened.close()

    def run(
        self, *, every_s: float | None, progress: Callable[[Progress], None], stop: Event | None = None
    ) -> Progress:
        """Round after round: up to what is there now (`every_s` None), or until `stop` is set, looking every so often.

        Answers the last progress that it told.
        """
        halt = stop or Event()
        self._lake.create()
        if swept := self._lake.sweep():
            self._remark(f"Swept what {swept} killed rounds had left.")
        until = {one.origin: one.next_offset for one in self.survey()} if every_s is None else None
        state = Progress()
        while not halt.is_set():
            began_s = monotonic_s()
            with self._patient(every_s is not None):
                done = self.round(until)
                if done is None and every_s is None:
                    break
                if done is not None:
                    took_s = monotonic_s() - began_s
                    state = state.after(rows=done.rows, bytes=done.bytes, lag=done.left, took_s=took_s)
                    progress(state)
                    if done.left or every_s is None:
                        continue
            halt.wait(every_s)
        return state

    @contextmanager
    def _patient(self, patient: bool) -> Iterator[None]:
        """Whoever goes on for ever outlives a broker that is restarted."""
        try:
            yield
        except Unavailable as error:
            if not patient:
                raise
            self._remark(f"{error} Trying again.")

    def round(self, until: Mapping[Origin, int] | None = None) -> Done | None:
        """One round; None when there was nothing to archive. Raises LakeTaken, CorruptLake and other LakeErrors."""
        for _ in range(_TRIES):
            version = self._lake.newest()
            standings = self.survey()
            planned = plan(version, standings, rows_max=self._rows_max, until=until)
            self._settle(version, standings)
            if not planned.ranges:
                return None
            done = self._archive(version, planned)
            if done is not None:
                return done
        raise Unavailable("Topics are deleted and made again faster than they can be archived. Try again later.")

    def survey(self) -> list[Standing]:
        """The partitions to archive, as they stand: of topics with archiving on, and of `$events`."""
        return [
            standing
            for client in self._clients.values()
            for topic in (*client.list_topics(), EVENTS)
            if (known := _described(client, topic)) is not None and _is_archived(known)
            for standing in _standings(known)
        ]

    def _settle(self, version: Version, standings: Sequence[Standing]) -> None:
        owed = debts(version, standings)
        verify(self._spark, version, owed)
        self._advance(owed)

    def _archive(self, base: Version, planned: Plan) -> Done | None:
        """Writes, commits, verifies and tells the store; None when all that was planned is gone."""
        round = self._lake.begin_round()
        try:
            self._write(planned, round.uri)
        except Exception as error:
            round.discard()
            if self._same(planned.ranges) != planned.ranges:
                return None
            raise explained(error) from error
        ranges = self._same(planned.ranges)
        written = _of(round.written(), ranges)
        if not ranges:
            round.discard()
            return None
        try:
            _check_count(written, ranges)
            version = self._lake.commit(base, round, written, ranges)
        except (CorruptLake, LakeTaken):
            round.discard()
            raise
        for gap in planned.gaps:
            self._remark(str(gap))
        rows = sum(verify(self._spark, version, ranges).values())
        self._advance(ranges)
        topics = len({(one.origin.tenant, one.origin.topic) for one in ranges})
        return Done(rows, sum(one.bytes for one in written), topics, len(written), version.number, planned.left)

    def _write(self, planned: Plan, uri: str) -> None:
        messages = _messages(self._spark, self._store, planned)
        if self._lake.key is not None:
            # Before the rest: what is sorted may come to lie in files of Spark's.
            messages = self._lake.key.sealed(messages)
        # Each topic's files have their messages in the order of the log; Spark's writer finds its own order given.
        ordered = messages.select(*SCHEMA.names).sortWithinPartitions(*_ORDER)
        ordered.write.partitionBy(*PARTITIONED_BY).options(**_FILES).parquet(uri)

    def _same(self, ranges: Sequence[Range]) -> tuple[Range, ...]:
        """Those whose topic is still the one that was planned, and was archived all the time."""
        known: dict[Origin, Standing] = {}
        for tenant, topic in {(one.origin.tenant, one.origin.topic) for one in ranges}:
            found = _described(self._clients[tenant], topic)
            if found is not None and _is_archived(found):
                known |= {standing.origin: standing for standing in _standings(found)}
        return tuple(
            one for one in ranges if one.origin in known and known[one.origin].archive_from <= max(one.begin, one.whole)
        )

    def _advance(self, ranges: Sequence[Range]) -> None:
        for one in ranges:
            origin = one.origin
            try:
                self._clients[origin.tenant].archived(
                    origin.topic,
                    partition=origin.partition,
                    offset=one.end,
                    of=(origin.incarnation, origin.partition_id),
                )
            except (StaleVersion, TopicNotFound):
                # It is gone from the store, and in the lake under a key of its own.
                continue


class Done(msgspec.Struct, frozen=True):
    """What a round archived, the version that has it, and how many messages were there beyond its bounds."""

    rows: int
    bytes: int
    topics: int
    files: int
    version: int
    left: int


def _described(client: Client, topic: str) -> TopicDescription | None:
    try:
        return client.describe_topic(topic)
    except NotFound:
        return None


def _is_archived(topic: TopicDescription) -> bool:
    return topic.settings.archive or topic.name == EVENTS


def _standings(topic: TopicDescription) -> list[Standing]:
    return [
        Standing(
            Origin(topic.incarnation, topic.tenant, topic.name, part.partition, part.id),
            topic.kind == "queue",
            part.first_offset,
            part.next_offset,
            part.archived_to,
            part.bytes,
            part.archive_from if topic.kind == "queue" else 0,
        )
        for part in topic.partitions
    ]


def _of(written: Sequence[DataFile], ranges: Sequence[Range]) -> list[DataFile]:
    names = {(one.origin.tenant, one.origin.topic) for one in ranges}
    return [one for one in written if (one.values["tenant"], one.values["topic"]) in names]


def _check_count(written: Sequence[DataFile], ranges: Sequence[Range]) -> None:
    """Refuses before the commit what could not be verified after it."""
    if all(one.begin >= one.whole for one in ranges):
        rows, should = sum(one.rows for one in written), sum(one.count for one in ranges)
        if rows != should:
            raise CorruptLake(
                f"Spark wrote {rows} messages where there are {should}. Nothing was committed. Run again."
            )


def _messages(spark: SparkSession, store: str, planned: Plan) -> DataFrame:
    """The planned ranges as rows of the lake."""
    reads: dict[tuple[str, bool], list[Range]] = {}
    for one in planned.ranges:
        reads.setdefault((one.origin.tenant, one.begin >= one.whole), []).append(one)
    frames = [
        _read(spark, {"url": store, "tenant": tenant, "failOnDataLoss": str(whole).lower()}, planned, ranges)
        for (tenant, whole), ranges in reads.items()
    ]
    # Reckoned from the number, whatever zone the session has.
    day = "date_from_unix_date(cast(floor(unix_millis(published_at) / 86400000) as int)) AS date"
    return reduce(lambda all, one: all.unionByName(one), frames).selectExpr("*", day)


def _read(spark: SparkSession, home: Mapping[str, str], planned: Plan, ranges: Sequence[Range]) -> DataFrame:
    begins: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for one in ranges:
        topic = one.origin.topic
        if topic not in begins:
            # A partition that is not spoken of would be read from its first message to its last.
            nothing = {str(number): end for number, end in planned.ends[one.origin.tenant, topic].items()}
            begins[topic], ends[topic] = dict(nothing), dict(nothing)
        begins[topic][str(one.origin.partition)] = one.begin
        ends[topic][str(one.origin.partition)] = one.end
    options = {
        **home,
        "topic": msgspec.json.encode(list(begins)).decode(),
        "startingOffsets": msgspec.json.encode(begins).decode(),
        "endingOffsets": msgspec.json.encode(ends).decode(),
        "rowsPerPartition": str(planned.task_rows),
        "columns": ",".join(_SOURCE_COLUMNS),
    }
    return spark.read.format("duly").options(**options).load()
