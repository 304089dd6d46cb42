"""Several processes on one file: nothing lost, nothing held twice, whoever dies, forks or stops."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import duly
from tests.conftest import scaled

from .checker import check_integrity
from .worker import GROUP, LEASE_S, TOPIC, connect
from .workload import ROOT

SEED = int(os.environ.get("DULY_TEST_SEED") or random.SystemRandom().randrange(2**32))
PROCESSES = 8

# Python warns of forking beside threads; that this is safe with a client open is what these tests show.
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nobody_stays_behind() -> Iterator[None]:
    """Kills what a test that failed has left."""
    yield
    while started:
        with started.pop() as process:
            process.kill()


def start(mode: str, path: Path | str, log: Path, *rest: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.worker", mode, str(path), str(log), log.stem, *map(str, rest)]
    started.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, text=True))
    return started[-1]


def read_notes(log: Path) -> list[dict[str, Any]]:
    if not log.exists():
        return []
    # A process that was killed may have left half a line.
    return [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]


def until(log: Path, what: str, seconds: float = 30) -> None:
    """Waits until a process has written something."""
    deadline = time.monotonic() + seconds
    while not any(note["what"] == what for note in read_notes(log)):
        assert time.monotonic() < deadline, f"{log.stem} never wrote {what!r}"
        time.sleep(0.005)


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0


@dataclass
class Hold:
    """One delivery of one message: when its lease began and ended, and how its holder settled it."""

    who: str
    begins: int
    ends: int
    # When a settlement was asked for, its verdict, and whether it was answered.
    asked: int | None = None
    verdict: str = ""
    done: bool = False
    # When the claim was answered. Its time is when its transaction began, which takes in what is asked a moment later.
    came: int = 0


@dataclass
class Story:
    """What all processes wrote, put together."""

    published: set[str] = field(default_factory=set)
    in_doubt: dict[str, int] = field(default_factory=dict)
    holds: dict[int, list[Hold]] = field(default_factory=lambda: defaultdict(list))
    bodies: dict[int, str] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    perhaps_acked: set[int] = field(default_factory=set)


def tell(logs: list[Path]) -> Story:
    story = Story()
    for log in logs:
        asked: dict[str, int] = {}
        own: dict[int, Hold] = {}
        for note in read_notes(log):
            _add(story, log.stem, note, asked, own)
        story.in_doubt.update(asked)
        story.perhaps_acked.update(o for o, hold in own.items() if hold.verdict == "ack" and not hold.done)
    return story


def _add(story: Story, who: str, note: dict[str, Any], asked: dict[str, int], own: dict[int, Hold]) -> None:
    what = note["what"]
    if what == "publish":
        asked[note["batch"]] = note["count"]
    elif what == "published":
        story.published.update(f"{note['batch']}/{at}" for at in range(asked.pop(note["batch"])))
    elif what == "claimed":
        for offset, body, ends in note["holds"]:
            assert story.bodies.setdefault(offset, body) == body, f"offset {offset} came with different bytes"
            own[offset] = Hold(who, ends - round(LEASE_S * 1000), ends, came=note["at"])
            story.holds[offset].append(own[offset])
    elif what in ("ack", "nack", "release"):
        for offset in note["offsets"]:
            own[offset].asked, own[offset].verdict = note["at"], what
    elif what.endswith(" done"):
        for offset in note["offsets"]:
            own[offset].done = True
            if what == "ack done":
                story.acked.add(offset)


def two_valid_leases(story: Story) -> list[str]:
    """Messages that somebody was given while somebody else held them, or after they were acked."""
    found = []
    for offset, holds in story.holds.items():
        holds.sort(key=lambda hold: (hold.begins, hold.ends))
        for first, second in itertools.pairwise(holds):
            given_back = first.verdict in ("nack", "release") and first.asked is not None and first.asked <= second.came
            acked = first.verdict == "ack" and first.done
            if acked or not (second.begins >= first.ends or given_back):
                found.append(f"offset {offset}: {first} and {second}")
    return found


def drain(path: Path | str) -> dict[int, str]:
    """Claims and acks what is left, when all leases are over."""
    left: dict[int, str] = {}
    with duly.connect(path, consumer="drain") as q:
        while batch := q.claim(TOPIC, group=GROUP, max_messages=1000, wait=LEASE_S * 2.5):
            for delivery in batch:
                assert delivery.offset not in left, f"offset {delivery.offset} came twice while draining"
                left[delivery.offset] = delivery.payload.decode()
            assert not q.ack(batch).lost
    return left


def read_log(path: Path | str) -> dict[int, str]:
    found: dict[int, str] = {}
    with duly.connect(path) as q:
        while page := q.read(TOPIC, offset=len(found), max_messages=10_000):
            found.update({one.offset: one.payload.decode() for one in page})
    return found


def account(path: Path | str, logs: list[Path]) -> Story:
    """Every message is acked once, or comes when the rest is drained; nothing is lost and nothing is held twice."""
    story = tell(logs)
    left = drain(path)
    stored = read_log(path)
    bodies = list(stored.values())
    assert len(bodies) == len(set(bodies)), "a message is stored twice"
    assert story.published <= set(bodies), "an acknowledged message is not in the log"
    for batch, count in story.in_doubt.items():
        there = sum(f"{batch}/{at}" in set(bodies) for at in range(count))
        assert there in (0, count), f"{batch} is there in part"
    doubtful = {f"{batch}/{at}" for batch, count in story.in_doubt.items() for at in range(count)}
    assert set(bodies) <= story.published | doubtful, "a message is in the log that nobody published"
    assert all(stored[offset] == body for offset, body in {**story.bodies, **left}.items()), "wrong bytes"
    assert not story.acked & set(left), "an acked message was delivered again"
    missing = set(stored) - story.acked - story.perhaps_acked - set(left)
    assert not missing, f"{len(missing)} messages are neither acked nor delivered: {sorted(missing)[:10]}"
    assert not two_valid_leases(story)
    print(
        f"{len(logs)} processes: {len(story.published)} messages published, {sum(map(len, story.holds.values()))}"
        f" deliveries, {len(story.acked)} acked, 0 lost, 0 under two leases"
    )
    return story


@pytest.mark.timeout(scaled(300, 900))
def test_eight_processes_publish_claim_and_ack_while_some_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "app.duly"
    logs = work_and_kill(path, tmp_path, PROCESSES, scaled(7, 100), scaled(4, 40))
    check_integrity(path)
    assert len(account(path, logs).acked) > 100


def work_and_kill(path: Path | str, folder: Path, processes: int, seconds: float, kills: int) -> list[Path]:
    """Has processes work on one log, kills some and starts others. Returns what they wrote."""
    print(f"DULY_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    logs = [folder / f"w{number}.notes" for number in range(processes)]
    # All open the store at once, and it is not there yet.
    running = {log: start("work", path, log, seconds, SEED) for log in logs}
    for log in logs:
        until(log, "ready")
    for _ in range(kills):
        time.sleep(seconds / (kills + 1))
        victim = draw.choice(list(running))
        process = running.pop(victim)
        process.kill()
        process.communicate()
        logs.append(folder / f"w{len(logs)}.notes")
        running[logs[-1]] = start("work", path, logs[-1], seconds / 2, SEED)
    for process in running.values():
        end(process)
    return logs


def test_the_account_notices_a_message_held_twice_and_one_that_was_acked_and_came_again() -> None:
    def held(*holds: Hold) -> list[str]:
        return two_valid_leases(Story(holds={7: list(holds)}))

    assert not held(Hold("a", 0, 1000), Hold("b", 1000, 2000))
    assert held(Hold("a", 0, 1000), Hold("b", 999, 1999))
    assert not held(Hold("a", 0, 1000, asked=10, verdict="nack"), Hold("b", 500, 1500, came=502))
    assert held(Hold("a", 0, 1000, asked=510, verdict="nack"), Hold("b", 500, 1500, came=502))
    assert held(Hold("a", 0, 1000, asked=10, verdict="ack", done=True), Hold("b", 1500, 2500))
    assert not held(Hold("a", 0, 1000, asked=10, verdict="ack"), Hold("b", 1500, 2500))


SABOTAGES = {
    "lost": "neither acked nor delivered",
    "acked again": "an acked message was delivered again",
    "half a batch": "there in part",
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_the_account_notices(tmp_path: Path, sabotage: str) -> None:
    path, log = tmp_path / "app.duly", tmp_path / "w0.notes"
    end(start("work", path, log, 0.5, SEED))
    notes = read_notes(log)
    if sabotage == "lost":
        with duly.connect(path) as q:
            q.publish(TOPIC, b"x-1/0")
            q.seek(TOPIC, GROUP, to="latest")
        notes += [
            {"what": "publish", "at": 0, "batch": "x-1", "count": 1},
            {"what": "published", "at": 0, "batch": "x-1"},
        ]
    elif sabotage == "acked again":
        acked = next(note for note in notes if note["what"] == "ack done")
        with duly.connect(path) as q:
            q.seek(TOPIC, GROUP, offset=acked["offsets"][0])
    else:
        with duly.connect(path) as q:
            q.publish(TOPIC, b"x-1/0")
        notes += [{"what": "publish", "at": 0, "batch": "x-1", "count": 2}]
    log.write_text("".join(json.dumps(note) + "\n" for note in notes))
    with pytest.raises(AssertionError, match=SABOTAGES[sabotage]):
        account(path, [log])


def test_a_blocking_claim_wakes_soon_after_a_publish_in_another_process(tmp_path: Path) -> None:
    path, log = tmp_path / "app.duly", tmp_path / "waiter.notes"
    waits: list[int] = []
    with connect(str(path), "publisher") as q:
        waiter = start("wait", path, log, 20)
        until(log, "ready")
        time.sleep(0.3)
        for number in range(20):
            began = duly.SystemClock().now_ms()
            q.publish(TOPIC, f"{number}".encode())
            _until_woken(log, number)
            waits.append(read_notes(log)[-1]["at"] - began)
            # It has to be asleep again.
            time.sleep(0.02)
        end(waiter)
    print(f"woken after {sorted(waits)[10]} ms (median), {max(waits)} ms (most)")
    assert max(waits) < 1000


def _until_woken(log: Path, number: int) -> None:
    deadline = time.monotonic() + 10
    while len([note for note in read_notes(log) if note["what"] == "woke"]) <= number:
        assert time.monotonic() < deadline, "it never woke"
        time.sleep(0.002)


def test_a_process_stopped_past_its_lease_cannot_ack_after_another_has_claimed(tmp_path: Path) -> None:
    path, log = tmp_path / "app.duly", tmp_path / "stopped.notes"
    with connect(str(path), "taker") as q:
        q.publish(TOPIC, b"one")
        process = start("hold", path, log)
        until(log, "holds")
        process.send_signal(signal.SIGSTOP)
        taken = q.claim(TOPIC, group=GROUP, wait=10)
        assert taken.payloads == [b"one"]
        assert taken[0].attempt == 2
        process.send_signal(signal.SIGCONT)
        process.communicate("\n", timeout=30)
        assert read_notes(log)[-1]["what"] == "lost"
        taken[0].ack()


def in_child(act: Callable[..., None], *values: object) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=act, args=values)
    process.start()
    return process


def publish_some(q: duly.Client, name: str, count: int) -> None:
    for number in range(count):
        q.publish(TOPIC, f"{name}-{number}".encode())


def bodies_of(path: Path) -> list[str]:
    return sorted(read_log(path).values())


def named(names: list[str], count: int) -> list[str]:
    return sorted(f"{name}-{number}" for name in names for number in range(count))


@forks
def test_a_client_used_before_a_fork_works_in_parent_and_child(tmp_path: Path) -> None:
    path = tmp_path / "app.duly"
    with connect(str(path), "forker") as q:
        publish_some(q, "before", 5)
        held = q.claim(TOPIC, group=GROUP, max_messages=2, lease=30)
        children = [in_child(publish_some, q, f"child{number}", 5) for number in range(3)]
        publish_some(q, "parent", 5)
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        assert q.ack(held).done == 2
        publish_some(q, "after", 5)
    check_integrity(path)
    assert bodies_of(path) == named(["before", "child0", "child1", "child2", "parent", "after"], 5)


def claim_all(q: duly.Client, log: str) -> None:
    batch = q.claim(TOPIC, group=GROUP, max_messages=3)
    q.ack(batch)
    Path(log).write_text("\n".join(payload.decode() for payload in batch.payloads))


@forks
def test_a_child_claims_what_the_parent_does_not_hold_and_its_grandchild_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "app.duly"
    with connect(str(path), "forker") as q:
        publish_some(q, "m", 9)
        held = q.claim(TOPIC, group=GROUP, max_messages=3, lease=30)

        def child() -> None:
            claim_all(q, str(tmp_path / "child"))
            grandchild = in_child(claim_all, q, str(tmp_path / "grandchild"))
            grandchild.join(30)
            q.close()
            os._exit(grandchild.exitcode or 0)

        process = in_child(child)
        process.join(60)
        assert process.exitcode == 0
        got = [*(tmp_path / "child").read_text().split(), *(tmp_path / "grandchild").read_text().split()]
        assert sorted([*(payload.decode() for payload in held.payloads), *got]) == named(["m"], 9)
        assert q.ack(held).done == 3


@forks
@pytest.mark.timeout(scaled(120, 600))
def test_forking_while_threads_publish_loses_nothing_and_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "app.duly"
    failures: list[BaseException] = []
    done: dict[str, int] = {}
    stop = threading.Event()
    with connect(str(path), "forker") as q:

        def publish_until_stopped(name: str) -> None:
            try:
                while not stop.is_set():
                    q.publish(TOPIC, f"{name}-{done.get(name, 0)}".encode())
                    done[name] = done.get(name, 0) + 1
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=publish_until_stopped, args=(f"t{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        rounds = scaled(6, 60)
        for number in range(rounds):
            children = [in_child(publish_some, q, f"c{number}x{twin}", 5) for twin in range(2)]
            for child in children:
                child.join(60)
                assert child.exitcode == 0
        stop.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a thread of the parent hangs after a fork"
    assert not failures
    check_integrity(path)
    wanted = named([f"c{number}x{twin}" for number in range(rounds) for twin in range(2)], 5)
    for name, count in done.items():
        wanted += named([name], count)
    assert bodies_of(path) == sorted(wanted)
    assert all(done.values())


def test_two_clients_in_one_process_share_a_file_and_one_may_close(tmp_path: Path) -> None:
    """POSIX locks belong to the process: closing one client must not let go of the other's."""
    path, log = tmp_path / "app.duly", tmp_path / "w0.notes"
    first, second = connect(str(path), "one"), connect(str(path), "two")
    publish_some(first, "first", 5)
    publish_some(second, "second", 5)
    held = first.claim(TOPIC, group=GROUP, max_messages=6, lease=30)
    assert len(second.claim(TOPIC, group=GROUP, max_messages=100, lease=30)) == 4
    woken: list[bytes] = []
    waiter = threading.Thread(target=lambda: woken.extend(second.claim(TOPIC, group=GROUP, wait=20).payloads))
    waiter.start()
    first.publish(TOPIC, b"wake")
    waiter.join(20)
    assert woken == [b"wake"]
    assert first.ack(held).done == 6
    first.close()
    other = start("work", path, log, 1.5, SEED)
    until(log, "ready")
    publish_some(second, "more", 200)
    second.close()
    end(other)
    check_integrity(path)
    found = set(read_log(path).values())
    assert found >= {*named(["first", "second"], 5), *named(["more"], 200), "wake"}
    assert found >= tell([log]).published


