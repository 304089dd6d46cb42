"""A real server on a loopback port, and clients of it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import duly
from duly.broker.broker import Broker
from duly.client.connect import connect
from duly.http.server import HttpServer


def open_broker(path: str, clock: duly.ManualClock | None = None) -> Broker:
    """A broker on a store: what `duly serve` makes."""
    return Broker(connect(path, clock=clock)._port)  # type: ignore[arg-type]


@pytest.fixture
def broker(path: str) -> Iterator[Broker]:
    opened = open_broker(path)
    yield opened
    opened.shut()


@pytest.fixture
def server(broker: Broker) -> Iterator[HttpServer]:
    started = HttpServer(broker, port=0).start()
    yield started
    broker.drain()
    started.drain(2)


@pytest.fixture
def url(server: HttpServer) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=20, verify=False) as client:
        yield client


@pytest.fixture
def client_of(url: str) -> Iterator[Callable[..., httpx.Client]]:
    """Further clients, each with a connection of its own."""
    made: list[httpx.Client] = []

    def make(**more: Any) -> httpx.Client:
        made.append(httpx.Client(base_url=url, timeout=20, verify=False, **more))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def emails(http: httpx.Client) -> str:
    """A queue; its path."""
    assert http.post("/v1/topics", json={"name": "emails", "kind": "queue"}).status_code == 201
    return "/v1/topics/emails"


@pytest.fixture
def orders(http: httpx.Client) -> str:
    """A log with the group `billing`; its path."""
    assert http.post("/v1/topics", json={"name": "orders", "kind": "log"}).status_code == 201
    assert http.post("/v1/topics/orders/groups", json={"name": "billing"}).status_code == 201
    return "/v1/topics/orders"


def b64(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def texts(*payloads: str, **more: Any) -> dict[str, Any]:
    """The body of a publish."""
    return {"messages": [{"payload_text": payload, **more} for payload in payloads]}


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Checks that an answer is that problem, and returns it."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    told: dict[str, Any] = answer.json()
    assert (told["status"], told["code"]) == (status, code), told
    assert told["title"]
    assert told["detail"]
    return told
