"""Deliveries to an endpoint: what it gets, and what its answers do."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from urllib.parse import unquote

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

import duly
from duly.broker.pushes.outcomes import _took
from duly.clock import monotonic_s
from duly.push import ToHttp
from tests.conftest import scaled
from tests.push.conftest import SECRET, Pushing
from tests.push.receiver import Receiver, Request, http, never, raw
from tests.store.patience import eventually

FAST = duly.RetryPolicy(max_attempts=50, base=0.01, cap=0.02)


def settled(pushing: Pushing, topic: str = "hooks") -> None:
    eventually(lambda: pushing.counts(topic)[:3] == (0, 0, 0))


def history(pushing: Pushing, id: str = "m") -> list[str]:
    known = pushing.q.get("hooks", id)
    return [] if known is None else [failure.reason for failure in known.history]


def acked(q: duly.Client) -> list[duly.Event]:
    return [event for event in q.events() if event.kind == "acked"]


@pytest.fixture
def hooks(pushing: Pushing) -> duly.Client:
    pushing.q.create_topic("hooks", kind="queue", retry=FAST)
    return pushing.q


# What is sent


def test_message_arrives_as_it_is_with_its_facts_in_headers(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client
) -> None:
    message = duly.Message(
        b'{"a": 1}', id="m-1", key="k", lane="acme", priority=7, headers={"content-type": "application/json", "x": "y"}
    )
    hooks.publish("hooks", message)
    pushing.start("hooks", ToHttp(receiver.url("/in?a=b"), headers={"Authorization": "Bearer t"}))
    settled(pushing)
    [got] = receiver.requests
    assert (got.method, got.path, got.body) == ("POST", "/in?a=b", b'{"a": 1}')
    told = {name: got.headers[name] for name in got.headers if name.startswith("duly-")}
    assert int(told.pop("duly-published-at-ms")) > 1_700_000_000_000
    assert told == {
        "duly-topic": "hooks",
        "duly-group": "queue",
        "duly-id": "m-1",
        "duly-key": "k",
        "duly-lane": "acme",
        "duly-priority": "7",
        "duly-partition": "0",
        "duly-offset": "0",
        "duly-attempt": "1",
        "duly-operation": told["duly-operation"],
        "duly-headers": '{"content-type":"application/json","x":"y"}',
    }
    assert got.headers["content-type"] == "application/json"
    assert got.headers["authorization"] == "Bearer t"
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_bytes_that_are_no_text_arrive_unchanged(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client, method: str
) -> None:
    payloads = [b"", b"\x00\xff\r\n\r\n", bytes(range(256)) * 2_000]
    hooks.publish("hooks", payloads)
    pushing.start("hooks", ToHttp(receiver.url(), method=method, headers={"content-type": "image/x-thing"}))
    settled(pushing)
    assert sorted(receiver.bodies) == sorted(payloads)
    assert {got.method for got in receiver.requests} == {method}
    assert {got.headers["content-type"] for got in receiver.requests} == {"image/x-thing"}


def test_no_text_of_a_message_ends_its_header(pushing: Pushing, receiver: Receiver, hooks: duly.Client) -> None:
    evil = "a\r\nX-Evil: 1\r\n\r\nGET / HTTP/1.1 \u2028 ü %0d %"
    hooks.publish(
        "hooks", duly.Message(b"x", id=evil, key=evil, lane="ü %0d", headers={"content-type": evil, evil: evil})
    )
    pushing.start("hooks", ToHttp(receiver.url()))
    settled(pushing)
    [got] = receiver.requests
    assert "x-evil" not in got.headers
    assert got.raw_head.isascii()
    assert [unquote(got.headers[f"duly-{name}"]) for name in ("id", "key", "lane")] == [evil, evil, "ü %0d"]
    assert json.loads(unquote(got.headers["duly-headers"])) == {"content-type": evil, evil: evil}
    assert got.headers["content-type"] == "application/octet-stream"


def test_groups_messages_of_a_log_are_pushed(pushing: Pushing, receiver: Receiver) -> None:
    q = pushing.q
    q.create_topic("orders", kind="log")
    q.create_group("orders", "billing", start="earliest")
    q.publish("orders", [b"%d" % number for number in range(100)])
    pushing.start("orders", ToHttp(receiver.url()), group="billing")
    eventually(lambda: pushing.counts("orders", "billing") == (0, 0, 0, 0))
    assert sorted(map(int, receiver.bodies)) == list(range(100))


def test_what_is_published_later_is_pushed_without_being_asked_for(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client
) -> None:
    pushing.start("hooks", ToHttp(receiver.url()))
    for number in range(5):
        hooks.publish("hooks", b"%d" % number)
        eventually(lambda: receiver.bodies[-1:] == [b"%d" % number])  # noqa: B023
    hooks.publish("hooks", duly.Message(b"due", due=timedelta(seconds=0.2)))
    eventually(lambda: b"due" in receiver.bodies)


# Signatures


def test_public_library_verifies_every_delivery(pushing: Pushing, receiver: Receiver, hooks: duly.Client) -> None:
    hooks.publish("hooks", [json.dumps({"n": n, "text": "ä€"}).encode() for n in range(scaled(20, 200))])
    pushing.start("hooks", ToHttp(receiver.url()))
    settled(pushing)
    webhook = Webhook(SECRET)
    assert {webhook.verify(got.body, got.headers)["n"] for got in receiver.requests} == set(range(scaled(20, 200)))
    assert len({got.headers["webhook-id"] for got in receiver.requests}) == scaled(20, 200)


def test_while_secrets_rotate_either_verifies(pushing: Pushing, receiver: Receiver, hooks: duly.Client) -> None:
    hooks.publish("hooks", b"{}")
    pushing.start("hooks", ToHttp(receiver.url()), secrets=(b"new" * 10, b"old" * 10))
    settled(pushing)
    [got] = receiver.requests
    for secret in (b"new" * 10, b"old" * 10):
        Webhook(secret).verify(got.body, got.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(b"another" * 10).verify(got.body, got.headers)


def test_tampering_is_noticed(pushing: Pushing, receiver: Receiver, hooks: duly.Client) -> None:
    hooks.publish("hooks", b'{"pay": 10}')
    pushing.start("hooks", ToHttp(receiver.url()))
    settled(pushing)
    [got] = receiver.requests
    other = got.headers | {"webhook-id": got.headers["webhook-id"] + "0"}
    earlier = got.headers | {"webhook-timestamp": str(int(got.headers["webhook-timestamp"]) - 1)}
    for body, headers in ((b'{"pay": 11}', got.headers), (got.body, other), (got.body, earlier)):
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(body, headers)


def test_retries_have_the_same_id_and_topics_have_ids_of_their_own(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client
) -> None:
    hooks.create_topic("others", kind="queue", retry=FAST)
    receiver.next["/hook"] = [http(500), http(500)]
    hooks.publish("hooks", duly.Message(b"1", id="m"))
    pushing.start("hooks", ToHttp(receiver.url()))
    settled(pushing)
    assert len({got.headers["webhook-id"] for got in receiver.requests}) == 1
    assert [got.headers["duly-attempt"] for got in receiver.requests] == ["1", "2", "3"]
    hooks.publish("others", duly.Message(b"1", id="m"))
    pushing.start("others", ToHttp(receiver.url()))
    settled(pushing, "others")
    assert len({got.headers["webhook-id"] for got in receiver.requests}) == 2


# Answers


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_success_acks_and_tells_status_and_time(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client, status: int
) -> None:
    receiver.always["/hook"] = http(status)
    hooks.publish("hooks", b"x")
    pushing.start("hooks", ToHttp(receiver.url()))
    settled(pushing)
    [event] = acked(hooks)
    assert str(event.facts["reason"]).startswith(f"{status} in ")
    assert str(event.facts["reason"]).endswith(" ms")
    assert pushing.answers()[0]["status"] == status


def test_times_of_several_stand_in_the_order_of_the_messages() -> None:
    assert _took(204, [7, 5, 7]) == "204 in 7, 5, 7 ms"
    assert _took(200, [7] * 300) == "200 in 7 ms"
    assert _took(200, [*range(300)]) == "200 in 0 to 299 ms"


@pytest.mark.parametrize("status", [302, 400, 404, 418, 500, 503])
def test_everything_else_is_tried_again_and_stands_in_the_history(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client, status: int
) -> None:
    body = b"\n  upstream \x1b[31mdown\x07 \xff\nsecond line"
    receiver.next["/hook"] = [http(status, body, "location: http://127.0.0.1:1/inside")]
    receiver.always["/hook"] = never
    hooks.publish("hooks", duly.Message(b"x", id="m"))
    pushing.start("hooks", ToHttp(receiver.url()))
    eventually(lambda: len(receiver.requests) == 2)
    [reason] = history(pushing)
    said = "redirects are not followed" if status == 302 else "upstream [31mdown \ufffd"
    assert reason.startswith(f"{status} in ")
    assert reason.partition(" ms: ")[2] == said


def test_dead_letter_tells_what_the_endpoint_answered(pushing: Pushing, receiver: Receiver) -> None:
    pushing.q.create_topic("hooks", kind="queue", retry=duly.RetryPolicy(max_attempts=2, base=0.01, cap=0.01))
    receiver.always["/hook"] = http(503, b"upstream down")
    pushing.q.publish("hooks", b"x")
    pushing.start("hooks", ToHttp(receiver.url()))
    eventually(lambda: pushing.counts("hooks")[3] == 1)
    [letter] = pushing.q.dead("hooks")
    assert [failure.reason.endswith("ms: upstream down") for failure in letter.history] == [True, True]
    assert letter.history[0].consumer == pushing.q.consumer


def test_gone_disables_and_gives_back_what_is_under_way_without_an_attempt(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client
) -> None:
    receiver.next["/hook"] = [never, never, http(410)]
    hooks.publish("hooks", [b"%d" % number for number in range(10)])
    pushing.start("hooks", ToHttp(receiver.url(), concurrency=3))
    eventually(lambda: any(kind == "disabled" for kind, _ in pushing.told))
    eventually(lambda: pushing.counts("hooks")[1] == 0)
    assert len(receiver.requests) == 3
    with hooks.claim("hooks", max_messages=100, wait=1) as batch:
        assert [one.attempt for one in batch] == [1] * 10
    [(_, facts)] = [one for one in pushing.told if one[0] == "disabled"]
    assert "410" in facts["reason"]


@pytest.mark.parametrize("status", [429, 503, 500])
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured_by_the_whole_push(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client, status: int, form: str
) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=2)
    wait = "1" if form == "seconds" else format_datetime(moment, usegmt=True)
    receiver.next["/hook"] = [http(status, b"slow down", f"Retry-After: {wait}")]
    hooks.publish("hooks", [b"1", b"2", b"3"])
    pushing.start("hooks", ToHttp(receiver.url(), concurrency=1))
    settled(pushing)
    first, second, *_ = receiver.requests
    assert 0.9 < second.at - first.at < 4
    assert len(receiver.requests) == 4


@pytest.mark.parametrize("wait", ["0", "-1", "soon", "Thu, 01 Jan 1970 00:00:00 GMT", "1e9", "\u0663"])
def test_retry_after_that_says_nothing_leaves_it_to_the_retry_policy(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client, wait: str
) -> None:
    receiver.next["/hook"] = [raw(f"HTTP/1.1 503 No\r\nretry-after: {wait}\r\ncontent-length: 0\r\n\r\n".encode())]
    hooks.publish("hooks", b"1")
    pushing.start("hooks", ToHttp(receiver.url()))
    settled(pushing)
    assert len(receiver.requests) == 2


async def drip(writer: asyncio.StreamWriter, _: Request) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def endless(writer: asyncio.StreamWriter, _: Request) -> None:
    writer.write(b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n")
        await writer.drain()


async def drip_headers(writer: asyncio.StreamWriter, _: Request) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while not writer.is_closing():
        writer.write(b"x-a: b\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def endless_continues(writer: asyncio.StreamWriter, _: Request) -> None:
    while not writer.is_closing():
        writer.write(b"HTTP/1.1 103 Early\r\nlink: a\r\n\r\n" * 100)
        await writer.drain()


_BOMB = gzip.compress(bytes(50_000_000))
_HUGE = b"HTTP/1.1 200 OK\r\nx-big: " + b"a" * 100_000 + b"\r\ncontent-length: 0\r\n\r\n"
_MANY = b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 2_000 + b"content-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("answering", "said"),
    [
        (never, "no answer in"),
        (drip, "not over after"),
        (drip_headers, "no answer in"),
        (endless, "500 in"),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "no HTTP"),
        (raw(b"\x00\x01\x02\xff" * 100), "no HTTP"),
        (raw(b""), "without an answer"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-le"), "no answer in"),
        (http(200, b"half", length=1000), "200 in"),
        (raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"), "no HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx"), "no answer in"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nxx"), "no answer in"),
        (raw(b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n"), "999 in"),
        (raw(b"HTTP/1.1 101 Switching\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"), "101 in"),
        (raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000), "no answer in"),
        (endless_continues, "no answer in"),
        (raw(_HUGE), "no answer in"),
        (raw(_MANY), "no answer in"),
        (http(500, _BOMB, "content-encoding: gzip"), "500 in"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_answers_fail_within_the_time_and_hurt_nobody(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client, answering: object, said: str
) -> None:
    receiver.next["/hook"] = [answering]  # type: ignore[list-item]
    hooks.publish("hooks", duly.Message(b"x", id="m"))
    began = monotonic_s()
    pushing.start("hooks", ToHttp(receiver.url(), timeout=0.5))
    eventually(lambda: len(receiver.requests) == 2)
    settled(pushing)
    assert monotonic_s() - began < 5
    _, second = pushing.answers()
    assert second["status"] == 204
    reasons = [str(event.facts.get("reason")) for event in hooks.events() if event.kind == "nacked"]
    assert len(reasons) == 1
    assert said in reasons[0]
    assert len(reasons[0]) < 400


def test_server_that_goes_on_talking_after_its_answer_is_not_listened_to(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client
) -> None:
    talked = 0

    async def talking_on(writer: asyncio.StreamWriter, request: Request) -> None:
        nonlocal talked
        await http()(writer, request)
        while not writer.is_closing():
            writer.write(b"HTTP/1.1 103 Early\r\n\r\n" * 1_000)
            await writer.drain()
            talked += 1_000 * 22

    receiver.next["/hook"] = [talking_on]
    pushing.start("hooks", ToHttp(receiver.url(), concurrency=1))
    hooks.publish("hooks", b"1")
    settled(pushing)
    began = monotonic_s()
    hooks.publish("hooks", b"2")
    settled(pushing)
    assert monotonic_s() - began < 2
    # What the system itself takes for a connection: nobody reads it.
    assert talked < 20_000_000


def test_long_answer_is_cut_off_and_a_success_all_the_same(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client
) -> None:
    receiver.always["/hook"] = http(200, b"x" * 10_000_000)
    hooks.publish("hooks", b"x")
    pushing.start("hooks", ToHttp(receiver.url()))
    settled(pushing)
    assert len(receiver.requests) == 1


def test_answer_of_just_what_is_read_keeps_its_connection(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client
) -> None:
    receiver.always["/hook"] = http(200, b"x" * 64 * 1024)
    hooks.publish("hooks", [b"1", b"2", b"3"])
    pushing.start("hooks", ToHttp(receiver.url(), concurrency=1))
    settled(pushing)
    assert (len(receiver.requests), receiver.connections) == (3, 1)


def test_cookies_are_not_kept(pushing: Pushing, receiver: Receiver, hooks: duly.Client) -> None:
    receiver.always["/hook"] = http(200, b"", "set-cookie: a=b; path=/")
    hooks.publish("hooks", [b"1", b"2"])
    pushing.start("hooks", ToHttp(receiver.url(), concurrency=1))
    settled(pushing)
    assert all("cookie" not in got.headers for got in receiver.requests)


# Batches


def test_batch_is_json_as_rest_tells_messages(pushing: Pushing, receiver: Receiver, hooks: duly.Client) -> None:
    hooks.publish("hooks", [duly.Message(b"\xff%d" % n, id=f"m{n}", key="k", headers={"a": "b"}) for n in range(25)])
    pushing.start("hooks", ToHttp(receiver.url(), batch=10, concurrency=2))
    settled(pushing)
    bodies = [Webhook(SECRET).verify(got.body, got.headers) for got in receiver.requests]
    assert sorted(len(body["messages"]) for body in bodies) == [5, 10, 10]
    messages = [message for body in bodies for message in body["messages"]]
    assert {base64.b64decode(one["payload_base64"]) for one in messages} == {b"\xff%d" % n for n in range(25)}
    assert messages[0].keys() == {
        *("id", "partition", "offset", "attempt", "published_at_ms", "payload_base64", "key", "headers")
    }
    assert bodies[0]["topic"] == "hooks"
    assert {got.headers["content-type"] for got in receiver.requests} == {"application/json"}


def test_answer_to_a_batch_names_those_that_failed(pushing: Pushing, receiver: Receiver, hooks: duly.Client) -> None:
    receiver.next["/hook"] = [http(200, b'{"failed": ["m3", "m7"]}', "content-type: application/json")]
    receiver.always["/hook"] = http(200, b'{"ok": true}', "content-type: application/json")
    hooks.publish("hooks", [duly.Message(b"x", id=f"m{n}") for n in range(10)])
    pushing.start("hooks", ToHttp(receiver.url(), batch=10, concurrency=1))
    settled(pushing)
    again = [one["id"] for got in receiver.requests[1:] for one in json.loads(got.body)["messages"]]
    assert sorted(again) == ["m3", "m7"]


@pytest.mark.parametrize(
    "answering",
    [
        http(200, b'{"failed": ["m1"', "content-type: application/json"),
        http(200, b'{"failed": ["m1"', "content-type: text/plain"),
        http(200, b'{"failed": ["other"]}', "content-type: application/json"),
        http(200, b'{"failed": {"m1": 1}}', "content-type: application/json"),
        http(200, b'{"failed": [1]}', "content-type: application/json"),
        http(200, b'{"failed": null}', "content-type: application/json"),
        http(200, b'{"failed": [], "pad": "' + b"x" * 100_000 + b'"}', "content-type: application/json"),
        http(200, b"\xff\xfe", "content-type: application/json"),
        http(200, b"[" * 50_000, "content-type: application/problem+json"),
        http(200, gzip.compress(b'{"failed": []}'), "content-type: application/json", "content-encoding: gzip"),
    ],
)
def test_answer_to_a_batch_that_cannot_be_read_acks_nothing(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client, answering: object
) -> None:
    receiver.next["/hook"] = [answering]  # type: ignore[list-item]
    hooks.publish("hooks", [duly.Message(b"x", id=f"m{n}") for n in range(3)])
    pushing.start("hooks", ToHttp(receiver.url(), batch=3, concurrency=1))
    settled(pushing)
    again = [one["id"] for got in receiver.requests[1:] for one in json.loads(got.body)["messages"]]
    assert sorted(again) == ["m0", "m1", "m2"]


@pytest.mark.parametrize(
    "answering",
    [
        http(200, b""),
        http(200, b"", "content-type: application/json"),
        http(200, b"thanks"),
        http(200, b'"ok"', "content-type: application/json"),
        http(200, b'{"failed": []}', "content-type: application/json"),
    ],
)
def test_answer_to_a_batch_without_failures_acks_all(
    pushing: Pushing, receiver: Receiver, hooks: duly.Client, answering: object
) -> None:
    receiver.always["/hook"] = answering  # type: ignore[assignment]
    hooks.publish("hooks", [b"1", b"2", b"3"])
    pushing.start("hooks", ToHttp(receiver.url(), batch=3))
    settled(pushing)
    assert len(receiver.requests) == 1
