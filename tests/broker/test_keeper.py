"""Which broker runs which push: taken, evened out, given back, and run as it is set."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import duly
import duly.broker.membership
import duly.broker.pushes.keeper
from duly.broker.broker import Broker
from duly.broker.entry import Entry
from duly.client.connect import open_home
from duly.push import RunningPush
from tests.store.patience import eventually


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duly.broker.membership, "BEAT_S", 0.02)
    monkeypatch.setattr(duly.broker.pushes.keeper, "LOOK_S", 0.02)
    monkeypatch.setattr(duly.broker.pushes.keeper, "_AGAIN_S", 0.05)


class Runs:
    """What runs at a broker: a runner of the tests' own, which delivers nothing and says what becomes of it."""

    def __init__(self) -> None:
        self.running: dict[str, RunningPush] = {}
        self.started: list[RunningPush] = []
        self.clients: list[duly.Client] = []
        self.tells: dict[str, Callable[[RunningPush, str, Mapping[str, Any]], None]] = {}
        # Runners end when this is set.
        self.may_end = threading.Event()
        self.may_end.set()
        self.failure: Exception | None = None

    def make(self, client: duly.Client, push: RunningPush, tell: Any) -> Runs._Run:
        if self.failure is not None:
            raise self.failure
        return self._Run(self, client, push, tell)

    def try_out(self, push: RunningPush) -> duly.PushAnswer:
        return duly.PushAnswer(200, 3, f"{push.name} has {len(push.secrets)} secrets")

    class _Run:
        def __init__(self, runs: Runs, client: duly.Client, push: RunningPush, tell: Any) -> None:
            self._runs, self._push = runs, push
            assert push.name not in runs.running, "one runner a push, whatever comes"
            runs.running[push.name] = push
            runs.started.append(push)
            runs.clients.append(client)
            runs.tells[push.name] = tell

        def stop(self, patience_s: float) -> None:
            self._runs.may_end.wait(min(patience_s, 10))
            del self._runs.running[self._push.name]


Open = Callable[[], tuple[Broker, Runs]]


@pytest.fixture
def open_broker(path: str) -> Iterator[Open]:
    opened: list[Broker] = []

    def open_one() -> tuple[Broker, Runs]:
        broker = Broker(open_home(path))
        opened.append(broker)
        port = 8000 + len(opened)
        broker.join(url=f"duly://127.0.0.1:{port}", http_url=f"http://127.0.0.1:{port + 1000}", version="0.9.0")
        runs = Runs()
        broker.keep_pushes({duly.ToHttp: runs.make, duly.ToTopic: runs.make}, runs.try_out)
        return broker, runs

    yield open_one
    for broker in opened:
        broker.shut()


@pytest.fixture
def q(path: str) -> Iterator[duly.Client]:
    with duly.connect(path) as client:
        client.create_topic("orders", kind="log")
        yield client


def push_to(q: duly.Client, *names: str) -> None:
    for name in names:
        q.create_group("orders", name)
        q.create_push(name, topic="orders", group=name, to=duly.ToHttp("https://example.com/"))


def test_a_push_is_run_with_its_secret_until_it_is_deleted(q: duly.Client, open_broker: Open) -> None:
    _, runs = open_broker()
    q.create_group("orders", "billing")
    to = duly.ToHttp("https://example.com/", headers={"Authorization": "Bearer x"})
    made = q.create_push("hook", topic="orders", group="billing", to=to)
    eventually(lambda: "hook" in runs.running)
    [push] = runs.started
    assert (push.tenant, push.topic, push.group, push.to, push.version) == ("default", "orders", "billing", to, 1)
    assert made.secret == duly.push.secret_text(push.secrets[0])
    [member] = q.cluster()
    assert q.describe_push("hook").holder == member.name
    assert runs.clients[0].tenant == "default"
    q.delete_push("hook")
    eventually(lambda: not runs.running)


def test_three_brokers_have_equal_shares_as_they_come_and_go(q: duly.Client, open_broker: Open) -> None:
    push_to(q, *"abcdefg")
    (one, of_one) = open_broker()
    eventually(lambda: len(of_one.running) == 7)
    (_, of_other) = open_broker()
    eventually(lambda: sorted((len(of_one.running), len(of_other.running))) == [3, 4])
    (third, of_third) = open_broker()
    every = (of_one, of_other, of_third)
    eventually(lambda: sorted(len(runs.running) for runs in every) == [2, 2, 3])
    held = {push.name: push.holder for push in q.pushes()}
    assert sorted(map(list(held.values()).count, {member.name for member in q.cluster()})) == [2, 2, 3]
    third.drain()
    assert not of_third.running, "a broker that goes runs nothing any more"
    eventually(lambda: sorted((len(of_one.running), len(of_other.running))) == [3, 4])
    one.drain()
    eventually(lambda: len(of_other.running) == 7)


