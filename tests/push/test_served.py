"""A broker as operators run it, with a push as people make one: `duly serve`, `q.create_push`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from standardwebhooks import Webhook

import duly
from duly.bench.brokers import own_broker
from duly.push import ToHttp
from tests.push.receiver import Receiver, http
from tests.store.patience import eventually


@pytest.fixture
def q(tmp_path: Path, receiver: Receiver) -> Iterator[duly.Client]:
    allow = ("--push-allow", f"127.0.0.1:{receiver.port}")
    with own_broker(tmp_path / "app.duly", *allow) as url, duly.connect(url) as client:
        client.create_topic("hooks", kind="queue", retry=duly.RetryPolicy(base=0.05, cap=0.1))
        yield client


def test_push_delivers_signed_rotates_and_ends_when_the_endpoint_is_gone(q: duly.Client, receiver: Receiver) -> None:
    made = q.create_push("hook", topic="hooks", to=ToHttp(receiver.url()))
    q.publish("hooks", b'{"n": 1}')
    eventually(lambda: len(receiver.requests) == 1)
    assert made.secret is not None
    first = receiver.requests[0]
    assert Webhook(made.secret).verify(first.body, first.headers) == {"n": 1}
    eventually(lambda: (last := q.describe_push("hook").last) is not None and last.status == 204)

    receiver.next["/hook"] = [http(201, b"seen")]
    answer = q.test_push("hook")
    assert (answer.status, answer.body, answer.error) == (201, "seen", "")
    tried = receiver.requests[-1]
    assert tried.headers["duly-test"] == "true"
    assert Webhook(made.secret).verify(tried.body, tried.headers)["type"] == "duly.test"

    rotated = q.rotate_push_secret("hook")
    assert rotated.secret is not None

    def signed_by_both() -> bool:
        q.publish("hooks", b'{"n": 2}')
        eventually(lambda: receiver.bodies[-1:] == [b'{"n": 2}'])
        return len(receiver.requests[-1].headers["webhook-signature"].split()) == 2

    eventually(signed_by_both)
    second = receiver.requests[-1]
    for secret in (made.secret, rotated.secret):
        assert Webhook(secret).verify(second.body, second.headers) == {"n": 2}

    receiver.always["/hook"] = http(410)
    q.publish("hooks", b'{"n": 3}')
    eventually(lambda: q.describe_push("hook").state == "disabled")
    assert "410" in q.describe_push("hook").reason
    receiver.always["/hook"] = http()
    q.resume_push("hook")
    eventually(lambda: (told := q.describe_push("hook")).lag + told.leased + told.retrying == 0)
    assert receiver.requests[-1].headers["duly-attempt"] == "1"


def test_what_is_not_allowed_is_not_reached_and_its_messages_stay(q: duly.Client, receiver: Receiver) -> None:
    with closing(Receiver()) as elsewhere:
        q.create_push("hook", topic="hooks", to=ToHttp(elsewhere.url()))
        q.publish("hooks", duly.Message(b"x", id="m"))
        eventually(lambda: (known := q.get("hooks", "m")) is not None and known.history)
        known = q.get("hooks", "m")
        assert known is not None
        assert "--push-allow" in known.history[0].reason
        assert elsewhere.connections == 0


@pytest.mark.full
def test_broker_that_is_killed_loses_nothing_and_repeats_are_told_by_their_id(
    tmp_path: Path, receiver: Receiver
) -> None:
    store, allow = str(tmp_path / "app.duly"), ("--push-allow", f"127.0.0.1:{receiver.port}")
    command = [
        sys.executable,
        "-m",
        "duly",
        "serve",
        "--store",
        store,
        "--http-port",
        "0",
        "--flight-port",
        "0",
        *allow,
    ]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE) as first, duly.connect(store) as q:
        assert first.stdout is not None
        assert first.stdout.readline()
        q.create_topic("hooks", kind="queue")
        q.create_push("hook", topic="hooks", to=ToHttp(receiver.url(), timeout=0.5, concurrency=8))
        q.publish("hooks", [duly.Message(b"x", id=f"m{number}") for number in range(5_000)])
        eventually(lambda: len(receiver.requests) > 500)
        first.kill()
    with own_broker(store, *allow), duly.connect(store) as q:
        eventually(lambda: (told := q.describe_push("hook")).lag + told.leased + told.retrying == 0, within_s=90)
    ids = {got.headers["duly-id"]: got.headers["webhook-id"] for got in receiver.requests}
    assert len(ids) == 5_000
    assert len({got.headers["webhook-id"] for got in receiver.requests}) == 5_000
    assert len(receiver.requests) <= 5_000 + 16


@pytest.mark.parametrize(
    "options",
    [("--push-allow", "example.com"), ("--push-port", "0"), ("--push-ca", "/nowhere/ca.pem")],
)
def test_options_that_make_no_sense_are_refused_before_anybody_is_served(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    with pytest.raises(duly.Unavailable, match="did not start"), own_broker(tmp_path / "app.duly", *options):
        pass


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "inside"},
        {"Content-Length": "1"},
        {"transfer-encoding": "chunked"},
        {"webhook-id": "x"},
        {"Duly-Id": "x"},
        {"a b": "c"},
        {"": "x"},
        {"x": "a\r\nb: c"},
        {"x": "ä"},
        {"x": 1},
        {"X-A": "1", "x-a": "2"},
        {"x": "a" * 10_000},
        {f"x-{number}": "" for number in range(33)},
    ],
)
def test_headers_that_are_not_the_pushs_to_set_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises((duly.InvalidArgument, duly.LimitExceeded)):
        ToHttp("https://example.com/", headers=headers)


def test_refused_header_is_not_repeated() -> None:
    with pytest.raises(duly.InvalidArgument) as refused:
        ToHttp("https://example.com/", headers={"authorization": "Bearer geheim-ä"})
    assert "geheim" not in str(refused.value)
