"""Topics and groups: their settings, checked once, here, for both kinds and every surface.

Durations are seconds in these public values; `…_ms` properties give what the engine counts in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .backoff import RetryPolicy
from .clock import Duration, milliseconds
from .errors import InvalidArgument, LimitExceeded
from .limits import LIMITS
from .tenant import check_name

KINDS = ("log", "queue")
WEEK_S = 7 * 24 * 3600.0


def check_seconds(owner: object, name: str, *, low_ms: int, high_ms: int, optional: bool = True) -> None:
    """Normalises a duration field to float seconds, within bounds."""
    value = getattr(owner, name)
    if value is None:
        if optional:
            return
        raise InvalidArgument(f"{name} must be a duration.")
    ms = milliseconds(value, name)
    if not low_ms <= ms <= high_ms:
        raise LimitExceeded(f"{name} must be {low_ms / 1000:g} to {high_ms / 1000:g} seconds; got {ms / 1000:g}.")
    object.__setattr__(owner, name, ms / 1000)


def check_whole(owner: object, name: str, *, low: int, high: int, optional: bool = True) -> None:
    value = getattr(owner, name)
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{name} must be a whole number; got {value!r}.")
    if not low <= value <= high:
        raise LimitExceeded(f"{name} must be {low} to {high}; got {value}.")


def _number(owner: object, name: str, *, low: float, high: float) -> None:
    value = getattr(owner, name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgument(f"{name} must be a number; got {value!r}.")
    if not low < value <= high:
        raise LimitExceeded(f"{name} must be more than {low:g} and at most {high:g}.")


def _flag(owner: object, name: str) -> None:
    if not isinstance(getattr(owner, name), bool):
        raise InvalidArgument(f"{name} must be True or False; got {getattr(owner, name)!r}.")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a topic keeps its messages.

    `age` and `bytes` bound the log; `settled=True` drops a block as soon as every group has
    settled it. Neither drops what a group still needs, unless `drop_unsettled=True`: a group
    that holds the log past its bounds raises an alert instead.
    """

    age: Duration | None = None
    bytes: int | None = None
    settled: bool = False
    drop_unsettled: bool = False

    def __post_init__(self) -> None:
        check_seconds(self, "age", low_ms=1, high_ms=100 * 366 * 86_400_000)
        check_whole(self, "bytes", low=1, high=2**62)
        _flag(self, "settled")
        _flag(self, "drop_unsettled")

    @property
    def age_ms(self) -> int | None:
        """`age` in milliseconds."""
        return None if self.age is None else milliseconds(self.age, "age")


@dataclass(frozen=True, slots=True)
class Breaker:
    """When deliveries stop because most of them fail, and how they come back.

    It opens when of at least `calls` outcomes in the last `window` a share of `failures` failed. Then one message at a
    time is tried, the next `probe` later, each time twice as long, up to `probe_max`; no attempts are used. Once one
    succeeds, the rate grows step by step to what it was.
    """

    failures: float = 0.5
    calls: int = 20
    window: Duration = 10.0
    probe: Duration = 1.0
    probe_max: Duration = 60.0

    def __post_init__(self) -> None:
        _number(self, "failures", low=0, high=1)
        check_whole(self, "calls", low=1, high=1_000_000, optional=False)
        for name in ("window", "probe", "probe_max"):
            check_seconds(self, name, low_ms=100, high_ms=86_400_000, optional=False)
        if self.probe_ms > self.probe_max_ms:
            raise InvalidArgument("breaker.probe must not be longer than breaker.probe_max.")

    @property
    def window_ms(self) -> int:
        """How far back outcomes count."""
        return milliseconds(self.window, "window")

    @property
    def probe_ms(self) -> int:
        """How long the first probe waits."""
        return milliseconds(self.probe, "probe")

    @property
    def probe_max_ms(self) -> int:
        """How long a probe waits at most."""
        return milliseconds(self.probe_max, "probe_max")


@dataclass(frozen=True, slots=True)
class Lanes:
    """How a queue's lanes share: weight by pattern, how many at once, how many a second, when one stops.

    Weights are shares of the time that messages take. Changed, they hold for what stands ready, too.
    """

    max_in_flight: int | None = None
    rate: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    breaker: Breaker | None = None

    def __post_init__(self) -> None:
        if self.breaker is not None:
            _instance(self, "breaker", Breaker)
        check_whole(self, "max_in_flight", low=1, high=1_000_000)
        _number(self, "rate", low=0, high=LIMITS.rate_per_s_max)
        if not isinstance(self.weights, Mapping):
            raise InvalidArgument("lanes.weights must be a mapping of lane pattern to weight.")
        for pattern, weight in self.weights.items():
            check_name(pattern, "lane pattern")
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight <= 1_000_000:
                raise InvalidArgument(f"The weight of lane {pattern!r} must be more than 0 and at most 1,000,000.")


