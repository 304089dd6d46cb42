"""What a bridge asks of the other side, and that the other side is down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from .entry import Entry

if TYPE_CHECKING:
    from ..client.batch import Delivery


class Down(Exception):
    """The other side cannot do it now. Nothing is lost by waiting and asking again."""


class Taken(msgspec.Struct, frozen=True):
    """What was taken at once. `publish_id` is the same whenever the same is taken again; `mark` is the side's own."""

    entries: Sequence[Entry]
    publish_id: str
    mark: Any


class Source(Protocol):
    """Where a bridge takes from."""

    def take(self, most: int, wait_s: float) -> Taken | None:
        """What was taken before and never done with, whole; else up to `most` that are new. None: nothing came.

        Raises Down, and InvalidArgument for what a person has to put right.
        """
        ...

    def done(self, taken: Taken) -> None:
        """It is in Duly. Raises Down: then it will be taken again."""
        ...

    def close(self) -> None:
        """Lets go of the connection."""
        ...


class Sink(Protocol):
    """Where a bridge puts to."""

    def put(self, deliveries: Sequence[Delivery]) -> dict[int, str]:
        """Stores them in their order, and returns when that is acknowledged. By index, what can never be stored, and
        why. Raises Down: some may be stored, and will be put again.
        """
        ...

    def close(self) -> None:
        """Lets go of the connection."""
        ...
