"""Bridges to and from the real servers: what travels, what is stored once, what is waited for."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import duly
from duly.bridge.address import place_of
from duly.bridge.jetstream import JetStreamSource, matches
from duly.bridge.options import Options
from duly.bridge.patience import Patience
from duly.bridge.redis_streams import RedisSource
from duly.bridge.run import run
from duly.bridge.sides import Down
from duly.certificates import make_development_certificates
from duly.message import OPERATION
from tests.store.patience import Aside, eventually

from .conftest import JetStream
from .servers import NATS, REDIS, Server, start_nats, start_redis


class Bridge:
    """One at work in a thread."""

    def __init__(self, q: duly.Client, origin: str, target: str, **options: Any) -> None:
        self.said: list[str] = []
        self.copied = 0
        self.stopping = threading.Event()
        patience = Patience(self.said.append, self.stopping)
        places = place_of(origin), place_of(target)
        self._aside = Aside(lambda: run(q, *places, Options(**options), patience, self._count))

    def _count(self, count: int) -> None:
        self.copied += count

    def end(self) -> None:
        self._aside.result(60)

    def stop(self) -> None:
        self.stopping.set()
        self.end()


Start = Callable[..., Bridge]


@pytest.fixture
def start(q: duly.Client) -> Iterator[Start]:
    started: list[Bridge] = []

    def begin(origin: str, target: str, **options: Any) -> Bridge:
        started.append(Bridge(q, origin, target, **options))
        return started[-1]

    yield begin
    for bridge in started:
        bridge.stopping.set()


def read(q: duly.Client, topic: str) -> list[duly.StoredMessage]:
    found: list[duly.StoredMessage] = []
    while page := q.read(topic, offset=len(found), max_messages=10_000):
        found.extend(page)
    return found


def redis_of(server: Server, stream: str = "orders") -> str:
    return f"redis://127.0.0.1:{server.port}/0/{stream}"


def nats_of(server: Server, rest: str = "ORDERS/orders.out") -> str:
    return f"nats://127.0.0.1:{server.port}/{rest}"


# Redis


def test_entries_of_strangers_become_json(q: duly.Client, r: Any, redis_server: Server, start: Start) -> None:
    q.create_topic("in", kind="log")
    first = r.xadd("stream:orders", {"customer": "acme", "cents": 4200, "raw": b"\xff\x00"}).decode()
    start(redis_of(redis_server, "stream:orders"), "duly:in", drain=True).end()
    (one,) = read(q, "in")
    assert one.json() == {"customer": "acme", "cents": "4200", "raw": {"base64": "/wA="}}
    assert dict(one.headers) == {"duly-from": f"redis/stream:orders/{first}"}
    assert r.xpending("stream:orders", "duly")["pending"] == 0


def test_a_field_may_be_the_payload_and_the_others_are_headers(
    q: duly.Client, r: Any, redis_server: Server, start: Start
) -> None:
    q.create_topic("in", kind="queue")
    at = int(time.time() * 1000) + 3_600_000
    r.xadd("orders", {"body": b"\x00bytes", "at": at, "rank": 7, "who": "acme"})
    r.xadd("orders", {"body": b"senseless", "at": "tomorrow", "rank": "high"})
    options = {"field": "body", "due": "header.at", "priority": "header.rank", "lane": 'header.who ?? "nobody"'}
    start(redis_of(redis_server), "duly:in", drain=True, **options).end()
    found = {one.payload: one for one in q.browse("in")}
    good, odd = found[b"\x00bytes"], found[b"senseless"]
    assert (good.due_at_ms, good.priority, good.lane, good.headers["who"]) == (at, 7, "acme", "acme")
    # Nothing is lost for what an expression makes no sense of.
    assert (odd.state, odd.priority, odd.lane) == ("ready", 0, "nobody")
    assert "is no ISO 8601 time" in odd.headers["duly-bridge-error"]
    assert "priority" in odd.headers["duly-bridge-error"]


def test_a_message_comes_back_from_redis_as_it_was(q: duly.Client, r: Any, redis_server: Server, start: Start) -> None:
    q.create_topic("out", kind="queue")
    q.create_topic("in", kind="queue")
    headers = {"trace": "7", "näme": "ü\n", OPERATION: "nightly"}
    q.publish("out", [duly.Message(b"\x00\xff", id="one", key="acme", headers=headers, lane="l", priority=9, due=0)])
    q.publish("out", [duly.Message(b"plain")])
    start("duly:out", redis_of(redis_server), drain=True).end()
    assert q.claim("out").payloads == []
    start(redis_of(redis_server), "duly:in", drain=True).end()
    one, plain = q.get("in", "one"), next(m for m in q.browse("in") if m.payload == b"plain")
    assert one is not None
    assert (one.payload, one.key, one.lane, one.priority) == (b"\x00\xff", "acme", "l", 9)
    assert {name: one.headers[name] for name in headers} == headers
    assert one.headers["duly-from"].startswith("redis/orders/")
    assert plain.id.startswith("@")


def test_what_was_under_way_when_redis_bridge_ended_is_stored_once(
    q: duly.Client, r: Any, redis_server: Server, start: Start
) -> None:
    """Between the publish and the XACK, and with another size of batch afterwards."""
    q.create_topic("in", kind="log")
    for n in range(250):
        r.xadd("orders", {"payload": b"%d" % n})
    source: Any = RedisSource(place_of(redis_of(redis_server)), group="duly", name="bridge")  # type: ignore[arg-type]
    taken = source.take(100, 1)
    q.publish("in", [one.payload for one in taken.entries], publish_id=taken.publish_id)
    source.close()
    start(redis_of(redis_server), "duly:in", drain=True, batch=30).end()
    assert [int(m.payload) for m in read(q, "in")] == list(range(250))
    assert r.xpending("orders", "duly")["pending"] == 0


def test_what_redis_had_delivered_and_nobody_published_comes_first(
    q: duly.Client, r: Any, redis_server: Server, start: Start
) -> None:
    q.create_topic("in", kind="log")
    for n in range(50):
        r.xadd("orders", {"payload": b"%d" % n})
    source: Any = RedisSource(place_of(redis_of(redis_server)), group="duly", name="bridge")  # type: ignore[arg-type]
    source.take(20, 1)
    source.close()
    start(redis_of(redis_server), "duly:in", drain=True, batch=7).end()
    assert [int(m.payload) for m in read(q, "in")] == list(range(50))


def test_what_another_consumer_left_is_taken_over(
    q: duly.Client, r: Any, redis_server: Server, start: Start, monkeypatch: Any
) -> None:
    monkeypatch.setattr("duly.bridge.redis_streams.TAKE_OVER_MS", 50)
    q.create_topic("in", kind="log")
    for n in range(20):
        r.xadd("orders", {"payload": b"%d" % n})
    for name in ("dead", "killed"):
        source: Any = RedisSource(place_of(redis_of(redis_server)), group="duly", name=name)  # type: ignore[arg-type]
        taken = source.take(5, 1)
        source.close()
    # The second one had published.
    q.publish("in", [one.payload for one in taken.entries], publish_id=taken.publish_id)
    time.sleep(0.1)
    start(redis_of(redis_server), "duly:in", drain=True).end()
    assert sorted(int(m.payload) for m in read(q, "in")) == list(range(20))


def test_entries_that_were_deleted_while_they_were_pending_hold_nothing_up(
    q: duly.Client, r: Any, redis_server: Server, start: Start
) -> None:
    q.create_topic("in", kind="log")
    ids = [r.xadd("orders", {"payload": b"%d" % n}) for n in range(4)]
    source: Any = RedisSource(place_of(redis_of(redis_server)), group="duly", name="bridge")  # type: ignore[arg-type]
    source.take(3, 1)
    source.close()
    r.xdel("orders", *ids[:3])
    start(redis_of(redis_server), "duly:in", drain=True).end()
    assert [m.payload for m in read(q, "in")] == [b"3"]
    assert r.xpending("orders", "duly")["pending"] == 0


def test_a_batch_whose_answer_was_lost_is_in_redis_once(
    q: duly.Client, r: Any, redis_server: Server, start: Start, monkeypatch: Any
) -> None:
    q.create_topic("out", kind="queue")
    q.publish("out", [b"%d" % n for n in range(50)])
    whole = redis.client.Pipeline.execute
    lost: list[int] = []

    def losing(self: Any, *given: Any) -> Any:
        answer = whole(self, *given)
        if not lost:
            lost.append(1)
            raise redis.ConnectionError("lost on the way back")
        return answer

    monkeypatch.setattr(redis.client.Pipeline, "execute", losing)
    bridge = start("duly:out", redis_of(redis_server), drain=True, batch=20)
    bridge.end()
    assert lost
    assert [int(fields[b"payload"]) for _, fields in r.xrange("orders")] == list(range(50))


def test_redis_that_goes_away_is_waited_for_and_that_is_said_once(
    q: duly.Client, r: Any, redis_server: Server, start: Start
) -> None:
    q.create_topic("in", kind="log")
    r.xadd("orders", {"payload": b"one"})
    bridge = start(redis_of(redis_server), "duly:in")
    eventually(lambda: bridge.copied == 1)
    redis_server.end(signal.SIGTERM)
    eventually(lambda: len(bridge.said) == 1)
    time.sleep(0.5)
    redis_server.start()
    r.xadd("orders", {"payload": b"two"})
    eventually(lambda: bridge.copied == 2, within_s=30)
    bridge.stop()
    assert [m.payload for m in read(q, "in")] == [b"one", b"two"]
    assert "is waited for" in bridge.said[0]
    assert "goes on" in bridge.said[1]
    assert len(bridge.said) == 2


# JetStream


def test_messages_of_jetstream_come_with_their_headers(
    q: duly.Client, js: JetStream, nats_server: Server, start: Start
) -> None:
    q.create_topic("in", kind="queue")
    js.publish("orders.new", [b"one"], {"trace": "7", "Nats-Msg-Id": "m1", "Duly-Key": '"acme"'})
    js.publish("orders.old", [b"two"])
    start(nats_of(nats_server, "ORDERS/orders.new"), "duly:in", drain=True, lane="header.trace", due="published").end()
    (one,) = q.claim("in")
    assert (one.payload, one.key, one.lane) == (b"one", "acme", "7")
    assert dict(one.headers) == {"trace": "7", "nats-subject": "orders.new", "duly-from": "nats/ORDERS/1"}


def test_a_message_comes_back_from_jetstream_as_it_was(
    q: duly.Client, js: JetStream, nats_server: Server, start: Start
) -> None:
    q.create_topic("out", kind="queue")
    q.create_topic("in", kind="queue")
    headers = {"trace": "7", "näme": "ü\n ", "Nats-Rollup": "all", OPERATION: "nightly", "empty": ""}
    q.publish("out", [duly.Message(b"\x00\xff", id="öne", key="a c", headers=headers, lane="l", priority=9, due=0)])
    start("duly:out", nats_of(nats_server), drain=True).end()
    start(nats_of(nats_server), "duly:in", drain=True).end()
    one = q.get("in", "öne")
    assert one is not None
    assert (one.payload, one.key, one.lane, one.priority) == (b"\x00\xff", "a c", "l", 9)
    assert {name: one.headers[name] for name in headers} == headers


def test_what_was_under_way_when_a_jetstream_bridge_ended_is_stored_once(
    q: duly.Client, js: JetStream, nats_server: Server, start: Start
) -> None:
    q.create_topic("in", kind="log")
    js.publish("orders.a", [b"%d" % n for n in range(120)])
    js.publish("orders.b", [b"not wanted"] * 5)
    js.publish("orders.a", [b"%d" % n for n in range(120, 200)])
    place: Any = place_of(nats_of(nats_server, "ORDERS/orders.a"))
    source = JetStreamSource(place, group="duly")
    taken = source.take(150, 1)
    assert taken is not None
    q.publish("in", [one.payload for one in taken.entries], publish_id=taken.publish_id)
    source.close()
    js.do(lambda js: js.delete_msg("ORDERS", 3))
    start(nats_of(nats_server, "ORDERS/orders.a"), "duly:in", drain=True, batch=30).end()
    assert [int(m.payload) for m in read(q, "in")] == list(range(200))
    info = js.do(lambda js: js.consumer_info("ORDERS", "duly"))
    assert (info.num_ack_pending, info.num_pending) == (0, 0)


def test_a_batch_that_was_delivered_and_never_published_is_not_lost(
    q: duly.Client, js: JetStream, nats_server: Server, start: Start
) -> None:
    q.create_topic("in", kind="log")
    js.publish("orders.a", [b"%d" % n for n in range(100)])
    place: Any = place_of(nats_of(nats_server, "ORDERS/orders.*"))
    source = JetStreamSource(place, group="duly")
    source.take(64, 1)
    source.close()
    start(nats_of(nats_server, "ORDERS/orders.*"), "duly:in", drain=True).end()
    assert [int(m.payload) for m in read(q, "in")] == list(range(100))


def test_what_was_delivered_to_a_connection_that_is_gone_is_not_acknowledged_with_what_follows(
    js: JetStream, nats_server: Server
) -> None:
    """Acknowledging goes up to a message: one that is missing before it would never come again."""
    place: Any = place_of(nats_of(nats_server, "ORDERS/orders.*"))
    source = JetStreamSource(place, group="duly")
    try:
        js.publish("orders.a", [b"0"])
        first = source.take(10, 1)
        assert first is not None
        source.done(first)

        async def steal(context: Any) -> None:
            bound = await context.pull_subscribe_bind("duly", stream="ORDERS")
            assert [m.data for m in await bound.fetch(3, timeout=5)] == [b"1", b"2", b"3"]

        js.publish("orders.a", [b"1", b"2", b"3"])
        js.do(steal)
        js.publish("orders.a", [b"4", b"5"])
        with pytest.raises(Down, match="connection that is gone"):
            source.take(10, 1)
        taken = source.take(10, 1)
        assert taken is not None
        assert [one.payload for one in taken.entries] == [b"1", b"2", b"3", b"4", b"5"]
        source.done(taken)
        assert source.take(10, 0) is None
    finally:
        source.close()


def test_what_is_put_again_is_in_jetstream_once_and_in_its_order(
    q: duly.Client, js: JetStream, nats_server: Server, start: Start
) -> None:
    q.create_topic("out", kind="queue")
    order = list(range(60))
    random.Random(3).shuffle(order)
    base = int(time.time() * 1000) - 10_000
    moments = [duly.Message(b"%d" % n, due=duly_moment(base + n)) for n in order]
    q.publish("out", moments)
    # A predecessor of that name, killed when half of its batch was there.
    held = q.claim("out", max_messages=40, consumer="bridge:bridge", lease=600)
    from duly.bridge.jetstream import JetStreamSink

    sink = JetStreamSink(place_of(nats_of(nats_server)))  # type: ignore[arg-type]
    sink.put(held[:20])
    sink.close()
    start("duly:out", nats_of(nats_server), drain=True, batch=25).end()
    assert [int(m.data) for m in js.stored()] == list(range(60))


def duly_moment(ms: int) -> Any:
    from duly.clock import from_ms

    return from_ms(ms)


def test_what_nats_can_never_take_goes_to_the_dead_letters(
    q: duly.Client, js: JetStream, nats_server: Server, start: Start
) -> None:
    retry = duly.RetryPolicy(max_attempts=1)
    q.create_topic("out", kind="queue", retry=retry, payload_bytes_max=4 * 1024 * 1024)
    q.publish("out", [b"small", b"x" * 2_000_000, b"also small"])
    start("duly:out", nats_of(nats_server), drain=True).end()
    assert [m.data for m in js.stored()] == [b"small", b"also small"]
    (letter,) = q.dead("out")
    assert "NATS takes 1048576 bytes" in letter.reason


def test_a_stream_that_is_full_is_waited_for_and_nothing_is_lost(
    q: duly.Client, nats_server: Server, start: Start
) -> None:
    from nats.js import api

    js = JetStream(nats_server)
    config = api.StreamConfig(name="SMALL", subjects=["s"], max_msgs=10, discard=api.DiscardPolicy.NEW)
    js.do(lambda js: js.add_stream(config))
    q.create_topic("out", kind="queue")
    q.publish("out", [b"%d" % n for n in range(30)])
    bridge = start("duly:out", nats_of(nats_server, "SMALL/s"), drain=True)
    eventually(lambda: len(bridge.said) == 1)
    config.max_msgs = 100
    js.do(lambda js: js.update_stream(config))
    bridge.end()
    assert [int(m.data) for m in js.stored("SMALL")] == list(range(30))
    assert q.describe_topic("out").messages == 0


def test_nats_that_goes_away_is_waited_for(q: duly.Client, js: JetStream, nats_server: Server, start: Start) -> None:
    q.create_topic("out", kind="queue")
    bridge = start("duly:out", nats_of(nats_server))
    q.publish("out", [b"one"])
    eventually(lambda: bridge.copied == 1)
    nats_server.end()
    q.publish("out", [b"two"])
    eventually(lambda: len(bridge.said) == 1)
    nats_server.start()
    eventually(lambda: bridge.copied == 2, within_s=30)
    bridge.stop()
    assert [m.data for m in js.stored()] == [b"one", b"two"]


# What a person has to put right


@pytest.mark.parametrize(
    ("origin", "target", "options", "why"),
    [
        ("duly:in", "duly:in", {}, "One side"),
        ("redis", "nats", {}, "One side"),
        ("redis", "duly:nowhere", {}, "No such topic|no topic"),
        ("redis", "duly:log", {"due": "now"}, "is a log"),
        ("redis", "duly:in", {"due": "nnow"}, "there is no 'nnow'"),
        ("duly:log", "redis", {}, "--group"),
        ("duly:in", "redis", {"due": "now"}, "comes into a topic"),
        ("duly:in", "nats://127.0.0.1:{nats}/NOTHING/orders.x", {}, "stream not found"),
        ("duly:in", "nats://127.0.0.1:{nats}/ORDERS/orders.>", {}, "without stars"),
        ("nats", "duly:in", {"group": "a.b"}, "no dots"),
    ],
)
def test_what_makes_no_sense_is_refused(
    q: duly.Client,
    js: JetStream,
    redis_server: Server,
    nats_server: Server,
    start: Start,
    origin: str,
    target: str,
    options: dict[str, Any],
    why: str,
) -> None:
    q.create_topic("in", kind="queue")
    q.publish("in", b"x")
    q.create_topic("log", kind="log")
    named = {"redis": redis_of(redis_server), "nats": nats_of(nats_server)}
    places = [named.get(one, one.replace("{nats}", str(nats_server.port))) for one in (origin, target)]
    with pytest.raises(duly.Error, match=why):
        start(*places, drain=True, **options).end()


def test_a_wrong_password_is_said_and_not_waited_for(
    q: duly.Client, r: Any, redis_server: Server, start: Start
) -> None:
    r.config_set("requirepass", "s3cret-word")
    q.create_topic("in", kind="log")
    with pytest.raises(duly.InvalidArgument, match="lets nobody in") as refused:
        start(f"redis://:wrong-word@127.0.0.1:{redis_server.port}/0/orders", "duly:in", drain=True).end()
    assert "wrong-word" not in str(refused.value)
    start(f"redis://:s3cret-word@127.0.0.1:{redis_server.port}/0/orders", "duly:in", drain=True).end()


@pytest.mark.parametrize("side", ["redis", "nats"])
def test_over_tls_the_server_is_verified(
    q: duly.Client, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    if (REDIS if side == "redis" else NATS) is None:
        pytest.skip(f"there is no {side}-server here")
    make_development_certificates(str(tmp_path))
    cert, key, ca = (str(tmp_path / name) for name in ("server.pem", "server.key", "ca.pem"))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    q.create_topic("out", kind="queue")
    q.publish("out", b"one")
    if side == "redis":
        more = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca, "--tls-auth-clients", "no")
        server = start_redis(tmp_path / "redis", *more, tls=True)
        target = f"rediss://localhost:{server.port}/0/orders"
    else:
        server = start_nats(tmp_path / "nats", "--tls", "--tlscert", cert, "--tlskey", key)
        target = f"nats+tls://localhost:{server.port}/NOTHING/s"
    try:
        stranger = start("duly:out", target, drain=True)
        eventually(lambda: len(stranger.said) == 1)
        assert "certificate verify failed" in stranger.said[0].lower()
        stranger.stop()
        monkeypatch.setenv("SSL_CERT_FILE", ca)
        bridge = start("duly:out", target, drain=True)
        if side == "redis":
            bridge.end()
            assert bridge.copied == 1
        else:
            with pytest.raises(duly.InvalidArgument, match="stream not found"):
                bridge.end()
    finally:
        server.end()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("duly:orders/eu", "duly:orders/eu"),
        ("redis://:pass@[::1]:7000/2/a/b%3Fc", "redis://::1:7000/2/a/b?c"),
        ("rediss://u:p@h/0/s", "rediss://h:6379/0/s"),
        ("nats://u:p@a:1,b:2/S/x.y", "nats://a:1,b:2/S/x.y"),
        ("nats+tls://token@a/S", "nats+tls://a/S"),
    ],
)
def test_addresses_are_shown_without_passwords(text: str, shown: str) -> None:
    place = place_of(text)
    assert place.shown == shown
    assert "pass" not in repr(place)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "duly:",
        "duly://h:1",
        "redis://h:6379/orders",
        "redis://h:6379/x/orders",
        "redis:///0/s",
        "redis://h:99999/0/s",
        "redis://h/0/s?secret=pw",
        "nats://h:4222",
        "nats://h:4222/a.b",
        "nats://h:4222/S/a b",
        "kafka://h/t",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(duly.InvalidArgument) as refused:
        place_of(text)
    assert "pw" not in str(refused.value)


def test_subjects_match_as_those_of_nats_do() -> None:
    assert matches(">", "a.b")
    assert matches("a.>", "a.b.c")
    assert not matches("a.>", "a")
    assert matches("a.*.c", "a.b.c")
    assert not matches("a.*", "a.b.c")
    assert not matches("a.b", "a")
    assert json.dumps(matches("a", "a")) == "true"
