"""One Spark for all tests of it, in one process; a store, and a broker on it in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import duly
from duly.spark import session
from tests.surface.brokers import serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HERE = Path(__file__).parent

Read = Callable[..., "DataFrame"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A Java is started once: under xdist all of these go to one worker. Said before xdist reads it."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
            # Spark's own Python warns of what it will change, and leaves its sockets to the collector.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    started = session("tests", "local[2]", {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"})
    yield started
    started.stop()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a store that the tests of a module share."""
    path = str(tmp_path_factory.mktemp("store") / "app.duly")
    duly.connect(path).close()
    return path


@pytest.fixture(scope="module")
def broker(store: str) -> Iterator[str]:
    """The url of a broker on that store."""
    path = Path(store)
    with serving(path.parent, "--store", path.name, "--http-port", "0", "--flight-port", "0", "--json") as process:
        yield process.url


@pytest.fixture(scope="module")
def q(store: str) -> Iterator[duly.Client]:
    """A client on the file itself, beside the broker and Spark."""
    with duly.connect(store) as client:
        yield client


@pytest.fixture(scope="module")
def read(spark: SparkSession, store: str) -> Read:
    """Reads a topic of the store, with options."""

    def load(topic: str, url: str = store, **options: Any) -> DataFrame:
        return spark.read.format("duly").options(url=url, topic=topic, **options).load()

    return load


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of its own for each test's topic."""
    return str(request.node.name).partition("[")[0][5:60]
