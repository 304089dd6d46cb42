"""Settings of topics and groups as they are written in JSON: durations in `_ms`, everything optional."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .. import topic as settings
from ..backoff import RetryPolicy
from ..limits import LIMITS
from .fields import Lease, Moment, Offsets, Rate, Ttl, Whole

_Backoff = Annotated[int, Meta(ge=0, le=LIMITS.backoff_ms_max)]
_BreakerSpan = Annotated[int, Meta(ge=100, le=86_400_000)]
InFlight = Annotated[int, Meta(ge=1, le=1_000_000)]
_Figure = Annotated[float, Meta(ge=0, le=1e15)]
_Pair = Annotated[
    tuple[_Figure, _Figure] | None, Meta(description="From where on it is in `warn` and in `alert`; null: never.")
]


class Retry(msgspec.Struct, forbid_unknown_fields=True):
    """How often and how late a failed message is tried again."""

    max_attempts: Annotated[int, Meta(ge=1, le=LIMITS.attempts_max)] = 8
    base_ms: _Backoff = 500
    cap_ms: _Backoff = 3_600_000
    shape: Literal["exponential", "linear", "fixed"] = "exponential"
    jitter: Literal["full", "none"] = "full"
    budget: Annotated[float, Meta(ge=0, le=100, description="Retries are at most this share of fresh deliveries.")] | (
        None
    ) = None

    def policy(self) -> RetryPolicy:
        base, cap = self.base_ms / 1000, self.cap_ms / 1000
        return RetryPolicy(self.max_attempts, base, cap, self.shape, self.jitter, self.budget)

    @classmethod
    def of(cls, policy: RetryPolicy) -> Retry:
        shape: Any = policy.shape
        jitter: Any = policy.jitter
        return cls(policy.max_attempts, _ms(policy.base), _ms(policy.cap), shape, jitter, policy.budget)


class Breaker(msgspec.Struct, forbid_unknown_fields=True):
    """When deliveries stop: of so many calls in a window this share failed. Then probes, each after twice the wait."""

    failures: Annotated[float, Meta(gt=0, le=1)] = 0.5
    calls: Annotated[int, Meta(ge=1, le=1_000_000)] = 20
    window_ms: _BreakerSpan = 10_000
    probe_ms: _BreakerSpan = 1_000
    probe_max_ms: _BreakerSpan = 60_000

    def value(self) -> settings.Breaker:
        window, probe, probe_max = self.window_ms / 1000, self.probe_ms / 1000, self.probe_max_ms / 1000
        return settings.Breaker(self.failures, self.calls, window, probe, probe_max)

    @classmethod
    def of(cls, known: settings.Breaker | None) -> Breaker | None:
        if known is None:
            return None
        return cls(known.failures, known.calls, known.window_ms, known.probe_ms, known.probe_max_ms)


class Retention(msgspec.Struct, forbid_unknown_fields=True):
    """How long a topic keeps its messages."""

    age_ms: Annotated[int, Meta(ge=1, le=100 * 366 * 86_400_000)] | None = None
    bytes: Annotated[int, Meta(ge=1, le=2**53 - 1)] | None = None
    settled: bool = False
    drop_unsettled: bool = False

    def value(self) -> settings.Retention:
        age = None if self.age_ms is None else self.age_ms / 1000
        return settings.Retention(age, self.bytes, self.settled, self.drop_unsettled)

    @classmethod
    def of(cls, kept: settings.Retention) -> Retention:
        return cls(kept.age_ms, kept.bytes, kept.settled, kept.drop_unsettled)


class Lanes(msgspec.Struct, forbid_unknown_fields=True):
    """How a queue's lanes share: how many at once, how many a second, weight by pattern."""

    max_in_flight: InFlight | None = None
    rate_per_s: Rate | None = None
    weights: dict[str, Annotated[float, Meta(gt=0, le=1_000_000)]] = {}
    breaker: Breaker | None = None

    def value(self) -> settings.Lanes:
        breaker = None if self.breaker is None else self.breaker.value()
        return settings.Lanes(self.max_in_flight, self.rate_per_s, self.weights, breaker)

    @classmethod
    def of(cls, lanes: settings.Lanes) -> Lanes:
        return cls(lanes.max_in_flight, lanes.rate, dict(lanes.weights), Breaker.of(lanes.breaker))


class Thresholds(msgspec.Struct, forbid_unknown_fields=True):
    """From where on a topic or group is in `warn` and in `alert`. `consumers` counts downwards, the others upwards."""

    consumers: _Pair = None
    undelivered: _Pair = None
    oldest_age_ms: _Pair = None
    retry_ratio: _Pair = None
    dead: _Pair = None

    def value(self) -> settings.Health:
        age = None if self.oldest_age_ms is None else (self.oldest_age_ms[0] / 1000, self.oldest_age_ms[1] / 1000)
        return settings.Health(self.consumers, self.undelivered, age, self.retry_ratio, self.dead)

    @classmethod
    def of(cls, health: settings.Health) -> Thresholds:
        age = None if health.oldest_age is None else (health.oldest_age[0] * 1000, health.oldest_age[1] * 1000)
        return cls(health.consumers, health.undelivered, age, health.retry_ratio, health.dead)


class TopicSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What can be set on a topic. What is left out takes its default, or stays as it is."""

    lease_ms: Lease | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    dead_letters: bool | UnsetType = UNSET
    ttl_ms: Ttl | UnsetType | None = UNSET
    dedupe_ms: Annotated[int, Meta(ge=0, le=LIMITS.dedupe_ms_max)] | UnsetType | None = UNSET
    retention: Retention | UnsetType | None = UNSET
    archive: bool | UnsetType = UNSET
    rate_per_s: Rate | UnsetType | None = UNSET
    payload_bytes_max: Annotated[int, Meta(ge=1, le=LIMITS.payload_bytes_max)] | UnsetType = UNSET
    lanes: Lanes | UnsetType | None = UNSET
    health: Thresholds | UnsetType = UNSET
    max_in_flight: InFlight | UnsetType | None = UNSET
    breaker: Breaker | UnsetType | None = UNSET

    def given(self) -> dict[str, Any]:
        """What was given, as the keyword arguments of the Python API."""
        return _given(self, _TOPIC)

    @classmethod
    def of(cls, known: settings.TopicSettings) -> TopicSettings:
        return cls(
            lease_ms=known.lease_ms,
            retry=Retry.of(known.retry),
            dead_letters=known.dead_letters,
            ttl_ms=known.ttl_ms,
            dedupe_ms=None if known.dedupe is None else known.dedupe_ms,
            retention=Retention.of(known.kept),
            archive=known.archive,
            rate_per_s=known.rate,
            payload_bytes_max=known.payload_bytes_max,
            lanes=None if known.lanes is None else Lanes.of(known.lanes),
            health=Thresholds.of(known.health),
            max_in_flight=known.max_in_flight,
            breaker=Breaker.of(known.breaker),
        )


class GroupSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a group may set for itself; null takes the topic's."""

    lease_ms: Lease | UnsetType | None = UNSET
    retry: Retry | UnsetType | None = UNSET
    dead_letters: bool | UnsetType | None = UNSET
    rate_per_s: Rate | UnsetType | None = UNSET
    max_in_flight: InFlight | UnsetType | None = UNSET
    breaker: Breaker | UnsetType | None = UNSET

    def given(self) -> dict[str, Any]:
        """What was given, as the keyword arguments of the Python API."""
        return _given(self, _GROUP)

    @classmethod
    def of(cls, known: settings.GroupSettings) -> GroupSettings:
        retry = None if known.retry is None else Retry.of(known.retry)
        return cls(
            lease_ms=known.lease_ms,
            retry=retry,
            dead_letters=known.dead_letters,
            rate_per_s=known.rate,
            max_in_flight=known.max_in_flight,
            breaker=Breaker.of(known.breaker),
        )


class Place(msgspec.Struct, forbid_unknown_fields=True):
    """A place in a log, by one of: a word, an offset in every partition, offsets by partition, a moment."""

    to: Literal["earliest", "latest"] | None = None
    offset: Whole | None = None
    offsets: Offsets | None = None
    at_ms: Moment | None = None


def _ms(seconds: Any) -> int:
    return round(float(seconds) * 1000)


def _as_is(value: Any) -> Any:
    return value


def _seconds(ms: int) -> float:
    return ms / 1000


def _value(given: Any) -> Any:
    return given.value()


def _policy(given: Retry) -> RetryPolicy:
    return given.policy()


# By the name in JSON: the name in Python, and how its value is turned.
_Turns = dict[str, tuple[str, Callable[[Any], Any]]]
_GROUP: _Turns = {
    "lease_ms": ("lease", _seconds),
    "retry": ("retry", _policy),
    "dead_letters": ("dead_letters", _as_is),
    "rate_per_s": ("rate", _as_is),
    "max_in_flight": ("max_in_flight", _as_is),
    "breaker": ("breaker", _value),
}
_TOPIC: _Turns = {
    **_GROUP,
    "ttl_ms": ("ttl", _seconds),
    "dedupe_ms": ("dedupe", _seconds),
    "retention": ("retention", _value),
    "archive": ("archive", _as_is),
    "payload_bytes_max": ("payload_bytes_max", _as_is),
    "lanes": ("lanes", _value),
    "health": ("health", _value),
}


def _given(wanted: Any, turns: _Turns) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (python_name, turn) in turns.items():
        value = getattr(wanted, name)
        if value is not UNSET:
            found[python_name] = None if value is None else turn(value)
    return found
