"""How values read in a table: sizes, ages, payloads, all on one line and safe for a terminal."""

from __future__ import annotations

import codecs
import json
from datetime import datetime

from ..clock import Duration, SystemClock, from_ms, milliseconds

_PAYLOAD_BYTES_SHOWN = 512
_BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_CONTROL = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}


def human_size(count: int) -> str:
    """Bytes as a person reads them: `17 B`, `1.5 MiB`."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_BINARY_UNITS))
    return f"{count / 1024**power:.1f} {_BINARY_UNITS[power - 1]}"


def human_span(span: Duration | None) -> str:
    """A length of time: `500 ms`, `30 s`, `5 m`, `7 d`; None is `none`."""
    if span is None:
        return "none"
    seconds = milliseconds(span, "span") / 1000
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length or (seconds >= length and seconds % length == 0):
            return f"{seconds / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f}".removesuffix(".0") + " s"


def age(at_ms: int) -> str:
    """How long ago a moment was."""
    return human_span(max(0, SystemClock().now_ms() - at_ms) / 1000)


def until(at_ms: int) -> str:
    """How far off a moment is: `in 5 m`, or `5 m ago`."""
    ahead_ms = at_ms - SystemClock().now_ms()
    return f"in {human_span(ahead_ms / 1000)}" if ahead_ms > 0 else f"{human_span(-ahead_ms / 1000)} ago"


def iso(at_ms: int) -> str:
    """A moment for programs, and for people who need it exactly."""
    return iso_of(from_ms(at_ms))


def iso_of(at: datetime) -> str:
    """A datetime in UTC, to the millisecond."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def payload_text(payload: bytes) -> str:
    """The payload's beginning: as text when that is printable UTF-8, else in hex."""
    whole = len(payload) <= _PAYLOAD_BYTES_SHOWN
    head = payload[:_PAYLOAD_BYTES_SHOWN]
    more = "" if whole else "…"
    try:
        # A character may be cut in two where the head ends: the decoder keeps its first half to itself.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=whole).translate(_CONTROL)
    except UnicodeDecodeError:
        return f"0x{head.hex()}{more}"
    return text + more if text.isprintable() else f"0x{head.hex()}{more}"


def one_line(text: str) -> str:
    """Text without line breaks and control characters, which could rewrite the screen."""
    return "".join(char if char.isprintable() else " " for char in text.translate(_CONTROL))


def json_line(document: object) -> bytes:
    """A document on one line of UTF-8 JSON."""
    # Half a character becomes an escape, and JSON's own escapes look the same.
    return json.dumps(document, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def plural(count: int, noun: str = "message") -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
