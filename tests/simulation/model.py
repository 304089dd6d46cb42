"""What Duly must do, in plain Python: where every message of a topic is for every group.

The model predicts nothing that Duly may choose (which partition first, how much of what is due): it
takes the choice and says whether it was legal. Times are milliseconds, as on the manual clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import duly

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as it was published."""

    place: Place
    id: str
    payload: bytes
    key: str | None
    headers: dict[str, str]
    published_at: int
    expires_at: int | None

    def past_expiry(self, now: int) -> bool:
        return self.expires_at is not None and self.expires_at <= now


@dataclass(slots=True, eq=False)
class Lease:
    """Messages that were handed out together under one token."""

    due_at: int
    consumer: str
    attempt: int
    alone: bool
    places: set[Place] = field(default_factory=set)
    # How many were left when it was first taken over, or may have been.
    size: int | None = None
    # A claim may have taken it over without handing any of it out.
    doubtful: bool = False


@dataclass(slots=True)
class Pending:
    """A message that was claimed and is not settled: leased, or waiting for its next attempt."""

    attempts: int
    lease: Lease | None = None
    # It waits until somewhere between these two (jitter), once it is not leased.
    due_low: int = 0
    due_high: int = 0
    # The lease that expired over it, until somebody gives it back in good health.
    suspect: Lease | None = None

    def expired(self, now: int) -> bool:
        return self.lease is not None and self.lease.due_at <= now


@dataclass(slots=True, repr=False)
class Held:
    """A delivery in a consumer's hands, valid or not."""

    delivery: duly.Delivery
    place: Place
    lease: Lease
    settled: bool = False

    def __repr__(self) -> str:
        return f"{self.place}#{self.delivery.attempt}"


@dataclass(slots=True, eq=False, repr=False)
class HeldBatch:
    """A batch in a consumer's hands."""

    batch: duly.Batch
    topic: Topic
    group: Group
    held: list[Held]
    lease_ms: int

    def __repr__(self) -> str:
        return f"<{self.topic.name}/{self.group.name} {self.held}>"


@dataclass(slots=True, eq=False)
class Group:
    """Where each message is for one group."""

    name: str
    lease_ms: int
    retry: duly.RetryPolicy
    dead_letters: bool
    cursors: dict[int, int]
    paused: bool = False
    pending: dict[Place, Pending] = field(default_factory=dict)
    dead: dict[Place, int] = field(default_factory=dict)
    # How a message ended: acked, expired, dropped, skipped or purged. Dead letters are in `dead`.
    fate: dict[Place, str] = field(default_factory=dict)

    def end(self, places: Iterable[Place], fate: str) -> None:
        for place in list(places):
            pending = self.pending.pop(place, None)
            if pending is not None and pending.lease is not None:
                pending.lease.places.discard(place)
            self.fate[place] = fate

    def bury(self, place: Place) -> None:
        attempts = self.pending[place].attempts
        self.end([place], "dropped")
        if self.dead_letters:
            del self.fate[place]
            self.dead[place] = attempts

    def wait(self, place: Place, attempts: int, low: int, high: int, suspect: Lease | None = None) -> None:
        """Puts a message among those that wait; whatever lease it had is gone."""
        before = self.pending.get(place)
        if before is not None and before.lease is not None:
            before.lease.places.discard(place)
        self.fate.pop(place, None)
        self.pending[place] = Pending(attempts, None, low, high, suspect)

    def backoff_ms(self, attempts: int) -> tuple[int, int]:
        """The shortest and the longest wait that the policy allows after so many attempts."""
        base, cap = round(float(str(self.retry.base)) * 1000), round(float(str(self.retry.cap)) * 1000)
        steps = {"exponential": 2 ** (attempts - 1), "linear": attempts, "fixed": 1}[self.retry.shape]
        longest = min(cap, base * steps)
        return (0 if self.retry.jitter == "full" else longest), longest

    def buried_by_expiry(self, place: Place, now: int) -> bool:
        """Whether its next claim buries it: it failed alone, and that was the last attempt."""
        pending = self.pending[place]
        lease = pending.lease
        return (
            pending.expired(now) and lease is not None and lease.alone and pending.attempts >= self.retry.max_attempts
        )

    def leased(self, now: int, consumer: str | None = None) -> int:
        return sum(
            1
            for pending in self.pending.values()
            if pending.lease is not None and pending.lease.due_at > now and consumer in (None, pending.lease.consumer)
        )


