"""A push to a topic: what is published there and what is acked here is one thing, or did not happen."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import duly
from duly.broker.pushes.forwarding import FROM
from duly.broker.pushes.topic_runner import TopicRunner
from duly.clock import from_ms
from duly.message import OPERATION
from duly.push import RunningPush, ToTopic
from tests.conftest import scaled

from .conftest import Home
from .patience import eventually

pytestmark = pytest.mark.embedded

Run = Callable[..., TopicRunner]


class Told(list[tuple[str, dict[str, object]]]):
    def __call__(self, push: RunningPush, kind: str, facts: dict[str, object]) -> None:
        self.append((kind, facts))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def run(q: duly.Client, orders: str, told: Told) -> Iterator[Run]:
    """Starts runners that forward the group `billing` of the log `orders`; they are stopped at the end."""
    runners: list[TopicRunner] = []

    def start(
        to: ToTopic, *, client: duly.Client = q, topic: str = orders, group: str = "billing", batch: int = 1000
    ) -> TopicRunner:
        push = RunningPush("default", "onward", topic, group, to)
        runners.append(TopicRunner(client, push, told, batch=batch))
        return runners[-1]

    yield start
    for runner in runners:
        runner.stop(20)
        assert not runner.running


def waits_for(runner: TopicRunner, count: int) -> None:
    eventually(lambda: runner.forwarded >= count)
    assert runner.forwarded == count


def log_of(q: duly.Client, topic: str) -> list[duly.StoredMessage]:
    found: list[duly.StoredMessage] = []
    while page := q.read(topic, offset=len(found), max_messages=10_000):
        found.extend(page)
    return found


def claim_all(q: duly.Client, topic: str) -> list[duly.Delivery]:
    found: list[duly.Delivery] = []
    while batch := q.claim(topic, max_messages=1000):
        found.extend(batch)
        batch.ack()
    return found


def left(q: duly.Client, topic: str = "orders", group: str = "billing") -> int:
    one = q.describe_group(topic, group)
    return one.lag + one.leased + one.retrying


def test_messages_travel_with_all_that_is_theirs(q: duly.Client, run: Run) -> None:
    q.create_topic("later", kind="log")
    q.publish(
        "orders",
        [
            duly.Message(b"one", key="acme", headers={"trace": "7"}, id="first"),
            duly.Message(b"", ttl=60),
            duly.Message(b"two", headers={OPERATION: "nightly"}),
        ],
    )
    waits_for(run(ToTopic("later")), 3)
    one, empty, two = log_of(q, "later")
    assert (one.payload, one.key, dict(one.headers)) == (b"one", "acme", {"trace": "7", FROM: "orders/0/0"})
    assert (one.id, empty.id[0]) == ("first", "@")
    before = log_of(q, "orders")
    assert (empty.payload, empty.expires_at_ms) == (b"", before[1].expires_at_ms)
    assert dict(two.headers) == {OPERATION: "nightly", FROM: "orders/0/2"}
    eventually(lambda: left(q) == 0)


def test_what_is_published_later_is_forwarded_too(q: duly.Client, run: Run) -> None:
    q.create_topic("later", kind="log")
    runner = run(ToTopic("later"))
    for number in range(3):
        q.publish("orders", [b"%d" % number])
        waits_for(runner, number + 1)
    assert [m.payload for m in log_of(q, "later")] == [b"0", b"1", b"2"]


def test_a_queue_gets_due_priority_and_lane_by_their_expressions(
    q: duly.Client, run: Run, clock: duly.ManualClock
) -> None:
    q.create_topic("later", kind="queue")
    at = clock.now_ms() + 60_000
    q.publish("orders", [duly.Message.json({"at": at, "rank": 3}, key="acme", id="one"), duly.Message.json({})])
    to = ToTopic("later", due="json.at + 30s ?? published", priority="json.rank ?? 9", lane='key ?? "nobody"')
    waits_for(run(to), 2)
    one = q.get("later", "one")
    assert one is not None
    assert (one.state, one.lane, one.priority, one.due_at_ms) == ("waiting", "acme", 3, at + 30_000)
    (other,) = q.claim("later")
    assert (other.lane, other.priority) == ("nobody", 9)
    clock.advance(90)
    assert [d.id for d in q.claim("later")] == ["one"]


def test_from_queue_to_queue_a_message_keeps_what_it_had(q: duly.Client, run: Run, clock: duly.ManualClock) -> None:
    q.create_topic("jobs", kind="queue")
    q.create_topic("later", kind="queue")
    due = from_ms(clock.now_ms() + 5_000)
    q.publish("jobs", [duly.Message(b"x", due=due, priority=7, lane="acme", id="x")])
    runner = run(ToTopic("later"), topic="jobs", group="")
    clock.advance(5)
    waits_for(runner, 1)
    (one,) = q.claim("later")
    assert (one.due, one.priority, one.lane, one.id) == (due, 7, "acme", "x")
    assert one.headers[FROM] == "jobs/0/0"


def test_a_message_that_makes_no_sense_ends_in_the_dead_letters_and_holds_up_no_other(
    q: duly.Client, run: Run, clock: duly.ManualClock
) -> None:
    q.create_topic("later", kind="queue")
    at = clock.now_ms()
    payloads = [json.dumps({"at": at + n}).encode() if n % 3 else b"%d is no JSON" % n for n in range(30)]
    q.publish("orders", payloads)
    runner = run(ToTopic("later", due="json.at"))
    waits_for(runner, 20)

    def buried() -> bool:
        clock.advance(10)
        return q.describe_group("orders", "billing").dead == 10

    eventually(buried)
    letters = list(q.dead("orders", group="billing"))
    assert {letter.payload for letter in letters} == set(payloads[::3])
    assert {(letter.attempts, letter.history[-1].consumer) for letter in letters} == {(3, "push:onward")}
    assert all(letter.history[-1].reason.startswith("due is not known: the payload ") for letter in letters)
    assert runner.forwarded == 20


def test_what_the_target_refuses_alone_is_nacked_alone(q: duly.Client, run: Run) -> None:
    q.create_topic("small", kind="log", payload_bytes_max=100)
    q.publish("orders", [b"x" * (101 if n % 4 == 0 else 10) for n in range(40)])
    waits_for(run(ToTopic("small")), 30)
    eventually(lambda: q.describe_group("orders", "billing").retrying == 10)
    assert {m.payload for m in log_of(q, "small")} == {b"x" * 10}


def test_a_message_whose_headers_are_full_travels_without_ours(q: duly.Client, run: Run) -> None:
    q.create_topic("later", kind="log")
    full = {f"h{n}": "x" for n in range(duly.LIMITS.headers_max)}
    big = {"h": "x" * (duly.LIMITS.headers_bytes_max - 1)}
    q.publish("orders", [duly.Message(b"x", headers=full), duly.Message(b"y", headers=big)])
    waits_for(run(ToTopic("later")), 2)
    assert [dict(m.headers) for m in log_of(q, "later")] == [full, big]


def test_a_log_and_a_queue_between_are_a_buffer_that_puts_messages_into_order(
    q: duly.Client, run: Run, clock: duly.ManualClock
) -> None:
    count = scaled(10_000, 100_000)
    draw = random.Random(11)
    base = clock.now_ms() + 1_000
    # Four of each moment: those come out as they came in.
    moments = [base + number // 4 for number in range(count)]
    draw.shuffle(moments)
    q.create_topic("timeline", kind="queue")
    q.create_topic("sorted", kind="log")
    for start in range(0, count, 5_000):
        some = moments[start : start + 5_000]
        q.publish("orders", [b'{"at":%d,"n":%d}' % (at, start + n) for n, at in enumerate(some)])
    inward = run(ToTopic("timeline", due="json.at"))
    outward = run(ToTopic("sorted"), topic="timeline", group="")
    waits_for(inward, count)
    clock.advance(1 + count / 1000)
    waits_for(outward, count)
    found = [message.json() for message in log_of(q, "sorted")]
    assert [one["at"] for one in found] == sorted(moments)
    assert [one["n"] for one in found] == sorted(range(count), key=lambda n: (moments[n], n))


def test_a_log_is_forwarded_in_its_order_by_partition(q: duly.Client, run: Run) -> None:
    count = scaled(3_000, 30_000)
    q.create_topic("wide", kind="log", partitions=4)
    q.create_group("wide", "g")
    q.create_topic("copy", kind="log", partitions=3)
    for start in range(0, count, 500):
        q.publish("wide", [duly.Message(b"%d" % n, key=f"k{n % 17}") for n in range(start, start + 500)])
    waits_for(run(ToTopic("copy"), topic="wide", group="g", batch=300), count)
    seen: dict[str | None, list[int]] = {}
    for partition in range(3):
        offset = 0
        while page := q.read("copy", partition=partition, offset=offset, max_messages=10_000):
            offset += len(page)
            for message in page:
                seen.setdefault(message.key, []).append(int(message.payload))
    assert sum(map(len, seen.values())) == count
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_a_target_that_is_gone_disables_the_push_and_nothing_is_lost(q: duly.Client, run: Run, told: Told) -> None:
    q.create_topic("later", kind="log")
    runner = run(ToTopic("later"))
    q.publish("orders", [b"one"])
    waits_for(runner, 1)
    q.delete_topic("later", force=True)
    q.publish("orders", [b"two", b"three"])
    eventually(lambda: not runner.running)
    assert told == [("disabled", {"reason": "the topic 'later' is gone"})]
    back = q.claim("orders", group="billing")
    assert [(d.payload, d.attempt) for d in back] == [(b"two", 1), (b"three", 1)]


def test_expressions_for_a_log_disable_the_push(q: duly.Client, run: Run, told: Told) -> None:
    q.create_topic("later", kind="log")
    q.publish("orders", [b"one"])
    runner = run(ToTopic("later", due="now"))
    eventually(lambda: not runner.running)
    assert [kind for kind, _ in told] == ["disabled"]
    assert "is a log" in str(told[0][1]["reason"])
    assert [d.attempt for d in q.claim("orders", group="billing")] == [1]


def test_a_target_of_another_kind_by_now_costs_no_message_an_attempt(q: duly.Client, run: Run, told: Told) -> None:
    q.create_topic("later", kind="queue")
    runner = run(ToTopic("later", due="now"))
    q.publish("orders", [b"one"])
    waits_for(runner, 1)
    q.delete_topic("later", force=True)
    q.create_topic("later", kind="log")
    q.publish("orders", [b"two"])
    eventually(lambda: not runner.running)
    assert "is a log" in str(told[0][1]["reason"])
    assert [(d.payload, d.attempt) for d in q.claim("orders", group="billing")] == [(b"two", 1)]


def test_what_a_quota_refuses_is_held_in_its_order_and_uses_no_attempt(q: duly.Client, run: Run) -> None:
    q.create_topic("later", kind="log")
    q.publish("orders", [b"%d" % n * 100 for n in range(100)])
    q.update_tenant("default", stored_bytes=1)
    runner = run(ToTopic("later"), batch=30)
    eventually(lambda: q.describe_group("orders", "billing").leased == 30)
    assert runner.forwarded == 0
    q.update_tenant("default", stored_bytes=None)
    eventually(lambda: runner.forwarded == 100, within_s=40)
    assert [m.payload for m in log_of(q, "later")] == [b"%d" % n * 100 for n in range(100)]
    assert not [event for event in q.events() if event.kind in ("nacked", "lease_expired", "lease_taken_over")]


def test_one_that_is_stopped_while_it_holds_gives_back_what_it_held(q: duly.Client, run: Run) -> None:
    q.create_topic("later", kind="log")
    q.publish("orders", [b"x" * 100] * 10)
    q.update_tenant("default", stored_bytes=1)
    runner = run(ToTopic("later"))
    eventually(lambda: q.describe_group("orders", "billing").leased == 10)
    runner.stop(20)
    assert [d.attempt for d in q.claim("orders", group="billing")] == [1] * 10


def test_what_a_predecessor_held_comes_first_and_it_is_fenced_off(q: duly.Client, run: Run, home: Home) -> None:
    q.create_topic("later", kind="log")
    q.publish("orders", [b"%d" % n for n in range(20)])
    before = q.claim("orders", group="billing", max_messages=10, consumer="push:onward")
    waits_for(run(ToTopic("later")), 20)
    assert [m.payload for m in log_of(q, "later")] == [b"%d" % n for n in range(20)]
    assert q.ack(before).done == 0


def test_pushes_that_lead_to_each_other_are_stopped_by_the_budget_of_the_operation(q: duly.Client, run: Run) -> None:
    q.update_tenant("default", operation_messages=50, operation_per_s=1)
    q.create_topic("back", kind="log")
    q.create_group("back", "g")
    there, back = run(ToTopic("back")), run(ToTopic("orders"), topic="back", group="g")
    q.publish("orders", [b"round and round", b"and another"])
    eventually(lambda: len([e for e in q.events() if e.kind == "operation_stopped"]) == 2)
    # Each once before it has an operation, and then as often as that may publish.
    assert there.forwarded + back.forwarded == 2 * (1 + 50)
    assert all(operation.stopped_at_ms is not None for operation in q.operations())


def test_an_operation_that_is_stopped_holds_up_its_own_messages_alone(q: duly.Client, run: Run) -> None:
    q.update_tenant("default", operation_messages=5, operation_per_s=1)
    q.create_topic("later", kind="log")
    of = [duly.Message(b"%d" % n, headers={OPERATION: "busy"} if n % 2 else None) for n in range(10)]
    q.publish("orders", of)
    q.stop_operation("busy")
    waits_for(run(ToTopic("later")), 5)
    assert [int(m.payload) for m in log_of(q, "later")] == [0, 2, 4, 6, 8]
    assert q.describe_group("orders", "billing").retrying == 5


def test_a_delay_does_not_let_a_message_expire_on_the_way(q: duly.Client, run: Run, clock: duly.ManualClock) -> None:
    q.create_topic("later", kind="queue")
    q.publish("orders", duly.Message(b"lives", ttl=10, id="a"))
    q.publish("orders", duly.Message(b"lives", ttl=10, id="b"))
    waits_for(run(ToTopic("later", due="published + 1h")), 2)
    one = q.get("later", "a")
    assert one is not None
    assert (one.due_at_ms, one.expires_at_ms) == (clock.now_ms() + 3_600_000, clock.now_ms() + 3_610_000)
    clock.advance(timedelta(hours=1))
    assert len(q.claim("later", max_messages=1)) == 1
    clock.advance(11)
    assert len(q.claim("later")) == 0


def test_an_id_in_use_in_the_target_is_left_out_and_acked(q: duly.Client, run: Run) -> None:
    q.create_topic("later", kind="queue")
    q.publish("later", duly.Message(b"was there", id="one"))
    q.publish("orders", [duly.Message(b"again", id="one"), duly.Message(b"new", id="two")])
    runner = run(ToTopic("later"))
    eventually(lambda: left(q) == 0 and runner.forwarded == 2)
    assert sorted(d.payload for d in claim_all(q, "later")) == [b"new", b"was there"]


def test_a_group_that_is_paused_is_not_forwarded(q: duly.Client, run: Run) -> None:
    q.create_topic("later", kind="log")
    q.pause("orders", group="billing")
    runner = run(ToTopic("later"))
    q.publish("orders", [b"one"])
    clock_stands = threading.Event()
    assert not clock_stands.wait(0.2)
    assert runner.forwarded == 0
    q.resume("orders", group="billing")
    waits_for(runner, 1)


def test_two_runners_at_once_with_leases_that_are_taken_away_double_nothing(
    q: duly.Client, home: Home, run: Run, clock: duly.ManualClock
) -> None:
    if not home.shared:
        pytest.skip("a store in memory has one client")
    count = scaled(2_000, 20_000)
    q.create_topic("later", kind="log")
    q.publish("orders", [b"%d" % n for n in range(count)])
    runners = [run(ToTopic("later"), client=home.connect(consumer=f"r{n}"), batch=37) for n in range(2)]
    stopping = threading.Event()

    def thief() -> None:
        while not stopping.wait(0.01):
            try:
                q.release(consumer="push:onward", topic="orders", group="billing")
            except duly.Busy:
                continue

    thread = threading.Thread(target=thief)
    thread.start()
    try:
        eventually(lambda: sum(r.forwarded for r in runners) >= count, within_s=120)
    finally:
        stopping.set()
        thread.join()
    eventually(lambda: left(q) == 0)
    found = Counter(m.payload for m in log_of(q, "later"))
    assert len(found) == count
    assert set(found.values()) == {1}


def test_a_thing_that_fails_inside_leaves_neither_half(q: duly.Client, run: Run, monkeypatch: Any) -> None:
    """Broken on purpose: the publish is refused after the ack, in the same transaction, time and again."""
    q.create_topic("later", kind="log")
    q.publish("orders", [b"one", b"two"])
    port: Any = q._alive()
    do, failures = port.do, [duly.Busy("on purpose"), duly.StoreFull(), duly.StoreError("a fault")]

    def failing(command: Any, **how: Any) -> Any:
        if type(command).__name__ == "Publish" and how.get("tx") is not None and failures:
            raise failures.pop()
        return do(command, **how)

    monkeypatch.setattr(port, "do", failing)
    runner = run(ToTopic("later"))
    eventually(lambda: runner.forwarded == 2)
    assert not failures
    assert [m.payload for m in log_of(q, "later")] == [b"one", b"two"]
    assert left(q) == 0
