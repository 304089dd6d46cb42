"""A broker in this process, on a manual clock, and ways to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyarrow import flight

import duly
from duly.broker.broker import Broker
from duly.client.connect import open_home
from duly.flight.server import FlightServer


@pytest.fixture
def broker(path: str, clock: duly.ManualClock) -> Iterator[Broker]:
    opened = Broker(open_home(path, clock=clock))
    yield opened
    opened.shut()


@pytest.fixture
def server(broker: Broker) -> Iterator[FlightServer]:
    served = FlightServer(broker, "127.0.0.1", 0)
    yield served
    served.shutdown()


@pytest.fixture
def q(server: FlightServer) -> Iterator[duly.Client]:
    """A client of the broker, called w1."""
    with duly.connect(f"duly://127.0.0.1:{server.port}", consumer="w1") as client:
        yield client


@pytest.fixture
def raw(server: FlightServer) -> Iterator[Any]:
    """What any Arrow language has: a plain Flight client."""
    with flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client:
        yield client
