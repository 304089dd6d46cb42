"""Backups of encrypted tenants: they carry what lies in the file, and are of no use without the master key."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import duly
from tests.store.conftest import encrypt

CANARY = b"canary-90be"


def read_all(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_canary_is_in_no_file_of_a_backup_and_the_master_key_neither(tmp_path: Path) -> None:
    path, folder = tmp_path / "app.duly", tmp_path / "backups"
    with duly.connect(path) as q:
        encrypt(q, "default")
        q.create_topic("orders", kind="log")
        q.create_group("orders", "g")
        q.publish("orders", [duly.Message(CANARY, key=CANARY.decode(), headers={"h": CANARY.decode()})] * 300)
        q.bury(q.claim("orders", group="g", max_messages=10), reason=CANARY.decode())
        q.backup(folder)
        q.publish("orders", [CANARY])
        # With what lies in the write-ahead log.
        assert CANARY not in b"".join(found.read_bytes() for found in tmp_path.glob("app.duly*"))
        q.backup(folder)
    key = Path(f"{path}.master").read_bytes().strip()
    assert CANARY not in read_all(folder)
    assert key not in read_all(folder)


def test_a_restored_store_is_opened_with_the_master_key_alone(tmp_path: Path) -> None:
    path, folder, place = tmp_path / "app.duly", tmp_path / "backups", tmp_path / "restored.duly"
    with duly.connect(path) as q:
        encrypt(q, "default")
        q.create_topic("orders", kind="log")
        q.publish("orders", [CANARY])
        q.backup(folder)
    duly.restore(folder, place)
    with duly.connect(place) as q, pytest.raises(duly.Sealed, match=r"restored\.duly\.master"):
        q.read("orders")
    shutil.copy(f"{path}.master", f"{place}.master")
    with duly.connect(place) as q:
        assert [message.payload for message in q.read("orders")] == [CANARY]
        assert not [found for found in q.examine() if found.level == "alert"]


def test_the_audit_tells_of_a_restore_when_the_store_is_resumed(tmp_path: Path) -> None:
    path, folder = tmp_path / "app.duly", tmp_path / "backups"
    with duly.connect(path) as q:
        q.create_tenant("default", encrypt=True)
        q.backup(folder)
    duly.restore(folder, path, force=True)
    with duly.connect(path) as q:
        q.resume_store()
        entry = list(q.audit(operators=True))[-1]
        assert entry.action == "pause_store"
        assert str(entry.facts["ended"]).startswith("restored from backup 1")
        assert not [found for found in q.examine() if found.level == "alert"]
