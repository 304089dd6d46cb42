"""Transactions of the store's own that commands on several topics join, as an application's do (application.py).

A turn is one topic's (writer.py), so what has to be done to two at once is left as mail for both, and committed on a
connection of its own. It is kept for the next; one that failed is closed, which undoes what it had not committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from ...errors import Error, PublishUnknown
from .faults import translate

Connection = psycopg.Connection[Any]
_IDLE = psycopg.pq.TransactionStatus.IDLE


class Together:
    """Connections for such transactions. Thread-safe."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._kept: list[Connection] = []
        self._closed = False

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Commits when the block ends. Raises PublishUnknown when nobody can tell whether it was committed.

        Any other error has undone everything; what was settled inside may still be held until the server notices.
        """
        connection = self._take()
        try:
            # Whatever the role's default is: what was claimed a moment ago has to be seen.
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            yield connection
        except BaseException as error:
            self._undo(connection)
            if isinstance(error, psycopg.Error):
                raise translate(error) from error
            raise
        self._commit(connection)

    def close(self) -> None:
        """Lets go of the connections."""
        with self._lock:
            self._closed = True
            kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()

    def let_go(self) -> None:
        """In a forked child: they are the parent's."""
        self._kept = []

    def _take(self) -> Connection:
        with self._lock:
            if self._kept:
                return self._kept.pop()
        try:
            return self._connect()
        except psycopg.Error as error:
            raise translate(error) from error

    def _give(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed and not connection.closed:
                self._kept.append(connection)
                return
        connection.close()

    def _undo(self, connection: Connection) -> None:
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()
        self._give(connection)

    def _commit(self, connection: Connection) -> None:
        try:
            ended = connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            connection.close()
            raise PublishUnknown(f"It is unknown whether it was committed: {_brief(error)}.", publish_id="") from error
        self._give(connection)
        if ended != "COMMIT":
            raise Error("PostgreSQL undid the transaction.")


def _brief(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
