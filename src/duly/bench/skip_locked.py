"""The baseline: a queue that is a table, claimed with FOR UPDATE SKIP LOCKED, as well as we could write it by hand.

What made it faster on PostgreSQL 18, of what was tried in turns (8 clients, batches of 1,000 and of 100, nothing and a
million standing), and is therefore in it:

- The lease is a column that no index has, in pages that are filled by half: a claim then is a HOT update, which touches
  no index. A partial index over what is not leased, or a due time that claims put off (as pgmq does), came behind.
- Rows that were locked are found again by `ctid`, not by id. A row that changed in between is another row by then,
  which this statement does not see: it is left for the next claim, never taken twice.
- One statement a batch, prepared, parameters and results binary, a connection a client, autocommit.

An expired lease needs no sweeper: its row is claimed again. Autovacuum is as PostgreSQL sets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import LiteralString

import numpy as np
import psycopg
from psycopg import sql

_STANDING_BATCH = 10_000
_DISTURBED = "A message was acked that was not there: the baseline does not hold."

_CREATE = """
CREATE TABLE {table} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    priority integer NOT NULL,
    due timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz NOT NULL DEFAULT '-infinity',
    attempt integer NOT NULL DEFAULT 0,
    payload bytea NOT NULL
)
WITH (fillfactor = 50)
"""
_CREATE_READY = "CREATE INDEX ON {table} (priority, due, id)"

_PUBLISH = """
INSERT INTO {table} (priority, payload)
SELECT priority, payload
  FROM unnest(%b::integer[], %b::bytea[]) AS message (priority, payload)
"""
_CLAIM = """
UPDATE {table}
   SET lease_until = now() + interval '600 s',
       attempt = attempt + 1
 WHERE ctid = ANY (ARRAY(
       SELECT ctid
         FROM {table}
        WHERE due <= now()
          AND lease_until <= now()
        ORDER BY {order}
          FOR UPDATE SKIP LOCKED
        LIMIT %b))
RETURNING id, attempt, lease_until, payload
"""
_ACK = "DELETE FROM {table} WHERE id = ANY (%b::bigint[])"
_BY_PRIORITY = "priority, due, id"
_FIRST_IN_FIRST_OUT = "id"


@dataclass(frozen=True, slots=True)
class Table:
    """Where the baseline's messages are, and in which order they leave: by priority, or as they came."""

    dsn: str
    schema: str
    name: str
    fifo: bool = False

    def query(self, text: LiteralString) -> sql.Composed:
        """A query on this table."""
        order = _FIRST_IN_FIRST_OUT if self.fifo else _BY_PRIORITY
        table = sql.Identifier(self.schema, self.name)
        return sql.SQL(text).format(table=table, order=sql.SQL(order))

    def create(self) -> None:
        """Makes the table and its index."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(self.query(_CREATE))
            if not self.fifo:
                connection.execute(self.query(_CREATE_READY))

    def drop(self) -> None:
        """Deletes it."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(self.query("DROP TABLE IF EXISTS {table}"))

    def stand(self, messages: int, *, payload_bytes: int, priorities: int) -> None:
        """Fills it with messages of random priority that are ready, and leaves it vacuumed, with statistics."""
        if not messages:
            # Statistics that say the table is empty would have its statements planned for an empty one, once for all.
            return
        draw = np.random.default_rng(0)
        with self.client() as client:
            for first in range(0, messages, _STANDING_BATCH):
                count = min(_STANDING_BATCH, messages - first)
                payloads = [draw.bytes(payload_bytes) for _ in range(count)]
                client.publish(draw.integers(0, priorities, count).tolist(), payloads)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(self.query("VACUUM (ANALYZE) {table}"))

    @contextmanager
    def client(self) -> Iterator[SkipLocked]:
        """A client with a connection of its own."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.prepare_threshold = 0
            yield SkipLocked(self, connection)


class SkipLocked:
    """Publishes to a table, claims from it and acks."""

    def __init__(self, table: Table, connection: psycopg.Connection) -> None:
        self._cursor = connection.cursor(binary=True)
        # As text, and once: composing a query anew takes longer than sending it.
        self._publish, self._claim, self._ack = (
            table.query(text).as_bytes(connection) for text in (_PUBLISH, _CLAIM, _ACK)
        )

    def publish(self, priorities: list[int], payloads: list[bytes]) -> None:
        """One batch."""
        self._cursor.execute(self._publish, (priorities, payloads))

    def claim(self, most: int) -> list[tuple[int, bytes]]:
        """The ids and payloads of up to so many messages, leased."""
        self._cursor.execute(self._claim, (most,))
        return [(row[0], row[3]) for row in self._cursor.fetchall()]

    def ack(self, ids: list[int]) -> None:
        """Ends their leases; they are gone."""
        self._cursor.execute(self._ack, (ids,))
        if self._cursor.rowcount != len(ids):
            raise RuntimeError(_DISTURBED)
