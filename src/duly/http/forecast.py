"""Forecasts: of a topic, of all of them, and as metrics that autoscalers read.

Metrics are the text format of Prometheus, 0.0.4. There is a line a group for each metric, of so many topics as asked
for, so whoever scrapes decides how many series there are. What nobody knows has no line; but where something waits and
nobody knows how fast a consumer is, one is needed: or it would never be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from ..engine.forecast import ListForecasts
from ..forecast import Forecast, ForecastMinute
from ..limits import LIMITS
from .endpoint import Call, endpoint
from .fields import Limit, Name, Next, Rate
from .reply import Reply
from .tokens import cursor, read_cursor

METRICS = "text/plain; version=0.0.4; charset=utf-8"

_REFUSES = ("topic_not_found", "group_not_found", "invalid_argument", "limit_exceeded")
_Minutes = Annotated[int, Meta(ge=1, le=LIMITS.page_max, description="How far to look ahead.")]
_RatePerS = Annotated[
    Rate, Meta(description="Messages a second that one consumer finishes; without it that is observed.")
]


class MinuteAhead(msgspec.Struct):
    """A minute: what is timed to fall due in it, what is expected to be published, and the consumers that it takes."""

    at_ms: int
    timed: int
    expected: int
    consumers: int | None

    @classmethod
    def of(cls, known: ForecastMinute) -> MinuteAhead:
        return cls(known.at_ms, known.timed, known.expected, known.consumers)


class GroupForecast(msgspec.Struct, kw_only=True):
    """What is ahead of a group: `ready` and `leased` now, and what comes in each of the next minutes.

    `service_rate_per_s` is that of one busy consumer, as `observed` on so many messages; null: nobody knows, and so
    neither how many `consumers` it takes.
    """

    topic: str
    group: str
    at_ms: int
    paused: bool
    ready: int
    leased: int
    active_consumers: int
    arrival_rate_per_s: float
    service_rate_per_s: float | None
    observed: int
    rate_max_per_s: float | None
    peak: MinuteAhead
    minutes: list[MinuteAhead]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, known: Forecast) -> GroupForecast:
        return cls(
            topic=known.topic,
            group=known.group,
            at_ms=known.at_ms,
            paused=known.paused,
            ready=known.ready,
            leased=known.leased,
            active_consumers=known.active,
            arrival_rate_per_s=known.arrival_rate,
            service_rate_per_s=known.service_rate,
            observed=known.observed,
            rate_max_per_s=known.rate_max,
            peak=MinuteAhead.of(known.peak),
            minutes=[MinuteAhead.of(minute) for minute in known.minutes],
            notes=known.notes,
        )


class ForecastPage(msgspec.Struct):
    """Forecasts of every group, a page of topics at a time. `next` leads to the next page; null: there is none."""

    forecasts: list[GroupForecast]
    next: str | None


class ForecastQuery(msgspec.Struct, forbid_unknown_fields=True):
    group: Annotated[Name, Meta(description="Of a log; a queue has one.")] | None = None
    minutes: _Minutes = 60
    rate_per_s: _RatePerS | None = None


class ForecastsQuery(msgspec.Struct, forbid_unknown_fields=True):
    minutes: _Minutes = 60
    limit: Limit = 100
    next: Next | None = None


class MetricsQuery(msgspec.Struct, forbid_unknown_fields=True):
    topic: Annotated[Name, Meta(description="Of this topic alone.")] | None = None
    minutes: _Minutes = 15
    limit: Annotated[int, Meta(ge=1, le=1000, description="Of at most so many topics, by name.")] = 1000


@endpoint(
    "GET",
    "/v1/topics/{topic}/forecast",
    tag="topics",
    does=(ListForecasts,),
    query=ForecastQuery,
    answer=GroupForecast,
    refuses=_REFUSES,
)
def forecast(call: Call) -> GroupForecast:
    """The coming load of a queue, or of a group of a log, per minute, and the consumers that it takes."""
    wanted: ForecastQuery = call.query
    return GroupForecast.of(
        call.client.forecast(call.topic, group=wanted.group, minutes=wanted.minutes, rate=wanted.rate_per_s)
    )


@endpoint(
    "GET",
    "/v1/forecast",
    tag="topics",
    does=(ListForecasts,),
    query=ForecastsQuery,
    answer=ForecastPage,
    refuses=("invalid_argument", "limit_exceeded"),
)
def forecasts(call: Call) -> ForecastPage:
    """The coming load of every group, of a page of topics."""
    wanted: ForecastsQuery = call.query
    after = "" if wanted.next is None else read_cursor(wanted.next, str)
    found = call.client.forecasts(after=after, limit=wanted.limit, minutes=wanted.minutes)
    full = len({one.topic for one in found}) == wanted.limit
    return ForecastPage([GroupForecast.of(one) for one in found], cursor(found[-1].topic) if full else None)


@endpoint(
    "GET",
    "/v1/forecast/metrics",
    tag="topics",
    does=(ListForecasts,),
    query=MetricsQuery,
    kind=METRICS,
    refuses=("topic_not_found", "limit_exceeded"),
)
def forecast_metrics(call: Call) -> Reply:
    """Forecasts as metrics for autoscalers, in the text format of Prometheus. `duly_consumers_needed` is how many
    consumers it takes now to keep up and to work off the backlog within a minute.
    """
    wanted: MetricsQuery = call.query
    found = call.client.forecasts(wanted.topic, minutes=wanted.minutes, limit=wanted.limit)
    more = wanted.topic is None and len({one.topic for one in found}) == wanted.limit
    return Reply("".join(_lines(call.client.tenant, found, complete=not more)).encode(), kind=METRICS)


def _needed(known: Forecast, minute: ForecastMinute) -> int:
    if minute.consumers is not None:
        return minute.consumers
    return int(known.backlog + minute.coming > 0)


_GAUGES: tuple[tuple[str, str, Callable[[Forecast], float | None]], ...] = (
    (
        "duly_consumers_needed",
        "Consumers that it takes to keep up and to work off the backlog within a minute.",
        lambda known: _needed(known, known.minutes[0]),
    ),
    (
        "duly_consumers_needed_peak",
        "The most consumers that any of the minutes looked at takes.",
        lambda known: max(_needed(known, minute) for minute in known.minutes),
    ),
    ("duly_consumers_active", "Consumers seen in the last three minutes.", lambda known: known.active),
    ("duly_backlog", "Messages that are due and not settled.", lambda known: known.backlog),
    ("duly_coming", "Messages that come in the first minute.", lambda known: known.minutes[0].coming),
    (
        "duly_coming_peak",
        "The most messages that come in any of the minutes looked at.",
        lambda known: max(minute.coming for minute in known.minutes),
    ),
    ("duly_arrival_rate", "Messages published a second of late.", lambda known: known.arrival_rate),
    ("duly_service_rate", "Messages a second that one busy consumer finishes.", lambda known: known.service_rate),
)


def _lines(tenant: str, found: Iterable[Forecast], *, complete: bool) -> Iterator[str]:
    groups = [(_labels(tenant=tenant, topic=known.topic, group=known.group), known) for known in found]
    for name, meaning, measure in _GAUGES:
        yield f"# HELP {name} {meaning}\n# TYPE {name} gauge\n"
        for labels, known in groups:
            value = measure(known)
            if value is not None:
                yield f"{name}{labels} {value!r}\n"
    yield "# HELP duly_forecast_complete 1 if these are all topics, 0 if there may be more than the limit.\n"
    yield f"# TYPE duly_forecast_complete gauge\nduly_forecast_complete{_labels(tenant=tenant)} {int(complete)}\n"


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
