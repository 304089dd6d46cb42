"""kill -9 the broker at random moments, under load, and start it again: acked lost 0, stored twice 0, early 0."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import duly
from tests.conftest import scaled

from .conftest import ROOT, Elsewhere

KILLS = scaled(5, 100)


def start(what: str, url: str, name: str, folder: Path, over: Path) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "tests.broker_flight.traffic"]
    with (folder / f"{name}.stderr").open("w") as said:
        return subprocess.Popen([*program, what, url, name, str(folder / name), str(over)], cwd=ROOT, stderr=said)


def journal(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def stored_bodies(q: duly.Client) -> Counter[str]:
    """Every message that lies in the log, by its offset."""
    bodies: Counter[str] = Counter()
    offset = 0
    while page := q.read("orders", offset=offset, max_messages=5000):
        bodies.update(message.payload.decode() for message in page)
        offset = page[-1].offset + 1
    return bodies


@pytest.mark.timeout(scaled(120, 1800))
def test_killed_at_random_moments_it_loses_nothing_acked_and_stores_nothing_twice(
    elsewhere: Elsewhere, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    pauses = [chance.uniform(0.3, 1.5) for _ in range(KILLS)]
    produced, consumed = tmp_path / "produced", tmp_path / "consumed"
    with duly.connect(elsewhere.url) as q:
        q.create_topic("orders", kind="log", dedupe=None)
        q.create_group("orders", "billing", start="earliest")
        q.create_topic("jobs", kind="queue", lease=2, retry=duly.RetryPolicy(max_attempts=1000, base=0.1, cap=1))
    producers = [start("produce", elsewhere.url, f"p{n}", tmp_path, produced) for n in range(2)]
    consumers = [start("consume", elsewhere.url, f"c{n}", tmp_path, consumed) for n in range(2)]
    for over in (produced, consumed):
        # Whatever happens: nobody else would end them.
        request.addfinalizer(over.touch)
    killed: list[tuple[float, float]] = []
    for pause in pauses:
        time.sleep(pause)
        elsewhere.kill()
        moment = time.monotonic()
        elsewhere.start()
        killed.append((moment, time.monotonic()))
    # However long the last start took: they are given time to see it.
    time.sleep(3)
    produced.touch()
    assert [process.wait(60) for process in producers] == [0, 0]
    time.sleep(2)
    consumed.touch()
    assert [process.wait(60) for process in consumers] == [0, 0]
    noise = [(tmp_path / f"{name}.stderr").read_text() for name in ("p0", "p1", "c0", "c1")]
    assert not any("Traceback" in text or "Close() failed" in text for text in noise), noise

    made = [entry for n in range(2) for entry in journal(tmp_path / f"p{n}")]
    got = [delivery for n in range(2) for entry in journal(tmp_path / f"c{n}") for delivery in entry["got"]]
    with duly.connect(elsewhere.url) as q:
        # What a killed consumer's lease or a late due time kept back.
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            batch = q.claim("jobs", max_messages=1000, wait=3)
            if not batch:
                break
            now = time.time() * 1000
            got += [[d.payload.decode(), d.id, now] for d in batch]
            q.ack(batch)
        check(made, got, stored_bodies(q), killed)


def check(
    made: list[dict[str, Any]], got: list[list[Any]], stored: Counter[str], killed: list[tuple[float, float]]
) -> None:
    topic = {entry["tried"]: entry["topic"] for entry in made if "tried" in entry}
    acked = {entry["acked"] for entry in made if "acked" in entry}
    doubt = {entry["doubt"] for entry in made if "doubt" in entry}
    refused = {entry["refused"] for entry in made if "refused" in entry}
    # In the log every message lies at an offset; in the queue each stored message has an id of its own.
    ids: dict[str, set[str]] = {}
    for body, id, _ in got:
        ids.setdefault(body, set()).add(id)
    queued = Counter({body: len(found) for body, found in ids.items() if topic[body.split("/")[0]] == "jobs"})
    everything = stored + queued
    twice = [body for body, count in everything.items() if count > 1]
    parts = Counter(body.split("/")[0] for body in everything)
    size = {body.split("/")[0]: int(body.split("/")[2]) for body in everything}
    lost = sorted(batch for batch in acked if batch not in parts)
    half = sorted(batch for batch, count in parts.items() if count != size[batch])
    never = sorted(batch for batch in refused if batch in parts)
    early = [body for body, _, at in got if int(body.split("/")[3]) > at]
    times = sorted(entry["at"] for entry in made if "acked" in entry)
    back = [next((at for at in times if at > moment), moment + 99) for moment, _ in killed]
    recovered = sorted(at - moment for at, (moment, _) in zip(back, killed, strict=True))
    noticed = sorted(at - listens for at, (_, listens) in zip(back, killed, strict=True))
    print(
        f"killed {len(killed)} times; {len(acked)} batches acked, {len(doubt)} in doubt, {len(refused)} refused; "
        f"{len(everything)} messages; acked lost {len(lost)}, stored twice {len(twice)}, early {len(early)}, "
        f"half batches {len(half)}; from the kill to the first success: median "
        f"{recovered[len(recovered) // 2]:.2f} s, longest {recovered[-1]:.2f} s; from when it listens again: median "
        f"{noticed[len(noticed) // 2]:.2f} s, longest {noticed[-1]:.2f} s"
    )
    assert (lost, twice, early, half, never) == ([], [], [], [], [])
    assert len(acked) > 10 * len(killed)
    assert noticed[-1] < 10
