"""A process that moves a store and is killed at one of its statements, on either side.

python -m tests.postgres.migrate_victim SOURCE DESTINATION KILL_AT     KILL_AT 0: never; prints how many there were
"""

from __future__ import annotations

import sys
from typing import Any

import apsw
import psycopg

import duly
import duly.client.moving
from tests.backup.victim import Reaper


def main(source: str, destination: str, kill_at: str) -> None:
    reaper = Reaper(int(kill_at))
    duly.client.moving._BATCH_ROWS = 200
    duly.client.moving._BATCH_BYTES = 200_000

    class Watched(apsw.Connection):
        def execute(self, *args: Any, **named: Any) -> Any:
            reaper.step()
            found = super().execute(*args, **named)
            reaper.step()
            return found

    apsw.Connection = Watched  # type: ignore[misc]
    psycopg.Connection.execute = reaper.watch(psycopg.Connection.execute)  # type: ignore[method-assign]
    psycopg.Copy.write = reaper.watch(psycopg.Copy.write)  # type: ignore[method-assign]
    psycopg.Copy.finish = reaper.watch(psycopg.Copy.finish)  # type: ignore[method-assign]
    psycopg.Connection._commit_gen = reaper.watch(psycopg.Connection._commit_gen)  # type: ignore[method-assign]
    duly.migrate(source, destination)
    print(reaper.calls)


if __name__ == "__main__":
    main(*sys.argv[1:])
