"""Allowances: how much each tenant may hold of something of which there is only so much.

Threads, streams, bytes in memory, places to wait: where they are used up, everybody is refused; so nobody may use them
up. A tenant may hold as much as it leaves to all others together:

    one floods         it holds a half, a half is free
    two flood          a third each, a third is free
    n flood            1/(n+1) each, and as much is free for whoever comes

Whoever holds nothing is let in while anything is left at all, so the one that is refused is the one that floods; and
nothing is reserved for anybody, who may never come. The last one to be let in may go beyond. Not thread-safe: its owner
locks.
"""

from __future__ import annotations


class Allowance:
    """What each tenant holds of something."""

    __slots__ = ("_held_by", "held")

    def __init__(self) -> None:
        self._held_by: dict[str, int] = {}
        # By all of them.
        self.held = 0

    def allows(self, tenant: str, most: int) -> bool:
        """Whether a tenant may have more, of `most` that there are."""
        return self._held_by.get(tenant, 0) < most - self.held

    def of(self, tenant: str) -> int:
        """What one tenant holds."""
        return self._held_by.get(tenant, 0)

    def take(self, tenant: str, size: int = 1) -> None:
        """It holds more."""
        if size:
            self._held_by[tenant] = self._held_by.get(tenant, 0) + size
            self.held += size

    def give_back(self, tenant: str, size: int = 1) -> None:
        """It holds less. Of those that hold nothing nothing is kept."""
        left = self._held_by.get(tenant, 0) - size
        if left:
            self._held_by[tenant] = left
        else:
            self._held_by.pop(tenant, None)
        self.held -= size


class Backlog:
    """Commands that wait for a writer, which are in memory: so many of them, of so many bytes."""

    __slots__ = ("_bytes", "_commands")

    def __init__(self) -> None:
        self._commands = Allowance()
        self._bytes = Allowance()

    @property
    def count(self) -> int:
        """How many wait."""
        return self._commands.held

    def allows(self, tenant: str, commands_max: int, bytes_max: int) -> bool:
        """Whether one more of a tenant's may wait."""
        return self._commands.allows(tenant, commands_max) and self._bytes.allows(tenant, bytes_max)

    def come(self, tenant: str, size: int) -> None:
        """One more waits."""
        self._commands.take(tenant)
        self._bytes.take(tenant, size)

    def go(self, tenant: str, size: int) -> None:
        """One does not wait any longer."""
        self._commands.give_back(tenant)
        self._bytes.give_back(tenant, size)
