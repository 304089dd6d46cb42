"""A backup is the whole file at one moment, taken while everyone goes on; backups share what did not change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import apsw
import pytest

import duly
from tests.conftest import scaled
from tests.store.patience import Aside

from .dice import DICE, flip

MEBIBYTE = 1024 * 1024


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backups"


@pytest.fixture
def filled(q: duly.Client) -> duly.Client:
    """A store of some mebibytes that do not compress, with a log and a queue."""
    q.create_topic("orders", kind="log")
    q.create_group("orders", "billing")
    q.create_topic("emails", kind="queue", lease=30, dedupe=3600)
    for _ in range(4):
        q.publish("orders", [DICE.randbytes(1000) for _ in range(1000)])
    q.publish("emails", [duly.Message(b"%d" % n, id=f"m{n}") for n in range(100)])
    return q


def restored(folder: Path, number: int | None = None) -> duly.Client:
    """A client of what comes out of a backup."""
    place = folder.parent / f"restored-{number}.duly"
    duly.restore(folder, place, number=number, force=True)
    return duly.connect(place, consumer="w1")


def emails(q: duly.Client) -> list[bytes]:
    return sorted(message.payload or b"" for message in q.browse("emails", limit=1000))


def test_a_backup_restores_what_was_there(filled: duly.Client, folder: Path) -> None:
    taken = filled.backup(folder)
    filled.publish("emails", b"later")
    with restored(folder) as again:
        assert emails(again) == sorted(b"%d" % n for n in range(100))
        assert again.read("orders", max_messages=9999) == filled.read("orders", max_messages=9999)
        assert [found for found in again.examine() if found.level == "alert"] == []
    assert taken.bytes == os.path.getsize(folder.parent / "restored-None.duly")


def test_it_says_what_it_is(filled: duly.Client, folder: Path, clock: duly.ManualClock) -> None:
    taken = filled.backup(folder)
    assert (taken.number, taken.taken_at_ms, taken.duly) == (1, clock.now_ms(), duly.__version__)
    assert taken.new_bytes == taken.bytes == taken.pages * taken.page_bytes > 4_000_000
    assert taken.taken_at.timestamp() * 1000 == clock.now_ms()
    assert duly.list_backups(folder) == [taken]
    assert [(number, found.level) for number, found in duly.verify_backups(folder)] == [(1, "ok")]


@pytest.mark.parametrize("log", ["in use", "copied"])
def test_the_file_stands_still_while_it_is_read_whatever_is_written(
    filled: duly.Client, folder: Path, path: str, log: str
) -> None:
    """Between the first piece and the second: more than a checkpoint's worth, and a process that comes and goes."""
    held = filled.claim("emails", max_messages=10)
    state = emails(filled), len(filled.read("orders", max_messages=9999))
    if log == "copied":
        # A reader that begins now needs nothing of the log, and the writer may start it over at once.
        other = apsw.Connection(path)
        other.execute("SELECT count(*) FROM duly_meta").fetchall()
        pages, copied = other.wal_checkpoint()
        assert pages == copied > 0
        other.close()
    wal: list[int] = []

    def meanwhile(done: int, whole: int) -> None:
        if done > MEBIBYTE:
            return
        filled.ack(held)
        filled.cancel("emails", [f"m{n}" for n in range(50, 100)])
        for _ in range(20):
            filled.publish("orders", [DICE.randbytes(1000) for _ in range(1000)])
        filled.delete_topic("orders", force=True)
        script = f"import duly\nwith duly.connect({path!r}) as q:\n    q.publish('emails', [b'x'] * 1000)"
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
        wal.append(os.path.getsize(path + "-wal"))

    filled.backup(folder, on_progress=meanwhile)
    # There was something to copy into the file, had it not been held still.
    assert wal[0] > 20 * MEBIBYTE
    with restored(folder) as again:
        assert (emails(again), len(again.read("orders", max_messages=9999))) == state
        assert [found for found in again.examine() if found.level == "alert"] == []


