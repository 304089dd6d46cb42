"""What the logs of tenants take that have a quota of it: known about, and never counted per publish.

    looked at ──▶ known: what was found, and what this process has added since ──some seconds──▶ old ──▶ looked at again

What other processes add, and what chores drop, is seen by the next look. A look reads an entry a block; it is taken
by the caretaker, beside everyone else, and more seldom where it takes longer: no more than a fiftieth of the time.
Only the first one in a process is waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from ...clock import monotonic_s

_OLD_S = 2.0
_SHARE = 50


class _Known(msgspec.Struct):
    """Of one tenant: bytes at the last look, less all that was added before it; when it was, and when it is old."""

    found: int
    old_at: float
    wanted: bool = False


class Look:
    """One look at a tenant, under way."""

    def __init__(self, stored: StoredBytes, tenant_id: int, added: int) -> None:
        self._stored = stored
        self._tenant_id = tenant_id
        self._added = added
        self._began = monotonic_s()

    def end(self, found: int) -> int:
        """Notes what was found; answers what is known now."""
        now = monotonic_s()
        return self._stored.note(self._tenant_id, found - self._added, now + max(_OLD_S, _SHARE * (now - self._began)))


class StoredBytes:
    """One store's, in one process. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        # All that was ever added here, by tenant: only differences count.
        self._added: dict[int, int] = {}
        self._lock = threading.Lock()

    def known(self, tenant_id: int) -> int | None:
        """About how many bytes there are; None: nobody has looked."""
        with self._lock:
            known = self._known.get(tenant_id)
            return None if known is None else known.found + self._added.get(tenant_id, 0)

    def is_old(self, tenant_id: int) -> bool:
        """Whether it should be looked at again, which is noted."""
        with self._lock:
            known = self._known[tenant_id]
            known.wanted = known.wanted or monotonic_s() >= known.old_at
            return known.wanted

    def add(self, added: dict[int, int]) -> None:
        """Notes what a transaction has added, now that it is committed."""
        with self._lock:
            for tenant_id, size in added.items():
                self._added[tenant_id] = self._added.get(tenant_id, 0) + size

    def begin(self, tenant_id: int) -> Look:
        """A look begins: what is added from here on is not in what it finds."""
        with self._lock:
            return Look(self, tenant_id, self._added.get(tenant_id, 0))

    def note(self, tenant_id: int, found: int, old_at: float) -> int:
        """What a look found, less what had been added before it."""
        with self._lock:
            self._known[tenant_id] = _Known(found, old_at)
            return found + self._added.get(tenant_id, 0)

    def look_again(self, read: Callable[[], AbstractContextManager[Any]]) -> None:
        """Looks at those that are wanted; `read` opens a transaction."""
        with self._lock:
            wanted = [tenant_id for tenant_id, known in self._known.items() if known.wanted]
        for tenant_id in wanted:
            look = self.begin(tenant_id)
            with read() as tx:
                found = tx.stored_bytes(tenant_id)
            look.end(found)
