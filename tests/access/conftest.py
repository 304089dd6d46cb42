"""A broker with keys, both its surfaces, and principals who may do everything, nothing, or something."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from pyarrow import flight

import duly
from duly.broker import authority
from duly.broker.broker import Broker
from duly.client.connect import open_home
from duly.flight.server import FlightServer
from duly.grants import TENANT_ACTIONS, TOPIC_ACTIONS
from duly.http.server import HttpServer

ALL = tuple(duly.Grant(action) for action in (*TOPIC_ACTIONS, *TENANT_ACTIONS))
OPERATOR = (duly.Grant("*"), duly.Grant("*", tenants="*"))


@dataclass
class Place:
    """A store with keys, served; and the store itself, for whoever runs it."""

    broker: Broker
    http_url: str
    flight_port: int
    store: duly.Client
    other: duly.Client
    clock: duly.ManualClock

    def key(self, name: str, *grants: duly.Grant, tenant: str = "default", operator: bool = False) -> str:
        """A key of a principal that may do this; the principal is made anew."""
        home = self.store if tenant == "default" else self.other
        if not any(one.name == name for one in home.list_principals(operator=operator)):
            home.put_principal(name, grants, operator=operator)
        return home.create_key(name, operator=operator).secret

    def http(self, token: str | None = None, **headers: str) -> httpx.Client:
        """A client over HTTP that shows a key."""
        shown = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.http_url, headers={**shown, **headers}, timeout=20, verify=False)

    def raw(self) -> flight.FlightClient:
        """A plain client over Flight."""
        return flight.FlightClient(f"grpc://127.0.0.1:{self.flight_port}")

    def connect(self, token: str | None, **more: object) -> duly.Client:
        """A client of ours."""
        return duly.connect(f"duly://127.0.0.1:{self.flight_port}", token=token, **more)  # type: ignore[arg-type]


def options(token: str | None) -> flight.FlightCallOptions:
    """What shows a key on a call of Flight's."""
    shown = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    return flight.FlightCallOptions(headers=shown, timeout=20)


@pytest.fixture
def place(tmp_path: Path, clock: duly.ManualClock) -> Iterator[Place]:
    path = str(tmp_path / "app.duly")
    broker = Broker(open_home(path, clock=clock))
    http = HttpServer(broker, port=0).start()
    served = FlightServer(broker, "127.0.0.1", 0)
    with duly.connect(path, clock=clock) as store, duly.connect(path, clock=clock, tenant="other") as other:
        yield Place(broker, f"http://127.0.0.1:{http.port}", served.port, store, other, clock)
        broker.drain()
        http.drain(2)
        served.shutdown()
        broker.shut()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered: the store is asked each time."""
    monkeypatch.setattr(authority, "REMEMBERED_S", 0.0)
