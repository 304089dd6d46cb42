"""A flood against a broker that serves others, too: only the one that floods is refused, and told when to come back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import duly
from duly.clock import monotonic_s
from tests.conftest import scaled

from ..surface.brokers import Serving, serving

FLOODERS = 8
QUIET_CALLS = scaled(40, 400)
PER_S = 200


class Keys:
    """A broker with keys, and a key of each of two tenants."""

    def __init__(self, broker: Serving, keys: dict[str, str]) -> None:
        self.url = broker.url
        self.http_url = broker.document["http_url"]
        self.keys = keys

    def client(self, tenant: str) -> duly.Client:
        return duly.connect(self.url, token=self.keys[tenant])

    def http(self, tenant: str) -> httpx.Client:
        shown = {"Authorization": f"Bearer {self.keys[tenant]}"}
        return httpx.Client(base_url=self.http_url, headers=shown, timeout=30)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Keys]:
    keys = {}
    path = tmp_path / "app.duly"
    for tenant in ("flood", "quiet"):
        with duly.connect(path, tenant=tenant) as q:
            q.create_topic("jobs", kind="queue")
            q.put_principal("app", [duly.Grant("*")])
            keys[tenant] = q.create_key("app").secret
    with duly.connect(path) as operator:
        operator.update_tenant("flood", publish_per_s=PER_S)
    with serving(tmp_path, "--store", str(path), "--json", "--http-port", "0", "--flight-port", "0") as broker:
        yield Keys(broker, keys)


def test_a_flood_is_refused_and_nobody_else_notices(place: Keys) -> None:
    over = threading.Event()
    outcomes: Counter[str] = Counter()
    errors: list[Exception] = []

    def over_http() -> None:
        with place.http("flood") as http:
            while not over.is_set():
                answer = http.post("/v1/topics/jobs/messages", json={"messages": [{"payload_text": "x"}] * 20})
                outcomes[f"http {answer.status_code}"] += 1
                if answer.status_code == 429:
                    assert int(answer.headers["retry-after"]) >= 1
                    assert answer.json()["code"] == "quota_exceeded"

    def over_flight() -> None:
        with place.client("flood") as q:
            while not over.is_set():
                try:
                    q.publish("jobs", [b"x"] * 20)
                    outcomes["flight stored"] += 1
                except duly.QuotaExceeded as error:
                    outcomes["flight refused" if error.retry_after_ms else "flight refused for good"] += 1

    def kept(flood: Callable[[], None]) -> None:
        try:
            flood()
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=kept, args=(flood,)) for flood in (over_http, over_flight) for _ in range(FLOODERS)
    ]
    began = monotonic_s()
    for one in threads:
        one.start()
    try:
        with place.client("quiet") as q, place.http("quiet") as http:
            for _ in range(QUIET_CALLS):
                q.publish("jobs", b"mine")
                sent = http.post("/v1/topics/jobs/messages", json={"messages": [{"payload_text": "mine"}]})
                assert sent.status_code == 201, sent.text
                assert q.ack(q.claim("jobs", max_messages=2, wait=20)).done == 2
    finally:
        over.set()
        for one in threads:
            one.join()
    assert not errors
    assert set(outcomes) == {"http 201", "http 429", "flight stored", "flight refused"}
    stored = 20 * (outcomes["http 201"] + outcomes["flight stored"])
    # A second's worth more than the rate, and the batch that each of them had passed by then.
    assert stored <= PER_S * (monotonic_s() - began + 1) + 20
