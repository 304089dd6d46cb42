"""Waiting at the end of a log, without a group and without asking again and again."""

from __future__ import annotations

import time

import pytest

import duly

from .conftest import Home
from .patience import Aside

# Far less than the waits below, and enough for a busy machine.
PROMPT_S = 8.0


@pytest.fixture
def wide(q: duly.Client) -> str:
    q.create_topic("wide", kind="log", partitions=3)
    return "wide"


def test_what_is_there_already_is_told_at_once(q: duly.Client, wide: str) -> None:
    q.publish(wide, [duly.Message(b"x", partition=1), duly.Message(b"y", partition=2)])
    began = time.monotonic()
    assert q.await_messages(wide, {0: 0, 1: 0, 2: 0}, wait=20) == [1, 2]
    assert q.await_messages(wide, {0: 0, 1: 1, 2: 0}, wait=20) == [2]
    assert time.monotonic() - began < PROMPT_S


def test_at_the_end_it_waits_its_time(q: duly.Client, wide: str) -> None:
    q.publish(wide, duly.Message(b"x", partition=1))
    began = time.monotonic()
    assert q.await_messages(wide, {0: 0, 1: 1}, wait=0.2) == []
    assert 0.19 < time.monotonic() - began < 0.2 + PROMPT_S
    assert q.await_messages(wide, {0: 0}, wait=0) == []


def test_a_publish_to_a_partition_that_is_waited_for_ends_the_wait(q: duly.Client, wide: str) -> None:
    waiter = Aside(lambda: q.await_messages(wide, {0: 0, 2: 0}, wait=20))
    assert waiter.still_running_after(0.05)
    q.publish(wide, duly.Message(b"elsewhere", partition=1))
    assert waiter.still_running_after(0.1)
    began = time.monotonic()
    q.publish(wide, duly.Message(b"x", partition=2))
    assert waiter.result() == [2]
    assert waiter.finished_at - began < PROMPT_S


def test_a_publish_by_another_client_ends_it(home: Home) -> None:
    q, other = home.connect(), home.connect()
    q.create_topic("t", kind="log")
    waiter = Aside(lambda: q.await_messages("t", {0: 0}, wait=20))
    assert waiter.still_running_after(0.05)
    other.publish("t", b"x")
    assert waiter.result(PROMPT_S) == [0]


def test_no_message_is_missed_between_looking_and_sleeping(q: duly.Client, wide: str) -> None:
    def follow() -> list[bytes]:
        got: list[bytes] = []
        while len(got) < 200:
            assert q.await_messages(wide, {0: len(got)}, wait=5), "it was there and nobody was woken"
            got += [message.payload for message in q.read(wide, offset=len(got))]
        return got

    follower = Aside(follow)
    for n in range(200):
        q.publish(wide, duly.Message(b"%d" % n, partition=0))
    assert follower.result(60) == [b"%d" % n for n in range(200)]


def test_deleting_the_topic_ends_it_with_an_error(q: duly.Client, wide: str) -> None:
    waiter = Aside(lambda: q.await_messages(wide, {0: 0}, wait=20))
    assert waiter.still_running_after(0.05)
    q.delete_topic(wide)
    with pytest.raises(duly.TopicNotFound):
        waiter.result(PROMPT_S)


def test_closing_the_client_ends_it(q: duly.Client, wide: str) -> None:
    waiter = Aside(lambda: q.await_messages(wide, {0: 0}, wait=20))
    assert waiter.still_running_after(0.05)
    q.close()
    with pytest.raises(duly.Closed):
        waiter.result(PROMPT_S)


def test_what_cannot_be_waited_for_is_refused(q: duly.Client, wide: str) -> None:
    q.create_topic("queue", kind="queue")
    with pytest.raises(duly.InvalidArgument):
        q.await_messages(wide, {3: 0}, wait=1)
    with pytest.raises(duly.InvalidArgument):
        q.await_messages(wide, {0: -1}, wait=1)
    with pytest.raises(duly.LimitExceeded):
        q.await_messages(wide, {0: 0}, wait=10**6)
    with pytest.raises(duly.Error):
        q.await_messages("queue", {0: 0}, wait=1)
    with pytest.raises(duly.TopicNotFound):
        q.await_messages("nowhere", {0: 0}, wait=1)