def test_the_log_shrinks_back_afterwards(filled: duly.Client, folder: Path, path: str) -> None:
    wal = [0]

    def meanwhile(done: int, whole: int) -> None:
        for _ in range(5):
            filled.publish("orders", [DICE.randbytes(1000) for _ in range(1000)])
        wal[0] = os.path.getsize(path + "-wal")

    filled.backup(folder, on_progress=meanwhile)
    assert wal[0] > 20 * MEBIBYTE
    filled.publish("orders", b"next")
    assert os.path.getsize(path + "-wal") <= 16 * MEBIBYTE


def test_the_applications_own_tables_are_in_it(filled: duly.Client, folder: Path, path: str) -> None:
    application = apsw.Connection(path)
    application.execute("CREATE TABLE customer (name TEXT)")
    application.execute("INSERT INTO customer VALUES ('acme')")
    filled.backup(folder)
    application.execute("INSERT INTO customer VALUES ('globex')")
    application.close()
    restored(folder).close()
    copy = apsw.Connection(str(folder.parent / "restored-None.duly"))
    assert copy.execute("SELECT name FROM customer").fetchall() == [("acme",)]
    copy.close()


def test_the_next_backup_writes_only_what_changed(filled: duly.Client, folder: Path) -> None:
    first = filled.backup(folder)
    again = filled.backup(folder)
    # All that has changed is the audit: the first backup is in it.
    assert again.new_bytes <= MEBIBYTE
    assert len(set(again.pieces) - set(first.pieces)) <= 1
    filled.publish("emails", b"one more")
    third = filled.backup(folder)
    assert 0 < third.new_bytes <= 3 * MEBIBYTE < third.bytes
    assert [backup.number for backup in duly.list_backups(folder)] == [1, 2, 3]
    with restored(folder, 2) as before, restored(folder, 3) as after:
        assert len(emails(after)) == len(emails(before)) + 1


def test_old_backups_are_dropped_and_what_only_they_needed(filled: duly.Client, folder: Path) -> None:
    for n in range(4):
        filled.publish("emails", b"change %d" % n)
        filled.backup(folder, keep=2)
    kept = duly.list_backups(folder)
    assert [backup.number for backup in kept] == [3, 4]
    assert set(os.listdir(folder / "duly-pieces")) == {name for backup in kept for name in backup.pieces}
    assert {found.level for _, found in duly.verify_backups(folder)} == {"ok"}


def test_a_piece_that_rotted_is_found_and_the_next_backup_heals_it(filled: duly.Client, folder: Path) -> None:
    taken = filled.backup(folder)
    flip(folder / "duly-pieces" / taken.pieces[1])
    ((_, found),) = duly.verify_backups(folder)
    assert (found.level, taken.pieces[1] in found.what) == ("alert", True)
    # And a piece with the audit, which has the first backup in it.
    healed = filled.backup(folder)
    assert taken.pieces[1] in healed.pieces
    assert healed.new_bytes <= 2 * MEBIBYTE
    assert [found.level for _, found in duly.verify_backups(folder)] == ["ok", "ok"]


def test_a_missing_piece_is_found(filled: duly.Client, folder: Path) -> None:
    taken = filled.backup(folder)
    os.unlink(folder / "duly-pieces" / taken.pieces[0])
    ((_, found),) = duly.verify_backups(folder)
    assert (found.level, "missing" in found.what) == ("alert", True)


def test_a_flipped_bit_anywhere_in_a_description_is_found(filled: duly.Client, folder: Path) -> None:
    filled.backup(folder)
    (manifest,) = folder.glob("backup-*.json")
    good = manifest.read_bytes()
    for at in range(DICE.randrange(scaled(4, 1)), len(good), scaled(4, 1)):
        flip(manifest, at)
        with pytest.raises(duly.StoreError):
            duly.list_backups(folder)
        assert [found.level for _, found in duly.verify_backups(folder)] == ["alert"]
        manifest.write_bytes(good)


