"""Expressions: what a message that is forwarded gets for its due time, its priority or its lane.

    json.at + 30s                        half a minute after what the payload says
    header.lane ?? json.customer ?? "none"
    published + header.delay ?? now      `??` takes what follows where something before it is missing
    seconds(json.created)                a number of seconds; without that a number is milliseconds

    expression  sum ("??" sum)*
    sum         term (("+" | "-") term)*
    term        5 | "text" | 1h30m | none | name | json.a[0]["b c"] | header.NAME | header["x-y"]
                | seconds(expression) | (expression)

An expression is text, read once when it is given (an error says where), and asked once a message. It can do nothing
but look at the message and add: no loops, no calls, and its length and depth are bounded, so that neither reading it
nor asking it takes long, whoever wrote it. A message that it makes no sense of raises InvalidArgument, with the
reason; what that means for the message is for whoever asked.

What is asked of a message has a kind of its own only when it is a time (`now`, `published`, `due`), a span (`30s`) or
is written here; what a payload or a header says is taken for what is wanted there. So `json.at + 30s` reads `json.at`
as a moment: an ISO 8601 time with its zone, or milliseconds since 1970; and `published + header.delay` reads the
header as a span: `90s`, or milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from math import isfinite
from typing import Any

import msgspec

from .clock import moment_ms
from .errors import InvalidArgument, LimitExceeded
from .limits import DAY_MS, LIMITS, MINUTE_MS
from .tenant import check_name

EXPRESSION_CHARS_MAX = 500
_DEPTH_MAX = 16
# Fewer milliseconds than these are a day in early 1973: whoever wrote that meant seconds.
_MOMENT_MS_MIN = 100_000_000_000
_NUMBER_MAX = 2**62

_UNIT_MS = {"ms": 1, "s": 1000, "m": MINUTE_MS, "h": 60 * MINUTE_MS, "d": DAY_MS, "w": 7 * DAY_MS}
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+", re.ASCII)
_SPAN_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_SIGNED = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SPACE = re.compile(r"[ \t]*")


class Missing(msgspec.Struct, frozen=True):
    """A message does not have what is asked for; `why` says what."""

    why: str


class Moment(msgspec.Struct, frozen=True):
    """A moment, in milliseconds since 1970."""

    ms: int


class Span(msgspec.Struct, frozen=True):
    """A length of time, in milliseconds."""

    ms: int


class Subject:
    """A message as expressions see it. Its payload is read as JSON when that is first asked for, and once."""

    __slots__ = (
        "_json",
        "due_ms",
        "headers",
        "id",
        "key",
        "lane",
        "now_ms",
        "payload",
        "priority",
        "published_ms",
        "topic",
    )

    def __init__(
        self,
        payload: bytes,
        *,
        now_ms: int,
        published_ms: int,
        topic: str = "",
        id: str = "",
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        lane: str | None = None,
        priority: int = 0,
        due_ms: int | None = None,
    ) -> None:
        self.payload = payload
        self.now_ms = now_ms
        self.published_ms = published_ms
        self.topic = topic
        self.id = id
        self.key = key
        self.headers = headers or {}
        self.lane = lane
        self.priority = priority
        self.due_ms = due_ms
        self._json: Any = _UNREAD

    def json(self) -> Any:
        """The payload read as JSON; Missing if it is none."""
        if self._json is _UNREAD:
            try:
                self._json = msgspec.json.decode(self.payload)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                self._json = Missing("the payload is no JSON")
        return self._json


_UNREAD = object()

# Text, numbers, what JSON has besides, times, None for `none`, or Missing.
Value = Any
Ask = Callable[[Subject], Value]


class Expression:
    """One that was read and found well formed."""

    def __init__(self, text: str, ask: Ask) -> None:
        self.text = text
        self._ask = ask

    def due_ms(self, subject: Subject) -> int | None:
        """When it is due: a moment, or a span from now on; None: at once. Raises InvalidArgument."""
        value = self._found("due", subject)
        if value is None:
            return None
        at = subject.now_ms + value.ms if isinstance(value, Span) else _moment(value, "due").ms
        if at > subject.now_ms + LIMITS.due_ms_ahead_max:
            raise LimitExceeded(f"due is more than {LIMITS.due_ms_ahead_max // DAY_MS} days ahead.")
        return max(0, at)

    def priority(self, subject: Subject) -> int | None:
        """Its priority; None: what a message has without one. Raises InvalidArgument."""
        value = self._found("priority", subject)
        if value is None:
            return None
        number = _number(value, "priority")
        if number != int(number) or not 0 <= number <= LIMITS.priority_max:
            raise LimitExceeded(f"priority must be a whole number, 0 to {LIMITS.priority_max}; got {_shown(value)}.")
        return int(number)

    def lane(self, subject: Subject) -> str | None:
        """Its lane; None: the default lane. Raises InvalidArgument."""
        value = self._found("lane", subject)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise InvalidArgument(f"lane must be a text or a whole number; got {_shown(value)}.")
        return check_name(value, "lane")

    def _found(self, what: str, subject: Subject) -> Value:
        value = self._ask(subject)
        if isinstance(value, Missing):
            raise InvalidArgument(f"{what} is not known: {value.why}. Give another with ??, as in {self.text} ?? none.")
        return value

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


@lru_cache(maxsize=256)
def parse(text: str, what: str = "expression") -> Expression:
    """Reads an expression. Raises InvalidArgument, which says where and what might have been meant."""
    return Expression(text, _Reading(text, what).whole())


def check_expression(text: object, what: str) -> Expression:
    """Reads one for due, priority or lane; what needs no message to be known is looked at as well."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} must be an expression, as text; got {text!r}.")
    found = parse(text, what)
    if not _asks_for_anything(text):
        getattr(found, {"due": "due_ms"}.get(what, what))(_NOTHING)
    return found


