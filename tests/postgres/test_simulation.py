"""The model, the interleavings and the many processes of tests/simulation and tests/crash, on PostgreSQL.

The drivers are the same ones; three clients are open at once where they have two on a file. Broken once to see them
fail: without the lock of a topic (pg_advisory_xact_lock in `enter` and `guard`) both tests with processes fail; with
what is remembered trusted although others had a turn, all interleavings fail (the model, in eight examples, did not).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import postgres_schemas
from tests.conftest import FULL, scaled
from tests.crash import test_processes as log_processes
from tests.crash import test_queue_processes as queue_processes
from tests.simulation.interleaving import Interleaving
from tests.simulation.queue_interleaving import QueueInterleaving, Sizes, drawn_sizes
from tests.simulation.test_interleaving import account, live_and_die, seeds
from tests.simulation.test_model import DulyModel

pytestmark = pytest.mark.timeout(scaled(300, 7200))

CLIENTS = 3


@pytest.fixture(autouse=True)
def _nobody_stays_behind() -> Iterator[None]:
    """Kills what a test that failed has left."""
    yield
    for started in (log_processes.started, queue_processes.started):
        while started:
            with started.pop() as process:
                process.kill()


class PostgresModel(DulyModel):
    """The same on a schema of its own."""

    def _new_address(self) -> str:
        return postgres_schemas.schemas().take()

    def teardown(self) -> None:
        super().teardown()
        postgres_schemas.schemas().give_back(self.address)


TestPostgresModel = PostgresModel.TestCase
TestPostgresModel.settings = settings(
    max_examples=scaled(8, 1000),
    stateful_step_count=scaled(30, 80),
    deadline=None,
    print_blob=True,
    derandomize=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def test_every_message_of_a_log_is_accounted_for(fresh_store_url: Callable[[], str]) -> None:
    for seed in seeds(2, 300):
        print(f"DULY_TEST_SEED={seed}")
        driver = Interleaving(fresh_store_url(), seed, CLIENTS)
        try:
            driver.run(scaled(100, 250))
            driver.drain()
        finally:
            driver.close()


@pytest.mark.parametrize("in_lanes", [False, True], ids=["one lane", "many lanes"])
def test_every_message_of_a_queue_is_accounted_for(fresh_store_url: Callable[[], str], in_lanes: bool) -> None:
    done: Counter[str] = Counter()
    for seed in seeds(2, 300):
        with pytest.MonkeyPatch.context() as patch:
            sizes = drawn_sizes(random.Random(seed))
            sizes.apply(patch)
            done += _live(fresh_store_url(), seed, in_lanes=in_lanes, sizes=sizes, largest=60)
    assert done["claimed"]
    if FULL:
        # Two lives may well be without one of them.
        assert done["ack"]
        assert done["nack"]


def test_big_batches_with_the_engines_own_sizes(fresh_store_url: Callable[[], str]) -> None:
    for seed in seeds(1, 40):
        _live(fresh_store_url(), seed, in_lanes=bool(seed % 2), sizes=Sizes(), largest=scaled(700, 5000))


def _live(url: str, seed: int, *, in_lanes: bool, sizes: Sizes, largest: int) -> Counter[str]:
    print(f"DULY_TEST_SEED={seed} {sizes}")
    driver = QueueInterleaving(url, seed, in_lanes=in_lanes, sizes=sizes, largest=largest, clients=CLIENTS)
    try:
        driver.run(scaled(100, 250))
        driver.drain()
    finally:
        driver.close()
    return driver.done


def test_what_was_acknowledged_survives_kill_9(fresh_store_url: Callable[[], str], tmp_path: Path) -> None:
    url = fresh_store_url()
    for life in range(scaled(3, 60)):
        live_and_die(tmp_path, life, url)
    account(tmp_path, url)


def test_processes_work_on_one_log_while_some_are_killed(tmp_path: Path) -> None:
    url = postgres_schemas.schemas().take_unmade()
    logs = log_processes.work_and_kill(url, tmp_path, scaled(4, 8), scaled(2, 60), scaled(1, 30))
    assert len(log_processes.account(url, logs).acked) > 50


def test_processes_work_on_one_queue_while_some_are_killed(tmp_path: Path) -> None:
    url = postgres_schemas.schemas().take_unmade()
    logs = queue_processes.work_and_kill(url, tmp_path, scaled(3, 8), scaled(2, 60), scaled(1, 30))
    assert len(queue_processes.account(url, logs)[0].acked) > 50
