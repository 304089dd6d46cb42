"""Quotas at a broker: rates as buckets, calls that are open, and each broker's share of what its tenant may."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import duly
from duly.broker.broker import Broker
from duly.broker.meters import Meters
from duly.client.embedded import Embedded
from duly.clock import SystemClock, monotonic_s
from duly.flight.server import FlightServer
from duly.http.server import HttpServer
from duly.store.contract import TenantRow
from duly.store.sqlite.store import SqliteStore
from duly.tenant import TenantSettings


def limited(**settings: Any) -> list[TenantRow]:
    return [TenantRow(1, "acme", 0, TenantSettings(**settings), 1, 0)]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be moved."""
    at = [1000.0]
    monkeypatch.setattr("duly.broker.meters.monotonic_s", lambda: at[0])
    return at


def refused(act: Callable[[], object]) -> int:
    with pytest.raises(duly.QuotaExceeded) as caught:
        act()
    assert caught.value.retry_after_ms
    return caught.value.retry_after_ms


def test_a_rate_lets_through_what_it_says_and_a_seconds_worth_more(now: list[float]) -> None:
    meters = Meters()
    meters.heed(limited(publish_per_s=10), 1)
    through = 0
    for tick in range(1000):
        now[0] = 1000 + tick / 100
        try:
            meters.publish("acme", 1, 1)
            through += 1
        except duly.QuotaExceeded:
            pass
    assert 100 <= through <= 111


def test_a_batch_of_more_than_a_second_passes_and_the_next_waits_for_it(now: list[float]) -> None:
    meters = Meters()
    meters.heed(limited(publish_per_s=10), 1)
    meters.publish("acme", 60, 1)
    wait_ms = refused(lambda: meters.publish("acme", 1, 1))
    assert 4900 <= wait_ms <= 5100
    now[0] += wait_ms / 1000 + 0.01
    meters.publish("acme", 1, 1)


def test_what_is_refused_for_its_bytes_costs_no_messages(now: list[float]) -> None:
    meters = Meters()
    meters.heed(limited(publish_per_s=10, publish_bytes_per_s=1000), 1)
    meters.publish("acme", 1, 5000)
    for _ in range(50):
        refused(lambda: meters.publish("acme", 1, 1))
    now[0] += 4.1
    for _ in range(10):
        meters.publish("acme", 1, 0)


def test_claims_are_paid_for_when_they_are_told(now: list[float]) -> None:
    meters = Meters()
    meters.heed(limited(claim_per_s=10), 1)
    meters.check_claim("acme")
    meters.claimed("acme", 20)
    assert 900 <= refused(lambda: meters.check_claim("acme")) <= 1100
    now[0] += 1.1
    meters.check_claim("acme")
    meters.claimed("acme", 0)


def test_brokers_share_a_quota_and_take_it_up_as_they_come_and_go(now: list[float]) -> None:
    meters = Meters()
    meters.heed(limited(publish_per_s=10, connections=4), 2)
    meters.publish("acme", 5, 1)
    refused(lambda: meters.publish("acme", 1, 1))
    first = [meters.connect("acme"), meters.connect("acme")]
    refused(lambda: meters.connect("acme"))
    meters.heed(limited(publish_per_s=10, connections=4), 1)
    now[0] += 0.55
    meters.publish("acme", 5, 1)
    first += [meters.connect("acme"), meters.connect("acme")]
    refused(lambda: meters.connect("acme"))
    for one in first:
        meters.disconnect(one)
    with meters.connected("acme"):
        pass


def test_whoever_has_no_quota_is_not_counted_and_one_that_is_taken_away_ends(now: list[float]) -> None:
    meters = Meters()
    meters.heed(limited(publish_per_s=1, topics=5), 1)
    for _ in range(1000):
        meters.publish("globex", 1000, 10**9)
        meters.check_claim("globex")
        meters.claimed("globex", 1000)
    assert meters.connect("globex") is None
    meters.publish("acme", 100, 1)
    refused(lambda: meters.publish("acme", 1, 1))
    meters.heed([], 1)
    meters.publish("acme", 1, 1)


