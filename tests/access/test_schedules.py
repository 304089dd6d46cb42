"""Who may see and change schedules: by grants on the topic that they publish into, of which their names say nothing."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import duly
from tests.store.patience import eventually

from .conftest import ALL, Place


@pytest.fixture
def schedules(place: Place) -> Place:
    for topic in ("mine", "theirs"):
        place.store.create_topic(topic, kind="queue")
        place.store.create_schedule(f"of {topic}", topic=topic, cron="@hourly", payload=b"secret")
    return place


def on(topic: str, *actions: str) -> list[duly.Grant]:
    return [duly.Grant(action, topic) for action in actions]


def test_what_is_not_theirs_is_not_there(schedules: Place) -> None:
    grants = [duly.Grant(grant.action, "mine") for grant in ALL if grant.action not in ("keys", "audit")]
    with schedules.http(schedules.key("narrow", *grants)) as http:
        assert [one["name"] for one in http.get("/v1/schedules").json()["schedules"]] == ["of mine"]
        for method, path, body in (
            ("GET", "", None),
            ("GET", "/next", None),
            ("PATCH", "", {"lane": "x"}),
            ("POST", "/pause", None),
            ("POST", "/resume", None),
            ("DELETE", "", None),
        ):
            hidden, missing = (
                http.request(method, f"/v1/schedules/{name}{path}", json=body)
                for name in ("of%20theirs", "of%20nobody")
            )
            assert hidden.status_code == missing.status_code == 404
            assert hidden.text.replace("theirs", "nobody") == missing.text
        refused = http.post("/v1/schedules", json={"name": "new", "topic": "theirs", "cron": "@daily"})
        assert refused.json()["code"] == "topic_not_found"
    assert schedules.store.describe_schedule("of theirs").version == 1


@pytest.mark.parametrize(
    ("grants", "may"),
    [
        (on("mine", "browse"), {"describe"}),
        (on("mine", "configure"), {"pause", "delete"}),
        (on("mine", "publish"), set()),
        (on("mine", "configure", "publish"), {"pause", "resume", "update", "create", "delete"}),
        ([*on("mine", "browse"), *on("theirs", "configure", "publish")], {"describe"}),
    ],
)
def test_to_look_takes_browse_and_to_change_configure_and_publish(
    schedules: Place, grants: list[duly.Grant], may: set[str]
) -> None:
    with schedules.connect(schedules.key("somebody", *grants)) as q:
        calls: dict[str, Any] = {
            "describe": lambda: q.describe_schedule("of mine"),
            "pause": lambda: q.pause_schedule("of mine"),
            "resume": lambda: q.resume_schedule("of mine"),
            "update": lambda: q.update_schedule("of mine", payload=b"changed"),
            "create": lambda: q.create_schedule("new", topic="mine", cron="@daily"),
            "delete": lambda: q.delete_schedule("of mine"),
        }
        done = set()
        for name, call in calls.items():
            try:
                call()
                done.add(name)
            except duly.Denied:
                pass
    assert done == may


def test_who_made_one_may_cancel_its_messages_as_their_own(place: Place) -> None:
    place.store.create_topic("jobs", kind="queue")
    own = [*on("jobs", "configure", "publish", "browse"), duly.Grant("cancel", own=True)]
    anna, bert = place.key("anna", *own), place.key("bert", *own)
    with place.connect(anna) as q:
        q.create_schedule("hers", topic="jobs", cron="@every 1h")
    place.clock.advance(3600)
    tick = eventually(lambda: place.store.describe_schedule("hers").runs)[0].id
    with place.connect(bert) as q:
        assert q.cancel("jobs", tick) == {tick: "not_found"}
    with place.connect(anna) as q:
        assert q.cancel("jobs", tick) == {tick: "cancelled"}


def test_a_name_does_not_carry_a_grant_to_another_topic(schedules: Place) -> None:
    """A schedule that was deleted, and made again on another topic: the grant was for the first."""
    from duly.broker.authority import Shown
    from duly.broker.entry import Entry
    from duly.engine.schedules import DeleteSchedule

    entry = Entry(schedules.broker, Shown(schedules.key("anna", *on("mine", "configure"))))
    admitted = entry.admit(DeleteSchedule("", "of mine"))
    assert admitted.topic == "mine"
    schedules.store.delete_schedule("of mine")
    schedules.store.create_schedule("of mine", topic="theirs", cron="@daily")
    with pytest.raises(duly.ScheduleNotFound):
        schedules.broker.do(admitted, deadline=None)


def test_what_is_done_and_denied_is_in_the_audit_with_who_it_was(schedules: Place) -> None:
    with schedules.http(schedules.key("anna", *on("mine", "configure", "browse"))) as http:
        assert http.post("/v1/schedules/of%20mine/pause").status_code == 200
        assert http.post("/v1/schedules/of%20mine/resume").status_code == 403
    (done,) = [entry for entry in schedules.store.audit() if entry.action == "update_schedule"]
    assert (done.principal, done.topic, done.facts["schedule"]) == ("anna", "mine", "of mine")

    def denied() -> list[duly.AuditEntry]:
        return [entry for entry in schedules.store.audit() if entry.outcome == "denied"]

    assert [(entry.principal, entry.topic) for entry in eventually(denied)] == [("anna", "mine")]


def test_previews_are_anybodys_who_is_let_in(place: Place) -> None:
    token = place.key("nobody")
    with place.http(token) as http:
        assert http.post("/v1/schedules:preview", json={"cron": "@daily"}).status_code == 200
    with httpx.Client(base_url=place.http_url) as http:
        assert http.post("/v1/schedules:preview", json={"cron": "@daily"}).status_code == 401
