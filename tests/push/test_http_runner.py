"""The runner: slots, dead endpoints, slow ones beside others, lookups that hang, and the end."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

import duly
from duly.broker.pushes.lookups import Found, Lookups
from duly.broker.pushes.reach import Reach
from duly.broker.pushes.sending import Sockets
from duly.clock import monotonic_s
from duly.push import RunningPush, ToHttp
from tests.conftest import scaled
from tests.push.conftest import Pushing
from tests.push.receiver import Receiver, Request, http, never
from tests.store.patience import eventually

FAST = duly.RetryPolicy(max_attempts=50, base=0.01, cap=0.02)


def after(wait_s: float) -> Any:
    async def answering(writer: asyncio.StreamWriter, request: Request) -> None:
        await asyncio.sleep(wait_s)
        await http()(writer, request)

    return answering


def hold_all(receiver: Receiver) -> Callable[[], None]:
    """Requests are answered when the returned is called."""
    open_ = threading.Event()

    async def answering(writer: asyncio.StreamWriter, request: Request) -> None:
        while not open_.is_set():
            await asyncio.sleep(0.005)
        await http()(writer, request)

    receiver.always["/hook"] = answering
    return open_.set


def test_no_more_is_claimed_than_there_are_slots_for(pushing: Pushing, receiver: Receiver) -> None:
    pushing.q.create_topic("hooks", kind="queue")
    let_go = hold_all(receiver)
    pushing.q.publish("hooks", [b"x"] * 50)
    pushing.start("hooks", ToHttp(receiver.url(), concurrency=4, batch=3))
    eventually(lambda: len(receiver.requests) == 4)
    threading.Event().wait(0.1)
    assert len(receiver.requests) == 4
    assert pushing.counts("hooks")[1] == 12
    assert receiver.connections == 4
    let_go()
    eventually(lambda: pushing.counts("hooks") == (0, 0, 0, 0))
    sent = [one["offset"] for got in receiver.requests for one in json.loads(got.body)["messages"]]
    assert sorted(sent) == list(range(50))
    assert receiver.connections == 4


def test_max_in_flight_of_the_group_holds(pushing: Pushing, receiver: Receiver) -> None:
    pushing.q.create_topic("hooks", kind="queue", max_in_flight=2)
    let_go = hold_all(receiver)
    pushing.q.publish("hooks", [b"x"] * 20)
    pushing.start("hooks", ToHttp(receiver.url(), concurrency=16))
    eventually(lambda: len(receiver.requests) == 2)
    threading.Event().wait(0.1)
    assert len(receiver.requests) == 2
    let_go()
    eventually(lambda: pushing.counts("hooks") == (0, 0, 0, 0))
    assert len(receiver.requests) == 20


def test_dead_endpoint_gets_probes_alone_and_uses_no_attempts(
    pushing_with: Callable[..., Pushing], receiver: Receiver, clock: duly.ManualClock
) -> None:
    pushing = pushing_with(reach=Reach.of([f"127.0.0.1:{receiver.port}"]), clock=clock)
    breaker = duly.Breaker(failures=0.5, calls=20, window=10, probe=1, probe_max=4)
    retry = duly.RetryPolicy(max_attempts=3, base=0.1, cap=0.1)
    pushing.q.create_topic("hooks", kind="queue", retry=retry, breaker=breaker)
    receiver.always["/hook"] = http(503)
    pushing.q.publish("hooks", [b"%d" % number for number in range(100)])
    pushing.start("hooks", ToHttp(receiver.url(), concurrency=8))

    def is_open() -> bool:
        clock.advance(0.1)
        gate = pushing.q.describe_group("hooks", "queue").gate
        return gate is not None and gate.breaker == "open"

    eventually(is_open)
    eventually(lambda: pushing.counts("hooks")[1] == 0)
    before = len(receiver.requests)
    assert before <= 20 + 8
    # The breaker's probes come after 1, 2, 4, 4, … seconds: in sixty that is seventeen at most.
    for _ in range(240):
        clock.advance(0.25)
        threading.Event().wait(0.004)
    eventually(lambda: pushing.counts("hooks")[1] == 0)
    probes = len(receiver.requests) - before
    assert 5 <= probes <= 17
    assert pushing.counts("hooks")[3] == 0
    assert max(int(got.headers["duly-attempt"]) for got in receiver.requests[before:]) <= 3
    receiver.always["/hook"] = http()

    def is_empty() -> bool:
        clock.advance(0.5)
        return pushing.counts("hooks") == (0, 0, 0, 0)

    eventually(is_empty)


def test_slow_endpoints_do_not_delay_others(pushing: Pushing, receiver: Receiver) -> None:
    slow = 20
    receiver.always["/slow"] = never
    receiver.always["/slower"] = never
    for number in range(slow):
        pushing.q.create_topic(f"slow-{number}", kind="queue")
        pushing.q.publish(f"slow-{number}", [b"x"] * 50)
        pushing.start(f"slow-{number}", ToHttp(receiver.url("/slow"), concurrency=8, timeout=30))
    eventually(lambda: len(receiver.requests) == slow * 8)
    pushing.q.create_topic("quick", kind="queue")
    pushing.start("quick", ToHttp(receiver.url("/quick"), concurrency=2))
    began = monotonic_s()
    pushing.q.publish("quick", [b"x"] * scaled(100, 1_000))
    eventually(lambda: pushing.counts("quick") == (0, 0, 0, 0))
    assert monotonic_s() - began < 5


def test_pushes_that_wait_hold_no_threads(pushing: Pushing, receiver: Receiver) -> None:
    before = threading.active_count()
    for number in range(scaled(60, 1_000)):
        pushing.q.create_topic(f"t-{number}", kind="queue")
        pushing.start(f"t-{number}", ToHttp(receiver.url()))
    eventually(lambda: pushing.broker.room.count == scaled(60, 1_000))
    assert threading.active_count() - before <= 3
    pushing.q.publish("t-7", b"x")
    eventually(lambda: len(receiver.requests) == 1)


def test_lack_of_our_own_is_no_failure_of_the_endpoint(
    pushing: Pushing, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushing.q.create_topic("hooks", kind="queue", retry=duly.RetryPolicy(max_attempts=1))
    full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    failing = [full] * 3

    def open_socket(*args: Any) -> socket.socket:
        if failing:
            raise failing.pop()
        return socket.socket(*args)

    class Sockets:
        socket = staticmethod(open_socket)

        def __getattr__(self, name: str) -> Any:
            return getattr(socket, name)

    monkeypatch.setattr("duly.broker.pushes.sending.socket", Sockets())
    pushing.q.publish("hooks", b"x")
    pushing.start("hooks", ToHttp(receiver.url()))
    eventually(lambda: pushing.counts("hooks") == (0, 0, 0, 0))
    assert receiver.requests[0].headers["duly-attempt"] == "1"
    assert not failing


def test_connections_are_counted_until_they_are_gone(pushing: Pushing, receiver: Receiver) -> None:
    for number in range(5):
        pushing.q.create_topic(f"t-{number}", kind="queue")
        pushing.q.publish(f"t-{number}", [b"x"] * 20)
        receiver.next["/hook"] += [http(), http(200, b"half", length=100), http(500)]
        pushing.start(f"t-{number}", ToHttp(receiver.url(), concurrency=4))
    eventually(lambda: len(receiver.requests) >= 100)
    assert 5 <= pushing.out.sockets.count <= 20
    pushing.close_runners()
    eventually(lambda: pushing.out.sockets.count == 0)


def test_tenant_with_all_connections_leaves_some_to_others_and_loses_no_attempt(
    pushing: Pushing, receiver: Receiver
) -> None:
    pushing.out.sockets = Sockets(most=8)
    pushing.q.create_topic("hooks", kind="queue", retry=duly.RetryPolicy(max_attempts=1))
    let_go = hold_all(receiver)
    pushing.q.publish("hooks", [b"x"] * 20)
    pushing.start("hooks", ToHttp(receiver.url(), concurrency=16))
    eventually(lambda: len(receiver.requests) == 4)
    other = pushing.q_of("other")
    other.create_topic("hooks", kind="queue")
    other.publish("hooks", b"other")
    pushing.start("hooks", ToHttp(receiver.url()), tenant="other")
    eventually(lambda: b"other" in receiver.bodies)
    let_go()
    eventually(lambda: pushing.counts("hooks") == (0, 0, 0, 0))
    assert len(receiver.requests) == 21


def test_payloads_in_memory_are_bounded(pushing: Pushing, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.broker.pushes.outbound._BYTES_MAX", 3_000_000)
    let_go = hold_all(receiver)
    for number in range(4):
        pushing.q.create_topic(f"t-{number}", kind="queue")
        pushing.q.publish(f"t-{number}", [bytes(1_000_000)] * 2)
    for number in range(4):
        pushing.start(f"t-{number}", ToHttp(receiver.url(), concurrency=1))
        eventually(lambda: len(receiver.requests) == min(number + 1, 2))  # noqa: B023
    threading.Event().wait(0.2)
    # The first two hold half of it.
    assert len(receiver.requests) == 2
    let_go()
    eventually(lambda: len(receiver.requests) == 8)


def test_stop_waits_for_what_is_under_way(pushing: Pushing, receiver: Receiver) -> None:
    pushing.q.create_topic("hooks", kind="queue")
    receiver.always["/hook"] = after(0.3)
    pushing.q.publish("hooks", [b"x"] * 20)
    runner = pushing.start("hooks", ToHttp(receiver.url(), concurrency=4))
    eventually(lambda: len(receiver.requests) == 4)
    runner.stop(10)
    assert len(receiver.requests) == 4
    assert pushing.counts("hooks") == (16, 0, 0, 0)


def test_stop_gives_back_what_is_not_over_without_an_attempt(pushing: Pushing, receiver: Receiver) -> None:
    pushing.q.create_topic("hooks", kind="queue")
    receiver.always["/hook"] = never
    pushing.q.publish("hooks", [b"x"] * 20)
    runner = pushing.start("hooks", ToHttp(receiver.url(), concurrency=4))
    eventually(lambda: len(receiver.requests) == 4)
    began = monotonic_s()
    runner.stop(0.1)
    assert monotonic_s() - began < 3
    with pushing.q.claim("hooks", max_messages=100, wait=1) as batch:
        assert [one.attempt for one in batch] == [1] * 20
    assert pushing.broker.room.count == 0


def test_stopped_while_it_waits_it_takes_nothing_more(pushing: Pushing, receiver: Receiver) -> None:
    pushing.q.create_topic("hooks", kind="queue")
    runner = pushing.start("hooks", ToHttp(receiver.url()))
    eventually(lambda: pushing.broker.room.count == 1)
    runner.stop(5)
    pushing.q.publish("hooks", b"x")
    threading.Event().wait(0.05)
    assert (receiver.requests, pushing.counts("hooks")[0]) == ([], 1)


def test_topic_that_is_deleted_and_made_again_is_pushed_again(pushing: Pushing, receiver: Receiver) -> None:
    pushing.q.create_topic("hooks", kind="queue")
    pushing.start("hooks", ToHttp(receiver.url()))
    eventually(lambda: pushing.broker.room.count == 1)
    pushing.q.delete_topic("hooks", force=True)
    eventually(lambda: pushing.broker.room.count == 0)
    pushing.q.create_topic("hooks", kind="queue")
    pushing.q.publish("hooks", b"x")
    eventually(lambda: receiver.bodies == [b"x"])


def test_url_that_no_client_can_read_fails_like_any_other(pushing: Pushing) -> None:
    pushing.q.create_topic("hooks", kind="queue")
    pushing.q.publish("hooks", b"x")
    pushing.start("hooks", ToHttp("http://xn--/"))
    eventually(lambda: pushing.counts("hooks")[2] == 1)


def test_trial_after_the_end_is_told_so(pushing: Pushing, receiver: Receiver) -> None:
    push = RunningPush("default", "p", "t", "queue", ToHttp(receiver.url()))
    assert pushing.out.try_out(push).status == 204
    pushing.out.close()
    pushing.out.close()
    with pytest.raises(duly.Closed):
        pushing.out.try_out(push)


# Lookups


class Hanging:
    """A resolver that hangs for some names until it is let go."""

    def __init__(self, port: int) -> None:
        self.let_go = threading.Event()
        self.asked: list[str] = []

    def __call__(self, name: str, port: int) -> Found:
        self.asked.append(name)
        if name.startswith("hangs"):
            self.let_go.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return [(socket.AF_INET, "127.0.0.1")]


def test_names_that_hang_hold_up_no_others(pushing_with: Callable[..., Pushing], receiver: Receiver) -> None:
    names = Hanging(receiver.port)
    pushing = pushing_with(reach=Reach.of(["127.0.0.1"], [receiver.port]), lookups=Lookups(names, threads_max=16))
    try:
        for number in range(6):
            pushing.q.create_topic(f"t-{number}", kind="queue")
            pushing.q.publish(f"t-{number}", [b"x"] * 20)
            # Those of two share a name.
            url = f"http://hangs-{number // 2}.example:{receiver.port}/"
            pushing.start(f"t-{number}", ToHttp(url, concurrency=10, timeout=30))
        eventually(lambda: len(names.asked) == 3)
        pushing.q.create_topic("hooks", kind="queue")
        pushing.q.publish("hooks", b"x")
        pushing.start("hooks", ToHttp(f"http://quick.example:{receiver.port}/"))
        eventually(lambda: receiver.bodies == [b"x"])
        assert sorted(names.asked) == ["hangs-0.example", "hangs-1.example", "hangs-2.example", "quick.example"]
    finally:
        names.let_go.set()


def test_one_tenants_names_that_hang_leave_threads_to_another() -> None:
    names = Hanging(80)
    lookups = Lookups(names, threads_max=4)

    async def looking() -> None:
        loop = asyncio.get_running_loop()
        wanted = [loop.create_task(lookups.addresses(f"hangs-{n}", 80, tenant="noisy")) for n in range(20)]
        await asyncio.sleep(0.05)
        assert len(names.asked) == 2
        assert await lookups.addresses("quick", 80, tenant="quiet") == [(socket.AF_INET, "127.0.0.1")]
        names.let_go.set()
        failures = await asyncio.gather(*wanted, return_exceptions=True)
        assert all(isinstance(failure, OSError) for failure in failures)
        # None is left over.
        assert await lookups.addresses("quick", 80, tenant="noisy")

    asyncio.run(looking())


def test_names_that_took_long_get_a_quarter_of_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.broker.pushes.lookups._SLOW_S", 0.02)
    lookups = Lookups(look=(names := Hanging(80)), threads_max=8)

    async def looking() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            names.let_go.clear()
            names.asked.clear()
            wanted = [loop.create_task(lookups.addresses(f"hangs-{n}", 80, tenant="t")) for n in range(4)]
            await asyncio.sleep(0.1)
            started = len(names.asked)
            names.let_go.set()
            await asyncio.gather(*wanted, return_exceptions=True)
        assert started == 2

    asyncio.run(looking())
