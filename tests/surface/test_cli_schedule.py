"""duly schedule: made, shown, changed, and when an expression ticks."""

from __future__ import annotations

from pathlib import Path

import pytest

import duly
from tests.store.patience import eventually

from .test_cli import folder, ok, refused

__all__ = ["folder"]


@pytest.fixture
def emails(folder: Path) -> str:
    ok("topics", "create", "emails", "--kind", "queue")
    return "emails"


def create(*more: str) -> None:
    ok("schedule", "create", "nightly", "--topic", "emails", "--cron", "30 2 * * *", "--zone", "Europe/Berlin", *more)


def test_one_is_made_shown_changed_and_deleted(emails: str, folder: Path) -> None:
    create("--template", "since ${previous}", "--header", "a=b", "--lane", "acme", "--ttl", "1h", "--jitter", "5m")
    shown = ok("schedule", "show", "nightly", "--json").document
    assert (shown["schedule"], shown["topic"], shown["paused"], shown["version"]) == ("nightly", "emails", False, 1)
    settings = shown["settings"]
    assert (settings["template"], settings["headers"], settings["lane"]) == ("since ${previous}", {"a": "b"}, "acme")
    assert (settings["ttl"], settings["jitter"], settings["missed"]) == (3600, 300, "latest")
    assert len(shown["next"]) == 5
    assert shown["next"][0][11:19] in ("02:30:00", "03:00:00")
    out = ok("schedule", "show", "nightly").out
    for text in ("30 2 * * *", "Europe/Berlin", "since ${previous}", "a=b", "the latest is published", "Next ticks"):
        assert text in out
    (line,) = ok("schedule", "list", "--json").lines
    assert line["schedule"] == "nightly"
    assert "nightly" in ok("schedule", "list").out
    (folder / "payload.bin").write_bytes(b"\xff\x00")
    changed = ok(
        "schedule", "update", "nightly", "--file", "payload.bin", "--lane", "none", "--missed", "all", "--json"
    )
    settings = changed.document["settings"]
    assert (settings["payload_base64"], settings["template"], settings["lane"]) == ("/wA=", None, None)
    assert "goes on" not in ok("schedule", "pause", "nightly").out
    assert ok("schedule", "show", "nightly", "--json").document["next"] == []
    assert "its next tick is" in ok("schedule", "resume", "nightly").out
    ok("schedule", "delete", "nightly")
    assert "No schedules yet" in ok("schedule", "list").err


def test_its_runs_are_shown(emails: str, folder: Path) -> None:
    with duly.connect(folder / "app.duly") as q:
        q.create_schedule("often", topic=emails, cron="@every 1s")
        eventually(lambda: q.describe_schedule("often").published)
    shown = ok("schedule", "show", "often", "--json").document
    assert shown["runs"][-1]["id"].startswith("schedule@often@")
    assert "schedule@often@" in ok("schedule", "show", "often").out
    assert ok("get", "emails", shown["runs"][-1]["id"], "--json").document["state"] == "ready"


def test_ticks_are_told_of_a_schedule_and_of_an_expression_without_a_store(folder: Path) -> None:
    asked = ("schedule", "next", "--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--after", "2026-03-28T12:00:00Z")
    lines = ok(*asked, "--count", "2", "--json").lines
    assert [line["tick"] for line in lines] == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    assert "Sunday" in ok(*asked).out
    assert not (folder / "app.duly").exists()
    ok("topics", "create", "emails", "--kind", "queue")
    create()
    assert len(ok("schedule", "next", "nightly", "--count", "7", "--json").lines) == 7
    ok("schedule", "pause", "nightly")
    assert "paused" in ok("schedule", "next", "nightly").err


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("schedule create s --topic emails --cron nonsense", 1, "no cron expression"),
        ("schedule create s --topic emails --cron @daily --zone Mars", 1, "time zone"),
        ("schedule create s --topic emails --cron @daily --template ${x}", 1, "${x}"),
        ("schedule create s --topic emails --cron @daily --payload a --template b", 2, "one of"),
        ("schedule create s --topic emails --cron @daily --missed never", 2, "missed"),
        ("schedule create s --topic emails", 2, "--cron"),
        ("schedule update s", 2, "Nothing to change"),
        ("schedule show s", 1, "duly schedule list"),
        ("schedule next", 2, "--cron"),
        ("schedule next s --cron @daily", 2, "--cron"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(emails: str, line: str, code: int, told: str) -> None:
    ran = refused(*line.split())
    assert (ran.code, told in ran.err) == (code, True), ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_one_of_that_name_is_refused_or_left_as_it_is(emails: str) -> None:
    create()
    create("--exist-ok")
    ran = refused("schedule", "create", "nightly", "--topic", "emails", "--cron", "@daily", "--exist-ok")
    assert "duly schedule update" in ran.err
