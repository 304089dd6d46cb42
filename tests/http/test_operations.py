"""Operations over REST: refused with when to come back, listed, resumed and stopped; released for later."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx
import pytest

from .conftest import problem

NAME = "night/ly import"


def publish(http: httpx.Client, path: str, count: int) -> httpx.Response:
    message = {"payload_text": "x", "headers": {"duly-operation": NAME}}
    return http.post(f"{path}/messages", json={"messages": [message] * count})


def operations(http: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get("/v1/operations", params=query).json()["operations"]
    return found


@pytest.fixture(autouse=True)
def budget(http: httpx.Client, emails: str) -> None:
    settings = http.patch("/v1/tenants/default", json={"operation_messages": 10}).json()["settings"]
    assert (settings["operation_messages"], settings["operation_per_s"]) == (10, 1)


def test_what_is_used_up_is_429_with_when_to_come_back_until_it_is_resumed(http: httpx.Client, emails: str) -> None:
    assert publish(http, emails, 10).status_code == 201
    refused = publish(http, emails, 5)
    facts = problem(refused, 429, "operation_exhausted")
    assert facts["operation"] == NAME
    assert 4000 <= facts["retry_after_ms"] <= 5000
    assert refused.headers["retry-after"] == "5"
    (one,) = operations(http, stopped=True)
    assert (one["id"], one["published"], one["held"]) == (NAME, 10, False)
    resumed = http.post(f"/v1/operations/{quote(NAME, safe='')}/resume", json={"messages": 50}).json()
    assert (resumed["left"], resumed["stopped_at_ms"]) == (50, None)
    assert publish(http, emails, 50).status_code == 201


def test_it_is_stopped_by_hand(http: httpx.Client, emails: str) -> None:
    path = f"/v1/operations/{quote(NAME, safe='')}"
    problem(http.post(f"{path}/resume"), 404, "not_found")
    assert http.post(f"{path}/stop").json()["held"]
    problem(publish(http, emails, 1), 429, "operation_exhausted")
    http.post(f"{path}/resume").raise_for_status()
    assert publish(http, emails, 10).status_code == 201
    http.patch("/v1/tenants/default", json={"operation_messages": None}).raise_for_status()
    problem(http.post(f"{path}/stop"), 409, "conflict")
    assert publish(http, emails, 1000).status_code == 201


def test_a_delivery_is_released_for_later(http: httpx.Client, emails: str) -> None:
    publish(http, emails, 1)
    token = http.post(f"{emails}/claim").json()["token"]
    assert http.post(f"{emails}/release", json={"token": token, "delay_ms": 3_600_000}).json()["done"] == 1
    assert http.post(f"{emails}/claim").json()["deliveries"] == []
    (message,) = http.get(f"{emails}/messages").json()["messages"]
    assert message["state"] == "waiting", "nothing failed"
    assert message.get("attempts", 0) == 0
