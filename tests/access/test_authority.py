"""The one table is complete, and what is not in it is refused to everybody."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import duly
from duly.broker import authority
from duly.broker.authority import ANYONE, RIGHTS, SEE, Shown
from duly.broker.entry import Entry
from duly.engine.operations import READS, WRITES
from duly.engine.principals import know_key
from duly.engine.retain import Chores
from duly.engine.stretch import Stretch
from duly.grants import ACTIONS
from duly.http.routes import ENDPOINTS
from tests.store.patience import eventually

from .conftest import ALL, OPERATOR, Place


def test_every_operation_is_in_the_table_and_nothing_else() -> None:
    assert {kind for kind in RIGHTS if isinstance(kind, type)} == {*WRITES, *READS, Stretch}


def test_every_call_of_the_store_as_a_whole_is_in_the_table_and_offered() -> None:
    calls = {kind for kind in RIGHTS if isinstance(kind, str)}
    offered = {one.call for one in ENDPOINTS if one.call is not None}
    assert calls == offered | {"hello"}


def test_every_right_is_an_action() -> None:
    assert {right.action for right in RIGHTS.values()} <= {*ACTIONS, SEE, ANYONE}
    # Only what says nothing of a store takes no grant.
    assert {kind for kind, right in RIGHTS.items() if right.action == ANYONE} == {"hello", "clock", "limits", "preview"}


def test_every_command_names_its_tenant() -> None:
    for kind in RIGHTS:
        if isinstance(kind, type) and kind is not Chores:
            assert "tenant" in {field.name for field in msgspec.structs.fields(kind)}


def test_an_operation_that_is_not_in_the_table_is_nobodys(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break it on purpose: what would be a hole is closed."""
    place.store.create_topic("topic", kind="queue")
    tokens = [place.key("wide", *ALL), place.key("op", *OPERATOR, operator=True)]
    for kind in (duly.engine.topics.DescribeTopic, duly.engine.publish.Publish):
        monkeypatch.delitem(RIGHTS, kind)
    for token in tokens:
        with place.connect(token, tenant="default") as q:
            for call in (lambda: q.describe_topic("topic"), lambda: q.publish("topic", b"one")):
                with pytest.raises(duly.Denied):
                    call()


def test_what_a_command_says_of_itself_is_overwritten(place: Place) -> None:
    token = place.key("shop", *ALL)
    entry = Entry(place.broker, Shown(token), "10.0.0.9")
    liar: Any = duly.grants.By("boss", "key", "here", "")
    command = duly.engine.principals.RevokeKey("", "aaaaaaaaaaaa", by=liar)
    by = entry.admit(command).by
    assert (by.principal, by.address, by.tenant) == ("shop", "10.0.0.9", "default")


def test_a_verdict_is_remembered_and_costs_a_look_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    token = place.key("shop", *ALL)
    asked: list[str] = []

    def counted(tx: Any, text: str) -> Any:
        asked.append(text)
        return know_key(tx, text)

    monkeypatch.setattr(authority, "know_key", counted)
    for _ in range(100):
        place.broker.authority.verdict(Shown(token))
    assert asked == [token]


def test_what_cannot_be_a_key_is_not_remembered(place: Place) -> None:
    """A stranger may send long ones, and many."""
    place.key("shop", *ALL)
    with place.http() as client:
        for number in range(20):
            shown = {"Authorization": f"Bearer {number}{'x' * 10_000}"}
            assert client.get("/v1/topics", headers=shown).status_code == 401
    assert all(len(shown.token) < 100 for shown in place.broker.authority._verdicts)


def test_a_store_without_keys_is_open_and_closes_with_the_first(place: Place, hurried: None) -> None:
    with place.http() as client:
        assert client.get("/v1/topics").status_code == 200
        # An open broker makes no keys: whoever gets there first would own it.
        refused = client.put("/v1/principals/me", json={"grants": []})
        assert (refused.status_code, refused.json()["code"]) == (403, "denied")
        place.key("shop", *ALL)
        assert client.get("/v1/topics").status_code == 401


