"""Power loss under queues: of what was not synced any part may be missing; what was acknowledged is there."""

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

from .checker import Broken
from .power_vfs import EVERYTHING, NOTHING, Event, Luck, materialise, power_loss
from .queue_checker import check_queues
from .queue_workload import QueueZygote

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))


@pytest.fixture(scope="module")
def zygote() -> Iterator[QueueZygote]:
    with QueueZygote() as process:
        yield process


def record(zygote: QueueZygote, folder: Path, *pragmas: str, **order: Any) -> list[Event]:
    """Runs a life once and returns what it did to the disk, with its journal as marks."""
    folder.mkdir()
    paths = {name: str(folder / name) for name in ("journal", "record")}
    assert zygote.run(path=str(folder / "app.duly"), **paths, pragmas=pragmas, **order) == 0
    events: list[Event] = pickle.loads((folder / "record").read_bytes())
    if "fail_syncs" not in order:
        assert not [event for event in events if event.kind == "mark" and '"error"' in event.name]
    return events


@pytest.fixture(scope="module")
def whole(zygote: QueueZygote, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The record of a life that nothing happened to."""
    return record(zygote, tmp_path_factory.mktemp("queue-power") / "whole", seed=SEED, aside=bool(SEED % 2))


def lose_power(events: Sequence[Event], folder: Path, luck: Luck) -> None:
    """Checks what is left after the power went behind these events."""
    shutil.rmtree(folder, ignore_errors=True)
    materialise(power_loss(events, luck), folder)
    check_queues(folder / "app.duly", [event.name for event in events if event.kind == "mark"])


def acknowledged(events: Sequence[Event]) -> list[int]:
    """Where answers are, in the record."""
    return [at for at, event in enumerate(events, start=1) if event.kind == "mark" and '"done"' in event.name]


@pytest.mark.timeout(scaled(300, 7200))
def test_power_loss_at_any_point_loses_nothing_acknowledged(whole: list[Event], tmp_path: Path) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    points = sorted(draw.sample(range(1, len(whole) + 1), min(len(whole), scaled(7, len(whole)))))
    for point in points:
        luck = Luck.of(f"{SEED} {point}")
        try:
            lose_power(whole[:point], tmp_path / "lost", luck)
        except (AssertionError, duly.Error) as error:
            pytest.fail(f"DULY_TEST_SEED={SEED}: power lost behind event {point} of {len(whole)}, {luck}: {error!r}")
    print(f"{len(points)} power losses in {len(whole)} events: acked lost 0, half steps 0")


@pytest.mark.timeout(scaled(300, 7200))
def test_power_loss_right_after_an_acknowledgement_with_nothing_unsynced_left(
    whole: list[Event], tmp_path: Path
) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    marks = acknowledged(whole)
    chosen = sorted(random.Random(SEED).sample(marks, min(len(marks), scaled(6, len(marks)))))
    for point in chosen:
        lose_power(whole[:point], tmp_path / "lost", NOTHING)
    print(f"{len(chosen)} acknowledgements, 0 lost")


def test_the_test_can_fail_without_a_sync_at_commit_acknowledged_steps_are_lost(
    zygote: QueueZygote, tmp_path: Path
) -> None:
    events = record(zygote, tmp_path / "whole", "PRAGMA synchronous = NORMAL", seed=SEED)
    marks = acknowledged(events)
    chosen = marks[10 :: max(1, len(marks) // 6)]
    lost = 0
    for point in chosen:
        try:
            lose_power(events[:point], tmp_path / "lost", NOTHING)
        except Broken:
            lost += 1
    print(f"synchronous=NORMAL: acknowledged steps lost at {lost} of {len(chosen)} points")
    assert lost


@pytest.mark.parametrize("of", ["-wal", "app.duly"])
@pytest.mark.timeout(scaled(300, 7200))
def test_a_failed_sync_and_then_power_loss_loses_nothing_and_brings_nothing_refused_back(
    zygote: QueueZygote, tmp_path: Path, of: str
) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    for run in range(scaled(1, 15)):
        # The first three of the database file are of its making, before there is a WAL.
        first = draw.randrange(12, 70) if of == "-wal" else 4 + run % 4
        failing = list(range(first, first + draw.choice([1, 2, 4]))) if of == "-wal" else [first]
        events = record(zygote, tmp_path / f"run{run}", seed=SEED + run, fail_syncs=failing, fail_of=of)
        failed = [at for at, event in enumerate(events) if event.kind == "sync_failed"]
        if not failed:
            continue
        marks = [at for at, event in enumerate(events, start=1) if event.kind == "mark" and at > failed[0]]
        # One that fails near the end leaves few.
        after = range(failed[0] + 1, len(events) + 1)
        points = draw.sample(after, min(len(after), scaled(1, 20)))
        fates = [(point, Luck.of(draw.random())) for point in points]
        # Right behind the first answer nothing has been written that could hide what went wrong.
        fates += [fate for mark in marks[:1] for fate in ((mark, EVERYTHING), (mark, NOTHING))]
        fates.append((len(events), NOTHING))
        for point, luck in fates:
            try:
                lose_power(events[:point], tmp_path / "lost", luck)
            except (AssertionError, duly.Error) as error:
                pytest.fail(
                    f"DULY_TEST_SEED={SEED}, life {SEED + run}: syncs {failing} of {of} failed, power lost behind"
                    f" event {point} of {len(events)} with {luck}: {error!r}"
                )
