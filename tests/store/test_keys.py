"""Principals and keys, on every store: told once, two live, and gone when they are gone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import duly
from duly.keys import KEY_PATTERN, id_in, make_key
from duly.master import create_master

from .conftest import Home

pytestmark = pytest.mark.embedded


@pytest.fixture(autouse=True)
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL has no place for one of its own."""
    create_master(str(tmp_path / "keys"))
    monkeypatch.setenv("DULY_MASTER", f"file:{tmp_path / 'keys'}")


@pytest.fixture
def shop(q: duly.Client) -> str:
    q.put_principal("shop", [duly.Grant("publish", "orders*")])
    return "shop"


def test_a_key_is_told_once_and_looks_like_one(q: duly.Client, shop: str) -> None:
    made = q.create_key(shop, note="host 7", ttl=60)
    assert re.fullmatch(KEY_PATTERN, made.secret)
    assert id_in(made.secret) == made.id
    assert made.secret not in repr(made)
    (listed,) = q.list_keys()
    assert (listed.id, listed.principal, listed.note, listed.used_at_ms) == (made.id, shop, "host 7", None)
    assert listed.expires_at_ms == listed.created_at_ms + 60_000
    assert made.secret not in repr(listed)


def test_the_store_keeps_no_key(q: duly.Client, shop: str, home: Home) -> None:
    secret = q.create_key(shop).secret
    rows = repr(home.ask("SELECT * FROM duly_key")) + repr(home.ask("SELECT * FROM duly_principal"))
    assert secret not in rows
    assert secret[18:61] not in rows


def test_two_keys_of_a_principal_live_and_a_third_does_not(q: duly.Client, shop: str, clock: duly.ManualClock) -> None:
    first, _ = q.create_key(shop, ttl=60), q.create_key(shop)
    with pytest.raises(duly.Conflict, match="Revoke one first"):
        q.create_key(shop)
    q.revoke_key(first.id)
    third = q.create_key(shop, ttl=60)
    clock.advance(61)
    q.create_key(shop)
    assert {key.id for key in q.list_keys(shop) if key.revoked_at_ms} == {first.id}
    assert third.id in {key.id for key in q.list_keys(shop)}


def test_a_key_is_rotated_and_the_old_one_lives_on_for_a_while(
    q: duly.Client, shop: str, clock: duly.ManualClock
) -> None:
    old = q.create_key(shop, note="host 7", ttl=3600)
    clock.advance(1800)
    new = q.rotate_key(old.id, overlap=60)
    now_ms = clock.now_ms()
    by_id = {key.id: key for key in q.list_keys()}
    assert (by_id[new.id].note, by_id[new.id].expires_at_ms) == ("host 7", now_ms + 3_600_000)
    assert by_id[old.id].expires_at_ms == now_ms + 60_000
    clock.advance(61)
    with pytest.raises(duly.Conflict):
        q.rotate_key(old.id)


def test_a_key_ends_once(q: duly.Client, shop: str, clock: duly.ManualClock) -> None:
    made = q.create_key(shop)
    q.revoke_key(made.id)
    (before,) = q.list_keys()
    clock.advance(60)
    q.revoke_key(made.id)
    assert q.list_keys() == [before]


def test_what_is_not_there_is_not_there(q: duly.Client, shop: str) -> None:
    for call in (lambda: q.revoke_key("a" * 12), lambda: q.rotate_key("a" * 12)):
        with pytest.raises(duly.KeyNotFound):
            call()
    for call in (lambda: q.create_key("nobody"), lambda: q.delete_principal("nobody")):
        with pytest.raises(duly.PrincipalNotFound):
            call()


def test_a_principal_is_changed_by_whoever_has_seen_it(q: duly.Client, shop: str) -> None:
    with pytest.raises(duly.StaleVersion):
        q.put_principal(shop, [], version=0)
    changed = q.put_principal(shop, [duly.Grant("read", effect="deny")], version=1)
    assert (changed.version, changed.grants) == (2, (duly.Grant("read", effect="deny"),))
    assert q.list_principals() == [changed]


def test_a_principal_goes_with_its_keys(q: duly.Client, shop: str) -> None:
    q.create_key(shop)
    q.delete_principal(shop)
    assert not q.list_keys()
    assert not q.list_principals()
    q.put_principal(shop, [])
    assert q.list_keys() == []


def test_a_tenants_keys_are_its_own(home: Home, shop: str, q: duly.Client) -> None:
    made = q.create_key(shop)
    other = home.connect(tenant="other")
    assert not other.list_keys()
    assert not other.list_principals()
    with pytest.raises(duly.KeyNotFound):
        other.revoke_key(made.id)
    q.put_principal("op", [duly.Grant("store")], operator=True)
    assert [one.name for one in q.list_principals()] == [shop]
    assert [one.name for one in other.list_principals(operator=True)] == ["op"]


def test_lists_are_paged(q: duly.Client) -> None:
    names = [f"p{number}" for number in range(5)]
    for name in names:
        q.put_principal(name, [])
        q.create_key(name)
    assert [one.name for one in q.list_principals(limit=2)] == names[:2]
    assert [one.name for one in q.list_principals(after="p1", limit=2)] == names[2:4]
    keys = q.list_keys()
    assert [key.id for key in q.list_keys(after=keys[2].id)] == [key.id for key in keys[3:]]


def test_one_certificate_leads_to_one_principal(q: duly.Client, shop: str) -> None:
    q.put_principal("a", [], certificates=["a.example", "spiffe://a"])
    with pytest.raises(duly.Conflict):
        q.put_principal("b", [], certificates=["spiffe://a"])
    q.put_principal("a", [], certificates=["a.example"])
    q.put_principal("b", [], certificates=["spiffe://a"])


def test_keys_outlive_the_client(home: Home, reopen: Callable[[], duly.Client]) -> None:
    q = home.connect()
    q.put_principal("shop", [])
    made = q.create_key("shop")
    assert [key.id for key in reopen().list_keys()] == [made.id]


def test_what_was_mistyped_is_no_key() -> None:
    for _ in range(20):
        text, key_id = make_key()
        assert id_in(text) == key_id
        for at in range(5, len(text)):
            other = "a" if text[at] != "a" else "b"
            assert id_in(text[:at] + other + text[at + 1 :]) is None
        assert id_in(text[:-1]) is id_in(text + "0") is id_in("") is None


@pytest.mark.parametrize("name", ["", ":op", "a b", "é", "x" * 129, "-a", 7])
def test_a_principals_name_is_plain(q: duly.Client, name: str) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.put_principal(name, [])


@pytest.mark.parametrize("grants", ["publish", [("publish",)], [duly.Grant("store")], None])
def test_grants_are_grants(q: duly.Client, grants: list[duly.Grant]) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.put_principal("shop", grants)
