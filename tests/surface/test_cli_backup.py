"""duly backup, restore, pause and resume from a shell."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import duly

from .test_cli import folder, ok, refused, run, shop, stocked
from .test_cli_process import run as run_process
from .test_cli_process import terminal

__all__ = ["folder", "shop", "stocked"]


def test_take_list_verify_and_restore(shop: Path) -> None:
    taken = ok("backup", "copies", "--json").document
    assert (taken["number"], taken["new_bytes"]) == (1, taken["bytes"])
    # Only the audit has changed, which says that the first was taken: all of so small a file lies in one piece.
    again = ok("backup", "copies", "--json").document
    assert (again["number"], again["new_bytes"]) == (2, again["bytes"])
    assert [line["number"] for line in ok("backup", "copies", "--list", "--json").lines] == [1, 2]
    assert [line["level"] for line in ok("backup", "copies", "--verify", "--json").lines] == ["ok", "ok"]
    assert "Whole" in ok("backup", "copies", "--verify").out
    restored = ok("restore", "copies", "again.duly", "--number", "1", "--json").document
    assert (restored["number"], restored["store"], restored["paused"]) == (1, "again.duly", True)
    assert ok("topics", "list", "--store", "again.duly", "--json").lines == [
        line | {"paused": True} for line in ok("topics", "list", "--json").lines
    ]


def test_a_restored_store_says_that_it_is_paused_until_it_is_resumed(shop: Path) -> None:
    assert "duly resume --store again.duly" in ok("restore", "backups", "again.duly").out
    # No backup has the key to what is sealed in it.
    shutil.copy("app.duly.master", "again.duly.master")
    assert "paused" in ok("stats", "--store", "again.duly").out
    (said,) = [line for line in ok("doctor", "--store", "again.duly", "--json").lines if "paused" in line["what"]]
    assert "duly resume" in said["advice"]
    assert ok("claim", "emails", "--store", "again.duly", "--ack", "--json").lines == []
    assert ok("resume", "--store", "again.duly", "--json").document == {"store": "again.duly", "paused": False}
    assert len(ok("claim", "emails", "--store", "again.duly", "--ack", "--json").lines) == 1


def test_pause_and_resume(shop: Path) -> None:
    assert ok("pause", "--json").document == {"store": "app.duly", "paused": True}
    assert ok("claim", "emails", "--json").lines == []
    ok("resume")
    assert len(ok("claim", "emails", "--ack", "--json").lines) == 1


def test_old_ones_are_dropped(shop: Path) -> None:
    for _ in range(3):
        ok("backup", "copies", "--keep", "2")
    assert [line["number"] for line in ok("backup", "copies", "--list", "--json").lines] == [2, 3]


def test_damage_is_found_and_not_restored(shop: Path) -> None:
    piece = next((shop / "backups" / "duly-pieces").iterdir())
    content = bytearray(piece.read_bytes())
    content[1000] ^= 1
    piece.write_bytes(content)
    found = run("backup", "backups", "--verify", "--json")
    assert (found.code, [line["level"] for line in found.lines]) == (1, ["alert"])
    assert "damaged" in refused("restore", "backups", "again.duly").err
    assert not (shop / "again.duly").exists()


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        (["backup"], 2, "Missing"),
        (["backup", "app.duly"], 1, "is a file"),
        (["backup", "nowhere/backups"], 1, "no folder"),
        (["backup", "."], 1, "other things"),
        (["backup", "backups", "--keep", "0"], 2, "--keep"),
        (["backup", "backups", "--rate", "fast"], 2, "not a size"),
        (["backup", "nowhere", "--list"], 1, "no backups"),
        (["backup", "nowhere", "--verify"], 1, "no backups"),
        (["restore", "backups"], 2, "Missing"),
        (["restore", "nowhere", "new.duly"], 1, "no backups"),
        (["restore", "backups", "app.duly"], 1, "--force"),
        (["restore", "backups", "new.duly", "--number", "9"], 1, "no backup 9"),
        (["restore", "backups", "invoice.pdf", "--force"], 1, "not an SQLite file"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(shop: Path, line: list[str], code: int, told: str) -> None:
    before = sorted(os.listdir(shop))
    ran = refused(*line)
    assert ran.code == code
    assert told in ran.err
    assert set(os.listdir(shop)) - set(before) <= {"invoice.pdf-open", "app.duly-open"}


def test_an_open_store_is_not_replaced(shop: Path) -> None:
    with duly.connect("app.duly"):
        assert "is open" in refused("restore", "backups", "app.duly", "--force").err
    ok("restore", "backups", "app.duly", "--force")


def test_a_bar_is_drawn_on_a_terminal_alone(shop: Path) -> None:
    assert run_process("backup", "copies").stderr == b""
    with terminal() as (ours, theirs):
        run_process("backup", "copies", stderr=theirs)
        assert b"Backing up" in os.read(ours, 65536)
    with terminal() as (ours, theirs):
        run_process("restore", "copies", "again.duly", stderr=theirs)
        assert b"Restoring" in os.read(ours, 65536)
