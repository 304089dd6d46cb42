"""A paused store delivers nothing of any topic and drops nothing; publishing and settling go on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import duly

from .conftest import Home
from .patience import Aside, eventually


@pytest.fixture
def emails(q: duly.Client) -> str:
    q.create_topic("emails", kind="queue", lease=30)
    return "emails"


def test_nothing_is_delivered_of_any_topic_until_it_is_resumed(q: duly.Client, orders: str, emails: str) -> None:
    q.pause_store()
    q.publish(orders, b"log")
    q.publish(emails, b"queue")
    assert not q.claim(orders, group="billing")
    assert not q.claim(emails)
    q.resume_store()
    assert q.claim(orders, group="billing").payloads == [b"log"]
    assert q.claim(emails).payloads == [b"queue"]


def test_what_is_held_can_be_settled_and_keeps_its_lease(q: duly.Client, emails: str) -> None:
    q.publish(emails, [b"1", b"2"])
    batch = q.claim(emails)
    q.pause_store()
    batch[0].ack()
    q.resume_store()
    assert not q.claim(emails)
    batch[1].ack()
    assert q.describe_topic(emails).messages == 0


def test_a_consumer_does_not_get_back_what_it_held(q: duly.Client, emails: str) -> None:
    q.publish(emails, b"1")
    q.claim(emails)
    q.pause_store()
    assert q.held() == []
    q.resume_store()
    assert [batch.payloads for batch in q.held()] == [[b"1"]]


def test_a_waiting_claim_wakes_when_the_store_is_resumed(q: duly.Client, orders: str, emails: str) -> None:
    q.publish(orders, b"log")
    q.publish(emails, b"queue")
    q.pause_store()
    with (
        Aside(lambda: q.claim(orders, group="billing", wait=20)) as one,
        Aside(lambda: q.claim(emails, wait=20)) as other,
    ):
        assert one.still_running_after(0.2)
        assert other.running
        q.resume_store()
        assert one.result().payloads == [b"log"]
        assert other.result().payloads == [b"queue"]


def test_other_processes_and_clients_obey_at_once(home: Home, q: duly.Client, emails: str) -> None:
    other = home.connect()
    q.publish(emails, b"1")
    assert len(other.claim(emails)) == 1
    q.publish(emails, b"2")
    script = f"import duly\nwith duly.connect({home.address!r}) as q:\n    q.pause_store()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert not other.claim(emails)
    other.resume_store()
    assert q.claim(emails).payloads == [b"2"]


def test_a_paused_store_drops_nothing_by_age(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("short", kind="log", retention=duly.Retention(age=60))
    q.publish("short", b"old")
    q.pause_store()
    clock.advance(3600)
    q.publish("short", b"new")
    # Nothing tells that nothing will happen; a chore that ran would have run by then.
    threading.Event().wait(0.2)
    assert [message.payload for message in q.read("short")] == [b"old", b"new"]


def test_it_is_seen(q: duly.Client, emails: str) -> None:
    q.pause_store()
    q.pause_store()
    assert q.describe_topic(emails).paused
    assert [found.level for found in q.examine() if "paused by hand" in found.what] == ["warn"]
    q.resume_store()
    q.resume_store()
    assert not q.describe_topic(emails).paused
    assert not [found for found in q.examine() if "paused" in found.what]


def test_it_outlives_its_clients(q: duly.Client, emails: str, reopen: Callable[[], duly.Client]) -> None:
    q.publish(emails, b"1")
    q.pause_store()
    q.close()
    again = reopen()
    assert not again.claim(emails)
    again.resume_store()
    assert len(again.claim(emails)) == 1


def test_retention_goes_on_where_it_stopped(q: duly.Client, clock: duly.ManualClock) -> None:
    q.create_topic("short", kind="log", retention=duly.Retention(age=60))
    q.publish("short", b"old")
    q.pause_store()
    clock.advance(3600)
    assert len(q.read("short")) == 1
    q.resume_store()
    eventually(lambda: q.describe_topic("short").messages == 0)
