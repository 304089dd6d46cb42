"""Operations: what comes of one cause, through however many messages and handlers, has one name.

    a message that carries none ──handled──▶ what is published meanwhile carries a name made of that message's place
    a message that carries one  ──handled──▶ the same, so that all that follows from the first does

The name travels as a header of the message (message.py, OPERATION). Whoever runs a handler says which it is
(workers/job.py), in a context variable: tasks and `asyncio.to_thread` inherit it by themselves, a thread that is
started by hand does where it runs in a copy of the context. Clients add it to what they publish; a header that a
message has already stays.

The place names the message and not one of its deliveries: whoever handles it again goes on with the same operation.
It says nothing of what is in the message, not even the id that it was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime

import msgspec

from .clock import from_ms
from .errors import InvalidArgument
from .limits import LIMITS
from .message import made_id

# What a made name keeps of a topic's: with the place it stays within a name's length.
_TOPIC_CHARS = 200

_current: ContextVar[str | None] = ContextVar("duly_operation", default=None)


class Operation(msgspec.Struct, frozen=True):
    """An operation as it stands: how many messages it has published, and how many it may publish at once.

    `stopped_at_ms`: since then it has been held to the rate; `held`: somebody has stopped it, and it publishes nothing
    before it is resumed. `left` is less than 0 where it owes.
    """

    id: str
    published: int
    left: int
    stopped_at_ms: int | None = None
    held: bool = False

    @property
    def stopped_at(self) -> datetime | None:
        """Since when it is stopped."""
        return None if self.stopped_at_ms is None else from_ms(self.stopped_at_ms)


def is_operation(text: object) -> bool:
    """Whether an operation may have that name."""
    return isinstance(text, str) and 1 <= len(text) <= LIMITS.name_chars_max and text.isprintable()


def check_operation(text: object) -> str:
    """The name of an operation. Raises InvalidArgument."""
    if not isinstance(text, str) or not is_operation(text):
        raise InvalidArgument(f"An operation is named by 1 to {LIMITS.name_chars_max} printable characters.")
    return text


def operation_at(topic: str, partition_id: int, offset: int) -> str:
    """The operation that begins with the message at that place."""
    return f"{topic[:_TOPIC_CHARS]}{made_id(partition_id, offset)}"


def current_operation() -> str | None:
    """The operation that what is published here belongs to; None: to none."""
    return _current.get()


@contextmanager
def operation(name: str | None) -> Iterator[None]:
    """What is published inside belongs to that operation; None: to none.

    `with duly.operation("nightly import"): …`. Handlers need not: theirs is that of the message they handle.
    """
    token = _current.set(None if name is None else check_operation(name))
    try:
        yield
    finally:
        _current.reset(token)
