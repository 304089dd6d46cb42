"""Blocks: how messages lie in the store. Immutable, checksummed, bound to their place.

    header    fixed: magic, format, form, columns, key id, tenant, partition, base offset, count,
              published at, lengths, checksum
    preamble  msgpack: [[publish id, count], …], whose batches are inside, so that a publish whose
              outcome is in doubt can be found again; a third element is the principal who published it
    body      listed: msgpack of the columns; arrow: one record batch, its schema known from the
              header's columns and therefore not stored; apart: where one of these lies, and its checksum

The checksum covers header, preamble and body. The place is part of the header, so a block that
was moved, swapped or copied to another row fails as surely as one with a flipped bit.
The key id is the version of the tenant's data key that the body is sealed with (seal.py), or 0: it is not.
Sealed, it is bound to the header and the preamble; a body that lies apart, to its stage, and its block to that very
sealing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import xxhash

from ..errors import CorruptBlock, IncompatibleStore, Sealed
from ..limits import LIMITS
from .columns import NAMES, Columns, arrow_schema, join, to_arrow
from .seal import BrokenSeal, Seal, Unseal, tag_of

_MAGIC = b"DULY"
_FORMAT = 1
_LISTED, _ARROW = 1, 2
# Added to the form of a block whose body is in a row of its own: it was written there before it had a place (stage.py).
_APART = 16
_WHERE = struct.Struct("<QQQ")
_HEADER = struct.Struct("<4sBBHIQQQIQIIQ")
_CHECKSUM_AT = _HEADER.size - 8
# What a sealed body is bound to: all but the lengths that sealing changes, and the preamble behind it.
_BOUND = struct.Struct("<4sBBHIQQQIQI")
# Beside the log: messages in a queue's runs, and those that are kept after their block.
OF_A_RUN, KEPT = b"run", b"kept"
_CHUNK_BOUND = struct.Struct("<QHHI")
# Enough for the header and the publish ids of most blocks.
_HEAD_BYTES = 1024

_encoder = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder().decode

# (publish id, how many messages), and where it is known, the principal who published them.
Publishes = Sequence[tuple[Any, ...]]


class Place(msgspec.Struct, frozen=True):
    """Where a block belongs."""

    tenant: int
    partition: int
    base: int


class Block(msgspec.Struct, frozen=True):
    """A block read back and found whole."""

    place: Place
    count: int
    published_at: int
    columns: Columns
    publishes: Publishes

    @property
    def base(self) -> int:
        """The offset of its first message."""
        return self.place.base

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.place.base + self.count


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """The body of a block to be, in a row of its own."""

    number: int
    form: int
    mask: int
    count: int
    length: int
    checksum: int
    # If it is sealed: the data key's version, what tells this sealing from others, and what it is bound to.
    key: int = 0
    tag: bytes = b""
    bound: bytes = b""


def encode(
    place: Place,
    columns: Columns,
    published_at: int,
    publishes: Publishes,
    *,
    seal: Seal | None = None,
    bound: bytes = b"",
) -> bytes:
    """The block's bytes, sealed for its place; `bound` says what kind of place that is."""
    form, mask, body = _encode_body(columns)
    return _frame(place, form, mask, columns.count, published_at, publishes, body, seal, bound)


def encode_chunk(
    columns: Columns, insert: Callable[[Any], int], *, tenant: int, seal: Seal | None = None, bound: bytes = b""
) -> Chunk:
    """Writes a body of its own, of which `insert` tells the number."""
    form, mask, body = _encode_body(columns)
    key, tag = 0, b""
    if seal is not None:
        body = seal.seal(body, _CHUNK_BOUND.pack(tenant, form, mask, columns.count) + bound)
        key, tag = seal.version, tag_of(body)
    digest = xxhash.xxh3_64_intdigest(body)
    return Chunk(insert(body), form, mask, columns.count, len(body), digest, key, tag, bound if key else b"")


def encode_apart(
    place: Place, chunk: Chunk, published_at: int, publishes: Publishes, *, seal: Seal | None = None
) -> bytes:
    """The bytes of a block whose body is there already. A body that is sealed needs a seal for its block."""
    where = _WHERE.pack(chunk.number, chunk.length, chunk.checksum)
    if seal is not None:
        where += _encoder.encode((chunk.key, chunk.tag, chunk.bound))
    return _frame(place, chunk.form | _APART, chunk.mask, chunk.count, published_at, publishes, where, seal, b"")


def _encode_body(columns: Columns) -> tuple[int, int, Any]:
    names = columns.names
    mask = sum(1 << NAMES.index(name) for name in names)
    if columns.arrow is None:
        return _LISTED, mask, _encoder.encode([columns.listed[name] for name in names])
    return _ARROW, mask, memoryview(to_arrow(columns).serialize())


