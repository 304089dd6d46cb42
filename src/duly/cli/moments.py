"""When a message is due, as people type it: `+90s`, `in 3 days`, `tomorrow 9:00`, `monday 8:00`, an ISO time.

A small grammar that guesses nothing:

    now
    90s, +90s, in 90 seconds                 from now on; a day is 24 hours, whatever clocks do that night
    14:00                                    the next time it is that
    today 18:30, tomorrow 9:00:30            today has to be still to come
    monday 8:00                              the next time it is that, today included
    2027-01-31T12:00:00+01:00                a moment with its zone

Times of day are of the local zone (TZ). A time that does not exist there (clocks go ahead over it) or comes twice
(clocks go back over it) is refused, with what to write instead. What was understood is said on stderr.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta

import typer

from ..clock import Duration, SystemClock, from_ms
from .parse import duration, moment
from .session import Session
from .text import until

ACCEPTED = (
    "Write +90s, 2h or 'in 3 days'; 14:00, 'today 18:30', 'tomorrow 9:00' or 'monday 8:00' (local time); "
    "now; or 2027-01-31T12:00:00Z."
)

_UNITS = {
    "ms": ("ms", "millisecond", "milliseconds"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hour", "hours"),
    "d": ("d", "day", "days"),
    "w": ("w", "week", "weeks"),
}
_UNIT_OF = {word: unit for unit, words in _UNITS.items() for word in words}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SPAN = re.compile(r"(?:\+ ?|in )?(\d+(?:\.\d+)?) ?([a-z]*)", re.ASCII)
_TIME_OF_DAY = re.compile(r"(?:([a-z]+) (?:at )?)?(\d{1,2}):(\d\d)(?::(\d\d))?", re.ASCII)
_TEXT_CHARS_MAX = 64


def due(text: str) -> datetime | float:
    """When a message is due: a moment, or seconds from now on."""
    return resolve(text, from_ms(SystemClock().now_ms()).astimezone())


def resolve(text: str, now: datetime) -> datetime | float:
    """The same at a given moment, in the local zone."""
    words = " ".join(text.lower().split())
    if len(words) > _TEXT_CHARS_MAX:
        raise typer.BadParameter(f"That is not a time. {ACCEPTED}")
    if match := _SPAN.fullmatch(words):
        return _seconds(text, match[1], match[2], named=words.startswith("in "))
    if match := _TIME_OF_DAY.fullmatch(words):
        at = _time_of_day(text, match[2], match[3], match[4])
        return _on_day(text, match[1], at, now)
    try:
        return moment(text)
    except typer.BadParameter as error:
        hint = "" if "zone" not in error.message else f" {error.message}"
        raise typer.BadParameter(f"{text!r} is not a time that is understood here.{hint} {ACCEPTED}") from error


def say_due(session: Session, given: datetime | Duration | None) -> None:
    """Tells people which moment was understood."""
    if isinstance(given, datetime):
        at_ms = round(given.timestamp() * 1000)
        local = given.astimezone()
        session.show.remark(f"Due {local:%A} {local.isoformat(timespec='seconds')}, {until(at_ms)}.")


def _seconds(text: str, number: str, word: str, *, named: bool) -> float:
    unit = _UNIT_OF.get(word, "")
    if unit == "" and (word or named):
        raise typer.BadParameter(f"{text!r} has no unit that is known here. {ACCEPTED}")
    return duration(number + unit)


def _time_of_day(text: str, hour: str, minute: str, second: str | None) -> time:
    try:
        return time(int(hour), int(minute), int(second or 0))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} has no such time of day: 0:00 to 23:59:59.") from error


def _on_day(text: str, day: str | None, at: time, now: datetime) -> datetime:
    """The time of day on the day that is meant."""
    today = now.date()
    if day is None:
        return _next(today, at, now, step_days=1)
    if day == "today":
        found = _local(today, at)
        if found <= now:
            raise typer.BadParameter(f"{text!r} is over: it is {now:%H:%M:%S}. For now write now.")
        return found
    if day == "tomorrow":
        return _local(today + timedelta(days=1), at)
    if day not in _WEEKDAYS:
        raise typer.BadParameter(f"{day!r} is no day that is known here: today, tomorrow, or a weekday in full.")
    ahead = (_WEEKDAYS.index(day) - today.weekday()) % 7
    return _next(today + timedelta(days=ahead), at, now, step_days=7)


def _next(day: date, at: time, now: datetime, *, step_days: int) -> datetime:
    """The time on that day, or a step later if it has passed by the clock on the wall."""
    passed = (day, at) <= (now.date(), now.time())
    return _local(day + timedelta(days=step_days) if passed else day, at)


def _local(day: date, at: time) -> datetime:
    """A local time as a moment. Refused if clocks are changed over it: there is none, or there are two."""
    named = datetime.combine(day, at)
    first, last = sorted(named.replace(fold=fold).astimezone() for fold in (0, 1))
    if first == last:
        return first
    # What there is not comes back as a time before the gap and one behind it.
    if first.time() != at:
        raise typer.BadParameter(
            f"There is no {at} on {day} here: clocks go ahead over it. Write {last:%H:%M}, or a moment with its zone."
        )
    raise typer.BadParameter(
        f"{at} on {day} comes twice here: clocks go back over it. Write {first.isoformat()} or {last.isoformat()}."
    )
