"""How a bridge copies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """How a bridge copies. `group` is the consumer group there, or the group of a log here."""

    name: str = "bridge"
    group: str | None = None
    batch: int = 1000
    field: str | None = None
    due: str | None = None
    priority: str | None = None
    lane: str | None = None
    lease_s: float = 600.0
    drain: bool = False
