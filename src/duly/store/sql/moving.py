"""What moves when a store moves from a file to PostgreSQL: every table, column by column, and how a row travels.

A row travels as PostgreSQL's binary COPY has it. So the rows that come out of the destination are compared with those
of the source byte by byte, and nobody has to read them: of each table the rows are counted, and their hashes added
up. A sum does not ask for an order, which the two stores do not share (a file's keys begin with the tenant).

Ids stay. Blocks, entries and leases travel as they lie: their checksums cover tenant, partition and offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import xxhash

Row = tuple[Any, ...]
# Where copying goes on: the values of a table's key.
Key = tuple[int | str, ...]

COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"

_NULL = b"\xff\xff\xff\xff"
_length = struct.Struct(">i").pack
_fixed = {"bigint": struct.Struct(">iq"), "smallint": struct.Struct(">ih"), "double": struct.Struct(">id")}
_MASK = 2**128 - 1


class Column(msgspec.Struct, frozen=True):
    """A column of the destination, and what it is in the file. `kind`: bigint, smallint, double, text or bytes."""

    name: str
    kind: str
    value: str

    @property
    def is_long(self) -> bool:
        """Whether its values differ in length."""
        return self.kind in ("text", "bytes")

    @property
    def select(self) -> str:
        """As bytes, if it is text: nothing is decoded on the way."""
        return f"CAST({self.value} AS BLOB)" if self.kind == "text" else self.value


class Table(msgspec.Struct, frozen=True):
    """Rows that go into a table of the destination, in the order of a key of the file's."""

    name: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    origin: str
    # How long the long parts of a row are, told without reading them.
    long: str

    @property
    def names(self) -> str:
        """The destination's columns, quoted."""
        return ", ".join(f'"{column.name}"' for column in self.columns)


class Digest(msgspec.Struct):
    """What was seen of a table: how many rows, and the sum of their hashes."""

    rows: int = 0
    sum: int = 0

    def add(self, row: bytes) -> None:
        """One more row, as it travels."""
        self.rows += 1
        self.sum = (self.sum + xxhash.xxh3_128_intdigest(row)) & _MASK

    def same_as(self, other: Digest) -> bool:
        return (self.rows, self.sum) == (other.rows, other.sum)


class Summit(msgspec.Struct, frozen=True):
    """The highest ids that a store ever gave, by table: whoever goes on gives higher ones."""

    ids: Mapping[str, int]
    lease: int
    # Of a queue's runs and of ids' alike.
    run: int


class Mark(msgspec.Struct, frozen=True):
    """The same in both stores for as long as one moves: whose move it is, and between which.

    `key` and the two beside it are the destination's: how far it has come.
    """

    move: str
    source: str
    destination: str
    incarnation: str
    table: int = 0
    key: Key | None = None
    bytes: int = 0


_decode_mark = msgspec.json.Decoder(Mark).decode


def encode_mark(mark: Mark) -> str:
    """As it is stored."""
    return msgspec.json.encode(mark).decode()


def decode_mark(stored: str) -> Mark:
    """What `encode_mark` made."""
    return _decode_mark(stored)


def encoder(table: Table) -> Callable[[Row], bytes]:
    """How a row of a table travels. Raises struct.error or TypeError for a value that its column cannot hold."""
    packs = [_packing(column.kind) for column in table.columns]
    begin = struct.pack(">h", len(packs))

    def encode(values: Row) -> bytes:
        parts = [begin]
        for pack, value in zip(packs, values, strict=True):
            if value is None:
                parts.append(_NULL)
            else:
                parts += pack(value)
        return b"".join(parts)

    return encode


def _packing(kind: str) -> Callable[[Any], Iterable[bytes]]:
    fixed = _fixed.get(kind)
    if fixed is None:
        return lambda value: (_length(len(value)), value)
    pack, size = fixed.pack, fixed.size - 4
    return lambda value: (pack(size, value),)


def _table(
    name: str,
    columns: str,
    *,
    key: str,
    values: Mapping[str, str] | None = None,
    origin: str | None = None,
    table: str | None = None,
    size: str | None = None,
) -> Table:
    """`columns` are names with their kinds, bigint where none is given; `values` what is not called the same."""
    given = values or {}
    found = []
    for said in columns.split():
        column, _, kind = said.partition(":")
        found.append(Column(column, kind or "bigint", given.get(column, f'"{column}"')))
    sizes = [f"coalesce(length({column.value}), 0)" for column in found if column.is_long]
    return Table(
        name,
        table or name,
        tuple(found),
        tuple(key.split()),
        origin or f"duly_{name}",
        size or " + ".join(sizes) or "0",
    )


# What is long of a block lies apart in a file, and with it in PostgreSQL. A block whose body was staged keeps it apart.
_IS_WHOLE = "(chunk IS NULL OR length(data) > 0)"
_OUTSIDE = "(SELECT c.{} FROM duly_chunk AS c WHERE c.id = chunk)"

