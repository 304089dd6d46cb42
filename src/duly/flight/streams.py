"""What is open and under way at this moment, and the bounds of it.

Where keys say whose a stream is, a tenant that has as many open as it leaves to the others is refused another one, and
so is the next big answer of one whose readers hold as much (engine/allowance.py): nobody else is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from ..engine.allowance import Allowance
from ..errors import Busy
from ..limits import LIMITS

# Answers below this are sent whatever is held: to refuse the receipt of a publish would be a lie.
BIG_BYTES = 1024 * 1024
# A request over this is rare; Arrow's allocator would keep its pages for the next one.
_HUGE_BYTES = 32 * 1024 * 1024


class Streams:
    """Counts the streams that are open, each of which has a thread, and the requests under way on them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0
        self._working = 0
        # Of them, those whose tenant is known; and bytes on their way.
        self._owned = Allowance()
        self._held = Allowance()

    @property
    def held_bytes(self) -> int:
        """What big answers hold that are on their way."""
        return self._held.held

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around a stream. Raises Busy when there are too many."""
        with self._changed:
            if self.count >= LIMITS.streams_max:
                raise Busy(f"{LIMITS.streams_max} streams are open already. Back off and try again.")
            self.count += 1
        try:
            yield
        finally:
            with self._changed:
                self.count -= 1

    @contextmanager
    def owned(self, tenant: str | None) -> Iterator[None]:
        """Around a stream of which it is known whose it is. Raises Busy when that one has too many."""
        if tenant is None:
            yield
            return
        with self._changed:
            if not self._owned.allows(tenant, LIMITS.streams_max):
                raise Busy(f"The tenant has {self._owned.of(tenant)} streams open already. Back off and try again.")
            self._owned.take(tenant)
        try:
            yield
        finally:
            with self._changed:
                self._owned.give_back(tenant)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Around a request and its answer."""
        with self._changed:
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                if not self._working:
                    self._changed.notify_all()

    @contextmanager
    def sending(self, size: int, tenant: str | None) -> Iterator[None]:
        """Around an answer of so many bytes, which its client may take as slowly as it likes. Whose it is, if known.

        Raises Busy, and nothing is sent, when big ones already hold too much together.
        """
        if size < BIG_BYTES:
            yield
            return
        with self._changed:
            held = self._held.held
            too_much = held and held + size > LIMITS.requests_bytes_max
            if too_much or (tenant is not None and not self._held.allows(tenant, LIMITS.requests_bytes_max)):
                raise Busy("Slow readers hold too much of the broker's memory already. Back off and try again.")
            self._held.take(tenant or "", size)
        try:
            yield
        finally:
            with self._changed:
                self._held.give_back(tenant or "", size)

    def finish(self, seconds: float) -> None:
        """Waits until nothing is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._working, timeout=seconds)


def size_of(chunk: Any) -> int:
    """The bytes that a message's record batch takes, whatever its offsets say."""
    return 0 if chunk.data is None else int(chunk.data.get_total_buffer_size())


def forget(size: int) -> None:
    """Gives the memory of a huge request back to the system."""
    if size >= _HUGE_BYTES:
        pa.default_memory_pool().release_unused()
