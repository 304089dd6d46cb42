"""Fixtures for tests with several brokers on one PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .brokers import BrokerProcess


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., list[BrokerProcess]]]:
    """Starts brokers on stores, one a URL; whatever still runs at the end of the test is killed."""
    started: list[BrokerProcess] = []

    def start(*stores: str, env: dict[str, str] | None = None) -> list[BrokerProcess]:
        new = [BrokerProcess(store, tmp_path, len(started) + at, env) for at, store in enumerate(stores)]
        started.extend(new)
        for broker in new:
            broker.begin()
        for broker in new:
            broker.listens()
        return new

    yield start
    for broker in started:
        broker.kill()
