"""Brokers on one store know each other, and one that fails to say so goes on serving."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import duly
import duly.broker.membership
from duly.broker.broker import Broker
from duly.client.connect import open_home
from tests.store.patience import eventually


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duly.broker.membership, "BEAT_S", 0.02)


@pytest.fixture
def open_broker(path: str) -> Iterator[Callable[[], Broker]]:
    opened: list[Broker] = []

    def open_one() -> Broker:
        opened.append(Broker(open_home(path)))
        port = 8000 + len(opened)
        opened[-1].join(url=f"duly://127.0.0.1:{port}", http_url=f"http://127.0.0.1:{port + 1000}", version="0.5.0")
        return opened[-1]

    yield open_one
    for broker in opened:
        broker.shut()


def urls(broker: Broker) -> list[str]:
    return sorted(member.url for member in broker.members(deadline=None))


def test_each_knows_all_until_one_leaves(open_broker: Callable[[], Broker], path: str) -> None:
    one, other = open_broker(), open_broker()
    both = ["duly://127.0.0.1:8001", "duly://127.0.0.1:8002"]
    assert urls(one) == urls(other) == both
    with duly.connect(path) as q:
        assert sorted(member.url for member in q.cluster()) == both
        assert len({member.name for member in q.cluster()}) == 2
    eventually(lambda: set(one.peers) == set(other.peers) == {"127.0.0.1:8001", "127.0.0.1:8002"})
    told = one.peers
    time.sleep(0.1)
    assert one.peers is told, "told anew only when it has changed"
    other.drain()
    assert urls(one) == both[:1]
    eventually(lambda: one.peers == ("127.0.0.1:8001",))


def test_it_is_seen_anew_with_every_beat(open_broker: Callable[[], Broker]) -> None:
    broker = open_broker()
    [first] = broker.members(deadline=None)
    eventually(lambda: broker.members(deadline=None)[0].seen_at_ms > first.seen_at_ms)
    assert broker.members(deadline=None)[0].started_at == first.started_at


@pytest.mark.parametrize("error", [duly.StoreFull(), duly.Busy(), RuntimeError("a fault")])
def test_a_store_that_fails_is_told_once_and_does_not_end_it(
    open_broker: Callable[[], Broker],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    caplog.set_level(logging.WARNING, "duly")
    broker = open_broker()
    [before] = broker.members(deadline=None)
    beats: list[Any] = []

    def fail(member: Any) -> None:
        beats.append(member)
        raise error

    with monkeypatch.context() as failing:
        failing.setattr(broker._home.store, "member_put", fail)
        eventually(lambda: len(beats) > 3)
    assert [record.message for record in caplog.records if "a beat failed" in record.message] == [
        f"a beat failed, and others may not see this broker: {error}"
    ]
    eventually(lambda: broker.members(deadline=None)[0].seen_at_ms > before.seen_at_ms)


def test_a_store_that_fails_does_not_keep_it_from_ending(
    open_broker: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = open_broker()

    def fail(name: str) -> None:
        raise duly.StoreFull

    monkeypatch.setattr(broker._home.store, "member_remove", fail)
    broker.drain()
    assert broker.draining


def test_clients_are_sent_to_those_that_are_ready_or_if_nobody_is_to_anyone(
    open_broker: Callable[[], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = open_broker(), open_broker()
    monkeypatch.setattr(other, "reason", lambda: "its clock is off")
    eventually(lambda: one.peers == other.peers == ("127.0.0.1:8001",))
    [off] = [member for member in one.members(deadline=None) if not member.ready]
    assert (off.url, off.reason) == ("duly://127.0.0.1:8002", "its clock is off")
    monkeypatch.setattr(one, "reason", lambda: "so is its")
    eventually(lambda: set(one.peers) == {"127.0.0.1:8001", "127.0.0.1:8002"})
