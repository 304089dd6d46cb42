"""A full or failing disk under queues: writes are refused and change nothing, looking goes on, nothing is lost."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

import duly
from tests.conftest import scaled

from .power_vfs import Connection, Disk, DiskVFS, Fault
from .queue_checker import check_queues
from .queue_steps import small_steps
from .queue_workload import QueueZygote
from .test_disk import failing, no_room
from .test_kill import lines

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))
REFUSALS = (duly.StoreFull, duly.StoreError)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A disk under every store that the test opens."""
    made = Disk(recording=False)
    vfs = DiskVFS(made)
    monkeypatch.setattr(apsw, "Connection", Connection)
    yield made
    made.fault = None
    vfs.unregister()


@pytest.fixture
def q(path: str, disk: Disk, clock: duly.ManualClock) -> Iterator[duly.Client]:
    with small_steps(), duly.connect(path, clock=clock) as client:
        client.create_topic("jobs", kind="queue", lease=60, retry=duly.RetryPolicy(max_attempts=100))
        yield client
        disk.fault = None


def fill(q: duly.Client, name: str, count: int) -> list[bytes]:
    """Messages that are due, of some priorities and lanes, and as many that will be."""
    bodies = [f"{name}{number}".encode() for number in range(count)]
    q.publish(
        "jobs",
        [
            duly.Message(body, id=body.decode(), priority=at % 3, lane=("", "a", "b")[at % 3] or None, due=at % 2 * 5)
            for at, body in enumerate(bodies)
        ],
    )
    return bodies


def picture(q: duly.Client) -> dict[str, tuple[object, ...]]:
    """Every unsettled message as it stands."""
    found = q.browse("jobs", limit=1000)
    return {one.id: (one.state, one.due_at_ms, one.priority, one.attempts, one.lease_expires_at_ms) for one in found}


def drain(q: duly.Client) -> Counter[bytes]:
    """Claims and acks all that comes."""
    came: Counter[bytes] = Counter()
    empty = 0
    # A claim may answer with nothing while it still promotes.
    while empty < 5:
        batch = q.claim("jobs")
        empty = 0 if batch else empty + 1
        came.update(batch.payloads)
        assert not q.ack(batch).lost
    return came


