"""Every endpoint of REST × everything that is wrong with a key or its grants: unexpected successes, none."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import httpx
import pytest

import duly
from duly.broker.authority import ANYONE, RIGHTS, SEE
from duly.grants import STORE_ACTIONS
from duly.http.endpoint import Endpoint, Resource
from duly.http.routes import ENDPOINTS

from .conftest import ALL, OPERATOR, Place
from .keys_of_all_kinds import NOT_LET_IN, but, denied

TOKEN = "0-1-0"
ONE = {"messages": [{"payload_text": "one"}]}
# What is sent to each: parameters and a body, with which it gets as far as its operation.
SAMPLES: dict[str, tuple[dict[str, Any], Any]] = {
    "publish": ({}, ONE),
    "browse": ({}, None),
    "claim": ({}, {}),
    "_ack": ({}, {"token": TOKEN}),
    "_nack": ({}, {"token": TOKEN}),
    "_release": ({}, {"token": TOKEN}),
    "_extend": ({}, {"token": TOKEN}),
    "_bury": ({}, {"token": TOKEN}),
    "held": ({}, {}),
    "release_consumer": ({}, {}),
    "get_message": ({}, None),
    "get_payload": ({}, None),
    "move_message": ({}, {"priority": 1}),
    "cancel_message": ({}, None),
    "move_messages": ({}, {"ids": ["a"], "priority": 1}),
    "cancel_messages": ({}, {"ids": ["a"]}),
    "coming": ({}, None),
    "stage": ({}, ONE),
    "drop_stage": ({}, None),
    "commit_stages": ({}, {"stages": {}}),
    "read": ({}, None),
    "read_one": ({}, None),
    "read_payload": ({}, None),
    "offset_at": ({"at_ms": 0}, None),
    "await_messages": ({}, {"offsets": {"0": 0}}),
    "create_topic": ({}, {"name": "topic", "kind": "queue", "exist_ok": True}),
    "list_topics": ({}, None),
    "describe_topic": ({}, None),
    "update_topic": ({}, {"lease_ms": 30_000}),
    "delete_topic": ({"force": "true"}, None),
    "pause_topic": ({}, None),
    "resume_topic": ({}, None),
    "purge_topic": ({}, None),
    "set_archived": ({}, {"offset": 0}),
    "create_group": ({}, {"name": "group", "exist_ok": True}),
    "list_groups": ({}, None),
    "describe_group": ({}, None),
    "update_group": ({}, {"lease_ms": 30_000}),
    "delete_group": ({}, None),
    "pause_group": ({}, None),
    "resume_group": ({}, None),
    "purge_group": ({}, None),
    "seek": ({}, {"to": "latest"}),
    "list_dead": ({}, None),
    "redrive": ({}, {}),
    "purge_dead": ({}, None),
    "replay": ({}, {"incarnation": "0", "partition_id": 0, "offsets": [0]}),
    "put_principal": ({}, {"grants": []}),
    "list_principals": ({}, None),
    "delete_principal": ({}, None),
    "create_key": ({}, {"principal": "principal"}),
    "list_keys": ({}, None),
    "rotate_key": ({}, None),
    "revoke_key": ({}, None),
    "list_operations": ({}, None),
    "resume_operation": ({}, {}),
    "stop_operation": ({}, None),
    "create_schedule": ({}, {"name": "schedule", "topic": "topic", "cron": "@daily", "exist_ok": True}),
    "list_schedules": ({}, None),
    "describe_schedule": ({}, None),
    "next_ticks": ({}, None),
    "update_schedule": ({}, {"zone": "Europe/Berlin"}),
    "delete_schedule": ({}, None),
    "pause_schedule": ({}, None),
    "resume_schedule": ({}, None),
    "preview_schedule": ({}, {"cron": "@daily"}),
    "create_push": ({}, {"name": "another", "topic": "topic", "to_http": {"url": "https://example.com/"}}),
    "pushes": ({}, None),
    "describe_push": ({}, None),
    "update_push": ({}, {"to_http": {"timeout_ms": 5_000}}),
    "delete_push": ({}, None),
    "pause_push": ({}, None),
    "resume_push": ({}, None),
    "rotate_push_secret": ({}, {"overlap_ms": 0}),
    "test_push": ({}, None),
    "list_events": ({}, None),
    "audit": ({}, None),
    "create_tenant": ({}, {"name": "name", "exist_ok": True}),
    "list_tenants": ({}, None),
    "describe_tenant": ({}, None),
    "update_tenant": ({}, {"topics": 5}),
    "suspend_tenant": ({}, None),
    "resume_tenant": ({}, None),
    "delete_tenant": ({}, None),
    "health": ({}, None),
    "forecast": ({}, None),
    "forecasts": ({}, None),
    "forecast_metrics": ({}, None),
    "limits": ({}, None),
    "clock": ({}, None),
    "accept_clock": ({}, None),
    "cluster": ({}, None),
    "pause_store": ({}, None),
    "resume_store": ({}, None),
    "examine": ({}, None),
    "live": ({}, None),
    "ready": ({}, None),
}
IN_PATH = {"partition": "0", "offset": "0", "number": "0", "version": "1", "key": "aaaaaaaaaaaa"}

PUBLIC = {"live", "ready"}
GUARDED = [one for one in ENDPOINTS if one.name not in PUBLIC]
NAMES = [one.name for one in GUARDED]


def ask(client: httpx.Client, one: Endpoint, topic: str = "topic", **more: Any) -> httpx.Response:
    """Calls an endpoint with its sample."""
    params, body = SAMPLES[one.name]
    path = re.sub(r"{(\w+)}", lambda found: topic if found[1] == "topic" else IN_PATH.get(found[1], found[1]), one.path)
    if one.name == "create_topic":
        body = {**body, "name": topic}
    return client.request(one.method, path, params=params, json=body, **more)


def stock(place: Place) -> None:
    """What samples are about."""
    place.store.create_topic("topic", kind="queue")
    place.store.create_schedule("schedule", topic="topic", cron="@yearly")
    place.store.create_push("push", topic="topic", to=duly.ToHttp("https://example.com/"))


def right_of(one: Endpoint) -> Any:
    return RIGHTS[one.call or one.does[0]]


def test_every_endpoint_has_a_sample_and_those_without_a_key_are_these() -> None:
    assert set(SAMPLES) == {one.name for one in ENDPOINTS}
    assert {one.name for one in ENDPOINTS if one.public} == PUBLIC
    assert all(bool(one.does) != (one.call is not None) for one in GUARDED)


@pytest.mark.parametrize("kind", NOT_LET_IN)
def test_nobody_is_let_in_without_a_key_that_holds(place: Place, kind: str) -> None:
    place.key("somebody", *ALL)
    place.store.create_topic("topic", kind="queue")
    with place.http(NOT_LET_IN[kind](place)) as client:
        for one in GUARDED:
            told = ask(client, one)
            assert told.status_code == 401, (one.name, told.text)
            assert told.json()["code"] == "unauthenticated"
            assert told.headers["www-authenticate"] == "Bearer"
    assert place.store.list_topics() == ["topic"]


@pytest.mark.parametrize("kind", ["unknown", "altered", "expired", "revoked", "of a principal that is gone"])
def test_what_is_wrong_with_a_key_is_not_told(place: Place, kind: str) -> None:
    place.key("somebody", *ALL)
    with place.http(NOT_LET_IN["unknown"](place)) as unknown, place.http(NOT_LET_IN[kind](place)) as wrong:
        for one in GUARDED[:5]:
            assert ask(wrong, one).content == ask(unknown, one).content


def test_other_ways_to_show_a_key_are_not_taken(place: Place) -> None:
    token = place.key("somebody", *ALL)
    for name, value in (("Authorization", f"Basic {token}"), ("Authorization", token), ("X-API-Key", token)):
        with place.http(None, **{name: value}) as client:
            assert client.get("/v1/topics").status_code == 401
    with place.http(None) as client:
        twice = [("authorization", f"Bearer {token}"), ("authorization", f"Bearer {token}")]
        assert client.get("/v1/topics", headers=twice).status_code == 401
        assert client.get("/v1/topics", params={"token": token}).status_code == 401


@pytest.mark.parametrize("name", [one.name for one in GUARDED if right_of(one).action != ANYONE])
def test_all_grants_but_the_one_are_not_enough(place: Place, name: str) -> None:
    (one,) = [one for one in GUARDED if one.name == name]
    stock(place)
    action = right_of(one).action
    if action == SEE:
        wrong: list[tuple[duly.Grant, ...]] = [(), tuple(duly.Grant(tenant) for tenant in ("keys", "audit"))]
    elif action in STORE_ACTIONS:
        # No principal of a tenant can have it.
        wrong = [(), ALL, (duly.Grant("*"),)]
    else:
        wrong = [(), but(action), denied(action)]
    for number, grants in enumerate(wrong):
        with place.http(place.key(f"p{number}", *grants)) as client:
            told = ask(client, one)
            assert told.status_code in (403, 404), (name, grants, told.text)
            assert told.json()["code"] in ("denied", "topic_not_found", "schedule_not_found", "push_not_found")


@pytest.mark.parametrize("name", [one.name for one in GUARDED if right_of(one).about != "store"])
def test_a_key_of_one_tenant_opens_nothing_of_another(place: Place, name: str) -> None:
    (one,) = [one for one in GUARDED if one.name == name]
    place.store.create_topic("topic", kind="queue")
    token = place.key("stranger", *ALL, tenant="other")
    with place.http(token, **{"Duly-Tenant": "default"}) as client:
        told = ask(client, one)
        assert (told.status_code, told.json()["code"]) == (403, "denied")
    with place.http(token, **{"Duly-Tenant": "nobody"}) as client:
        assert ask(client, one).content == told.content


@pytest.mark.parametrize("name", [one.name for one in GUARDED if "{topic}" in one.path])
def test_what_is_not_theirs_is_answered_as_what_is_not_there(place: Place, name: str) -> None:
    (one,) = [one for one in GUARDED if one.name == name]
    place.store.create_topic("theirs", kind="queue")
    grants = [duly.Grant(grant.action, "mine*") for grant in ALL if grant.action not in ("keys", "audit")]
    # For comparison: one who might see a topic of that name, were it there.
    with place.http(place.key("narrow", *grants)) as narrow, place.http(place.key("wide", *ALL)) as wide:
        hidden = ask(narrow, one, "theirs")
        missing = ask(wide, one, "absent")
        assert hidden.status_code == missing.status_code == 404
        assert hidden.json() == {**missing.json(), "detail": missing.json()["detail"].replace("absent", "theirs")}
        ours, others = ({**one.headers, "content-length": "", "date": ""} for one in (hidden, missing))
        assert ours == others
        assert ask(narrow, one, "absent").content == missing.content


def test_to_refuse_takes_no_look_so_its_time_tells_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.store.create_topic("theirs", kind="queue")
    grants = [duly.Grant(grant.action, "mine*") for grant in ALL if grant.action not in ("keys", "audit")]
    token = place.key("narrow", *grants)
    store = place.broker._home.store
    looks: list[str] = []
    for way in ("read", "write", "submit"):
        before = getattr(store, way)

        def noted(*args: Any, way: str = way, before: Any = before, **more: Any) -> Any:
            # The caretaker looks after the store, whoever asks what.
            if threading.current_thread().name != "duly-caretaker":
                looks.append(way)
            return before(*args, **more)

        monkeypatch.setattr(store, way, noted)
    # What was denied is written down later, all that was denied alike.
    place.broker.on_denied = lambda *_: None
    with place.http(token) as client:
        assert client.get("/v1/topics/mine").status_code == 404
        assert "read" in looks
        for one in GUARDED:
            if "{topic}" in one.path:
                client.get("/v1/topics")
                looks.clear()
                assert (ask(client, one, "theirs").status_code, ask(client, one, "absent").status_code) == (404, 404)
                assert looks == [], one.name


@pytest.mark.parametrize("call", ["held", "release"])
def test_what_is_about_one_topic_or_all_takes_a_grant_for_those(place: Place, call: str) -> None:
    for topic in ("jobs", "theirs"):
        place.store.create_topic(topic, kind="queue")
    path = f"/v1/consumers/worker/{call}"
    with place.http(place.key("narrow", duly.Grant("claim", "jobs"), duly.Grant("settle", "jobs"))) as client:
        assert client.post(path, json={"topic": "jobs"}).status_code == 200
        assert client.post(path, json={}).json()["code"] == "denied"
        hidden, missing = (client.post(path, json={"topic": topic}) for topic in ("theirs", "absent"))
        assert hidden.status_code == 404
        assert hidden.text.replace("theirs", "absent") == missing.text


@pytest.mark.parametrize("name", NAMES)
def test_the_right_grant_is_enough(place: Place, name: str) -> None:
    """Or the tests above would prove nothing."""
    (one,) = [one for one in GUARDED if one.name == name]
    stock(place)
    right = right_of(one)
    if right.about == "store" and right.action != ANYONE:
        token = place.key("op", *OPERATOR, operator=True)
    else:
        actions = [right.action] if right.action not in (SEE, ANYONE) else ["publish"]
        if name == "delete_topic":
            actions.append("purge")
        if one.tag == "schedules":
            actions.append("publish")
        if name in ("create_push", "update_push", "resume_push"):
            actions.append("claim")
        token = place.key("right", *(duly.Grant(action) for action in actions))
    with place.http(token) as client:
        told = ask(client, one)
        assert told.status_code not in (401, 403), (name, told.text)
        assert told.status_code != 404 or not told.json()["code"].startswith(("topic", "push")), (name, told.text)


def test_those_that_tell_how_the_broker_is_need_no_key(place: Place) -> None:
    place.key("somebody", *ALL)
    with place.http() as client:
        for path in ("/health/live", "/health/ready", "/openapi.json", "/docs"):
            assert client.get(path).status_code == 200


def test_an_endpoint_that_names_no_operation_is_nobodys(place: Place) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Route

    from duly.http.endpoint import Home

    async def forgotten(call: Any) -> str:
        return "secret"

    place.key("somebody", *ALL)
    one = Endpoint(run=forgotten, method="GET", path="/", tag="store")
    app = Starlette(routes=[Route("/", Resource(Home(place.broker), [one]))])
    for token in (place.key("op", *OPERATOR, operator=True), place.key("wide", *ALL)):

        async def asked(token: str = token) -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://broker") as client:
                return await client.get("/", headers={"Authorization": f"Bearer {token}"})

        told = asyncio.run(asked())
        assert (told.status_code, told.json()["code"]) == (403, "denied")