@dataclass(slots=True, eq=False)
class Topic:
    """A log, its messages and its groups."""

    name: str
    ttl_ms: int | None
    logs: list[list[Sent]]
    paused: bool = False
    firsts: list[int] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    publish_ids: dict[str, tuple[int, list[Place]]] = field(default_factory=dict)

    @classmethod
    def new(cls, name: str, partitions: int, ttl_ms: int | None) -> Topic:
        return cls(name, ttl_ms, [[] for _ in range(partitions)], firsts=[0] * partitions)

    def sent(self, place: Place) -> Sent:
        return self.logs[place[0]][place[1]]

    def ends(self) -> list[int]:
        return [len(log) for log in self.logs]

    def gone(self, place: Place, now: int) -> bool:
        return self.sent(place).past_expiry(now)

    def stored(self, messages: list[duly.Message], receipt: duly.Receipt, now: int) -> None:
        """Takes a published batch in, where the receipt says that it went."""
        assert not receipt.duplicate
        assert receipt.count == len(messages)
        for message, place, given in zip(messages, receipt.positions, receipt.ids, strict=True):
            partition, offset = place
            assert offset == len(self.logs[partition]), "offsets are sequential"
            assert message.partition in (None, partition)
            assert message.id in (None, given)
            self.logs[partition].append(self._sent(message, place, given, now))

    def _sent(self, message: duly.Message, place: Place, given: str, now: int) -> Sent:
        expires_at = None if self.ttl_ms is None else now + self.ttl_ms
        if message.ttl is not None:
            expires_at = now + round(float(str(message.ttl)) * 1000)
        return Sent(place, given, message.payload, message.key, dict(message.headers or {}), now, expires_at)

    def offset_at(self, partition: int, moment: int) -> int:
        """The first offset published at or after a moment."""
        log = self.logs[partition]
        for offset in range(self.firsts[partition], len(log)):
            if log[offset].published_at >= moment:
                return offset
        return len(log)

    def new_group(self, group: Group) -> None:
        for partition, cursor in group.cursors.items():
            group.end([(partition, offset) for offset in range(cursor)], "skipped")
        self.groups[group.name] = group

    def moved(self, group: Group, offsets: dict[int, int]) -> None:
        """A seek: what the group had open in these partitions is gone, and everything from there on is new again."""
        for partition, offset in offsets.items():
            for place in [place for place in group.pending if place[0] == partition]:
                group.end([place], "skipped")
            before = range(group.cursors[partition], offset)
            group.end([(partition, at) for at in before], "skipped")
            for place in [place for place in group.fate if place[0] == partition and place[1] >= offset]:
                del group.fate[place]
            group.cursors[partition] = offset

    def purged(self, group: Group) -> None:
        """Everything that the group had not settled is gone."""
        group.end(group.pending, "purged")
        for partition, end in enumerate(self.ends()):
            group.end([(partition, at) for at in range(group.cursors[partition], end)], "purged")
            group.cursors[partition] = end

    def lag(self, group: Group) -> int:
        return sum(end - group.cursors[partition] for partition, end in enumerate(self.ends()))

    def retrying(self, group: Group, now: int) -> tuple[int, int]:
        """At least and at most so many wait: the doomed may have been dropped by a claim, or not yet."""
        waiting = [p for p, pending in group.pending.items() if pending.lease is None or pending.expired(now)]
        sure = [p for p in waiting if not self.gone(p, now)]
        if not group.dead_letters:
            sure = [p for p in sure if not group.buried_by_expiry(p, now)]
        return len(sure), len(waiting)

    def claimable(self, group: Group, now: int) -> bool:
        """Whether a claim has to find something."""
        if self.paused or group.paused:
            return False
        for partition, end in enumerate(self.ends()):
            if any(not self.gone((partition, at), now) for at in range(group.cursors[partition], end)):
                return True
        return any(self._due(group, place, now) for place in group.pending)

    def _due(self, group: Group, place: Place, now: int) -> bool:
        pending = group.pending[place]
        if self.gone(place, now) or group.buried_by_expiry(place, now):
            return False
        return pending.expired(now) if pending.lease is not None else pending.due_high <= now

    def unaccounted(self, group: Group) -> list[Place]:
        """Messages that are neither ended nor dead."""
        every = [(partition, at) for partition, log in enumerate(self.logs) for at in range(len(log))]
        return [place for place in every if place not in group.fate and place not in group.dead]
