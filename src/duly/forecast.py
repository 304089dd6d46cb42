"""Forecasts, as values: what comes to a group minute by minute, and the consumers that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .clock import from_ms


@dataclass(frozen=True, slots=True)
class ForecastMinute:
    """A minute ahead. `timed` messages stand on the timeline; `expected` are those that will be published, if it goes
    on as of late. `consumers` is how many it takes; None where nobody knows how fast one is.
    """

    at_ms: int
    timed: int
    expected: int
    consumers: int | None

    @property
    def at(self) -> datetime:
        """When it begins."""
        return from_ms(self.at_ms)

    @property
    def coming(self) -> int:
        """All that will be there to deliver, beside what is ready now."""
        return self.timed + self.expected


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is ahead of a group: of a log, or a queue's one.

    `ready`: due and with nobody; `leased`: with a consumer. `arrival_rate`: messages published a second of late.
    `service_rate`: messages a second that a busy consumer finishes, as `observed` on so many of them, or as it was
    given; None: nobody knows. `rate_max`: what the settings let through a second. `active` consumers were seen in the
    last three minutes. `notes` say in words what limits the forecast.
    """

    topic: str
    group: str
    at_ms: int
    paused: bool
    ready: int
    leased: int
    active: int
    arrival_rate: float
    service_rate: float | None
    observed: int
    rate_max: float | None
    minutes: tuple[ForecastMinute, ...]
    notes: tuple[str, ...]

    @property
    def at(self) -> datetime:
        """When it was made, by the store's clock."""
        return from_ms(self.at_ms)

    @property
    def backlog(self) -> int:
        """What is due and not settled."""
        return self.ready + self.leased

    @property
    def consumers(self) -> int | None:
        """How many are needed now: in the first minute."""
        return self.minutes[0].consumers

    @property
    def peak(self) -> ForecastMinute:
        """The minute that takes the most consumers, or in which the most comes; the first of equals."""
        return max(self.minutes, key=lambda minute: (minute.consumers or 0, minute.coming))
