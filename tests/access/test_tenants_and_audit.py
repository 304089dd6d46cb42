"""Tenants and the audit through a broker that is closed: who may see and do what, and that denials are noted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyarrow import flight

import duly
from duly.wire.talk import SESSION
from tests.store.patience import eventually

from .conftest import Place, options


@pytest.fixture
def operator(place: Place) -> str:
    grants = [duly.Grant("tenants"), duly.Grant("store"), duly.Grant("audit"), duly.Grant("configure", tenants="*")]
    return place.key("op", *grants, operator=True)


def test_the_operators_audit_is_no_tenants(place: Place, operator: str) -> None:
    token = place.key("auditor", duly.Grant("audit"))
    with place.connect(token) as q:
        assert [entry.action for entry in q.audit()] == ["put_principal", "create_key"]
        with pytest.raises(duly.Denied):
            list(q.audit(operators=True))
    with place.http(token) as http:
        assert http.get("/v1/audit").status_code == 200
        assert http.get("/v1/audit", params={"operators": "true"}).status_code == 403
        assert http.get("/v1/audit", headers={"Duly-Tenant": "other"}).status_code == 403
    with place.connect(operator) as q:
        told = [(entry.action, entry.outcome) for entry in q.audit(operators=True)]
        assert ("put_principal", "done") in told


def test_who_sees_a_tenants_audit_does_not_see_the_operators_by_it(place: Place) -> None:
    grants = [duly.Grant("store"), duly.Grant("audit", tenants="default")]
    token = place.key("op", *grants, operator=True)
    for tenant in (None, "default"):
        with place.connect(token, tenant=tenant) as q, pytest.raises(duly.Denied):
            list(q.audit(operators=True))
    with place.connect(token, tenant="default") as q:
        list(q.audit())


def test_what_is_done_through_a_broker_says_whose_key_it_was_and_from_where(place: Place) -> None:
    token = place.key("shop", duly.Grant("configure"), duly.Grant("audit"))
    with place.connect(token) as q:
        q.create_topic("orders", kind="log")
        entry = list(q.audit())[-1]
    assert (entry.action, entry.tenant, entry.principal, entry.topic) == ("create_topic", "default", "shop", "orders")
    assert entry.key == token.split("_")[1]
    assert "127.0.0.1" in entry.address


def test_every_denial_is_noted_on_both_surfaces(place: Place, operator: str) -> None:
    place.store.create_topic("orders", kind="log")
    token = place.key("shop", duly.Grant("publish"))
    with place.connect(token) as q, pytest.raises(duly.Denied):
        q.purge("orders")
    with place.http(token) as http:
        assert http.delete("/v1/topics/orders").status_code == 403
    with place.http("duly_nonsense") as http:
        assert http.get("/v1/topics").status_code == 401
    with place.http(token, **{"Duly-Tenant": "other"}) as http:
        assert http.get("/v1/topics").status_code == 403

    def noted() -> bool:
        found = [(entry.action, entry.outcome) for entry in place.store.audit() if entry.outcome != "done"]
        return {("purge", "denied"), ("configure", "denied"), ("see", "denied")} <= set(found)

    eventually(noted)
    eventually(lambda: any(one.outcome == "unauthenticated" for one in place.store.audit(operators=True)))
    assert not [entry for entry in place.other.audit() if entry.outcome != "done"]
    assert {event.facts["principal"] for event in place.store.events() if event.kind == "denied"} == {"shop"}
    assert [one.level for one in place.store.examine() if "udit" in one.what] == ["ok"]


def test_what_the_store_itself_denies_is_noted_too(place: Place) -> None:
    place.store.create_topic("jobs", kind="queue")
    place.store.create_topic("orders", kind="log")
    actions = ("keys", "publish", "claim", "read")
    token = place.key("shop", *(duly.Grant(action) for action in actions))
    noted: list[tuple[str, str]] = []

    def all_noted(*wanted: tuple[str, str]) -> bool:
        noted[:] = [(one.action, one.outcome) for one in place.store.audit() if one.outcome != "done"]
        return sorted(noted) == sorted(wanted)

    with place.http(token) as http, place.connect(token) as q:
        taken = {"grants": [], "certificates": ["spiffe://anothers"]}
        assert http.put("/v1/principals/shop2", json=taken).json()["code"] == "denied"
        eventually(lambda: all_noted(("keys", "denied")))
        place.store.suspend_tenant("default")
        body = {"messages": [{"payload_text": "x"}]}
        assert http.post("/v1/topics/jobs/messages", json=body).json()["code"] == "tenant_suspended"
        for wait in (0, 1):
            claimed = http.post("/v1/topics/jobs/claim", json={"consumer": "w", "wait_ms": wait})
            assert claimed.json()["code"] == "tenant_suspended"
        for call in (
            lambda: q.publish("jobs", b"x"),
            lambda: q.claim("jobs"),
            lambda: next(iter(q.consume("jobs"))),
            lambda: q.read("orders", offset=0),
            lambda: next(iter(q.read_arrow("orders"))),
            lambda: q.await_messages("orders", {0: 0}, wait=1),
        ):
            with pytest.raises(duly.TenantSuspended):
                call()
    suspended = ("publish", "claim", "claim", "publish", "claim", "claim", "read", "read", "read")
    eventually(lambda: all_noted(("keys", "denied"), *((one, "tenant_suspended") for one in suspended)))


VERBS: dict[str, Callable[[duly.Client], object]] = {
    "create": lambda q: q.create_tenant("acme"),
    "list": lambda q: q.list_tenants(),
    "describe": lambda q: q.describe_tenant("default"),
    "update": lambda q: q.update_tenant("default", topics=5),
    "suspend": lambda q: q.suspend_tenant("default"),
    "resume": lambda q: q.resume_tenant("default"),
    "delete": lambda q: q.delete_tenant("default", force=True),
}


@pytest.mark.parametrize("verb", VERBS)
def test_tenants_are_an_operators_affair(place: Place, operator: str, verb: str) -> None:
    place.store.create_topic("orders", kind="log")
    with place.connect(place.key("boss", duly.Grant("*"))) as q, pytest.raises(duly.Denied):
        VERBS[verb](q)
    assert place.store.describe_tenant("default").state == "active"
    with place.connect(operator) as q:
        VERBS[verb](q)


def test_with_keys_in_use_no_tenant_comes_into_being_by_itself(place: Place, operator: str) -> None:
    with place.connect(operator, tenant="typo") as q:
        with pytest.raises(duly.TenantNotFound):
            q.create_topic("orders", kind="log")
        q.create_tenant("typo")
        q.create_topic("orders", kind="log")


def test_a_deleted_tenants_keys_end_at_once_and_the_broker_stays_closed(place: Place, hurried: None) -> None:
    token = place.key("shop", duly.Grant("*"), tenant="other")
    with place.http(token) as http:
        assert http.get("/v1/topics").status_code == 200
        place.store.delete_tenant("other", force=True)
        assert http.get("/v1/topics").status_code == 401
    eventually(lambda: _advanced(place) and "other" not in place.store.list_tenants())
    with place.http() as http:
        assert http.get("/v1/topics").status_code == 401


def _advanced(place: Place) -> bool:
    place.clock.advance(1.5)
    return True


def test_a_session_on_which_nothing_is_asked_counts_for_whose_key_it_shows(place: Place) -> None:
    place.store.create_topic("jobs", kind="queue")
    place.store.update_tenant("default", connections=2)
    place.broker._meet([])
    token = place.key("shop", duly.Grant("publish"))

    def idle(client: flight.FlightClient) -> tuple[Any, Any]:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(SESSION), options(token))
        reader.read_chunk()
        return writer, reader

    with place.raw() as client:
        first, second = idle(client), idle(client)
        with pytest.raises(flight.FlightError, match="as many calls open"):
            idle(client)
        with place.connect(token) as q, pytest.raises(duly.QuotaExceeded):
            q.publish("jobs", b"x")
        for _, reader in (first, second):
            reader.cancel()
        eventually(lambda: place.broker.meters._meters["default"].connections == 0)
        with place.connect(token) as q:
            q.publish("jobs", b"x")


def test_a_suspended_tenants_key_still_settles(place: Place) -> None:
    place.store.create_topic("jobs", kind="queue")
    place.store.publish("jobs", b"x")
    token = place.key("shop", duly.Grant("*"))
    with place.connect(token) as q:
        batch = q.claim("jobs")
        place.store.suspend_tenant("default")
        with pytest.raises(duly.TenantSuspended):
            q.claim("jobs")
        assert q.ack(batch).done == 1


def test_a_suspended_tenant_makes_no_keys_and_can_end_them(place: Place, operator: str) -> None:
    token = place.key("shop", duly.Grant("*"))
    place.key("helper", duly.Grant("claim"))
    (helper,) = place.store.list_keys("helper")
    place.store.suspend_tenant("default")
    with place.connect(token) as q:
        makes = (
            lambda: q.put_principal("more", [duly.Grant("*")]),
            lambda: q.create_key("helper"),
            lambda: q.rotate_key(helper.id),
        )
        for make in makes:
            with pytest.raises(duly.TenantSuspended):
                make()
        q.revoke_key(helper.id)
    # Whoever runs the store may.
    place.store.create_key("helper")


def test_an_operator_makes_principals_only_for_tenants_that_are_there(place: Place) -> None:
    token = place.key("boss", duly.Grant("keys", tenants="*"), duly.Grant("tenants"), operator=True)
    with place.connect(token, tenant="acme") as boss:
        with pytest.raises(duly.TenantNotFound):
            boss.put_principal("shop", [duly.Grant("publish")])
        boss.create_tenant("acme")
        boss.put_principal("shop", [duly.Grant("publish")])
        assert boss.create_key("shop").secret.startswith("duly_")
        boss.delete_tenant("acme")
        with pytest.raises((duly.TenantNotFound, duly.PrincipalNotFound)):
            boss.create_key("shop")


def test_who_has_the_store_open_makes_tenants_with_their_principals(path: str) -> None:
    with duly.connect(path, tenant="fresh") as q:
        q.put_principal("shop", [duly.Grant("publish")])
        assert q.describe_tenant("fresh").name == "fresh"
