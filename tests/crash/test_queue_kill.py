"""kill -9 of a process that works on queues, at every write point: nothing is lost, doubled, early or in part."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import duly
from tests.conftest import scaled

from .checker import Broken
from .queue_checker import check_queues, half_folded
from .queue_model import Model
from .queue_workload import QueueZygote
from .test_kill import lines, spread
from .workload import ROOT

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))
# These have to be interrupted, each at the first, second, … write of the transaction that it is part of.
PHASES = ("absorb", "promote", "fold begins", "fold", "swap", "ids", "ids fold", "truncate")


@pytest.fixture(scope="module")
def zygote() -> Iterator[QueueZygote]:
    with QueueZygote() as process:
        yield process


_whole: dict[int, tuple[int, dict[str, int]]] = {}


def whole_life(zygote: QueueZygote, folder: Path, seed: int) -> tuple[int, dict[str, int]]:
    """Runs a life unharmed and checks it; how many write calls it made, and how often each phase came."""
    if seed in _whole:
        return _whole[seed]
    folder.mkdir()
    assert zygote.run(path=str(folder / "app.duly"), journal=str(folder / "journal"), seed=seed) == 0
    said = lines(folder / "journal")
    assert not [line for line in said if "error" in json.loads(line)]
    model = check_queues(folder / "app.duly", said)
    assert model.finished
    _whole[seed] = json.loads(said[-1])["calls"], model.phases
    return _whole[seed]


def kill_and_check(zygote: QueueZygote, folder: Path, seed: int, **order: object) -> tuple[bool, int]:
    """Runs a life that is cut short, and checks what is left. Whether it was killed, and folds that were under way."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    code = zygote.run(path=str(folder / "app.duly"), journal=str(folder / "journal"), seed=seed, **order)
    assert code in (0, -signal.SIGKILL)
    # A copy is looked at: opening it is already recovery.
    shutil.copytree(folder, folder / "left")
    folds = half_folded(folder / "left" / "app.duly")
    try:
        check_queues(folder / "app.duly", lines(folder / "journal"))
    except (AssertionError, duly.Error) as error:
        pytest.fail(f"DULY_TEST_SEED={seed}, {order}: {error!r}")
    return code != 0, folds


# Each of these lives has lost, doubled or blocked something once.
ONCE_BROKEN = (175_702, 95_074, 7, 25, 54, 6, 13, 16, 19, 24, 36, 37, 38, 39)


@pytest.mark.parametrize("seed", ONCE_BROKEN[: scaled(5, len(ONCE_BROKEN))])
def test_a_life_that_was_once_broken_is_accounted_for(zygote: QueueZygote, tmp_path: Path, seed: int) -> None:
    whole_life(zygote, tmp_path / "whole", seed)


@pytest.mark.timeout(scaled(300, 7200))
def test_killed_at_any_write_call_a_queue_has_all_that_was_acknowledged_and_no_step_is_half_done(
    zygote: QueueZygote, tmp_path: Path
) -> None:
    killed = points = 0
    for seed in range(SEED, SEED + scaled(1, 2)):
        print(f"DULY_TEST_SEED={seed}")
        calls, _ = whole_life(zygote, tmp_path / f"whole{seed}", seed)
        chosen = spread(1, calls, scaled(9, calls))
        for point in chosen:
            killed += kill_and_check(zygote, tmp_path / "killed", seed, kill_at=point, aside=bool(point % 3))[0]
        points += len(chosen)
    print(f"killed at {killed} of {points} points: acked lost 0, half steps 0, early 0, two valid leases 0")
    assert killed >= points * 0.7


