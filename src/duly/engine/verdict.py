"""What a consumer says of the messages that it claimed, and what it is told."""

from __future__ import annotations

import msgspec


class Token(msgspec.Struct, frozen=True):
    """Messages of one lease: these indexes, or all that are left of it."""

    lease_id: int
    indexes: tuple[int, ...] | None = None


class Settle(msgspec.Struct, frozen=True):
    """A verdict on claimed messages. `delay_ms`: for nack and release the wait, for extend the new lease.

    `reason` is a word on it, for the history: why it failed, or how a push was taken. `incarnation` is that of the
    store which gave the leases: another one's ids mean nothing here.
    """

    tenant: str
    incarnation: str
    topic: str
    group: str
    verdict: str
    tokens: tuple[Token, ...]
    delay_ms: int | None = None
    reason: str = ""


class Verdicts(msgspec.Struct):
    """How many were settled, and which were not because their lease is lost.

    `renewed` maps (lease, index) to its new (lease, index) where part of a lease was extended:
    that part has a lease of its own from then on.
    """

    done: int = 0
    lost: list[tuple[int, int | None]] = msgspec.field(default_factory=list)
    renewed: dict[tuple[int, int], tuple[int, int]] = msgspec.field(default_factory=dict)
    expires_at: int = 0
    # Extended, but cancelled meanwhile: ack them if the work is done, else let them go.
    cancelled: list[tuple[int, int]] = msgspec.field(default_factory=list)
