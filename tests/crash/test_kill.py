"""kill -9 at every write point: nothing acknowledged is lost, nothing is there in part, no lease is doubled."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import duly
from tests.conftest import scaled

from .checker import Broken, check
from .workload import ROOT, Zygote


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as process:
        yield process


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def spread(first: int, last: int, count: int) -> list[int]:
    """About `count` numbers from `first` to `last`; all of them when there are no more."""
    if count >= last - first + 1:
        return list(range(first, last + 1))
    return sorted({first + round(at * (last - first) / (count - 1)) for at in range(count)})


def whole_life(zygote: Zygote, folder: Path) -> int:
    """Runs the workload unharmed, checks it, and returns how many write calls it made."""
    folder.mkdir()
    journal = folder / "journal"
    assert zygote.run(path=str(folder / "app.duly"), journal=str(journal)) == 0
    said = lines(journal)
    assert not [line for line in said if "error" in json.loads(line)]
    assert check(folder / "app.duly", said).finished
    calls: int = json.loads(said[-1])["calls"]
    return calls


@pytest.mark.timeout(scaled(300, 7200))
def test_killed_at_any_write_call_the_store_has_all_that_was_acknowledged_and_nothing_in_part(
    zygote: Zygote, tmp_path: Path
) -> None:
    calls = whole_life(zygote, tmp_path / "whole")
    points = [*range(1, 6), *spread(6, calls, scaled(35, calls))]
    killed = 0
    for point in points:
        folder = tmp_path / "killed"
        folder.mkdir()
        order = {"path": str(folder / "app.duly"), "journal": str(folder / "journal"), "kill_at": point}
        code = zygote.run(**order, aside=bool(point % 3))
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
        try:
            check(folder / "app.duly", lines(folder / "journal"))
        except (AssertionError, duly.Error) as error:
            pytest.fail(f"killed at call {point} of {calls}: {error!r}")
        shutil.rmtree(folder)
    print(f"killed at {killed} of {calls} write calls; acked lost 0, half batches 0, two valid leases 0")
    # A caretaker's chore more or less moves the end a little; the rest has to be reached.
    assert killed >= len(points) * 0.9


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
@pytest.mark.timeout(scaled(300, 7200))
def test_killed_by_strace_in_the_middle_of_a_system_call(tmp_path: Path, call: str) -> None:
    killed = 0
    # strace counts calls per thread: the writer's alone come this far.
    points = spread(3, 150 if call == "pwrite64" else 30, scaled(4, 25))
    for point in points:
        folder = tmp_path / f"{point}"
        folder.mkdir()
        journal = folder / "journal"
        order = {"path": str(folder / "app.duly"), "journal": str(journal), "vfs": False}
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={point}"]
        command = ["strace", "-f", "-qq", "-o", "/dev/null", *inject, sys.executable, "-m", "tests.crash.workload"]
        done = subprocess.run([*command, "--once", json.dumps(order)], cwd=ROOT, timeout=60, capture_output=True)
        if b"ptrace" in done.stderr and b"not permitted" in done.stderr:
            pytest.skip("strace may not trace here")
        killed += done.returncode != 0
        check(folder / "app.duly", lines(journal))
    print(f"killed by strace at {killed} of {len(points)} {call} calls")
    assert killed >= len(points) - 1


SABOTAGES = {
    "a block is lost": "DELETE FROM duly_block WHERE base = 1",
    "a block is doubled": (
        "INSERT INTO duly_block SELECT tenant, partition, base + 5000, count, bytes, published_at_ms, data,"
        " chunk FROM duly_block WHERE base = 1"
    ),
    "a publish id is forgotten": "DELETE FROM duly_receipt WHERE publish_id = 'p2'",
    "an ack is forgotten": "UPDATE duly_cursor SET next_offset = next_offset - 1 WHERE grp = 2",
    "messages are skipped": "UPDATE duly_cursor SET next_offset = next_offset + 3 WHERE grp = 1",
    "a retry is lost": "DELETE FROM duly_lease WHERE state = 1",
    "a lease is lost": "DELETE FROM duly_lease WHERE state = 0",
    "a lease ends early": "UPDATE duly_lease SET due_at_ms = 0 WHERE state = 0",
    "a message is under two leases": (
        "INSERT INTO duly_lease (tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live,"
        " attempts, alone, suspect, offsets, settled, history)"
        " SELECT tenant, partition, grp, due_at_ms, state, consumer, claimed_at_ms, base, count, live,"
        " attempts, alone, suspect, offsets, settled, history FROM duly_lease WHERE state = 0 LIMIT 1"
    ),
    "dead letters are lost": "DELETE FROM duly_dead",
    "a topic is lost": "DELETE FROM duly_topic WHERE name = 'short'",
    "a group is lost": "DELETE FROM duly_grp WHERE id = 3",
}


@pytest.mark.parametrize("what", SABOTAGES)
def test_the_checker_notices_when(zygote: Zygote, tmp_path: Path, what: str) -> None:
    path, journal = tmp_path / "app.duly", tmp_path / "journal"
    assert zygote.run(path=str(path), journal=str(journal)) == 0
    connection = apsw.Connection(str(path))
    connection.execute(SABOTAGES[what])
    assert connection.changes() > 0
    connection.close()
    with pytest.raises((Broken, duly.Error)) as caught:
        check(path, lines(journal))
    print(caught.value)


def test_the_checker_notices_a_batch_in_part_and_a_refused_one_that_is_there(zygote: Zygote, tmp_path: Path) -> None:
    path, journal = tmp_path / "app.duly", tmp_path / "journal"
    assert zygote.run(path=str(path), journal=str(journal)) == 0
    said = [json.loads(line) for line in lines(journal)]
    number = next(entry["begin"] for entry in said if entry.get("batch") == "batch2")

    def altered(change: dict[str, Any]) -> list[str]:
        # As if the answer to the second batch had been another one.
        return [json.dumps(change | {"at": entry["at"]} if entry.get("done") == number else entry) for entry in said]

    with pytest.raises(Broken, match="refused and is there"):
        check(path, altered({"refused": number}))
    longer = [json.dumps(entry | {"count": 21} if entry.get("batch") == "batch2" else entry) for entry in said]
    unanswered = [line for line in longer if json.loads(line).get("done") != number]
    with pytest.raises(Broken, match=r"in part|lies in"):
        check(path, unanswered)
