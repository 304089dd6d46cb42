"""A full or failing disk: writes are refused, reads go on, nothing acked is lost, nothing refused appears."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

import duly
from tests.conftest import scaled

from .checker import check_integrity
from .power_vfs import Connection, Disk, DiskVFS, Fault, Luck, full, materialise, power_loss, sync_failure

BODY = b"x" * 20_000
# What a refused write may raise. After each of these nothing was stored.
REFUSALS = (duly.StoreFull, duly.StoreError)


@pytest.fixture
def recording() -> bool:
    return False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, recording: bool) -> Iterator[Disk]:
    """A disk under every store that the test opens."""
    made = Disk(recording=recording)
    vfs = DiskVFS(made)
    monkeypatch.setattr(apsw, "Connection", Connection)
    yield made
    made.fault = None
    vfs.unregister()


@pytest.fixture
def q(path: str, disk: Disk, clock: duly.ManualClock) -> Iterator[duly.Client]:
    with duly.connect(path, clock=clock) as client:
        client.create_topic("log", kind="log")
        client.create_group("log", "g")
        yield client
        disk.fault = None


def bodies(q: duly.Client) -> list[bytes]:
    return [one.payload[-8:] for one in q.read("log", max_messages=10_000)]


def body(number: int) -> bytes:
    return BODY + f"{number:08}".encode()


def after_a_crash(path: str, folder: Path) -> list[bytes]:
    """What a new process would find if this one were killed now: the files as the kernel has them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for suffix in ("", "-wal"):
        if os.path.exists(path + suffix):
            shutil.copy(path + suffix, folder / ("app.duly" + suffix))
    with duly.connect(folder / "app.duly") as q:
        return bodies(q)


def no_room() -> Fault:
    return lambda what, name: full() if what == "write" else None


def failing(times: int, of: str = "", what: str = "sync") -> Fault:
    """Fails so many calls, of files with such a name."""
    left = times

    def fault(called: str, name: str) -> Exception | None:
        nonlocal left
        if called != what or not name.endswith(of) or left == 0:
            return None
        left -= 1
        return sync_failure()

    return fault


def test_on_a_full_disk_publish_is_refused_reads_go_on_and_room_heals_it(
    q: duly.Client, disk: Disk, path: str, tmp_path: Path
) -> None:
    for number in range(5):
        q.publish("log", body(number))
    disk.fault = no_room()
    for number in range(5, 9):
        with pytest.raises(duly.StoreFull):
            q.publish("log", body(number))
        assert bodies(q) == [body(n)[-8:] for n in range(5)]
    assert after_a_crash(path, tmp_path / "crashed") == [body(n)[-8:] for n in range(5)]
    disk.fault = None
    q.publish("log", body(9))
    wanted = [body(n)[-8:] for n in (0, 1, 2, 3, 4, 9)]
    assert bodies(q) == wanted
    assert after_a_crash(path, tmp_path / "crashed") == wanted


def test_on_a_full_disk_claim_and_settle_are_refused_and_change_nothing(q: duly.Client, disk: Disk) -> None:
    q.publish("log", [b"1", b"2", b"3"])
    held = q.claim("log", group="g", max_messages=1)
    disk.fault = no_room()
    for act in _writes(q, held):
        with pytest.raises(duly.StoreFull):
            act()
    disk.fault = None
    assert q.list_topics() == ["log"]
    assert q.list_groups("log") == ["g"]
    assert q.claim("log", group="g").payloads == [b"2", b"3"]
    held[0].ack()


def _writes(q: duly.Client, held: duly.Batch) -> list[Callable[[], object]]:
    return [
        lambda: q.claim("log", group="g"),
        held[0].ack,
        held[0].nack,
        held[0].release,
        held[0].bury,
        held[0].extend,
        lambda: q.create_topic("another", kind="log"),
        lambda: q.create_group("log", "another"),
        lambda: q.seek("log", "g", offset=0),
    ]


def test_opening_a_store_on_a_full_disk_is_one_of_our_errors(disk: Disk, tmp_path: Path) -> None:
    disk.fault = no_room()
    with pytest.raises(duly.StoreFull):
        duly.connect(tmp_path / "new.duly")
    disk.fault = None
    with duly.connect(tmp_path / "new.duly") as q:
        q.create_topic("log", kind="log")


