"""A sealed lake: what messages say is in it under a key that whoever made the lake named; nobody reads it without.

    payload, key, headers, id, lane ──▶ payload: the key's name, and all five sealed for the message's place
                                        the other four: null; checksum: of what lies there

Spark's tasks seal and open, before anything is sorted and after it was read. They are told where the key is
(`file:PATH`, `env:NAME`, `command:PROGRAM`, as a master key: master.py), never the key: it has to be there on each of
Spark's machines. The first key seals, all of them open: to rotate it, put a new line first, and keep the others for as
long as the lake has what they sealed. A lake is sealed from its first commit on, or never.

In the clear: tenant, topic, partition, offset, times, priority, and how long a message is. Spark's own scratch files
hold what was opened: they are encrypted by Spark (CONF).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from ..engine.arrays import arrow_array
from ..engine.seal import BrokenSeal, Seal, bound_to
from ..errors import CorruptLake, InvalidArgument, Sealed
from ..master import KEY_NAME_BYTES, LazyMaster, open_master
from .columns import checksums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What a session needs beside, so that nothing that was opened lies in its scratch files.
CONF = {"spark.io.encryption.enabled": "true"}
# Of the table's: the name of the key that it began with.
PROPERTY = "duly.sealed"
_SEALED = ("payload", "key", "headers", "id", "lane")
_PLACE = ("incarnation", "tenant", "partition_id", "offset")
_PURPOSE = b"lake"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes | None, str | None, list[tuple[str, str]] | None, str | None, str | None])


class LakeKey:
    """The keys of a sealed lake, by where they are."""

    def __init__(self, reference: str) -> None:
        """Raises InvalidArgument for what names no key. Nothing is read yet."""
        opened = open_master(reference)
        if not isinstance(opened, LazyMaster):
            raise InvalidArgument("The key of a lake is given by where it is: Spark's machines have to find it, too.")
        self.reference = reference
        self._master = opened

    @property
    def name(self) -> str:
        """The name of the key that seals. Raises Sealed, InvalidArgument."""
        return next(iter(self._master.keys.derived(_PURPOSE))).hex()

    def check(self, name: str) -> None:
        """Raises Sealed when the key of that name is not among them."""
        if name not in {known.hex() for known in self._master.keys.derived(_PURPOSE)}:
            raise Sealed(f"The lake was sealed with the key {name}, which is not among those in {self.reference}.")

    def seals(self) -> dict[bytes, Seal]:
        """What seals and opens, by the keys' names; the first one seals."""
        return {name: Seal(0, key) for name, key in self._master.keys.derived(_PURPOSE).items()}

    def sealed(self, rows: DataFrame) -> DataFrame:
        """Rows of the lake as they are to lie there."""
        return rows.mapInArrow(_Sealing(self.reference), rows.schema)

    def opened(self, rows: DataFrame) -> DataFrame:
        """Rows of the lake as they were before."""
        return rows.mapInArrow(_Opening(self.reference), rows.schema)


class _Sealing(msgspec.Struct, frozen=True):
    """Seals one task's rows."""

    reference: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (name, seal), *_ = LakeKey(self.reference).seals().items()
        for batch in batches:
            said = zip(*(batch.column(column).to_pylist() for column in _SEALED), strict=True)
            sealed = [name + seal.seal(_encode(row), place) for row, place in zip(said, _places(batch), strict=True)]
            yield _saying(batch, payload=sealed, **{column: [None] * len(sealed) for column in _SEALED[1:]})


class _Opening(msgspec.Struct, frozen=True):
    """Opens one task's rows. Raises CorruptLake for what is not as it was sealed, and Sealed for want of its key."""

    reference: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seals = LakeKey(self.reference).seals()
        for batch in batches:
            stored = batch.column("payload").to_pylist()
            said = [_open(seals, one, place) for one, place in zip(stored, _places(batch), strict=True)]
            columns = [[row[at] for row in said] for at in range(len(_SEALED))]
            yield _saying(batch, **dict(zip(_SEALED, columns, strict=True)))


def _open(seals: dict[bytes, Seal], stored: bytes | None, place: bytes) -> Any:
    whole = stored or b""
    name = whole[:KEY_NAME_BYTES]
    seal = seals.get(name)
    if seal is None:
        raise Sealed(f"Messages in the lake are sealed with the key {name.hex()}, which is not among those given.")
    try:
        return _decode.decode(seal.open(whole[KEY_NAME_BYTES:], place))
    except BrokenSeal:
        raise CorruptLake(
            "The seal of a message in the lake is broken: it was changed, or belongs elsewhere."
        ) from None


def _places(batch: pa.RecordBatch) -> Iterator[bytes]:
    columns = [batch.column(name).to_pylist() for name in _PLACE]
    return (bound_to("lake", *place) for place in zip(*columns, strict=True))


def _saying(batch: pa.RecordBatch, **said: list[Any]) -> pa.RecordBatch:
    """The batch with other columns of some names, and the checksum of its payloads."""
    columns = {field.name: arrow_array(said[field.name], field.type) for field in batch.schema if field.name in said}
    columns["checksum"] = checksums(columns["payload"])
    arrays = [columns.get(field.name, batch.column(field.name)) for field in batch.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
