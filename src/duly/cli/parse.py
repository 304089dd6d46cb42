"""Reads what people type: durations, sizes, moments, priorities, headers, where a group starts.

Each raises typer.BadParameter, which names the option and exits with 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime, timedelta

import typer

from ..clock import SystemClock, from_ms
from ..topic import Breaker, Health

# What "none" is read as where a setting can be switched off: no duration or size is negative.
NONE = -1
# What a topic's health can be judged by.
MEASURES = tuple(entry.name for entry in fields(Health))

# More than anything real has, and little enough that it is a finite number.
_DIGITS_MAX = 40
_SECONDS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_DURATION = re.compile(r"(\d+(?:\.\d+)?) *(ms|[smhdw]?)", re.ASCII)
_PRIORITIES = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kmgt]?)(i?)b?", re.ASCII | re.IGNORECASE)


def duration(text: str) -> float:
    """Seconds: `30`, `30s`, `5m`, `2h`, `7d`, `500ms`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or len(text) > _DIGITS_MAX:
        raise typer.BadParameter(f"{text!r} is not a duration. Write 30, 30s, 5m, 2h, 7d or 500ms.")
    return float(match[1]) * _SECONDS[match[2]]


def size(text: str) -> int:
    """Bytes: `1000`, `1GB` (decimal), `64MiB` (binary)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]) or len(text) > _DIGITS_MAX:
        raise typer.BadParameter(f"{text!r} is not a size. Write 1000, 64KB, 64MiB or 1GB.")
    unit = float(1024 if match[3] else 1000) ** _POWERS[match[2].lower()]
    return round(float(match[1]) * unit)


def duration_or_none(text: str) -> float:
    """A duration, or `none`."""
    return NONE if text.strip().lower() == "none" else duration(text)


def size_or_none(text: str) -> int:
    """A size, or `none`."""
    return NONE if text.strip().lower() == "none" else size(text)


def number_or_none(text: str) -> float | int:
    """A number, or `none`."""
    word = text.strip().lower()
    if word == "none":
        return NONE
    if not _NUMBER.fullmatch(word) or len(word) > _DIGITS_MAX:
        raise typer.BadParameter(f"{text!r} is not a number. Write 5, 0.5 or none.")
    return float(word) if "." in word else int(word)


def count_or_none(text: str) -> int:
    """A whole number, or `none`."""
    number = number_or_none(text)
    if isinstance(number, float):
        raise typer.BadParameter(f"{text!r} is not a whole number. Write 1000, or none.")
    return number


def breaker_or_none(text: str) -> Breaker | int:
    """A breaker: `on`, its settings as `failures=0.5,calls=20,window=10s,probe=1s,probe_max=60s`, or `none`."""
    word = text.strip().lower()
    if word in ("none", "on"):
        return NONE if word == "none" else Breaker()
    given: dict[str, float | int] = {}
    for pair in word.split(","):
        name, _, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if name not in _BREAKER:
            raise typer.BadParameter(f"{text!r} is no breaker. Write on, none, or failures=0.5,calls=20,window=10s.")
        given[name] = _BREAKER[name](value)
    return Breaker(**given)  # type: ignore[arg-type]


def moment(text: str) -> datetime:
    """A moment in ISO 8601 with a time zone, or `now`."""
    if text.strip().lower() == "now":
        return from_ms(SystemClock().now_ms())
    try:
        read = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a time. Write 2026-01-31T12:00:00Z, or now.") from error
    if read.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no time zone, so it names no moment. End it with Z or +02:00.")
    return read


def due(text: str) -> datetime | float:
    """When a message is due: a moment, or a duration from now on."""
    if _DURATION.fullmatch(text.strip()):
        return duration(text)
    try:
        return moment(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error.message} Or how long from now on: 30s, 5m, 7d.") from error


def since(text: str) -> datetime:
    """A moment, or how long ago."""
    when = due(text)
    return when if isinstance(when, datetime) else from_ms(SystemClock().now_ms()) - timedelta(seconds=when)


def priorities(text: str) -> tuple[int, int]:
    """A priority, or the lowest and the highest of several: `5`, `0-9`."""
    match = _PRIORITIES.fullmatch(text.strip())
    if match is None or len(text) > _DIGITS_MAX:
        raise typer.BadParameter(f"{text!r} is neither a priority nor a span of them. Write 5, or 0-9.")
    lowest = int(match[1])
    return lowest, lowest if match[2] is None else int(match[2])


def weights(pairs: Sequence[str]) -> dict[str, float] | None:
    """`lane=weight` pairs as a mapping; None when there are none."""
    found: dict[str, float] = {}
    for pair in pairs:
        lane, _, weight = pair.rpartition("=")
        try:
            found[lane] = float(weight)
        except ValueError:
            lane = ""
        if not lane:
            raise typer.BadParameter(f"{pair!r} is no weight. Write lane=3.", param_hint="'--lane-weight'")
    return found or None


def thresholds(pairs: Sequence[str]) -> dict[str, tuple[float, float] | None] | None:
    """`measure=warn,alert` pairs as a mapping, `measure=none` for never; None when there are none."""
    found: dict[str, tuple[float, float] | None] = {}
    for pair in pairs:
        measure, _, bounds = pair.partition("=")
        try:
            warn, alert = (None, None) if bounds.strip().lower() == "none" else map(_threshold, bounds.split(","))
        except (ValueError, typer.BadParameter) as error:
            hint = "Write dead=1,10 or oldest_age=1m,5m, or dead=none."
            raise typer.BadParameter(f"{pair!r} is no pair of thresholds. {hint}", param_hint="'--health'") from error
        if measure not in MEASURES:
            raise typer.BadParameter(
                f"There is no measure {measure!r}. Measures: {', '.join(MEASURES)}.", param_hint="'--health'"
            )
        found[measure] = None if warn is None or alert is None else (warn, alert)
    return found or None


def _threshold(text: str) -> float:
    """A number, a share (5%) or a duration (5m)."""
    word = text.strip()
    return float(word[:-1]) / 100 if word.endswith("%") else duration(word)


def start(text: str) -> str | int | datetime:
    """Where a group starts: `earliest`, `latest`, an offset, or a moment."""
    word = text.strip()
    if word in ("earliest", "latest"):
        return word
    if word.isascii() and word.isdigit():
        return int(word)
    try:
        return moment(word)
    except typer.BadParameter as error:
        raise typer.BadParameter(
            f"{text!r} is not a place in a log. Write earliest, latest, an offset, or 2026-01-31T12:00:00Z."
        ) from error


def settings(pairs: Sequence[str], option: str) -> dict[str, str]:
    """`k=v` pairs of an option as a mapping; of one that is given twice, the last."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not a setting. Write name=value.", param_hint=f"'{option}'")
        found[name] = value
    return found


def headers(pairs: Sequence[str]) -> dict[str, str] | None:
    """`k=v` pairs as a mapping; None when there are none."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            # Not quoted: what was forgotten may be the name, and this the value.
            raise typer.BadParameter("A header is written name=value.", param_hint="'--header'")
        if name in found:
            raise typer.BadParameter(f"The header {name!r} is given twice.", param_hint="'--header'")
        found[name] = value
    return found or None


_BREAKER: dict[str, Callable[[str], float | int]] = {
    "failures": number_or_none,
    "calls": count_or_none,
    "window": duration,
    "probe": duration,
    "probe_max": duration,
}
