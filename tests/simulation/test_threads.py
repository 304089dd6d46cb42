"""Many threads on one client doing everything at once, and every message accounted for."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import duly
from tests.conftest import scaled

GROUPS = ("ann", "bob")


class Shop:
    """What the threads know together."""

    def __init__(self, q: duly.Client) -> None:
        self.q = q
        self.lock = threading.Lock()
        self.published: set[int] = set()
        self.acked: dict[str, list[int]] = {group: [] for group in GROUPS}
        self.holders: dict[tuple[str, int], int] = {}

    def publish(self, draw: random.Random) -> None:
        numbers = [draw.getrandbits(60) for _ in range(draw.choice([1, 1, 3, 70, 1100]))]
        payloads = [number.to_bytes(8) for number in numbers]
        given = [duly.Message(p, key=f"k{p[-1] % 5}") for p in payloads] if draw.random() < 0.5 else payloads
        self.q.publish("t", given, publish_id=draw.choice([None, f"p{numbers[0]}"]))
        with self.lock:
            self.published.update(numbers)

    def work(self, draw: random.Random) -> None:
        group = draw.choice(GROUPS)
        batch = self.q.claim("t", group=group, max_messages=draw.choice([1, 10, 500]), consumer=f"c{draw.randrange(9)}")
        self._hold(group, batch, 1)
        parts = [d for d in batch if draw.random() < 0.5]
        acked = [number_of(d) for d in (parts if draw.random() < 0.5 else batch)]
        whole = len(acked) == len(batch)
        self._hold(group, batch, -1)
        settled = self.q.ack(batch if whole else parts)
        assert settled.lost == ()
        assert settled.done == len(acked)
        with self.lock:
            self.acked[group].extend(acked)
        if not whole:
            rest = draw.choice([self.q.release, lambda given: self.q.nack(given, delay=0)])(batch)
            assert (rest.done, rest.lost) == (len(batch) - len(acked), ())

    def _hold(self, group: str, batch: duly.Batch, change: int) -> None:
        """Between a claim and its settling nobody else holds the same message."""
        with self.lock:
            for delivery in batch:
                place = (group, number_of(delivery))
                self.holders[place] = self.holders.get(place, 0) + change
                assert 0 <= self.holders[place] <= 1, f"two hold {place}"

    def look(self, draw: random.Random) -> None:
        """Reads beside the writes; what they say has to hang together."""
        described = self.q.describe_group("t", draw.choice(GROUPS))
        assert described.lag == sum(described.next_offsets[p] - described.cursors[p] for p in described.cursors)
        assert described.pending >= 0
        page = self.q.read("t", partition=draw.randrange(3), max_messages=500)
        assert [m.offset for m in page] == list(range(len(page)))
        assert len(list(self.q.dead("t", group=draw.choice(GROUPS)))) == 0

    def define(self, draw: random.Random) -> None:
        """Topics and groups come and go meanwhile."""
        name = f"side-{draw.getrandbits(40)}"
        self.q.create_topic(name, kind="log")
        self.q.create_group(name, "g")
        self.q.publish(name, b"x")
        with self.q.claim(name, group="g") as batch:
            assert batch.payloads == [b"x"]
        self.q.update_topic("t", lease=draw.choice([30, 31]))
        self.q.delete_topic(name, force=True)


def number_of(delivery: duly.Delivery) -> int:
    return int.from_bytes(delivery.payload)


def _spree(verbs: Sequence[Callable[[random.Random], None]], seed: int, turns: int) -> None:
    draw = random.Random(seed)
    for _ in range(turns):
        draw.choice(verbs)(draw)


def test_threads_on_one_client_lose_nothing_and_share_nothing(q: duly.Client) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    retry = duly.RetryPolicy(max_attempts=10_000)
    q.create_topic("t", kind="log", partitions=3, retry=retry, retention=duly.Retention())
    for group in GROUPS:
        q.create_group("t", group)
    shop = Shop(q)
    verbs = [shop.publish, shop.publish, shop.work, shop.work, shop.work, shop.look, shop.define]
    with ThreadPoolExecutor(16) as pool:
        sprees = [pool.submit(_spree, verbs, seed + n, scaled(25, 500)) for n in range(16)]
    for spree in sprees:
        spree.result()
    for group in GROUPS:
        while batch := q.claim("t", group=group, max_messages=10_000):
            shop.acked[group].extend(number_of(delivery) for delivery in batch)
            assert q.ack(batch).done == len(batch)
        assert sorted(shop.acked[group]) == sorted(shop.published)


def test_claims_of_many_threads_never_overlap(q: duly.Client) -> None:
    q.create_topic("t", kind="log")
    q.create_group("t", "g")
    count = scaled(2000, 50_000)
    q.publish("t", [b"%d" % n for n in range(count)])
    got: list[list[bytes]] = [[] for _ in range(12)]

    def claim_all(mine: list[bytes]) -> None:
        while batch := q.claim("t", group="g", max_messages=7):
            mine.extend(batch.payloads)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(claim_all, got))
    assert sorted(int(p) for mine in got for p in mine) == list(range(count))