def test_a_call_that_was_open_when_the_quota_was_taken_away_ends_in_order(now: list[float]) -> None:
    meters = Meters()
    meters.heed(limited(connections=1), 1)
    open_ = meters.connect("acme")
    meters.heed([], 1)
    meters.disconnect(open_)
    meters.heed(limited(connections=1), 1)
    meters.disconnect(meters.connect("acme"))
    meters.disconnect(meters.connect("acme"))


# On the surfaces


class Served:
    """A broker on a file, with both surfaces, among the brokers on its store."""

    def __init__(self, path: Path) -> None:
        self.broker = Broker(Embedded(lambda: SqliteStore(str(path), clock=SystemClock())))
        self.flight = FlightServer(self.broker, "127.0.0.1", 0)
        self.http = HttpServer(self.broker, port=0).start()
        self.broker.join(url=f"duly://127.0.0.1:{self.flight.port}", http_url="http://127.0.0.1", version="test")
        self.url = f"duly://127.0.0.1:{self.flight.port}"

    def rest(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.http.port}", headers={"Duly-Tenant": "acme"})

    def close(self) -> None:
        self.broker.drain()
        self.http.drain(2)
        self.flight.shutdown()
        self.broker.shut()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    place = Served(tmp_path / "app.duly")
    yield place
    place.close()


@pytest.fixture
def operator(served: Served) -> Iterator[duly.Client]:
    with duly.connect(served.url) as client:
        yield client


def eventually(holds: Callable[[], bool]) -> None:
    until = monotonic_s() + 15
    while not holds():
        assert monotonic_s() < until
        time.sleep(0.05)


def heeded(served: Served) -> Callable[[], bool]:
    return lambda: "acme" in served.broker.meters._meters


def test_a_publish_over_the_rate_is_429_with_when_to_come_again(served: Served, operator: duly.Client) -> None:
    operator.create_tenant("acme", publish_per_s=5)
    eventually(heeded(served))
    with served.rest() as http:
        assert http.post("/v1/topics", json={"name": "jobs", "kind": "queue"}).status_code == 201
        body = {"messages": [{"payload_text": "x"}] * 10}
        assert http.post("/v1/topics/jobs/messages", json=body).is_success
        answer = http.post("/v1/topics/jobs/messages", json=body)
        assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["retry_after_ms"] > 0
    with duly.connect(served.url, tenant="acme") as q:
        with pytest.raises(duly.QuotaExceeded) as caught:
            q.publish("jobs", [b"x"] * 10)
        assert caught.value.retry_after_ms
        with pytest.raises(duly.QuotaExceeded):
            q.stage("jobs", [b"x"], stage="s", number=0)


def test_a_weight_that_another_process_sets_is_heeded_with_the_next_beat(served: Served, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "duly", "tenants", "create", "acme", "--weight", "3"]
    subprocess.run([*command, "--store", str(tmp_path / "app.duly")], check=True, capture_output=True)
    eventually(lambda: served.broker.weights.of("acme") == 3)


def test_copies_that_are_replayed_are_publishes(served: Served, operator: duly.Client) -> None:
    with duly.connect(served.url, tenant="acme") as q:
        q.create_topic("orders", kind="log")
        q.create_group("orders", "billing")
        q.publish("orders", [b"x"] * 20)
        q.ack(q.claim("orders", group="billing", max_messages=20))
        copies = q.read("orders", offset=0, max_messages=20)
        q.purge("orders")
        known = q.describe_topic("orders")
        operator.update_tenant("acme", publish_per_s=5)
        eventually(heeded(served))
        of = (known.incarnation, known.partitions[0].id)
        assert q.replay("orders", copies[:10], group="billing", of=of, job="again", version=1).messages == 10
        with pytest.raises(duly.QuotaExceeded):
            q.replay("orders", copies[10:], group="billing", of=of, job="again", version=2)


