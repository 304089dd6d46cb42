"""Claim and settle over HTTP: tokens, verdicts, lost leases, consumers that hang or come back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import duly
from duly.broker.broker import Broker

from .conftest import b64, open_broker, problem, texts


@pytest.fixture
def clock() -> duly.ManualClock:
    return duly.ManualClock()


@pytest.fixture
def broker(path: str, clock: duly.ManualClock) -> Iterator[Broker]:
    opened = open_broker(path, clock)
    yield opened
    opened.shut()


@pytest.fixture
def three(http: httpx.Client, emails: str) -> str:
    assert http.post(f"{emails}/messages", json=texts("a", "b", "c")).status_code == 201
    return emails


def claim(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = http.post(f"{path}/claim", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def payloads(claimed: dict[str, Any]) -> list[str]:
    return [delivery["payload_base64"] for delivery in claimed["deliveries"]]


def test_claim_takes_messages_under_a_lease(http: httpx.Client, three: str, clock: duly.ManualClock) -> None:
    got = claim(http, three, max_messages=2, lease_ms=5_000, consumer="w1")
    assert payloads(got) == [b64(b"a"), b64(b"b")]
    assert (got["topic"], got["lease_ms"]) == ("emails", 5_000)
    assert got["lease_expires_at_ms"] == clock.now_ms() + 5_000
    assert [one["attempt"] for one in got["deliveries"]] == [1, 1]
    assert payloads(claim(http, three)) == [b64(b"c")]
    empty = claim(http, three)
    assert (empty["deliveries"], empty["token"]) == ([], None)


def test_claim_without_a_body_takes_the_defaults(http: httpx.Client, three: str) -> None:
    assert len(http.post(f"{three}/claim").json()["deliveries"]) == 3


def test_ack_of_one_token_finishes_one(http: httpx.Client, three: str) -> None:
    got = claim(http, three)
    answer = http.post(f"{three}/ack", json={"token": got["deliveries"][1]["token"]})
    assert (answer.status_code, answer.json()) == (200, {"done": 1, "lost": []})
    assert http.get(three).json()["messages"] == 2


def test_ack_of_the_batch_token_finishes_all(http: httpx.Client, three: str) -> None:
    got = claim(http, three)
    assert http.post(f"{three}/ack", json={"token": got["token"]}).json() == {"done": 3, "lost": []}
    assert http.get(three).json()["messages"] == 0


def test_ack_of_some_tokens(http: httpx.Client, three: str) -> None:
    tokens = [one["token"] for one in claim(http, three)["deliveries"]]
    assert http.post(f"{three}/ack", json={"tokens": tokens[:2]}).json() == {"done": 2, "lost": []}
    again = http.post(f"{three}/ack", json={"tokens": tokens}).json()
    assert (again["done"], sorted(again["lost"])) == (1, sorted(tokens[:2]))


def test_token_of_an_expired_lease_is_refused_and_changes_nothing(
    http: httpx.Client, three: str, clock: duly.ManualClock
) -> None:
    old = claim(http, three, lease_ms=1_000)
    clock.advance(2)
    new = claim(http, three)
    told = problem(http.post(f"{three}/ack", json={"token": old["deliveries"][0]["token"]}), 409, "lease_lost")
    assert told["lost"] == [old["deliveries"][0]["token"]]
    for verb in ("nack", "release", "extend", "bury"):
        answer = http.post(f"{three}/{verb}", json={"tokens": [one["token"] for one in old["deliveries"]]})
        assert (answer.json()["done"], len(answer.json()["lost"])) == (0, 3)
    left = claim(http, three)
    tokens = [one["token"] for got in (new, left) for one in got["deliveries"]]
    assert http.post(f"{three}/ack", json={"tokens": tokens}).json() == {"done": 3, "lost": []}


def test_nack_brings_it_back_after_the_delay_with_the_next_attempt(
    http: httpx.Client, three: str, clock: duly.ManualClock
) -> None:
    got = claim(http, three, max_messages=1)
    nacked = http.post(f"{three}/nack", json={"token": got["token"], "delay_ms": 5_000, "reason": "später"})
    assert nacked.json()["done"] == 1
    claim(http, three)
    assert claim(http, three)["deliveries"] == []
    clock.advance(5)
    again = claim(http, three)["deliveries"][0]
    assert (again["payload_base64"], again["attempt"]) == (b64(b"a"), 2)
    assert http.get(f"{three}/messages/{again['id']}").json()["history"][0]["reason"] == "später"


def test_release_gives_it_back_at_once_and_counts_no_attempt(http: httpx.Client, three: str) -> None:
    got = claim(http, three, max_messages=1)
    assert http.post(f"{three}/release", json={"token": got["token"]}).json()["done"] == 1
    again = [one for one in claim(http, three)["deliveries"] if one["payload_base64"] == b64(b"a")]
    assert [one["attempt"] for one in again] == [1]


def test_extend_holds_it_for_longer(http: httpx.Client, three: str, clock: duly.ManualClock) -> None:
    got = claim(http, three, lease_ms=1_000)
    told = http.post(f"{three}/extend", json={"token": got["token"], "lease_ms": 60_000}).json()
    assert (told["done"], told["lease_expires_at_ms"]) == (3, clock.now_ms() + 60_000)
    clock.advance(30)
    assert http.post(f"{three}/ack", json={"token": got["token"]}).json()["done"] == 3


def test_extending_part_of_a_lease_gives_new_tokens(http: httpx.Client, three: str, clock: duly.ManualClock) -> None:
    tokens = [one["token"] for one in claim(http, three, lease_ms=1_000)["deliveries"]]
    told = http.post(f"{three}/extend", json={"tokens": tokens[:1], "lease_ms": 60_000}).json()
    assert list(told["renewed"]) == tokens[:1]
    clock.advance(30)
    assert http.post(f"{three}/ack", json={"token": told["renewed"][tokens[0]]}).json()["done"] == 1
    problem(http.post(f"{three}/ack", json={"token": tokens[0]}), 409, "lease_lost")


def test_extend_tells_what_was_cancelled_meanwhile(http: httpx.Client, three: str) -> None:
    got = claim(http, three)
    one = got["deliveries"][0]
    assert http.delete(f"{three}/messages/{one['id']}").json() == {"answer": "leased"}
    told = http.post(f"{three}/extend", json={"tokens": [d["token"] for d in got["deliveries"]]}).json()
    assert told["cancelled"] == [one["token"]]


def test_buried_message_is_a_dead_letter(http: httpx.Client, three: str) -> None:
    got = claim(http, three, max_messages=1)
    assert http.post(f"{three}/bury", json={"token": got["token"], "reason": "broken"}).json()["done"] == 1
    dead = http.get(f"{three}/dead").json()["dead"]
    assert [(letter["message"]["payload_base64"], letter["reason"]) for letter in dead] == [(b64(b"a"), "broken")]


def test_group_of_a_log_claims_for_itself(http: httpx.Client, orders: str) -> None:
    http.post(f"{orders}/groups", json={"name": "audit"})
    http.post(f"{orders}/messages", json=texts("a"))
    billing = claim(http, orders, group="billing")
    audit = claim(http, orders, group="audit")
    assert payloads(billing) == payloads(audit) == [b64(b"a")]
    # A token means something to its group alone.
    token = billing["deliveries"][0]["token"]
    told = http.post(f"{orders}/ack", json={"tokens": [token], "group": "audit"})
    assert told.json() == {"done": 0, "lost": [token]}
    assert http.post(f"{orders}/ack", json={"token": billing["token"], "group": "billing"}).json()["done"] == 1
    problem(http.post(f"{orders}/claim", json={"group": "nobody"}), 404, "group_not_found")


def test_max_bytes_bounds_a_claim(http: httpx.Client, emails: str) -> None:
    http.post(f"{emails}/messages", json=texts("x" * 1000, "y" * 1000, "z" * 1000))
    assert len(claim(http, emails, max_bytes=2_500)["deliveries"]) == 2
    assert len(claim(http, emails, max_bytes=1)["deliveries"]) == 1


def test_held_gives_a_restarted_consumer_its_leases_back(http: httpx.Client, three: str) -> None:
    old = claim(http, three, consumer="w1")
    held = http.post("/v1/consumers/w1/held").json()["held"]
    assert [payloads(one) for one in held] == [payloads(old)]
    problem(http.post(f"{three}/ack", json={"token": old["token"]}), 409, "lease_lost")
    assert http.post(f"{three}/ack", json={"token": held[0]["token"]}).json()["done"] == 3
    assert http.post("/v1/consumers/w1/held", json={"topic": "emails"}).json() == {"held": []}


def test_everything_of_a_hung_consumer_is_released(http: httpx.Client, three: str) -> None:
    claim(http, three, consumer="hung")
    assert http.post("/v1/consumers/hung/release", json={"topic": "emails"}).json() == {"done": 3}
    assert len(claim(http, three)["deliveries"]) == 3


@pytest.mark.parametrize(
    "token", ["", "x", "abc-", "abc--1", "abc-1-", "abc-1-x", "abc-1-1-1", "ABC-1", "abc-1.", "ü-1"]
)
def test_made_up_token_is_malformed(http: httpx.Client, emails: str, token: str) -> None:
    problem(http.post(f"{emails}/ack", json={"tokens": [token]}), 400, "malformed_request")


def test_well_formed_token_of_nobody_is_lost(http: httpx.Client, three: str) -> None:
    mine = claim(http, three)["token"].partition("-")[0]
    for token in ("0123456789abcdef-1-0", f"{mine}-999999-0", f"{mine}-1-999999"):
        assert http.post(f"{three}/ack", json={"tokens": [token]}).json() == {"done": 0, "lost": [token]}
    assert http.post(f"{three}/ack", json={"tokens": []}).json() == {"done": 0, "lost": []}


@pytest.mark.parametrize(
    "body",
    [{"max_messages": 0}, {"max_messages": 100_001}, {"wait_ms": -1}, {"lease_ms": 99}, {"max_bytes": 0}, {"x": 1}],
)
def test_bad_claim_is_malformed(http: httpx.Client, emails: str, body: dict[str, int]) -> None:
    problem(http.post(f"{emails}/claim", json=body), 400, "malformed_request")


def test_token_and_tokens_together_are_refused(http: httpx.Client, emails: str) -> None:
    problem(http.post(f"{emails}/ack", json={"token": "a-1", "tokens": []}), 422, "invalid_argument")
    problem(http.post(f"{emails}/ack", json={}), 422, "invalid_argument")
