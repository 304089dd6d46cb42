"""What is restored is another store: it opens paused, and old leases are worth nothing there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import duly

from .dice import DICE, flip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backups"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "restored.duly"


@pytest.fixture
def busy(q: duly.Client) -> duly.Client:
    """A store in which something of everything stands."""
    retry = duly.RetryPolicy(max_attempts=1)
    q.create_topic("orders", kind="log", lease=30)
    q.create_group("orders", "billing")
    q.create_topic("emails", kind="queue", lease=30, dedupe=3600, retry=retry)
    q.create_topic("turns", kind="queue", lease=30, lanes=duly.Lanes(max_in_flight=1))
    q.publish("orders", [b"%d" % n for n in range(10)], publish_id="import-7")
    q.publish("emails", [duly.Message(b"%d" % n, id=f"m{n}") for n in range(10)])
    q.publish("turns", [duly.Message(b"%d" % n, lane="acme") for n in range(3)])
    return q


def test_it_opens_paused_and_is_seen_to_be(
    busy: duly.Client, folder: Path, target: Path, clock: duly.ManualClock
) -> None:
    busy.backup(folder)
    duly.restore(folder, target)
    with duly.connect(target, clock=clock) as q:
        assert not q.claim("emails")
        assert q.held() == []
        assert q.describe_topic("emails").paused
        assert [found.level for found in q.examine() if "restored from backup 1 of 2023-11-14" in found.what] == [
            "warn"
        ]
        q.publish("emails", b"new")
        q.resume_store()
        assert len(q.claim("emails")) == 11


def test_leases_of_the_old_store_are_lost_and_change_nothing(
    busy: duly.Client, folder: Path, target: Path, clock: duly.ManualClock
) -> None:
    old = [busy.claim("emails", max_messages=4), busy.claim("orders", group="billing", max_messages=4)]
    busy.backup(folder)
    duly.restore(folder, target)
    with duly.connect(target, clock=clock) as q:
        for _ in ("paused", "resumed"):
            for batch in old:
                settled = q.ack(list(batch))
                assert (settled.done, len(settled.lost)) == (0, 4)
                assert q.nack(list(batch)).done == q.extend(list(batch)).done == q.bury(list(batch)).done == 0
            q.resume_store()
        assert q.describe_topic("emails").messages == 10
        assert len(q.claim("orders", group="billing")) == 10
    with duly.connect(target, clock=clock) as again:
        assert list(again.dead("emails")) == []


def test_what_was_held_comes_back_when_it_is_resumed_and_counts_no_attempt(
    busy: duly.Client, folder: Path, target: Path, clock: duly.ManualClock
) -> None:
    busy.claim("emails", max_messages=1)
    busy.claim("orders", group="billing", max_messages=3)
    busy.claim("turns")
    busy.backup(folder)
    duly.restore(folder, target)
    with duly.connect(target, clock=clock) as q:
        # Long after: had the lease just run out, its message would now be buried after its only attempt.
        clock.advance(3600)
        q.resume_store()
        assert [d.attempt for d in q.claim("emails")] == [1] * 10
        assert sorted(q.claim("orders", group="billing").payloads) == [b"%d" % n for n in range(10)]
        for n in range(3):
            with q.claim("turns") as batch:
                assert [(d.payload, d.attempt) for d in batch] == [(b"%d" % n, 1)]


def test_leases_given_after_the_restore_outlive_a_pause(
    busy: duly.Client, folder: Path, target: Path, clock: duly.ManualClock
) -> None:
    busy.backup(folder)
    duly.restore(folder, target)
    with duly.connect(target, clock=clock) as q:
        q.pause_store()
        q.resume_store()
        batch = q.claim("emails", max_messages=3)
        q.pause_store()
        q.resume_store()
        assert q.ack(batch).done == 3


def test_publish_ids_and_message_ids_are_still_known(
    busy: duly.Client, folder: Path, target: Path, clock: duly.ManualClock
) -> None:
    busy.ack(busy.claim("emails", max_messages=2))
    busy.backup(folder)
    duly.restore(folder, target)
    with duly.connect(target, clock=clock) as q:
        assert q.publish("orders", [b"%d" % n for n in range(10)], publish_id="import-7").duplicate
        assert q.publish("emails", [duly.Message(b"again", id="m0"), duly.Message(b"again", id="m9")]).duplicates
        assert q.describe_topic("emails").messages == 8


def test_every_restore_is_another_store(busy: duly.Client, folder: Path, tmp_path: Path) -> None:
    busy.backup(folder)
    incarnations = {busy.claim("emails", max_messages=1).incarnation}
    for number in range(2):
        duly.restore(folder, tmp_path / f"{number}.duly")
        with duly.connect(tmp_path / f"{number}.duly") as q:
            q.resume_store()
            incarnations.add(q.claim("emails", max_messages=1).incarnation)
    assert len(incarnations) == 3


def test_a_store_that_is_there_is_replaced_only_by_force(busy: duly.Client, folder: Path, target: Path) -> None:
    busy.backup(folder)
    with duly.connect(target) as q:
        q.create_topic("mine", kind="log")
    with pytest.raises(duly.StoreExists, match="There is a file"):
        duly.restore(folder, target)
    with duly.connect(target) as q:
        assert q.list_topics() == ["mine"]
    duly.restore(folder, target, force=True)
    with duly.connect(target) as q:
        assert q.list_topics() == ["emails", "orders", "turns"]


def test_a_store_that_is_open_is_never_replaced(busy: duly.Client, folder: Path, target: Path) -> None:
    busy.backup(folder)
    with duly.connect(target) as q, pytest.raises(duly.Busy, match="is open"):
        duly.restore(folder, target, force=True)
    idle = f"import duly, sys\nq = duly.connect({str(target)!r})\nprint('open', flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", idle], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(duly.Busy, match="is open"):
            duly.restore(folder, target, force=True)
        other.kill()
    foreign = apsw.Connection(str(target))
    foreign.execute("SELECT count(*) FROM duly_meta").fetchall()
    with pytest.raises(duly.Busy, match="another program"):
        duly.restore(folder, target, force=True)
    foreign.close()
    duly.restore(folder, target, force=True)
    assert not list(target.parent.glob("*.restoring*"))
    assert q.tenant == "default"


def test_while_it_is_restored_it_cannot_be_opened(busy: duly.Client, folder: Path, target: Path) -> None:
    busy.backup(folder)

    def open_it(done: int, whole: int) -> None:
        with pytest.raises(duly.Busy, match="being restored"):
            duly.connect(target)

    duly.restore(folder, target, on_progress=open_it, force=True)
    duly.connect(target).close()


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_log_of_the_store_that_was_there_is_not_applied_to_the_new_one(
    busy: duly.Client, folder: Path, target: Path, forgotten: bool
) -> None:
    busy.backup(folder)
    leave_a_log(target)
    if forgotten:
        # Somebody removed the file, and not what lay beside it.
        os.unlink(target)
    duly.restore(folder, target, force=True)
    with duly.connect(target) as q:
        assert q.list_topics() == ["emails", "orders", "turns"]
        assert [found for found in q.examine() if found.level == "alert"] == []


def leave_a_log(path: Path) -> None:
    """A store whose process was killed: what it committed is in the log alone."""
    script = f"""import duly, os, signal
