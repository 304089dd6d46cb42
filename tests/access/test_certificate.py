"""A client certificate that was verified is as good as a key, for the one principal that names it."""

from __future__ import annotations

import pytest

import duly
from duly.broker.authority import Shown
from duly.broker.entry import Entry
from duly.http.endpoint import PEER, _shown

from .conftest import Place


def test_a_certificate_leads_to_the_principal_that_names_it(place: Place) -> None:
    place.store.create_topic("jobs", kind="queue")
    place.store.put_principal("shop", [duly.Grant("publish")], certificates=["spiffe://shop"])
    entry = Entry(place.broker, Shown(names=("other.example", "spiffe://shop")))
    identity = entry.verdict().identity
    assert identity is not None
    assert (identity.tenant, identity.principal, identity.key) == ("default", "shop", "")
    entry.client("").publish("jobs", b"one")
    with pytest.raises(duly.Denied):
        entry.client("").claim("jobs")


def test_a_certificate_that_nobody_names_opens_nothing(place: Place) -> None:
    place.store.put_principal("shop", [duly.Grant("publish")], certificates=["spiffe://shop"])
    place.store.put_principal("depot", [duly.Grant("publish")], certificates=["spiffe://depot"])
    for names in (("stranger",), ("spiffe://shop", "spiffe://depot"), ("spiffe://sho",), ()):
        with pytest.raises(duly.Unauthenticated):
            Entry(place.broker, Shown(names=names)).verdict()


def test_a_deleted_tenants_certificates_end_at_once(place: Place, hurried: None) -> None:
    place.other.put_principal("shop", [duly.Grant("*")], certificates=["spiffe://shop"])
    # Nothing is erased meanwhile.
    place.store.pause_store()
    place.store.delete_tenant("other")
    with pytest.raises(duly.Unauthenticated):
        Entry(place.broker, Shown(names=("spiffe://shop",))).verdict()


def test_a_tenant_does_not_take_certificates_for_its_own(place: Place) -> None:
    with place.connect(place.key("boss", duly.Grant("keys"))) as boss:
        with pytest.raises(duly.Denied):
            boss.put_principal("shop", [duly.Grant("publish")], certificates=["spiffe://depot"])
        boss.put_principal("shop", [duly.Grant("publish")])


def test_names_come_from_the_connection_and_never_from_a_header() -> None:
    verified = {"headers": [], "extensions": {PEER: {"names": ("spiffe://shop",)}}}
    assert _shown(verified, {}) == Shown(names=("spiffe://shop",))
    assert _shown({"headers": [], "extensions": {PEER: {"names": ()}}}, {}) == Shown()
    assert _shown({"headers": []}, {b"duly.peer": b"spiffe://shop"}) == Shown()
