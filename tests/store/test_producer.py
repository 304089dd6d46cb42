"""q.producer(): single publishes that travel in batches."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, wait
from typing import Any

import pytest

import duly
from duly.client.producer import BATCH_MESSAGES

from .patience import eventually


@pytest.fixture
def log(q: duly.Client) -> str:
    q.create_topic("orders", kind="log")
    return "orders"


def payloads(q: duly.Client) -> list[bytes]:
    return [message.payload for message in q.read("orders", max_messages=10_000)]


def test_what_is_published_one_by_one_is_stored_in_that_order_in_few_batches(q: duly.Client, log: str) -> None:
    with q.producer() as p:
        futures = [p.publish(log, b"%d" % n) for n in range(2500)]
    assert payloads(q) == [b"%d" % n for n in range(2500)]
    receipts = {future.result().publish_id: future.result() for future in futures}
    assert len(receipts) < 100
    assert sum(receipt.count for receipt in receipts.values()) == 2500
    assert max(receipt.count for receipt in receipts.values()) <= BATCH_MESSAGES


def test_a_batch_is_sent_a_while_after_its_first_message(q: duly.Client, log: str) -> None:
    with q.producer(linger=0.05) as p:
        began = time.monotonic()
        first, second = p.publish(log, b"a"), p.publish(log, b"b")
        assert first is second
        assert first.result(10).count == 2
        assert time.monotonic() - began >= 0.05


def test_a_full_one_is_sent_at_once(q: duly.Client, log: str) -> None:
    with q.producer(linger=60) as p:
        futures = [p.publish(log, b"x") for _ in range(BATCH_MESSAGES)]
        assert futures[-1].result(10).count == BATCH_MESSAGES
        big = p.publish(log, bytes(1024 * 1024))
        assert big.result(10).count == 1


def test_flush_waits_for_what_was_published_before(q: duly.Client, log: str) -> None:
    with q.producer(linger=60) as p:
        p.publish(log, b"a")
        p.flush()
        assert payloads(q) == [b"a"]


def test_messages_of_several_topics_travel_apart(q: duly.Client, log: str) -> None:
    q.create_topic("jobs", kind="queue")
    with q.producer(linger=60) as p:
        p.publish(log, b"a")
        p.publish("jobs", duly.Message(b"b", priority=3, due=5))
        p.publish(log, b"c")
    assert payloads(q) == [b"a", b"c"]
    (queued,) = q.browse("jobs")
    assert (queued.payload, queued.priority, queued.state) == (b"b", 3, "waiting")


def test_a_bad_message_is_refused_at_once_and_the_others_are_stored(q: duly.Client, log: str) -> None:
    with q.producer() as p:
        p.publish(log, b"a")
        for bad in ("text", None, 7, duly.Message(b"x", ttl=-1)):
            with pytest.raises(duly.InvalidArgument):
                p.publish(log, bad)  # type: ignore[arg-type]
        with pytest.raises(duly.InvalidArgument):
            p.publish("", b"x")
        p.publish(log, b"b")
    assert payloads(q) == [b"a", b"b"]


def test_what_the_topic_refuses_is_told_by_the_future_and_by_close(q: duly.Client, log: str) -> None:
    p = q.producer()
    refused = p.publish("nowhere", b"x")
    with pytest.raises(duly.TopicNotFound):
        refused.result(10)
    p.publish(log, duly.Message(b"x", priority=3))
    with pytest.raises(duly.InvalidArgument, match="belongs to queues"):
        p.close()
    assert payloads(q) == []


def test_a_closed_one_takes_nothing(q: duly.Client, log: str) -> None:
    p = q.producer()
    p.close()
    p.close()
    with pytest.raises(duly.Closed):
        p.publish(log, b"x")


def test_nobody_can_cancel_what_others_share(q: duly.Client, log: str) -> None:
    with q.producer(linger=0.05) as p:
        future = p.publish(log, b"a")
        p.publish(log, b"b")
        assert not future.cancel()
    assert payloads(q) == [b"a", b"b"]


@pytest.mark.parametrize("bad", [{"linger": -1}, {"linger": 3600}, {"max_bytes": 0}, {"timeout": 0}, {"linger": "a"}])
def test_bad_settings_are_refused(q: duly.Client, bad: dict[str, Any]) -> None:
    with pytest.raises(duly.InvalidArgument):
        q.producer(**bad)


class Reluctant:
    """Stands between a producer and its store: answers with errors first, or not until told."""

    def __init__(self, q: duly.Client, monkeypatch: pytest.MonkeyPatch, *errors: duly.Error) -> None:
        self.errors = list(errors)
        self.asked: list[float] = []
        self.go = threading.Event()
        self.go.set()
        self._publish = q.publish
        monkeypatch.setattr(q, "publish", self)

    def __call__(self, *args: Any, **kwargs: Any) -> duly.Receipt:
        self.asked.append(time.monotonic())
        self.go.wait(20)
        if self.errors:
            raise self.errors.pop(0)
        return self._publish(*args, **kwargs)


def test_a_store_that_is_busy_is_asked_again_after_as_long_as_it_says(
    q: duly.Client, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Reluctant(q, monkeypatch, duly.Busy(retry_after_s=0.2), duly.Busy(retry_after_s=0.2))
    with q.producer() as p:
        assert p.publish(log, b"a").result(10).count == 1
    assert len(store.asked) == 3
    assert store.asked[2] - store.asked[0] >= 0.4


def test_one_that_stays_busy_is_an_error_in_the_end(q: duly.Client, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Reluctant(q, monkeypatch, *[duly.Busy(retry_after_s=0.1)] * 20)
    p = q.producer(timeout=0.5)
    with pytest.raises(duly.Busy):
        p.publish(log, b"a").result(10)
    p.close()


def test_past_its_bytes_publish_waits_for_room_and_then_raises(
    q: duly.Client, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Reluctant(q, monkeypatch)
    store.go.clear()
    with q.producer(linger=0, max_bytes=50_000, timeout=0.3) as p:
        taken: list[Future[duly.Receipt]] = []

        def fill() -> None:
            while True:
                taken.append(p.publish(log, bytes(1000)))

        with pytest.raises(duly.Busy, match="does not keep up"):
            fill()
        assert 40 <= len(taken) <= 50
        store.go.set()
        wait(taken, 10)
        p.publish(log, b"there is room again")
    assert len(payloads(q)) == len(taken) + 1


def test_a_message_that_could_never_fit_is_refused(q: duly.Client, log: str) -> None:
    with q.producer(max_bytes=1000) as p, pytest.raises(duly.InvalidArgument, match="give it more"):
        p.publish(log, bytes(2000))


def test_many_threads_share_one(q: duly.Client, log: str) -> None:
    with q.producer() as p:
        threads = [
            threading.Thread(target=lambda n=n: [p.publish(log, b"%d-%d" % (n, m)) for m in range(200)])
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stored = payloads(q)
    assert len(stored) == len(set(stored)) == 1600
    for n in range(8):
        own = [payload for payload in stored if payload.startswith(b"%d-" % n)]
        assert own == [b"%d-%d" % (n, m) for m in range(200)]


def test_for_asyncio(tmp_path: Any) -> None:
    async def main() -> None:
        async with duly.aio.connect(tmp_path / "aio.duly") as q:
            await q.create_topic("orders", kind="log")
            async with q.producer(max_bytes=20_000) as p:
                stored = [await p.publish("orders", bytes(1000)) for _ in range(100)]
                receipts = await asyncio.gather(*stored)
                with pytest.raises(duly.InvalidArgument):
                    await p.publish("orders", "text")  # type: ignore[arg-type]
                await p.publish("orders", b"last")
                await p.flush()
                assert len(await q.read("orders", max_messages=1000)) == 101
            assert sum(count for count in {r.publish_id: r.count for r in receipts}.values()) == 100

    asyncio.run(main())


def test_it_ends_with_its_thread(q: duly.Client, log: str) -> None:
    with q.producer() as p:
        p.publish(log, b"x")
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "duly-producer"])
