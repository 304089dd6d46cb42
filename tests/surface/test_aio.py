"""duly.aio: the same names as duly.Client, awaited; and what becomes of calls whose task is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar, assert_type

import pytest

import duly
from duly import aio
from duly.client.threads import SHORT_CALLS_MAX
from tests.conftest import scaled
from tests.store.patience import eventually

T = TypeVar("T")


class GatedClock(duly.ManualClock):
    """A clock that can make whoever asks it wait: what it is asked in the middle of a transaction stays there."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Semaphore(0)

    def now_ms(self) -> int:
        if not self.open.is_set() and threading.current_thread().name.startswith(("duly-aio", "duly-writer")):
            self.asked.release()
            assert self.open.wait(30)
        return super().now_ms()

    def shut(self) -> None:
        """From now on transactions of ours get stuck."""
        self.open.clear()

    async def stuck(self) -> None:
        """Returns when one is."""
        assert await asyncio.to_thread(self.asked.acquire, timeout=30)


def go(main: Coroutine[Any, Any, T], *, within_s: float = 60) -> T:
    """Runs a test's coroutine, within a time in which nothing real takes so long."""

    async def bounded() -> T:
        async with asyncio.timeout(within_s):
            return await main

    return asyncio.run(bounded(), debug=False)


async def until(condition: Callable[[], object], *, within_s: float = 15) -> None:
    """Waits for what threads do, without keeping the loop from turning."""
    await asyncio.to_thread(eventually, condition, within_s=within_s)


# Threads that earlier tests of this process left behind: not all of them wait for what they started to end.
_others: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _only_ours() -> None:
    _others.clear()
    _others.update(threading.enumerate())


def ours() -> list[str]:
    """The threads of Duly's that live and were started by this test."""
    return [t.name for t in threading.enumerate() if t.name.startswith("duly-") and t not in _others]


def waiting() -> int:
    """How many threads wait for somebody."""
    return ours().count("duly-aio-wait")


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


class TestNames:
    def test_every_name_of_the_client_is_here_and_told_to_type_checkers(self) -> None:
        missing = public(duly.Client) - public(aio.Client)
        assert missing == set(), "add its line to the class in duly/client/aio.py"
        assert public(aio.Client) == public(duly.Client)

    def test_what_is_settled_has_the_same_names_too(self) -> None:
        looked_at = {name for name in public(duly.Delivery) if not callable(getattr(duly.Delivery, name))} | {"json"}
        assert public(duly.Delivery) - looked_at == public(aio.Delivery)
        assert looked_at - {"json"} <= set(declared("Delivery")), "add its type to the class in duly/client/aio.py"

    def test_parameters_are_the_clients(self) -> None:
        for ours, theirs in ((aio.Client, duly.Client), (aio.Batch, duly.Batch), (aio.Delivery, duly.Delivery)):
            for name in public(ours) & public(theirs):
                if callable(getattr(theirs, name)):
                    expected = inspect.signature(getattr(theirs, name)).parameters
                    assert inspect.signature(getattr(ours, name)).parameters == expected, name
        assert inspect.signature(aio.connect) == inspect.signature(duly.connect)

    def test_a_method_that_the_client_gains_is_here_by_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def louder(self: duly.Client, word: str, *, timeout: float | None = None) -> str:
            assert threading.current_thread() is not threading.main_thread()
            return f"{self.tenant}: {word.upper()}"

        def letters(self: duly.Client, word: str) -> Iterator[str]:
            yield from word

        def patient(self: duly.Client, *, wait: float) -> str:
            return threading.current_thread().name

        monkeypatch.setattr(duly.Client, "louder", louder, raising=False)
        monkeypatch.setattr(duly.Client, "letters", letters, raising=False)
        monkeypatch.setattr(duly.Client, "patient", patient, raising=False)
        monkeypatch.setattr(duly.Client, "colour", property(lambda _: "blue"), raising=False)

        async def main() -> None:
            async with aio.connect(":memory:") as q:
                gained: Any = q
                assert await gained.louder("hello", timeout=5) == "default: HELLO"
                assert [letter async for letter in gained.letters("abc")] == ["a", "b", "c"]
                assert await gained.patient(wait=5) == "duly-aio-wait", "what may wait has a thread of its own"
                assert gained.colour == "blue"
                with pytest.raises(AttributeError, match="nonsense"):
                    _ = gained.nonsense

        go(main())