def test_claims_over_the_rate_are_refused_on_every_way_in(served: Served, operator: duly.Client) -> None:
    with duly.connect(served.url, tenant="acme") as q:
        q.create_topic("jobs", kind="queue")
        q.publish("jobs", [b"x"] * 200)
        operator.update_tenant("acme", claim_per_s=20)
        eventually(heeded(served))
        assert len(q.claim("jobs", max_messages=100)) == 100
        with pytest.raises(duly.QuotaExceeded):
            q.claim("jobs")
        with pytest.raises(duly.QuotaExceeded):
            q.claim("jobs", wait=1)
        with served.rest() as http:
            answer = http.post("/v1/topics/jobs/claim", json={"consumer": "w1"})
            assert answer.status_code == 429, answer.text
        # A loop over them goes on by itself.
        began = time.monotonic()
        for got, _ in enumerate(q.consume("jobs", wait=15), start=1):
            if got == 3:
                break
        assert time.monotonic() - began > 1


def test_calls_that_are_open_are_a_quota(served: Served, operator: duly.Client) -> None:
    with duly.connect(served.url, tenant="acme") as q:
        q.create_topic("jobs", kind="queue")
    operator.update_tenant("acme", connections=2)
    eventually(heeded(served))
    with ThreadPoolExecutor(2) as pool, served.rest() as http:
        patient = {"consumer": "w1", "wait_ms": 3000}
        waiting = [pool.submit(http.post, "/v1/topics/jobs/claim", json=patient) for _ in range(2)]
        eventually(lambda: served.broker.meters._meters["acme"].connections == 2)
        answer = http.get("/v1/topics")
        assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
        with duly.connect(served.url, tenant="acme") as q, pytest.raises(duly.QuotaExceeded):
            q.list_topics()
        assert [one.result().status_code for one in waiting] == [200, 200]
        eventually(lambda: served.broker.meters._meters["acme"].connections == 0)
        assert http.get("/v1/topics").status_code == 200


def test_a_session_counts_for_as_long_as_it_is_open(served: Served, operator: duly.Client) -> None:
    operator.create_tenant("acme", connections=1)
    eventually(heeded(served))
    with duly.connect(served.url, tenant="acme") as q:
        q.list_topics()
        assert served.broker.meters._meters["acme"].connections == 1
        with duly.connect(served.url, tenant="acme") as other, pytest.raises(duly.QuotaExceeded):
            other.list_topics()
    eventually(lambda: served.broker.meters._meters["acme"].connections == 0)


def test_a_read_counts_until_it_ends_or_its_reader_leaves(served: Served, operator: duly.Client) -> None:
    operator.create_tenant("acme", connections=4)
    eventually(heeded(served))
    meter = served.broker.meters._meters["acme"]
    with duly.connect(served.url, tenant="acme") as q:
        q.create_topic("orders", kind="log")
        # More than gRPC takes off a broker's hands when a busy machine keeps the reader from reading.
        for _ in range(60):
            q.publish("orders", [bytes(1000)] * 1000)
        sessions, streams = meter.connections, served.flight.streams
        # Several pieces: what comes after the first is admitted when the call itself is over.
        for _ in range(5):
            assert sum(batch.num_rows for batch in q.read_arrow("orders")) == 60_000
            reading = iter(q.read_arrow("orders"))
            next(reading)
            assert (meter.connections, served.flight.streams) == (sessions + 1, streams + 1)
            del reading
            eventually(lambda: (meter.connections, served.flight.streams) == (sessions, streams))
    eventually(lambda: meter.connections == 0)


def test_what_is_refused_somebody_is_in_the_audit_and_the_events(served: Served, operator: duly.Client) -> None:
    operator.create_topic("jobs", kind="queue")
    # An open broker refuses nobody for want of a grant, but it makes no keys.
    with pytest.raises(duly.Denied):
        operator.create_key("somebody")
    found: list[duly.AuditEntry] = []

    def noted() -> bool:
        found[:] = [entry for entry in operator.audit(operators=True) if entry.outcome == "denied"]
        return bool(found)

    eventually(noted)
    assert found[0].action == "keys"
    assert found[0].address
