"""Predicates of a query that become offsets, partitions, topics and keys to read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from ..client.client import Client
from .planning import Span

_NEVER_NULL = ("tenant", "topic", "partition", "offset", "id", "published_at")
_END = 2**62
_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The year 9000, when nothing has been published yet.
_LAST_MS = 221_845_392_000_000


class Range(msgspec.Struct):
    """Whole numbers [low, high)."""

    low: int = 0
    high: int = _END

    def narrow(self, one: Filter, value: int) -> None:
        """Keeps what compares so with a value."""
        if isinstance(one, (GreaterThan, GreaterThanOrEqual, EqualTo, EqualNullSafe)):
            self.low = max(self.low, value + isinstance(one, GreaterThan))
        if isinstance(one, (LessThan, LessThanOrEqual, EqualTo, EqualNullSafe)):
            self.high = min(self.high, value + (not isinstance(one, LessThan)))

    def holds(self, value: int) -> bool:
        """Whether a number is in it."""
        return self.low <= value < self.high


class Wanted:
    """What a query wants, as far as it is known before reading."""

    def __init__(self) -> None:
        self._numbers = {"offset": Range(), "partition": Range()}
        self._times = Range(-_END, _END)
        self._topics: frozenset[str] | None = None
        self._keys: frozenset[str] | None = None

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The keys that are wanted; None: all, and those without."""
        return None if self._keys is None else tuple(sorted(self._keys))

    def takes(self, one: Filter) -> bool:
        """Takes a predicate into account. True if it need not be looked at again."""
        if isinstance(one, IsNotNull):
            return one.attribute[0] in _NEVER_NULL
        if isinstance(one, In):
            return self._takes_some(one.attribute, list(one.value))
        compares = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
        return isinstance(one, compares) and self._takes_comparison(one, one.attribute, one.value)

    def _takes_comparison(self, one: Filter, column: tuple[str, ...], value: Any) -> bool:
        if column in (("offset",), ("partition",)) and type(value) is int:
            self._numbers[column[0]].narrow(one, value)
            return True
        if column == ("published_at",) and isinstance(value, datetime):
            self._narrow_time(one, value)
            return False
        return isinstance(one, (EqualTo, EqualNullSafe)) and self._takes_some(column, [value])

    def _takes_some(self, column: tuple[str, ...], values: list[Any]) -> bool:
        """A column that has one of some values. Null is none of them, and is left to Spark."""
        if column in (("offset",), ("partition",)) and values and all(type(value) is int for value in values):
            numbers = self._numbers[column[0]]
            numbers.low, numbers.high = max(numbers.low, min(values)), min(numbers.high, max(values) + 1)
            return len(values) == 1
        if not all(isinstance(value, str) for value in values):
            return False
        if column == ("key",):
            self._keys = frozenset(values) if self._keys is None else self._keys & frozenset(values)
            return True
        if column == ("topic",):
            self._topics = frozenset(values) if self._topics is None else self._topics & frozenset(values)
            return True
        return False

    def _narrow_time(self, one: Filter, moment: datetime) -> None:
        """Messages know their time in milliseconds; a bound between two of them is taken for the wider one."""
        whole, more = divmod((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH, _MS)
        self._times.narrow(one, whole + (bool(more) and isinstance(one, LessThan)))

    def of(self, q: Client, span: Span) -> Iterator[Span]:
        """What is wanted of a span."""
        if self._topics is not None and span.topic not in self._topics:
            return
        if not self._numbers["partition"].holds(span.partition):
            return
        offsets = self._numbers["offset"]
        low, high = max(span.offset, offsets.low), min(span.end, offsets.high)
        # Of a queue's log some was copied out, of any age.
        if self._times.low > -_END and not span.queue:
            low = max(low, _offset_at(q, span, self._times.low))
        if self._times.high < _END:
            high = min(high, _offset_at(q, span, self._times.high))
        if low < high:
            yield msgspec.structs.replace(span, offset=low, end=high)


def _offset_at(q: Client, span: Span, at_ms: int) -> int:
    if at_ms <= 0:
        return 0
    return _END if at_ms >= _LAST_MS else q.offset_at(span.topic, _EPOCH + at_ms * _MS)[span.partition]
