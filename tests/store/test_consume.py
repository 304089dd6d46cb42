"""q.consume(): a loop over deliveries, and how each of them ends."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import duly

from .conftest import Home, sharp
from .patience import Aside


@pytest.fixture
def emails(q: duly.Client) -> str:
    """A queue with leases of 30 s and retries after 10 s sharp."""
    q.create_topic("emails", kind="queue", lease=30, retry=sharp(10, max_attempts=3))
    return "emails"


def states(q: duly.Client) -> dict[bytes, str]:
    return {m.payload: m.state for m in q.browse("emails") if m.payload is not None}


def reason_of(q: duly.Client, payload: bytes) -> str:
    (message,) = [m for m in q.browse("emails") if m.payload == payload]
    return message.history[-1].reason


def test_asking_for_the_next_acks_the_one_before(q: duly.Client, emails: str) -> None:
    q.publish(emails, [b"1", b"2", b"3"])
    loop = q.consume(emails)
    assert next(loop).payload == b"1"
    assert states(q) == {b"1": "leased", b"2": "ready", b"3": "ready"}, "one at a time"
    assert next(loop).payload == b"2"
    assert states(q) == {b"2": "leased", b"3": "ready"}
    loop.close()


def test_it_waits_without_end_and_wakes_for_what_comes(q: duly.Client, emails: str) -> None:
    loop = q.consume(emails)
    first = Aside(lambda: next(loop).payload)
    assert first.still_running_after(0.1)
    q.publish(emails, b"1")
    assert first.result() == b"1"
    loop.close()


def test_with_a_wait_it_ends_when_nothing_comes(q: duly.Client, emails: str) -> None:
    q.publish(emails, [b"1", b"2"])
    assert [d.payload for d in q.consume(emails, wait=0)] == [b"1", b"2"]
    assert states(q) == {}
    assert list(q.consume(emails, wait=0.05)) == []


def test_what_was_settled_in_the_loop_stays_so(q: duly.Client, emails: str, clock: duly.ManualClock) -> None:
    q.publish(emails, [b"nack", b"bury", b"ack"])
    for d in q.consume(emails, wait=0):
        d.nack(delay=60, reason="later") if d.payload == b"nack" else getattr(d, d.payload.decode())()
    assert states(q) == {b"nack": "retrying", b"bury": "dead"}


def leave_by_break(q: duly.Client) -> None:
    for _ in q.consume("emails"):
        break


def leave_by_return(q: duly.Client) -> bytes:
    for d in q.consume("emails"):
        return d.payload
    return b""


def leave_by_exception(q: duly.Client) -> None:
    def fail() -> None:
        for _ in q.consume("emails"):
            raise ValueError("no such address")

    with pytest.raises(ValueError, match="no such address"):
        fail()


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_return, leave_by_exception])
def test_leaving_a_bare_loop_nacks_what_is_at_hand(
    q: duly.Client, emails: str, leave: Callable[[duly.Client], object]
) -> None:
    """A loop does not say why it was left: a message that makes every consumer fail must run out of attempts."""
    q.publish(emails, [b"1", b"2"])
    leave(q)
    assert states(q) == {b"1": "retrying", b"2": "ready"}
    assert reason_of(q, b"1") == "the consumer left its loop"


def test_acked_before_the_break_is_done(q: duly.Client, emails: str) -> None:
    q.publish(emails, b"1")
    for d in q.consume(emails):
        d.ack()
        break
    assert states(q) == {}


def test_a_with_block_tells_a_break_from_an_exception(q: duly.Client, emails: str) -> None:
    """The rules of `with q.claim()`: ack at the end, nack when it raised."""
    q.publish(emails, [b"1", b"2"])
    with q.consume(emails) as deliveries:
        for _ in deliveries:
            break
    assert states(q) == {b"2": "ready"}
    deliveries = q.consume(emails)
    next(deliveries)
    with pytest.raises(ValueError, match="no such address"), deliveries:
        raise ValueError("no such address")
    assert states(q) == {b"2": "retrying"}
    assert reason_of(q, b"2") == "ValueError: no such address"


def test_several_at_a_time_are_claimed_together_and_the_untouched_released(q: duly.Client, emails: str) -> None:
    q.publish(emails, [b"1", b"2", b"3", b"4"])
    for d in q.consume(emails, max_messages=3):
        assert states(q)[b"3"] == "leased"
        if d.payload == b"2":
            break
    assert states(q) == {b"2": "retrying", b"3": "ready", b"4": "ready"}
    assert [d.attempt for d in q.claim(emails)] == [1, 1], "nobody tried them"


def test_a_lost_lease_is_logged_and_the_loop_goes_on(
    home: Home, clock: duly.ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    q, thief = home.connect(), home.connect()
    q.create_topic("emails", kind="queue", lease=30)
    q.publish("emails", b"1")
    seen = []
    for d in q.consume("emails", wait=0):
        seen.append(d.payload)
        if d.payload == b"1":
            clock.advance(31)
            assert thief.claim("emails").payloads == [b"1"]
            q.publish("emails", b"2")
    assert seen == [b"1", b"2"]
    assert "expired or was taken over" in caplog.text
    assert states(q) == {b"1": "leased"}


def test_it_is_renewed_while_the_body_works() -> None:
    with duly.connect(":memory:") as q:
        q.create_topic("emails", kind="queue")
        q.publish("emails", b"1")
        for d in q.consume("emails", lease=0.3, wait=0):
            assert len(q.claim("emails", wait=1)) == 0
            assert d.attempt == 1
        assert states(q) == {}


def test_a_group_of_a_log(q: duly.Client, orders: str) -> None:
    q.publish(orders, [b"1", b"2"])
    assert [d.payload for d in q.consume(orders, group="billing", wait=0)] == [b"1", b"2"]
    assert q.describe_group(orders, "billing").lag == 0


def test_bad_arguments_are_refused_at_once(q: duly.Client, emails: str) -> None:
    wrongs: list[dict[str, Any]] = [
        {"max_messages": 0},
        {"lease": 0},
        {"group": ""},
        {"wait": "5s"},
        {"wait": -1},
        {"timeout": 0},
    ]
    for wrong in wrongs:
        with pytest.raises(duly.InvalidArgument):
            q.consume(emails, **wrong)
    with pytest.raises(duly.TopicNotFound):
        next(q.consume("nowhere"))


def test_a_loop_that_the_collector_comes_upon_harms_nobody(q: duly.Client, emails: str) -> None:
    q.publish(emails, b"1")

    class Owner:
        pass

    owner = Owner()
    owner.me, owner.loop = owner, q.consume(emails)  # type: ignore[attr-defined]
    next(owner.loop)  # type: ignore[attr-defined]
    del owner
    collected = threading.Thread(target=gc.collect)
    collected.start()
    collected.join(10)
    assert states(q) == {b"1": "retrying"}
