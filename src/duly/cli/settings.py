"""Settings as options: the parts that create and update of topics and groups share.

An option that is not given changes nothing; `none` switches off what can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from ..backoff import RetryPolicy
from ..topic import Health, Lanes, Retention
from .command import with_parts
from .parse import (
    NONE,
    breaker_or_none,
    count_or_none,
    duration,
    duration_or_none,
    number_or_none,
    size,
    size_or_none,
    thresholds,
    weights,
)

Given = dict[str, Any]
_RETRIES, _RETENTION, _QUEUES, _LIMITS = "Retries", "Retention", "Queues", "Limits of deliveries"


class Shape(StrEnum):
    """How waits grow."""

    exponential = "exponential"
    linear = "linear"
    fixed = "fixed"


class Jitter(StrEnum):
    """Whether waits are drawn at random."""

    full = "full"
    none = "none"


Lease = Annotated[
    float | None,
    typer.Option(parser=duration, metavar="DURATION", help="How long a claim holds a message: 30s."),
]
DeadLetters = Annotated[
    bool | None,
    typer.Option(
        "--dead-letters/--no-dead-letters", rich_help_panel=_RETRIES, help="Keep messages that failed for good."
    ),
]


def given_of(**options: Any) -> Given:
    """The options that were given, with `none` read as None."""
    return {name: None if value == NONE else value for name, value in options.items() if value is not None}


def retry_given(
    max_attempts: Annotated[
        int | None,
        typer.Option(min=1, metavar="COUNT", rich_help_panel=_RETRIES, help="Deliveries before a message is buried."),
    ] = None,
    backoff_base: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_RETRIES, parser=duration, metavar="DURATION", help="The first wait after a failure."
        ),
    ] = None,
    backoff_cap: Annotated[
        float | None,
        typer.Option(rich_help_panel=_RETRIES, parser=duration, metavar="DURATION", help="The longest wait."),
    ] = None,
    backoff_shape: Annotated[
        Shape | None,
        typer.Option(rich_help_panel=_RETRIES, metavar="SHAPE", help="How waits grow: exponential, linear or fixed."),
    ] = None,
    backoff_jitter: Annotated[
        Jitter | None,
        typer.Option(rich_help_panel=_RETRIES, metavar="JITTER", help="full draws waits at random, none does not."),
    ] = None,
    retry_budget: Annotated[
        Any,
        typer.Option(
            parser=number_or_none,
            metavar="SHARE",
            rich_help_panel=_RETRIES,
            help="Retries are at most this share of fresh deliveries: 0.1, or none.",
        ),
    ] = None,
) -> Given:
    """The retry policy's fields that were given."""
    return given_of(
        max_attempts=max_attempts,
        base=backoff_base,
        cap=backoff_cap,
        shape=None if backoff_shape is None else str(backoff_shape),
        jitter=None if backoff_jitter is None else str(backoff_jitter),
        budget=retry_budget,
    )


def retention_given(
    retention_age: Annotated[
        float | None,
        typer.Option(
            parser=duration_or_none,
            metavar="DURATION",
            rich_help_panel=_RETENTION,
            help="Drop what is older: 7d, or none.",
        ),
    ] = None,
    retention_bytes: Annotated[
        int | None,
        typer.Option(
            parser=size_or_none,
            metavar="SIZE",
            rich_help_panel=_RETENTION,
            help="Drop the oldest beyond: 1GB, or none.",
        ),
    ] = None,
    retention_settled: Annotated[
        bool | None,
        typer.Option(
            "--retention-settled/--keep-settled",
            rich_help_panel=_RETENTION,
            help="Drop what every group has settled.",
        ),
    ] = None,
    drop_unsettled: Annotated[
        bool | None,
        typer.Option(
            "--drop-unsettled/--no-drop-unsettled",
            rich_help_panel=_RETENTION,
            help="Drop by age and size even what a group still needs.",
        ),
    ] = None,
) -> Given:
    """The retention's fields that were given."""
    return given_of(age=retention_age, bytes=retention_bytes, settled=retention_settled, drop_unsettled=drop_unsettled)


