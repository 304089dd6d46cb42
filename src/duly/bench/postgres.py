"""Duly on PostgreSQL: beside a queue table written by hand in the same one, through brokers, and under a snapshot.

Duly's schema and the baseline's are made for the run, and dropped after it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import LiteralString
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql

import duly
from duly.bench import consumers, held_snapshot, latency, side_by_side, timeline
from duly.bench.brokers import own_broker
from duly.bench.side_by_side import Load

Figures = dict[str, float]

_BROKERS = 2
_CONSUMERS = 50
_A_CLAIM = 10
_CONSUMED_MAX = 100_000
_LATENCY_MESSAGES = 500
_LATENCY_PER_S = 100
_TIMELINE_MESSAGES = 2000
_TIMELINE_SPAN_S = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. `messages` go through in a turn; where few are enough, at most so many."""

    messages: int
    clients: int
    pairs: int
    standing: int
    hold_s: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is measured: Duly in `store`, any that duly.connect takes, the baseline in a schema of `dsn`."""

    store: str
    dsn: str
    schema: str


@contextmanager
def own_place(url: str) -> Iterator[Place]:
    """Schemas of our own in a database, `postgresql://…`. Both are gone afterwards."""
    parts = urlsplit(url)
    others = [(name, value) for name, value in parse_qsl(parts.query) if name != "schema"]
    name = f"duly_bench_{secrets.token_hex(4)}"
    baseline, store = f"{name}_baseline", f"{name}_store"
    dsn = urlunsplit(parts._replace(query=urlencode(others)))
    try:
        _in_database(dsn, "CREATE SCHEMA {}", baseline)
    except psycopg.OperationalError as error:
        raise duly.Unavailable(f"PostgreSQL does not answer: {str(error).splitlines()[0]}") from error
    try:
        yield Place(urlunsplit(parts._replace(query=urlencode([*others, ("schema", store)]))), dsn, baseline)
    finally:
        for schema in (baseline, store):
            _in_database(dsn, "DROP SCHEMA IF EXISTS {} CASCADE", schema)


def _in_database(dsn: str, statement: LiteralString, schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(sql.Identifier(schema)))


def measure(place: Place, plan: Plan, parts: list[str]) -> Iterator[tuple[str, Figures]]:
    """The figures of each part, as they are had."""
    for part in parts:
        yield part, PARTS[part](place, plan)


def _log(place: Place, plan: Plan) -> Figures:
    return _beside(
        place,
        plan,
        Load("log_ratio", "log", 1000, plan.messages, plan.clients),
        Load("log_ratio_lone", "log", 1000, plan.messages, 1),
    )


def _queue(place: Place, plan: Plan) -> Figures:
    return _beside(
        place,
        plan,
        Load("queue_ratio_100", "queue", 100, plan.messages, plan.clients),
        Load("queue_ratio_100_lone", "queue", 100, plan.messages, 1),
        Load("queue_ratio_1000", "queue", 1000, plan.messages, plan.clients),
        Load("queue_ratio_1000_lone", "queue", 1000, plan.messages, 1),
        Load("queue_ratio_standing", "queue", 1000, plan.messages, plan.clients, plan.standing),
    )


def _beside(place: Place, plan: Plan, *loads: Load) -> Figures:
    figures: Figures = {}
    for load in loads:
        with duly.connect(place.store) as client:
            figures |= side_by_side.measure(client, place.dsn, place.schema, load, pairs=plan.pairs)
    return figures


def _consumers(place: Place, plan: Plan) -> Figures:
    with _brokers(place) as urls:
        messages = min(plan.messages, _CONSUMED_MAX)
        return _named("consumers", consumers.measure(urls, messages=messages, consumers=_CONSUMERS, most=_A_CLAIM))


def _latency(place: Place, plan: Plan) -> Figures:
    with _brokers(place) as (one, other):
        messages = min(plan.messages, _LATENCY_MESSAGES)
        return _named("latency", latency.measure_between(one, other, messages=messages, per_s=_LATENCY_PER_S))


def _timeline(place: Place, plan: Plan) -> Figures:
    messages = min(plan.messages, _TIMELINE_MESSAGES)
    span_s = _TIMELINE_SPAN_S * messages / _TIMELINE_MESSAGES
    with _brokers(place) as (one, other), duly.connect(one) as publisher, duly.connect(other) as consumer:
        return _named("timeline", timeline.measure_between(publisher, consumer, messages=messages, span_s=span_s))


def _snapshot(place: Place, plan: Plan) -> Figures:
    with duly.connect(place.store) as client:
        measured = held_snapshot.measure(client, place.dsn, hold_s=plan.hold_s, most=_A_CLAIM)
        return _named("held_snapshot", measured)


@contextmanager
def _brokers(place: Place) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(own_broker(place.store)) for _ in range(_BROKERS)]


def _named(part: str, figures: Figures) -> Figures:
    return {f"{part}_{name}": value for name, value in figures.items()}


PARTS: dict[str, Callable[[Place, Plan], Figures]] = {
    "log": _log,
    "queue": _queue,
    "consumers": _consumers,
    "latency": _latency,
    "timeline": _timeline,
    "snapshot": _snapshot,
}
