"""An archiver in a process of its own, to be killed.

python -m tests.spark.archive_process STORE LAKE ROWS WHEN     WHEN: before or after the Nth commit (before:2), never,
                                                               or when its files have been moved (moved:2)
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from typing import Any

from duly.spark.jobs.archive import SESSION_CONF, Archiver
from duly.spark.lake import Lake, Version
from duly.spark.session import session


class Deadly(Lake):
    """A lake that kills who commits to it."""

    def __init__(self, place: str, when: str) -> None:
        super().__init__(place)
        self._when, _, number = when.partition(":")
        self._number = int(number or 1)
        self._commits = 0

    def commit(self, *args: Any) -> Version:
        self._commits += 1
        self._step("before")
        secure = self.files.secure

        def after_moving(paths: Iterable[str]) -> None:
            self._step("moved")
            secure(paths)

        self.files.secure = after_moving  # type: ignore[method-assign]
        version = super().commit(*args)
        self._step("after")
        return version

    def _step(self, where: str) -> None:
        if where == self._when and self._commits == self._number:
            os.kill(os.getpid(), signal.SIGKILL)


def main(store: str, place: str, rows: str, when: str) -> None:
    spark = session("victim", "local[2]", SESSION_CONF | {"spark.driver.memory": "1g"})
    lake = Deadly(place, when)
    print("started", flush=True)
    with Archiver(spark, lake, store, ["default"], rows_max=int(rows)) as archiver:
        archiver.run(every_s=None, progress=lambda _: None)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