@pytest.mark.parametrize("alone", [False, True], ids=["", "with the writer alone on the file"])
@pytest.mark.parametrize("of", ["-wal", ""], ids=["wal", "every file"])
@pytest.mark.parametrize("times", [1, 2, 3, 1_000_000], ids=["once", "twice", "three times", "for ever"])
def test_a_failing_sync_refuses_the_publish_or_leaves_it_unknown_and_its_id_settles_it(
    q: duly.Client, disk: Disk, path: str, tmp_path: Path, times: int, of: str, alone: bool
) -> None:
    """Refused: it never appears. Unknown: repeated with its publish id it is there once."""
    acked = [0]
    q.publish("log", body(0), publish_id="p0")
    if alone:
        _close_all_connections()
    disk.fault = failing(times, of)
    unknown: list[int] = []
    for number in range(1, 7):
        try:
            q.publish("log", body(number), publish_id=f"p{number}")
            acked.append(number)
        except duly.PublishUnknown as error:
            unknown.append(int(error.publish_id[1:]))
        except REFUSALS:
            pass
        assert set(bodies(q)) >= {body(n)[-8:] for n in acked}
        found = after_a_crash(path, tmp_path / "crashed")
        assert set(found) >= {body(n)[-8:] for n in acked}, "acked and gone after a crash"
        assert set(found) <= {body(n)[-8:] for n in acked + unknown}, "refused and there after a crash"
    disk.fault = None
    for number in unknown:
        q.publish("log", body(number), publish_id=f"p{number}")
    q.publish("log", body(7))
    wanted = sorted(body(n)[-8:] for n in [*acked, *unknown, 7])
    assert sorted(bodies(q)) == wanted
    assert sorted(after_a_crash(path, tmp_path / "crashed")) == wanted
    if times == 1_000_000 and not alone:
        assert not acked[1:]


def _close_all_connections() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize("recording", [True], ids=[""])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "let go"])
@pytest.mark.parametrize("times", [2, 3, 4, 1_000_000], ids=["twice", "three times", "four times", "for ever"])
def test_a_commit_in_doubt_is_not_copied_into_the_file_by_whoever_opens_it_next(
    q: duly.Client, disk: Disk, path: str, tmp_path: Path, times: int, closed: bool
) -> None:
    """The page cache has frames that no sync brings to the disk any more: copied, they would be half there after a
    power loss, and no log to make them whole.
    """
    _close_all_connections()
    # Whoever connects again folds the log in: after this it holds few pages, and not those of the next step.
    q.publish("log", body(0))
    disk.fault = failing(times, "-wal")
    with pytest.raises(duly.StoreError):
        q.create_topic("another", kind="log", partitions=20)
    if closed:
        q.close()
    else:
        _close_all_connections()
    disk.fault = None
    first = len(disk.events)
    duly.connect(path).close()
    events = list(disk.events)
    for point in range(first, len(events) + 1):
        for turn in range(scaled(2, 10)):
            shutil.rmtree(tmp_path / "lost", ignore_errors=True)
            luck = Luck(f"{point} {turn}", whole=1 / 3, torn=1 / 3)
            materialise(power_loss(events[:point], luck), tmp_path / "lost")
            check_integrity(tmp_path / "lost" / "app.duly")
    with duly.connect(tmp_path / "lost" / "app.duly") as found:
        assert bodies(found) == [body(0)[-8:]]


@pytest.mark.parametrize("times", [1, 2, 1_000_000], ids=["once", "twice", "for ever"])
def test_a_publish_without_an_id_that_is_unknown_is_settled_by_the_id_in_the_error(
    q: duly.Client, disk: Disk, times: int
) -> None:
    q.publish("log", body(0))
    disk.fault = failing(times)
    unknown: dict[str, int] = {}
    acked = [0]
    for number in range(1, 5):
        try:
            q.publish("log", body(number))
            acked.append(number)
        except duly.PublishUnknown as error:
            unknown[error.publish_id] = number
        except REFUSALS:
            pass
    disk.fault = None
    for publish_id, number in [*unknown.items(), *unknown.items()]:
        q.publish("log", body(number), publish_id=publish_id)
    assert sorted(bodies(q)) == sorted(body(n)[-8:] for n in [*acked, *unknown.values()])


@pytest.mark.parametrize("times", [1, 2, 3, 1_000_000], ids=["once", "twice", "three times", "for ever"])
def test_a_failing_sync_at_a_settlement_says_refused_only_when_nothing_changed(
    q: duly.Client, disk: Disk, times: int
) -> None:
    q.publish("log", [b"1", b"2", b"3", b"4"])
    held = q.claim("log", group="g")
    disk.fault = failing(times)
    said: dict[bytes, str] = {}
    for delivery in held:
        try:
            delivery.ack()
            said[delivery.payload] = "acked"
        except duly.Error as error:
            said[delivery.payload] = "refused" if "othing was" in str(error) else "unknown"
    disk.fault = None
    for delivery in held:
        if said[delivery.payload] == "acked":
            with pytest.raises(duly.LeaseLost):
                delivery.ack()
        elif said[delivery.payload] == "refused":
            delivery.ack()


