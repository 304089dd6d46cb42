"""PostgreSQL itself killed and restarted under traffic, with fsync; a standby that takes over; which server is used.

Broken once to see it fail: with commits in doubt run again as they were, messages were stored twice (made publish
ids); with synchronous_commit off for publishes, the kills and the standby lost acked ones.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import duly
from tests.conftest import scaled
from tests.postgres_server import PostgresServer

from .brokers import BrokerProcess
from .brokers import url_of as brokers_url
from .test_doubt import url_of

pytestmark = pytest.mark.timeout(scaled(180, 3600))

Start = Callable[..., PostgresServer]


class Traffic:
    """Threads that publish numbers to a log, and that claim and ack them from a queue; what each was told."""

    def __init__(self, url: str, publishers: int, consumers: int) -> None:
        self.url = url
        self.acked: list[str] = []
        self.doubted: list[str] = []
        self.refused: list[str] = []
        self.consumed: Counter[str] = Counter()
        # Their ack is in doubt.
        self.perhaps: set[str] = set()
        self.errors: Counter[str] = Counter()
        self.acked_at: list[float] = []
        self._over = threading.Event()
        self._failed: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(self._publish, n)) for n in range(publishers)]
        self._threads += [threading.Thread(target=self._run, args=(self._consume, n)) for n in range(consumers)]

    def __enter__(self) -> Traffic:
        with duly.connect(self.url) as q:
            q.create_topic("orders", kind="log", exist_ok=True)
            q.create_topic("jobs", kind="queue", lease=2, exist_ok=True, retry=duly.RetryPolicy(max_attempts=1000))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(90)
        assert not any(thread.is_alive() for thread in self._threads), "a call does not end"
        if self._failed:
            raise self._failed[0]

    def _run(self, do: Callable[[duly.Client, int], None], number: int) -> None:
        try:
            with duly.connect(self.url, consumer=f"t{number}", timeout=10) as q:
                do(q, number)
        except BaseException as error:
            self._failed.append(error)

    def _publish(self, q: duly.Client, number: int) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            # Every third has an id of its own; the others one that Duly makes.
            own = f"{number}-{turn}" if turn % 3 == 0 else None
            topic = ("orders", "jobs")[turn % 2]
            body = f"{topic}/{number}-{turn}"
            try:
                q.publish(topic, body.encode(), publish_id=own)
                self.acked.append(body)
                self.acked_at.append(time.monotonic())
            except duly.PublishUnknown as error:
                self._repeat(q, topic, body, error.publish_id)
            except duly.Unavailable as error:
                self.errors[type(error).__name__] += 1
                self.refused.append(body)

    def _repeat(self, q: duly.Client, topic: str, body: str, publish_id: str) -> None:
        self.doubted.append(body)
        with suppress(duly.PublishUnknown, duly.Unavailable):
            q.publish(topic, body.encode(), publish_id=publish_id)
            self.acked.append(body)

    def _consume(self, q: duly.Client, number: int) -> None:
        while not self._over.is_set():
            held: set[str] = set()
            try:
                batch = q.claim("jobs", max_messages=20, wait=0.2)
                held = {payload.decode() for payload in batch.payloads}
                lost = {delivery.payload.decode() for delivery in q.ack(batch).lost}
                self.consumed.update(held - lost)
                # Asked twice over a broken line, the first may have done it.
                self.perhaps |= lost
            except (duly.Unavailable, duly.StoreError) as error:
                self.perhaps |= held
                self.errors[type(error).__name__] += 1

    def account(self) -> None:
        """Every acked publish is there, once; what was refused is not."""
        with duly.connect(self.url) as q:
            stored: Counter[str] = Counter()
            while page := q.read("orders", offset=sum(stored.values()), max_messages=5000):
                stored.update(message.payload.decode() for message in page)
            while batch := q.claim("jobs", max_messages=1000, wait=2.5):
                self.consumed.update(payload.decode() for payload in batch.payloads)
                assert not q.ack(batch).lost
        everything = set(stored) | set(self.consumed) | self.perhaps
        lost = [body for body in self.acked if body not in everything]
        twice = [body for body, count in stored.items() if count > 1]
        never = [body for body in self.refused if body in everything]
        again = [body for body, count in self.consumed.items() if count > 1]
        print(
            f"{len(self.acked)} acked, {len(self.doubted)} in doubt, {len(self.refused)} refused, {dict(self.errors)};"
            f" lost {len(lost)}, stored twice {len(twice)}, refused and there {len(never)}, acked twice {len(again)}"
        )
        assert (lost[:5], twice[:5], never[:5], again[:5]) == ([], [], [], [])


def pauses(kills: int) -> Iterator[float]:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    return (draw.uniform(0.3, 1.2) for _ in range(kills))


def goes_on(traffic: Traffic, within_s: float = 15) -> bool:
    """Whether something is acked that was not before."""
    since = time.monotonic()
    while time.monotonic() < since + within_s:
        if traffic.acked_at and traffic.acked_at[-1] > since:
            return True
        time.sleep(0.1)
    return False


def test_the_server_is_killed_and_restarted_under_traffic(postgres_server: Start) -> None:
    server = postgres_server()
    with Traffic(url_of(server), publishers=3, consumers=2) as traffic:
        for pause in pauses(scaled(2, 40)):
            time.sleep(pause)
            server.kill()
            server.start()
        assert goes_on(traffic), "nobody recovered"
    traffic.account()
    assert len(traffic.acked) > 100


def test_what_was_acked_with_a_claim_outlasts_the_server(postgres_server: Start) -> None:
    """Claims alone are not waited for, and with a lazy server the last ones are lost: these are not."""
    server = postgres_server(wal_writer_delay="10s")
    with duly.connect(url_of(server)) as q:
        q.create_topic("jobs", kind="queue", lease=600)
        q.publish("jobs", [b"%d" % number for number in range(20)])
        batch = q.claim("jobs", max_messages=5)
        for _ in range(scaled(2, 10)):
            done = set(batch.payloads)
            batch = q.claim("jobs", max_messages=1, acks=batch)
            assert batch.acked is not None
            assert not batch.acked.lost
            server.kill()
            server.start()
            assert not done & {one.payload for one in q.browse("jobs")}
            assert q.ack(batch).lost == ()
            batch = q.claim("jobs", max_messages=1)


def test_the_server_is_restarted_under_brokers_and_their_clients(
    postgres_server: Start, serve: Callable[..., list[BrokerProcess]]
) -> None:
    server = postgres_server()
    brokers = serve(url_of(server), url_of(server))
    with Traffic(brokers_url(brokers), publishers=3, consumers=2) as traffic:
        for pause in pauses(scaled(1, 40)):
            time.sleep(pause)
            server.kill()
            server.start()
            time.sleep(pause)
            server.restart()
        assert goes_on(traffic), "nobody recovered"
    traffic.account()
    assert len(traffic.acked) > 50


def test_a_synchronous_standby_that_takes_over_has_everything_that_was_acked(postgres_server: Start) -> None:
    primary = postgres_server()
    standby = primary.standby(synchronous=True)
    try:
        # The standby is named first: the one that takes writes is used.
        with Traffic(url_of(standby, primary), publishers=3, consumers=2) as traffic:
            time.sleep(scaled(2, 10))
            primary.kill()
            before = len(traffic.acked)
            standby.promote()
            deadline = time.monotonic() + 20
            while len(traffic.acked) < before + 20:
                assert time.monotonic() < deadline, "nobody goes on at the standby"
                time.sleep(0.05)
        traffic.account()
        assert before > 50
    finally:
        standby.close()


def test_a_standby_alone_is_refused(postgres_server: Start) -> None:
    primary = postgres_server(fsync=False)
    with duly.connect(url_of(primary)) as q:
        q.create_topic("orders", kind="log")
    standby = primary.standby()
    try:
        with pytest.raises(duly.Unavailable, match="read-only"):
            duly.connect(url_of(standby))
        with duly.connect(url_of(standby, primary)) as q:
            q.publish("orders", b"one")
            assert [message.payload for message in q.read("orders", offset=0)] == [b"one"]
    finally:
        standby.close()
