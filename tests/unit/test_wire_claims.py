"""A claim's answer on its way: what comes out is what went in, whatever form it travelled in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import duly
from duly.client.batch import Batch
from duly.engine.claimed import Claim
from duly.wire.claims import Handed, from_wire, to_wire


def claimed(q: duly.Client, topic: str, group: str, most: int) -> Any:
    return q._alive().do(Claim("default", topic, group, "w1", most, 10**8), deadline=None)


def told(q: duly.Client, answer: Any) -> list[Any]:
    seen = ("payload", "id", "key", "headers", "lane", "priority", "due", "offset", "partition", "attempt")
    kept = ("published_at_ms", "_lease_id", "_index")
    return [[getattr(d, name) for name in (*seen, *kept)] for d in Batch(q, answer)]


FORMS: dict[str, dict[str, Any]] = {"few or packed": {}, "arrow": {"arrow": True}, "beside": {"packed_bytes_max": 0}}


@pytest.mark.parametrize("count", [1, 63, 64, 3000])
@pytest.mark.parametrize("form", FORMS)
def test_of_a_log(q: duly.Client, clock: duly.ManualClock, count: int, form: str) -> None:
    q.create_topic("log", kind="log", partitions=2)
    q.create_group("log", "g")
    for n in range(0, count, 700):
        q.publish("log", [duly.Message(b"%d" % m, key=str(m % 5)) for m in range(n, min(count, n + 700))])
        clock.advance(1)
    q.publish("log", [duly.Message(b"plain", partition=0), duly.Message(b"x", id="own", headers={"a": "b"})])
    check(q, claimed(q, "log", "g", 5000), form)


@pytest.mark.parametrize("count", [1, 63, 64, 3000])
@pytest.mark.parametrize("form", FORMS)
def test_of_a_queue(q: duly.Client, clock: duly.ManualClock, count: int, form: str) -> None:
    q.create_topic("jobs", kind="queue")
    q.publish(
        "jobs", [duly.Message(b"%d" % n, priority=n % 7, lane=f"l{n % 3}" if n % 2 else None) for n in range(count)]
    )
    q.nack(q.claim("jobs", max_messages=5), delay=1)
    clock.advance(2)
    check(q, claimed(q, "jobs", "", 5000), form)


def check(q: duly.Client, answer: Any, form: str) -> None:
    handed, batch = to_wire(answer, **FORMS[form])
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(handed), type=Handed)
    again = from_wire(travelled, batch)
    assert told(q, again) == told(q, answer)
    assert Batch(q, again).payloads == Batch(q, answer).payloads
    assert (again.count, again.expires_at, again.lease_ms) == (answer.count, answer.expires_at, answer.lease_ms)


def test_nothing_stays_nothing(q: duly.Client) -> None:
    q.create_topic("jobs", kind="queue")
    q.publish("jobs", duly.Message(b"later", due=60))
    answer = claimed(q, "jobs", "", 10)
    handed, batch = to_wire(answer)
    assert batch is None
    assert from_wire(handed, None).parcels == []
    assert from_wire(handed, None).next_due == answer.next_due