q = duly.connect({str(path)!r})
q.create_topic("killed", kind="log")
for n in range(50): q.publish("killed", os.urandom(5000))
os.kill(os.getpid(), signal.SIGKILL)"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == -signal.SIGKILL
    assert os.path.getsize(f"{path}-wal") > 100_000


def test_a_damaged_store_can_be_replaced(busy: duly.Client, folder: Path, target: Path) -> None:
    busy.backup(folder)
    leave_a_log(target)
    with duly.connect(target):
        pass
    content = bytearray(target.read_bytes())
    content[4096:] = DICE.randbytes(len(content) - 4096)
    target.write_bytes(content)
    duly.restore(folder, target, force=True)
    with duly.connect(target) as q:
        assert [found for found in q.examine() if found.level == "alert"] == []


def test_what_is_no_store_is_not_replaced(busy: duly.Client, folder: Path, tmp_path: Path) -> None:
    busy.backup(folder)
    (tmp_path / "notes").write_text("dear diary " * 1000)
    with pytest.raises(duly.IncompatibleStore, match="not an SQLite file"):
        duly.restore(folder, tmp_path / "notes", force=True)
    assert (tmp_path / "notes").read_text() == "dear diary " * 1000
    other = apsw.Connection(str(tmp_path / "customers.db"))
    other.execute("CREATE TABLE customer (name TEXT)")
    other.close()
    with pytest.raises(duly.IncompatibleStore, match="not a Duly store"):
        duly.restore(folder, tmp_path / "customers.db", force=True)
    with pytest.raises(duly.IncompatibleStore, match="folder"):
        duly.restore(folder, tmp_path, force=True)
    with pytest.raises(duly.NotFound, match="no folder"):
        duly.restore(folder, tmp_path / "nowhere" / "app.duly")
    with pytest.raises(duly.InvalidArgument, match="memory"):
        duly.restore(folder, ":memory:")


