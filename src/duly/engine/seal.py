"""Sealing: what is stored of an encrypted tenant, under one version of its data key.

    sealed bytes   codec, length before compression, nonce, AES-256-GCM-SIV's ciphertext and tag
    sealed value   a mark, the data key's version, sealed bytes: what stands alone in a column

What is sealed is bound to its place: whoever opens it names the same place, or is refused. So ciphertext that was
moved, swapped, cut off or replaced is never taken for what belongs there. Nonces are random; should one ever come
twice, GCM-SIV gives away no more than that two equal things are equal.

Compressed before it is sealed, if that makes it smaller: ciphertext cannot be.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from typing import Any

from ..errors import CorruptBlock

_PLAIN, _LZ4 = 0, 1
_HEAD = struct.Struct("<BI")
_NONCE_BYTES, _TAG_BYTES = 12, 16
_NONCE_AT = _HEAD.size
_SEALED_AT = _NONCE_AT + _NONCE_BYTES
# Not worth the attempt below.
_COMPRESS_FROM = 64
# No text begins with it, no JSON and no list of msgpack's.
_MARK = b"\xffDS\x01"
_VERSION = struct.Struct("<I")
_VALUE_AT = len(_MARK) + _VERSION.size


class BrokenSeal(Exception):
    """It was not sealed under this key and for this place, or was changed since."""


class Seal:
    """One version of a tenant's data key."""

    __slots__ = ("_decrypt", "_encrypt", "version")

    def __init__(self, version: int, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

        cipher = AESGCMSIV(key)
        self._encrypt, self._decrypt = cipher.encrypt, cipher.decrypt
        self.version = version

    def seal(self, content: Any, bound: bytes) -> bytes:
        """Content (bytes, or a view of some) for a place."""
        head, packed = _pack(content)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return b"".join((head, nonce, self._encrypt(nonce, packed, head + bound)))

    def open(self, sealed: Any, bound: bytes) -> bytes:
        """The content. Raises BrokenSeal."""
        from cryptography.exceptions import InvalidTag

        if len(sealed) < _SEALED_AT + _TAG_BYTES:
            raise BrokenSeal
        head = bytes(sealed[:_NONCE_AT])
        try:
            content: bytes = self._decrypt(bytes(sealed[_NONCE_AT:_SEALED_AT]), sealed[_SEALED_AT:], head + bound)
        except InvalidTag as error:
            raise BrokenSeal from error
        codec, size = _HEAD.unpack(head)
        return content if codec == _PLAIN else _lz4().decompress(content, decompressed_size=size, asbytes=True)

    def seal_value(self, content: bytes, bound: bytes) -> bytes:
        """Content as a column has it."""
        return b"".join((_MARK, _VERSION.pack(self.version), self.seal(content, bound)))


Unseal = Callable[[int, int], Seal]


def open_value(stored: Any, tenant_id: int, bound: bytes, unseal: Unseal) -> Any:
    """What a column holds, opened if it is sealed. Raises Sealed, CorruptBlock."""
    if not isinstance(stored, bytes) or stored[: len(_MARK)] != _MARK:
        return stored
    try:
        if len(stored) < _VALUE_AT:
            raise BrokenSeal
        (version,) = _VERSION.unpack_from(stored, len(_MARK))
        return unseal(tenant_id, version).open(memoryview(stored)[_VALUE_AT:], bound)
    except BrokenSeal as error:
        raise CorruptBlock(
            f"A row of tenant {tenant_id} is corrupt: its seal is broken, it was changed or belongs elsewhere. It is "
            "not served. Run `duly doctor`; restore a backup."
        ) from error


def is_sealed(stored: object) -> bool:
    """Whether a column's value is sealed."""
    return isinstance(stored, bytes) and stored[: len(_MARK)] == _MARK


def bound_to(*place: int | str) -> bytes:
    """The name of a place, as what is sealed is bound to it: a kind, and where. No two places have the same."""
    return repr(place).encode()


def tag_of(sealed: bytes) -> bytes:
    """What tells this sealing from all others."""
    return sealed[-_TAG_BYTES:]


def _pack(content: Any) -> tuple[bytes, Any]:
    size = len(content)
    if size >= _COMPRESS_FROM:
        packed = _lz4().compress(content, asbytes=True)
        if len(packed) < size:
            return _HEAD.pack(_LZ4, size), packed
    # Arrow's memory is of signed bytes, which the cipher does not take.
    return _HEAD.pack(_PLAIN, size), content.cast("B") if isinstance(content, memoryview) else content


_codec: Any = None


def _lz4() -> Any:
    global _codec
    if _codec is None:
        import pyarrow as pa

        _codec = pa.Codec("lz4_raw")
    return _codec