def lanes_given(
    lane_weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LANE=WEIGHT", rich_help_panel=_QUEUES, help="How much of the service a lane gets; repeat for more."
        ),
    ] = None,
    lane_max_in_flight: Annotated[
        Any,
        typer.Option(
            parser=number_or_none,
            metavar="COUNT",
            rich_help_panel=_QUEUES,
            help="How many of a lane are out at once: 1 keeps its order; or none.",
        ),
    ] = None,
    lane_rate: Annotated[
        Any,
        typer.Option(
            parser=number_or_none,
            metavar="RATE",
            rich_help_panel=_QUEUES,
            help="How many of a lane are delivered a second, or none.",
        ),
    ] = None,
    lane_breaker: Annotated[
        Any,
        typer.Option(
            parser=breaker_or_none,
            metavar="BREAKER",
            rich_help_panel=_QUEUES,
            help="When a lane of which most deliveries fail gets only probes: on, failures=0.5,calls=20, or none.",
        ),
    ] = None,
) -> Given:
    """The lanes' fields that were given."""
    return given_of(
        weights=weights(lane_weight or []), max_in_flight=lane_max_in_flight, rate=lane_rate, breaker=lane_breaker
    )


def limits_given(
    rate: Annotated[
        Any,
        typer.Option(
            parser=number_or_none,
            metavar="RATE",
            rich_help_panel=_LIMITS,
            help="How many are delivered a second to a group, or none.",
        ),
    ] = None,
    max_in_flight: Annotated[
        Any,
        typer.Option(
            parser=count_or_none,
            metavar="COUNT",
            rich_help_panel=_LIMITS,
            help="How many a group has claimed and not settled at once, or none.",
        ),
    ] = None,
    breaker: Annotated[
        Any,
        typer.Option(
            parser=breaker_or_none,
            metavar="BREAKER",
            rich_help_panel=_LIMITS,
            help="When a group of which most deliveries fail gets only probes: on, failures=0.5,calls=20, or none.",
        ),
    ] = None,
) -> Given:
    """What limits deliveries, as far as it was given."""
    return given_of(rate=rate, max_in_flight=max_in_flight, breaker=breaker)


def _topic_given(
    retry: Given,
    retention: Given,
    lanes: Given,
    limits: Given,
    lease: Lease = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            parser=duration_or_none,
            metavar="DURATION",
            help="How long messages that set none live: 1h, or none.",
        ),
    ] = None,
    payload_bytes_max: Annotated[
        int | None, typer.Option(parser=size, metavar="SIZE", help="The largest payload: 1MiB.")
    ] = None,
    dead_letters: DeadLetters = None,
    archive: Annotated[
        bool | None,
        typer.Option(
            "--archive/--no-archive", rich_help_panel=_RETENTION, help="Truncate nothing before it is archived."
        ),
    ] = None,
    health: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MEASURE=WARN,ALERT",
            help="From where on `duly health` warns: undelivered=1000,5000, oldest_age=1m,5m; repeat for more.",
        ),
    ] = None,
    dedupe: Annotated[
        float | None,
        typer.Option(
            parser=duration_or_none,
            metavar="DURATION",
            rich_help_panel=_QUEUES,
            help="How long a settled message's id is not taken again: 1h, or none.",
        ),
    ] = None,
) -> Given:
    given = given_of(
        lease=lease,
        ttl=ttl,
        payload_bytes_max=payload_bytes_max,
        dead_letters=dead_letters,
        archive=archive,
        dedupe=dedupe,
    )
    return {
        **given,
        **limits,
        "retry": retry,
        "retention": retention,
        "lanes": lanes,
        "health": thresholds(health or []),
    }


def _group_given(retry: Given, limits: Given, lease: Lease = None, dead_letters: DeadLetters = None) -> Given:
    return {**given_of(lease=lease, dead_letters=dead_letters), **limits, "retry": retry}


topic_given = with_parts(
    _topic_given, retry=retry_given, retention=retention_given, lanes=lanes_given, limits=limits_given
)
group_given = with_parts(_group_given, retry=retry_given, limits=limits_given)


def merged(
    given: Given,
    *,
    retry: RetryPolicy,
    retention: Retention | None = None,
    lanes: Lanes | None = None,
    health: Health | None = None,
) -> Mapping[str, Any]:
    """The settings to call with: fields that were not given stay as they are in `retry` and the others."""
    wanted = {name: value for name, value in given.items() if name not in ("retry", "retention", "lanes", "health")}
    if given["retry"]:
        wanted["retry"] = replace(retry, **given["retry"])
    if retention is not None and given["retention"]:
        wanted["retention"] = replace(retention, **given["retention"])
    if given.get("lanes"):
        wanted["lanes"] = replace(lanes or Lanes(), **given["lanes"])
    if given.get("health"):
        wanted["health"] = replace(health or Health(), **given["health"])
    return wanted


def must_change(wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """The changes of an update, which has to have some."""
    if not wanted:
        raise typer.BadParameter(
            "Nothing to change is given. Name a setting, such as --lease 60s.", param_hint="update"
        )
    return wanted
