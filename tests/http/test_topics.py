"""Topics and groups over HTTP."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest

from .conftest import b64, problem, texts


def test_topic_is_made_described_and_listed(http: httpx.Client) -> None:
    made = http.post("/v1/topics", json={"name": "emails", "kind": "queue", "lease_ms": 5_000, "partitions": 2})
    assert made.status_code == 201
    assert made.headers["location"] == "/v1/topics/emails"
    assert made.headers["etag"] == '"1"'
    found = http.get("/v1/topics/emails")
    assert found.json() == made.json()
    assert found.json()["settings"]["lease_ms"] == 5_000
    assert len(found.json()["partitions"]) == 2
    assert http.get("/v1/topics").json() == {"topics": ["emails"], "next": None}


BREAKER = {"failures": 0.25, "calls": 7, "window_ms": 5_000, "probe_ms": 500, "probe_max_ms": 30_000}
SETTINGS = {
    "lease_ms": 1_234,
    "retry": {"max_attempts": 3, "base_ms": 10, "cap_ms": 99, "shape": "linear", "jitter": "none", "budget": 0.25},
    "dead_letters": False,
    "ttl_ms": 60_001,
    "dedupe_ms": 7,
    "retention": {"age_ms": 1_001, "bytes": 5, "settled": True, "drop_unsettled": True},
    "archive": True,
    "rate_per_s": 2.5,
    "payload_bytes_max": 77,
    "lanes": {"max_in_flight": 2, "rate_per_s": 0.5, "weights": {"acme*": 3.0}, "breaker": BREAKER},
    "health": {
        "consumers": [2.0, 1.0],
        "undelivered": [1.0, 2.0],
        "oldest_age_ms": [1_500.0, 2_500.0],
        "retry_ratio": [0.1, 0.5],
        "dead": [1.0, 9.0],
    },
    "max_in_flight": 12,
    "breaker": {**BREAKER, "calls": 8},
}


def test_every_setting_comes_back_as_it_was_given(http: httpx.Client) -> None:
    made = http.post("/v1/topics", json={"name": "a", "kind": "queue", **SETTINGS})
    assert made.json()["settings"] == SETTINGS
    http.post("/v1/topics", json={"name": "b", "kind": "queue"})
    assert http.patch("/v1/topics/b", json=SETTINGS).json()["settings"] == SETTINGS


def test_update_leaves_what_it_does_not_name_and_null_takes_away(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "a", "kind": "queue", **SETTINGS})
    changed = http.patch("/v1/topics/a", json={"ttl_ms": None, "lease_ms": 9_000}).json()["settings"]
    assert changed == {**SETTINGS, "ttl_ms": None, "lease_ms": 9_000}


def test_if_match_changes_only_what_was_seen(http: httpx.Client, emails: str) -> None:
    seen = http.get(emails).headers["etag"]
    first = http.patch(emails, json={"lease_ms": 1_000}, headers={"if-match": seen})
    assert first.status_code == 200
    assert first.headers["etag"] != seen
    problem(http.patch(emails, json={"lease_ms": 2_000}, headers={"if-match": seen}), 412, "stale_version")
    problem(http.patch(emails, json={"lease_ms": 2_000}, headers={"if-match": '"no"'}), 412, "stale_version")
    assert http.patch(emails, json={"lease_ms": 3_000}, headers={"if-match": "*"}).status_code == 200
    assert http.get(emails).json()["settings"]["lease_ms"] == 3_000


def test_topics_are_listed_page_by_page(http: httpx.Client) -> None:
    names = [f"t{number:02}" for number in range(7)] + ["ü"]
    for name in names:
        http.post("/v1/topics", json={"name": name, "kind": "log"})
    first = http.get("/v1/topics", params={"limit": 5}).json()
    second = http.get("/v1/topics", params={"limit": 5, "next": first["next"]}).json()
    assert first["topics"] + second["topics"] == names
    assert second["next"] is None


@pytest.mark.parametrize(
    "name", ["a/b", "a b", "ü\U0001f600", "100%", "a?b#c", "%2F", "+", "x" * 256, "own$", "a&b=c;d"]
)
def test_any_printable_name_works_in_a_path(http: httpx.Client, name: str) -> None:
    made = http.post("/v1/topics", json={"name": name, "kind": "log"})
    assert made.status_code == 201
    assert made.headers["location"] == f"/v1/topics/{quote(name, safe='')}"
    assert http.get(made.headers["location"]).json()["name"] == name
    assert http.post(f"{made.headers['location']}/messages", json=texts("x")).status_code == 201


@pytest.mark.parametrize("name", ["", "x" * 257, 7, None])
def test_name_that_does_not_fit_is_malformed(http: httpx.Client, name: object) -> None:
    problem(http.post("/v1/topics", json={"name": name, "kind": "log"}), 400, "malformed_request")


@pytest.mark.parametrize("name", ["a\nb", "\x00", "\u200b"])
def test_unprintable_name_is_refused(http: httpx.Client, name: str) -> None:
    problem(http.post("/v1/topics", json={"name": name, "kind": "log"}), 422, "invalid_argument")
    problem(http.get(f"/v1/topics/{quote(name, safe='')}"), 422, "invalid_argument")


def test_name_in_a_path_must_be_utf8(http: httpx.Client) -> None:
    problem(http.get("/v1/topics/%ff"), 400, "malformed_request")


def test_exist_ok_leaves_an_equal_topic_and_refuses_another(http: httpx.Client, emails: str) -> None:
    problem(http.post("/v1/topics", json={"name": "emails", "kind": "queue"}), 409, "topic_exists")
    again = {"name": "emails", "kind": "queue", "exist_ok": True}
    assert http.post("/v1/topics", json=again).status_code == 201
    problem(http.post("/v1/topics", json={**again, "lease_ms": 1_000}), 409, "topic_exists")


def test_topic_with_messages_is_deleted_only_by_force(http: httpx.Client, emails: str) -> None:
    http.post(f"{emails}/messages", json=texts("x"))
    problem(http.delete(emails), 409, "topic_not_empty")
    assert http.delete(emails, params={"force": "true"}).status_code == 204
    problem(http.get(emails), 404, "topic_not_found")


def test_pause_resume_and_purge(http: httpx.Client, emails: str) -> None:
    http.post(f"{emails}/messages", json=texts("x", "y"))
    assert http.post(f"{emails}/pause").status_code == 204
    assert http.get(emails).json()["paused"] is True
    assert http.post(f"{emails}/claim").json()["deliveries"] == []
    assert http.post(f"{emails}/resume").status_code == 204
    assert len(http.post(f"{emails}/claim", json={"max_messages": 1}).json()["deliveries"]) == 1
    assert http.post(f"{emails}/purge").json()["dropped"] >= 1


def test_archived_lets_truncation_go_so_far(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "a", "kind": "log", "archive": True})
    http.post("/v1/topics/a/messages", json=texts("x", "y"))
    assert http.put("/v1/topics/a/partitions/0/archived", json={"offset": 1}).status_code == 204
    assert http.get("/v1/topics/a").json()["partitions"][0]["archived_to"] == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"kind": "log"}, 400),
        ({"name": "x", "kind": "stack"}, 400),
        ({"name": "x", "kind": "log", "lease_ms": 1}, 400),
        ({"name": "x", "kind": "log", "lease": 30}, 400),
        ({"name": "x", "kind": "log", "lanes": {}}, 422),
        ({"name": "x", "kind": "log", "dedupe_ms": 1}, 422),
        ({"name": "x", "kind": "queue", "health": {"dead": [5, 1]}}, 422),
    ],
)
def test_topic_that_cannot_be_is_refused(http: httpx.Client, body: dict[str, object], status: int) -> None:
    problem(http.post("/v1/topics", json=body), status, "malformed_request" if status == 400 else "invalid_argument")


# Groups


def test_group_starts_where_it_was_told_to(http: httpx.Client, orders: str) -> None:
    http.post(f"{orders}/messages", json=texts("a", "b", "c"))
    starts = {
        "late": {"to": "latest"},
        "early": {"to": "earliest"},
        "one": {"offset": 1},
        "by-partition": {"offsets": {"0": 2}},
        "then": {"at_ms": 0},
    }
    cursors = {}
    for name, start in starts.items():
        made = http.post(f"{orders}/groups", json={"name": name, "start": start})
        assert made.status_code == 201, made.text
        cursors[name] = made.json()["cursors"]
    assert cursors == {
        "late": {"0": 3},
        "early": {"0": 0},
        "one": {"0": 1},
        "by-partition": {"0": 2},
        "then": {"0": 0},
    }
    assert set(http.get(f"{orders}/groups").json()["groups"]) == {"billing", *starts}


def test_group_is_changed_and_deleted(http: httpx.Client, orders: str) -> None:
    path = f"{orders}/groups/billing"
    retry = {"max_attempts": 2, "base_ms": 1, "cap_ms": 2, "shape": "fixed", "jitter": "none", "budget": None}
    limits = {"rate_per_s": 2.5, "max_in_flight": 3, "breaker": BREAKER}
    wanted = {"lease_ms": 1_000, "retry": retry, "dead_letters": False, **limits}
    changed = http.patch(path, json=wanted).json()
    assert changed["settings"] == wanted
    gate = {
        "rate_per_s": 2.5,
        "max_in_flight": 3,
        "in_flight": 0,
        "breaker": "closed",
        "probe_at_ms": None,
        "lanes": [],
    }
    assert changed["gate"] == {**gate, "lanes": []}
    nothing = http.patch(path, json=dict.fromkeys(limits)).json()
    assert nothing["gate"] is None
    assert http.patch(path, json={"lease_ms": None}).json()["settings"]["lease_ms"] is None
    problem(http.post(f"{orders}/groups", json={"name": "billing"}), 409, "group_exists")
    assert http.delete(path).status_code == 204
    problem(http.get(path), 404, "group_not_found")


def test_seek_moves_the_cursor_and_fences_open_leases(http: httpx.Client, orders: str) -> None:
    http.post(f"{orders}/messages", json=texts("a", "b"))
    path = f"{orders}/groups/billing"
    got = http.post(f"{orders}/claim", json={"group": "billing"}).json()
    assert http.post(f"{path}/seek", json={"offset": 1}).json() == {"offsets": {"0": 1}}
    problem(http.post(f"{orders}/ack", json={"token": got["token"], "group": "billing"}), 409, "lease_lost")
    again = http.post(f"{orders}/claim", json={"group": "billing"}).json()["deliveries"]
    assert [one["payload_base64"] for one in again] == [b64(b"b")]
    assert http.post(f"{path}/seek", json={"to": "earliest"}).json() == {"offsets": {"0": 0}}
    assert http.post(f"{path}/seek", json={"at_ms": 253402300799999}).json() == {"offsets": {"0": 2}}
    problem(http.post(f"{path}/seek", json={}), 422, "invalid_argument")
    problem(http.post(f"{path}/seek", json={"to": "latest", "offset": 1}), 422, "invalid_argument")
    problem(http.post(f"{path}/seek", json={"offset": 99}), 422, "invalid_argument")


def test_group_is_paused_resumed_and_purged(http: httpx.Client, orders: str) -> None:
    http.post(f"{orders}/messages", json=texts("a", "b"))
    path = f"{orders}/groups/billing"
    assert http.post(f"{path}/pause").status_code == 204
    assert http.post(f"{orders}/claim", json={"group": "billing"}).json()["deliveries"] == []
    assert http.post(f"{path}/resume").status_code == 204
    assert http.post(f"{path}/purge").json() == {"dropped": 2}
    assert http.get(path).json()["lag"] == 0