# A moment that is written out is as far ahead as it may be for whoever forwards a message, and not for us now.
_NOTHING = Subject(b"", now_ms=_NUMBER_MAX, published_ms=0)


def _asks_for_anything(text: str) -> bool:
    """Whether it names something of a message."""
    words = _WORD.findall(_TEXT.sub("", _SPAN.sub("", text)))
    return any(word not in ("none", "seconds") for word in words)


# Reading


class _Reading:
    """An expression being read, from left to right."""

    def __init__(self, text: str, what: str) -> None:
        self.text = text
        self.what = what
        self.at = 0
        self._depth = 0

    def whole(self) -> Ask:
        if len(self.text) > EXPRESSION_CHARS_MAX:
            raise LimitExceeded(
                f"{self.what}: an expression has at most {EXPRESSION_CHARS_MAX} characters; got {len(self.text)}."
            )
        ask = self._fallbacks()
        if self.at < len(self.text):
            raise self._failed("this is not understood here; expected +, -, ?? or the end")
        return ask

    def _fallbacks(self) -> Ask:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._failed(f"brackets are more than {_DEPTH_MAX} deep")
        asks = [self._sum()]
        while self._takes("??"):
            asks.append(self._sum())
        self._depth -= 1
        return asks[0] if len(asks) == 1 else _first_of(asks)

    def _sum(self) -> Ask:
        ask = self._term()
        while True:
            if self._takes("+"):
                ask = _combined(ask, self._term(), _plus)
            elif self._takes("-"):
                ask = _combined(ask, self._term(), _minus)
            else:
                return ask

    def _term(self) -> Ask:
        self._skip()
        if self._takes("("):
            return self._bracketed()
        if (span := self._match(_SPAN)) is not None:
            return _constant(self._checked(_span_of(span)))
        if (number := self._match(_NUMBER)) is not None:
            return _constant(self._checked(_number_of(number)))
        if self.text.startswith('"', self.at):
            return _constant(self._string())
        start = self.at
        if (word := self._match(_WORD)) is not None:
            return self._named(word, start)
        over = self.at >= len(self.text)
        raise self._failed("something to add or to take is missing" if over else "this is not understood")

    def _bracketed(self) -> Ask:
        ask = self._fallbacks()
        if not self._takes(")"):
            raise self._failed("a closing ) is missing")
        return ask

    def _named(self, word: str, start: int) -> Ask:
        if word in _NAMES:
            return _NAMES[word]
        if word == "json":
            return _json_at(self._path())
        if word == "header":
            return _header(self._header_name())
        if word == "seconds":
            if not self._takes("("):
                raise self._failed("seconds is written as seconds(json.at)")
            return _in_seconds(self._bracketed())
        self.at = start
        before = self.text[:start].rstrip()
        if before.endswith("-") and (head := re.search(r"(header|json)\.(\w+)-$", before)):
            dashed = f'{head[1]}["{head[2]}-{word}"]'
            raise self._failed(f"there is no {word!r}; a name with a dash in it is written as {dashed}")
        raise self._failed(f"there is no {word!r}. There are {', '.join(sorted(_NAMES))}, json, header and seconds(…)")

    def _path(self) -> tuple[str | int, ...]:
        steps: list[str | int] = []
        while True:
            if self.text.startswith(".", self.at):
                self.at += 1
                word = self._match(_WORD)
                if word is None:
                    raise self._failed('a name is expected behind the dot; others are written as json["x-y"]')
                steps.append(word)
            elif self._takes_here("["):
                steps.append(self._step())
            else:
                return tuple(steps)

    def _step(self) -> str | int:
        self._skip()
        step: str | int
        if self.text.startswith('"', self.at):
            step = self._string()
        elif (number := self._match(_NUMBER)) is not None and number.isdigit() and len(number) < 10:
            step = int(number)
        else:
            raise self._failed('expected a place or a name, as in [0] or ["x-y"]')
        if not self._takes("]"):
            raise self._failed("a closing ] is missing")
        return step

    def _header_name(self) -> str:
        start = self.at
        path = self._path()
        if len(path) == 1 and isinstance(path[0], str):
            return path[0]
        self.at = start
        raise self._failed('a header is written as header.NAME or header["x-y"]')

    def _string(self) -> str:
        start = self.at
        found = _TEXT.match(self.text, self.at)
        if found is None:
            raise self._failed('a closing " is missing')
        self.at = found.end()
        try:
            read: str = msgspec.json.decode(found[0], type=str)
        except msgspec.DecodeError as error:
            self.at = start
            raise self._failed('this is no text: write \\" and \\\\ for " and \\') from error
        return read

    def _checked(self, value: Value) -> Value:
        size = value.ms if isinstance(value, Span) else value
        if size > _NUMBER_MAX:
            raise self._failed("this is too large")
        return value

    # Characters

    def _skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def _takes(self, mark: str) -> bool:
        """Whether that comes next; then it is behind us."""
        self._skip()
        taken = self._takes_here(mark)
        if taken:
            self._skip()
        return taken

    def _takes_here(self, mark: str) -> bool:
        taken = self.text.startswith(mark, self.at)
        self.at += len(mark) if taken else 0
        return taken

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        # 5x is neither a number nor a name.
        if pattern in (_SPAN, _NUMBER) and found.end() < len(self.text) and _WORD.match(self.text, found.end()):
            if pattern is _SPAN:
                return None
            self.at = found.end()
            raise self._failed("there is no such unit; there are ms, s, m, h, d and w")
        self.at = found.end()
        return found[0]

    def _failed(self, why: str) -> InvalidArgument:
        return InvalidArgument(f"{self.what}: {why} (character {self.at + 1} of {self.text!r}).")


