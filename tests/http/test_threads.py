"""Threads for calls that wait: one tenant's slow calls leave threads to others, and who waits has turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import duly
import duly.http.threads
from duly.http.threads import Threads
from duly.limits import LIMITS, Limits
from duly.tenant import TenantSettings, Weights

MOST = 8


@pytest.fixture
def weights() -> Weights:
    return Weights()


@pytest.fixture
def threads(weights: Weights) -> Iterator[Threads]:
    made = Threads(MOST, "test", weights)
    yield made
    made.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


def test_a_tenants_slow_calls_leave_threads_for_others(threads: Threads) -> None:
    over = threading.Event()

    async def test() -> None:
        flood = [asyncio.ensure_future(threads.run("flood", over.wait, 15)) for _ in range(100)]
        await asyncio.sleep(0)
        assert await threads.run("quiet", lambda: "served") == "served"
        assert not any(one.done() for one in flood)
        over.set()
        assert all(await asyncio.gather(*flood))

    run(test)


def test_tenants_that_wait_have_turns_by_weight(threads: Threads, weights: Weights) -> None:
    weights.heed({"b": TenantSettings(weight=3)})
    busy = threading.Event()
    served: list[str] = []

    async def test() -> None:
        # As many tenants as threads: nobody else gets one.
        holders = [asyncio.ensure_future(threads.run(f"h{n}", busy.wait, 15)) for n in range(MOST - 1)]
        last = threading.Event()
        lock = [asyncio.ensure_future(threads.run("last", last.wait, 15))]
        await asyncio.sleep(0)
        calls = [
            asyncio.ensure_future(threads.run(tenant, served.append, tenant)) for tenant in "ab" for _ in range(40)
        ]
        await asyncio.sleep(0.05)
        assert not served
        last.set()
        await asyncio.gather(*calls, *lock)
        assert served[:40].count("b") == pytest.approx(30, abs=3)
        busy.set()
        await asyncio.gather(*holders)

    run(test)


def test_the_one_that_floods_is_refused_alone(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duly.http.threads, "LIMITS", Limits(calls_waiting_max=20))
    over = threading.Event()

    async def test() -> None:
        flood = [asyncio.ensure_future(threads.run("flood", over.wait, 15)) for _ in range(20)]
        await asyncio.sleep(0)
        refused = [one for one in flood if one.done() and isinstance(one.exception(), duly.Busy)]
        assert len(refused) == 10
        await threads.run("quiet", str)
        over.set()
        await asyncio.gather(*flood, return_exceptions=True)
        assert LIMITS.calls_waiting_max > 20

    run(test)


def test_a_call_that_is_given_up_leaves_its_place(threads: Threads) -> None:
    over = threading.Event()

    async def test() -> None:
        flood = [asyncio.ensure_future(threads.run("flood", over.wait, 15)) for _ in range(10)]
        await asyncio.sleep(0)
        for one in flood:
            one.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        over.set()
        assert await threads.run("flood", lambda: "served") == "served"
        assert (threads._calls.held, threads._at_work.held) == (0, 0)

    run(test)
