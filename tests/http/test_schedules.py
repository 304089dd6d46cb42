"""Schedules over REST: made, listed, changed by version, previewed; what is wrong is said with a code."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.store.patience import eventually

from .conftest import problem

NAME = "night/ly räport"
PATH = f"/v1/schedules/{quote(NAME, safe='')}"
NEW = {"name": NAME, "topic": "emails", "cron": "30 2 * * *", "zone": "Europe/Berlin"}


def make(http: httpx.Client, **more: Any) -> httpx.Response:
    return http.post("/v1/schedules", json={**NEW, **more})


@pytest.mark.usefixtures("emails")
def test_one_is_made_described_and_deleted(http: httpx.Client) -> None:
    made = make(http, payload_text="hello", lane="acme", ttl_ms=60_000, jitter_ms=500, missed="all", limit=7)
    assert made.status_code == 201
    assert (made.headers["location"], made.headers["etag"]) == (PATH, '"1"')
    found = http.get(PATH).json()
    assert found == made.json()
    assert found["settings"] == {
        "cron": "30 2 * * *",
        "zone": "Europe/Berlin",
        "payload_base64": base64.b64encode(b"hello").decode(),
        "template": None,
        "headers": {},
        "key": None,
        "priority": None,
        "lane": "acme",
        "ttl_ms": 60_000,
        "missed": "all",
        "limit": 7,
        "jitter_ms": 500,
    }
    assert (found["topic"], found["paused"], found["published"], found["missed"]) == ("emails", False, 0, 0)
    assert len(found["next_ms"]) == 5
    assert make(http, payload_text="hello").status_code == 409
    problem(make(http), 409, "schedule_exists")
    problem(http.delete(PATH, headers={"If-Match": '"9"'}), 412, "stale_version")
    assert http.delete(PATH, headers={"If-Match": '"1"'}).status_code == 204
    problem(http.get(PATH), 404, "schedule_not_found")
    problem(http.delete(PATH), 404, "schedule_not_found")


@pytest.mark.usefixtures("emails")
def test_it_is_changed_by_its_version_paused_and_resumed(http: httpx.Client) -> None:
    make(http, template="${tick}")
    changed = http.patch(PATH, json={"cron": "@every 1h", "lane": "x"}, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"2"')
    assert changed.json()["settings"]["template"] == "${tick}"
    problem(http.patch(PATH, json={"lane": None}, headers={"If-Match": '"1"'}), 412, "stale_version")
    assert http.patch(PATH, json={"lane": None}).json()["settings"]["lane"] is None
    problem(http.post(f"{PATH}/pause", headers={"If-Match": '"1"'}), 412, "stale_version")
    paused = http.post(f"{PATH}/pause")
    assert (paused.json()["paused"], paused.json()["next_ms"], paused.headers["etag"]) == (True, [], '"4"')
    assert http.get(f"{PATH}/next").json() == {"next_ms": [], "next": []}
    assert len(http.post(f"{PATH}/resume").json()["next_ms"]) == 5
    assert len(http.get(f"{PATH}/next", params={"count": 3}).json()["next"]) == 3


@pytest.mark.usefixtures("emails")
def test_its_ticks_are_messages_with_their_runs(http: httpx.Client) -> None:
    assert make(http, cron="@every 1s", template="${run}", zone="UTC").status_code == 201
    runs = eventually(lambda: http.get(PATH).json()["runs"])
    claimed = http.post("/v1/topics/emails/claim", json={}).json()["deliveries"]
    assert claimed[0]["id"] == runs[-1]["id"]
    assert base64.b64decode(claimed[0]["payload_base64"]) == b"1"
    assert runs[-1]["late_ms"] == runs[-1]["published_at_ms"] - runs[-1]["tick_ms"] < 2000


@pytest.mark.usefixtures("emails")
def test_they_are_listed_by_the_page(http: httpx.Client) -> None:
    names = [f"s{n}" for n in range(5)]
    for name in names:
        make(http, name=name)
    first = http.get("/v1/schedules", params={"limit": 3}).json()
    second = http.get("/v1/schedules", params={"limit": 3, "next": first["next"]}).json()
    assert [one["name"] for one in first["schedules"] + second["schedules"]] == names
    assert second["next"] is None
    assert [len(one["next_ms"]) for one in first["schedules"]] == [1, 1, 1]


def test_an_expression_is_previewed(http: httpx.Client) -> None:
    asked = {"cron": "30 2 * * *", "zone": "Europe/Berlin", "count": 2, "after_ms": 1_774_695_600_000}
    told = http.post("/v1/schedules:preview", json=asked).json()
    assert told["next"] == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    assert told["next_ms"][0] == 1_774_746_000_000
    assert len(http.post("/v1/schedules:preview", json={"cron": "@hourly"}).json()["next"]) == 10
    problem(http.post("/v1/schedules:preview", json={"cron": "0 0 30 2 *"}), 422, "invalid_argument")


@pytest.mark.usefixtures("emails")
@pytest.mark.parametrize(
    "wrong",
    [
        {"cron": "nonsense"},
        {"cron": ""},
        {"cron": "x" * 300},
        {"cron": 5},
        {"zone": "Nowhere"},
        {"zone": ""},
        {"template": "${who}"},
        {"template": "${run}", "payload_text": "x"},
        {"payload_text": "x", "payload_base64": "eA=="},
        {"payload_base64": "not base64"},
        {"missed": "perhaps"},
        {"limit": 0},
        {"jitter_ms": 3_600_001},
        {"priority": 70_000},
        {"headers": {"duly-operation": "x"}},
        {"crom": "@daily"},
        {"name": ""},
        {"name": "x" * 300},
    ],
)
def test_what_is_wrong_is_refused(http: httpx.Client, wrong: dict[str, Any]) -> None:
    refused = make(http, **wrong)
    assert refused.status_code in (400, 422), refused.text
    assert http.get("/v1/schedules").json()["schedules"] == []


def test_topics_that_are_not_there_or_are_logs_are_refused(http: httpx.Client, orders: str) -> None:
    problem(make(http), 404, "topic_not_found")
    assert "log" in problem(make(http, topic="orders"), 422, "invalid_argument")["detail"]
