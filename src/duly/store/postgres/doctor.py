"""The examination of a store on PostgreSQL: the server, checksums, references, clock, settings.

It only reads, on a connection of its own, while everyone else goes on. Each statement looks at one moment, and none
takes long: a snapshot that is held would keep the room of dead rows from being used. What is looked at in two
statements may have been dropped between them, so it is looked for again before it is called damaged. What is said of
the server itself is in server.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import psycopg

from ...clock import ClockReading
from ...engine.block import KEPT, Place, decode
from ...engine.seal import bound_to
from ...engine.secrets import Keyring
from ...errors import CorruptBlock, IncompatibleStore, Sealed
from ...health import Finding
from ..sql import examination as found
from ..sql import sealed_examination as sealed
from ..sql.schedule_examination import schedules
from .server import drift, look_at_server

Connection = psycopg.Connection[tuple[Any, ...]]

_BLOCKS_A_PAGE = 16
_MAIL: sealed.Values = (
    (
        "mail",
        "SELECT t.tenant, i.data, NULL, i.topic, i.kind FROM inbox AS i JOIN topic AS t ON t.id = i.topic",
        lambda *place: bound_to("mail", *place),
    ),
)
_RUN_BLOCKS_A_PAGE = 64
_UNREADABLE = (CorruptBlock, IncompatibleStore, ValueError)

_GAPS = """
SELECT partition, low, base
  FROM (SELECT b.partition, b.base,
               coalesce(lag(b.base + b.count) OVER (PARTITION BY b.partition ORDER BY b.base), p.first_offset) AS low
          FROM block AS b
          JOIN part AS p ON p.id = b.partition
         WHERE NOT EXISTS (SELECT 1 FROM queue AS q WHERE q.partition = b.partition)) AS blocks
 WHERE base > low
"""
_LOST = """
SELECT count(*)
  FROM {table} AS r
  JOIN part AS p ON p.id = r.partition
 WHERE {which}
   AND r.{place} < p.first_offset
   AND NOT EXISTS (SELECT 1 FROM kept AS k WHERE k.partition = r.partition AND k."offset" = r.{place})
"""
_NOBODYS = """
SELECT count(*), coalesce(sum(octet_length(data)), 0)::BIGINT
  FROM chunk
 WHERE NOT EXISTS (SELECT 1 FROM staged AS s WHERE s.chunk = chunk.id)
   AND id NOT IN (SELECT b.chunk FROM block AS b WHERE b.chunk IS NOT NULL)
"""
_STAGED = "SELECT count(*) FROM staged AS s WHERE NOT EXISTS (SELECT 1 FROM chunk AS c WHERE c.id = s.chunk)"
_BEYOND = """
SELECT id, ends, reached
  FROM (SELECT p.id,
               greatest((SELECT max(base + count) FROM block AS b WHERE b.partition = p.id), p.next_offset) AS ends,
               greatest((SELECT max(next_offset) FROM cursor AS c WHERE c.partition = p.id),
                        (SELECT max("offset") + 1 FROM dead AS d WHERE d.partition = p.id)) AS reached
          FROM part AS p
         WHERE p.topic IS NOT NULL) AS partitions
 WHERE reached > ends
"""
_INCOMPLETE = """
SELECT t.name, count(p.id)
  FROM topic AS t
  LEFT JOIN part AS p ON p.topic = t.id
 GROUP BY t.id, t.name
HAVING count(p.id) = 0
    OR count(p.id) <> max(p.number) + 1
"""
_STRAY = """
SELECT count(*)
  FROM part AS p
 WHERE p.topic IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM topic AS t WHERE t.id = p.topic)
"""
_WITHOUT_CURSOR = """
SELECT t.name, g.name, p.number
  FROM grp AS g
  JOIN topic AS t ON t.id = g.topic
  JOIN part AS p ON p.topic = t.id
 WHERE t.settings::JSONB ->> 'kind' = 'log'
   AND NOT EXISTS (SELECT 1 FROM cursor AS c WHERE c.partition = p.id AND c.grp = g.id)
 ORDER BY 1, 2, 3
"""
_SHORT_ID_RUNS = """
SELECT r.topic, r.id
  FROM id_run AS r
 WHERE NOT EXISTS (SELECT 1 FROM id_block AS b WHERE b.topic = r.topic AND b.run = r.id)
