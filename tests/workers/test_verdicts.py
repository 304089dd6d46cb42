"""How a handler's end becomes the end of its message."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable

import pytest

import duly
from tests.store.patience import eventually

from .conftest import unsettled, working

Raise = Callable[[], None]


def bind(workers: duly.Workers, kind: str, body: Callable[[duly.Delivery], object]) -> None:
    """Binds a handler for `emails` that does the same as a function and as a coroutine."""
    if kind == "sync":
        workers.on("emails")(body)
        return

    @workers.on("emails")
    async def handler(d: duly.Delivery) -> None:
        await asyncio.sleep(0)
        body(d)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_return_acks(q: duly.Client, workers: duly.Workers, kind: str) -> None:
    seen: list[bytes] = []
    bind(workers, kind, lambda d: seen.append(d.payload))
    q.publish("emails", [b"1", b"2", b"3"])
    workers.run(q, drain=True)
    assert sorted(seen) == [b"1", b"2", b"3"]
    assert unsettled(q) == []


def test_an_exception_nacks_with_the_last_line_of_its_traceback(
    q: duly.Client, workers: duly.Workers, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(d: duly.Delivery) -> None:
        raise ValueError("no such address")

    q.update_topic("emails", retry=duly.RetryPolicy(max_attempts=8, base=3600, jitter="none"))
    bind(workers, kind, fail)
    q.publish("emails", duly.Message(b"1", id="m"))
    workers.run(q, drain=True)
    message = q.get("emails", "m")
    assert message is not None
    assert message.state == "retrying", "it waits for the back-off of its topic's retry policy"
    assert [(f.attempt, f.what, f.reason) for f in message.history] == [(1, "nack", "ValueError: no such address")]
    (failure,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "fail" in failure.getMessage() or "handler" in failure.getMessage()
    assert failure.exc_info is not None
    assert failure.exc_info[0] is ValueError


def test_the_last_attempt_buries(q: duly.Client, workers: duly.Workers, kind: str) -> None:
    attempts: list[int] = []

    def fail(d: duly.Delivery) -> None:
        attempts.append(d.attempt)
        raise KeyError("x")

    q.update_topic("emails", retry=duly.RetryPolicy(max_attempts=3, base=0.001, jitter="none"))
    bind(workers, kind, fail)
    q.publish("emails", b"1")
    with working(workers, q):
        (letter,) = eventually(lambda: list(q.dead("emails")))
    assert attempts == [1, 2, 3]
    assert letter.reason == "KeyError: 'x'"


def test_retry_later_says_when_and_why(
    q: duly.Client, workers: duly.Workers, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def later(d: duly.Delivery) -> None:
        raise duly.RetryLater(delay=7200, reason="the bank is closed")

    bind(workers, kind, later)
    q.publish("emails", duly.Message(b"1", id="m"))
    before = duly.SystemClock().now_ms()
    workers.run(q, drain=True)
    message = q.get("emails", "m")
    assert message is not None
    assert [f.reason for f in message.history] == ["the bank is closed"]
    assert message.due is not None
    assert 7200 <= message.due.timestamp() - before / 1000 < 7230
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], "it is no failure"


def test_retry_later_without_a_delay_takes_the_policys(q: duly.Client, workers: duly.Workers) -> None:
    attempts: list[int] = []

    @workers.on("emails")
    def later(d: duly.Delivery) -> None:
        attempts.append(d.attempt)
        if d.attempt < 3:
            raise duly.RetryLater

    q.publish("emails", b"1")
    with working(workers, q):
        eventually(lambda: attempts == [1, 2, 3] and not unsettled(q))


@pytest.mark.parametrize("delay", [-1, 1e12])
def test_a_delay_out_of_bounds_is_refused_where_it_is_raised(delay: float) -> None:
    with pytest.raises(duly.LimitExceeded):
        duly.RetryLater(delay)


def test_bury_buries_at_once(q: duly.Client, workers: duly.Workers, kind: str) -> None:
    def bury(d: duly.Delivery) -> None:
        raise duly.Bury("no such customer")

    bind(workers, kind, bury)
    q.publish("emails", b"1")
    workers.run(q, drain=True)
    (letter,) = q.dead("emails")
    assert (letter.reason, letter.attempts) == ("no such customer", 1)


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "bury"])
@pytest.mark.parametrize("fails", [False, True])
def test_what_the_handler_settled_itself_stays_so(
    q: duly.Client, workers: duly.Workers, kind: str, verb: str, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def settle(d: duly.Delivery) -> None:
        if d.attempt == 1 and not once:
            once.append(verb)
            d.nack(delay=3600) if verb == "nack" else getattr(d, verb)()
            if fails:
                raise ValueError("afterwards")

    once: list[str] = []
    bind(workers, kind, settle)
    q.publish("emails", duly.Message(b"1", id="m"))
    workers.run(q, drain=True)
    assert "came to nothing" not in caplog.text
    message = q.get("emails", "m")
    states = {"ack": "finished", "release": "finished", "nack": "retrying", "bury": "dead"}
    assert (None if message is None else message.state) == states[verb]
    assert ("afterwards" in caplog.text) == fails, "it is told all the same"


def test_sys_exit_in_a_handler_fails_its_message_and_nothing_else(
    q: duly.Client, workers: duly.Workers, kind: str
) -> None:
    seen: list[bytes] = []

    def leave(d: duly.Delivery) -> None:
        seen.append(d.payload)
        if d.payload == b"1":
            sys.exit(3)

    q.update_topic("emails", retry=duly.RetryPolicy(max_attempts=1))
    bind(workers, kind, leave)
    q.publish("emails", [b"1", b"2"])
    workers.run(q, drain=True)
    assert sorted(seen) == [b"1", b"2"]
    assert [letter.reason for letter in q.dead("emails")] == ["SystemExit: 3"]


def test_a_function_that_returns_a_coroutine_is_not_taken_for_done(q: duly.Client, workers: duly.Workers) -> None:
    async def work() -> None:
        raise AssertionError("nobody awaits it")

    q.update_topic("emails", retry=duly.RetryPolicy(max_attempts=1))
    workers.on("emails")(lambda d: work())
    q.publish("emails", b"1")
    workers.run(q, drain=True)
    (letter,) = q.dead("emails")
    assert "async def" in letter.reason


def test_an_object_with_an_async_call_is_an_async_handler(q: duly.Client, workers: duly.Workers) -> None:
    class Send:
        def __init__(self) -> None:
            self.seen: list[bytes] = []

        async def __call__(self, d: duly.Delivery) -> None:
            await asyncio.sleep(0)
            self.seen.append(d.payload)

    send = Send()
    workers.on("emails")(send)
    q.publish("emails", b"1")
    workers.run(q, drain=True)
    assert send.seen == [b"1"]


def test_a_group_of_a_log_is_worked_on_too(q: duly.Client, workers: duly.Workers) -> None:
    q.create_topic("orders", kind="log")
    seen: dict[str, list[bytes]] = {"billing": [], "audit": []}
    for group in seen:
        q.create_group("orders", group)
        workers.on("orders", group=group)(lambda d: seen[d.group].append(d.payload))
    q.publish("orders", [b"1", b"2"])
    workers.run(q, drain=True)
    assert seen == {"billing": [b"1", b"2"], "audit": [b"1", b"2"]}


def test_a_lost_lease_is_logged_and_the_worker_goes_on(
    path: str, clock: duly.ManualClock, workers: duly.Workers, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    with duly.connect(path, clock=clock, consumer="w1") as q, duly.connect(path, clock=clock, consumer="w2") as thief:
        q.create_topic("emails", kind="queue", lease=30)
        seen: list[bytes] = []

        def slow(d: duly.Delivery) -> None:
            seen.append(d.payload)
            if d.payload == b"1":
                clock.advance(31)
                assert thief.claim("emails").payloads == [b"1"]

        bind(workers, kind, slow)
        q.publish("emails", b"1")
        with working(workers, q):
            eventually(lambda: "came to nothing" in caplog.text)
            q.publish("emails", b"2")
            eventually(lambda: seen == [b"1", b"2"])
        assert [(m.state, m.payload) for m in q.browse("emails")] == [("leased", b"1")]
