"""Equal brokers on one store: clients learn of the others, and go on there when theirs is gone or not ready."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import duly
import duly.aio
import duly.broker.membership
from duly.clock import HOST, SystemClock
from duly.serve import Address, Served
from tests.acceptance.test_clock import faketime

from .conftest import ROOT, Elsewhere, Here, eventually


class Wall:
    """A wall clock that can be set."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.clock = SystemClock(replace(HOST, wall_ns=lambda: HOST.wall_ns() + int(self.ahead_s * 1e9)))


class Whole:
    """A whole broker in this process, with a wall clock of its own."""

    def __init__(self, path: str) -> None:
        self.wall = Wall()
        self.events: list[duly.Event] = []
        self.served = Served(
            path, Address(http_port=0, flight_port=0), on_event=self.events.append, clock=self.wall.clock
        )
        self.broker = self.served.broker
        self.address = f"127.0.0.1:{self.served.flight.port}"
        self.url = f"duly://{self.address}"

    def close(self) -> None:
        self.broker.drain()
        self.served.flight.shutdown()
        self.served.http.stop()
        self.broker.shut()


@pytest.fixture
def open_whole(path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Whole]]:
    monkeypatch.setattr(duly.broker.membership, "BEAT_S", 0.05)
    opened: list[Whole] = []

    def open_one() -> Whole:
        opened.append(Whole(path))
        return opened[-1]

    yield open_one
    for whole in opened:
        whole.close()


def known(q: duly.Client) -> set[str]:
    """The addresses that a client would try."""
    lines: Any = q._port
    return {address.removeprefix("grpc://") for address in lines._lines._addresses}


# Killed


def test_a_client_that_knows_one_address_goes_on_at_the_other_broker_when_its_own_is_killed(tmp_path: Path) -> None:
    one, other = Elsewhere(tmp_path / "app.duly"), Elsewhere(tmp_path / "app.duly")
    one.start()
    other.start()
    try:
        with duly.connect(one.url, timeout=20) as q:
            q.create_topic("jobs", kind="queue", lease=60)
            eventually(lambda: len(q.cluster()) == 2, 30)
            eventually(lambda: q.list_topics() == ["jobs"] and len(known(q)) == 2, 30)
            q.publish("jobs", [b"%d" % n for n in range(10)])
            held = q.claim("jobs", max_messages=5)
            one.kill()
            began = time.monotonic()
            q.publish("jobs", b"more")
            print(f"went on after {(time.monotonic() - began) * 1000:.0f} ms")
            # A lease is the store's: it is settled by any broker.
            assert q.ack(held).done == 5
            assert len(q.claim("jobs", max_messages=100)) == 6
            # Its row has grown old by then.
            eventually(lambda: [member.url for member in q.cluster()] == [other.url], 30)
    finally:
        one.close()
        other.close()


def test_a_claim_that_waits_at_a_broker_that_is_killed_waits_on_at_the_other(tmp_path: Path) -> None:
    one, other = Elsewhere(tmp_path / "app.duly"), Elsewhere(tmp_path / "app.duly")
    one.start()
    other.start()
    got: list[bytes] = []
    try:
        with duly.connect(one.url, timeout=20) as q:
            q.create_topic("jobs", kind="queue")
            eventually(lambda: q.list_topics() == ["jobs"] and len(known(q)) == 2, 30)
            waiting = threading.Thread(target=lambda: got.extend(q.claim("jobs", wait=30).payloads))
            waiting.start()
            time.sleep(0.5)
            one.kill()
            with duly.connect(other.url, timeout=20) as publisher:
                publisher.publish("jobs", b"one")
            waiting.join(20)
            assert got == [b"one"]
    finally:
        one.close()
        other.close()


# Learning


def test_a_client_learns_of_the_others_with_the_hello_and_of_changes_with_answers(
    open_whole: Callable[[], Whole],
) -> None:
    one = open_whole()
    with duly.connect(one.url) as q:
        assert q.list_topics() == []
        assert known(q) == {one.address}
        other = open_whole()
        eventually(lambda: q.list_topics() == [] and known(q) == {one.address, other.address})
        streams = one.served.flight.streams
        other.broker.drain()
        eventually(lambda: q.list_topics() == [] and known(q) == {one.address})
        assert one.served.flight.streams == streams, "no call was made for that alone"