def test_a_store_whose_last_key_has_ended_does_not_open(place: Place, hurried: None) -> None:
    place.store.put_principal("shop", ALL)
    made = place.store.create_key("shop", ttl=60)
    place.clock.advance(61)
    assert authority.Authority(place.broker._home).has_keys()
    with place.http() as client:
        assert client.get("/v1/topics").status_code == 401
    assert place.store.list_keys()[0].id == made.id


def test_nobody_opens_a_store_from_afar(place: Place) -> None:
    """Whoever may manage keys could delete all principals, themselves included: and everybody could do everything."""
    boss = place.key("boss", duly.Grant("keys"))
    with place.http(boss) as client:
        refused = client.delete("/v1/principals/boss")
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert "--store" in refused.json()["detail"]
        assert client.get("/v1/principals").status_code == 200
    place.store.delete_principal("boss")
    assert not place.store.list_keys()


def test_a_broker_may_be_closed_from_the_start(path: str) -> None:
    from duly.broker.broker import Broker
    from duly.client.connect import open_home

    broker = Broker(open_home(path), require_keys=True)
    with pytest.raises(duly.Unauthenticated):
        Entry(broker).verdict()
    broker.shut()


def test_what_is_refused_is_told_to_whoever_listens(place: Place) -> None:
    told: list[Any] = []
    place.broker.on_denied = lambda by, action, tenant, topic, error: told.append((by.principal, action, topic, error))
    with place.http(place.key("shop", duly.Grant("publish", "orders"))) as client:
        client.get("/v1/topics/orders/messages")
        client.get("/v1/topics/other")
    with place.http("duly_nothing") as client:
        client.get("/v1/topics")
    assert [(who, action, topic, type(error)) for who, action, topic, error in told] == [
        ("shop", "browse", "orders", duly.Denied),
        ("shop", "see", "other", duly.TopicNotFound),
        ("", "authenticate", None, duly.Unauthenticated),
    ]


def test_lists_show_what_one_may_see_and_pages_stay_full(place: Place) -> None:
    for number in range(6):
        place.store.create_topic(f"a{number}", kind="queue")
        place.store.create_topic(f"b{number}", kind="queue")
    with place.connect(place.key("b", duly.Grant("browse", "b*"))) as q:
        assert q.list_topics() == [f"b{number}" for number in range(6)]
        assert q.list_topics(limit=4) == ["b0", "b1", "b2", "b3"]
        assert [one.topic for one in q.health()] == [f"b{number}" for number in range(6)]
        assert [one.topic for one in q.forecasts()] == [f"b{number}" for number in range(6)]
        assert {event.topic for event in q.events()} == {f"b{number}" for number in range(6)}


def test_the_log_of_events_does_not_tell_of_a_topic_that_is_denied(place: Place) -> None:
    place.store.create_topic("payroll", kind="queue")
    eventually(lambda: _has_events(place))
    hidden = place.key("shop", duly.Grant("*"), duly.Grant("*", "payroll", effect="deny"))
    with place.connect(hidden) as q, place.connect(place.key("wide", duly.Grant("*"))) as wide:
        assert b"payroll" in wide.read("$events")[0].payload
        reads = (lambda: q.read("$events"), lambda: list(q.read_arrow("$events")), lambda: q.describe_topic("$events"))
        for read in reads:
            with pytest.raises(duly.TopicNotFound):
                read()
        assert list(q.events()) == []


def _has_events(place: Place) -> bool:
    """They are packed into the log a second later."""
    place.clock.advance(1.5)
    try:
        return bool(place.store.read("$events"))
    except duly.TopicNotFound:
        return False


def test_an_operator_names_the_tenant_and_others_do_not(place: Place) -> None:
    place.other.create_topic("theirs", kind="queue")
    operator = place.key("op", *OPERATOR, operator=True)
    with place.connect(operator, tenant="other") as q:
        assert q.list_topics() == ["theirs"]
    with place.connect(operator) as q:
        assert q.tenant == ""
        with pytest.raises(duly.Denied):
            q.list_topics()
    with place.connect(place.key("shop", *ALL, tenant="other")) as q:
        assert q.tenant == "other"
        assert q.list_topics() == ["theirs"]
        with pytest.raises(duly.Denied):
            q.put_principal("me", OPERATOR, operator=True)
