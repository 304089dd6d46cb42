"""Servers for bridges, and the streams on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
import redis
from nats.js import api

import duly

from .servers import NATS, REDIS, Server, start_nats, start_redis


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Server]:
    if REDIS is None:
        pytest.skip("there is no redis-server here")
    server = start_redis(tmp_path / "redis")
    yield server
    server.end()


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[Server]:
    if NATS is None:
        pytest.skip("there is no nats-server here")
    server = start_nats(tmp_path / "nats")
    yield server
    server.end()


@pytest.fixture
def r(redis_server: Server) -> Iterator[Any]:
    client: Any = redis.Redis(port=redis_server.port, protocol=2)
    yield client
    client.close()


@pytest.fixture
def js(nats_server: Server) -> JetStream:
    """A stream ORDERS with the subjects orders.>."""
    stream = JetStream(nats_server)
    stream.do(lambda js: js.add_stream(name="ORDERS", subjects=["orders.>"]))
    return stream


class JetStream:
    """Asks a JetStream, each time by a connection of its own."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def do(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async def run() -> Any:
            line = await nats.connect(f"nats://127.0.0.1:{self.server.port}")
            try:
                return await work(line.jetstream(timeout=20))
            finally:
                await line.close()

        return asyncio.run(run())

    def publish(self, subject: str, messages: list[bytes], headers: dict[str, str] | None = None) -> None:
        async def work(js: Any) -> None:
            for message in messages:
                await js.publish(subject, message, headers=headers)

        self.do(work)

    def stored(self, stream: str = "ORDERS") -> list[Any]:
        """All that a stream has, in its order."""

        async def work(js: Any) -> list[Any]:
            count = (await js.stream_info(stream)).state.messages
            found: list[Any] = []
            if count:
                config = api.ConsumerConfig(ack_policy=api.AckPolicy.NONE)
                sub = await js.subscribe("", stream=stream, ordered_consumer=False, config=config)
                while len(found) < count:
                    found.append(await sub.next_msg(timeout=20))
            return found

        got: list[Any] = self.do(work)
        return got


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "app.duly")


@pytest.fixture
def q(path: str) -> Iterator[duly.Client]:
    with duly.connect(path) as client:
        yield client