"""


def examine(connection: Connection, reading: ClockReading, now_ms: int, keyring: Keyring) -> Iterator[Finding]:
    """Looks at everything, the quick things first."""
    ask = partial(_ask, connection)
    opened = sealed.Opening(keyring, ask, "")
    checks: list[Callable[[Connection], Iterator[Finding]]] = [
        look_at_server,
        _paused,
        lambda _: drift(reading),
        partial(_clock, now_ms=now_ms),
        _definitions,
        _states,
        lambda _: sealed.keys(opened, ask, ""),
        partial(_blocks, opened=opened),
        partial(_kept, opened=opened),
        _chunks,
        lambda _: schedules(opened, ask, ""),
        lambda _: sealed.stages(opened, ask, ""),
        partial(_runs, opened=opened),
        lambda _: sealed.values(opened, ask, "", _MAIL),
        _ids,
        _references,
        _ends,
    ]
    for check in checks:
        try:
            yield from check(connection)
        except psycopg.OperationalError:
            raise
        except (psycopg.Error, *found.NONSENSE) as error:
            yield found.unreadable(error, "The store")


def _ask(connection: Connection, text: str) -> list[tuple[Any, ...]]:
    return connection.execute(text.encode()).fetchall()


def _paused(connection: Connection) -> Iterator[Finding]:
    for (why,) in connection.execute("SELECT value FROM meta WHERE key = 'paused'"):
        yield found.paused(why)


def _clock(connection: Connection, now_ms: int) -> Iterator[Finding]:
    newest = """SELECT greatest((SELECT max(claimed_at_ms) FROM lease), (SELECT max(seen_at_ms) FROM consumer), 0)"""
    ((seen,),) = connection.execute(newest)
    yield found.clock(now_ms=now_ms, newest_ms=seen)


def _definitions(connection: Connection) -> Iterator[Finding]:
    """That topics have their partitions, and groups their cursors."""
    for name, count in connection.execute(_INCOMPLETE):
        yield _bad_definition(
            f"Partitions of topic {name!r} are missing; {count} are left.", "Whoever uses the topic is refused."
        )
    ((stray,),) = connection.execute(_STRAY)
    if stray:
        yield _bad_definition(f"{stray} partitions belong to no topic.", "Their messages are out of reach.")
    for topic, group, number in connection.execute(_WITHOUT_CURSOR):
        yield _bad_definition(
            f"Group {group!r} of topic {topic!r} has no cursor in partition {number}.",
            "It is refused when it claims there.",
        )


def _bad_definition(what: str, meaning: str) -> Finding:
    return Finding("alert", what, meaning, "Restore the newest backup; please report this.")


def _states(connection: Connection) -> Iterator[Finding]:
    """What every claim on a queue leaves: how far it has come."""
    for partition, times, positions in connection.execute("SELECT partition, times, positions FROM queue"):
        try:
            msgspec.msgpack.decode(times, type=tuple[tuple[int, float, float], ...])
            msgspec.msgpack.decode(positions, type=dict[int, int])
        except msgspec.DecodeError as error:
            yield found.bad_run(f"The state of the queue in partition {partition} is damaged: {error}.")


def _blocks(connection: Connection, opened: sealed.Opening) -> Iterator[Finding]:
    """Every block's checksum and place, and that no offset is missing."""
    good = bad = closed = 0
    for partition, low, high in connection.execute(_GAPS):
        yield found.missing_offsets(partition, low, high)
    for tenant, partition in _partitions(connection):
        for base, stored in _paged(connection, "block", "base", partition):
            try:
                block = decode(
                    Place(tenant, partition, base), stored, partial(_chunk, connection), unseal=opened.unseal
                )
                good += 1
                if (forged := opened.forged(block.place, stored, block.published_at)) is not None:
                    yield forged
            except Sealed:
                # Its checksum is right, and there is no key to look further.
                closed += 1
            except _UNREADABLE as error:
                if _is_there(connection, "block", "base", partition, base):
                    bad += 1
                    yield found.bad_block(str(error))
    if not bad:
        yield found.good_blocks(good, closed)


def _kept(connection: Connection, opened: sealed.Opening) -> Iterator[Finding]:
    """Messages that were copied out of their blocks."""
    for tenant, partition in _partitions(connection):
        for offset, stored in _paged(connection, "kept", '"offset"', partition):
            try:
                block = decode(Place(tenant, partition, offset), stored, unseal=opened.unseal, bound=KEPT)
                if (forged := opened.forged(block.place, stored, block.published_at)) is not None:
                    yield forged
            except Sealed:
                continue
            except _UNREADABLE as error:
                yield found.bad_block(str(error))


def _partitions(connection: Connection) -> list[tuple[int, int]]:
    rows = connection.execute("SELECT tenant, id FROM part WHERE topic IS NOT NULL ORDER BY id")
    return [(tenant, partition) for tenant, partition in rows]