@pytest.mark.timeout(scaled(300, 7200))
def test_killed_in_the_middle_of_an_absorb_a_promotion_a_fold_or_a_swap(zygote: QueueZygote, tmp_path: Path) -> None:
    killed: dict[str, int] = dict.fromkeys(PHASES, 0)
    folds = 0
    lives = 0
    for seed in range(SEED, SEED + 50):
        print(f"DULY_TEST_SEED={seed}")
        _, phases = whole_life(zygote, tmp_path / f"whole{seed}", seed)
        if not phases.get("swap"):
            # In its life no fold came to an end.
            continue
        lives += 1
        if lives > scaled(1, 5):
            break
        draw = random.Random(seed)
        for phase in PHASES:
            come = phases.get(phase, 0)
            for time in sorted(draw.sample(range(1, come + 1), min(come, scaled(1, 12)))):
                for after in [draw.choice([1, 2, 3, 5, 8])] if scaled(1, 0) else (1, 2, 3, 5, 8, 13):
                    order = {"kill_in": [phase, time], "kill_after": after, "aside": bool(time % 2)}
                    died, under_way = kill_and_check(zygote, tmp_path / "killed", seed, **order)
                    killed[phase] += died
                    folds += under_way > 0
    print(f"killed in {killed}; {folds} times a fold was under way")
    assert all(killed[phase] for phase in ("absorb", "promote", "fold", "swap")), killed


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
@pytest.mark.timeout(scaled(300, 7200))
def test_killed_by_strace_in_the_middle_of_a_system_call(tmp_path: Path, call: str) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    killed = 0
    # strace counts calls per thread: the writer's alone come this far.
    points = spread(40, 300, scaled(2, 25)) if call == "pwrite64" else spread(15, 40, scaled(2, 25))
    for point in points:
        folder = tmp_path / f"{point}"
        folder.mkdir()
        order = {"path": str(folder / "app.duly"), "journal": str(folder / "journal"), "vfs": False, "seed": SEED}
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={point}"]
        command = ["strace", "-f", "-qq", "-o", "/dev/null", *inject, sys.executable, "-m"]
        command += ["tests.crash.queue_workload", "--once", json.dumps(order)]
        done = subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True)
        if b"ptrace" in done.stderr and b"not permitted" in done.stderr:
            pytest.skip("strace may not trace here")
        killed += done.returncode != 0
        check_queues(folder / "app.duly", lines(folder / "journal"))
    print(f"killed by strace at {killed} of {len(points)} {call} calls")
    assert killed >= len(points) - 1


# The checker itself: what it must notice, done to the store of a whole life. Nothing is under a fold's control there
# that these statements would miss: each has to change something.
SABOTAGES = {
    "a run is lost": "DELETE FROM duly_run WHERE pos < count AND sources IS NULL",
    "a run is served again": "UPDATE duly_run SET pos = 0 WHERE pos > 0",
    "a run is skipped": "UPDATE duly_run SET pos = pos + 1 WHERE pos < count AND sources IS NULL",
    "holes are forgotten": "DELETE FROM duly_hole",
    "failed and moved messages are lost": "DELETE FROM duly_loose WHERE waits = 1",
    "they come early": "UPDATE duly_loose SET due_at_ms = due_at_ms - 100000 WHERE waits = 1",
    "leases are lost": "DELETE FROM duly_lease",
    "leases end early": "UPDATE duly_lease SET due_at_ms = 0",
    "leases are doubled": (
        "INSERT INTO duly_lease (tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live,"
        " attempts, alone, suspect, offsets, settled, history, keys)"
        " SELECT tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live,"
        " attempts, alone, suspect, offsets, settled, history, keys FROM duly_lease"
    ),
    "dead letters are lost": "DELETE FROM duly_dead",
    "the young end is forgotten": "UPDATE duly_queue SET absorbed_to = absorbed_to + 1, taken = X''",
    "lanes are full for ever": "UPDATE duly_lane SET in_flight = in_flight + 1, look_at_ms = NULL",
    "what waits in lanes is lost": "DELETE FROM duly_lane_wait",
    "publish ids are forgotten": "DELETE FROM duly_receipt",
    "a topic is lost": "DELETE FROM duly_topic WHERE name = 'some'",
}


