"""Power loss: of what was not synced any part may be missing, torn or out of order; what was acknowledged is there."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import duly
from tests.conftest import scaled

from .checker import Broken, check
from .power_vfs import EVERYTHING, NOTHING, Event, Luck, materialise, power_loss
from .workload import Zygote

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as process:
        yield process


def record(zygote: Zygote, folder: Path, *pragmas: str, **order: Any) -> list[Event]:
    """Runs the workload once and returns what it did to the disk, with its journal as marks."""
    folder.mkdir()
    paths = {name: str(folder / name) for name in ("journal", "record")}
    code = zygote.run(path=str(folder / "app.duly"), **paths, pragmas=pragmas, **order)
    assert code == 0
    events: list[Event] = pickle.loads((folder / "record").read_bytes())
    if "fail_syncs" not in order:
        assert not [event for event in events if event.kind == "mark" and '"error"' in event.name]
    return events


def lose_power(events: Sequence[Event], folder: Path, luck: Luck) -> None:
    """Checks what is left after the power went behind these events."""
    shutil.rmtree(folder, ignore_errors=True)
    materialise(power_loss(events, luck), folder)
    check(folder / "app.duly", [event.name for event in events if event.kind == "mark"])


@pytest.mark.timeout(scaled(300, 7200))
def test_power_loss_at_any_point_loses_nothing_acknowledged(zygote: Zygote, tmp_path: Path) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    events = record(zygote, tmp_path / "whole", aside=bool(SEED % 2))
    draw = random.Random(SEED)
    rounds = scaled(1, 3)
    points = sorted(draw.sample(range(1, len(events) + 1), min(len(events), scaled(60, len(events)))))
    for point in points:
        for turn in range(rounds):
            luck = Luck.of(f"{SEED} {point} {turn}")
            try:
                lose_power(events[:point], tmp_path / "lost", luck)
            except (AssertionError, duly.Error) as error:
                pytest.fail(
                    f"DULY_TEST_SEED={SEED}: power lost behind event {point} of {len(events)}, {luck}: {error!r}"
                )
    print(f"{len(points) * rounds} power losses at {len(points)} of {len(events)} points: acked lost 0, half batches 0")


def test_power_loss_right_after_each_acknowledgement_with_nothing_unsynced_left(zygote: Zygote, tmp_path: Path) -> None:
    events = record(zygote, tmp_path / "whole")
    marks = [at for at, event in enumerate(events, start=1) if event.kind == "mark" and '"done"' in event.name]
    for point in marks:
        lose_power(events[:point], tmp_path / "lost", NOTHING)
    print(f"{len(marks)} acknowledgements, 0 lost")


def test_the_test_can_fail_without_a_sync_at_commit_acknowledged_writes_are_lost(
    zygote: Zygote, tmp_path: Path
) -> None:
    events = record(zygote, tmp_path / "whole", "PRAGMA synchronous = NORMAL")
    marks = [at for at, event in enumerate(events, start=1) if event.kind == "mark" and '"done"' in event.name]
    lost = 0
    for point in marks:
        try:
            lose_power(events[:point], tmp_path / "lost", NOTHING)
        except Broken:
            lost += 1
    print(f"synchronous=NORMAL: acknowledged writes lost at {lost} of {len(marks)} points")
    assert lost > len(marks) // 4


@pytest.mark.parametrize("forking", [False, True], ids=["", "and the writer is alone on the file"])
@pytest.mark.timeout(scaled(300, 7200))
def test_a_failed_sync_of_a_commit_and_then_power_loss_loses_nothing_and_brings_nothing_refused_back(
    zygote: Zygote, tmp_path: Path, forking: bool
) -> None:
    """A sync that fails once, twice or four times in a row; the power goes somewhere after it.

    Forking closes all connections: then nobody but the writer knows which frames of the WAL count.
    """
    print(f"DULY_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    runs = [(first, times) for times in (1, 2, 4) for first in draw.sample(range(8, 45), scaled(3, 12))]
    for run, (first, times) in enumerate(runs):
        failing = list(range(first, first + times))
        events = record(zygote, tmp_path / f"run{run}", fail_syncs=failing, fail_of="-wal", forking=forking)
        broken = after_failed_sync(events, tmp_path / "lost", draw, scaled(3, 25))
        if broken:
            pytest.fail(f"DULY_TEST_SEED={SEED}: syncs {failing} failed, {broken}")


@pytest.mark.timeout(scaled(300, 7200))
def test_a_failed_sync_of_the_database_file_in_a_checkpoint_corrupts_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """Pages that a failed sync left behind are never written by a later one: the checkpoint has to copy them again."""
    print(f"DULY_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    for run in range(scaled(6, 60)):
        # The first three are of the file's making, before there is a WAL.
        failing = [4 + run % 4]
        events = record(zygote, tmp_path / f"run{run}", fail_syncs=failing, fail_of="app.duly")
        if not [event for event in events if event.kind == "sync_failed"]:
            continue
        broken = after_failed_sync(events, tmp_path / "lost", draw, scaled(3, 25))
        if broken:
            pytest.fail(f"DULY_TEST_SEED={SEED}: sync {failing} of the database file failed, {broken}")


def test_the_test_can_fail_a_failed_commit_that_is_not_written_over_comes_back(zygote: Zygote, tmp_path: Path) -> None:
    found = 0
    for first in range(14, 40, 2):
        how = {"fail_syncs": [first], "sabotage": "doubts are left"}
        events = record(zygote, tmp_path / f"run{first}", **how)
        broken = after_failed_sync(events, tmp_path / "lost", random.Random(first), 0)
        found += broken is not None and "was refused and is there" in broken
    print(f"{found} refused batches came back")
    assert found


def after_failed_sync(events: Sequence[Event], folder: Path, draw: random.Random, times: int) -> str | None:
    """Loses power at some points behind the first failed sync; says what was broken."""
    failed = next(at for at, event in enumerate(events) if event.kind == "sync_failed")
    marks = [at for at, event in enumerate(events, start=1) if event.kind == "mark" and at > failed]
    points = draw.sample(range(failed + 1, len(events) + 1), min(times, len(events) - failed))
    fates = [(point, Luck.of(draw.random())) for point in points]
    # Right behind the first answer nothing has been written that could hide what went wrong.
    fates += [(marks[0], EVERYTHING), (marks[0], NOTHING), (len(events), EVERYTHING), (len(events), NOTHING)]
    for point, luck in fates:
        try:
            lose_power(events[:point], folder, luck)
        except (AssertionError, duly.Error) as error:
            said = [event.name for event in events if event.kind == "mark" and "error" in event.name]
            return f"power lost behind event {point} of {len(events)} with {luck}: {error!r}; {said}"
    return None
