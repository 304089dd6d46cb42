"""One handler: a function, the topic whose messages it gets, and how many at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..client.arguments import count, group_named, lease_ms, named
from ..client.batch import Delivery
from ..clock import Duration, milliseconds
from ..errors import InvalidArgument

CONCURRENCY_MAX = 10_000

Function = Callable[[Delivery], Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """What `workers.on` was told."""

    function: Function
    topic: str
    group: str | None
    concurrency: int
    lease: Duration | None
    time_limit_s: float | None
    is_async: bool

    @property
    def source(self) -> str:
        """The topic, and of a log the group, in a sentence."""
        return f"topic {self.topic!r}" if self.group is None else f"group {self.group!r} of topic {self.topic!r}"

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__qualname__", None) or type(self.function).__qualname__)


def make_handler(
    function: Function,
    topic: str,
    *,
    group: str | None,
    concurrency: int,
    lease: Duration | None,
    time_limit: Duration | None,
) -> Handler:
    """A handler whose settings are checked; what is wrong is said here and not when the first message comes."""
    named(topic)
    group_named(group)
    count(concurrency, "concurrency", CONCURRENCY_MAX)
    if lease is not None:
        lease_ms(lease)
    limit_s = None if time_limit is None else milliseconds(time_limit, "time_limit") / 1000
    if limit_s is not None and limit_s <= 0:
        raise InvalidArgument("time_limit must be more than 0 seconds; leave it out for none.")
    return Handler(function, topic, group, concurrency, lease, limit_s, _is_async(function))


def _is_async(function: Function) -> bool:
    if not callable(function):
        raise InvalidArgument(f"A handler is a function that takes a delivery, not {type(function).__name__}.")
    bodies = [function, getattr(function, "__call__", None)]  # noqa: B004 - the method itself, which may be async
    if any(inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body) for body in bodies):
        raise InvalidArgument("A handler must not yield: nothing would run it. Return instead.")
    return any(inspect.iscoroutinefunction(body) for body in bodies)