def test_a_flipped_bit_is_found_before_anything_is_put_in_place(busy: duly.Client, folder: Path, target: Path) -> None:
    busy.publish("orders", [DICE.randbytes(1000) for _ in range(3000)])
    taken = busy.backup(folder)
    with duly.connect(target) as q:
        q.create_topic("mine", kind="log")
    flip(folder / "duly-pieces" / DICE.choice(taken.pieces))
    with pytest.raises(duly.CorruptBackup, match="damaged"):
        duly.restore(folder, target, force=True)
    with pytest.raises(duly.CorruptBackup):
        duly.restore(folder, target.with_name("other.duly"))
    with duly.connect(target) as q:
        assert q.list_topics() == ["mine"]
    assert not target.with_name("other.duly").exists()
    assert not list(target.parent.glob("*.restoring*"))


def test_a_chosen_backup_is_restored_and_a_missing_one_said(busy: duly.Client, folder: Path, target: Path) -> None:
    busy.backup(folder)
    busy.create_topic("later", kind="log")
    busy.backup(folder)
    assert duly.restore(folder, target, number=1).number == 1
    with duly.connect(target) as q:
        assert "later" not in q.list_topics()
    with pytest.raises(duly.NotFound, match="no backup 7"):
        duly.restore(folder, target, number=7, force=True)
    with pytest.raises(duly.NotFound, match="no backups in"):
        duly.restore(folder / "nowhere", target, force=True)


def test_a_backup_of_a_newer_store_is_refused(busy: duly.Client, folder: Path, target: Path, path: str) -> None:
    other = apsw.Connection(path)
    other.execute("UPDATE duly_meta SET value = '9999' WHERE key = 'schema'")
    busy.backup(folder)
    other.close()
    with pytest.raises(duly.IncompatibleStore, match="newer"):
        duly.restore(folder, target)
    assert not target.exists()


def test_a_waiting_claim_gets_nothing_until_it_is_resumed_and_the_restored_store_is_backed_up_like_any(
    busy: duly.Client, folder: Path, target: Path
) -> None:
    busy.backup(folder)
    duly.restore(folder, target)
    with duly.connect(target) as q:
        second = q.backup(folder)
        assert second.number == 2
        assert second.incarnation != duly.list_backups(folder)[0].incarnation
        assert len(q.claim("emails", wait=0.2)) == 0
        q.resume_store()
        assert len(q.claim("emails")) == 10