def _span_of(text: str) -> Span:
    ms = sum(float(number) * _UNIT_MS[unit] for number, unit in _SPAN_PART.findall(text))
    # The largest float is none.
    return Span(round(min(ms, 2.0 * _NUMBER_MAX)))


def _number_of(text: str) -> int | float:
    # Of more digits Python makes no number, and nobody means one.
    return float(text) if "." in text or len(text) > 30 else int(text)


# What is asked of a message


def _constant(value: Value) -> Ask:
    return lambda _: value


def _present(why: str, ask: Callable[[Subject], Any]) -> Ask:
    missing = Missing(why)

    def found(subject: Subject) -> Value:
        value = ask(subject)
        return missing if value is None else value

    return found


def _due(subject: Subject) -> Moment | None:
    return None if subject.due_ms is None else Moment(subject.due_ms)


_NAMES: dict[str, Ask] = {
    "none": _constant(None),
    "now": lambda subject: Moment(subject.now_ms),
    "published": lambda subject: Moment(subject.published_ms),
    "due": _present("the message has no due time", _due),
    "id": lambda subject: subject.id,
    "topic": lambda subject: subject.topic,
    "key": _present("the message has no key", lambda subject: subject.key),
    "lane": _present("the message has no lane", lambda subject: subject.lane),
    "priority": lambda subject: subject.priority,
}


def _header(name: str) -> Ask:
    return _present(f"the message has no header {name!r}", lambda subject: subject.headers.get(name))