def _frame(
    place: Place,
    form: int,
    mask: int,
    count: int,
    published_at: int,
    publishes: Publishes,
    body: Any,
    seal: Seal | None,
    bound: bytes,
) -> bytes:
    preamble = _encoder.encode(publishes)
    key = 0 if seal is None else seal.version
    fields = (_MAGIC, _FORMAT, form, mask, key, place.tenant, place.partition, place.base, count, published_at)
    if seal is not None:
        body = seal.seal(body, _BOUND.pack(*fields, len(preamble)) + preamble + bound)
    lengths = (len(preamble), len(body))
    digest = xxhash.xxh3_64(_HEADER.pack(*fields, *lengths, 0))
    digest.update(preamble)
    digest.update(body)
    return b"".join((_HEADER.pack(*fields, *lengths, digest.intdigest()), preamble, body))


def decode(
    place: Place,
    stored: object,
    chunk: Callable[[int], bytes | None] | None = None,
    *,
    unseal: Unseal | None,
    bound: bytes = b"",
) -> Block:
    """Reads a block back; `chunk` gives bodies that lie apart, `unseal` the versions of a tenant's data key. Raises
    CorruptBlock unless every bit and its place are right, and Sealed (of one that is whole) when there is no key.
    """
    if not isinstance(stored, bytes) or len(stored) < _HEADER.size or stored[:4] != _MAGIC:
        raise _corrupt(place, "it has no block header")
    (
        _,
        version,
        form,
        mask,
        key,
        tenant,
        partition,
        base,
        count,
        published_at,
        preamble_len,
        body_len,
        checksum,
    ) = _HEADER.unpack_from(stored)
    if len(stored) != _HEADER.size + preamble_len + body_len:
        raise _corrupt(place, "its length is wrong")
    view = memoryview(stored)
    digest = xxhash.xxh3_64(view[:_CHECKSUM_AT])
    digest.update(bytes(8))
    digest.update(view[_HEADER.size :])
    if digest.intdigest() != checksum:
        raise _corrupt(place, "its checksum is wrong")
    if (tenant, partition, base) != (place.tenant, place.partition, place.base):
        raise _corrupt(place, f"it belongs to partition {partition} at offset {base}")
    if version != _FORMAT or form & ~_APART not in (_LISTED, _ARROW):
        raise IncompatibleStore(f"A block has format {version}, form {form}, key {key}: a newer Duly wrote it.")
    body_at = _HEADER.size + preamble_len
    publishes = _publishes(view[_HEADER.size : body_at])
    if key:
        with_key = _unsealed(place, unseal, key)
        fields = (_MAGIC, version, form, mask, key, tenant, partition, base, count, published_at, preamble_len)
        place_of_it = _BOUND.pack(*fields) + view[_HEADER.size : body_at] + bound
        stored, body_at = _open(place, with_key, view[body_at:], place_of_it), 0
    if form & _APART:
        where = _where(stored[body_at:], form & ~_APART, mask, count)
        stored, body_at, form = _fetched(place, where, chunk, unseal), 0, form & ~_APART
    return Block(place, count, published_at, _decode_body(form, _named(mask), count, stored, body_at), publishes)


def decode_chunk(chunk: Chunk, body: bytes | None, *, tenant: int, unseal: Unseal) -> Columns:
    """The messages of a chunk that is not part of a block yet. Raises CorruptBlock, Sealed."""
    place = Place(tenant, 0, 0)
    whole = _whole(place, body, chunk.length, chunk.checksum)
    if chunk.key:
        whole = _open_chunk(place, chunk, whole, unseal)
    return _decode_body(chunk.form, _named(chunk.mask), chunk.count, whole, 0)


def _where(stored: bytes, form: int, mask: int, count: int) -> Chunk:
    """Where a body lies apart, as its block says."""
    number, length, checksum = _WHERE.unpack_from(stored)
    sealed = _decode(stored[_WHERE.size :]) if len(stored) > _WHERE.size else ()
    return Chunk(number, form, mask, count, length, checksum, *sealed)


def _fetched(place: Place, where: Chunk, chunk: Callable[[int], bytes | None] | None, unseal: Unseal | None) -> bytes:
    body = _whole(place, None if chunk is None else chunk(where.number), where.length, where.checksum)
    return _open_chunk(place, where, body, unseal) if where.key else body


def _open_chunk(place: Place, chunk: Chunk, body: bytes, unseal: Unseal | None) -> bytes:
    if tag_of(body) != chunk.tag:
        raise _corrupt(place, "its messages, which lie apart from it, are others")
    bound = _CHUNK_BOUND.pack(place.tenant, chunk.form, chunk.mask, chunk.count) + chunk.bound
    return _open(place, _unsealed(place, unseal, chunk.key), body, bound)


def _unsealed(place: Place, unseal: Unseal | None, version: int) -> Seal:
    if unseal is None:
        raise Sealed()
    return unseal(place.tenant, version)


