"""`duly bridge`: what it refuses, what it says, and that it keeps passwords to itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bridge.conftest import JetStream, js, nats_server, r, redis_server
from tests.bridge.servers import Server

from .test_cli import COMMANDS, examples_of, folder, ok, refused, run

__all__ = ["folder", "js", "nats_server", "r", "redis_server"]


@pytest.fixture
def queue(folder: Path) -> None:
    ok("topics", "create", "in", "--kind", "queue")


def test_it_copies_what_is_there_and_says_how_much(queue: None, r: Any, redis_server: Server) -> None:
    for n in range(3):
        r.xadd("orders", {"payload": b"%d" % n})
    stream = f"redis://127.0.0.1:{redis_server.port}/0/orders"
    said = ok("bridge", stream, "duly:in", "--drain", "--json")
    assert said.document == {"from": stream, "to": "duly:in", "messages": 3}
    assert ok("bridge", stream, "duly:in", "--once").out == f"Copied 0 messages from {stream} to duly:in.\n"
    back = f"redis://127.0.0.1:{redis_server.port}/0/back"
    assert ok("bridge", "duly:in", back, "--drain", "--json").document["messages"] == 3
    assert [fields[b"payload"] for _, fields in r.xrange("back")] == [b"0", b"1", b"2"]


def test_a_password_comes_by_the_environment_and_is_never_shown(
    queue: None, r: Any, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    r.config_set("requirepass", "s3cret-word")
    stream = f"redis://127.0.0.1:{redis_server.port}/0/orders"
    assert "lets nobody in" in run("bridge", stream, "duly:in", "--drain").err
    monkeypatch.setenv("DULY_BRIDGE_PASSWORD", "s3cret-word")
    said = ok("bridge", stream, "duly:in", "--drain")
    monkeypatch.setenv("DULY_BRIDGE_PASSWORD", "wrong-word")
    wrong = run("bridge", stream, "duly:in", "--drain")
    shown = said.out + said.err + wrong.out + wrong.err
    assert "s3cret" not in shown
    assert "wrong-word" not in shown
    monkeypatch.delenv("DULY_BRIDGE_PASSWORD")
    given = ok("bridge", stream.replace("//", "//:s3cret-word@"), "duly:in", "--drain")
    assert "Everybody on this machine sees" in given.err
    assert "s3cret" not in given.out + given.err


@pytest.mark.parametrize("example", examples_of(COMMANDS["bridge"]))
def test_every_example_runs(folder: Path, r: Any, js: JetStream, example: str) -> None:
    for topic in ("orders", "timeline"):
        ok("topics", "create", topic, "--kind", "queue")
    ok("publish", "timeline", "out")
    r.xadd("stream:orders", {"payload": "in"})
    r.xadd("events", {"body": "in", "at": "2026-01-31T12:00:00Z"})
    js.publish("orders.new", [b"in"])
    ports = {":6379": f":{r.connection_pool.connection_kwargs['port']}", ":4222": f":{js.server.port}"}
    for usual, here in ports.items():
        example = example.replace(usual, here)
    arguments = [word for word in example.split()[1:] if word not in ("--drain", "--json")]
    assert ok(*arguments, "--drain", "--json").document["messages"] == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("duly:in", "duly:in"), "One side of a bridge is duly:TOPIC"),
        (("kafka://h/t", "duly:in"), "An address begins with"),
        (("redis://h/orders", "duly:in"), "Redis is named as"),
        (("redis://h/0/orders", "duly:in", "--due", "nnow"), "there is no 'nnow'"),
        (("duly:in", "redis://h/0/orders", "--lane", "key"), "for what comes into a topic"),
        (("redis://h/0/orders", "duly:nowhere"), "nowhere"),
    ],
)
def test_what_makes_no_sense_is_refused(queue: None, arguments: tuple[str, ...], why: str) -> None:
    assert why in refused("bridge", *arguments, "--drain").err
