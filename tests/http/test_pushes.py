"""Pushes over REST: made, listed, changed with If-Match, paused, rotated, removed; refused with stable codes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import duly

from .conftest import problem

URL = "https://example.com/hook"


@pytest.fixture
def hook(http: httpx.Client, emails: str) -> dict[str, Any]:
    wanted = {
        "name": "mail/hook",
        "topic": "emails",
        "to_http": {"url": URL, "headers": {"Authorization": "Bearer sesame"}, "timeout_ms": 3000},
    }
    made = http.post("/v1/pushes", json=wanted)
    assert made.status_code == 201, made.text
    assert made.headers["location"] == "/v1/pushes/mail%2Fhook"
    assert made.headers["etag"] == '"1"'
    document: dict[str, Any] = made.json()
    return document


PATH = "/v1/pushes/mail%2Fhook"


def test_it_is_made_described_and_listed_without_what_is_secret(http: httpx.Client, hook: dict[str, Any]) -> None:
    assert len(duly.push.read_secret(hook["secret"])) == 32
    shown = http.get(PATH)
    document = shown.json()
    assert shown.headers["etag"] == '"1"'
    assert "secret" not in document
    assert document["to_http"] == {
        "url": URL,
        "method": "POST",
        "headers": {"Authorization": "…"},
        "timeout_ms": 3000,
        "concurrency": 16,
        "batch": 1,
    }
    assert (document["state"], document["group"], document["lag"], document["last"]) == ("active", "queue", 0, None)
    assert document["gate"]["breaker"] == "closed"
    page = http.get("/v1/pushes").json()
    assert [one["name"] for one in page["pushes"]] == ["mail/hook"]
    assert page["next"] is None
    first = http.get("/v1/pushes", params={"limit": 1}).json()
    assert http.get("/v1/pushes", params={"limit": 1, "next": first["next"]}).json()["pushes"] == []


def test_it_is_changed_by_who_has_seen_it(http: httpx.Client, hook: dict[str, Any]) -> None:
    change = {"to_http": {"concurrency": 3, "headers": {"Authorization": "…", "X-New": "1"}}}
    after = http.patch(PATH, json=change, headers={"If-Match": '"1"'})
    assert after.headers["etag"] == '"2"'
    assert after.json()["to_http"]["concurrency"] == 3
    assert after.json()["to_http"]["timeout_ms"] == 3000
    problem(http.patch(PATH, json={"to_http": {"timeout_ms": 500}}, headers={"If-Match": '"1"'}), 412, "stale_version")
    assert http.patch(PATH, json={"to_http": {"timeout_ms": 500}}).json()["to_http"]["timeout_ms"] == 500
    problem(http.patch(PATH, json={}), 422, "invalid_argument")
    problem(http.patch(PATH, json={"to_http": {"colour": "red"}}), 400, "malformed_request")
    problem(http.patch(PATH, json={"to_topic": {"topic": "orders"}}), 422, "invalid_argument")


def test_it_is_paused_resumed_rotated_and_removed(http: httpx.Client, hook: dict[str, Any]) -> None:
    assert http.post(f"{PATH}/pause").json()["state"] == "paused"
    assert http.post(f"{PATH}/resume").json()["state"] == "active"
    rotated = http.post(f"{PATH}/rotate", json={"overlap_ms": 60_000}).json()
    assert rotated["secret"] != hook["secret"]
    assert rotated["older_secrets_until_ms"] > 0
    assert (
        http.post(f"{PATH}/rotate", json={"overlap_ms": 0, "secret": hook["secret"]}).json()["secret"] == hook["secret"]
    )
    assert http.post(f"{PATH}/rotate").status_code == 200
    # Nobody sends anything at this broker.
    problem(http.post(f"{PATH}/test"), 503, "not_ready")
    assert http.delete(PATH).status_code == 204
    problem(http.get(PATH), 404, "push_not_found")


def test_a_push_to_a_topic(http: httpx.Client, emails: str) -> None:
    http.post("/v1/topics", json={"name": "later", "kind": "queue"}).raise_for_status()
    wanted = {"name": "onward", "topic": "emails", "to_topic": {"topic": "later", "due": "now + 30s"}, "paused": True}
    made = http.post("/v1/pushes", json=wanted).json()
    assert (made["to_topic"], made["secret"]) == (
        {"topic": "later", "due": "now + 30s", "priority": None, "lane": None},
        None,
    )
    after = http.patch("/v1/pushes/onward", json={"to_topic": {"due": None, "lane": "key"}}).json()
    assert after["to_topic"] == {"topic": "later", "due": None, "priority": None, "lane": "key"}
    http.delete("/v1/topics/later").raise_for_status()
    problem(http.post("/v1/pushes/onward/resume"), 404, "topic_not_found")


@pytest.mark.parametrize(
    ("changed", "status", "code"),
    [
        ({"to_http": None}, 422, "invalid_argument"),
        ({"to_topic": {"topic": "orders"}}, 422, "invalid_argument"),
        ({"topic": "nowhere"}, 404, "topic_not_found"),
        ({"group": "nobody"}, 404, "group_not_found"),
        ({"name": ""}, 400, "malformed_request"),
        ({"name": 7}, 400, "malformed_request"),
        ({"to_http": {"url": "ftp://a.b/"}}, 422, "invalid_argument"),
        ({"to_http": {"url": URL, "method": "GET"}}, 400, "malformed_request"),
        ({"to_http": {"url": URL, "headers": {"a\nb": "c"}}}, 422, "invalid_argument"),
        ({"to_http": {"url": URL, "timeout_ms": 0}}, 400, "malformed_request"),
        ({"to_http": {"url": URL, "concurrency": 10**9}}, 400, "malformed_request"),
        ({"secret": "sesame"}, 422, "invalid_argument"),
        ({"state": "active"}, 400, "malformed_request"),
    ],
)
def test_what_is_wrong_is_refused(
    http: httpx.Client, emails: str, changed: dict[str, Any], status: int, code: str
) -> None:
    wanted = {"name": "hook", "topic": "emails", "to_http": {"url": URL}}
    problem(http.post("/v1/pushes", json=wanted | changed), status, code)
    assert http.get("/v1/pushes").json()["pushes"] == []


def test_a_group_has_one(http: httpx.Client, hook: dict[str, Any]) -> None:
    wanted = {"name": "other", "topic": "emails", "to_http": {"url": URL}}
    problem(http.post("/v1/pushes", json=wanted), 409, "push_exists")