def _open(place: Place, seal: Seal, sealed: Any, bound: bytes) -> bytes:
    try:
        return seal.open(sealed, bound)
    except BrokenSeal as error:
        raise _corrupt(place, "its seal is broken, it was changed or belongs elsewhere") from error


def _whole(place: Place, body: bytes | None, length: int, checksum: int) -> bytes:
    if not isinstance(body, bytes) or len(body) != length:
        raise _corrupt(place, "its messages, which lie apart from it, are gone or have another length")
    if xxhash.xxh3_64_intdigest(body) != checksum:
        raise _corrupt(place, "the checksum of its messages, which lie apart from it, is wrong")
    return body


def _named(mask: int) -> list[str]:
    return [name for at, name in enumerate(NAMES) if mask >> at & 1]


def publishes_of(read: Callable[[int], bytes]) -> Publishes:
    """The publish ids of a stored block, of which `read` gives the first so many bytes. None of one that is damaged."""
    head = read(_HEAD_BYTES)
    if len(head) < _HEADER.size or head[:4] != _MAGIC:
        return []
    preamble_len = _HEADER.unpack_from(head)[10]
    end = _HEADER.size + preamble_len
    if end > len(head):
        head = read(end)
    try:
        return _publishes(head[_HEADER.size : end])
    except (msgspec.DecodeError, ValueError, TypeError):
        return []


def _publishes(preamble: Any) -> Publishes:
    return [(str(publish_id), int(count), *map(str, who)) for publish_id, count, *who in _decode(preamble)]


def is_plain(stored: bytes) -> bool:
    """Whether a block that was found whole is not sealed."""
    return _HEADER.unpack_from(stored)[4] == 0


def _decode_body(form: int, names: list[str], count: int, stored: bytes, body_at: int) -> Columns:
    if form == _LISTED:
        return Columns(count, lists=dict(zip(names, _decode(memoryview(stored)[body_at:]), strict=True)))
    import pyarrow as pa

    body = pa.py_buffer(stored).slice(body_at)
    return Columns(count, arrow=pa.ipc.read_record_batch(pa.ipc.read_message(body), arrow_schema(names)))


def _corrupt(place: Place, why: str) -> CorruptBlock:
    return CorruptBlock(
        f"The block at offset {place.base} of partition {place.partition} is corrupt: {why}. "
        "It is not served. Run `duly doctor`; restore a backup, or seek past it.",
        partition_id=place.partition,
        base=place.base,
    )


class Piece(msgspec.Struct, frozen=True):
    """A published batch's part for one partition, before it has become blocks."""

    publish_id: str
    columns: Columns
    # Of its payloads.
    bytes: int
    # Its messages are there already, as they are: one block.
    chunk: Chunk | None = None
    # The principal who published it, if there was one to be known.
    publisher: str = ""

    def told(self, count: int) -> tuple[Any, ...]:
        """Its entry in a block that has so many of its messages."""
        return (self.publish_id, count, self.publisher) if self.publisher else (self.publish_id, count)


def form_blocks(pieces: Sequence[Piece]) -> list[tuple[Columns, Publishes, Chunk | None]]:
    """Pieces in order as the columns of blocks: small neighbours joined, big ones cut."""
    formed: list[tuple[Columns, Publishes, Chunk | None]] = []
    small: list[Piece] = []
    small_count = small_bytes = 0

    def flush() -> None:
        nonlocal small_count, small_bytes
        if small:
            columns = join([piece.columns for piece in small])
            formed.append((columns, [piece.told(piece.columns.count) for piece in small], None))
            small.clear()
            small_count = small_bytes = 0

    for piece in pieces:
        columns, size = piece.columns, piece.bytes
        if piece.chunk is not None:
            flush()
            formed.append((columns, [piece.told(columns.count)], piece.chunk))
            continue
        if columns.arrow is not None or size > LIMITS.block_bytes_max:
            flush()
            formed.extend((part, [piece.told(part.count)], None) for part in cut(columns))
            continue
        if small_count + columns.count > LIMITS.block_messages_max or small_bytes + size > LIMITS.block_bytes_max:
            flush()
        small.append(piece)
        small_count += columns.count
        small_bytes += size
    flush()
    return formed


def cut(columns: Columns) -> list[Columns]:
    """A batch in slices that fit a block each; one message may fill a block alone."""
    if columns.count <= LIMITS.block_messages_max and columns.bytes <= LIMITS.block_bytes_max:
        return [columns]
    ends = columns.sizes().cumsum()
    slices: list[Columns] = []
    start = 0
    while start < columns.count:
        before = int(ends[start - 1]) if start else 0
        fitting = int(ends.searchsorted(before + LIMITS.block_bytes_max, side="right"))
        stop = max(start + 1, min(fitting, start + LIMITS.block_messages_max, columns.count))
        slices.append(columns.slice(start, stop))
        start = stop
    return slices
