"""One Spark for all tests of it, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from duly.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A Java is started once: under xdist all of these go to one worker."""
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
