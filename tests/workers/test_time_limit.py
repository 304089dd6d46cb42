"""time_limit: a handler that takes too long is ended, or written off."""

from __future__ import annotations

import asyncio
import time

import pytest

import duly
from tests.store.patience import eventually

from .conftest import unsettled, working

TOLD = "TimeLimit: the handler did not end within 0.2 s"


@pytest.fixture
def once(q: duly.Client) -> None:
    """One attempt, so that a failure is a dead letter at once."""
    q.update_topic("emails", retry=duly.RetryPolicy(max_attempts=1))


def reasons(q: duly.Client) -> list[str]:
    return [letter.reason for letter in q.dead("emails")]


def test_a_sync_handler_gets_the_exception(q: duly.Client, workers: duly.Workers, once: None) -> None:
    cleaned_up: list[BaseException] = []

    @workers.on("emails", time_limit=0.2)
    def loop(d: duly.Delivery) -> None:
        try:
            while d.payload == b"1":
                time.sleep(0.01)
        except duly.TimeLimit as error:
            cleaned_up.append(error)
            raise

    q.publish("emails", [b"1", b"2"])
    workers.run(q, drain=True)
    assert len(cleaned_up) == 1
    assert reasons(q) == [TOLD]
    assert unsettled(q)[0].payload == b"1"


def test_an_async_handler_is_cancelled(q: duly.Client, workers: duly.Workers, once: None) -> None:
    cancelled: list[str] = []

    @workers.on("emails", time_limit=0.2)
    async def loop(d: duly.Delivery) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            cancelled.append(type(error).__name__)
            raise

    q.publish("emails", b"1")
    workers.run(q, drain=True)
    assert cancelled == ["CancelledError"]
    assert reasons(q) == [TOLD]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_that_takes_it_and_returns_is_done(q: duly.Client, workers: duly.Workers, kind: str) -> None:
    ended: list[str] = []

    def sync_handler(d: duly.Delivery) -> None:
        try:
            while True:
                time.sleep(0.01)
        except duly.TimeLimit:
            ended.append("with what it had")

    async def async_handler(d: duly.Delivery) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("with what it had")

    workers.on("emails", time_limit=0.2)(sync_handler if kind == "sync" else async_handler)
    q.publish("emails", b"1")
    workers.run(q, drain=True)
    assert ended == ["with what it had"]
    assert unsettled(q) == []


def test_one_in_time_is_left_alone(q: duly.Client, workers: duly.Workers) -> None:
    seen: list[bytes] = []

    @workers.on("emails", time_limit=0.3, concurrency=2)
    def handler(d: duly.Delivery) -> None:
        time.sleep(0.02)
        seen.append(d.payload)

    q.publish("emails", [b"x"] * 40)
    workers.run(q, drain=True)
    assert (len(seen), unsettled(q)) == (40, [])


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_one_that_is_blocked_is_nacked_and_its_place_taken_by_another(
    q: duly.Client, workers: duly.Workers, once: None, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Blocked in C code no exception reaches it; nor is a task cancelled that never awaits."""
    seen: list[bytes] = []

    def sync_handler(d: duly.Delivery) -> None:
        if d.payload == b"blocked":
            time.sleep(6)
        seen.append(d.payload)

    async def async_handler(d: duly.Delivery) -> None:
        sync_handler(d)

    workers.on("emails", time_limit=0.2)(sync_handler if kind == "sync" else async_handler)
    q.publish("emails", [b"blocked", b"next"])
    with working(workers, q, grace=0.1):
        eventually(lambda: seen == [b"next"], within_s=5.5)
        eventually(lambda: reasons(q) == [TOLD])
    assert "stuck" in caplog.text


def test_other_messages_of_the_claim_are_renewed_on(q: duly.Client, workers: duly.Workers, once: None) -> None:
    """The blocked one's lease is no longer renewed; its neighbours' are."""
    seen: list[bytes] = []

    @workers.on("emails", time_limit=3.5, concurrency=2, lease=0.5)
    def neighbour(d: duly.Delivery) -> None:
        time.sleep(3.0 if d.payload == b"long" else 0.0)
        seen.append(d.payload)

    @workers.on("other", time_limit=0.2, lease=0.5)
    def blocked(d: duly.Delivery) -> None:
        time.sleep(4)

    q.update_topic("other", retry=duly.RetryPolicy(base=3600, jitter="none"))
    q.publish("emails", [b"long", b"short"])
    q.publish("other", b"1")
    with working(workers, q, grace=0.1):
        eventually(lambda: seen == [b"short", b"long"] and unsettled(q) == [])
        assert [m.state for m in unsettled(q, "other")] == ["retrying"]