@dataclass(frozen=True, slots=True)
class Health:
    """From where on a topic or group is in `warn` and in `alert`; each is a pair, or None for never.

    `consumers` counts downwards (fewer is worse), all others upwards. `oldest_age` is in seconds.
    """

    consumers: tuple[float, float] | None = None
    undelivered: tuple[float, float] | None = None
    oldest_age: tuple[float, float] | None = None
    retry_ratio: tuple[float, float] | None = None
    dead: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for entry in fields(self):
            pair = getattr(self, entry.name)
            if pair is None:
                continue
            try:
                warn, alert = (float(bound) for bound in pair)
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidArgument(f"health.{entry.name} must be a pair (warn, alert).") from error
            if not 0 <= warn < math.inf or not 0 <= alert < math.inf:
                raise InvalidArgument(f"health.{entry.name} must not be negative or infinite.")
            if (warn < alert) == (entry.name == "consumers") and warn != alert:
                raise InvalidArgument(f"health.{entry.name}: warn must be reached before alert.")
            object.__setattr__(self, entry.name, (warn, alert))


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Everything that can be set on a topic, with defaults that need no tuning."""

    kind: str
    partitions: int = 1
    lease: Duration = 30.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    dead_letters: bool = True
    ttl: Duration | None = None
    dedupe: Duration | None = None
    retention: Retention | None = None
    archive: bool = False
    rate: float | None = None
    payload_bytes_max: int = LIMITS.payload_bytes_default
    lanes: Lanes | None = None
    health: Health = field(default_factory=Health)
    max_in_flight: int | None = None
    breaker: Breaker | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidArgument(f"kind must be 'log' or 'queue'; got {self.kind!r}.")
        check_whole(self, "partitions", low=1, high=LIMITS.partitions_max, optional=False)
        check_seconds(self, "lease", low_ms=LIMITS.lease_ms_min, high_ms=LIMITS.lease_ms_max, optional=False)
        check_seconds(self, "ttl", low_ms=1, high_ms=LIMITS.ttl_ms_max)
        check_seconds(self, "dedupe", low_ms=0, high_ms=LIMITS.dedupe_ms_max)
        check_whole(self, "payload_bytes_max", low=1, high=LIMITS.payload_bytes_max, optional=False)
        _number(self, "rate", low=0, high=LIMITS.rate_per_s_max)
        check_whole(self, "max_in_flight", low=1, high=1_000_000)
        _flag(self, "dead_letters")
        _flag(self, "archive")
        if self.retention is None:
            log = self.kind == "log"
            object.__setattr__(self, "retention", Retention(age=WEEK_S) if log else Retention(settled=True))
        if self.lanes is None and self.kind == "queue":
            object.__setattr__(self, "lanes", Lanes())
        for name, wanted in (("retry", RetryPolicy), ("retention", Retention), ("health", Health)):
            _instance(self, name, wanted)
        if self.lanes is not None:
            _instance(self, "lanes", Lanes)
        if self.breaker is not None:
            _instance(self, "breaker", Breaker)
        if self.kind == "log" and self.lanes is not None:
            raise InvalidArgument("Lanes belong to queues. On a log, order is per key: give messages a key.")
        if self.kind == "log" and self.dedupe is not None:
            raise InvalidArgument("dedupe belongs to queues. On a log, publish with a publish_id instead.")

    @property
    def lease_ms(self) -> int:
        """How long a claim holds its messages."""
        return milliseconds(self.lease, "lease")

    @property
    def ttl_ms(self) -> int | None:
        """The time to live of messages that set none."""
        return None if self.ttl is None else milliseconds(self.ttl, "ttl")

    @property
    def dedupe_ms(self) -> int:
        """For how long the id of a settled message may not be used again."""
        return 0 if self.dedupe is None else milliseconds(self.dedupe, "dedupe")

    @property
    def kept(self) -> Retention:
        """The retention in force."""
        assert self.retention is not None
        return self.retention

    def changed(self, changes: Mapping[str, Any]) -> TopicSettings:
        """These settings with some of them changed; the kind and the partitions stay."""
        known = {entry.name for entry in fields(self)}
        for name in changes:
            if name not in known:
                raise InvalidArgument(f"There is no setting {name!r}. Settings: {', '.join(sorted(known))}.")
        for name in ("kind", "partitions"):
            if name in changes and changes[name] != getattr(self, name):
                raise InvalidArgument(f"A topic's {name} cannot be changed. Create another topic.")
        return replace(self, **changes)


def _instance(owner: object, name: str, wanted: type) -> None:
    value = getattr(owner, name)
    if not isinstance(value, wanted):
        raise InvalidArgument(f"{name} must be a duly.{wanted.__name__}; got {type(value).__name__}.")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What a group may set for itself; None takes the topic's."""

    lease: Duration | None = None
    retry: RetryPolicy | None = None
    dead_letters: bool | None = None
    rate: float | None = None
    max_in_flight: int | None = None
    breaker: Breaker | None = None

    def __post_init__(self) -> None:
        check_seconds(self, "lease", low_ms=LIMITS.lease_ms_min, high_ms=LIMITS.lease_ms_max)
        _number(self, "rate", low=0, high=LIMITS.rate_per_s_max)
        check_whole(self, "max_in_flight", low=1, high=1_000_000)
        if self.retry is not None:
            _instance(self, "retry", RetryPolicy)
        if self.breaker is not None:
            _instance(self, "breaker", Breaker)
        if self.dead_letters is not None:
            _flag(self, "dead_letters")

    @property
    def lease_ms(self) -> int | None:
        """How long the group's claims hold their messages; None takes the topic's."""
        return None if self.lease is None else milliseconds(self.lease, "lease")

    def changed(self, changes: Mapping[str, Any]) -> GroupSettings:
        """These settings with some of them changed."""
        known = {entry.name for entry in fields(self)}
        for name in changes:
            if name not in known:
                raise InvalidArgument(f"There is no group setting {name!r}. Settings: {', '.join(sorted(known))}.")
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a topic as it stands. `id` is its own for ever: a topic made again has others.

    With archiving on, everything from `archive_from` on is kept until it is archived (`archived_to`).
    """

    partition: int
    id: int
    first_offset: int
    next_offset: int
    messages: int
    bytes: int
    blocks: int
    archived_to: int
    archive_from: int = 0


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as it stands. `incarnation` is the store's, and another one once it was restored."""

    incarnation: str
    tenant: str
    name: str
    kind: str
    settings: TopicSettings
    paused: bool
    version: int
    created_at_ms: int
    groups: tuple[str, ...]
    partitions: tuple[PartitionDescription, ...]

    @property
    def messages(self) -> int:
        """How many messages a log holds, or how many of a queue are unsettled."""
        return sum(part.messages for part in self.partitions)

    @property
    def bytes(self) -> int:
        """How many bytes they take in the log."""
        return sum(part.bytes for part in self.partitions)


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """A consumer of a group: what it holds and since when nothing was heard of it."""

    name: str
    idle_ms: int
    leases: int
    messages: int


@dataclass(frozen=True, slots=True)
class LaneBreaker:
    """A lane whose breaker is not closed: `open`, or at a rate in its `ramp`."""

    lane: str
    state: str
    rate: float | None


@dataclass(frozen=True, slots=True)
class GateDescription:
    """What holds a group back: the rate that holds now (a breaker's ramp counted in), and its breaker.

    `lanes` are the first of those whose own breakers are not closed.
    """

    rate: float | None
    max_in_flight: int | None
    in_flight: int
    breaker: str
    probe_at_ms: int | None
    lanes: tuple[LaneBreaker, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as it stands. `lag` counts what was never claimed, `leased` and `retrying` the rest.

    `gate` is there where something limits the group's deliveries.
    """

    topic: str
    name: str
    settings: GroupSettings
    paused: bool
    cursors: Mapping[int, int]
    first_offsets: Mapping[int, int]
    next_offsets: Mapping[int, int]
    lag: int
    leased: int
    retrying: int
    dead: int
    consumers: tuple[ConsumerDescription, ...]
    gate: GateDescription | None = None

    @property
    def pending(self) -> int:
        """Claimed once but not settled: under a lease, or waiting for the next attempt."""
        return self.leased + self.retrying
