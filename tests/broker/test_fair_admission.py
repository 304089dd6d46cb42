"""Between tenants: what one floods the broker with changes nobody else's service. Bounds are counted in what is served
of others, and not in milliseconds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import duly
import duly.broker.room
import duly.store.sqlite.writer
from duly.broker.entry import Entry
from duly.client.embedded import heed_weights
from duly.clock import monotonic_s
from duly.engine.claimed import Claim
from duly.limits import LIMITS
from tests.store.patience import eventually

from .conftest import Place

# What one tenant's turn is good for, in commands that cost nothing but their own price.
A_TURN = 128


class Asked:
    """Claims of tenants that are handed to the writer, and the order in which they are answered."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.taken = 0
        self.served: list[str] = []
        self.errors: list[Exception] = []

    def claim(self, tenant: str, times: int = 1, *, most: int = 1, cost: int = 0) -> None:
        def then(answer: Any) -> None:
            if isinstance(answer, Exception):
                self.errors.append(answer)
            self.served.append(tenant)

        command = Claim(tenant, "jobs", "queue", "w", most, 1 << 26)
        for _ in range(times):
            self._place.broker.submit(command, cost=cost, then=then)
            self.taken += 1

    def all_served(self) -> None:
        eventually(lambda: len(self.served) == self.taken)


@pytest.fixture
def shared(place: Place) -> Place:
    for tenant in ("flood", "quiet", "other"):
        Entry(place.broker).client(tenant).create_topic("jobs", kind="queue")
    return place


def test_a_quiet_tenant_waits_for_one_turn_of_the_one_that_floods(shared: Place) -> None:
    asked = Asked(shared)
    with shared.writing():
        asked.claim("flood", 5000)
        asked.claim("quiet")
    asked.all_served()
    # What the writer had in its hands when the quiet one came, and a turn.
    assert asked.served.index("quiet") <= 2 * A_TURN
    assert not asked.errors


def test_claims_of_many_messages_are_longer_turns(shared: Place) -> None:
    asked = Asked(shared)
    with shared.writing():
        asked.claim("flood", 1000, most=1000)
        asked.claim("quiet", 100)
    asked.all_served()
    last = max(place for place, tenant in enumerate(asked.served) if tenant == "quiet")
    assert asked.served[:last].count("flood") <= 10


def test_a_weight_is_heeded_while_running(shared: Place) -> None:
    shared.q.create_tenant("third", weight=2)
    shared.q.update_tenant("other", weight=4)
    heed_weights(shared.home.store)
    asked = Asked(shared)
    with shared.writing():
        for tenant in ("other", "quiet"):
            asked.claim(tenant, 6000)
    asked.all_served()
    first = asked.served[: 40 * A_TURN]
    assert first.count("other") == pytest.approx(4 * first.count("quiet"), rel=0.2)


def test_the_caretaker_reads_weights_when_they_were_changed(shared: Place) -> None:
    shared.q.update_tenant("other", weight=4)
    eventually(lambda: shared.home.store.weights.of("other") == 4)
    shared.q.update_tenant("other", weight=1)
    eventually(lambda: shared.home.store.weights.of("other") == 1)


def test_the_one_that_fills_the_writer_is_told_busy_and_nobody_else(
    shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duly.store.sqlite.writer, "LIMITS", replace(LIMITS, writer_commands_max=10_000))
    asked = Asked(shared)
    with shared.writing():
        with pytest.raises(duly.Busy):
            asked.claim("flood", 10_000)
        asked.claim("quiet", 2000)
        with pytest.raises(duly.Busy):
            asked.claim("flood", 1)
        asked.claim("other", 500)
    asked.all_served()
    assert (asked.served.count("quiet"), asked.served.count("other")) == (2000, 500)
    assert 5000 <= asked.served.count("flood") <= 5000 + 1024
    assert not asked.errors
    asked.claim("flood")


def test_the_one_that_fills_the_writers_memory_is_told_busy_and_nobody_else(
    shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duly.store.sqlite.writer, "LIMITS", replace(LIMITS, writer_bytes_max=1_000_000))
    asked = Asked(shared)
    with shared.writing():
        with pytest.raises(duly.Busy):
            asked.claim("flood", 20, cost=100_000)
        asked.claim("quiet", cost=100_000)
        asked.claim("other", 2, cost=100_000)
        with pytest.raises(duly.Busy):
            asked.claim("flood", cost=100_000)
    asked.all_served()
    assert (asked.served.count("quiet"), asked.served.count("other")) == (1, 2)
    assert not asked.errors


def test_the_one_that_fills_the_waiting_room_is_turned_away_and_nobody_else(
    shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duly.broker.room, "LIMITS", replace(LIMITS, claims_waiting_max=8))

    def wait(tenant: str) -> None:
        command = Claim(tenant, "jobs", "queue", "w", 1, 1 << 26)
        shared.room.claim(command, wait_until=monotonic_s() + 60, then=lambda _: None)

    for _ in range(4):
        wait("flood")
    with pytest.raises(duly.Busy):
        wait("flood")
    wait("quiet")
    wait("other")
    with pytest.raises(duly.Busy):
        wait("flood")
    assert shared.room.count == 6