def test_a_second_client_does_not_drop_the_locks_of_the_first(tmp_path: Path) -> None:
    """Whoever closes a file of its own drops all POSIX locks of the process on it: then anybody may delete the log."""
    path = str(tmp_path / "s.duly")
    take_alone = (
        "import apsw, sys\n"
        "store = apsw.Connection(sys.argv[1])\n"
        "store.execute('PRAGMA locking_mode = EXCLUSIVE').fetchall()\n"
        "try:\n    store.execute('BEGIN EXCLUSIVE')\nexcept apsw.BusyError:\n    print('refused')"
    )

    def alone() -> str:
        command = [sys.executable, "-c", take_alone, path]
        return subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout

    with duly.connect(path) as first:
        first.create_topic("t", kind="log")
        with duly.connect(path):
            assert alone() == "refused\n"
        assert alone() == "refused\n"
    assert alone() == ""


def test_a_definition_changed_in_another_process_holds_at_once(tmp_path: Path) -> None:
    """Definitions are remembered between transactions: never longer than they are true."""
    path = str(tmp_path / "s.duly")
    with duly.connect(path) as q:
        q.create_topic("t", kind="log")
        q.create_group("t", "g")

        def elsewhere(code: str) -> None:
            script = f"import duly\nwith duly.connect({path!r}) as q:\n    {code}"
            subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

        q.publish("t", b"one")
        elsewhere("q.publish('t', b'two'); q.pause('t')")
        assert len(q.claim("t", group="g")) == 0
        elsewhere("q.resume('t'); q.update_topic('t', payload_bytes_max=3)")
        with pytest.raises(duly.LimitExceeded):
            q.publish("t", b"four")
        elsewhere("q.pause('t', group='g')")
        assert len(q.claim("t", group="g")) == 0
        elsewhere("q.delete_group('t', 'g'); q.create_group('t', 'g', lease=77)")
        with q.claim("t", group="g", max_messages=1) as batch:
            assert batch.payloads == [b"one"]
            assert batch.lease_expires_at is not None
            assert batch.lease_expires_at.timestamp() - time.time() > 60
        elsewhere("q.delete_topic('t', force=True); q.create_topic('t', kind='log')")
        with pytest.raises(duly.GroupNotFound):
            q.claim("t", group="g")
        assert q.publish("t", b"new").spans[0].first_offset == 0