def test_what_is_no_address_is_passed_over_and_what_was_given_stays(here: Here, q: duly.Client) -> None:
    here.broker.peers = ("", ":1", "a b:1", "x:99999", "http://x:1", "other:1", "other:1")
    q.list_topics()
    assert known(q) == {here.address, "other:1"}
    here.broker.peers = tuple(f"host{n}:1" for n in range(1000))
    q.list_topics()
    assert len(known(q)) == 65
    here.broker.peers = ("third:1",)
    q.list_topics()
    assert known(q) == {here.address, "third:1"}


def test_addresses_that_lead_nowhere_do_not_matter_while_the_broker_is_there(here: Here, q: duly.Client) -> None:
    here.broker.peers = ("127.0.0.1:1",)
    q.create_topic("jobs", kind="queue")
    for _ in range(5):
        q.publish("jobs", b"x")
    # Its lines break, and another address is next.
    lines: Any = q._port
    lines._lines._at = 1
    lines._lines._free.clear()
    assert q.publish("jobs", b"x", timeout=10)


def test_a_hello_without_peers_is_understood(here: Here, q: duly.Client) -> None:
    old = msgspec.msgpack.encode({"protocol": 1, "version": "0.4", "incarnation": "x", "now_ms": 1})
    assert msgspec.msgpack.decode(old, type=type(here.session().hello)).peers == ()


def test_cluster_is_the_same_by_flight_by_asyncio_and_over_http(open_whole: Callable[[], Whole]) -> None:
    import asyncio

    one, other = open_whole(), open_whole()

    async def ask() -> list[duly.Member]:
        async with duly.aio.connect(one.url) as q:
            return await q.cluster()

    with duly.connect(other.url) as q:
        found = q.cluster()
    assert {member.url for member in found} == {one.url, other.url}
    assert all(member.ready and abs(member.drift_ms) < 1000 for member in found)
    assert [member.name for member in asyncio.run(ask())] == [member.name for member in found]
    answer = httpx.get(f"http://127.0.0.1:{one.served.http.port}/v1/cluster")
    listed = answer.json()["members"]
    assert [member["name"] for member in listed] == [member.name for member in found]
    assert set(listed[0]) == set(duly.Member.__struct_fields__)


# Not ready


def test_a_broker_whose_clock_is_off_sends_clients_elsewhere_and_settles(open_whole: Callable[[], Whole]) -> None:
    one, other = open_whole(), open_whole()
    with duly.connect(one.url, timeout=10) as q, duly.connect(one.url, timeout=10) as stays:
        q.create_topic("jobs", kind="queue")
        eventually(lambda: q.list_topics() == ["jobs"] and len(known(q)) == 2)
        q.publish("jobs", [b"%d" % n for n in range(3)])
        held = stays.claim("jobs", max_messages=3)
        one.wall.ahead_s = -60
        eventually(lambda: bool(one.broker.drift.reason))
        # What is out is settled where it was claimed.
        assert stays.ack(held[:2]).done == 2
        held[2].nack()
        assert q.publish("jobs", b"more")
        assert q.claim("jobs").payloads == [b"more"]
        [off] = [member for member in q.cluster() if not member.ready]
        assert off.url == one.url
        assert -61_000 < off.drift_ms < -59_000
        assert "behind" in off.reason
        # The file's clock is one for both: only this host's is off.
        assert abs(other.broker.drift.ms) < 1000
    assert [event.kind for event in one.events if "drift" in event.kind] == ["clock_drift"]
    one.wall.ahead_s = 0
    eventually(lambda: [event.kind for event in one.events if "drift" in event.kind][1:] == ["clock_drift_over"])
    with duly.connect(one.url) as q:
        assert q.publish("jobs", b"again")


@pytest.mark.parametrize("how", ["claim", "consume"])
def test_who_waits_at_a_broker_whose_clock_goes_off_waits_on_elsewhere(
    open_whole: Callable[[], Whole], how: str
) -> None:
    one, other = open_whole(), open_whole()
    got: list[bytes] = []
    with duly.connect(one.url, timeout=10) as q, duly.connect(other.url) as publisher:
        q.create_topic("jobs", kind="queue")
        eventually(lambda: q.list_topics() == ["jobs"] and len(known(q)) == 2)

        def wait() -> None:
            if how == "claim":
                got.extend(q.claim("jobs", wait=30).payloads)
                return
            for delivery in q.consume("jobs"):
                got.append(delivery.payload)
                delivery.ack()
                return

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.5)
        one.wall.ahead_s = -60
        eventually(lambda: bool(one.broker.drift.reason))
        # Nobody waits here any more; a consumer's watch waits in its session, not in the room.
        eventually(lambda: one.broker.room.count == 0)
        if how == "claim":
            eventually(lambda: other.broker.room.count == 1)
        publisher.publish("jobs", b"one")
        waiting.join(15)
        assert got == [b"one"]


