"""A key that is revoked, and a grant that is taken away, end within five seconds whatever waits and is open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from pyarrow import flight

import duly
from duly.broker.entry import Entry
from duly.http.endpoint import Home
from duly.wire.operations import encode
from duly.wire.talk import CONSUME, SESSION, Answer, Credit, Request

from .conftest import ALL, Place, options

WITHIN_S = 5.0


class Running:
    """A call in a thread: what became of it, and when."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self.answer: Any = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()
        # It has begun to wait.
        time.sleep(0.5)
        assert self._thread.is_alive(), self.error or self.answer

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.answer = call()
        except BaseException as error:
            self.error = error

    def ends(self) -> None:
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "it still waits"


def revoke(place: Place) -> None:
    (key,) = place.store.list_keys("worker")
    place.store.revoke_key(key.id)


def take_away(place: Place) -> None:
    place.store.put_principal("worker", [duly.Grant("browse")])


ENDS = pytest.mark.parametrize(("end", "error"), [(revoke, duly.Unauthenticated), (take_away, duly.Denied)])


@pytest.fixture
def token(place: Place) -> str:
    place.store.create_topic("jobs", kind="queue")
    place.store.create_topic("orders", kind="log")
    return place.key("worker", *ALL)


@ENDS
def test_a_claim_that_waits_over_flight(place: Place, token: str, end: Any, error: type[duly.Error]) -> None:
    with place.connect(token) as q:
        waiting = Running(lambda: q.claim("jobs", wait=60))
        end(place)
        waiting.ends()
        assert type(waiting.error) is error
        place.store.publish("jobs", b"one")
        assert place.store.claim("jobs").payloads == [b"one"]


@ENDS
def test_a_claim_that_waits_over_http(place: Place, token: str, end: Any, error: type[duly.Error]) -> None:
    with place.http(token) as client:
        waiting = Running(lambda: client.post("/v1/topics/jobs/claim", json={"wait_ms": 60_000}, timeout=70))
        end(place)
        waiting.ends()
        answer: httpx.Response = waiting.answer
        assert answer.json()["code"] == error.code
        place.store.publish("jobs", b"one")
        assert place.store.claim("jobs").payloads == [b"one"]


def test_a_claim_whose_key_cannot_be_asked_about_takes_nothing(
    place: Place, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Home._pinned

    async def pinned(home: Home, entry: Entry) -> None:
        if entry._pinned is not None:
            raise duly.Busy()
        await asked(home, entry)

    monkeypatch.setattr(Home, "_pinned", pinned)
    with place.http(token) as client:
        answer = client.post("/v1/topics/jobs/claim", json={"wait_ms": 60_000}, timeout=70)
        assert answer.json()["code"] == "busy"
        place.store.publish("jobs", b"one")
        # Whoever still waited there would have it by then.
        time.sleep(1)
        assert place.store.claim("jobs").payloads == [b"one"]


@ENDS
def test_a_request_whose_body_takes_its_time(
    place: Place, token: str, end: Any, error: type[duly.Error], hurried: None
) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"messages": [{"payload_text": '
        # Its header was let in.
        time.sleep(0.5)
        end(place)
        yield b'"one"}]}'

    with place.http(token) as client:
        json = {"Content-Type": "application/json"}
        answer = client.post("/v1/topics/jobs/messages", content=body(), headers=json)
        assert answer.json()["code"] == error.code
    assert place.store.describe_topic("jobs").messages == 0


@ENDS
def test_a_wait_at_the_end_of_a_log(place: Place, token: str, end: Any, error: type[duly.Error]) -> None:
    with place.http(token) as client, place.connect(token) as q:
        body = {"offsets": {"0": 0}, "wait_ms": 60_000}
        over_http = Running(lambda: client.post("/v1/topics/orders/await_messages", json=body, timeout=70))
        over_flight = Running(lambda: q.await_messages("orders", {0: 0}, wait=60))
        end(place)
        over_http.ends()
        over_flight.ends()
        assert over_http.answer.json()["code"] == error.code
        assert type(over_flight.error) is error


@ENDS
def test_a_push(place: Place, token: str, end: Any, error: type[duly.Error]) -> None:
    with place.raw() as client:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(CONSUME), options(token))
        claim = {"tenant": "", "topic": "jobs", "group": "", "consumer": "w", "max_messages": 10, "max_bytes": 1000}
        writer.write_metadata(encode(claim))
        writer.write_metadata(encode(Credit(10)))
        waiting = Running(lambda: msgspec.msgpack.decode(memoryview(reader.read_chunk().app_metadata), type=Answer))
        end(place)
        waiting.ends()
        assert waiting.answer.fault.code == error.code
        place.store.publish("jobs", b"one")
        assert place.store.claim("jobs").payloads == [b"one"]
        reader.cancel()


@ENDS
def test_a_session_that_awaits_something_to_claim(place: Place, token: str, end: Any, error: type[duly.Error]) -> None:
    with place.raw() as client:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(SESSION), options(token))
        reader.read_chunk()
        claim = {"tenant": "", "topic": "jobs", "group": "", "consumer": "w", "max_messages": 10, "max_bytes": 1000}
        for _ in range(2):
            writer.write_metadata(encode(Request("look", msgspec.Raw(encode(claim)))))
            reader.read_chunk()
        writer.write_metadata(encode(Request("await", msgspec.Raw(encode(claim)), wait_ms=60_000)))
        waiting = Running(lambda: msgspec.msgpack.decode(memoryview(reader.read_chunk().app_metadata), type=Answer))
        end(place)
        waiting.ends()
        assert waiting.answer.fault.code == error.code
        reader.cancel()


@ENDS
def test_an_open_session(place: Place, token: str, end: Any, error: type[duly.Error]) -> None:
    with place.connect(token) as q:
        q.publish("jobs", b"one")
        end(place)
        time.sleep(2.5)
        with pytest.raises(error):
            q.publish("jobs", b"two")


@ENDS
def test_a_read_that_is_under_way(place: Place, token: str, end: Any, error: type[duly.Error]) -> None:
    for _ in range(3):
        place.store.publish("orders", [bytes(1000)] * 1000)
    from duly.broker.authority import Shown
    from duly.broker.entry import Entry
    from duly.engine.stretch import Stretch

    entry, stretch = Entry(place.broker, Shown(token)), Stretch("", "orders", 0, 0)
    entry.piece(stretch)
    end(place)
    time.sleep(2.5)
    with pytest.raises(error):
        entry.piece(stretch)


def test_at_every_broker_of_the_store(place: Place, token: str) -> None:
    from duly.broker.broker import Broker
    from duly.client.connect import open_home
    from duly.flight.server import FlightServer

    other = Broker(open_home(place.broker._home.store.path, clock=place.clock))
    server = FlightServer(other, "127.0.0.1", 0)
    with duly.connect(f"duly://127.0.0.1:{server.port}", token=token) as q, place.connect(token) as first:
        q.publish("jobs", b"one")
        # Told to one broker, by one who may.
        (key,) = first.list_keys("worker")
        first.revoke_key(key.id)
        time.sleep(2.5)
        for client in (q, first):
            with pytest.raises(duly.Unauthenticated):
                client.publish("jobs", b"two")
    server.shutdown()
    other.shut()
