"""Handlers whose messages lead back to them: stopped by the budget of their operation, told, and resumed by hand."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable

import pytest

import duly
from tests.store.patience import eventually

from .conftest import working

BUDGET = 20
Leads = Callable[[duly.Delivery], object]


def stopped(q: duly.Client) -> list[duly.Operation]:
    return q.operations(stopped=True)


def alerts(q: duly.Client) -> int:
    return sum(event.kind == "operation_stopped" for event in q.events())


class Loop:
    """Handlers that publish two messages for each of some that they get."""

    def __init__(self, workers: duly.Workers, q: duly.Client, leads: dict[str, str]) -> None:
        self.q = q
        self.leads = leads
        # What they were given, with its attempt; and how much they could publish.
        self.given: list[tuple[str, int]] = []
        self.published: list[int] = []
        for topic in leads:
            workers.on(topic)(self.handle)

    def handle(self, d: duly.Delivery) -> None:
        self.given.append((d.operation, d.attempt))
        if d.payload == b"loop":
            self.q.publish(self.leads[d.topic], [b"loop", b"loop"])
            self.published.append(2)


@pytest.mark.parametrize("leads", [{"emails": "emails"}, {"emails": "other", "other": "emails"}], ids=["one", "two"])
def test_a_loop_is_stopped_told_and_resumed_while_all_else_goes_on(
    q: duly.Client, workers: duly.Workers, leads: dict[str, str]
) -> None:
    q.create_topic("reports", kind="queue")
    q.update_tenant("default", operation_messages=BUDGET)
    reports: list[bytes] = []
    workers.on("reports")(lambda d: reports.append(d.payload))
    loop = Loop(workers, q, leads)
    receipt = q.publish("emails", b"loop")
    with working(workers, q):
        (known,) = eventually(lambda: stopped(q))
        assert known.id == f"emails{receipt.ids[0]}", "it is named after the message that it began with"
        q.publish("reports", [b"1", b"2"])
        q.publish("emails", b"honest")
        eventually(lambda: len(reports) == 2 and len({operation for operation, _ in loop.given}) == 2)
        before = sum(loop.published)
        assert BUDGET <= before <= BUDGET + 5, "some seconds later it has published one or two a second more"
        assert alerts(q) == 1
        q.resume_operation(known.id, messages=3 * BUDGET)
        eventually(lambda: sum(loop.published) >= before + 3 * BUDGET)
        eventually(lambda: alerts(q) == 2)
        assert all(attempt == 1 for _, attempt in loop.given), "no attempt is used up by waiting"
    assert not [letter for topic in leads for letter in q.dead(topic)]


@pytest.mark.parametrize("way", ["sync", "async", "thread", "executor", "producer", "aio"])
def test_whatever_a_handler_publishes_carries_the_operation_of_its_message(
    q: duly.Client, address: str, workers: duly.Workers, way: str
) -> None:
    def publish() -> None:
        q.publish("other", b"x")

    def in_thread(d: duly.Delivery) -> None:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(publish,))
        thread.start()
        thread.join()

    def in_producer(d: duly.Delivery) -> None:
        with q.producer() as producer:
            producer.publish("other", b"x")

    async def in_task(d: duly.Delivery) -> None:
        await asyncio.sleep(0)
        publish()

    async def in_executor(d: duly.Delivery) -> None:
        await asyncio.gather(asyncio.to_thread(publish))

    async def in_aio(d: duly.Delivery) -> None:
        async with duly.aio.connect(address) as own:
            await own.publish("other", b"x")

    ways: dict[str, Leads] = {
        "sync": lambda d: publish(),
        "async": in_task,
        "thread": in_thread,
        "executor": in_executor,
        "producer": in_producer,
        "aio": in_aio,
    }
    workers.on("emails")(ways[way])
    q.publish("emails", [b"1", duly.Message(b"2", headers={"duly-operation": "given"})])
    workers.run(q, drain=True)
    first, second = sorted((message.headers["duly-operation"] for message in q.browse("other")), reverse=True)
    assert first == "given"
    assert second.startswith("emails@")
    q.publish("other", duly.Message(b"y", id="outside"))
    outside = q.get("other", "outside")
    assert outside is not None
    assert "duly-operation" not in outside.headers


def test_a_message_that_is_tried_again_goes_on_with_the_same_operation(q: duly.Client, workers: duly.Workers) -> None:
    q.update_tenant("default", operation_messages=3)
    seen: list[str] = []

    @workers.on("emails")
    def handle(d: duly.Delivery) -> None:
        seen.append(d.operation)
        q.publish("other", b"x")
        if d.attempt < 3:
            raise ValueError("again")

    q.publish("emails", b"1")
    with working(workers, q):
        eventually(lambda: not q.browse("emails"))
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert [one.published for one in q.operations()] == [3], "each time it published, it counted"


def test_a_handler_that_may_not_publish_waits_and_is_no_failure(
    q: duly.Client, workers: duly.Workers, caplog: pytest.LogCaptureFixture
) -> None:
    q.update_tenant("default", operation_messages=3, operation_per_s=4)
    q.update_topic("emails", retry=duly.RetryPolicy(max_attempts=1))

    @workers.on("emails")
    def handle(d: duly.Delivery) -> None:
        q.publish("other", [b"x"])

    q.publish("emails", [duly.Message(name.encode(), headers={"duly-operation": "same"}) for name in "abc"])
    with working(workers, q):
        eventually(lambda: len(q.browse("other")) == 3)
        eventually(lambda: not q.browse("emails"))
    assert list(q.dead("emails")) == []
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
