"""Schedules on one PostgreSQL with several brokers: each tick exactly once, whoever is killed, and soon by another."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import duly
from tests.conftest import scaled
from tests.store.patience import eventually

from .brokers import BrokerProcess, url_of
from .test_clocks import Wall

pytestmark = pytest.mark.timeout(scaled(180, 3600))

Serve = Callable[..., list[BrokerProcess]]


def drained(q: duly.Client, topic: str) -> dict[str, list[int]]:
    """The ticks that were published, by schedule, in order; twice if they were."""
    ticks: dict[str, list[int]] = defaultdict(list)
    while batch := q.claim(topic, max_messages=1000):
        for d in batch:
            _, name, tick = d.id.split("@")
            assert d.attempt == 1
            ticks[name].append(int(tick))
        q.ack(batch)
    return {name: sorted(some) for name, some in ticks.items()}


def test_brokers_killed_again_and_again_publish_each_tick_once(
    fresh_store_url: Callable[[], str], serve: Serve
) -> None:
    draw = random.Random(7)
    url = fresh_store_url()
    brokers = serve(url, url)
    kills = scaled(4, 100)
    with duly.connect(url_of(brokers), timeout=30) as q:
        q.create_topic("jobs", kind="queue")
        q.create_topic("others", kind="queue")
        for n, topic in enumerate(("jobs", "jobs", "others")):
            q.create_schedule(f"fields {n}", topic=topic, cron="* * * * * *", missed="all", limit=1000)
            q.create_schedule(f"period {n}", topic=topic, cron="@every 1s", missed="all", limit=1000)
        for _ in range(kills):
            time.sleep(draw.uniform(0.2, 1.5))
            victim = draw.choice(brokers)
            victim.kill()
            time.sleep(draw.uniform(0, 1))
            victim.start()
        time.sleep(3)
        described = {one.name: one for one in q.schedules()}
        for name in described:
            q.pause_schedule(name)
        ended = {one.name: one for one in q.schedules()}
        came = drained(q, "jobs") | drained(q, "others")
    assert set(came) == set(described)
    late = 0
    for name, ticks in came.items():
        assert {later - earlier for earlier, later in pairwise(ticks)} == {1000}, name
        assert len(ticks) == ended[name].published
        assert ended[name].missed == 0
        late = max(late, *(run.late_ms for run in described[name].runs))
    print(f"{kills} kills, {sum(map(len, came.values()))} ticks; of the last ones none was later than {late} ms")


def test_who_is_left_takes_over_within_seconds_of_a_kill(fresh_store_url: Callable[[], str], serve: Serve) -> None:
    url = fresh_store_url()
    maker, other = serve(url, url)
    with duly.connect(maker.url) as q:
        q.create_topic("jobs", kind="queue")
        q.create_schedule("s", topic="jobs", cron="* * * * * *", missed="all")
        # Nobody else has been told of it.
        maker.kill()
    with duly.connect(other.url) as q:
        eventually(lambda: q.describe_schedule("s").published > 5)
        runs = q.describe_schedule("s").runs
    assert max(run.late_ms for run in runs) < 8_000
    assert min(run.late_ms for run in runs) < 500, "the last ones are on time"
    assert {a.tick_ms - b.tick_ms for a, b in pairwise(runs)} == {1000}


def test_of_a_tick_and_a_pause_one_comes_first(fresh_store_url: Callable[[], str], serve: Serve) -> None:
    url = fresh_store_url()
    brokers = serve(url, url)
    with duly.connect(brokers[0].url) as one, duly.connect(brokers[1].url) as two:
        one.create_topic("jobs", kind="queue")
        names = [f"s{n}" for n in range(4)]
        for name in names:
            one.create_schedule(name, topic="jobs", cron="* * * * * *", missed="all", limit=1000)
        after_pause: list[tuple[str, int, int]] = []

        def toggle(q: duly.Client, name: str, seed: int) -> None:
            draw = random.Random(seed)
            for _ in range(scaled(6, 60)):
                # About the moment of a tick.
                time.sleep(1 - time.time() % 1 + draw.uniform(-0.01, 0.02))
                paused = q.pause_schedule(name)
                time.sleep(draw.uniform(0, 0.3))
                after_pause.append((name, paused.published, q.describe_schedule(name).published))
                q.resume_schedule(name)

        threads = [threading.Thread(target=toggle, args=([one, two][n % 2], name, n)) for n, name in enumerate(names)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in names:
            one.pause_schedule(name)
        assert [told for told in after_pause if told[1] != told[2]] == [], "it ticked after it was paused"
        published = {known.name: known.published for known in one.schedules()}
        came = drained(one, "jobs")
    assert {name: len(ticks) for name, ticks in came.items()} == published
    assert all(len(set(ticks)) == len(ticks) for ticks in came.values())


@pytest.mark.parametrize("leap_s", [86_400, -86_400])
def test_the_hosts_clocks_of_brokers_do_not_matter(
    fresh_store_url: Callable[[], str], serve: Serve, leap_s: int, tmp_path: Path
) -> None:
    """A broker a day off has them tick by PostgreSQL's clock all the same."""
    url = fresh_store_url()
    wall = Wall(tmp_path / "wall")
    (broker,) = serve(url, env=wall.env)
    with duly.connect(broker.url) as q:
        q.create_topic("jobs", kind="queue")
        q.create_schedule("s", topic="jobs", cron="* * * * * *", missed="all", limit=1000)
        eventually(lambda: q.describe_schedule("s").published >= 2)
        wall.move(leap_s)
        before = q.describe_schedule("s").published
        eventually(lambda: q.describe_schedule("s").published >= before + 4)
        wall.move(0)
        eventually(lambda: q.describe_schedule("s").published >= before + 6)
        known = q.describe_schedule("s")
    runs = known.runs
    assert {a.tick_ms - b.tick_ms for a, b in pairwise(runs)} == {1000}
    assert abs(runs[0].tick_ms / 1000 - time.time()) < 30
