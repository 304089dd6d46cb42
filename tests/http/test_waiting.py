"""Long polling: claims wait without a thread, are served in turn, and leave nothing behind when their client goes."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from duly.broker.broker import Broker
from duly.broker.entry import Entry
from duly.http.server import HttpServer
from duly.limits import Limits
from tests.conftest import scaled

from .conftest import b64, problem, texts
from .raw import answer, dial, request

WAITERS = scaled(200, 2_000)


def eventually(true: Callable[[], bool], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_waiting_claim_is_answered_when_a_message_comes(
    http: httpx.Client, emails: str, broker: Broker, client_of: Callable[..., httpx.Client]
) -> None:
    answers: list[httpx.Response] = []
    waits = threading.Thread(
        target=lambda: answers.append(client_of().post(f"{emails}/claim", json={"wait_ms": 15_000}))
    )
    began = time.monotonic()
    waits.start()
    eventually(lambda: broker.room.count == 1)
    http.post(f"{emails}/messages", json=texts("x"))
    waits.join()
    assert [one["payload_base64"] for one in answers[0].json()["deliveries"]] == [b64(b"x")]
    assert time.monotonic() - began < 10


def test_claim_that_waited_in_vain_is_empty(http: httpx.Client, emails: str) -> None:
    began = time.monotonic()
    assert http.post(f"{emails}/claim", json={"wait_ms": 300}).json()["deliveries"] == []
    assert 0.3 <= time.monotonic() - began < 5


def test_client_that_leaves_while_it_waits_is_forgotten(
    http: httpx.Client, server: HttpServer, emails: str, broker: Broker
) -> None:
    with dial(server.port) as sock:
        sock.sendall(request("POST", f"{emails}/claim", b'{"wait_ms": 60000}'))
        eventually(lambda: broker.room.count == 1)
    eventually(lambda: broker.room.count == 0)
    http.post(f"{emails}/messages", json=texts("x"))
    got = http.post(f"{emails}/claim").json()["deliveries"]
    assert [one["attempt"] for one in got] == [1]


def test_what_a_client_was_about_to_get_when_it_left_is_released(
    http: httpx.Client, server: HttpServer, emails: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = threading.Event()
    leave = broker.leave
    # Its answer is on the way when it is found to have left.
    monkeypatch.setattr(broker, "leave", lambda waiter: (served.wait(5), leave(waiter)))
    arrive = server.home.crossing._arrive

    def noted(*arguments: object) -> None:
        arrive(*arguments)  # type: ignore[arg-type]
        served.set()

    monkeypatch.setattr(server.home.crossing, "_arrive", noted)
    with dial(server.port) as sock:
        sock.sendall(request("POST", f"{emails}/claim", b'{"wait_ms": 60000}'))
        eventually(lambda: broker.room.count == 1)
    Entry(broker).client("default").publish("emails", b"x")
    assert served.wait(5)
    eventually(lambda: len(http.post(f"{emails}/claim").json()["deliveries"]) == 1)


def test_draining_answers_those_who_wait(emails: str, broker: Broker, client_of: Callable[..., httpx.Client]) -> None:
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(client_of().post(f"{emails}/claim", json={"wait_ms": 60_000})))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: broker.room.count == 5)
    broker.drain()
    for thread in threads:
        thread.join(10)
    assert len(answers) == 5
    for told in answers:
        problem(told, 503, "closed")
        assert told.headers["retry-after"] == "2"


def test_server_drains_what_is_under_way(broker: Broker) -> None:
    server = HttpServer(broker, port=0).start()
    url = f"http://127.0.0.1:{server.port}"
    httpx.post(f"{url}/v1/topics", json={"name": "emails", "kind": "queue"})
    answers: list[httpx.Response] = []
    waits = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{url}/v1/topics/emails/claim", json={"wait_ms": 1_000}, timeout=10))
    )
    waits.start()
    eventually(lambda: broker.room.count == 1)
    server.drain()
    waits.join(5)
    assert answers[0].json()["deliveries"] == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health/live")


def test_too_many_waiting_are_told_to_come_back(
    http: httpx.Client, server: HttpServer, emails: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.broker.room.LIMITS", Limits(claims_waiting_max=1))
    with dial(server.port) as sock:
        sock.sendall(request("POST", f"{emails}/claim", b'{"wait_ms": 60000}'))
        eventually(lambda: broker.room.count == 1)
        refused = http.post(f"{emails}/claim", json={"wait_ms": 60_000})
    problem(refused, 429, "busy")
    assert refused.headers["retry-after"] == "1"


def test_many_who_wait_are_served_in_turn(http: httpx.Client, server: HttpServer, emails: str, broker: Broker) -> None:
    threads_before = threading.active_count()
    got = asyncio.run(_poll_together(server.port, http, emails, broker))
    # Nobody got a second message while another waited with none.
    assert Counter(got) == Counter({str(number): 1 for number in range(WAITERS)})
    assert threading.active_count() <= threads_before + 40


async def _poll_together(port: int, http: httpx.Client, emails: str, broker: Broker) -> list[str]:
    body = b'{"wait_ms": 60000, "max_messages": 1}'
    connections = []
    for _ in range(WAITERS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("POST", f"{emails}/claim", body))
        connections.append((reader, writer))
    deadline = time.monotonic() + 30
    while broker.room.count < WAITERS:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    # Half of them come one by one, the others together.
    half = WAITERS // 2
    began = time.monotonic()
    for number in range(half):
        await asyncio.to_thread(http.post, f"{emails}/messages", json=texts(str(number)))
    await asyncio.to_thread(http.post, f"{emails}/messages", json=texts(*map(str, range(half, WAITERS))))
    answers = await asyncio.wait_for(asyncio.gather(*(_answered(reader) for reader, _ in connections)), 60)
    print(f"{WAITERS} long polls served in {time.monotonic() - began:.2f} s")
    for _, writer in connections:
        writer.close()
        await writer.wait_closed()
    import base64

    deliveries = [one["deliveries"] for one in answers]
    return [base64.b64decode(one["payload_base64"]).decode() for some in deliveries for one in some]


async def _answered(reader: asyncio.StreamReader) -> dict[str, list[dict[str, str]]]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
    found: dict[str, list[dict[str, str]]] = json.loads(await reader.readexactly(length))
    return found


def test_pipelined_requests_are_answered_in_order(server: HttpServer, emails: str) -> None:
    with dial(server.port) as sock:
        sock.sendall(request("POST", f"{emails}/claim", b'{"wait_ms": 300}') + request("GET", "/health/live"))
        assert b"deliveries" in answer(sock)[1]
        assert b"live" in answer(sock)[1]