@pytest.mark.parametrize("name", ["claim", "look", "await"])
def test_every_way_to_claim_is_refused(here: Here, q: duly.Client, name: str) -> None:
    q.create_topic("jobs", kind="queue")
    raw = here.session()
    claim = {"tenant": "default", "topic": "jobs", "group": "", "consumer": "w", "max_messages": 1, "max_bytes": 1000}
    assert raw.ask(name, claim)[0].fault is None
    here.broker.drift.reason = "The clock is off."
    fault = raw.ask(name, claim)[0].fault
    assert fault is not None
    assert (fault.code, fault.message) == ("not_ready", "The clock is off.")


def test_when_all_brokers_refuse_it_is_said_at_once_and_why(open_whole: Callable[[], Whole]) -> None:
    one, other = open_whole(), open_whole()
    with duly.connect(one.url, timeout=30) as q:
        q.create_topic("jobs", kind="queue")
        eventually(lambda: q.list_topics() == ["jobs"] and len(known(q)) == 2)
        for whole in (one, other):
            whole.wall.ahead_s = -60
            eventually(lambda whole=whole: bool(whole.broker.drift.reason))  # type: ignore[misc]
        began = time.monotonic()
        for ask in (
            lambda: q.publish("jobs", b"one"),
            lambda: q.publish("jobs", [b"x"] * 200),
            lambda: q.claim("jobs"),
            lambda: q.claim("jobs", wait=20),
            lambda: q.stage("jobs", [b"x"], stage="s", number=0),
        ):
            with pytest.raises(duly.NotReady, match=r"60\.\d s behind the store's"):
                ask()
        assert time.monotonic() - began < 5


def test_over_http_it_is_503_with_a_time_to_come_back(open_whole: Callable[[], Whole]) -> None:
    one = open_whole()
    base = f"http://127.0.0.1:{one.served.http.port}"
    with httpx.Client(base_url=base) as http:
        http.post("/v1/topics", json={"name": "jobs", "kind": "queue"})
        http.post("/v1/topics/jobs/messages", json={"messages": [{"payload_text": "x"}] * 2})
        got = http.post("/v1/topics/jobs/claim", json={"max_messages": 1}).json()
        one.wall.ahead_s = -60
        ready = http.get("/health/ready")
        assert (ready.status_code, ready.json()["code"]) == (503, "not_ready")
        assert "behind the store's" in ready.json()["detail"]
        for path, body in (
            ("/v1/topics/jobs/messages", {"messages": [{"payload_text": "y"}]}),
            ("/v1/topics/jobs/claim", {}),
            ("/v1/topics/jobs/claim", {"wait_ms": 10_000}),
        ):
            refused = http.post(path, json=body)
            assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
            assert refused.headers["retry-after"]
        assert http.get("/health/live").status_code == 200
        assert http.post("/v1/topics/jobs/ack", json={"token": got["token"]}).json()["done"] == 1
        assert http.post("/v1/clock/accept").status_code == 200
        assert http.get("/health/ready").status_code == 200


# A process on a host whose clock is off


def test_a_process_whose_wall_clock_is_stepped_back_is_not_ready_and_its_clients_go_elsewhere(tmp_path: Path) -> None:
    stamp = tmp_path / "wall"
    stamp.write_text("+0")
    env = {
        **os.environ,
        "LD_PRELOAD": faketime(),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_TIMESTAMP_FILE": str(stamp),
    }
    command = [sys.executable, "-m", "duly", "serve", "--store", str(tmp_path / "app.duly"), "--json"]
    command += ["--http-port", "0", "--flight-port", "0"]
    other = Elsewhere(tmp_path / "app.duly")
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            other.start()
            ready = f"{told['http_url']}/health/ready"
            assert httpx.get(ready).status_code == 200
            fresh = tmp_path / "wall.new"
            fresh.write_text("-60")
            os.replace(fresh, stamp)
            eventually(lambda: httpx.get(ready).status_code == 503, 15)
            with duly.connect(told["url"], timeout=20) as q:
                q.create_topic("jobs", kind="queue")
                eventually(lambda: q.list_topics() == ["jobs"] and len(known(q)) > 1, 15)
                q.publish("jobs", b"one")
                assert q.claim("jobs").payloads == [b"one"]
                assert {member.url: member.ready for member in q.cluster()} == {told["url"]: False, other.url: True}
        finally:
            process.kill()
            other.close()
        assert process.stderr is not None
        said = process.stderr.read()
        assert said.count("clock_drift ") == 1, said
