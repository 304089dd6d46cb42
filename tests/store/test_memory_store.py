"""`:memory:` is a whole store of its own that leaves nothing behind.

Every test that asks for `q` alone runs on it as well; here is what only it promises.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import duly

from .patience import Aside, eventually

pytestmark = pytest.mark.sqlite


def test_every_memory_store_is_its_own() -> None:
    with duly.connect(":memory:") as one, duly.connect(":memory:") as two:
        one.create_topic("t", kind="log")
        assert one.list_topics() == ["t"]
        assert two.list_topics() == []


def test_a_memory_store_ends_with_its_client() -> None:
    with duly.connect(":memory:") as q:
        q.create_topic("t", kind="log")
    with duly.connect(":memory:") as q:
        assert q.list_topics() == []


def test_a_memory_store_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with duly.connect(":memory:") as q:
        q.create_topic("t", kind="log")
        q.publish("t", [bytes(1000)] * 1000)
    assert list(tmp_path.iterdir()) == []


def test_threads_publish_read_and_claim_one_memory_store_at_once() -> None:
    with duly.connect(":memory:") as q:
        q.create_topic("t", kind="log")
        q.create_group("t", "g")
        got: list[bytes] = []
        lock = threading.Lock()

        def publish(thread: int) -> None:
            for n in range(50):
                q.publish("t", b"%d-%d" % (thread, n))

        def consume() -> None:
            while True:
                with q.claim("t", group="g", max_messages=10, wait=0.3) as batch:
                    if not batch:
                        return
                    q.describe_group("t", "g")
                    with lock:
                        got.extend(batch.payloads)

        workers = [Aside(lambda thread=thread: publish(thread)) for thread in range(4)]  # type: ignore[misc]
        workers += [Aside(consume) for _ in range(4)]
        for worker in workers:
            worker.result(30)
        assert sorted(got) == sorted(b"%d-%d" % (t, n) for t in range(4) for n in range(50))


def test_reads_of_a_memory_store_see_whole_batches_only() -> None:
    with duly.connect(":memory:") as q:
        q.create_topic("t", kind="log")
        publisher = Aside(lambda: [q.publish("t", [b"x"] * 7) for _ in range(100)])
        counts = []
        while publisher.running:
            counts.append(q.describe_topic("t").messages)
        publisher.result()
        assert [count for count in counts if count % 7] == []


def test_retention_runs_in_memory_too() -> None:
    clock = duly.ManualClock()
    with duly.connect(":memory:", clock=clock) as q:
        q.create_topic("t", kind="log", retention=duly.Retention(age=60))
        q.publish("t", [b"x"] * 10)
        clock.advance(61)
        eventually(lambda: q.describe_topic("t").messages == 0)
