"""Gates: rates, slots, the budget of retries and breakers, before groups and before lanes (engine/gate.py)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import duly
from tests.conftest import scaled

from .conftest import sharp
from .patience import Aside
from .telling import only

KINDS = ["log", "queue"]


def make(q: duly.Client, kind: str, **settings: Any) -> None:
    """A topic `t` of a kind; a log with one group, `g`."""
    q.create_topic("t", kind=kind, **{"lease": 30, "retry": sharp(1), **settings})
    if kind == "log":
        q.create_group("t", "g")


def claim(q: duly.Client, kind: str, most: int = 1000, **more: Any) -> duly.Batch:
    return q.claim("t", group="g" if kind == "log" else None, max_messages=most, **more)


def gate(q: duly.Client, kind: str) -> duly.GateDescription:
    found = q.describe_group("t", "g" if kind == "log" else "queue").gate
    assert found is not None
    return found


def dead(q: duly.Client, kind: str) -> list[duly.DeadLetter]:
    return list(q.dead("t", group="g" if kind == "log" else None))


def fill(q: duly.Client, count: int, lane: str | None = None, first: int = 0) -> None:
    q.publish("t", [duly.Message(b"%d" % n, lane=lane) for n in range(first, first + count)])


# Rates


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [8, 300])
def test_a_group_gets_its_rate_in_every_ten_seconds_whoever_claims_and_without_bursts(
    q: duly.Client, clock: duly.ManualClock, reopen: Callable[[], duly.Client], kind: str, rate: int
) -> None:
    make(q, kind, partitions=3, rate=rate)
    fill(q, 14 * rate)
    clients, draw, came = [q, reopen()], random.Random(7), []
    start = clock.now_ms()
    while clock.now_ms() < start + 12_000:
        batch = claim(clients[draw.randrange(2)], kind)
        came += [clock.now_ms() - start] * len(batch)
        batch.ack()
        clock.advance(draw.choice([0.01, 0.02, 0.03]))
    clock.advance(2)
    assert len(claim(q, kind)) <= 0.15 * rate + 1, "a pause saves nothing up"
    for low in range(0, 1_900, 100):
        assert sum(low <= at < low + 10_000 for at in came) == pytest.approx(10 * rate, abs=0.02 * 10 * rate + 1)
    for low in range(0, 11_000, 50):
        assert sum(low <= at < low + 500 for at in came) <= 0.65 * rate + 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_waiting_claim_sleeps_until_the_next_token(q: duly.Client, clock: duly.ManualClock, kind: str) -> None:
    make(q, kind, rate=0.1)
    fill(q, 3)
    assert len(claim(q, kind)) == 1
    with Aside(lambda: len(claim(q, kind, wait=60))) as waiting:
        assert waiting.still_running_after(0.05)
        clock.advance(10)
    assert waiting.result() == 1


def test_a_throttled_group_holds_no_other_back_and_may_have_a_rate_of_its_own(
    q: duly.Client, clock: duly.ManualClock
) -> None:
    make(q, "log", rate=1)
    q.create_group("t", "quick", rate=1000)
    q.create_group("t", "other", max_in_flight=5)
    fill(q, 50)
    assert len(claim(q, "log")) == 1
    assert len(q.claim("t", group="quick")) == 1
    assert len(q.claim("t", group="other", max_messages=100)) == 1, "the topic's rate, and room for five"
    clock.advance(0.1)
    assert len(q.claim("t", group="quick", max_messages=100)) == 49
    q.update_topic("t", rate=None)
    assert len(claim(q, "log")) == 49
    assert len(q.claim("t", group="other", max_messages=100)) == 4


# Slots


@pytest.mark.parametrize("kind", KINDS)
def test_so_many_are_in_flight_over_all_partitions_and_settling_makes_room(
    q: duly.Client, clock: duly.ManualClock, reopen: Callable[[], duly.Client], kind: str
) -> None:
    make(q, kind, partitions=3, max_in_flight=10)
    fill(q, 40)
    one, two = claim(q, kind, 6), claim(reopen(), kind, 20)
    assert (len(one), len(two), len(claim(q, kind))) == (6, 4, 0)
    assert (gate(q, kind).in_flight, gate(q, kind).max_in_flight) == (10, 10)
    with Aside(lambda: claim(q, kind, wait=60)) as waiting:
        assert waiting.still_running_after(0.05)
        q.ack(list(one)[:2])
    assert len(waiting.result()) == 2
    assert len(claim(q, kind)) == 0
    clock.advance(31)
    again: list[duly.Delivery] = []
    while batch := claim(q, kind):
        again += batch
    assert len(again) == 10, "what expired is delivered again, in the same slots"
    q.update_topic("t", max_in_flight=None)
    while batch := claim(q, kind):
        again += batch
    assert len(again) == 38


# The budget of retries


@pytest.mark.parametrize("kind", KINDS)
def test_retries_are_a_share_of_fresh_deliveries_and_hold_none_back(
    q: duly.Client, clock: duly.ManualClock, kind: str
) -> None:
    make(q, kind, retry=duly.RetryPolicy(max_attempts=1000, base=0, jitter="none", budget=0.1))
    attempts: Counter[bytes] = Counter()
    fresh = again = waited = 0
    for second in range(30):
        fill(q, 100, first=100 * second)
        for _ in range(10):
            batch = claim(q, kind)
            for d in batch:
                attempts[d.payload] += 1
                fresh, again = fresh + (d.attempt == 1), again + (d.attempt > 1)
            batch.nack()
            clock.advance(0.1)
        waited = max(waited, 100 * (second + 1) - fresh)
    assert waited == 0, "whatever was fresh was delivered at once"
    assert 0.08 * fresh <= again <= 0.1 * fresh + 30
    before = again
    for _ in range(100):
        batch = claim(q, kind)
        again += len(batch)
        batch.nack()
        clock.advance(0.1)
    assert 9 <= again - before <= 30, "without anything fresh: what is left of the budget, and one a second"
    q.update_topic("t", retry=sharp(1))
    assert len(claim(q, kind, 1000)) > 500


def test_what_was_moved_does_not_wait_for_the_budget(q: duly.Client, clock: duly.ManualClock) -> None:
    make(q, "queue", retry=duly.RetryPolicy(max_attempts=1000, base=0, jitter="none", budget=0))
    fill(q, 20)
    claim(q, "queue").nack()
    q.publish("t", [duly.Message(b"moved", id="m", due=3600)])
    assert len(claim(q, "queue")) == 1, "one a second"
    q.move("t", "m", due=0.5)
    with Aside(lambda: claim(q, "queue", wait=60)) as waiting:
        assert waiting.still_running_after(0.05)
        clock.advance(0.5)
    assert waiting.result().payloads == [b"moved"]
    with Aside(lambda: claim(q, "queue", wait=60)) as waiting:
        assert waiting.still_running_after(0.05)
        clock.advance(0.5)
    assert len(waiting.result()) == 1, "the next retry"


# Breakers

BREAKER = duly.Breaker(failures=0.5, calls=20, window=10, probe=1, probe_max=8)


def open_it(q: duly.Client, kind: str) -> list[duly.Delivery]:
    """Twenty calls fail; what else was claimed is given back."""
    batch = claim(q, kind, 25)
    q.nack(list(batch)[:20])
    return list(batch)[20:]


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_breaker_lets_probes_through_each_after_twice_the_wait_and_uses_no_attempt(
    q: duly.Client, clock: duly.ManualClock, kind: str
) -> None:
    make(q, kind, breaker=BREAKER, retry=sharp(1, max_attempts=1))
    fill(q, 100)
    left = open_it(q, kind)
    assert gate(q, kind).breaker == "open"
    assert len(only(q, "breaker_opened")) == 1
    q.nack(left, reason="was on its way")
    waits: list[float] = []
    since = clock.now_ms()
    while len(waits) < 6:
        clock.advance(0.25)
        batch = claim(q, kind)
        assert len(batch) <= 1
        if batch:
            assert len(claim(q, kind)) == 0, "one at a time"
            waits.append((clock.now_ms() - since) / 1000)
            assert next(iter(batch)).attempt == 1
            batch.nack()
            since = clock.now_ms()
    assert waits == [1, 2, 4, 8, 8, 8]
    assert len(dead(q, kind)) == 20, "those that had failed before, and nothing since"
    clock.advance(8)
    claim(q, kind).ack()
    assert gate(q, kind).breaker == "ramp"
    rates = []
    while gate(q, kind).breaker == "ramp":
        rates.append(gate(q, kind).rate or 0.0)
        for _ in range(5):
            claim(q, kind).ack()
            clock.advance(0.25)
        fill(q, 5)
    assert rates == sorted(rates)
    assert len(only(q, "breaker_closed")) == 1
    assert len(claim(q, kind)) > 0


def test_a_probe_that_ends_without_a_verdict_or_is_lost_is_followed_by_the_next(
    q: duly.Client, clock: duly.ManualClock
) -> None:
    make(q, "log", breaker=BREAKER)
    fill(q, 100)
    open_it(q, "log")
    clock.advance(1)
    claim(q, "log").release()
    clock.advance(0.001)
    q.bury(claim(q, "log"), reason="not for us")
    clock.advance(0.001)
    probe = claim(q, "log")
    clock.advance(20)
    q.extend(probe, 30)
    clock.advance(20)
    assert (len(probe), len(claim(q, "log"))) == (1, 0), "it is still at it"
    clock.advance(11)
    assert len(claim(q, "log")) == 0, "it failed: the next one waits"
    clock.advance(2)
    assert len(claim(q, "log")) == 1
    q.seek("t", "g", to="latest")
    fill(q, 1)
    assert len(claim(q, "log")) == 0
    clock.advance(31)
    assert len(claim(q, "log")) == 1, "nobody will ever settle the one before"


def test_a_lane_whose_breaker_is_open_is_tried_by_one_message_at_a_time_and_others_flow(
    q: duly.Client, clock: duly.ManualClock
) -> None:
    make(q, "queue", lanes=duly.Lanes(breaker=BREAKER), retry=sharp(1, max_attempts=2))
    for lane in ("dead", "well", None):
        fill(q, 300, lane)
    came: Counter[str | None] = Counter()
    tried: list[float] = []
    start = clock.now_ms()
    for _ in range(240):
        batch = claim(q, "queue", 30)
        came.update(d.lane for d in batch)
        failed = [d for d in batch if d.lane == "dead"]
        tried += [(clock.now_ms() - start) / 1000] * len(failed)
        q.nack(failed)
        batch.ack()
        clock.advance(0.25)
    assert came["well"] == came[None] == 300
    assert sum(at > 1 for at in tried) <= 12, tried
    assert [event.alert for event in only(q, "breaker_opened")] == [True]
    assert only(q, "breaker_opened")[0].facts["lane"] == "dead"
    assert gate(q, "queue").lanes == (duly.LaneBreaker("dead", "open", None),)
    assert not dead(q, "queue")
    for _ in range(400):
        claim(q, "queue").ack()
        clock.advance(0.25)
    assert q.describe_group("t", "queue").lag + q.describe_group("t", "queue").retrying == 0
    assert len(only(q, "breaker_closed")) == 1
    found = q.describe_group("t", "queue").gate
    assert found is None or not found.lanes


def test_a_lane_of_one_at_a_time_keeps_its_order_through_an_outage(q: duly.Client, clock: duly.ManualClock) -> None:
    breaker = duly.Breaker(calls=3, probe=1, probe_max=4)
    make(q, "queue", lanes=duly.Lanes(max_in_flight=1, breaker=breaker), retry=sharp(0, max_attempts=5))
    fill(q, 10, "a")
    fill(q, 10, "b")
    came: dict[str | None, list[bytes]] = {"a": [], "b": []}
    tries = 0
    for step in range(400):
        down = step < 200
        for d in claim(q, "queue"):
            if down and d.lane == "a":
                tries += 1
                d.nack()
            else:
                came[d.lane].append(d.payload)
                d.ack()
        clock.advance(0.25)
    assert came["a"] == came["b"] == [b"%d" % n for n in range(10)]
    assert tries <= 3 + 16
    assert not dead(q, "queue")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_or_buried_by_an_outage_and_the_backlog_drains_at_the_rate(
    q: duly.Client, clock: duly.ManualClock, kind: str
) -> None:
    rate, total = 50, scaled(600, 2000)
    make(q, kind, rate=rate, breaker=duly.Breaker(), retry=sharp(0.5))
    fill(q, total)
    start, calls = clock.now_ms(), [0]
    came: Counter[bytes] = Counter()
    per_second: Counter[int] = Counter()
    while clock.now_ms() < start + 600_000:
        batch = claim(q, kind)
        calls.append(len(batch))
        batch.nack()
        clock.advance(0.1 if sum(calls) < 20 else 1)
    assert 20 <= sum(calls) <= 20 + 8 + 16, "probes only"
    while sum(came.values()) < total:
        batch = claim(q, kind)
        came.update(d.payload for d in batch)
        per_second[clock.now_ms() // 1000] += len(batch)
        batch.ack()
        clock.advance(0.1)
        assert clock.now_ms() < start + 1_000_000
    assert max(per_second.values()) <= 1.1 * rate + 1
    assert sum(list(per_second.values())[:10]) <= 4 * rate, "it begins slowly"
    assert list(came.values()) == [1] * total
    assert not dead(q, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_poison_is_buried_though_a_breaker_opens_on_the_way(q: duly.Client, clock: duly.ManualClock, kind: str) -> None:
    breaker = duly.Breaker(calls=3, window=600, probe=1, probe_max=4)
    make(q, kind, lease=1, breaker=breaker, retry=sharp(0, max_attempts=3))
    fill(q, 30)
    came: set[bytes] = set()
    poison, buried = {b"3", b"17"}, 0
    for _ in range(400):
        batch = claim(q, kind, 8)
        if {d.payload for d in batch} & poison:
            clock.advance(1.001)
            continue
        came.update(d.payload for d in batch)
        batch.ack()
        clock.advance(0.5)
        buried = len(dead(q, kind))
        if buried == 2 and len(came) == 28:
            break
    assert (buried, len(came)) == (2, 28)


@pytest.mark.parametrize("kind", KINDS)
def test_poison_is_buried_where_nothing_else_is_left_to_close_the_breaker(
    q: duly.Client, clock: duly.ManualClock, kind: str
) -> None:
    breaker = duly.Breaker(calls=2, window=600, probe=1, probe_max=4)
    make(q, kind, lease=1, breaker=breaker, retry=sharp(0, max_attempts=3))
    fill(q, 4)
    for _ in range(200):
        clock.advance(1.001 if len(claim(q, kind)) else 0.5)
    assert len(dead(q, kind)) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_limits_are_changed_and_taken_away_while_messages_flow(
    q: duly.Client, clock: duly.ManualClock, kind: str
) -> None:
    make(q, kind, rate=0.01, breaker=BREAKER)
    fill(q, 100)
    assert len(claim(q, kind)) == 1
    q.update_topic("t", rate=1000)
    assert len(claim(q, kind)) == 0
    clock.advance(0.1)
    open_it(q, kind)
    assert gate(q, kind).breaker == "open"
    with Aside(lambda: claim(q, kind, wait=60)) as waiting:
        assert waiting.still_running_after(0.05)
        q.update_topic("t", rate=None, breaker=None)
    assert len(waiting.result()) == 74
    assert q.describe_group("t", "g" if kind == "log" else "queue").gate is None
    q.update_topic("t", breaker=BREAKER)
    assert gate(q, kind).breaker == "closed", "what the one before knew is forgotten"


def test_a_file_of_the_schema_before_opens_with_its_lanes_and_takes_limits(
    tmp_path: Path, clock: duly.ManualClock
) -> None:
    path = tmp_path / "app.duly"
    with duly.connect(path, clock=clock, consumer="w") as q:
        make(q, "queue", lanes=duly.Lanes(rate=10))
        fill(q, 20, "a")
        claim(q, "queue").nack()
    with closing(apsw.Connection(str(path))) as file:
        file.execute("DROP TABLE duly_operation; DROP TABLE duly_gate; DROP TABLE duly_schedule; DROP TABLE duly_push")
        file.execute("DROP INDEX duly_lane_broken; DROP INDEX duly_loose_fresh")
        file.execute("ALTER TABLE duly_lane DROP COLUMN circuit; ALTER TABLE duly_lane DROP COLUMN circuit_state")
        file.execute("UPDATE duly_meta SET value = '7' WHERE key = 'schema'")
    with duly.connect(path, clock=clock, consumer="w") as q:
        q.update_topic("t", max_in_flight=3, lanes=duly.Lanes(rate=10, breaker=BREAKER))
        came: list[duly.Delivery] = []
        for _ in range(30):
            batch = claim(q, "queue")
            assert len(batch) <= 3
            came += batch
            batch.ack()
            clock.advance(0.1)
        assert len({d.payload for d in came}) == 20