@pytest.fixture(scope="module")
def rich_life(zygote: QueueZygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A life cut short where every table has something in it, so that every sabotage can be done to it."""
    folder = tmp_path_factory.mktemp("rich")
    for seed in range(1000, 1040):
        for point in (700, 1000):
            shutil.rmtree(folder)
            folder.mkdir()
            zygote.run(path=str(folder / "app.duly"), journal=str(folder / "journal"), seed=seed, kill_at=point)
            if all(_can_be_done(folder, statement) for statement in SABOTAGES.values()) and _several_leases(folder):
                shutil.copytree(folder, folder / "checked")
                check_queues(folder / "checked" / "app.duly", lines(folder / "journal"))
                return folder
    pytest.skip("no seed makes a life that is rich enough")


def _several_leases(folder: Path) -> bool:
    """Whether some are held: one that was just being settled when it was killed may be gone, and is not missed."""
    connection = apsw.Connection(str(folder / "app.duly"))
    try:
        held = connection.execute("SELECT id FROM duly_lease WHERE state = 0").fetchall()
    finally:
        connection.close()
    return len(held) >= 3


def _can_be_done(folder: Path, statement: str) -> bool:
    connection = apsw.Connection(str(folder / "app.duly"))
    try:
        connection.execute("BEGIN")
        connection.execute(statement)
        changed = connection.changes() > 0
        connection.execute("ROLLBACK")
    finally:
        connection.close()
    return changed


@pytest.mark.parametrize("what", SABOTAGES)
def test_the_checker_notices_when(rich_life: Path, tmp_path: Path, what: str) -> None:
    for name in ("app.duly", "app.duly-wal"):
        if (rich_life / name).exists():
            shutil.copy(rich_life / name, tmp_path / name)
    connection = apsw.Connection(str(tmp_path / "app.duly"))
    connection.execute(SABOTAGES[what])
    assert connection.changes() > 0
    connection.close()
    with pytest.raises((Broken, duly.Error)) as caught:
        check_queues(tmp_path / "app.duly", lines(rich_life / "journal"))
    print(str(caught.value)[:500])


def test_the_model_notices_what_a_journal_must_not_say() -> None:
    spec = {"key": "1:0", "due": 1000}
    published = [
        {"at": 0, "begin": 1, "what": "publish", "topic": "jobs", "batch": 1, "publish_id": None, "specs": [spec]},
        {"at": 0, "done": 1, "absent": [], "ids": ["@1-0"]},
    ]

    def claimed(number: int, at: int) -> list[dict[str, object]]:
        return [
            {"at": at, "begin": number, "what": "claim", "topic": "jobs", "most": 1},
            {"at": at, "done": number, "keys": ["1:0"], "until": at + 100},
        ]

    def did(number: int, at: int, what: str, **end: object) -> list[dict[str, object]]:
        begin = {"at": at, "begin": number, "what": what, "topic": "jobs", "keys": ["1:0"], "ids": ["@1-0"]}
        return [begin, {"at": at, "done": number, **end}]

    def tell(*entries: dict[str, object]) -> Model:
        return Model([json.dumps(entry) for entry in [*published, *entries]])

    assert tell(*claimed(2, 1000), *claimed(3, 1100)).deliveries == 2
    with pytest.raises(Broken, match="before its time"):
        tell(*claimed(2, 999))
    with pytest.raises(Broken, match="somebody holds it"):
        tell(*claimed(2, 1000), *claimed(3, 1099))
    with pytest.raises(Broken, match="it is settled"):
        tell(*claimed(2, 1000), *did(3, 1000, "ack", lost=[]), *claimed(4, 2000))
    with pytest.raises(Broken, match="it is settled"):
        tell(*did(3, 1000, "cancel", answer={"@1-0": "cancelled"}), *claimed(4, 2000))
    with pytest.raises(Broken, match="cancelled under its lease"):
        tell(*claimed(2, 1000), *did(3, 1000, "cancel", answer={"@1-0": "leased"}), *claimed(4, 2000))
    with pytest.raises(Broken, match="said finished"):
        tell(*did(3, 1000, "cancel", answer={"@1-0": "finished"}))
