"""duly push: pushes are made, shown, changed, stopped and removed; secrets are shown once, headers never."""

from __future__ import annotations

from pathlib import Path

import pytest

import duly

from .test_cli import folder, ok, refused

__all__ = ["folder"]


@pytest.fixture(autouse=True)
def topics(folder: Path) -> None:
    ok("topics", "create", "orders", "--kind", "log")
    ok("groups", "create", "orders", "billing")
    ok("topics", "create", "later", "--kind", "queue")


def create(*more: str) -> tuple[str, ...]:
    return ("push", "create", "hook", "orders", "--group", "billing", "--to-http", "https://example.com/h", *more)


def test_a_push_from_its_beginning_to_its_end() -> None:
    ran = ok(*create("--header", "Authorization=Bearer sesame", "--request-timeout", "3s", "--batch", "10"))
    secret = ran.out.splitlines()[-1]
    assert duly.push.read_secret(secret)
    assert "shown this once" in ran.err
    (line,) = ok("push", "list", "--json").lines
    assert (line["push"], line["topic"], line["group"], line["state"]) == ("hook", "orders", "billing", "active")
    assert line["to_http"]["headers"] == {"Authorization": "…"}
    assert (line["to_http"]["timeout"], line["to_http"]["batch"], line["holder"]) == (3.0, 10, None)
    shown = ok("push", "show", "hook").out
    assert "no broker at the moment" in shown
    assert "https://example.com/h" in shown
    assert "sesame" not in shown + ok("push", "show", "hook", "--json").out
    after = ok("push", "update", "hook", "--concurrency", "4", "--json").document
    assert (after["to_http"]["concurrency"], after["to_http"]["timeout"], after["version"]) == (4, 3.0, 2)
    assert "is paused" in ok("push", "pause", "hook").out
    assert ok("push", "list", "--json").lines[0]["state"] == "paused"
    assert "sends again" in ok("push", "resume", "hook").out
    rotated = ok("push", "rotate", "hook", "--overlap", "1h", "--json").document
    assert rotated["secret"] != secret
    assert rotated["older_secrets_until"] is not None
    assert "older secrets sign until" in ok("push", "show", "hook").out
    assert "is gone" in ok("push", "delete", "hook").out
    assert "No pushes yet" in ok("push", "list").err


def test_a_push_to_a_topic() -> None:
    line = ("push", "create", "onward", "orders", "--group", "billing", "--to-topic", "later", "--due", "now + 30s")
    made = ok(*line, "--paused", "--json").document
    assert (made["to_topic"]["topic"], made["to_topic"]["due"], made["secret"]) == ("later", "now + 30s", None)
    assert made["state"] == "paused"
    assert "now + 30s" in ok("push", "show", "onward").out
    ok("topics", "delete", "later")
    assert ok("push", "list", "--json").lines[0]["state"] == "paused"
    assert "no topic 'later'" in refused("push", "resume", "onward").err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("push create hook orders --group billing", "--to-http and --to-topic"),
        ("push create hook orders --group billing --to-http https://a.b/ --to-topic later", "--to-http and --to-topic"),
        ("push create hook orders --group billing --to-http https://a.b/ --due now", "an endpoint"),
        ("push create hook orders --group billing --to-topic later --batch 5", "a topic"),
        ("push create hook orders --group billing --to-http ftp://a.b/", "https://"),
        ("push create hook orders --group billing --to-http https://a.b/ --method GET", "method"),
        ("push create hook orders --group billing --to-http https://a.b/ --header novalue", "name=value"),
        ("push create hook orders --group billing --to-http https://a.b/ --secret whsec_short", "secret"),
        ("push create hook orders --to-http https://a.b/", "group"),
        ("push create hook later --group billing --to-http https://a.b/", "leave group= out"),
        ("push create hook orders --group billing --to-topic orders", "cannot go to"),
        ("push show hook", "no push 'hook'"),
        ("push update hook", "Nothing to change"),
        ("push test hook", "no push 'hook'"),
    ],
)
def test_what_is_wrong_is_said(line: str, told: str) -> None:
    assert told in refused(*line.split()).err
    assert ok("push", "list", "--json").lines == []


def test_who_has_the_store_open_sends_nothing() -> None:
    ok(*create())
    assert "connect to one" in refused("push", "test", "hook").err
