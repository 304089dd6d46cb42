"""The plan of a replay: written once, beside the lake, before the first message goes out; followed by every run.

    <lake>/replays/<name>.json     the version of the lake, what of it, where to, and the slices in which it goes

A slice is all that is meant from one place in the order (published_at, partition id, offset) up to the next. The lake's
version stands still and so do the slices: whoever was killed in the middle, the next run goes on with the very same.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ...errors import InvalidArgument, LakeError
from ..causes import explained
from ..lake import Lake
from ..selection import ORDER, Selection

_FOLDER = "replays"
_NAME_CHARS_MAX = 64
_CUTS = pa.schema([(name, pa.int64()) for name in ("published_us", "partition_id", "offset", "rows", "bytes")])


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topic, or one of its groups; which topic of that name in which store is told by its ids."""

    tenant: str
    topic: str
    incarnation: str
    partition_ids: tuple[int, ...]
    group: str | None = None


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is asked for: messages, what becomes of them, where they go. Equal orders have one plan."""

    selection: Selection
    target: Target
    payload: str | None = None
    headers: str | None = None

    def name(self) -> str:
        """What tells it from other orders."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """Where it begins, and how much it is."""

    published_us: int
    partition_id: int
    offset: int
    rows: int
    bytes: int

    @property
    def place(self) -> tuple[int, int, int]:
        """Its first message, in the order of all."""
        return self.published_us, self.partition_id, self.offset


class Plan(msgspec.Struct, frozen=True):
    """An order on one version of the lake. `id` is a plan's own: one that was deleted and made again is another."""

    name: str
    id: str
    version: int
    order: Order
    slices: tuple[Slice, ...]
    finished: bool = False

    @property
    def job(self) -> str:
        """What the store knows it by."""
        return f"replay/{self.name}/{self.id}"

    @property
    def rows(self) -> int:
        """How many messages it has."""
        return sum(one.rows for one in self.slices)


_decoder = msgspec.json.Decoder(Plan)


def check_plan_name(name: str) -> str:
    """A name that is a file's, too."""
    if (
        not 1 <= len(name) <= _NAME_CHARS_MAX
        or not all(char.isalnum() or char in "-_." for char in name)
        or name[0] == "."
    ):
        raise InvalidArgument(
            f"A replay is named by 1 to {_NAME_CHARS_MAX} letters, digits, '-', '_' and '.'; got {name!r}."
        )
    return name


def make_plan(name: str, version: int, order: Order, slices: tuple[Slice, ...]) -> Plan:
    """A plan that was not written yet."""
    return Plan(name, secrets.token_hex(4), version, order, slices)


def load(lake: Lake, name: str) -> Plan | None:
    """A plan by its name; None: there is none."""
    content = lake.files.content(_path(name))
    if content is None:
        return None
    try:
        return _decoder.decode(content)
    except msgspec.DecodeError as error:
        raise LakeError(f"The plan {_path(name)} cannot be read: {error}. Choose another name.") from error


def save(lake: Lake, plan: Plan) -> Plan:
    """Writes a plan, on stable storage; answers the one that is there, if somebody else was first."""
    content = msgspec.json.encode(plan)
    if lake.files.local is None:
        lake.files.put(_path(plan.name), content)
    else:
        _put_first(os.path.join(lake.files.local, _path(plan.name)), content)
        lake.files.secure([_path(plan.name)])
    saved = load(lake, plan.name)
    assert saved is not None
    return saved


def finish(lake: Lake, plan: Plan) -> None:
    """Notes that all of it went out: the store forgets its jobs after a month, and a plan is kept."""
    lake.files.put(_path(plan.name), msgspec.json.encode(replace(plan, finished=True)))


def _path(name: str) -> str:
    return f"{_FOLDER}/{name}.json"


def _put_first(path: str, content: bytes) -> None:
    """Writes a file whole, unless there is one."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    aside = f"{path}.{secrets.token_hex(4)}"
    with open(aside, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(aside, path)
    except FileExistsError:
        return
    finally:
        os.unlink(aside)


def cut(rows: DataFrame, rows_max: int, bytes_max: int) -> tuple[Slice, ...]:
    """Messages cut into slices of at most so many rows and, but for the last message of each, so many bytes."""
    keys = rows.select(
        f.unix_micros("published_at").alias("published_us"),
        "partition_id",
        "offset",
        f.length("payload").cast("bigint").alias("bytes"),
    ).orderBy("published_us", *ORDER[1:])
    shape = ", ".join(f"{name} bigint" for name in _CUTS.names)
    try:
        found = keys.mapInArrow(Cutter(rows_max, bytes_max), shape).collect()
    except Exception as error:
        raise explained(error) from error
    return tuple(sorted((Slice(*row) for row in found), key=lambda one: one.place))


class Cutter(msgspec.Struct, frozen=True):
    """Cuts one task's rows, which are in order and lie between those of the tasks before and after it."""

    rows_max: int
    bytes_max: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Where each slice begins, and how much it is."""
        slices: list[list[int]] = []
        for batch in batches:
            for place in zip(*(batch.column(name).to_pylist() for name in batch.schema.names), strict=True):
                if not slices or slices[-1][3] >= self.rows_max or slices[-1][4] >= self.bytes_max:
                    slices.append([*place[:3], 0, 0])
                slices[-1][3] += 1
                slices[-1][4] += place[3]
        columns: list[list[Any]] = [list(column) for column in zip(*slices, strict=True)] or [[] for _ in _CUTS]
        yield pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=_CUTS)
