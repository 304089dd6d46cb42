"""Errors on their way: a code, a message and facts; made again on the other side as what they were."""

from __future__ import annotations

from typing import Any

import msgspec

from ..errors import Error, StoreError, every_error

# A status travels in the trailers of HTTP/2, which are small; and what was sent may be quoted in it.
_MESSAGE_CHARS_MAX = 1000

_KINDS = {kind.code: kind for kind in reversed(every_error())}


class Fault(msgspec.Struct, frozen=True):
    """One error as it travels."""

    code: str
    message: str
    facts: dict[str, Any] = {}


_decoder = msgspec.msgpack.Decoder(Fault)


def to_fault(error: Exception) -> Fault:
    """What is told of an error. One that is not ours is a fault of the broker's, and its particulars stay there."""
    if not isinstance(error, Error):
        return Fault(StoreError.code, f"The broker failed ({type(error).__name__}). Its log says more.")
    facts = {name: value for name, value in error.facts.items() if isinstance(value, (str, int, float, bool))}
    message = str(error)
    if len(message) > _MESSAGE_CHARS_MAX:
        message = f"{message[: _MESSAGE_CHARS_MAX - 60]} … {message[-40:]}"
    return Fault(error.code, message, facts)


def to_error(fault: Fault) -> Error:
    """The error again."""
    kind = _KINDS.get(fault.code, Error)
    return kind(fault.message, **fault.facts)


def decode_fault(body: bytes) -> Fault:
    """Reads one from a status of Flight's. Raises msgspec.DecodeError."""
    return _decoder.decode(body)
