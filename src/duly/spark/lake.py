"""The lake: `<lake>/messages`, one Delta table of every message that was archived.

    messages/_delta_log/…                                 what is in it, a version a commit (delta-rs)
    messages/tenant=T/topic=N/date=D/R-00000.parquet      zstd, sorted by partition and offset
    rounds/R/…                                            what Spark wrote in a round that is open, or was killed

A message's key is (incarnation, tenant, partition_id, offset). Neither a restored store, nor a topic that was deleted
and made again under its name, has a key of what was there before: partition ids are never used twice.

**What it has is said by the table alone.** A commit adds files and, for each partition, an *application transaction*:
id `duly/<incarnation>/<tenant>/<partition id>`, version = the offset that comes next. Both are in it, or neither. So an
archiver that is killed leaves no doubt: before the commit there are files that no version names, after it they are in.
A commit is refused when such a version moved since it was read: of two archivers one wins, and the other stops.

**Holes.** With archiving on, a log loses nothing above its watermark, and a range in the lake has every offset. A queue
on which archiving is turned on later may have lost blocks out of its middle before: the transaction `…/whole` says from
which offset on none may be missing.

**A round** R is a folder of its own, so nothing that a killed one left can be taken for ours. Its files are moved into
the table's folders just before the commit, and which they are is noted before that: what is there for a day, and in no
version, is swept. (Left where Spark wrote them, under a folder of the table for each round, they would be read by
Spark only if that was named round=R, and by Polars only if it was not.)
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, Transaction
from msgspec.structs import replace

from ..clock import Clock, SystemClock
from ..errors import IncompatibleLake, InvalidArgument, LakeError, LakeTaken, NotFound, Sealed
from ..limits import DAY_MS
from .files import File, Files
from .sealing import CONF as SEALED_CONF
from .sealing import PROPERTY, LakeKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = "messages"
PARTITIONED_BY = ("tenant", "topic", "date")
SCHEMA = pa.schema(
    [
        pa.field("incarnation", pa.string()),
        pa.field("tenant", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("date", pa.date32()),
        pa.field("partition", pa.int64()),
        pa.field("partition_id", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("payload", pa.binary()),
        pa.field("published_at", pa.timestamp("us", "UTC")),
        pa.field("expires_at", pa.timestamp("us", "UTC")),
        pa.field("lane", pa.string()),
        pa.field("priority", pa.int64()),
        pa.field("due_at", pa.timestamp("us", "UTC")),
        pa.field("checksum", pa.int64()),
    ]
)
# The same in Spark's words.
SPARK_SCHEMA = (
    "incarnation string, tenant string, topic string, date date, partition bigint, partition_id bigint, "
    "offset bigint, id string, key string, headers map<string,string>, payload binary, published_at timestamp, "
    "expires_at timestamp, lane string, priority bigint, due_at timestamp, checksum bigint"
)
# Bounds of these are written beside every file, so that readers need not open it.
_BOUNDED = ("partition_id", "partition", "offset", "published_at")
# A round takes minutes. One that is open for so long has no archiver any more; and an archiver whose round is half as
# old (its machine slept) does not commit it.
_ABANDONED_MS = DAY_MS
_NOT_IN_PATH = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_ROUND_ID = re.compile(r"(\d{13})-[0-9a-f]{8}")


class Origin(msgspec.Struct, frozen=True):
    """A partition that messages come from: of which store, since when it was last restored, and which topic's."""

    incarnation: str
    tenant: str
    topic: str
    partition: int
    partition_id: int

    @property
    def transaction(self) -> str:
        """The application transaction whose version is the offset that the lake wants next."""
        return f"duly/{self.incarnation}/{self.tenant}/{self.partition_id}"

    @property
    def whole(self) -> str:
        """The one whose version is the offset from which on none may be missing."""
        return f"{self.transaction}/whole"

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.topic!r} ({self.tenant})"


class Range(msgspec.Struct, frozen=True):
    """Offsets [begin, end) of a partition. All of them from `whole` on; of those below, what was still there."""

    origin: Origin
    begin: int
    end: int
    whole: int = 0

    @property
    def count(self) -> int:
        """How many offsets it spans."""
        return self.end - self.begin


