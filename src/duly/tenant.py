"""Tenants own topics: their names, what may be set on them, and how each stands.

    (made) ──▶ active ◀──resume── suspended
                  └──suspend──────▶ │        nothing is published, delivered or read; what is leased may be settled
                  └──delete──▶ deleting ◀──┘ its topics are erased by chores; then there is nothing left of it

A client names its tenant where nobody has a key; with keys in use the key says whose it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from .errors import InvalidArgument, LimitExceeded
from .limits import LIMITS

DEFAULT_TENANT = "default"
# The store's own, whose principals are its operators. It has no name and no topics.
OPERATORS = 0
ACTIVE, SUSPENDED, DELETING = range(3)
STATES = ("active", "suspended", "deleting")

_QUOTA_MAX = 2**53 - 1
WEIGHT_MIN, WEIGHT_MAX = 0.001, 1000


def check_name(name: object, what: str, chars_max: int = LIMITS.name_chars_max) -> str:
    """A name of 1 to `chars_max` printable characters; anything else is refused."""
    if not isinstance(name, str):
        raise InvalidArgument(f"A {what} must be a str, not {type(name).__name__}.")
    if not 1 <= len(name) <= chars_max:
        raise InvalidArgument(f"A {what} has 1 to {chars_max} characters; this one has {len(name)}.")
    if not name.isprintable():
        raise InvalidArgument(f"A {what} has printable characters only; got {name!r}.")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"A {what} must be valid Unicode; got {name!r}.") from error
    return name


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """What may be set on a tenant: quotas, each a whole number or None for as much as there is, encryption, a weight.

    `stored_bytes` is what its messages take and `topics` how many it has. `publish_per_s`, `publish_bytes_per_s`
    and `claim_per_s` are messages and bytes of payload a second through all brokers together, `connections` the calls
    that it has open at them. `encrypt`: what is stored from then on is encrypted. `weight`: its share where tenants
    compete, beside the 1 of the others.
    """

    stored_bytes: int | None = None
    publish_per_s: int | None = None
    publish_bytes_per_s: int | None = None
    claim_per_s: int | None = None
    topics: int | None = None
    connections: int | None = None
    encrypt: bool = False
    weight: float = 1

    def __post_init__(self) -> None:
        for name in QUOTAS:
            _check_quota(getattr(self, name), name)
        if not isinstance(self.encrypt, bool):
            raise InvalidArgument(f"encrypt must be True or False; got {self.encrypt!r}.")
        _check_weight(self.weight)

    @property
    def limits_brokers(self) -> bool:
        """Whether brokers have something to count."""
        return any(getattr(self, name) is not None for name in BROKER_QUOTAS)

    def changed(self, changes: Mapping[str, Any]) -> TenantSettings:
        """These settings with some of them changed."""
        check_settings(changes)
        return replace(self, **changes)

    def given(self) -> dict[str, Any]:
        """What differs from the defaults, as it is stored."""
        unset = asdict(TenantSettings())
        return {name: value for name, value in asdict(self).items() if value != unset[name]}


QUOTAS = tuple(entry.name for entry in fields(TenantSettings) if entry.name not in ("encrypt", "weight"))
BROKER_QUOTAS = ("publish_per_s", "publish_bytes_per_s", "claim_per_s", "connections")


def _check_quota(value: object, name: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{name} must be a whole number, or None for no limit; got {value!r}.")
    if not 1 <= value <= _QUOTA_MAX:
        raise LimitExceeded(f"{name} must be 1 to {_QUOTA_MAX}; got {value}. To stop a tenant, suspend it.")


def _check_weight(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"weight must be a number; got {value!r}.")
    if not WEIGHT_MIN <= value <= WEIGHT_MAX:
        raise LimitExceeded(f"weight must be {WEIGHT_MIN} to {WEIGHT_MAX}; got {value}. To stop a tenant, suspend it.")


def check_settings(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuses what is no setting of tenants."""
    known = [entry.name for entry in fields(TenantSettings)]
    for name in given:
        if name not in known:
            raise InvalidArgument(f"There is no setting {name!r}. Settings: {', '.join(sorted(known))}.")
    return given


class Weights:
    """The shares of tenants where they compete, as far as a process knows them. Replaced as a whole: no lock."""

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}

    def of(self, tenant: str) -> float:
        """A tenant's; 1 where nothing else was set."""
        return self._weights.get(tenant, 1.0)

    def heed(self, settings: Mapping[str, TenantSettings]) -> None:
        """Those of the tenants on which something is set."""
        self._weights = {name: one.weight for name, one in settings.items() if one.weight != 1}


@dataclass(frozen=True, slots=True)
class TenantDescription:
    """A tenant as it stands. `state` is active, suspended or deleting; `stored_bytes` is what its messages take."""

    name: str
    state: str
    settings: TenantSettings
    version: int
    created_at_ms: int
    topics: int
    stored_bytes: int