# apsw tells of an error in our VFS that SQLite chose to ignore; on a real disk nobody would hear of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["write", "sync", "truncate"])
def test_any_single_failing_call_loses_nothing_and_brings_nothing_back(disk: Disk, tmp_path: Path, kind: str) -> None:
    """The nth write, sync or truncate fails, for every n of a small life with checkpoints."""
    for nth in range(1, scaled(40, 400), scaled(3, 1)):
        path = str(tmp_path / f"{nth}.duly")
        disk.fault = _nth(nth, kind)
        acked, unknown = _small_life(path)
        disk.fault = None
        found = after_a_crash(path, tmp_path / "crashed")
        assert {body(n)[-8:] for n in acked} <= set(found), f"{kind} {nth}: acked and gone"
        assert set(found) <= {body(n)[-8:] for n in acked + unknown}, f"{kind} {nth}: refused and there"
        assert len(found) == len(set(found))


def _nth(nth: int, kind: str) -> Fault:
    seen = 0

    def fault(what: str, name: str) -> Exception | None:
        nonlocal seen
        seen += what == kind
        return (full() if kind == "write" else sync_failure()) if what == kind and seen == nth else None

    return fault


def _small_life(path: str) -> tuple[list[int], list[int]]:
    acked: list[int] = []
    unknown: list[int] = []
    for _ in range(3):
        try:
            q = duly.connect(path)
            break
        except duly.Error:
            continue
    else:
        raise AssertionError("one failing call keeps the store from opening")
    with q:
        for _ in range(3):
            try:
                q.create_topic("log", kind="log", exist_ok=True)
            except duly.Error:
                continue
        for number in range(8):
            try:
                q.publish("log", body(number))
                acked.append(number)
            except duly.PublishUnknown:
                unknown.append(number)
            except (*REFUSALS, duly.Busy):
                # Busy: another connection was just reading the log anew, after the fault. Nothing was done.
                pass
    return acked, unknown


@pytest.fixture
def small_device(tmp_path: Path) -> Iterator[Path]:
    """A device of two megabytes."""
    point = tmp_path / "device"
    point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(point)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"mount is not allowed here: {mounted.stderr.decode().strip()}")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def test_a_device_that_is_really_full_refuses_and_heals(small_device: Path, tmp_path: Path) -> None:
    path = str(small_device / "app.duly")
    acked: list[int] = []
    with duly.connect(path) as q:
        q.create_topic("log", kind="log")
        q.create_group("log", "g")
        refused = 0
        for number in range(200):
            try:
                q.publish("log", body(number))
                acked.append(number)
            except REFUSALS:
                refused += 1
        print(f"{len(acked)} stored, {refused} refused on a full device")
        assert refused
        assert acked
        assert bodies(q) == [body(n)[-8:] for n in acked]
        assert after_a_crash(path, tmp_path / "crashed") == [body(n)[-8:] for n in acked]
        subprocess.run(["mount", "-o", "remount,size=16m", str(small_device)], check=True)
        q.publish("log", body(200))
        acked.append(200)
        assert q.claim("log", group="g", max_messages=1000).payloads == [body(n) for n in acked]
    with duly.connect(path) as q:
        assert bodies(q) == [body(n)[-8:] for n in acked]


def test_on_a_full_device_a_stored_publish_is_not_refused_because_waiters_cannot_be_woken(small_device: Path) -> None:
    """The WAL has room left from an earlier round; the file that wakes other processes has a hole where it rings."""
    path = str(small_device / "app.duly")
    with duly.connect(path) as q:
        q.create_topic("log", kind="log", partitions=1000)
        for _ in range(10):
            q.publish("log", duly.Message(BODY, partition=0))
        connection = apsw.Connection(path)
        connection.execute("SELECT 1 FROM duly_meta").fetchall()
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        connection.close()
        _fill(small_device)
        try:
            q.publish("log", duly.Message(b"small", partition=999))
            stored = True
        except duly.PublishUnknown:
            pytest.fail("the outcome was known")
        except REFUSALS as error:
            print(error)
            stored = False
        os.unlink(small_device / "filler")
        assert [one.payload for one in q.read("log", partition=999)] == ([b"small"] if stored else [])


def _fill(device: Path) -> None:
    with open(device / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass


def test_opening_a_store_on_a_device_without_a_byte_left_is_one_of_our_errors(small_device: Path) -> None:
    _fill(small_device)
    with pytest.raises(duly.Error):
        duly.connect(small_device / "app.duly")
    os.unlink(small_device / "filler")
    with duly.connect(small_device / "app.duly") as q:
        q.create_topic("log", kind="log")
        q.publish("log", b"1")