def after_a_crash(path: str, folder: Path, clock: duly.ManualClock) -> dict[str, tuple[object, ...]]:
    """What a new process would find if this one were killed now: the files as the kernel has them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for suffix in ("", "-wal"):
        if os.path.exists(path + suffix):
            shutil.copy(path + suffix, folder / ("app.duly" + suffix))
    with duly.connect(folder / "app.duly", clock=clock) as q:
        assert not [finding for finding in q.examine() if finding.level == "alert"]
        return picture(q)


def writes(q: duly.Client, held: duly.Batch, moved: str) -> dict[str, Callable[[], object]]:
    return {
        "publish": lambda: q.publish("jobs", [b"more"] * 20),
        "claim": lambda: q.claim("jobs"),
        "ack": held[0].ack,
        "ack all": lambda: q.ack(held),
        "nack": lambda: held[0].nack(delay=1),
        "release": held[0].release,
        "bury": held[0].bury,
        "extend": held[0].extend,
        "move": lambda: q.move("jobs", moved, due=30),
        "cancel": lambda: q.cancel("jobs", [moved, held[0].id]),
        "redrive": lambda: q.redrive("jobs"),
    }


def test_on_a_full_disk_every_write_to_a_queue_is_refused_and_changes_nothing(
    q: duly.Client, disk: Disk, path: str, tmp_path: Path, clock: duly.ManualClock
) -> None:
    bodies = fill(q, "m", 60)
    q.claim("jobs", max_messages=1)[0].bury()
    held = q.claim("jobs", max_messages=5)
    before = picture(q)
    assert len(before) == 60
    disk.fault = no_room()
    for act in writes(q, held, "m59").values():
        with pytest.raises(duly.StoreFull):
            act()
        assert picture(q) == before
        assert q.get("jobs", "m59") is not None
    assert after_a_crash(path, tmp_path / "crashed", clock) == before
    disk.fault = None
    assert q.ack(held).done == 5
    assert q.redrive("jobs") == 1
    clock.advance(100)
    assert drain(q) == Counter(set(bodies) - set(held.payloads))
    assert not picture(q)


@pytest.mark.parametrize("times", [1, 2, 1_000_000], ids=["once", "twice", "for ever"])
def test_a_failing_sync_under_a_queue_says_refused_only_when_nothing_changed(
    q: duly.Client, disk: Disk, path: str, tmp_path: Path, clock: duly.ManualClock, times: int
) -> None:
    fill(q, "m", 40)
    q.claim("jobs", max_messages=1)[0].bury()
    held = q.claim("jobs", max_messages=5)
    failed = 0
    for what, act in writes(q, held, "m39").items():
        before = picture(q)
        disk.fault = failing(times)
        try:
            act()
        except duly.LeaseLost:
            pass
        except duly.Error as error:
            said = "othing was" in str(error) and not isinstance(error, duly.PublishUnknown)
            failed += 1
            assert not said or picture(q) == before, f"{what} was refused, and something changed"
        disk.fault = None
        # The first write after a doubt settles it; then the file has what the process sees.
        q.publish("jobs", duly.Message(b"next", due=1000))
        assert after_a_crash(path, tmp_path / "crashed", clock) == picture(q), what
    assert failed or times == 1
    clock.advance(2000)
    drain(q)
    assert {state for state, *_ in picture(q).values()} <= {"dead"}


def nth(number: int, many: int = 1) -> Fault:
    """No room at the nth write, and those after it."""
    seen = 0

    def fault(what: str, name: str) -> Exception | None:
        nonlocal seen
        seen += what == "write"
        return apsw.FullError("no room") if what == "write" and number <= seen < number + many else None

    return fault


def test_an_absorb_or_a_fold_that_finds_no_room_is_undone_and_done_again(
    q: duly.Client, disk: Disk, clock: duly.ManualClock
) -> None:
    """Publishing absorbs and folds; wherever it breaks off, memory must not run ahead of the file."""
    wanted: Counter[bytes] = Counter()
    refused = 0
    for number in range(1, scaled(50, 400)):
        disk.fault = nth(number % 50, many=1 + number % 3)
        try:
            wanted.update(fill(q, f"m{number}-", 1 + number % 20))
        except REFUSALS:
            refused += 1
        disk.fault = None
        if number % 5 == 0:
            batch = q.claim("jobs", max_messages=15)
            wanted.subtract(batch.payloads)
            assert not q.ack(batch).lost
    clock.advance(100)
    assert drain(q) == +wanted
    assert refused
    assert not [finding for finding in q.examine() if finding.level == "alert"]


@pytest.fixture(scope="module")
def zygote() -> Iterator[QueueZygote]:
    with QueueZygote() as process:
        yield process


@pytest.mark.parametrize("kind", ["full", "sync"])
@pytest.mark.timeout(scaled(300, 7200))
def test_a_life_in_which_calls_fail_is_accounted_for(zygote: QueueZygote, tmp_path: Path, kind: str) -> None:
    """What was answered is so; what was refused did not happen; what nobody knows happened whole or not at all."""
    draw = random.Random(SEED)
    failed = 0
    for run in range(scaled(4, 120)):
        seed = SEED + run
        folder = tmp_path / f"{run}"
        folder.mkdir()
        order: dict[str, object] = {"full_from": draw.randrange(150, 900), "full_for": draw.choice([1, 3, 40])}
        if kind == "sync":
            first = draw.randrange(12, 90)
            order = {"fail_syncs": list(range(first, first + draw.choice([1, 2, 5])))}
        code = zygote.run(path=str(folder / "app.duly"), journal=str(folder / "journal"), seed=seed, **order)
        assert code == 0, f"DULY_TEST_SEED={seed} {order}"
        said = lines(folder / "journal")
        failed += any('"error"' in line for line in said)
        try:
            check_queues(folder / "app.duly", said)
        except (AssertionError, duly.Error) as error:
            pytest.fail(f"DULY_TEST_SEED={seed}, {order}: {error!r}")
    print(f"{failed} lives had a failing step")
    assert failed
