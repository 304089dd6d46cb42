"""Stages over HTTP: put down in calls, published together, once."""

from __future__ import annotations

import httpx

from .conftest import b64, problem, texts


def test_two_stages_are_published_together(http: httpx.Client, orders: str) -> None:
    assert http.put(f"{orders}/stages/a/0", json=texts("one")).json() == {"messages": 1}
    assert http.put(f"{orders}/stages/a/0", json=texts("one")).json() == {"messages": 1}
    assert http.put(f"{orders}/stages/a/1", json=texts("two")).json() == {"messages": 2}
    assert http.put(f"{orders}/stages/b/0", json=texts("three")).json() == {"messages": 1}
    assert http.get(f"{orders}/partitions/0/messages").json()["messages"] == []
    told = http.put(f"{orders}/jobs/nightly/7", json={"stages": {"a": 2, "b": 1}})
    assert told.json() == {"messages": 3, "duplicates": 0, "left": 0, "duplicate": False}
    assert http.put(f"{orders}/jobs/nightly/7", json={"stages": {}}).json()["duplicate"]
    found = http.get(f"{orders}/partitions/0/messages").json()["messages"]
    assert [message["payload_base64"] for message in found] == [b64(b"one"), b64(b"two"), b64(b"three")]


def test_what_is_not_there_is_said(http: httpx.Client, orders: str) -> None:
    assert http.delete(f"{orders}/stages/unknown").status_code == 204
    problem(http.put(f"{orders}/jobs/j/0", json={"stages": {"gone": 1}}), 404, "not_found")
    problem(http.put(f"{orders}/stages/a/5", json=texts("x")), 404, "not_found")
    problem(http.put(f"{orders}/stages/a/x", json=texts("x")), 400, "malformed_request")


def test_a_stage_that_was_given_up_cannot_be_published(http: httpx.Client, orders: str) -> None:
    http.put(f"{orders}/stages/a/0", json=texts("one"))
    assert http.delete(f"{orders}/stages/a").status_code == 204
    problem(http.put(f"{orders}/jobs/j/0", json={"stages": {"a": 1}}), 404, "not_found")