def declared(kind: str) -> list[str]:
    """The names that a class declares for type checkers."""
    source = inspect.getsource(getattr(aio, kind))
    return [line.split(":")[0].strip() for line in source.splitlines() if line.startswith("        ") and ": " in line]


async def types_are_the_clients(q: aio.Client) -> None:
    """Never run: mypy reads it. Each `ignore` is a mistake that it has to find."""
    assert_type(await q.publish("t", b"", timeout=1), duly.Receipt)
    assert_type(await q.list_topics(limit=1), list[str])
    assert_type(await q.create_topic("t", kind="log", lease=30), duly.TopicDescription)
    assert_type(await q.claim("t", wait=5), aio.Batch)
    assert_type(await q.held(), list[aio.Batch])
    assert_type(await q.release(consumer="w1"), aio.Settled)
    async with q.claim("t") as batch:
        assert_type(await q.nack(batch, delay=5), aio.Settled)
        assert_type(await q.ack([batch[0]]), aio.Settled)
        assert_type(batch.payloads, list[bytes])
        async for d in batch:
            assert_type(d.payload, bytes)
            assert_type(await d.nack(delay=1, reason="r"), None)
            d.ack(3)  # type: ignore[call-arg, unused-coroutine]
    async for letter in q.dead("t"):
        assert_type(letter, duly.DeadLetter)
    async with aio.connect("app.duly", tenant="acme") as other:
        assert_type(other, aio.Client)
    await q.publish("t", b"", timout=1)  # type: ignore[call-arg]
    await q.describe_topic(5)  # type: ignore[arg-type]
    aio.connect("app.duly", consumer=5)  # type: ignore[arg-type]


