"""What can be bound and run, and how a mistake is told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import duly
from tests.store.patience import eventually

from .conftest import working


def handler(d: duly.Delivery) -> None:
    pass


def test_the_function_stays_what_it_is(workers: duly.Workers) -> None:
    assert workers.on("emails", lease=timedelta(seconds=5), time_limit=timedelta(minutes=1))(handler) is handler


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"concurrency": 0}, "concurrency must be 1 to"),
        ({"concurrency": True}, "concurrency must be 1 to"),
        ({"concurrency": 10_001}, "concurrency must be 1 to 10000"),
        ({"lease": 0.001}, "lease must be"),
        ({"lease": "5s"}, "lease must be seconds"),
        ({"time_limit": 0}, "time_limit must be more than 0"),
        ({"time_limit": "1m"}, "time_limit must be seconds"),
        ({"group": ""}, "group name"),
        ({"topic": ""}, "name"),
        ({"topic": 7}, "name"),
    ],
)
def test_settings_are_checked_when_they_are_given(workers: duly.Workers, options: dict[str, Any], told: str) -> None:
    topic = options.pop("topic", "emails")
    with pytest.raises(duly.InvalidArgument, match=told):
        workers.on(topic, **options)(handler)
    assert workers.handlers == ()


def test_what_is_no_handler_is_refused(workers: duly.Workers) -> None:
    def generator(d: duly.Delivery) -> Iterator[int]:
        yield 1

    with pytest.raises(duly.InvalidArgument, match="must not yield"):
        workers.on("emails")(generator)
    with pytest.raises(duly.InvalidArgument, match="takes a delivery, not int"):
        workers.on("emails")(7)  # type: ignore[type-var]


def test_a_topic_has_one_handler_a_group(workers: duly.Workers) -> None:
    workers.on("orders", group="billing")(handler)
    workers.on("orders", group="audit")(handler)
    with pytest.raises(duly.InvalidArgument, match="group 'audit' of topic 'orders' has a handler already: handler"):
        workers.on("orders", group="audit")(lambda d: None)


def test_nothing_to_run_is_an_error(q: duly.Client, workers: duly.Workers) -> None:
    with pytest.raises(duly.InvalidArgument, match=r"@workers\.on"):
        workers.run(q)


def test_a_topic_that_is_not_there_is_an_error_at_the_start(q: duly.Client, workers: duly.Workers) -> None:
    workers.on("nowhere")(handler)
    with pytest.raises(duly.TopicNotFound, match="'nowhere'"):
        workers.run(q)


def test_a_log_needs_a_group_that_is_there(q: duly.Client, workers: duly.Workers) -> None:
    q.create_topic("orders", kind="log")
    workers.on("orders")(handler)
    with pytest.raises(duly.InvalidArgument, match=r"'orders' is a log.*on\('orders', group=…\)"):
        workers.run(q)
    others = duly.Workers()
    others.on("orders", group="nobody")(handler)
    with pytest.raises(duly.GroupNotFound, match="'nobody'"):
        others.run(q)


@pytest.mark.parametrize(
    ("options", "told"),
    [({"threads": 0}, "threads must be 1"), ({"grace": -1}, "grace must be 0"), ({"drain": 1}, "drain must be True")],
)
def test_a_runs_options_are_checked(q: duly.Client, workers: duly.Workers, options: dict[str, Any], told: str) -> None:
    workers.on("emails")(handler)
    with pytest.raises(duly.InvalidArgument, match=told):
        workers.run(q, **options)


def test_they_run_once_at_a_time(q: duly.Client, workers: duly.Workers) -> None:
    seen: list[bytes] = []
    workers.on("emails")(lambda d: seen.append(d.payload))
    q.publish("emails", b"1")
    with working(workers, q):
        eventually(lambda: seen == [b"1"])
        with pytest.raises(duly.Conflict, match="running already"):
            workers.run(q)
        q.publish("emails", b"2")
        eventually(lambda: seen == [b"1", b"2"])
    q.publish("emails", b"3")
    workers.run(q, drain=True)
    assert seen == [b"1", b"2", b"3"]
