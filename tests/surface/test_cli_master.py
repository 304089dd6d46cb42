"""duly master: keys that are made for their owner alone, and rotated."""

from __future__ import annotations

import stat
from pathlib import Path

import duly
from duly.master import new_key
from tests.store.conftest import encrypt

from .test_cli import folder, ok, refused

__all__ = ["folder"]


def test_a_key_is_made_for_its_owner_and_never_shown(folder: Path) -> None:
    ran = ok("master", "create", "keys")
    made = folder / "keys"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert made.read_text().strip() not in ran.out + ran.err
    assert "already" in refused("master", "create", "keys").err


def test_rotation_wraps_everything_under_the_first_line(folder: Path) -> None:
    with duly.connect("app.duly") as q:
        encrypt(q, "default")
        q.create_topic("orders", kind="log")
        q.publish("orders", [b"before"])
    keys = folder / "app.duly.master"
    assert "Nothing to wrap anew" in ok("master", "rotate").out
    keys.write_text(f"{new_key()}\n{keys.read_text()}")
    ran = ok("master", "rotate", "--data-keys")
    assert "2 secrets wrapped anew; 1 new data key" in ran.out
    keys.write_text(keys.read_text().splitlines()[0])
    with duly.connect("app.duly") as q:
        q.publish("orders", [b"after"])
        assert [message.payload for message in q.read("orders")] == [b"before", b"after"]
    assert ok("doctor").code == 0


def test_a_broker_rotates_nothing(folder: Path) -> None:
    assert "where it lies" in refused("master", "rotate", "--url", "duly://127.0.0.1:1").err
