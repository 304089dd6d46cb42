"""What docs/pipeline.md shows is run, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import duly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def test_the_pages_python_runs(spark: SparkSession, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 3
    url = str(tmp_path / "app.duly")
    with duly.connect(url) as q:
        q.create_topic("orders", kind="log", archive=True)
        q.create_topic("letters", kind="queue")
        q.publish("orders", [duly.Message(b"order %d" % number, key=f"k{number % 3}") for number in range(100)])
        exec("\n".join(blocks), {"url": url, "lake": str(tmp_path / "lake")})
        assert q.describe_topic("letters").messages == 101
        assert q.describe_topic("orders-again").messages == 100
        assert q.describe_topic("orders").partitions[0].archived_to == 100
