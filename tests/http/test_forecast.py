"""Forecasts over HTTP: as JSON, and as metrics that are what Prometheus reads."""

from __future__ import annotations

import re

import httpx
import pytest

from .conftest import problem, texts

SAMPLE = re.compile(
    r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\\\|\\"|\\n)*",?)*)\} (-?[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?)'
)
LABEL = re.compile(r'([a-z]+)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"')
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def scraped(http: httpx.Client, **params: object) -> dict[tuple[str, str, str], float]:
    """(metric, topic, group) → value. As strict as the format is: help and type once, then a metric's samples."""
    answer = http.get("/v1/forecast/metrics", params=params)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.text.endswith("\n")
    found: dict[tuple[str, str, str], float] = {}
    described: list[str] = []
    for line in answer.text.splitlines():
        if line.startswith("# HELP "):
            name, _, meaning = line.removeprefix("# HELP ").partition(" ")
            assert meaning
            assert name not in described
            described.append(name)
        elif line.startswith("#"):
            assert line == f"# TYPE {described[-1]} gauge"
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample is not None, line
            labels = {
                name: re.sub(r"\\.", lambda escape: UNESCAPED[escape[0]], value)
                for name, value in LABEL.findall(sample[2])
            }
            assert (sample[1], labels.pop("tenant")) == (described[-1], "default")
            key = sample[1], labels.pop("topic", ""), labels.pop("group", "")
            assert not labels
            assert key not in found
            found[key] = float(sample[3])
    return found


@pytest.fixture
def topics(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "emails", "kind": "queue"}).raise_for_status()
    http.post("/v1/topics/emails/messages", json=texts(*map(str, range(20)))).raise_for_status()
    http.post("/v1/topics", json={"name": 'log "\\', "kind": "log"}).raise_for_status()
    for group in ("a", "b"):
        http.post("/v1/topics/log%20%22%5C/groups", json={"name": group}).raise_for_status()


@pytest.mark.usefixtures("topics")
def test_a_topic_is_forecast_by_the_minute(http: httpx.Client) -> None:
    told = http.get("/v1/topics/emails/forecast", params={"minutes": 3, "rate_per_s": 0.5}).json()
    assert (told["topic"], told["group"], told["ready"], told["leased"]) == ("emails", "queue", 20, 0)
    assert (told["arrival_rate_per_s"], told["service_rate_per_s"], told["observed"]) == (0.3333, 0.5, 0)
    assert [minute["consumers"] for minute in told["minutes"]] == [2, 1, 1]
    assert told["peak"] == told["minutes"][0]
    unknown = http.get("/v1/topics/emails/forecast", params={"minutes": 1}).json()
    assert (unknown["service_rate_per_s"], unknown["minutes"][0]["consumers"]) == (None, None)
    path = "/v1/topics/log%20%22%5C/forecast"
    assert http.get(path, params={"group": "b"}).json()["group"] == "b"
    problem(http.get(path), 422, "invalid_argument")
    problem(http.get(path, params={"group": "c"}), 404, "group_not_found")
    problem(http.get("/v1/topics/nowhere/forecast"), 404, "topic_not_found")
    problem(http.get("/v1/topics/emails/forecast", params={"minutes": 0}), 400, "malformed_request")


@pytest.mark.usefixtures("topics")
def test_all_are_forecast_page_by_page(http: httpx.Client) -> None:
    first = http.get("/v1/forecast", params={"limit": 1, "minutes": 2}).json()
    assert [one["topic"] for one in first["forecasts"]] == ["emails"]
    rest = http.get("/v1/forecast", params={"next": first["next"]}).json()
    assert [one["group"] for one in rest["forecasts"]] == ["a", "b"]
    assert (len(rest["forecasts"][0]["minutes"]), rest["next"]) == (60, None)


@pytest.mark.usefixtures("topics")
def test_metrics_are_what_prometheus_reads(http: httpx.Client) -> None:
    found = scraped(http)
    # Nobody has worked yet: one is needed where something waits, and how fast it will be is not made up.
    assert found["duly_consumers_needed", "emails", "queue"] == 1
    assert found["duly_consumers_needed", 'log "\\', "a"] == 0
    assert ("duly_service_rate", "emails", "queue") not in found
    assert found["duly_backlog", "emails", "queue"] == 20
    assert found["duly_coming", "emails", "queue"] == 20
    assert found["duly_arrival_rate", "emails", "queue"] == 0.3333
    assert found["duly_forecast_complete", "", ""] == 1
    claimed = http.post("/v1/topics/emails/claim", json={"max_messages": 5, "consumer": "w"}).json()
    assert scraped(http)["duly_consumers_active", "emails", "queue"] == 1
    assert scraped(http)["duly_backlog", "emails", "queue"] == 20
    http.post("/v1/topics/emails/ack", json={"token": claimed["token"]}).raise_for_status()
    found = scraped(http, topic="emails", minutes=2)
    assert found["duly_service_rate", "emails", "queue"] > 0
    assert {topic for _, topic, _ in found} == {"emails", ""}
    assert scraped(http, limit=1)["duly_forecast_complete", "", ""] == 0