def test_what_is_given_back_is_run_elsewhere_only_once_it_has_ended(q: duly.Client, open_broker: Open) -> None:
    push_to(q, "a", "b")
    _, of_one = open_broker()
    eventually(lambda: len(of_one.running) == 2)
    of_one.may_end.clear()
    _, of_other = open_broker()
    eventually(lambda: len(q.cluster()) == 2)
    for _ in range(20):
        assert not of_other.running
        threading.Event().wait(0.01)
    of_one.may_end.set()
    eventually(lambda: len(of_one.running) == len(of_other.running) == 1)
    assert set(of_one.running).isdisjoint(of_other.running)


def test_a_push_that_changes_is_run_as_it_is_now(q: duly.Client, open_broker: Open) -> None:
    _, runs = open_broker()
    push_to(q, "hook")
    eventually(lambda: "hook" in runs.running)
    q.update_push("hook", url="https://example.com/other")
    eventually(lambda: "hook" in runs.running and runs.running["hook"].version == 2)
    assert runs.running["hook"].to == duly.ToHttp("https://example.com/other")
    first = runs.running["hook"].secrets
    q.rotate_push_secret("hook", overlap=0.5)
    eventually(lambda: "hook" in runs.running and len(runs.running["hook"].secrets) == 2)
    assert runs.running["hook"].secrets[1:] == first
    eventually(lambda: "hook" in runs.running and len(runs.running["hook"].secrets) == 1)
    assert runs.running["hook"].secrets != first, "the older one ends by itself"
    q.pause_push("hook")
    eventually(lambda: not runs.running)
    assert q.describe_push("hook").holder is None
    q.resume_push("hook")
    eventually(lambda: "hook" in runs.running)
    q.pause_store()
    eventually(lambda: not runs.running)
    q.resume_store()
    eventually(lambda: "hook" in runs.running)


def test_a_runner_that_gives_up_disables_its_push(q: duly.Client, open_broker: Open) -> None:
    _, runs = open_broker()
    push_to(q, "hook")
    eventually(lambda: "hook" in runs.running)
    runs.tells["hook"](runs.running["hook"], "disabled", {"reason": "the endpoint answered 410"})
    eventually(lambda: q.describe_push("hook").state == "disabled")
    assert q.describe_push("hook").reason == "the endpoint answered 410"
    eventually(lambda: not runs.running)
    assert [event.facts for event in q.events() if event.kind == "push_disabled"] == [
        {"push": "hook", "reason": "the endpoint answered 410"}
    ]
    q.resume_push("hook")
    eventually(lambda: "hook" in runs.running)


def test_what_it_gave_up_for_was_changed_meanwhile(q: duly.Client, open_broker: Open) -> None:
    _, runs = open_broker()
    push_to(q, "hook")
    eventually(lambda: "hook" in runs.running)
    before = runs.running["hook"]
    q.update_push("hook", url="https://example.com/moved")
    runs.tells["hook"](before, "disabled", {"reason": "the endpoint answered 410"})
    eventually(lambda: "hook" in runs.running and runs.running["hook"].version == 2)
    assert q.describe_push("hook").state == "active"


def test_the_last_answer_is_told_by_the_broker_that_had_it(q: duly.Client, open_broker: Open) -> None:
    broker, runs = open_broker()
    push_to(q, "hook")
    eventually(lambda: "hook" in runs.running)
    runs.tells["hook"](runs.running["hook"], "answered", {"status": 503, "ms": 12})
    asked = Entry(broker).client("default")
    last = asked.describe_push("hook").last
    assert last is not None
    assert (last.status, last.ms) == (503, 12)
    assert q.describe_push("hook").last is None


def test_a_push_is_tried_out_by_a_broker_alone(q: duly.Client, open_broker: Open) -> None:
    broker, _ = open_broker()
    push_to(q, "hook")
    q.pause_push("hook")
    assert Entry(broker).client("default").test_push("hook") == duly.PushAnswer(200, 3, "hook has 1 secrets")
    with pytest.raises(duly.InvalidArgument, match="connect to one"):
        q.test_push("hook")
    q.create_topic("later", kind="queue")
    q.create_push("onward", topic="later", to=duly.ToTopic("orders"))
    with pytest.raises(duly.InvalidArgument, match="goes to a topic"):
        Entry(broker).client("default").test_push("onward")


def test_one_that_cannot_be_run_is_tried_again_and_keeps_no_other(
    q: duly.Client, open_broker: Open, caplog: pytest.LogCaptureFixture
) -> None:
    _, runs = open_broker()
    runs.failure = duly.Sealed()
    push_to(q, "hook")
    eventually(lambda: "push hook of tenant default cannot be run here" in caplog.text)
    runs.failure = None
    push_to(q, "other")
    eventually(lambda: set(runs.running) == {"hook", "other"})