def test_beside_a_damaged_description_nothing_is_swept(filled: duly.Client, folder: Path) -> None:
    pieces = set(filled.backup(folder).pieces)
    (manifest,) = folder.glob("backup-*.json")
    flip(manifest)
    filled.publish("emails", b"change")
    filled.backup(folder)
    assert set(os.listdir(folder / "duly-pieces")) > pieces


def test_two_backups_into_one_folder_at_once_are_refused(filled: duly.Client, folder: Path) -> None:
    def another(done: int, whole: int) -> None:
        with pytest.raises(duly.Busy, match="Another backup"):
            filled.backup(folder)

    filled.backup(folder, on_progress=another)
    assert len(duly.list_backups(folder)) == 1


def test_it_waits_for_an_older_reader_and_says_so_when_it_stays(filled: duly.Client, folder: Path, path: str) -> None:
    reader = apsw.Connection(path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM duly_block").fetchall()
    filled.publish("emails", b"newer")
    with pytest.raises(duly.Busy, match="older state"):
        filled.backup(folder, timeout=0.2)
    assert duly.list_backups(folder) == []
    with Aside(lambda: filled.backup(folder)) as waiting:
        assert waiting.still_running_after(0.1)
        reader.close()
        assert waiting.result().number == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_does_not_spoil_it(filled: duly.Client, folder: Path) -> None:
    children: list[int] = []

    def fork(done: int, whole: int) -> None:
        if not children:
            children.append(os.fork())
            if children == [0]:
                try:
                    filled.publish("emails", b"from the child")
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(children[0], 0)[1] == 0

    filled.backup(folder, on_progress=fork)
    with restored(folder) as again:
        assert b"from the child" in emails(again)
        assert [found for found in again.examine() if found.level == "alert"] == []


def test_closing_the_client_ends_it(filled: duly.Client, folder: Path) -> None:
    with pytest.raises(duly.Closed):
        filled.backup(folder, on_progress=lambda done, whole: filled.close())
    assert duly.list_backups(folder) == []


def test_a_rate_bounds_how_fast_it_reads(filled: duly.Client, folder: Path) -> None:
    began = threading.Event()
    with Aside(lambda: filled.backup(folder, rate=5 * MEBIBYTE, on_progress=lambda *_: began.set())) as slow:
        assert began.wait(10)
        # Four mebibytes and more at five a second.
        assert slow.still_running_after(0.3)
        assert slow.result().bytes > 4_000_000


def test_what_is_no_folder_for_backups_is_refused_and_left_alone(filled: duly.Client, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("dear diary")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    with pytest.raises(duly.InvalidArgument, match="is a file"):
        filled.backup(tmp_path / "notes")
    with pytest.raises(duly.InvalidArgument, match="other things"):
        filled.backup(tmp_path / "photos")
    with pytest.raises(duly.NotFound, match="no folder"):
        filled.backup(tmp_path / "nowhere" / "backups")
    assert os.listdir(tmp_path / "photos") == ["cat.jpg"]
    assert not (tmp_path / "nowhere").exists()


def test_a_store_in_memory_has_no_file_to_back_up(folder: Path) -> None:
    with duly.connect(":memory:") as q, pytest.raises(duly.InvalidArgument, match="in memory"):
        q.backup(folder)


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"keep": True}, {"rate": 0}, {"rate": "fast"}, {"rate": float("nan")}])
def test_arguments_are_checked(filled: duly.Client, folder: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(duly.InvalidArgument):
        filled.backup(folder, **wrong)  # type: ignore[arg-type]
    with pytest.raises(duly.InvalidArgument):
        filled.backup(b"bytes")  # type: ignore[arg-type]


def test_what_it_writes_is_for_its_owner_alone(filled: duly.Client, folder: Path) -> None:
    filled.backup(folder)
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_backup_of_a_newer_format_is_refused(filled: duly.Client, folder: Path) -> None:
    filled.backup(folder)
    (manifest,) = folder.glob("backup-*.json")
    document = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps(document | {"version": 2}))
    with pytest.raises(duly.IncompatibleStore, match="newer"):
        duly.list_backups(folder)
