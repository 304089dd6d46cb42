"""kill -9 at any write: the events that are left tell of exactly what is left of the rest."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import duly
from tests.conftest import scaled

from .checker import Broken, expected
from .queue_model import Model
from .queue_steps import small_steps
from .queue_workload import QueueZygote
from .test_kill import lines
from .told import DEAD, LEASED, OPEN, Told
from .workload import Zygote

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as process:
        yield process


@pytest.fixture(scope="module")
def queue_zygote() -> Iterator[QueueZygote]:
    with QueueZygote() as process:
        yield process


def compare(q: duly.Client, agrees: Callable[[duly.Client, Told], None]) -> int:
    """Compares the events with the state, at one moment: a chore may go on meanwhile. Returns how many they were."""
    while True:
        events = list(q.events())
        told = Told(events)
        failed: Broken | None = None
        try:
            agrees(q, told)
        except Broken as error:
            failed = error
        if list(q.events()) == events:
            break
    if failed is not None:
        raise failed
    return len(events)


def same(what: str, told: object, found: object) -> None:
    if told != found:
        raise Broken(f"{what}: events say {told}, the store says {found}")


def logs_agree(q: duly.Client, told: Told) -> None:
    for topic in q.list_topics():
        description = q.describe_topic(topic)
        ends = {(part.partition, offset) for part in description.partitions for offset in range(part.next_offset)}
        same(f"{topic} published", told.published[topic], ends)
        for part in description.partitions:
            same(f"{topic} truncated", told.first[topic, part.partition], part.first_offset)
        for group in q.list_groups(topic):
            stands = q.describe_group(topic, group)
            dead = {(letter.message.partition, letter.message.offset) for letter in q.dead(topic, group=group)}
            same(f"{topic} {group} dead", told.having(topic, group, DEAD), dead)
            same(f"{topic} {group} leased", len(told.having(topic, group, LEASED)), stands.leased)
            same(f"{topic} {group} open", len(told.having(topic, group, OPEN)), stands.lag + stands.retrying)


def queues_agree(q: duly.Client, told: Told, model: Model, now: int) -> None:
    for topic in q.list_topics():
        description = q.describe_topic(topic)
        ends = {(part.partition, offset) for part in description.partitions for offset in range(part.next_offset)}
        same(f"{topic} published", told.published[topic], ends)
        found: list[duly.QueuedMessage] = []
        while page := q.browse(topic, after=found[-1].place if found else (0, -1), limit=1000):
            found += page
        dead = {message.place for message in found if message.state == "dead"}
        live = {message.place for message in found} - dead
        same(f"{topic} dead", told.having(topic, "queue", DEAD), dead)
        unsettled = told.having(topic, "queue", OPEN, LEASED)
        same(f"{topic} settled but shown", live - unsettled, set())
        # What has expired is not shown any more, and is dropped when somebody comes by.
        expired = sum(one.expired(now) for one in model.known.values() if one.topic == topic)
        if len(unsettled - live) > expired:
            raise Broken(f"{topic}: {unsettled - live} are not settled by events, and not there")
        leased = {message.place for message in found if message.state == "leased"}
        same(f"{topic} leased but not claimed", leased - told.having(topic, "queue", LEASED), set())


def killed(zygote: Zygote, folder: Path, **order: Any) -> tuple[bool, list[str]]:
    """Runs a life that is cut short; whether it was, and its journal."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    code = zygote.run(path=str(folder / "app.duly"), journal=str(folder / "journal"), **order)
    assert code in (0, -signal.SIGKILL)
    return code != 0, lines(folder / "journal")


@pytest.mark.timeout(scaled(300, 3600))
def test_killed_anywhere_the_events_of_logs_are_those_of_what_is_stored(zygote: Zygote, tmp_path: Path) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    died = told = 0
    points = [draw.randint(1, 500) for _ in range(scaled(15, 200))]
    for point in [*points, 10**6]:
        cut, journal = killed(zygote, tmp_path / "life", kill_at=point, aside=bool(point % 3))
        died += cut
        clock = duly.ManualClock(expected(journal).at)
        with duly.connect(tmp_path / "life" / "app.duly", clock=clock, consumer="checker") as q:
            for _ in range(2):
                told = compare(q, logs_agree)
                # What was left unpacked is packed, and is the same.
                clock.advance(1)
    print(f"killed {died} of {len(points)} times; a whole life had {told} events")
    assert told > 30
    assert died


@pytest.mark.timeout(scaled(300, 3600))
def test_killed_anywhere_the_events_of_queues_are_those_of_what_is_stored(
    queue_zygote: QueueZygote, tmp_path: Path
) -> None:
    print(f"DULY_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    died = told = 0
    points = [draw.randint(1, 1500) for _ in range(scaled(4, 60))]
    for point in [*points, 10**6]:
        cut, journal = killed(queue_zygote, tmp_path / "life", seed=SEED, kill_at=point, aside=bool(point % 3))
        died += cut
        model = Model(journal)
        clock = duly.ManualClock(model.at)
        with small_steps(), duly.connect(tmp_path / "life" / "app.duly", clock=clock, consumer="checker") as q:
            for _ in range(2):
                now = clock.now_ms()
                told = compare(q, lambda q, told: queues_agree(q, told, model, now))  # noqa: B023
                clock.advance(1)
    print(f"killed {died} of {len(points)} times; a whole life had {told} events")
    assert told > 20
    assert died