class TestUse:
    def test_a_message_is_published_claimed_and_acked(self, path: str) -> None:
        async def main() -> None:
            async with aio.connect(path, consumer="w1") as q:
                assert (q.tenant, q.consumer) == ("default", "w1")
                await q.create_topic("orders", kind="log")
                await q.create_group("orders", "billing")
                await q.publish("orders", [b"one", duly.Message(b"two", key="k", headers={"a": "b"})])
                async with q.claim("orders", group="billing", wait=5) as batch:
                    assert (len(batch), batch.payloads, batch.topic) == (2, [b"one", b"two"], "orders")
                    found = [(d.payload, d.key, dict(d.headers), d.attempt, d.offset) async for d in batch]
                    await batch[0].ack()
                    assert batch[0].settled
                    assert not batch[1].settled
                assert found == [(b"one", None, {}, 1, 0), (b"two", "k", {"a": "b"}, 1, 1)]
                group = await q.describe_group("orders", "billing")
                assert (group.lag, group.pending, group.dead) == (0, 0, 0)

        go(main())

    def test_a_block_that_raises_gives_its_batch_back(self, path: str) -> None:
        async def main() -> None:
            async with aio.connect(path) as q:
                await q.create_topic("t", kind="queue", retry=duly.RetryPolicy(base=0.001))
                await q.publish("t", b"x")
                with pytest.raises(ZeroDivisionError):
                    async with q.claim("t"):
                        _ = 1 / 0
                batch = await q.claim("t", wait=10)
                assert [d.attempt for d in batch] == [2]
                found = await q.get("t", batch[0].id)
                assert found is not None
                assert found.history[0].reason == "ZeroDivisionError: division by zero"

        go(main())

    def test_a_claim_acks_what_is_done_with(self, path: str) -> None:
        async def main() -> None:
            async with aio.connect(path) as q:
                await q.create_topic("t", kind="queue")
                await q.publish("t", [b"%d" % n for n in range(4)])
                first = await q.claim("t", max_messages=2)
                assert first.acked is None
                second = await q.claim("t", max_messages=1, acks=first)
                assert second.acked == aio.Settled(2)
                await second.ack()
                async with q.claim("t", wait=5, acks=[second[0]]) as third:
                    assert third.payloads == [b"3"]
                    assert third.acked is not None
                    assert third.acked.lost == (second[0],)

        go(main())

    def test_every_verdict_can_be_awaited_one_by_one_and_in_lists(self, path: str) -> None:
        async def main() -> None:
            async with aio.connect(path) as q:
                await q.create_topic("t", kind="queue")
                await q.publish("t", [b"%d" % n for n in range(8)])
                batch = await q.claim("t", max_messages=8, lease=60)
                before = batch[0].lease_expires_at
                await batch[0].extend(600)
                assert batch[0].lease_expires_at > before
                await batch[1].bury("why not")
                await batch[2].release()
                await batch[3].nack(delay=3600, reason="later")
                assert (await q.nack(d for d in batch if d.payload == b"4")).done == 1
                assert (await q.ack([batch[5], batch[6]])).done == 2
                again = await q.ack([batch[5]])
                assert again == aio.Settled(0, (batch[5],))
                assert batch[5] in again.lost
                assert (await batch.ack()).done == 2
                assert [letter.reason async for letter in q.dead("t")] == ["why not"]
                assert (await q.describe_group("t", "queue")).lag == 1
                assert (await q.release(consumer=q.consumer)).done == 0

        go(main())

    def test_a_restarted_consumer_gets_its_batches_back(self, path: str) -> None:
        async def main() -> None:
            async with aio.connect(path, consumer="w1") as q:
                await q.create_topic("t", kind="queue")
                await q.publish("t", b"x")
                lost = await q.claim("t")
                (batch,) = await q.held()
                with pytest.raises(duly.LeaseLost):
                    await lost[0].ack()
                await batch[0].ack()

        go(main())

    def test_errors_keep_their_type_and_facts(self, path: str) -> None:
        async def main() -> None:
            async with aio.connect(path) as q:
                with pytest.raises(duly.TopicNotFound, match="create_topic"):
                    await q.publish("nowhere", b"")
                with pytest.raises(duly.InvalidArgument, match="str"):
                    await q.publish("nowhere", "text")
                with pytest.raises(duly.LimitExceeded):
                    await q.claim("nowhere", wait=-1)
                with pytest.raises(TypeError):
                    await q.publish()  # type: ignore[call-arg]
                with pytest.raises(duly.InvalidArgument):
                    await q.ack([1])  # type: ignore[list-item]
                await q.create_topic("t", kind="log")
                with pytest.raises(duly.InvalidArgument) as refused:
                    await q.read("t", offset=7)
                assert refused.value.facts["next_offset"] == 0
            with pytest.raises(duly.InvalidArgument, match="path"):
                await aio.connect("")

        go(main())

    def test_the_client_can_be_awaited_and_closed_by_hand(self, path: str) -> None:
        async def main() -> None:
            q = await aio.connect(path)
            await q.create_topic("t", kind="log")
            await q.close()
            await q.close()
            with pytest.raises(duly.Closed):
                await q.publish("t", b"")
            with pytest.raises(duly.Closed):
                await q.claim("t", group="g", wait=5)

        go(main())
        eventually(lambda: ours() == [])

    def test_two_event_loops_share_a_client(self, path: str) -> None:
        q = asyncio.run(opened(path))

        async def produce() -> None:
            for n in range(50):
                await q.publish("t", b"%d" % n)

        async def consume() -> list[bytes]:
            found: list[bytes] = []
            while len(found) < 50:
                async with q.claim("t", wait=10) as batch:
                    found += batch.payloads
            return found

        elsewhere = threading.Thread(target=asyncio.run, args=(produce(),))
        elsewhere.start()
        assert sorted(map(int, go(consume()))) == list(range(50))
        elsewhere.join()
        go(q.close())

    def test_streams_are_read_to_the_end_or_left(self, path: str) -> None:
        async def main() -> None:
            async with aio.connect(path) as q:
                await q.create_topic("t", kind="queue")
                await q.publish("t", [b"%d" % n for n in range(250)])
                await q.bury(await q.claim("t", max_messages=250))
                assert [int(letter.payload) async for letter in q.dead("t")] == list(range(250))
                async for letter in q.dead("t"):
                    assert letter.payload == b"0"
                    break
                assert [found.level async for found in q.examine()]
                with pytest.raises(duly.TopicNotFound):
                    _ = [letter async for letter in q.dead("nowhere")]
                await until(lambda: waiting() == 0)

        go(main())

    def test_the_child_of_a_fork_has_threads_of_its_own(self, path: str) -> None:
        script = """
import asyncio, os, sys, time, duly
q = asyncio.run(duly.aio.connect(sys.argv[1])._coroutine)
asyncio.run(q.create_topic("t", kind="queue"))
time.sleep(0.2)  # The pool's thread is idle by now: a child that relied on it would wait for it.
if (child := os.fork()) == 0:
    asyncio.run(asyncio.wait_for(q.publish("t", b"from the child"), 20))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(asyncio.run(q.claim("t", wait=5)._coroutine).payloads)
asyncio.run(q.close())
"""
        ran = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60)
        assert ran.stdout == "[b'from the child']\n", ran.stderr


