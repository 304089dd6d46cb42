"""What a process remembers of leases outlasts others' turns; who settles goes by how they are, not how they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import duly

from .conftest import Application
from .test_locks import begun, messages, states


@pytest.fixture
def held(q: duly.Client) -> duly.Batch:
    """Five messages that q holds by one lease, and remembers."""
    q.publish("jobs", messages(5))
    return q.claim("jobs", max_messages=5)


@pytest.fixture
def other(app: Application) -> duly.Client:
    return app.elsewhere("w2")


def test_what_was_acked_elsewhere_is_lost_and_the_rest_is_done(
    q: duly.Client, other: duly.Client, held: duly.Batch
) -> None:
    assert other.ack([held[0], held[3]]).done == 2
    settled = q.ack(list(held))
    assert settled.done == 3
    assert sorted(one.id for one in settled.lost) == ["m0", "m3"]
    assert states(q) == {}


@pytest.mark.parametrize("again", [lambda q, d: q.nack([d], delay=60), lambda q, d: q.ack([d])], ids=["nack", "ack"])
def test_part_of_it_settled_elsewhere_stays_settled(
    q: duly.Client, other: duly.Client, held: duly.Batch, again: Callable[[duly.Client, duly.Delivery], duly.Settled]
) -> None:
    other.ack([held[0]])
    assert again(q, held[1]).done == 1
    assert "m0" not in states(q)
    assert [one.id for one in again(q, held[0]).lost] == ["m0"]
    assert other.ack([held[2], held[3], held[4]]).done == 3
    assert "m0" not in states(q)


def test_mail_on_the_rest_of_it_brings_nothing_back(
    app: Application, q: duly.Client, other: duly.Client, held: duly.Batch
) -> None:
    other.ack([held[0]])
    (tx,) = begun(app, 1)
    q.ack([held[1]], tx=tx)
    tx.commit()
    # Takes the mail in.
    q.publish("jobs", duly.Message(b"x", id="x"))
    assert set(states(q)) == {"m2", "m3", "m4", "x"}
    assert [one.id for one in other.ack(list(held)).lost] == ["m0", "m1"]
    assert set(states(other)) == {"x"}


def test_a_message_cancelled_elsewhere_is_said_when_its_lease_is_extended(
    q: duly.Client, other: duly.Client, held: duly.Batch
) -> None:
    other.cancel("jobs", "m1")
    assert [one.id for one in q.extend(held, 30).cancelled] == ["m1"]
    assert q.nack([held[1]]).done == 1
    assert "m1" not in states(q)


def test_a_lease_taken_over_elsewhere_is_lost_and_the_next_is_not_touched(
    app: Application, q: duly.Client, other: duly.Client
) -> None:
    q.create_topic("short", kind="queue", lease=0.2, retry=duly.RetryPolicy(base=0.01, jitter="none"))
    q.publish("short", messages(1))
    (mine,) = q.claim("short")
    (theirs,) = other.claim("short", wait=5, lease=60)
    assert theirs.id == mine.id
    assert [one.id for one in q.ack([mine]).lost] == [mine.id]
    assert states(q, "short") == {"m0": "leased"}
    assert other.ack([theirs]).done == 1


def test_many_leases_that_are_not_at_hand_are_asked_for_together(
    app: Application, q: duly.Client, other: duly.Client
) -> None:
    q.publish("jobs", messages(20))
    batches = [q.claim("jobs", max_messages=2) for _ in range(10)]
    # Of another process: it has none of them at hand.
    settled = other.ack([one for batch in batches for one in batch])
    assert settled.done == 20
    assert len(q.ack([one for batch in batches for one in batch]).lost) == 20
