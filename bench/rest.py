"""REST under load: batches and single publishes through real HTTP, durable, the client too lean to be the bottleneck.

    python bench/rest.py [--seconds 5] [--connections 16] [--url http://127.0.0.1:8470]

Without a url it starts a broker in a process of its own on a fresh file. Prints messages a second: the
median of three rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from typing import Any

import uvloop

BATCH = 1000
PAYLOAD = os.urandom(100)


class Lean(asyncio.Protocol):
    """Sends the same request again and again, one at a time; counts answers."""

    def __init__(self, request: bytes, until: float) -> None:
        self.request = request
        self.until = until
        self.answers = 0
        self.done = asyncio.get_running_loop().create_future()
        self._head = b""
        self._left = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self._left:
            self._left -= len(data)
        else:
            self._head += data
            head, found, body = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            assert head.startswith(b"HTTP/1.1 20"), head + body
            self._left = int(head.partition(b"content-length: ")[2].partition(b"\r")[0]) - len(body)
            self._head = b""
        if self._left == 0:
            self.answers += 1
            if time.monotonic() < self.until:
                self._transport.write(self.request)
            else:
                self._transport.close()
                self.done.set_result(None)


def request(port: int, method: str, path: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def rounds(port: int, sent: bytes, connections: int, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    made = [
        await loop.create_connection(lambda: Lean(sent, began + seconds), "127.0.0.1", port) for _ in range(connections)
    ]
    await asyncio.gather(*(protocol.done for _, protocol in made))
    return sum(protocol.answers for _, protocol in made) / (time.monotonic() - began)


async def once(port: int, sent: bytes) -> None:
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: Lean(sent, 0.0), "127.0.0.1", port)
    await protocol.done


async def measure(port: int, seconds: float, connections: int) -> None:
    topic = json.dumps({"name": "bench", "kind": "log", "exist_ok": True}).encode()
    await once(port, request(port, "POST", "/v1/topics", topic))
    text = base64.b64encode(PAYLOAD).decode()
    path = "/v1/topics/bench/messages"
    batch = request(port, "POST", path, json.dumps({"messages": [{"payload_base64": text}] * BATCH}).encode())
    keyed = [{"payload_base64": text, "key": f"customer-{index % 50}"} for index in range(BATCH)]
    single = request(port, "POST", path, json.dumps({"messages": [{"payload_base64": text}]}).encode())
    cases = {
        f"batch of {BATCH}, 2 connections": (batch, 2, BATCH),
        f"batch of {BATCH} with keys, 2 connections": (
            request(port, "POST", path, json.dumps({"messages": keyed}).encode()),
            2,
            BATCH,
        ),
        f"single JSON, {connections} connections": (single, connections, 1),
        f"single raw bytes, {connections} connections": (
            request(port, "POST", path, PAYLOAD, "application/octet-stream"),
            connections,
            1,
        ),
        "GET /health/live, 16 connections (no store)": (request(port, "GET", "/health/live", b""), 16, 1),
    }
    for name, (sent, many, messages) in cases.items():
        rates = [messages * await rounds(port, sent, many, seconds / 3) for _ in range(3)]
        print(f"{name:45s} {statistics.median(rates):>12,.0f} /s   {[round(rate) for rate in rates]}")


def serve(path: str, told: Any) -> None:
    from duly.broker.broker import Broker
    from duly.client.connect import connect
    from duly.http.server import HttpServer

    server = HttpServer(Broker(connect(path)._port), port=0).start()
    told.send(server.port)
    told.recv()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=6)
    options.add_argument("--connections", type=int, default=16)
    options.add_argument("--url")
    given = options.parse_args()
    if given.url:
        uvloop.run(measure(int(given.url.rpartition(":")[2]), given.seconds, given.connections))
        return
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(f"{folder}/bench.duly", theirs))
        process.start()
        try:
            uvloop.run(measure(ours.recv(), given.seconds, given.connections))
        finally:
            process.terminate()
            process.join()


if __name__ == "__main__":
    main()