async def opened(path: str) -> aio.Client:
    q = await aio.connect(path)
    await q.create_topic("t", kind="queue")
    return q


class TestManyWait:
    def test_two_hundred_waiting_claims_keep_no_publish_from_its_turn(self, path: str) -> None:
        """Each of them gets one message, and while they wait the pool is free."""
        count = 200

        async def main() -> None:
            async with aio.connect(path) as q:
                await q.create_topic("t", kind="queue")
                await q.create_topic("other", kind="log")
                tasks = [asyncio.create_task(one(q)) for _ in range(count)]
                await until(lambda: waiting() == count)
                async with asyncio.timeout(10):
                    await asyncio.gather(*(q.publish("other", b"x", timeout=10) for _ in range(100)))
                assert not any(task.done() for task in tasks)
                await q.publish("t", [b"%d" % n for n in range(count)])
                assert sorted(map(int, await asyncio.gather(*tasks))) == list(range(count))
                await until(lambda: waiting() == 0)

        async def one(q: aio.Client) -> bytes:
            async with q.claim("t", max_messages=1, wait=30) as batch:
                return batch.payloads[0]

        go(main())

    def test_more_than_may_wait_are_told_so(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("duly.client.threads.WAITING_CALLS_MAX", 3)

        async def main() -> None:
            async with aio.connect(path) as q:
                await q.create_topic("t", kind="queue")
                tasks = [asyncio.create_task(q.claim("t", wait=30)) for _ in range(3)]
                await until(lambda: waiting() == 3)
                with pytest.raises(duly.Busy, match="3 calls wait"):
                    await q.claim("t", wait=30)
                assert len(await q.claim("t")) == 0
                for task in tasks:
                    task.cancel()
                await until(lambda: waiting() == 0)
                assert len(await q.claim("t", wait=0.01)) == 0

        go(main())

    def test_waits_that_are_given_up_leave_no_threads_behind(self, path: str) -> None:
        async def main() -> None:
            async with aio.connect(path) as q:
                await q.create_topic("t", kind="queue")
                for _ in range(20):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(q.claim("t", wait=3600), 0.01)
                await until(lambda: waiting() == 0)

        go(main())


class TestCancelling:
    def test_a_claim_that_was_cancelled_waits_no_longer(self, path: str) -> None:
        """What is published afterwards goes to who is there, at its first attempt, and to no ghost in between."""
        heard: list[duly.Event] = []

        async def main() -> None:
            async with aio.connect(path, on_event=heard.append) as q:
                await q.create_topic("t", kind="queue")
                ghosts = [asyncio.create_task(q.claim("t", wait=3600, consumer=f"ghost-{n}")) for n in range(10)]
                await until(lambda: waiting() == 10)
                for ghost in ghosts:
                    ghost.cancel()
                assert all(isinstance(e, asyncio.CancelledError) for e in await gathered(ghosts))
                await until(lambda: waiting() == 0)
                await q.publish("t", b"x")
                batch = await q.claim("t")
                assert [d.attempt for d in batch] == [1]
                assert {c.name for c in (await q.describe_group("t", "queue")).consumers if c.messages} == {q.consumer}

        go(main())

    @pytest.mark.parametrize("wait", [0, 30])
    def test_a_claim_that_comes_back_after_its_cancellation_is_released_at_once(self, path: str, wait: int) -> None:
        async def main() -> None:
            async with gated(path) as (q, clock):
                await q.publish("t", [b"a", b"b"])
                clock.shut()
                task = asyncio.create_task(q.claim("t", wait=wait, lease=3600))
                await clock.stuck()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                clock.open.set()
                # Its clock stands still: no lease ends by itself here.
                batch = await q.claim("t", wait=20)
                assert [(d.payload, d.attempt) for d in batch] == [(b"a", 1), (b"b", 1)]

        go(main())

    def test_a_claim_whose_answer_and_cancellation_meet_is_released_too(self, path: str) -> None:
        """The answer is in the loop, the task has not had it yet, and is cancelled."""

        async def main() -> None:
            async with gated(path) as (q, _):
                await q.publish("t", b"a")
                for _ in range(scaled(20, 500)):
                    task = asyncio.create_task(q.claim("t", lease=3600))
                    await asyncio.sleep(0)
                    # Without turning the loop: wait until the thread has handed its answer over.
                    eventually(lambda: len(asyncio.get_running_loop()._ready) > 0)  # type: ignore[attr-defined]
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    batch = await q.claim("t", wait=20)
                    assert [d.attempt for d in batch] == [1]
                    await q.release(batch)

        go(main())

    def test_whenever_claims_are_cancelled_every_message_is_delivered_once(self, path: str) -> None:
        """Consumers are cancelled at random; leases last an hour, so whatever one held on to would never come."""
        seed = random.randrange(2**32)
        print(f"seed={seed}")
        draw = random.Random(seed)
        count = scaled(200, 3000)
        found: list[bytes] = []

        async def consumer(q: aio.Client) -> None:
            while True:
                # Taken out of the batch and acked in one breath: no cancellation can come between.
                async with q.claim("t", max_messages=3, wait=30, lease=3600) as batch:
                    found.extend(batch.payloads)

        async def main() -> None:
            async with aio.connect(path) as q:
                await q.create_topic("t", kind="queue")
                tasks = [asyncio.create_task(consumer(q)) for _ in range(8)]
                for n in range(count):
                    await q.publish("t", b"%d" % n)
                    victim = draw.randrange(len(tasks))
                    await asyncio.sleep(draw.random() * 0.002)
                    tasks[victim].cancel()
                    tasks[victim] = asyncio.create_task(consumer(q))
                await until(lambda: len(found) >= count)
                for task in tasks:
                    task.cancel()
                await gathered(tasks)
                await until(lambda: waiting() == 0)
                group = await q.describe_group("t", "queue")
                assert (group.lag, group.pending, group.dead) == (0, 0, 0)
            assert sorted(map(int, found)) == list(range(count))

        go(main())

    def test_a_publish_that_was_cancelled_is_stored_whole_or_not_at_all(self, path: str) -> None:
        async def main() -> None:
            async with gated(path) as (q, clock):
                clock.shut()
                batch = [b"%d" % n for n in range(100)]
                task = asyncio.create_task(q.publish("t", batch, publish_id="p"))
                await clock.stuck()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                clock.open.set()
                assert (await q.publish("t", batch, publish_id="p")).duplicate
                assert (await q.describe_topic("t")).messages == 100

        go(main())

    def test_a_call_that_was_cancelled_before_it_had_a_thread_is_never_made(self, path: str) -> None:
        async def main() -> None:
            async with gated(path) as (q, clock):
                clock.shut()
                running = [asyncio.create_task(q.publish("t", b"x")) for _ in range(SHORT_CALLS_MAX)]
                await clock.stuck()
                late = asyncio.create_task(q.publish("t", b"late"))
                await asyncio.sleep(0)
                late.cancel()
                assert isinstance((await gathered([late]))[0], asyncio.CancelledError)
                clock.open.set()
                await asyncio.gather(*running)
                assert [m.payload for m in await q.browse("t")] == [b"x"] * SHORT_CALLS_MAX

        go(main())

    def test_a_block_that_is_cancelled_even_twice_gives_its_batch_back_and_renews_it_no_more(self, path: str) -> None:
        async def main() -> None:
            async with gated(path) as (q, clock):
                await q.publish("t", b"x")
                inside = asyncio.Event()

                async def work() -> None:
                    async with q.claim("t", lease=3600):
                        inside.set()
                        await asyncio.sleep(3600)

                task = asyncio.create_task(work())
                await inside.wait()
                clock.shut()
                busy = [asyncio.create_task(q.publish("t", b"y")) for _ in range(SHORT_CALLS_MAX)]
                await clock.stuck()
                task.cancel()
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                clock.open.set()
                await asyncio.gather(*busy)
                await until(lambda: standing(q)["retrying"] == 1)
                clock.advance(3600)
                batch = await q.claim("t", max_messages=100)
                assert {d.payload: d.attempt for d in batch} == {b"x": 2, b"y": 1}
                renewed: Any = q._plain._renewal
                assert not renewed._active

        def standing(q: aio.Client) -> dict[str, int]:
            group = q._plain.describe_group("t", "queue")
            return {"retrying": group.retrying, "leased": group.leased}

        go(main())

    @pytest.mark.timeout(120)
    def test_a_connection_that_was_cancelled_is_closed(self, path: str) -> None:
        async def main() -> None:
            for _ in range(5):
                task = asyncio.create_task(aio.connect(path))
                await asyncio.sleep(0)
                task.cancel()
                await gathered([task])
            # Five make one new file, and wait for each other's locks: 10 s each at most, and more on a busy machine.
            await until(lambda: not [name for name in ours() if not name.startswith("duly-aio")], within_s=60)

        go(main(), within_s=90)

    def test_a_stream_that_is_cancelled_while_it_waits_is_closed(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Such as an endless one, whose generator waits for messages inside."""
        ends: list[str] = []

        def endless(self: duly.Client, topic: str) -> Iterator[duly.Delivery]:
            try:
                while True:
                    yield from self.claim(topic, wait=3600, lease=3600)
            finally:
                ends.append(threading.current_thread().name)

        monkeypatch.setattr(duly.Client, "endless", endless, raising=False)

        async def main() -> None:
            async with aio.connect(path) as q:
                await q.create_topic("t", kind="queue")
                await q.publish("t", [b"a", b"b"])
                got: asyncio.Queue[aio.Delivery] = asyncio.Queue()

                async def consume() -> None:
                    stream: AsyncIterator[aio.Delivery] = q.endless("t")  # type: ignore[attr-defined]
                    async for d in stream:
                        await d.ack()
                        got.put_nowait(d)

                task = asyncio.create_task(consume())
                assert [(await got.get()).payload, (await got.get()).payload] == [b"a", b"b"]
                task.cancel()
                await gathered([task])
                await until(lambda: waiting() == 0)
                assert ends == ["duly-aio-wait"]

        go(main())


@pytest.mark.skipif(not hasattr(duly.Client, "consume"), reason="this client has no consume yet")
class TestConsume:
    def test_deliveries_come_one_by_one_and_are_acked_by_asking_for_the_next(self, path: str) -> None:
        async def main() -> None:
            async with gated(path) as (q, _):
                client: Any = q
                await q.publish("t", [b"%d" % n for n in range(10)])
                found = [(d.payload, d.attempt) async for d in client.consume("t", wait=0.05, max_messages=4)]
                assert found == [(b"%d" % n, 1) for n in range(10)]
                group = await q.describe_group("t", "queue")
                assert (group.lag, group.pending) == (0, 0)

        go(main())

    def test_a_loop_that_is_left_gives_back_what_it_held(self, path: str) -> None:
        async def main() -> None:
            async with gated(path) as (q, _):
                client: Any = q
                await q.publish("t", [b"%d" % n for n in range(4)])
                async for d in client.consume("t", max_messages=3, lease=3600):
                    assert d.payload == b"0"
                    break
                await until(lambda: q._plain.describe_group("t", "queue").leased == 0)
                group = await q.describe_group("t", "queue")
                assert (group.lag + group.retrying, group.dead) == (4, 0)
                async with client.consume("t", lease=3600) as deliveries:
                    async for d in deliveries:
                        assert d.attempt == 1
                        break
                group = await q.describe_group("t", "queue")
                assert (group.lag + group.retrying, group.leased) == (3, 0)

        go(main())

    def test_a_loop_that_is_cancelled_holds_nothing(self, path: str) -> None:
        async def main() -> None:
            async with gated(path) as (q, _):
                client: Any = q

                async def loop() -> None:
                    async for d in client.consume("t", lease=3600):
                        await d.ack()

                for _ in range(scaled(20, 200)):
                    task = asyncio.create_task(loop())
                    publishing = asyncio.create_task(q.publish("t", b"x"))
                    await asyncio.sleep(random.random() * 0.004)
                    task.cancel()
                    await gathered([task, publishing])
                    await until(lambda: waiting() == 0)
                    assert (await q.describe_group("t", "queue")).leased == 0

        go(main())


class TestTime:
    def test_a_call_that_gets_no_thread_in_time_is_a_timeout_and_never_made(self, path: str) -> None:
        async def main() -> None:
            async with gated(path) as (q, clock):
                clock.shut()
                running = [asyncio.create_task(q.publish("t", b"x")) for _ in range(SHORT_CALLS_MAX)]
                await clock.stuck()
                with pytest.raises(duly.Timeout, match="Nothing was done"):
                    await q.publish("t", b"late", timeout=0.1)
                clock.open.set()
                await asyncio.gather(*running)
                assert [m.payload for m in await q.browse("t")] == [b"x"] * SHORT_CALLS_MAX

        go(main())

    def test_a_publish_whose_time_is_up_behind_another_is_withdrawn(self, path: str) -> None:
        async def main() -> None:
            async with gated(path) as (q, clock):
                clock.shut()
                # Not the first: that would run in the thread that asks, and could not be given up.
                first = asyncio.create_task(q.publish("t", b"x", publish_id="first"))
                await clock.stuck()
                second = asyncio.create_task(q.publish("t", b"y", publish_id="second", timeout=0.2))
                with pytest.raises(duly.Timeout, match="Nothing was done"):
                    await second
                clock.open.set()
                await first
                assert not (await q.publish("t", b"y", publish_id="second")).duplicate

        go(main())

    def test_a_claim_with_nothing_to_claim_returns_empty_in_time(self, path: str) -> None:
        async def main() -> None:
            async with aio.connect(path) as q:
                await q.create_topic("t", kind="queue")
                async with q.claim("t", wait=0.05) as batch:
                    assert len(batch) == 0
                    assert [d async for d in batch] == []

        go(main())


class TestClosing:
    def test_claims_that_wait_end_with_closed(self, path: str) -> None:
        async def main() -> None:
            q = await aio.connect(path)
            await q.create_topic("t", kind="queue")
            tasks = [asyncio.create_task(q.claim("t", wait=3600)) for _ in range(20)]
            await until(lambda: waiting() == 20)
            await q.close()
            assert all(isinstance(error, duly.Closed) for error in await gathered(tasks))
            await until(lambda: ours() == [])

        go(main())

    def test_publishes_in_flight_are_stored_or_refused_and_say_which(self, path: str) -> None:
        async def main() -> tuple[int, int]:
            q = await aio.connect(path)
            await q.create_topic("t", kind="log")
            tasks = [asyncio.create_task(q.publish("t", b"%d" % n)) for n in range(300)]
            await tasks[0]
            await q.close()
            answers = await gathered(tasks)
            assert {type(answer) for answer in answers} <= {duly.Receipt, duly.Closed}
            return sum(isinstance(answer, duly.Receipt) for answer in answers), len(answers)

        stored, asked = go(main())
        with duly.connect(path) as q:
            assert q.describe_topic("t").messages == stored <= asked

    def test_closing_while_blocks_are_open_leaves_their_leases_to_run_out(self, path: str) -> None:
        async def main() -> None:
            q = await aio.connect(path)
            await q.create_topic("t", kind="queue")
            await q.publish("t", b"x")
            with pytest.raises(duly.Closed):
                async with q.claim("t", lease=0.2):
                    await q.close()
            async with aio.connect(path) as again:
                assert [d.attempt for d in await again.claim("t", wait=20)] == [2]

        go(main())


def test_a_program_that_ends_without_closing_ends(tmp_path: Path) -> None:
    script = """
import asyncio, sys, duly
async def main():
    q = await duly.aio.connect(sys.argv[1])
    await q.create_topic("t", kind="queue")
    asyncio.ensure_future(q.claim("t", wait=3600))
    await asyncio.sleep(0.1)
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
print("done", flush=True)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "app.duly")], capture_output=True, text=True, timeout=30
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


