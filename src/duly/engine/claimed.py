"""What a claim asks for and what it gets."""

from __future__ import annotations

import msgspec

from .block import Block
from .verdict import Settle, Token, Verdicts


class Acks(msgspec.Struct, frozen=True):
    """Messages of the same group that are done with; `incarnation` is that of the store which leased them."""

    incarnation: str
    tokens: tuple[Token, ...]


class Claim(msgspec.Struct, frozen=True):
    """A consumer's wish. `lease_ms` None takes the group's. `acks` are acked in the same transaction, before."""

    tenant: str
    topic: str
    group: str
    consumer: str
    max_messages: int
    max_bytes: int
    lease_ms: int | None = None
    acks: Acks | None = None

    @property
    def settle(self) -> Settle:
        """The acks that come with it, as the command of their own that they could be."""
        assert self.acks is not None
        return Settle(self.tenant, self.acks.incarnation, self.topic, self.group, "ack", self.acks.tokens)


class Slice(msgspec.Struct, frozen=True):
    """Messages [start, stop) of a block; `first_index` is the first one's index in its lease."""

    block: Block
    start: int
    stop: int
    first_index: int


class Parcel(msgspec.Struct, frozen=True):
    """Messages of one lease as handed to a consumer."""

    lease_id: int
    partition: int
    partition_id: int
    attempt: int
    count: int
    slices: tuple[Slice, ...]
    # By message, where they differ.
    attempts: tuple[int, ...] | None = None


class Claimed(msgspec.Struct):
    """What a claim got. Without parcels, `next_due` says when to look again by itself."""

    topic: str
    group: str
    incarnation: str
    lease_ms: int
    expires_at: int
    parcels: list[Parcel] = msgspec.field(default_factory=list)
    partitions: tuple[int, ...] = ()
    next_due: int | None = None
    # What became of the acks that came with the claim.
    settled: Verdicts | None = None

    @property
    def count(self) -> int:
        """How many messages were got."""
        return sum(parcel.count for parcel in self.parcels)