def _json_at(path: tuple[str | int, ...]) -> Ask:
    shown = "json" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    missing = Missing(f"the payload has no {shown}")

    def found(subject: Subject) -> Value:
        value = subject.json()
        if isinstance(value, Missing):
            return value
        for step in path:
            if isinstance(step, int):
                value = value[step] if isinstance(value, list) and step < len(value) else None
            else:
                value = value.get(step) if isinstance(value, dict) else None
        return missing if value is None else value

    return found


def _first_of(asks: list[Ask]) -> Ask:
    def first(subject: Subject) -> Value:
        value: Value = None
        for ask in asks:
            value = ask(subject)
            if not isinstance(value, Missing):
                break
        return value

    return first


def _in_seconds(ask: Ask) -> Ask:
    def found(subject: Subject) -> Value:
        value = ask(subject)
        return value if isinstance(value, Missing) else round(_number(value, "seconds(…)") * 1000)

    return found


# Adding


def _combined(left: Ask, right: Ask, how: Callable[[Value, Value], Value]) -> Ask:
    def found(subject: Subject) -> Value:
        one, other = left(subject), right(subject)
        if isinstance(one, Missing):
            return one
        return other if isinstance(other, Missing) else how(one, other)

    return found


def _plus(left: Value, right: Value) -> Value:
    if isinstance(left, Moment):
        return Moment(left.ms + _span(right).ms)
    if isinstance(right, Moment):
        return Moment(_span(left).ms + right.ms)
    if isinstance(left, Span):
        return Span(left.ms + right.ms) if isinstance(right, Span) else Moment(left.ms + _moment(right, "+").ms)
    if isinstance(right, Span):
        return Moment(_moment(left, "+").ms + right.ms)
    return _number(left, "+") + _number(right, "+")


def _minus(left: Value, right: Value) -> Value:
    if isinstance(right, Moment):
        return Span(_moment(left, "-").ms - right.ms)
    if isinstance(left, Moment):
        return Moment(left.ms - _span(right).ms)
    if isinstance(left, Span):
        return Span(left.ms - _span(right).ms)
    if isinstance(right, Span):
        return Moment(_moment(left, "-").ms - right.ms)
    return _number(left, "-") - _number(right, "-")


# What a value is taken for


def _moment(value: Value, what: str) -> Moment:
    if isinstance(value, Moment):
        return value
    if isinstance(value, str) and not _SIGNED.fullmatch(value):
        return Moment(_iso_ms(value, what))
    if isinstance(value, Span):
        raise InvalidArgument(f"{what}: {value.ms} ms is a span and no moment. Add it to one, as in published + 30s.")
    number = _number(value, what, "a moment: an ISO 8601 time with its zone, or milliseconds since 1970")
    if number < _MOMENT_MS_MIN:
        raise InvalidArgument(
            f"{what}: {_shown(value)} milliseconds since 1970 is long ago. If those are seconds, write seconds(…); a "
            "wait is written with its unit, as in 30s."
        )
    return Moment(int(number))


def _iso_ms(text: str, what: str) -> int:
    try:
        return moment_ms(datetime.fromisoformat(text), what)
    except (ValueError, OverflowError) as error:
        zone = " with its zone, as in 2027-01-31T12:00:00Z"
        raise InvalidArgument(f"{what}: {_shown(text)} is no ISO 8601 time{zone}.") from error


def _span(value: Value) -> Span:
    if isinstance(value, Span):
        return value
    if isinstance(value, Moment):
        raise InvalidArgument("Two moments cannot be added. Add a span, as in published + 30s.")
    if isinstance(value, str) and len(value) <= 64 and _SPAN.fullmatch(value):
        return _span_of(value)
    return Span(round(_number(value, "a span", "a span: 90s, 1h30m, or milliseconds")))


def _number(value: Value, what: str, wanted: str = "a number") -> int | float:
    if isinstance(value, str) and len(value) <= 30 and _SIGNED.fullmatch(value):
        value = _number_of(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise InvalidArgument(f"{what}: {_shown(value)} is not {wanted}.")
    if abs(value) > _NUMBER_MAX:
        raise LimitExceeded(f"{what}: {_shown(value)} is too large.")
    return value


def _shown(value: Value) -> str:
    """A value in a reason: what it looks like, and not all of it."""
    if isinstance(value, (Moment, Span)):
        return f"a {'moment' if isinstance(value, Moment) else 'span'} of {value.ms} ms"
    if value is None:
        return "none"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and abs(value) > _NUMBER_MAX:
        return "a huge number"
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}…"
