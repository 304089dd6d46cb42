"""Which of several brokers runs which push: real ones, killed, stopped, going and coming, on a file and on PostgreSQL.

Who runs what is what `pushes()` tells. Meanwhile messages come and go: each is forwarded exactly once, whoever believes
that a push is its.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import duly
from tests import postgres_schemas
from tests.postgres.brokers import BrokerProcess
from tests.store.patience import eventually

PUSHES = 6
# Ten seconds are promised; the rest is for a machine that is busy.
TAKEN_OVER_S = 15.0


@pytest.fixture(params=["file", "postgres"])
def store(request: pytest.FixtureRequest, path: str) -> str:
    if request.param == "file":
        return path
    if why := postgres_schemas.why_not():
        pytest.skip(why)
    url: str = request.getfixturevalue("fresh_store_url")()
    return url


@pytest.fixture
def q(store: str) -> Iterator[duly.Client]:
    with duly.connect(store) as client:
        client.create_topic("in", kind="log")
        client.create_topic("out", kind="log")
        client.create_group("out", "reader")
        for n in range(PUSHES):
            client.create_group("in", f"g{n}")
            client.create_push(f"p{n}", topic="in", group=f"g{n}", to=duly.ToTopic("out"))
        yield client


@pytest.fixture
def brokers(q: duly.Client, store: str, tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """Three of them, listening. They end before the client does: one that is stopped could keep it waiting."""
    started = [BrokerProcess(store, tmp_path, number) for number in range(3)]
    try:
        for broker in started:
            broker.begin()
        for broker in started:
            broker.listens()
        yield started
    finally:
        for broker in started:
            broker.kill()


def within(seconds: float, happens: Callable[[], bool]) -> float:
    """How long it took, which has to be less."""
    began = time.monotonic()
    while not happens():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)
    return time.monotonic() - began


def stop_between_transactions(broker: BrokerProcess, q: duly.Client) -> None:
    """Stops it (SIGSTOP) at a moment at which it holds no lock: with one, it keeps everybody else waiting."""
    for _ in range(50):
        broker.stop()
        try:
            for topic in ("in", "out"):
                q.update_topic(topic, timeout=1)
            q.resume_store(timeout=1)
        except duly.Unavailable:
            broker.resume()
        else:
            return
    raise AssertionError("it is never at rest")


def test_brokers_that_come_go_and_die_run_each_push_once(q: duly.Client, brokers: list[BrokerProcess]) -> None:
    first, second, third = brokers

    def by_broker() -> dict[str, int]:
        """How many pushes each broker runs, by its address; "" is nobody."""
        urls = {member.name: member.url for member in q.cluster()}
        return dict(Counter(urls.get(push.holder or "", "") for push in q.pushes()))

    def send(number: int) -> None:
        q.publish("in", [b"%d" % number])

    within(20, lambda: by_broker() == {broker.url: 2 for broker in brokers})
    send(0)
    first.kill()
    stop_between_transactions(second, q)
    within(TAKEN_OVER_S, lambda: by_broker() == {third.url: PUSHES})
    send(1)
    # It believes that its pushes are still its, until it looks.
    second.resume()
    send(2)
    within(TAKEN_OVER_S, lambda: by_broker() == {second.url: 3, third.url: 3})
    os.kill(third.pid, signal.SIGTERM)
    at_once = within(TAKEN_OVER_S, lambda: by_broker() == {second.url: PUSHES})
    assert at_once < 6, "it says that it goes: nobody waits until it is missed"
    send(3)
    first.start()
    within(20, lambda: by_broker() == {first.url: 3, second.url: 3})
    send(4)
    eventually(lambda: q.describe_topic("out").messages >= 5 * PUSHES)
    time.sleep(0.5)
    sent = Counter(message.payload for message in q.read("out"))
    assert sent == {b"%d" % number: PUSHES for number in range(5)}