class DataFile(msgspec.Struct, frozen=True):
    """A Parquet file of a round: where Spark wrote it, or where it is in the table."""

    path: str
    bytes: int
    changed_at_ms: int
    rows: int
    values: Mapping[str, str]
    bounds: Mapping[str, tuple[Any, Any]]

    @property
    def folder(self) -> str:
        """Its folder in the table."""
        return "/".join(f"{name}={_in_path(value)}" for name, value in self.values.items())

    def action(self) -> AddAction:
        """How a commit names it."""
        stats = {
            "numRecords": self.rows,
            "minValues": {name: _in_json(low) for name, (low, _) in self.bounds.items()},
            "maxValues": {name: _in_json(high) for name, (_, high) in self.bounds.items()},
            "nullCount": dict.fromkeys(self.bounds, 0),
        }
        return AddAction(self.path, self.bytes, dict(self.values), self.changed_at_ms, True, json.dumps(stats))


class Round:
    """A folder that Spark writes into. Its files are moved into the table and committed, or nobody ever reads them."""

    def __init__(self, lake: Lake, id: str) -> None:
        self.id = id
        self.folder = f"rounds/{id}"
        self._lake = lake
        self._note = f"{self.folder}/moved.json"

    @property
    def uri(self) -> str:
        """Where Spark writes."""
        return f"{self._lake.files.root}/{self.folder}/written"

    def age_ms(self) -> int:
        """How long ago it was begun."""
        return self._lake.clock.now_ms() - int(self.id[:13])

    def written(self) -> list[DataFile]:
        """What Spark wrote."""
        files = self._lake.files
        return [_data_file(files, one) for one in files.under(self.folder) if one.path.endswith(".parquet")]

    def move(self, written: Sequence[DataFile]) -> list[DataFile]:
        """Moves files into the table's folders, noted first: so that they are found if this is as far as it comes."""
        moved = [
            replace(one, path=f"{one.folder}/{self.id}-{number:05d}.parquet") for number, one in enumerate(written)
        ]
        self._lake.files.put(self._note, json.dumps([one.path for one in moved]).encode())
        for before, after in zip(written, moved, strict=True):
            self._lake.files.move(before.path, f"{TABLE}/{after.path}")
        return moved

    def discard(self) -> None:
        """Deletes all of it. No version may name it."""
        for path in json.loads(self._lake.files.content(self._note) or b"[]"):
            self._lake.files.drop(f"{TABLE}/{path}")
        self.close()

    def close(self) -> None:
        """Drops what is left of it once its files are in the table."""
        self._lake.files.drop(self.folder)


class Version:
    """The table as it was at one commit. What is planned on it is committed on it, or refused."""

    def __init__(self, lake: Lake, table: DeltaTable) -> None:
        self.lake = lake
        self.table = table

    @property
    def number(self) -> int:
        """Its number in the table's history."""
        return self.table.version()

    def has(self, origin: Origin) -> int | None:
        """The offset that comes next of a partition; None: it has nothing of it."""
        return self.table.transaction_version(origin.transaction)

    def whole_from(self, origin: Origin) -> int:
        """The offset of a partition from which on none may be missing."""
        return self.table.transaction_version(origin.whole) or 0

    def holds(self, round: Round) -> bool:
        """Whether files of a round are in it."""
        return bool(pc.any(pc.match_substring(self.files().column("path"), f"/{round.id}-")).as_py())

    def files(self) -> pa.Table:
        """Its files with their rows, partition values and bounds, as the table's log has them."""
        return pa.table(self.table.get_add_actions(flatten=True))

    def paths_of(self, ranges: Sequence[Range]) -> list[str]:
        """The files in which messages of these ranges can be, by their bounds."""
        files = self.files()
        wanted: dict[tuple[str, str], list[Range]] = {}
        for one in ranges:
            wanted.setdefault((one.origin.tenant, one.origin.topic), []).append(one)
        names = pa.array({topic for _, topic in wanted}, pa.string())
        rows = files.filter(pc.is_in(files.column("partition.topic"), value_set=names)).to_pylist()
        return [
            str(row["path"])
            for row in rows
            if any(_may_hold(row, one) for one in wanted.get((row["partition.tenant"], row["partition.topic"]), ()))
        ]

    def messages(self, spark: SparkSession, paths: Sequence[str] | None = None) -> DataFrame:
        """Its messages in Spark: all, or those in some of its files (as the table's log names them)."""
        rows = self.stored(spark, paths)
        return rows if self.lake.key is None else self.lake.key.opened(rows)

    def stored(self, spark: SparkSession, paths: Sequence[str] | None = None) -> DataFrame:
        """The same as they lie there: sealed, in a lake that is."""
        wanted = self.files().column("path").to_pylist() if paths is None else paths
        columns = SCHEMA.names
        if not wanted:
            return spark.createDataFrame([], SPARK_SCHEMA)
        root = f"{self.lake.files.root}/{TABLE}"
        reader = spark.read.schema(SPARK_SCHEMA).option("basePath", root)
        return reader.parquet(*(f"{root}/{unquote(path)}" for path in wanted)).select(*columns)


