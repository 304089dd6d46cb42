"""A job of everything, in a process of its own: on a cluster, or through Spark Connect.

python -m tests.spark.cluster_process MASTER URL LAKE     prints what came of it, as JSON
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa

from duly.spark.jobs.archive import SESSION_CONF, Archiver
from duly.spark.lake import Lake
from duly.spark.session import session

_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}


def _folders(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Where the tasks run: each executor has a folder of its own."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"folder": [os.getcwd()]})


def main(master: str, url: str, lake: str) -> None:
    # A server is configured by whoever started it.
    spark = session("cluster", master, SESSION_CONF if master.startswith("sc://") else SESSION_CONF | _CONF)
    home = {"url": url}
    orders = spark.read.format("duly").options(**home, topic="orders", rowsPerPartition=1000).load()
    dear = orders.where("offset >= 100 AND key = 'k3'")
    dear.select("payload", "key").write.format("duly").mode("append").options(**home, topic="copies").save()
    with Archiver(spark, Lake(lake), url, ["default"]) as archiver:
        archiver.run(every_s=None, progress=lambda _: None)
    folders = spark.range(0, 16, 1, 16).mapInArrow(_folders, "folder string").distinct().collect()
    print(json.dumps({"orders": orders.count(), "copies": dear.count(), "folders": len(folders)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
