"""Time. The only file that asks the machine what time it is.

Times inside Duly are whole milliseconds since 1970 (`_ms`, `_at`); the public Python API
takes seconds, `timedelta` and aware `datetime`, and the functions below translate.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from .errors import InvalidArgument

Duration = float | int | timedelta


class Clock(Protocol):
    """Tells the store's time and turns a moment into a wait."""

    def now_ms(self) -> int:
        """Milliseconds since 1970; never smaller than the last answer."""
        ...

    def wait_s(self, until_ms: int) -> float | None:
        """How long to wait until a moment; None means: until `on_change` calls."""
        ...

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls back whenever time has been moved by hand."""
        ...


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The store's time beside the host's.

    `state` is "together"; "behind" while the host's clock is behind the store's, whose time goes on by itself; or
    "refused" while the host's has leapt ahead and nobody has confirmed it (`accept_clock`).
    """

    now: datetime
    host: datetime
    state: str


@dataclass(frozen=True, slots=True)
class Sources:
    """What a host has to tell the time by: a wall clock that can be set, and a counter that cannot."""

    wall_ns: Callable[[], int]
    # Since the start of the machine, sleep included.
    boot_ns: Callable[[], int]
    # Differs from one start of the machine to the next.
    boot_id: Callable[[], str]


def _boot_ns() -> int:
    return time.clock_gettime_ns(_COUNTER)


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as drawn:
            return drawn.read().strip() + _time_namespace()
    except OSError:
        # Nothing tells one start from another here: every process has a boot of its own.
        return secrets.token_hex(8)


def _time_namespace() -> str:
    """A container may see the counter moved by so much: then it is another one."""
    try:
        with open("/proc/self/timens_offsets") as offsets:
            moved = [line.split()[1:] for line in offsets if line.startswith("boottime")]
    except OSError:
        return ""
    return "".join(f"+{seconds}.{ns}" for seconds, ns in moved if (seconds, ns) != ("0", "0"))


_COUNTER = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
HOST = Sources(time.time_ns, _boot_ns, _boot_id)


class SystemClock:
    """The host's clock, held so that it never runs backwards inside a process.

    A store that is given one keeps its own time by the same sources, and does not follow every leap.
    """

    def __init__(self, sources: Sources = HOST) -> None:
        self.sources = sources
        self._last_ms = 0

    def now_ms(self) -> int:
        now = self.sources.wall_ns() // 1_000_000
        if now > self._last_ms:
            self._last_ms = now
        return self._last_ms

    def wait_s(self, until_ms: int) -> float | None:
        # Half a millisecond more: waking a hair early would cost a second, useless look.
        return max(0.0, (until_ms - self.sources.wall_ns() // 1_000_000) / 1000 + 0.0005)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Nothing: the host's clock moves by itself."""


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._now_ms

    def wait_s(self, until_ms: int) -> float | None:
        return 0.0 if until_ms <= self._now_ms else None

    def on_change(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.append(listener)

    def advance(self, duration: Duration) -> None:
        """Moves time ahead and wakes whoever waits for it."""
        with self._lock:
            self._now_ms += milliseconds(duration, "duration")
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


def monotonic_s() -> float:
    """Seconds on a clock that only moves forward, for measuring timeouts."""
    return time.monotonic()


def milliseconds(duration: Duration, name: str) -> int:
    """A duration in seconds or as a timedelta, in whole milliseconds."""
    if isinstance(duration, timedelta):
        return round(duration.total_seconds() * 1000)
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise InvalidArgument(f"{name} must be seconds or a timedelta, not {type(duration).__name__}.")
    # A hundred thousand years: past any limit, and still exact as a float.
    if not -3.2e12 < duration < 3.2e12:
        raise InvalidArgument(f"{name} must be a finite number of seconds.")
    return round(duration * 1000)


def moment_ms(moment: datetime, name: str) -> int:
    """An aware datetime in milliseconds since 1970; naive ones are refused."""
    if not isinstance(moment, datetime):
        raise InvalidArgument(f"The moment {name} must be a datetime with a time zone, not {type(moment).__name__}.")
    if moment.utcoffset() is None:
        raise InvalidArgument(
            f"The moment {name} has no time zone, so it names none. "
            "Give one: datetime.now(timezone.utc), or moment.astimezone()."
        )
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def from_ms(moment: int) -> datetime:
    """Milliseconds since 1970 as an aware datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=moment)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
