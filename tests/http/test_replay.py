"""Replay over HTTP: by offset and as copies, as a version of a job."""

from __future__ import annotations

import httpx

from .conftest import b64, problem, texts


def test_messages_go_back_to_a_group(http: httpx.Client, orders: str) -> None:
    http.post(f"{orders}/groups", json={"name": "late"})
    http.post(f"{orders}/messages", json=texts("one", "two", "three"))
    known = http.get(orders).json()
    body = {"incarnation": known["incarnation"], "partition_id": known["partitions"][0]["id"], "offsets": [0, 2]}
    url = f"{orders}/groups/late/replays/again"
    assert http.put(f"{url}/0", json=body).json() == {"messages": 0, "pending": 2, "duplicate": False}
    assert http.put(f"{url}/0", json=body).json()["duplicate"]
    problem(http.put(f"{url}/1", json=body | {"incarnation": "other"}), 412, "stale_version")
    copy = {"offset": 1, "payload_base64": b64(b"two"), "published_at_ms": 0}
    assert http.put(f"{url}/1", json=body | {"copies": [copy]}).json()["pending"] == 3
    problem(http.put(f"{url}/2", json=body | {"offsets": [7]}), 422, "invalid_argument")
    problem(http.put(f"{orders}/groups/nobody/replays/r/0", json=body), 404, "group_not_found")
