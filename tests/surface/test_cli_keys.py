"""The commands of keys and principals through a broker that wants to see one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .brokers import served
from .test_cli import folder, ok, refused, run

__all__ = ["folder"]

Ask = Callable[..., Any]


@pytest.fixture
def ask(folder: Path) -> Iterator[Ask]:
    """Runs a command through a broker, with the key of one who may manage keys; returns its document."""
    ok("keys", "create", "--operator")
    boss = ok("keys", "create", "boss", "--grant", "keys", "--json").document["secret"]
    with served(folder / "app.duly") as url:

        def ask(*args: str) -> Any:
            ran = run(*args, "--url", url, "--json", env={"DULY_TOKEN": boss})
            assert ran.code == 0, ran
            lines = [json.loads(line) for line in ran.out.splitlines()]
            return lines if "list" in args else lines[0]

        ask.url = url  # type: ignore[attr-defined]
        yield ask


def test_keys_and_principals_are_managed_through_a_broker(ask: Ask) -> None:
    ask("principals", "put", "shop", "--grant", "publish:orders*")
    made = ask("keys", "create", "shop", "--ttl", "90d")
    assert [key["id"] for key in ask("keys", "list", "--principal", "shop")] == [made["id"]]
    again = ask("keys", "rotate", made["id"], "--overlap", "0s")
    ask("keys", "revoke", again["id"])
    assert {one["principal"] for one in ask("principals", "list")} == {"boss", "shop"}
    ask("principals", "delete", "shop")
    assert [one["principal"] for one in ask("principals", "list")] == ["boss"]


def test_without_a_key_it_says_what_to_do(ask: Ask) -> None:
    ran = refused("keys", "list", "--url", ask.url)  # type: ignore[attr-defined]
    assert ran.code == 1
    assert "key" in ran.err


def test_the_audit_says_in_a_narrow_terminal_who_did_what_and_what_became_of_it(ask: Ask) -> None:
    refused("keys", "list", "--url", ask.url)  # type: ignore[attr-defined]
    shown = run("audit", env={"COLUMNS": "80"}).out
    made = next(line for line in shown.splitlines() if "create_key" in line)
    assert "embedded:" in made
    assert "done" in made
    assert all(len(line) <= 80 for line in shown.splitlines())
