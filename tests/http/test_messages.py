"""A queue's messages by id, its dead letters, and what is coming."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from .conftest import b64, problem, texts


@pytest.fixture
def ten(http: httpx.Client, emails: str) -> str:
    messages = [{"payload_text": str(n), "id": f"m{n}", "priority": n, "due_in_ms": 0} for n in range(10)]
    assert http.post(f"{emails}/messages", json={"messages": messages}).status_code == 201
    return emails


def pages(http: httpx.Client, path: str, name: str, **query: Any) -> list[list[Any]]:
    found = []
    while True:
        page = http.get(path, params=query).json()
        found.append(page[name])
        if page["next"] is None:
            return found
        query["next"] = page["next"]


def test_browse_goes_through_the_queue_page_by_page(http: httpx.Client, ten: str) -> None:
    found = pages(http, f"{ten}/messages", "messages", limit=4)
    assert [len(page) for page in found] == [4, 4, 2]
    assert [message["id"] for page in found for message in page] == [f"m{n}" for n in range(10)]


def test_browse_filters(http: httpx.Client, ten: str) -> None:
    http.post(f"{ten}/messages", json={"messages": [{"payload_text": "l", "id": "later", "due_in_ms": 10**6}]})
    http.post(f"{ten}/messages", json={"messages": [{"payload_text": "k", "id": "k", "key": "ü", "lane": "acme"}]})
    cases: dict[str, dict[str, Any]] = {
        "later": {"state": "waiting"},
        "k": {"key": "ü", "lane": "acme"},
        "m9": {"priority_min": 9},
        "m3": {"priority_min": 3, "priority_max": 3},
    }
    for wanted, query in cases.items():
        found = http.get(f"{ten}/messages", params=query).json()["messages"]
        assert [message["id"] for message in found] == [wanted], query
    problem(http.get(f"{ten}/messages", params={"state": "gone"}), 400, "malformed_request")
    problem(http.get(f"{ten}/messages", params={"limit": 0}), 400, "malformed_request")
    problem(http.get(f"{ten}/messages", params={"next": "nonsense"}), 422, "invalid_argument")


def test_page_of_big_messages_is_cut_by_bytes(http: httpx.Client, emails: str) -> None:
    for _ in range(3):
        assert http.post(f"{emails}/messages", json=texts(*["x" * 1_000_000] * 8)).status_code == 201
    http.patch(emails, json={"payload_bytes_max": 16 * 1024 * 1024})
    found = pages(http, f"{emails}/messages", "messages")
    assert [len(page) for page in found] == [12, 12, 0] or [len(page) for page in found] == [12, 12]


def test_move_one_and_many(http: httpx.Client, ten: str) -> None:
    assert http.patch(f"{ten}/messages/m1", json={"due_in_ms": 10**6}).json() == {"answer": "moved"}
    assert http.get(f"{ten}/messages/m1").json()["state"] == "waiting"
    answers = http.post(f"{ten}/move", json={"ids": ["m2", "nobody"], "priority": 77}).json()["answers"]
    assert answers == {"m2": "moved", "nobody": "not_found"}
    assert http.get(f"{ten}/messages/m2").json()["priority"] == 77
    assert http.patch(f"{ten}/messages/m1", json={"due_at_ms": 0}).json() == {"answer": "moved"}
    problem(http.patch(f"{ten}/messages/nobody", json={"priority": 1}), 404, "message_not_found")
    problem(http.patch(f"{ten}/messages/m1", json={}), 422, "invalid_argument")
    problem(http.patch(f"{ten}/messages/m1", json={"due_at_ms": 1, "due_in_ms": 1}), 422, "invalid_argument")


def test_cancel_one_and_many(http: httpx.Client, ten: str) -> None:
    assert http.delete(f"{ten}/messages/m1").json() == {"answer": "cancelled"}
    assert http.post(f"{ten}/cancel", json={"ids": ["m2", "m1", "x"]}).json()["answers"]["m2"] == "cancelled"
    assert http.get(ten).json()["messages"] == 8
    problem(http.delete(f"{ten}/messages/nobody"), 404, "message_not_found")
    problem(http.get(f"{ten}/messages/nobody"), 404, "message_not_found")
    problem(http.get(f"{ten}/messages/nobody/payload"), 404, "message_not_found")


def test_id_may_have_slashes_and_anything_printable(http: httpx.Client, emails: str) -> None:
    name = "a/b?c#d%2F e+ü\U0001f600"
    http.post(f"{emails}/messages", json={"messages": [{"payload_text": "x", "id": name}]})
    path = f"{emails}/messages/a%2Fb%3Fc%23d%252F%20e%2B%C3%BC%F0%9F%98%80"
    assert http.get(path).json()["id"] == name
    assert http.delete(path).json() == {"answer": "cancelled"}


def test_coming_counts_by_the_minute(http: httpx.Client, emails: str) -> None:
    http.post(f"{emails}/messages", json=texts("a", "b", due_in_ms=90_000))
    minutes = http.get(f"{emails}/coming", params={"minutes": 5}).json()["minutes"]
    assert len(minutes) == 5
    assert sum(minute["messages"] for minute in minutes) == 2
    assert minutes[1]["at_ms"] % 60_000 == 0


def test_dead_letters_are_listed_redriven_and_dropped(http: httpx.Client, ten: str) -> None:
    got = http.post(f"{ten}/claim", json={"max_messages": 7}).json()
    http.post(f"{ten}/bury", json={"token": got["token"], "reason": "no"})
    found = pages(http, f"{ten}/dead", "dead", limit=3)
    assert [len(page) for page in found] == [3, 3, 1]
    assert found[0][0]["message"]["payload_base64"] == b64(b"0")
    assert found[0][0]["history"][0]["what"] == "bury"
    assert http.post(f"{ten}/redrive", json={"ids": ["m0", "m1"]}).json() == {"redriven": 2}
    assert http.post(f"{ten}/redrive", json={"limit": 1}).json() == {"redriven": 1}
    assert http.delete(f"{ten}/dead").json() == {"dropped": 4}
    assert http.post(f"{ten}/redrive").json() == {"redriven": 0}
    assert http.get(ten).json()["messages"] == 6


def test_queue_calls_on_a_log_are_refused(http: httpx.Client, orders: str) -> None:
    problem(http.get(f"{orders}/messages"), 422, "invalid_argument")
    problem(http.get(f"{orders}/messages/x"), 422, "invalid_argument")
    problem(http.post(f"{orders}/cancel", json={"ids": ["x"]}), 422, "invalid_argument")
