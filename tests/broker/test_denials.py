"""Denials on their way into the audit: nobody can fill the store with them, nor hide another's among their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import duly
from duly.broker.denials import Denials
from duly.client.embedded import Embedded
from duly.clock import SystemClock
from duly.grants import By
from duly.keys import make_key
from duly.store.sqlite.store import SqliteStore

STRANGER = By(address="127.0.0.1")
SHOP = By(principal="shop", key="k1", tenant="acme")


@pytest.fixture
def path(tmp_path: Path) -> str:
    with duly.connect(str(tmp_path / "app.duly")) as q:
        q.create_tenant("acme")
    return str(tmp_path / "app.duly")


@pytest.fixture
def denials(path: str) -> Iterator[Denials]:
    home = Embedded(lambda: SqliteStore(path, clock=SystemClock()))
    opened = Denials(home)
    yield opened
    opened.close()
    home.close()


def noted(path: str, tenant: str, *, operators: bool = False) -> list[tuple[str, object]]:
    with duly.connect(path, tenant=tenant) as q:
        entries = [entry for entry in q.audit(operators=operators) if entry.outcome != "done"]
    return [(entry.action, entry.facts.get("count")) for entry in entries]


def test_of_a_flood_some_are_noted_and_the_rest_is_counted(path: str, denials: Denials) -> None:
    for _ in range(5000):
        denials.note(STRANGER, "publish", "acme", "orders", duly.Denied())
    denials.close()
    entries = noted(path, "default", operators=True)
    assert 200 <= sum(action == "publish" for action, _ in entries) <= 210
    told = [count for action, count in entries if action == "more"]
    assert len(told) == 1
    assert sum(action == "publish" for action, _ in entries) + int(str(told[0])) == 5000


def test_a_flood_of_strangers_hides_nothing_of_a_principal(path: str, denials: Denials) -> None:
    for number in range(5000):
        denials.note(STRANGER, "publish", "acme", "orders", duly.Denied())
        if number % 1000 == 999:
            denials.note(SHOP, "purge", "acme", "orders", duly.Denied())
    denials.close()
    assert noted(path, "acme") == [("purge", None)] * 5


def test_a_key_that_was_given_for_a_name_is_not_kept(path: str, denials: Denials) -> None:
    text, _ = make_key()
    denials.note(SHOP, "publish", text, f"{text}/orders", duly.Denied())
    denials.close()
    with duly.connect(path, tenant="acme") as q:
        assert [entry.topic for entry in q.audit() if entry.outcome == "denied"] == ["duly_…/orders"]
        assert text not in repr([*q.audit(), *q.events()])
