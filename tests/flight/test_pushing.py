"""Push by credit: deliveries as they fall due, never more than the consumer asked for, everybody in turn."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyarrow import flight

import duly
from duly.broker.broker import Broker
from duly.wire.claims import Handed
from duly.wire.talk import CONSUME, Answer
from tests.store.patience import Aside, eventually


class Consumer:
    """A consumer in any language: it gives credit and reads."""

    def __init__(self, raw: Any, topic: str = "jobs", **asked: Any) -> None:
        self.writer, self.reader = raw.do_exchange(flight.FlightDescriptor.for_command(CONSUME))
        claim = {"tenant": "default", "topic": topic, "group": "", "consumer": "raw"}
        self.say({**claim, "max_messages": 1000, "max_bytes": 1_000_000, **asked})

    def say(self, what: Any) -> None:
        self.writer.write_metadata(msgspec.msgpack.encode(what))

    def credit(self, messages: int) -> None:
        self.say({"messages": messages})

    def next(self) -> tuple[list[bytes], Handed]:
        chunk = self.reader.read_chunk()
        answer = msgspec.msgpack.decode(chunk.app_metadata.to_pybytes(), type=Answer)
        assert answer.fault is None, answer.fault
        return chunk.data.column("payload").to_pylist(), msgspec.msgpack.decode(answer.body, type=Handed)

    def fault(self) -> str:
        chunk = self.reader.read_chunk()
        answer = msgspec.msgpack.decode(chunk.app_metadata.to_pybytes(), type=Answer)
        assert answer.fault is not None
        return answer.fault.code

    def leave(self) -> None:
        self.writer.close()


@pytest.fixture
def jobs(q: duly.Client) -> str:
    q.create_topic("jobs", kind="queue", lease=30)
    return "jobs"


def leased(q: duly.Client) -> int:
    return len(q.browse("jobs", state="leased"))


def test_what_is_there_comes_at_once_and_no_more_than_the_credit(q: duly.Client, raw: Any, jobs: str) -> None:
    q.publish(jobs, [b"%d" % n for n in range(10)])
    consumer = Consumer(raw)
    consumer.credit(4)
    assert consumer.next()[0] == [b"0", b"1", b"2", b"3"]
    q.publish(jobs, b"another")
    assert leased(q) == 4
    consumer.credit(2)
    assert consumer.next()[0] == [b"4", b"5"]
    assert leased(q) == 6
    consumer.leave()


def test_what_falls_due_later_is_pushed_then(
    q: duly.Client, raw: Any, jobs: str, clock: duly.ManualClock, broker: Broker
) -> None:
    consumer = Consumer(raw)
    consumer.credit(5)
    eventually(lambda: broker.room.count == 1)
    q.publish(jobs, [duly.Message(b"later", due=10), duly.Message(b"now")])
    assert consumer.next()[0] == [b"now"]
    waiting = Aside(consumer.next)
    clock.advance(9.999)
    assert waiting.still_running_after(0.1)
    clock.advance(0.001)
    assert waiting.result()[0] == [b"later"]
    consumer.leave()


def test_what_was_pushed_is_settled_by_an_action(q: duly.Client, raw: Any, jobs: str) -> None:
    q.publish(jobs, [b"a", b"b"])
    consumer = Consumer(raw)
    consumer.credit(2)
    _, handed = consumer.next()
    settle = {
        "tenant": "default",
        "incarnation": handed.incarnation,
        "topic": handed.topic,
        "group": handed.group,
        "verdict": "ack",
        "tokens": [{"lease_id": lease.lease_id} for lease in handed.leases],
    }
    (answer,) = raw.do_action(flight.Action("settle", msgspec.msgpack.encode(settle)))
    assert msgspec.msgpack.decode(answer.body.to_pybytes())["done"] == 2
    assert q.describe_topic(jobs).messages == 0
    consumer.leave()


def test_one_that_leaves_while_it_waits_gets_nothing(q: duly.Client, raw: Any, jobs: str, broker: Broker) -> None:
    consumer = Consumer(raw)
    consumer.credit(5)
    eventually(lambda: broker.room.count == 1)
    consumer.leave()
    eventually(lambda: broker.room.count == 0)
    q.publish(jobs, b"x")
    assert leased(q) == 0
    assert q.claim(jobs)[0].attempt == 1


def test_several_are_served_in_turn(q: duly.Client, raw: Any, jobs: str, broker: Broker) -> None:
    consumers = [Consumer(raw, consumer=f"c{n}") for n in range(4)]
    for number, consumer in enumerate(consumers):
        consumer.credit(100)
        eventually(lambda n=number: broker.room.count == n + 1)  # type: ignore[misc]
    for n in range(8):
        q.publish(jobs, b"%d" % n)
        assert consumers[n % 4].next()[0] == [b"%d" % n]
    for consumer in consumers:
        consumer.leave()


@pytest.mark.parametrize("credit", [0, -1, 10**9, "many", None])
def test_bad_credit_ends_the_push_with_the_reason(q: duly.Client, raw: Any, jobs: str, credit: Any) -> None:
    consumer = Consumer(raw)
    consumer.say({"messages": credit})
    assert consumer.fault() in ("limit_exceeded", "invalid_argument")


def test_a_topic_that_is_not_there_is_said(raw: Any, q: duly.Client) -> None:
    consumer = Consumer(raw, topic="nowhere")
    consumer.credit(1)
    assert consumer.fault() == "topic_not_found"


def test_a_claim_that_is_none_is_said(raw: Any, q: duly.Client, jobs: str) -> None:
    assert Consumer(raw, max_messages=0).fault() == "limit_exceeded"
    assert Consumer(raw, consumer=7).fault() == "invalid_argument"