async def gathered(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    """How each of them ended."""
    return await asyncio.gather(*tasks, return_exceptions=True)


class gated:  # noqa: N801
    """A client with the queue `t`, on a gated clock; the gate is open in the end, whatever happened."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._clock = GatedClock()

    async def __aenter__(self) -> tuple[aio.Client, GatedClock]:
        self._client = await aio.connect(self._path, clock=self._clock)
        await self._client.create_topic("t", kind="queue", retry=duly.RetryPolicy(base=10, jitter="none"))
        return self._client, self._clock

    async def __aexit__(self, *_: object) -> None:
        self._clock.open.set()
        await self._client.close()


class TestTransactions:
    def test_rows_and_messages_are_kept_together_or_not_at_all(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with aio.connect(tmp_path / "app.duly") as q:
                await q.create_topic("jobs", kind="queue")
                async with q.transaction() as tx:
                    await tx.execute("CREATE TABLE done (id TEXT)")
                    await q.publish("jobs", b"one", tx=tx)
                batch = await q.claim("jobs")
                with contextlib.suppress(KeyError):
                    async with q.transaction() as tx:
                        await tx.executemany("INSERT INTO done VALUES (?)", [("one",)])
                        assert (await q.ack(batch, tx=tx)).done == 1
                        raise KeyError
                async with q.transaction() as tx:
                    assert await tx.execute("SELECT count(*) FROM done") == [(0,)]
                    await batch[0].ack(tx=tx)
                    await tx.execute("INSERT INTO done VALUES (?)", ["one"])
                assert (await q.describe_group("jobs", "queue")).leased == 0

        asyncio.run(main())

    def test_a_task_that_is_cancelled_leaves_no_transaction_open(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with aio.connect(tmp_path / "app.duly") as q:
                await q.create_topic("jobs", kind="queue")
                opened = asyncio.Event()

                async def hold() -> None:
                    async with q.transaction() as tx:
                        await q.publish("jobs", b"never", tx=tx)
                        opened.set()
                        await asyncio.sleep(60)

                holder = asyncio.create_task(hold())
                await opened.wait()
                waiter = asyncio.create_task(hold())
                await asyncio.sleep(0.05)
                for task in (waiter, holder):
                    task.cancel()
                await asyncio.wait([holder, waiter])
                await q.publish("jobs", b"after", timeout=5)
                assert (await q.claim("jobs")).payloads == [b"after"]

        asyncio.run(main())
