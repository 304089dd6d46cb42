"""Grants decide alone: deny by default, deny wins, nothing is said of what one may not see."""

from __future__ import annotations

import itertools

import pytest

import duly
from duly.grants import (
    ACTIONS,
    STORE_ACTIONS,
    TENANT_ACTIONS,
    TOPIC_ACTIONS,
    Grant,
    Identity,
    authorise,
    check_grants,
    check_principal,
    is_own_only,
    is_visible,
    matches,
    publisher,
)


def who(*grants: Grant, tenant: str = "acme") -> Identity:
    return Identity(tenant, "worker", grants)


def may(identity: Identity, action: str, topic: str | None = None, *, tenant: str | None = None) -> bool:
    try:
        authorise(identity, action, topic, tenant=tenant)
    except (duly.Denied, duly.TopicNotFound):
        return False
    return True


def test_nobody_may_do_anything_without_a_grant() -> None:
    for tenant, action, topic in itertools.product(("acme", ""), ACTIONS, ("orders", None)):
        assert not may(who(tenant=tenant), action, topic)


def test_a_grant_allows_its_own_action_and_no_other() -> None:
    for granted, asked in itertools.product(TOPIC_ACTIONS, ACTIONS):
        topic = "orders" if asked in TOPIC_ACTIONS else None
        assert may(who(Grant(granted)), asked, topic) == (granted == asked)


def test_a_grant_is_for_the_topics_that_fit_its_pattern() -> None:
    identity = who(Grant("publish", "orders*"))
    assert may(identity, "publish", "orders")
    assert may(identity, "publish", "orders-eu")
    assert not may(identity, "publish", "order")


@pytest.mark.parametrize("order", [1, -1])
def test_a_grant_that_denies_wins_whatever_the_order(order: int) -> None:
    identity = who(*(Grant("read"), Grant("*"), Grant("read", "secret*", "deny"))[::order])
    assert may(identity, "read", "orders")
    assert not may(identity, "read", "secret-orders")
    assert may(identity, "publish", "secret-orders")


def test_all_topics_at_once_takes_a_grant_for_all_and_no_denial_of_any() -> None:
    assert may(who(Grant("settle")), "settle")
    assert not may(who(Grant("settle", "orders*")), "settle")
    assert not may(who(Grant("settle"), Grant("settle", "secret", "deny")), "settle")
    assert not may(who(Grant("cancel", own=True)), "cancel")


def test_what_is_denied_on_any_topic_is_denied_on_the_events_which_tell_of_all() -> None:
    assert may(who(Grant("read")), "read", "$events")
    assert may(who(Grant("read", "$events"), Grant("publish", "orders", "deny")), "read", "$events")
    assert not may(who(Grant("read"), Grant("read", "secret", "deny")), "read", "$events")
    assert not is_visible(who(Grant("*"), Grant("*", "secret", "deny")), "$events")


def test_a_denial_on_some_topics_does_not_take_what_has_nothing_to_do_with_topics() -> None:
    assert may(who(Grant("*"), Grant("*", "secret", "deny")), "keys")
    assert not may(who(Grant("*"), Grant("*", effect="deny")), "keys")
    assert not may(who(Grant("*", "orders")), "keys")


def test_another_tenant_is_denied_in_the_same_words_as_everything_else() -> None:
    identity = who(*(Grant(action) for action in (*TOPIC_ACTIONS, *TENANT_ACTIONS)))
    with pytest.raises(duly.Denied) as other:
        authorise(identity, "publish", "orders", tenant="umbrella")
    with pytest.raises(duly.Denied) as mine:
        authorise(identity, "tenants")
    assert str(other.value) == str(mine.value)


def test_a_topic_that_one_may_not_even_see_is_not_there() -> None:
    identity = who(Grant("publish", "orders"), Grant("read", "hidden", "deny"))
    with pytest.raises(duly.TopicNotFound, match="There is no topic 'hidden'"):
        authorise(identity, "read", "hidden")
    with pytest.raises(duly.Denied):
        authorise(identity, "read", "orders")
    assert is_visible(identity, "orders")
    assert not is_visible(identity, "hidden")


def test_no_principal_of_a_tenant_is_an_operator_whatever_its_grants() -> None:
    for action in STORE_ACTIONS:
        assert not may(who(Grant("*"), Grant(action)), action)
        assert not may(who(Grant("*"), Grant(action)), action, tenant="")


def test_an_operator_has_the_store_and_no_tenants_topics_unless_a_grant_says_so() -> None:
    operator = who(Grant("*"), tenant="")
    assert all(may(operator, action) for action in (*STORE_ACTIONS, *TENANT_ACTIONS))
    for tenant in (None, "", "acme"):
        assert not any(may(operator, action, "orders", tenant=tenant) for action in TOPIC_ACTIONS)
    assert not may(operator, "keys", tenant="acme")
    reader = who(Grant("read", "orders*", tenants="ac*"), tenant="")
    assert may(reader, "read", "orders", tenant="acme")
    assert not may(reader, "read", "orders", tenant="umbrella")
    assert not may(reader, "read", "other", tenant="acme")
    assert not may(reader, "store")


def test_an_operator_for_tenants_keys_cannot_make_operators() -> None:
    operator = who(Grant("keys", tenants="*"), tenant="")
    assert may(operator, "keys", tenant="acme")
    assert not may(operator, "keys")
    assert not may(operator, "keys", tenant="")


def test_own_is_lifted_by_a_grant_for_all() -> None:
    own = Grant("cancel", own=True)
    assert is_own_only(who(own), "cancel", "orders")
    assert not is_own_only(who(own, Grant("cancel", "orders")), "cancel", "orders")
    assert is_own_only(who(own, Grant("cancel", "orders")), "cancel", "other")


def test_an_operator_is_not_the_tenants_principal_of_the_same_name() -> None:
    assert publisher(who()) != publisher(who(tenant=""))
    with pytest.raises(duly.InvalidArgument):
        check_principal(publisher(who(tenant="")))


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "fly"},
        {"action": "publish", "effect": "perhaps"},
        {"action": "publish", "own": True},
        {"action": "cancel", "own": True, "effect": "deny"},
        {"action": "keys", "topics": "orders"},
        {"action": "store", "tenants": "acme"},
        {"action": "read", "topics": ""},
    ],
)
def test_a_grant_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(duly.InvalidArgument):
        Grant(**wrong)  # type: ignore[arg-type]


def test_a_tenants_principal_gets_no_grant_beyond_its_tenant() -> None:
    for grant in (Grant("store"), Grant("tenants"), Grant("read", tenants="*")):
        with pytest.raises(duly.InvalidArgument):
            check_grants([grant], "acme")
    with pytest.raises(duly.InvalidArgument):
        check_grants([Grant("read")], "")


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*", "", True),
        ("*", "anything", True),
        ("a*", "a", True),
        ("a*b", "ab", True),
        ("a*b", "axxb", True),
        ("a*a", "a", False),
        ("a*b*c", "a.b.b.c", True),
        ("a*b*c", "acb", False),
        ("a.c", "abc", False),
        ("[a]*", "a", False),
        ("a?", "ab", False),
        ("*b*", "abc", True),
        ("a*\n", "ab\n", True),
        ("", "a", False),
    ],
)
def test_patterns_know_the_star_and_nothing_else(pattern: str, name: str, fits: bool) -> None:
    assert matches(pattern, name) == fits


def test_a_pattern_of_many_stars_costs_no_more_than_the_name_is_long() -> None:
    assert not matches("a*" * 120 + "b", "a" * 250)