TABLES = (
    _table("tenant", "id name:text state:smallint settings:text version created_at_ms", key="id"),
    _table("secret", "tenant version wrapped:bytes created_at_ms", key="tenant version"),
    _table(
        "principal",
        "tenant name:text grants:text certificates:text version created_at_ms",
        key="tenant name",
    ),
    _table(
        "key",
        "id:text tenant principal:text mac:bytes note:text created_at_ms expires_at_ms revoked_at_ms used_at_ms",
        key="id",
    ),
    _table("audit", "tenant n at_ms entry:bytes mac:bytes", key="tenant n"),
    _table("audit_head", "tenant n mac:bytes seal:bytes", key="tenant"),
    _table("topic", "id tenant name:text settings:text paused:smallint version created_at_ms", key="id"),
    _table(
        "part",
        "id tenant topic number first_offset next_offset published_at_ms archived_to archive_from look_at_ms",
        key="id",
    ),
    _table("grp", "id tenant topic name:text settings:text paused:smallint created_at_ms", key="id"),
    _table("consumer", "tenant grp name:text seen_at_ms", key="tenant name grp"),
    _table("agenda", "chore:text due_at_ms", key="chore"),
    _table("gate", "grp n state:bytes", key="tenant grp", values={"n": "1"}),
    _table("cursor", "partition grp n next_offset", key="tenant partition grp", values={"n": "1"}),
    _table(
        "lease",
        "id tenant partition grp due_at_ms state:smallint consumer:text claimed_at_ms base count live attempts "
        "alone:smallint suspect:smallint marked:smallint offsets:bytes settled:bytes history:bytes keys:bytes",
        key="id",
    ),
    _table(
        "dead",
        "tenant partition grp offset buried_at_ms attempts reason:text history:bytes",
        key="tenant partition grp offset",
    ),
    _table("receipt", "topic publish_id:text expires_at_ms receipt:bytes", key="id"),
    _table("gone", "partition base until_ms publishes:bytes", key="tenant partition base"),
    _table("event", "id tenant data:bytes", key="id"),
    _table(
        "queue",
        "partition n absorbed_to taken:bytes times:bytes positions:bytes",
        key="tenant partition",
        # Where each run is consumed to is told by its own row, until the first claim.
        values={"n": "1", "positions": "x'80'"},
    ),
    _table(
        "run",
        "id partition kind level count pos blocks block low high expires_max_ms target plain:smallint sources:bytes "
        "coming:bytes",
        key="id",
    ),
    _table("hole", "partition run seq due_at_ms late:smallint", key="tenant partition run seq"),
    _table(
        "loose",
        "partition offset due_at_ms waits:smallint priority lane attempts suspects half cancelled:smallint "
        "slot:smallint history:bytes",
        key="tenant partition offset",
    ),
    _table("id_run", "id topic level count filter:bytes", key="id"),
    _table("id_block", "topic run idx first data:bytes", key="tenant topic run idx"),
    _table("ids_to", "partition indexed_to", key="tenant partition"),
    _table("done", "partition first last until_ms", key="tenant partition first"),
    _table(
        "lane",
        "partition lane in_flight next_at_ms:double look_at_ms circuit:bytes circuit_state",
        key="tenant partition lane",
    ),
    _table(
        "lane_wait",
        "partition lane priority due_at_ms offset loose:smallint",
        key="tenant partition lane priority due_at_ms offset",
    ),
    _table("stage", "id tenant topic name:text messages next_number expires_at_ms", key="id"),
    _table("staged", "tenant stage number chunk piece:bytes", key="tenant stage number"),
    _table(
        "job",
        "id tenant topic name:text version messages duplicates left_over stages:bytes expires_at_ms",
        key="id",
    ),
    _table(
        "operation",
        "tenant id name:bytes left_over:double at_ms published stopped_at_ms held:smallint expires_at_ms",
        key="tenant id",
    ),
    _table(
        "schedule",
        "tenant name:text topic settings:bytes paused:smallint version created_at_ms next_at_ms look_at_ms state:bytes",
        key="tenant name",
    ),
    _table(
        "push",
        "tenant name:text topic grp settings:bytes secrets:bytes state:text reason:text version created_at_ms target "
        "stamp holder:text",
        key="tenant name",
        # Brokers are somewhere else from now on.
        values={"holder": "NULL"},
    ),
    _table("kept", "partition offset data:bytes", key="tenant partition offset"),
    _table("run_block", "partition run idx entries:bytes", key="tenant partition run idx"),
    _table("run_data", "partition run idx data:bytes", key="tenant partition run idx"),
    _table(
        "block",
        "partition base count bytes published_at_ms chunk data:bytes",
        key="tenant partition base",
        values={
            "chunk": "iif(length(data) > 0, chunk, NULL)",
            # One whose long part is lost stays what it is: a block that cannot be read.
            "data": f"iif({_IS_WHOLE}, data, coalesce({_OUTSIDE.format('data')}, data))",
        },
        size=f"iif({_IS_WHOLE}, length(data), (SELECT length(c.data) FROM duly_chunk AS c WHERE c.id = chunk))",
    ),
    _table(
        "chunk of a block",
        "id tenant data:bytes",
        table="chunk",
        key="b.tenant b.partition b.base",
        origin="duly_block AS b CROSS JOIN duly_chunk AS c ON c.id = b.chunk AND length(b.data) > 0",
        values={"id": "c.id", "tenant": "c.tenant", "data": "c.data"},
    ),
    _table(
        "chunk of a stage",
        "id tenant data:bytes",
        table="chunk",
        key="s.tenant s.stage s.number",
        origin="duly_staged AS s CROSS JOIN duly_chunk AS c ON c.id = s.chunk",
        values={"id": "c.id", "tenant": "c.tenant", "data": "c.data"},
    ),
)

# Those whose ids PostgreSQL makes from here on.
NUMBERED = ("tenant", "topic", "part", "grp", "event", "stage", "chunk", "job")
