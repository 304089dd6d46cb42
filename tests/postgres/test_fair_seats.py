"""On PostgreSQL a topic is a seat, and tenants have turns at those who serve seats: one with many topics, all of them
busy, is served a transaction at a time, and then it is another one's turn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

import duly
import duly.store.postgres.writer
from duly.engine.audit import NoteCall, note_calls
from duly.engine.claimed import Claim
from duly.engine.operations import WRITES
from duly.grants import NOBODY
from duly.limits import Limits
from tests.store.patience import eventually

from .conftest import Application, store_of

TOPICS = 24
# Claims that wait at each topic.
EACH = 3


class Shared:
    """One store; tenants with topics of their own, asked for by a surface that does not wait."""

    def __init__(self, app: Application) -> None:
        self.flood = app.client(tenant="flood")
        self.quiet = app.client(tenant="quiet")
        for number in range(TOPICS):
            self.flood.create_topic(f"jobs-{number}", kind="queue")
        self.quiet.create_topic("jobs-0", kind="queue")
        self.store = store_of(self.quiet)
        self.served: list[str] = []
        self.goes_on = False

    def claim(self, tenant: str, topic: int = 0, *, cost: int = 0, times: int = 1) -> None:
        for _ in range(times):
            self._claim(tenant, topic, cost)

    def told(self, tenant: str, answer: Any) -> None:
        assert not isinstance(answer, Exception), answer
        self.served.append(tenant)

    def _claim(self, tenant: str, topic: int, cost: int) -> None:
        def then(answer: Any) -> None:
            self.told(tenant, answer)
            if tenant == "flood" and self.goes_on:
                self.claim(tenant, topic)

        command = Claim(tenant, f"jobs-{topic}", "queue", "w", 1, 1 << 26)
        self.store.submit(WRITES[Claim], command, tenant=tenant, cost=cost, then=then)

    @contextmanager
    def nobody_served(self) -> Iterator[None]:
        """While it is held there is no connection for anybody."""
        with ExitStack() as stack:
            for _ in range(self.store._pool.most):
                stack.enter_context(self.store._pool.line())
            yield


@pytest.fixture
def shared(app: Application, monkeypatch: pytest.MonkeyPatch) -> Shared:
    """With one thread alone that serves seats, so that what is served is in an order."""
    monkeypatch.setattr(duly.store.postgres.writer, "_LEADERS", 1)
    return Shared(app)


def test_a_tenant_with_many_topics_has_one_turn_and_then_it_is_anothers(shared: Shared) -> None:
    with shared.nobody_served():
        for topic in range(TOPICS):
            shared.claim("flood", topic)
        shared.claim("quiet")
    eventually(lambda: len(shared.served) == TOPICS + 1)
    # One was in hand, and one has its turn.
    assert shared.served.index("quiet") <= 2


def test_topics_that_are_always_busy_do_not_keep_those_who_serve_them(shared: Shared) -> None:
    shared.goes_on = True
    try:
        for topic in range(TOPICS):
            shared.claim("flood", topic, times=EACH)
        eventually(lambda: len(shared.served) > 100)
        for _ in range(3):
            before = len(shared.served)
            shared.claim("quiet")
            handed_over = len(shared.served)
            eventually(lambda: "quiet" in shared.served[before:])  # noqa: B023
            # A turn is a transaction, of what has gathered at one topic; another one was under way.
            assert shared.served.index("quiet", before) - handed_over <= 2 * EACH
    finally:
        shared.goes_on = False
    eventually(lambda: not shared.store._writer._busy)


def test_what_concerns_the_store_as_a_whole_has_turns_by_tenant(shared: Shared) -> None:
    def look(tenant: str) -> None:
        command = NoteCall("", "examine", {}, NOBODY)
        then = partial(shared.told, tenant)
        shared.store.submit(note_calls, command, tenant=tenant, cost=0, then=then)

    with shared.nobody_served():
        for _ in range(TOPICS):
            look("flood")
        look("quiet")
    eventually(lambda: len(shared.served) == TOPICS + 1)
    assert shared.served.index("quiet") <= 2


def test_readers_have_turns_by_tenant_at_the_connections(shared: Shared) -> None:
    readers = shared.store._readers

    def read(tenant: str) -> None:
        with shared.store.read(tenant) as tx:
            shared.served.append(tenant)
            assert tx.tenant_find(tenant) is not None

    def come(tenant: str, waiting: int) -> threading.Thread:
        thread = threading.Thread(target=read, args=(tenant,))
        thread.start()
        eventually(lambda: readers._waiting.count == waiting)
        return thread

    with ExitStack() as stack:
        # One after another, so that what is read is in an order.
        for _ in range(readers.most - 1):
            stack.enter_context(readers.line())
        with readers.line():
            came = [come("flood", number + 1) for number in range(TOPICS)]
            came.append(come("quiet", TOPICS + 1))
        for one in came:
            one.join()
    assert shared.served.index("quiet") <= 1


def test_the_one_that_fills_memory_is_told_busy_and_nobody_else(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duly.store.postgres.writer, "LIMITS", Limits(writer_commands_max=20))
    with shared.nobody_served():
        with pytest.raises(duly.Busy):
            shared.claim("flood", times=20)
        shared.claim("quiet")
        with pytest.raises(duly.Busy):
            shared.claim("flood")
    eventually(lambda: shared.served.count("quiet") == 1 and shared.served.count("flood") == 10)
    monkeypatch.setattr(duly.store.postgres.writer, "LIMITS", Limits(writer_bytes_max=1_000_000))
    with shared.nobody_served():
        with pytest.raises(duly.Busy):
            shared.claim("flood", times=20, cost=100_000)
        shared.claim("quiet", cost=100_000)
    eventually(lambda: shared.served.count("quiet") == 2)