class Lake:
    """A lake by its place: a folder, or an address; `storage` are delta-rs's options for it.

    With `key` (`file:PATH`, `env:NAME`, `command:PROGRAM ARGS`) it is one whose messages are sealed (sealing.py).
    """

    def __init__(
        self,
        place: str,
        storage: Mapping[str, str] | None = None,
        *,
        key: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.key = None if key is None else LakeKey(key)
        self.storage = dict(storage or {})
        self.files = Files(place, self.storage)
        self.uri = f"{self.files.root}/{TABLE}"
        self.clock = clock or SystemClock()

    @property
    def session_conf(self) -> Mapping[str, str]:
        """What it wants of a Spark session that is started for it."""
        return {} if self.key is None else SEALED_CONF

    def create(self) -> None:
        """Makes the table where there is none."""
        with _explained(self.uri):
            self.files.make()
            DeltaTable.create(
                self.uri,
                Schema.from_arrow(SCHEMA),
                mode="ignore",
                partition_by=list(PARTITIONED_BY),
                name="messages",
                description="Messages archived by Duly, a row a message.",
                configuration=None if self.key is None else {PROPERTY: self.key.name},
                storage_options=self.storage,
                # The property is none that Delta knows.
                raise_if_key_not_exists=False,
            )

    def newest(self) -> Version:
        """The table as it is now. Raises NotFound, IncompatibleLake for a table that is no lake of ours, and Sealed
        for one that is sealed with another key.
        """
        with _explained(self.uri):
            try:
                table = DeltaTable(self.uri, storage_options=self.storage)
            except TableNotFoundError as error:
                raise NotFound(f"There is no lake at {self.uri}. `duly pipeline archive --lake` makes one.") from error
            _check_schema(self.uri, table)
            self._check_key(table)
            return Version(self, table)

    def _check_key(self, table: DeltaTable) -> None:
        sealed = table.metadata().configuration.get(PROPERTY)
        if sealed is None and self.key is not None:
            raise InvalidArgument(f"The lake at {self.uri} lies in the clear. For one that is sealed, make another.")
        if sealed is not None and self.key is None:
            raise Sealed(f"The lake at {self.uri} is sealed: say where its key is (--lake-key, DULY_LAKE_KEY).")
        if sealed is not None and self.key is not None:
            self.key.check(sealed)

    def begin_round(self) -> Round:
        """A folder of its own to write into."""
        return Round(self, f"{self.clock.now_ms():013d}-{secrets.token_hex(4)}")

    def commit(self, base: Version, round: Round, written: Sequence[DataFile], ranges: Iterable[Range]) -> Version:
        """Adds files of a round, and says what the lake has now; answers a version that holds both.

        Everything is on stable storage when this returns. Raises LakeTaken when somebody else archived one of the
        partitions since `base` was read; then nothing was added.
        """
        if round.age_ms() > _ABANDONED_MS // 2:
            raise LakeError("This round was begun half a day ago and could be swept by now. Run the archive again.")
        files = round.move(written)
        self.files.secure(f"{TABLE}/{one.path}" for one in files)
        said = CommitProperties(
            custom_metadata={"duly.round": round.id}, app_transactions=list(_transactions(base, ranges))
        )
        actions = [one.action() for one in files]
        try:
            with _explained(self.uri):
                base.table.create_write_transaction(
                    list(actions), "append", base.table.schema(), list(PARTITIONED_BY), commit_properties=said
                )
        except CommitFailedError as error:
            # One whose answer was lost looks like somebody else's: only the table knows.
            if not self.newest().holds(round):
                raise LakeTaken(
                    "Somebody else archives the same topics into this lake, and was first. Nothing was added twice. "
                    "One archiver is enough: wait for it to end, then run again."
                ) from error
        round.close()
        version = self.newest()
        self.files.secure(_log_files(self.files, base.number + 1, version.number))
        return version

    def sweep(self) -> int:
        """Deletes what killed archivers left a day ago or earlier, and no version names; how many rounds that were."""
        swept = 0
        version = self.newest()
        for id in {one.path.split("/")[1] for one in self.files.under("rounds")}:
            round = Round(self, id)
            if not _ROUND_ID.fullmatch(id) or round.age_ms() < _ABANDONED_MS:
                continue
            if version.holds(round):
                round.close()
            else:
                round.discard()
                swept += 1
        return swept


def _transactions(base: Version, ranges: Iterable[Range]) -> Iterator[Transaction]:
    for one in ranges:
        yield Transaction(one.origin.transaction, one.end)
        if one.whole and one.whole != base.whole_from(one.origin):
            yield Transaction(one.origin.whole, one.whole)


def _log_files(files: Files, first: int, last: int) -> list[str]:
    """What commits have written of the table's log, on this machine; elsewhere it needs no care."""
    names = [f"{number:020d}{kind}" for number in range(first, last + 1) for kind in (".json", ".checkpoint.parquet")]
    paths = [f"{TABLE}/_delta_log/{name}" for name in (*names, "_last_checkpoint")]
    return [path for path in paths if files.local is not None and os.path.exists(f"{files.local}/{path}")]


def _may_hold(row: Mapping[str, Any], wanted: Range) -> bool:
    """Whether a file's bounds leave room for messages of a range; what is not known leaves room."""
    partition_id = wanted.origin.partition_id
    bounds = {"offset": (wanted.begin, wanted.end - 1), "partition_id": (partition_id, partition_id)}
    for name, (low, high) in bounds.items():
        least, most = row.get(f"min.{name}"), row.get(f"max.{name}")
        if least is not None and most is not None and (least > high or most < low):
            return False
    return True


def _data_file(files: Files, file: File) -> DataFile:
    footer = files.footer(file.path)
    # Spark escapes what a folder's name cannot have as %XX, and % itself.
    values = dict(part.split("=", 1) for part in file.path.split("/")[:-1] if "=" in part)
    return DataFile(
        file.path,
        file.bytes,
        file.changed_at_ms,
        footer.num_rows,
        {name: unquote(values[name]) for name in PARTITIONED_BY},
        {name: bounds for name in _BOUNDED if (bounds := _bounds(footer, name)) is not None},
    )


def _in_path(value: str) -> str:
    """A value as Spark and Hive write it in a folder's name."""
    return _NOT_IN_PATH.sub(lambda found: f"%{ord(found[0]):02X}", value)


def _bounds(footer: Any, column: str) -> tuple[Any, Any] | None:
    """The least and greatest value of a column, if every part of the file tells and none is null."""
    at = next(at for at in range(footer.num_columns) if footer.schema.column(at).path == column)
    parts = [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
    if not parts or any(one is None or not one.has_min_max or one.null_count for one in parts):
        return None
    return min(one.min for one in parts), max(one.max for one in parts)


def _in_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


def _check_schema(uri: str, table: DeltaTable) -> None:
    columns = {field.name: field.type for field in Schema.from_arrow(SCHEMA).fields}
    there = {field.name: field.type for field in table.schema().fields}
    wrong = sorted(name for name in columns.keys() | there.keys() if columns.get(name) != there.get(name))
    if wrong:
        raise IncompatibleLake(
            f"The table at {uri} is not one of this Duly's: its columns differ ({', '.join(wrong)}). Use another path, "
            "or the Duly that made it."
        )
    by = tuple(table.metadata().partition_columns)
    if by != PARTITIONED_BY:
        raise IncompatibleLake(f"The table at {uri} is partitioned by {by}, not by {PARTITIONED_BY}. Use another path.")


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    """What delta-rs says about a place, as one of our errors."""
    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError) as error:
        raise LakeError(f"The lake at {uri} cannot be used: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") + "."
