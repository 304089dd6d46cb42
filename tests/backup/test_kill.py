"""kill -9 and full devices: earlier backups stay whole, nothing half is taken for one, a store is old or new."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import duly
from tests.conftest import scaled

from .dice import DICE
from .test_restore import leave_a_log

ROOT = Path(__file__).parents[2]


def victim(what: str, store: Path, folder: Path, kill_at: int) -> int:
    """Runs it; how many calls there were, or 0 when it was killed."""
    command = [sys.executable, "-m", "tests.backup.victim", what, str(store), str(folder), str(kill_at)]
    done = subprocess.run(command, cwd=ROOT, timeout=60, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return int(done.stdout) if done.returncode == 0 else 0


def points(calls: int, small: int) -> list[int]:
    """Where to kill: everywhere in the full proof, else the ends and some between."""
    every = range(1, calls + 1)
    chosen = [every[0], *every[-12:-4], every[-1], *DICE.sample(every, min(calls, small))]
    return sorted(set(every if scaled(0, 1) else chosen))


def alerts(store: Path) -> list[str]:
    with duly.connect(store) as q:
        return [found.what for found in q.examine() if found.level == "alert"]


def topics(store: Path) -> list[str]:
    with duly.connect(store) as q:
        return q.list_topics()


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A store of some pieces, backed up once and changed since."""
    home = tmp_path / "scene"
    home.mkdir()
    with duly.connect(home / "app.duly") as q:
        q.create_topic("t", kind="log")
        q.publish("t", [DICE.randbytes(1000) for _ in range(2500)])
        q.backup(home / "backups")
        q.create_topic("u", kind="log")
        q.publish("u", [DICE.randbytes(1000) for _ in range(1000)])
    return home


@pytest.mark.timeout(scaled(300, 3600))
def test_killed_anywhere_in_a_backup_the_earlier_ones_are_whole_and_the_next_one_works(
    scene: Path, tmp_path: Path
) -> None:
    shutil.copytree(scene, tmp_path / "whole")
    calls = victim("backup", tmp_path / "whole" / "app.duly", tmp_path / "whole" / "backups", 0)
    killed = finished = 0
    for point in points(calls, 2):
        home = tmp_path / "killed"
        shutil.copytree(scene, home)
        folder = home / "backups"
        killed += victim("backup", home / "app.duly", folder, point) == 0
        numbers = [backup.number for backup in duly.list_backups(folder)]
        assert numbers in ([1], [1, 2]), f"killed at {point} of {calls}"
        finished += numbers == [1, 2]
        assert {found.level for _, found in duly.verify_backups(folder)} == {"ok"}, f"killed at {point} of {calls}"
        with duly.connect(home / "app.duly") as q:
            q.backup(folder, keep=1)
        (left,) = duly.list_backups(folder)
        assert sorted(os.listdir(folder)) == [f"backup-{left.number:06}.json", "duly-pieces"]
        assert set(os.listdir(folder / "duly-pieces")) == set(left.pieces)
        duly.restore(folder, home / "restored.duly")
        assert alerts(home / "restored.duly") == []
        assert topics(home / "restored.duly") == ["t", "u"]
        shutil.rmtree(home)
    print(f"killed at {killed} of {calls} calls; {finished} times the backup was there already")
    assert killed
    assert finished


@pytest.mark.timeout(scaled(300, 3600))
def test_killed_anywhere_in_a_restore_there_is_the_old_store_or_the_new_one(scene: Path, tmp_path: Path) -> None:
    """The old one was left by a crash too: its last commits are in its log alone."""
    leave_a_log(scene / "old.duly")
    shutil.copytree(scene, tmp_path / "whole")
    calls = victim("restore", tmp_path / "whole" / "old.duly", tmp_path / "whole" / "backups", 0)
    seen = []
    for point in points(calls, 4):
        home = tmp_path / "killed"
        shutil.copytree(scene, home)
        target = home / "old.duly"
        assert victim("restore", target, home / "backups", point) == 0
        with duly.connect(target) as q:
            seen.append(q.list_topics())
            if seen[-1] == ["killed"]:
                assert len(q.read("killed")) == 50, f"killed at {point} of {calls}"
            else:
                assert seen[-1] == ["t"], f"killed at {point} of {calls}"
                assert q.describe_topic("t").paused
        assert alerts(target) == []
        duly.restore(home / "backups", target, force=True)
        assert topics(target) == ["t"]
        assert not list(home.glob("*.restoring*"))
        shutil.rmtree(home)
    print(f"killed at {len(seen)} of {calls} points: {seen.count(['killed'])} times the old store, else the new one")
    assert ["killed"] in seen
    assert ["t"] in seen


@pytest.fixture
def small_device(tmp_path: Path) -> Iterator[Path]:
    """A device of 5 MB."""
    point = tmp_path / "device"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(point)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"mount is not allowed here: {mounted.stderr.decode().strip()}")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def test_on_a_full_device_a_backup_is_refused_and_leaves_no_more_than_was_there(
    small_device: Path, tmp_path: Path
) -> None:
    folder = small_device / "backups"
    with duly.connect(tmp_path / "app.duly") as q:
        q.create_topic("t", kind="log")
        q.publish("t", [DICE.randbytes(1000) for _ in range(2000)])
        first = q.backup(folder)
        q.publish("t", [DICE.randbytes(1000) for _ in range(5000)])
        with pytest.raises(duly.StoreFull, match="no room"):
            q.backup(folder)
        assert duly.list_backups(folder) == [first]
        assert set(os.listdir(folder / "duly-pieces")) == set(first.pieces)
        assert [found.level for _, found in duly.verify_backups(folder)] == ["ok"]
        assert len(q.read("t", max_messages=9999)) == 7000


def test_on_a_full_device_a_restore_is_refused_and_leaves_what_was_there(small_device: Path, tmp_path: Path) -> None:
    with duly.connect(small_device / "app.duly") as q:
        q.create_topic("mine", kind="log")
    with duly.connect(tmp_path / "big.duly") as q:
        q.create_topic("t", kind="log")
        q.publish("t", [DICE.randbytes(1000) for _ in range(8000)])
        q.backup(tmp_path / "backups")
    with pytest.raises(duly.StoreFull, match="no room"):
        duly.restore(tmp_path / "backups", small_device / "app.duly", force=True)
    assert topics(small_device / "app.duly") == ["mine"]
    assert not list(small_device.glob("*.restoring*"))
