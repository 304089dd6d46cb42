"""Pages of messages with their payloads, of a bounded size whatever their limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..client.client import Client
from ..limits import LIMITS
from ..message import DeadLetter, QueuedMessage

T = TypeVar("T", QueuedMessage, DeadLetter)
_Place = tuple[int, int]


def within_bytes(
    client: Client,
    topic: str,
    page: Callable[[_Place, int], list[T]],
    place: Callable[[T], _Place],
    after: _Place,
    limit: int,
) -> tuple[list[T], bool]:
    """Up to `limit` messages, fewer when they are big; and whether there may be more.

    They are looked up in steps whose biggest size is known, because a store's page has no bound in bytes.
    """
    biggest = client.describe_topic(topic).settings.payload_bytes_max
    step = max(1, LIMITS.http_bytes_max // biggest)
    found: list[T] = []
    size = 0
    while len(found) < limit and size < LIMITS.http_bytes_default:
        wanted = min(step, limit - len(found))
        some = page(after, wanted)
        found += some
        size += sum(len(message.payload or b"") for message in some)
        if len(some) < wanted:
            return found, False
        after = place(some[-1])
    return found, True