def _paged(connection: Connection, table: str, place: str, partition: int) -> Iterator[tuple[Any, ...]]:
    """(place, data) of each row of a partition, some at a time."""
    after = -1
    asked = f"SELECT {place}, data FROM {table} WHERE partition = %s AND {place} > %s ORDER BY {place} LIMIT %s"
    while rows := connection.execute(asked.encode(), (partition, after, _BLOCKS_A_PAGE)).fetchall():
        yield from rows
        after = rows[-1][0]


def _chunk(connection: Connection, number: int) -> bytes | None:
    row = connection.execute("SELECT data FROM chunk WHERE id = %s", (number,)).fetchone()
    return None if row is None else row[0]


def _is_there(connection: Connection, table: str, place: str, partition: int, at: int) -> bool:
    """Whether what could not be read is still there: others go on, and drop what is settled."""
    asked = f"SELECT 1 FROM {table} WHERE partition = %s AND {place} = %s"
    return connection.execute(asked.encode(), (partition, at)).fetchone() is not None


def _chunks(connection: Connection) -> Iterator[Finding]:
    """That everything that lies outside its block belongs to one, or to a stage; and is there."""
    ((count, size),) = connection.execute(_NOBODYS)
    yield from found.pieces_of_nobody(count, size)
    ((missing,),) = connection.execute(_STAGED)
    yield from found.lost_references("staged", missing)


def _runs(connection: Connection, opened: sealed.Opening) -> Iterator[Finding]:
    """Every block of the queues' runs: its entries, its messages, and that none is missing."""
    good = bad = 0
    asked = "SELECT p.tenant, r.partition, r.id FROM run AS r JOIN part AS p ON p.id = r.partition ORDER BY 2, 3"
    for tenant, partition, run in connection.execute(asked).fetchall():
        for index, entries, stored in _run_blocks(connection, partition, run):
            fault: Finding | None
            try:
                place = Place(tenant, partition, 0)
                fault = found.check_run_block(place, run, index, entries=entries, stored=stored, opened=opened)
            except _UNREADABLE as error:
                fault = found.bad_run(str(error))
            if fault is None:
                good += 1
            else:
                bad += 1
                yield fault
    if not bad:
        yield found.good_runs(good)


def _run_blocks(connection: Connection, partition: int, run: int) -> Iterator[tuple[Any, ...]]:
    """(index, entries, messages) of each block that a run has, as its row says in the same moment."""
    asked = """SELECT n, b.entries, d.data
                 FROM run AS r
                CROSS JOIN generate_series(%(low)s, least(%(low)s + %(page)s, r.blocks) - 1) AS n
                 LEFT JOIN run_block AS b ON b.partition = r.partition AND b.run = r.id AND b.idx = n
                 LEFT JOIN run_data AS d ON d.partition = r.partition AND d.run = r.id AND d.idx = n
                WHERE r.partition = %(partition)s AND r.id = %(run)s
                ORDER BY n"""
    low = 0
    place = {"partition": partition, "run": run, "page": _RUN_BLOCKS_A_PAGE}
    while rows := connection.execute(asked, {**place, "low": low}).fetchall():
        yield from rows
        low += _RUN_BLOCKS_A_PAGE


def _ids(connection: Connection) -> Iterator[Finding]:
    """Every block of the index of ids, and that no run is without."""
    for topic, run in connection.execute(_SHORT_ID_RUNS):
        yield found.bad_run(f"Run {run} of the index of ids of topic {topic} has no blocks.")
    yield from found.id_blocks(_id_blocks(connection))


def _id_blocks(connection: Connection) -> Iterator[tuple[Any, ...]]:
    asked = """SELECT topic, run, idx, data FROM id_block
                WHERE (topic, run, idx) > (%s, %s, %s) ORDER BY topic, run, idx LIMIT %s"""
    after = (-1, -1, -1)
    while rows := connection.execute(asked, (*after, _BLOCKS_A_PAGE)).fetchall():
        yield from rows
        after = rows[-1][:3]


def _references(connection: Connection) -> Iterator[Finding]:
    """Dead letters and retries whose message is neither in the log nor kept."""
    # Of a lease on a queue the row alone does not say which of its messages are left.
    for table, place, which in (("dead", '"offset"', "true"), ("lease", "base", "r.keys IS NULL")):
        ((missing,),) = connection.execute(_LOST.format(table=table, place=place, which=which).encode())
        yield from found.lost_references(table, missing)


def _ends(connection: Connection) -> Iterator[Finding]:
    """Groups and references that are beyond the end of their log: its last blocks are missing."""
    for partition, ends, reached in connection.execute(_BEYOND):
        yield found.read_too_far(partition, ends, reached)
