"""Meters: what tenants may do a second, and how many calls they may have open, at this broker.

A rate is one bucket of tokens a tenant, which fills as the rate says and holds those of a second. Whoever finds any may
take more than there are, and what is taken too much is owed: a batch that is larger than a second's worth passes, and
the next waits for it. So over any time it comes to the rate and a second's worth more.

Brokers do not ask each other. Each lets its share through, the quota divided by the brokers that take work; clients
spread over them, and where they do not, the tenant gets less than its quota, never more. Quotas and brokers are read
again with every beat (membership.py): a change is heeded within seconds, and no request asks the store for it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..clock import monotonic_s
from ..errors import QuotaExceeded
from ..store.contract import TenantRow
from ..tenant import TenantSettings

_CONNECTION_AGAIN_MS = 1000


class Bucket:
    """Tokens of one rate; None: as many as anybody wants."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._tokens = 0.0
        self._at = 0.0

    def set(self, rate: float | None) -> None:
        """Another rate; what is owed stays owed."""
        if rate is not None and self._rate is None:
            self._tokens, self._at = rate, monotonic_s()
        self._rate = rate

    def wait_ms(self) -> int:
        """For how long there are none; 0: there are some."""
        if self._rate is None:
            return 0
        now = monotonic_s()
        # Of less than one a second it holds one.
        most = max(1.0, self._rate)
        self._tokens = min(most, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return 0 if self._tokens > 0 else max(1, math.ceil(-self._tokens / self._rate * 1000))

    def take(self, count: int) -> None:
        """Takes some, be they there or owed."""
        if self._rate is not None:
            self._tokens -= count


class Meter:
    """One tenant's."""

    def __init__(self) -> None:
        self.publishes = Bucket()
        self.bytes = Bucket()
        self.claims = Bucket()
        self.connections_max: float | None = None
        self.connections = 0

    def set(self, settings: TenantSettings, share: float) -> None:
        """The quotas, of which this broker has a share."""
        self.publishes.set(_part(settings.publish_per_s, share))
        self.bytes.set(_part(settings.publish_bytes_per_s, share))
        self.claims.set(_part(settings.claim_per_s, share))
        most = _part(settings.connections, share)
        self.connections_max = None if most is None else max(1, math.floor(most))


def _part(quota: int | None, share: float) -> float | None:
    return None if quota is None else quota * share


class Meters:
    """Those of all tenants that have quotas. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._meters: dict[str, Meter] = {}

    def heed(self, tenants: Sequence[TenantRow], brokers: int) -> None:
        """The tenants on which something is set, and how many brokers share the work."""
        limited = {row.name: row.settings for row in tenants if row.settings.limits_brokers}
        with self._lock:
            for name in self._meters.keys() - limited.keys():
                self._meters[name].set(TenantSettings(), 1.0)
                if not self._meters[name].connections:
                    del self._meters[name]
            for name, settings in limited.items():
                self._meters.setdefault(name, Meter()).set(settings, 1 / max(1, brokers))

    def publish(self, tenant: str, messages: int, size: int) -> None:
        """A batch comes. Raises QuotaExceeded; then it counts for nothing."""
        if tenant not in self._meters:
            return
        with self._lock:
            meter = self._meters.get(tenant) or Meter()
            _check(meter.publishes, "messages published a second")
            _check(meter.bytes, "bytes published a second")
            meter.publishes.take(messages)
            meter.bytes.take(size)

    def check_claim(self, tenant: str) -> None:
        """A claim comes. Raises QuotaExceeded."""
        if tenant not in self._meters:
            return
        with self._lock:
            _check((self._meters.get(tenant) or Meter()).claims, "messages claimed a second")

    def claimed(self, tenant: str, messages: int) -> None:
        """A claim went, with so many messages; one that got nothing counts for one, as it was work all the same."""
        if tenant not in self._meters:
            return
        with self._lock:
            (self._meters.get(tenant) or Meter()).claims.take(max(1, messages))

    @contextmanager
    def connected(self, tenant: str) -> Iterator[None]:
        """Around a call of a tenant's. Raises QuotaExceeded when it has as many open as it may."""
        meter = self.connect(tenant)
        try:
            yield
        finally:
            self.disconnect(meter)

    def connect(self, tenant: str) -> Meter | None:
        """One call more that is open; to be given to `disconnect`. Raises QuotaExceeded."""
        if tenant not in self._meters:
            return None
        with self._lock:
            meter = self._meters.get(tenant)
            if meter is None:
                return None
            if meter.connections_max is not None and meter.connections >= meter.connections_max:
                raise QuotaExceeded(
                    f"The tenant has as many calls open here as it may: {meter.connections}. Close some, or have the "
                    "quota raised.",
                    retry_after_ms=_CONNECTION_AGAIN_MS,
                )
            meter.connections += 1
            return meter

    def disconnect(self, meter: Meter | None) -> None:
        """One of them ended."""
        if meter is not None:
            with self._lock:
                meter.connections -= 1


def _check(bucket: Bucket, what: str) -> None:
    wait_ms = bucket.wait_ms()
    if wait_ms:
        raise QuotaExceeded(
            f"The tenant's quota of {what} is used up for {wait_ms / 1000:g} s. Wait, or have it raised.",
            retry_after_ms=wait_ms,
        )
