"""Publish over HTTP: batches as JSON, one message as raw bytes, publish ids, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx
import pytest

from duly.broker.broker import Broker

from .conftest import b64, problem, texts


def test_batch_is_stored_in_order_with_ids_and_places(http: httpx.Client, orders: str) -> None:
    answer = http.post(f"{orders}/messages", json=texts("one", "two"))
    assert answer.status_code == 201
    told = answer.json()
    assert (told["count"], told["duplicate"], told["duplicates"]) == (2, False, [])
    assert told["spans"] == [{"partition": 0, "first_offset": 0, "count": 2}]
    found = http.get(f"{orders}/partitions/0/messages").json()["messages"]
    assert [message["payload_base64"] for message in found] == [b64(b"one"), b64(b"two")]
    assert [message["id"] for message in found] == told["ids"]


def test_payload_as_base64_text_and_json(http: httpx.Client, orders: str) -> None:
    messages = [
        {"payload_base64": b64(b"\x00\xff")},
        {"payload_text": "grüß dich \U0001f600"},
        {"payload_json": {"to": 42, "ü": None}},
        {"payload_json": None},
        {"payload_text": ""},
    ]
    assert http.post(f"{orders}/messages", json={"messages": messages}).status_code == 201
    path = f"{orders}/partitions/0/messages"
    stored = [http.get(f"{path}/{offset}/payload").content for offset in range(5)]
    assert stored[:2] == [b"\x00\xff", "grüß dich \U0001f600".encode()]
    assert stored[2] == httpx.Request("POST", "http://x", json={"to": 42, "ü": None}).content
    assert stored[3:] == [b"null", b""]


def test_everything_about_a_message_comes_back(http: httpx.Client, emails: str) -> None:
    message = {
        "payload_text": "x",
        "id": "welcome-42",
        "key": "ключ",
        "headers": {"trace": "ü"},
        "priority": 7,
        "lane": "acme",
        "due_at_ms": 1_700_000_000_000,
        "ttl_ms": 3 * 10**11,
    }
    plain = {"payload_base64": b64(b"y")}
    answer = http.post(f"{emails}/messages", json={"messages": [message, plain]})
    assert answer.json()["ids"][0] == "welcome-42"
    found = http.get(f"{emails}/messages/welcome-42").json()
    assert {name: found[name] for name in ("id", "key", "headers", "priority", "lane", "due_at_ms")} == {
        name: message[name] for name in ("id", "key", "headers", "priority", "lane", "due_at_ms")
    }
    assert found["expires_at_ms"] == 1_700_000_000_000 + 3 * 10**11
    assert found["state"] == "ready"


def test_raw_bytes_are_one_message_described_by_the_query(http: httpx.Client, emails: str) -> None:
    kind = {"content-type": "application/octet-stream", "duly-headers": '{"trace": "1"}'}
    answer = http.post(
        f"{emails}/messages", params={"id": "raw ü", "due_in_ms": 60_000}, content=bytes(range(256)), headers=kind
    )
    assert answer.status_code == 201, answer.text
    assert answer.json()["ids"] == ["raw ü"]
    found = http.get(f"{emails}/messages/raw%20%C3%BC").json()
    assert (found["state"], found["headers"]) == ("waiting", {"trace": "1"})
    payload = http.get(f"{emails}/messages/raw%20%C3%BC/payload")
    assert payload.content == bytes(range(256))
    assert payload.headers["content-type"] == "application/octet-stream"
    assert payload.headers["content-security-policy"] == "sandbox"


def test_empty_body_of_raw_bytes_is_an_empty_message(http: httpx.Client, orders: str) -> None:
    kind = {"content-type": "application/octet-stream"}
    assert http.post(f"{orders}/messages", content=b"", headers=kind).status_code == 201
    assert http.get(f"{orders}/partitions/0/messages/0/payload").content == b""


def test_idempotency_key_stores_once(http: httpx.Client, orders: str) -> None:
    key = {"idempotency-key": "order-17"}
    first = http.post(f"{orders}/messages", json=texts("a", "b"), headers=key).json()
    again = http.post(f"{orders}/messages", json=texts("a", "b"), headers=key).json()
    assert (first["publish_id"], first["duplicate"]) == ("order-17", False)
    assert (again["duplicate"], again["ids"], again["spans"]) == (True, first["ids"], first["spans"])
    assert len(http.get(f"{orders}/partitions/0/messages").json()["messages"]) == 2


def test_made_publish_id_can_be_repeated_too(http: httpx.Client, orders: str) -> None:
    made = http.post(f"{orders}/messages", json=texts("a")).json()
    again = http.post(f"{orders}/messages", json=texts("a"), headers={"idempotency-key": made["publish_id"]}).json()
    assert (again["duplicate"], again["ids"]) == (True, made["ids"])


def test_id_in_use_is_left_out_and_told(http: httpx.Client, emails: str) -> None:
    http.post(f"{emails}/messages", json={"messages": [{"payload_text": "a", "id": "x"}]})
    told = http.post(f"{emails}/messages", json={"messages": [{"payload_text": "b"}, {"payload_text": "a", "id": "x"}]})
    assert told.json()["duplicates"] == [{"index": 1, "partition": 0, "offset": 0}]


def test_tenants_do_not_see_each_other(http: httpx.Client, orders: str) -> None:
    other = {b"duly-tenant": "møther".encode()}
    problem(http.post(f"{orders}/messages", json=texts("x"), headers=other), 404, "topic_not_found")
    assert http.post("/v1/topics", json={"name": "orders", "kind": "queue"}, headers=other).status_code == 201
    assert http.get(orders, headers=other).json()["kind"] == "queue"
    assert http.get(orders).json()["kind"] == "log"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"messages": []}, 422, "invalid_argument"),
        ({"messages": [{}]}, 422, "invalid_argument"),
        ({"messages": [{"payload_text": "a", "payload_json": 1}]}, 422, "invalid_argument"),
        ({"messages": [{"payload_text": "a", "due_in_ms": 1, "due_at_ms": 1}]}, 422, "invalid_argument"),
        ({"messages": [{"payload_text": "a", "ttl_ms": 1, "expires_at_ms": 1}]}, 422, "invalid_argument"),
        ({"messages": [{"payload_text": "a", "id": "@mine"}]}, 422, "invalid_argument"),
        ({"messages": [{"payload_text": "a", "headers": {str(n): "" for n in range(65)}}]}, 422, "limit_exceeded"),
        ({"messages": [{"payload_text": "x" * 1_048_577}]}, 422, "limit_exceeded"),
        ({"messages": [{"payload_base64": "%%%"}]}, 400, "malformed_request"),
        ({"messages": [{"payload_text": "a", "priority": -1}]}, 400, "malformed_request"),
        ({"messages": [{"payload_text": "a", "priority": 65536}]}, 400, "malformed_request"),
        ({"messages": [{"payload_text": "a", "prio": 1}]}, 400, "malformed_request"),
        ({"messages": "no"}, 400, "malformed_request"),
        ({"messages": [{"payload_text": "a"}], "more": 1}, 400, "malformed_request"),
        ({}, 400, "malformed_request"),
        ([], 400, "malformed_request"),
    ],
)
def test_bad_batch_is_refused_whole(http: httpx.Client, emails: str, body: object, status: int, code: str) -> None:
    problem(http.post(f"{emails}/messages", json=body), status, code)
    assert http.get(emails).json()["messages"] == 0


def test_refusal_names_the_index_and_the_place(http: httpx.Client, emails: str) -> None:
    told = problem(
        http.post(f"{emails}/messages", json={"messages": [{"payload_text": "a"}, {"payload_text": "b", "id": "@"}]}),
        422,
        "invalid_argument",
    )
    assert told["index"] == 1
    told = problem(
        http.post(f"{emails}/messages", json={"messages": [{"payload_text": "a", "priority": "low"}]}),
        400,
        "malformed_request",
    )
    assert "$.messages[0].priority" in told["detail"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b'{"messages":[{"payload_text":"\\ud800"}]}', b"[" * 100_000, b"1e999", b"NaN"]
)
def test_broken_json_is_malformed(http: httpx.Client, emails: str, body: bytes) -> None:
    kind = {"content-type": "application/json"}
    problem(http.post(f"{emails}/messages", content=body, headers=kind), 400, "malformed_request")


@pytest.mark.parametrize("key", ["", "x" * 129, "~not-ours", "ta\tb"])
def test_bad_idempotency_key_is_refused(http: httpx.Client, orders: str, key: str) -> None:
    answer = http.post(f"{orders}/messages", json=texts("x"), headers={"idempotency-key": key})
    problem(answer, 422, "invalid_argument")


def test_queue_fields_are_refused_on_a_log(http: httpx.Client, orders: str) -> None:
    problem(http.post(f"{orders}/messages", json=texts("x", priority=1)), 422, "invalid_argument")


def test_big_batch_goes_through(http: httpx.Client, orders: str) -> None:
    batch = {"messages": [{"payload_base64": b64(b"x" * 100)}] * 20_000}
    assert http.post(f"{orders}/messages", json=batch).json()["count"] == 20_000
    assert http.get(orders).json()["messages"] == 20_000


def test_publishers_at_once_lose_nothing(
    http: httpx.Client, orders: str, client_of: Callable[..., httpx.Client]
) -> None:
    def publish(client: httpx.Client, name: int) -> None:
        for number in range(50):
            assert client.post(f"{orders}/messages", json=texts(f"{name}-{number}")).status_code == 201

    threads = [threading.Thread(target=publish, args=(client_of(), name)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = http.get(f"{orders}/partitions/0/messages").json()["messages"]
    assert sorted(message["payload_base64"] for message in found) == sorted(
        b64(f"{name}-{number}".encode()) for name in range(8) for number in range(50)
    )


def test_publish_of_unknown_outcome_says_so_with_its_id(
    http: httpx.Client, orders: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.http.crossing._PATIENCE_S", 0.05)
    monkeypatch.setattr(broker, "submit", lambda command, **more: None)
    answer = http.post(f"{orders}/messages", json=texts("x"))
    told = problem(answer, 503, "publish_unknown")
    assert told["publish_id"].startswith("~")
    assert answer.headers["retry-after"] == "1"
    monkeypatch.undo()
    key = {"idempotency-key": told["publish_id"]}
    assert http.post(f"{orders}/messages", json=texts("x"), headers=key).json()["duplicate"] is False
    assert http.post(f"{orders}/messages", json=texts("x"), headers=key).json()["duplicate"] is True
