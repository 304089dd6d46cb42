"""The store as a whole: events, health, limits, clock, pause, the doctor; and how the broker is."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
import pytest

from duly.broker.broker import Broker
from duly.clock import ClockReading
from duly.limits import published

from .conftest import problem, texts


def test_events_tell_what_happened_page_by_page(http: httpx.Client, emails: str) -> None:
    for number in range(5):
        http.post(f"{emails}/messages", json=texts(str(number)))
    kinds, query = [], {"limit": 2}
    while True:
        page = http.get("/v1/events", params=query).json()
        kinds += [event["kind"] for event in page["events"]]
        if page["next"] is None:
            break
        query["next"] = page["next"]
    assert kinds == ["topic_created", *["published"] * 5]


def test_history_of_one_message(http: httpx.Client, emails: str) -> None:
    http.post(f"{emails}/messages", json={"messages": [{"payload_text": "x", "id": "m"}, {"payload_text": "y"}]})
    got = http.post(f"{emails}/claim").json()
    http.post(f"{emails}/ack", json={"token": got["token"]})
    found = http.get("/v1/events", params={"topic": "emails", "message": "m"}).json()["events"]
    assert [event["kind"] for event in found] == ["published", "claimed", "acked"]
    problem(http.get("/v1/events", params={"message": "m"}), 422, "invalid_argument")


def test_health_is_judged_by_the_topics_thresholds(http: httpx.Client) -> None:
    health = {"undelivered": [1, 10], "oldest_age_ms": [0, 10**9]}
    http.post("/v1/topics", json={"name": "a", "kind": "queue", "health": health})
    http.post("/v1/topics", json={"name": "b", "kind": "queue"})
    http.post("/v1/topics/a/messages", json=texts("x"))
    told = http.get("/v1/health").json()
    assert (told["level"], [group["level"] for group in told["groups"]]) == ("warn", ["warn", "ok"])
    measures = {reason["measure"]: reason["threshold"] for reason in told["groups"][0]["reasons"]}
    assert measures == {"undelivered": 1, "oldest_age_ms": 0}
    first = http.get("/v1/health", params={"limit": 1}).json()
    assert [group["topic"] for group in first["groups"]] == ["a"]
    rest = http.get("/v1/health", params={"limit": 1, "next": first["next"]}).json()
    assert [group["topic"] for group in rest["groups"]] == ["b"]
    assert http.get("/v1/health", params={"topic": "b"}).json()["level"] == "ok"


def test_limits_and_clock(http: httpx.Client) -> None:
    assert http.get("/v1/limits").json() == published()
    read = http.get("/v1/clock").json()
    assert read["state"] == "together"
    assert abs(read["now_ms"] - datetime.now(UTC).timestamp() * 1000) < 5_000
    assert http.post("/v1/clock/accept").json()["state"] == "together"


def test_paused_store_delivers_nothing(http: httpx.Client, emails: str) -> None:
    http.post(f"{emails}/messages", json=texts("x"))
    assert http.post("/v1/pause").status_code == 204
    assert http.post(f"{emails}/claim").json()["deliveries"] == []
    assert http.post("/v1/resume").status_code == 204
    assert len(http.post(f"{emails}/claim").json()["deliveries"]) == 1


def test_doctor_looks_the_store_over(http: httpx.Client, emails: str) -> None:
    http.post(f"{emails}/messages", json=texts("x"))
    told = http.post("/v1/doctor").json()
    assert told["findings"]
    assert {finding["level"] for finding in told["findings"]} <= {"ok", "warn", "alert"}


def test_broker_is_live_and_ready(http: httpx.Client) -> None:
    assert http.get("/health/live").json() == {"status": "live"}
    assert http.get("/health/ready").json() == {"status": "ready"}
    assert http.head("/health/live").status_code == 200


def test_not_ready_while_the_clock_is_refused(
    http: httpx.Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    monkeypatch.setattr(broker, "clock", lambda: ClockReading(now, now, "refused"))
    problem(http.get("/health/ready"), 503, "not_ready")
    assert http.get("/health/live").status_code == 200


def test_draining_broker_takes_no_work_but_lets_it_be_settled(http: httpx.Client, emails: str, broker: Broker) -> None:
    http.post(f"{emails}/messages", json=texts("x"))
    got = http.post(f"{emails}/claim").json()
    broker.drain()
    refused = http.post(f"{emails}/messages", json=texts("y"))
    problem(refused, 503, "closed")
    assert refused.headers["retry-after"] == "2"
    problem(http.post(f"{emails}/claim"), 503, "closed")
    problem(http.get("/health/ready"), 503, "not_ready")
    assert http.get("/health/live").status_code == 200
    assert http.post(f"{emails}/ack", json={"token": got["token"]}).json()["done"] == 1
