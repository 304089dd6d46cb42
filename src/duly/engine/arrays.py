"""Lists and arrays of NumPy's as Arrow has them, and back, by their memory.

Not by pa.array and to_numpy: those look for pandas first and load it where it is installed, half a second and fifty
megabytes for whoever publishes one message from a command line.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_BINARY_BYTES_MAX = 2**31 - 1


def arrow_array(values: Sequence[Any] | np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    """A column: of numbers, texts, bytes (None for null in each), or pairs of texts."""
    if isinstance(values, np.ndarray):
        return _numbers(values, kind, None)
    valid = _validity(values)
    if pa.types.is_map(kind):
        return _maps(values, kind, valid)
    if not pa.types.is_integer(kind):
        return _binaries(values, kind, valid)
    return _numbers([0 if v is None else v for v in values] if valid else values, kind, valid)


def joined_array(
    parts: Sequence[str | bytes], flat: bytes, kind: pa.DataType, valid: pa.Buffer | None = None
) -> pa.Array:
    """Texts of ASCII, or bytes, that are joined already."""
    return pa.Array.from_buffers(kind, len(parts), [valid, _ends(map(len, parts), len(parts)), pa.py_buffer(flat)])


def numpy_array(array: pa.Array, missing: int = 0) -> np.ndarray[Any, Any]:
    """Numbers, with one of their kind where there are none."""
    kind = np.dtype(array.type.to_pandas_dtype())
    valid, flat = array.buffers()
    if flat is None or not len(array):
        return np.full(len(array), missing, kind)
    values = np.frombuffer(flat, kind, len(array), array.offset * kind.itemsize)
    if not array.null_count:
        return values
    end = array.offset + len(array)
    there = np.unpackbits(np.frombuffer(valid, np.uint8), count=end, bitorder="little")[array.offset :]
    return np.where(there, values, np.array(missing, kind))


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    if None not in values:
        return None
    there = np.fromiter((value is not None for value in values), bool, len(values))
    return pa.py_buffer(np.packbits(there, bitorder="little"))


def _numbers(values: Sequence[int] | np.ndarray[Any, Any], kind: pa.DataType, valid: pa.Buffer | None) -> pa.Array:
    flat = np.ascontiguousarray(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(flat), [valid, pa.py_buffer(flat)])


def _binaries(values: Sequence[Any], kind: pa.DataType, valid: pa.Buffer | None) -> pa.Array:
    text = pa.types.is_string(kind)
    parts: Sequence[Any] = [value or ("" if text else b"") for value in values] if valid else values
    if text and not (joined := "".join(parts)).isascii():
        parts, text = [part.encode() for part in parts], False
    # Of ASCII there are as many bytes as characters.
    flat = joined.encode() if text else b"".join(parts)
    if len(flat) > _BINARY_BYTES_MAX:
        raise pa.ArrowInvalid("A column has at most 2 GiB.")
    return joined_array(parts, flat, kind, valid)


def _maps(values: Sequence[Sequence[tuple[str, str]] | None], kind: pa.DataType, valid: pa.Buffer | None) -> pa.Array:
    pairs = list(itertools.chain.from_iterable(filter(None, values)))
    keys = _binaries([key for key, _ in pairs], kind.key_type, None)
    items = _binaries([item for _, item in pairs], kind.item_type, None)
    entry = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    ends = _ends((len(value) if value else 0 for value in values), len(values))
    return pa.Array.from_buffers(kind, len(values), [valid, ends], children=[entry])


def _ends(sizes: Iterable[int], count: int) -> pa.Buffer:
    """Where each value ends, and the first begins."""
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(sizes, np.int32, count), out=ends[1:])
    return pa.py_buffer(ends)
