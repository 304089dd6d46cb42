"""migrate: a store moves from a file to PostgreSQL, whole, once, and whatever happens on the way.

                     file                                   PostgreSQL
    begin            opened by nobody, marked "moving"      empty, marked "moving"
    copy             held still                             batch by batch, each with its mark
    compare          read once more                         locked, read once
    switch                                                  one commit: unmarked, the file's incarnation
    leave            paused, "moved to …"

Whoever opens one of the two in between is refused. The move has a name of its own, drawn at its beginning, which is in
both marks: run again it goes on, but only with the file that it began with, and that file as it was.

    killed before the switch   run again: goes on behind the last batch whose mark was committed
    killed behind it           run again: the file is paused, and that is all
    never run again            `--give-up`: the file is opened again, the schema is empty

It is the same store that moved: ids, leases and their tokens, publish ids and due times stay. Times are absolute, and
from here on compared with PostgreSQL's clock.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ..clock import monotonic_s
from ..errors import Conflict, StoreError
from ..store.contract import Progress
from ..store.sql.moving import TABLES, Digest, Key, Mark, Table, encoder

if TYPE_CHECKING:
    from ..store.postgres.arrival import Arrival
    from ..store.sqlite.departure import Departure

_BATCH_BYTES = 4 * 1024 * 1024
_BATCH_ROWS = 10_000
# Clocks that differ by less are taken for the same.
_CLOCKS_APART_S = 1.0


class Migration(msgspec.Struct, frozen=True):
    """A store that has moved, or was compared.

    `left_behind` names the application's own tables: they stay in the file. `clock_ahead_s`: by how much PostgreSQL's
    clock is ahead of the file's; what was due then is due so much earlier, or later where it is negative. `bytes` and
    `seconds` are of this run alone: one that was resumed had copied the rest before. `differing` names the tables that
    are not the same on both sides; of a move there are none.
    """

    source: str
    destination: str
    rows: int
    messages: int
    bytes: int
    seconds: float
    left_behind: tuple[str, ...]
    clock_ahead_s: float
    resumed: bool = False
    differing: tuple[str, ...] = ()

    @property
    def clocks_apart(self) -> bool:
        """Whether the two clocks differ by more than a second."""
        return abs(self.clock_ahead_s) > _CLOCKS_APART_S


def move(source: Departure, destination: Arrival, on_progress: Progress | None) -> Migration:
    """Moves a store, or goes on with a move that was cut short."""
    began = monotonic_s()
    ahead_s = (destination.now_ms() - source.now_ms()) / 1000
    messages = source.messages()
    done = source.moved
    if done is not None:
        if not destination.has_arrived(done.move):
            raise Conflict(f"{source.path} has moved to {done.destination} already. Nothing was done.")
        return _report(source, destination, Tally(), messages, began, ahead_s, resumed=True)
    mark = source.mark or Mark(secrets.token_hex(8), source.path, destination.shown, source.incarnation)
    resumed = source.mark is not None
    if destination.has_arrived(mark.move):
        # It was killed behind the switch: the store is there, and in use perhaps.
        source.leave(mark)
        return _report(source, destination, Tally(), messages, began, ahead_s, resumed=True)
    mark = _begin(source, destination, mark)
    tally = Tally(mark.bytes, 2 * sum(source.measure(table) for table in TABLES), on_progress)
    _copy(source, destination, mark, tally)
    destination.analyze()
    with destination.transaction():
        destination.hold_still()
        differing = _compare(source, destination, tally)
        if differing:
            raise StoreError(
                f"What arrived is not what left, in {', '.join(differing)}. Nothing was switched: {source.path} is the "
                "store. Have it back with `duly migrate --give-up`, look it over with `duly doctor`, and try again."
            )
        destination.open(mark, source.summit(), source.paused)
    destination.must_be_replicated()
    source.leave(mark)
    tally.finish()
    return _report(source, destination, tally, messages, began, ahead_s, resumed=resumed)


def compare(source: Departure, destination: Arrival, on_progress: Progress | None) -> Migration:
    """Says which tables differ. Changes nothing."""
    began = monotonic_s()
    destination.must_be_store()
    ahead_s = (destination.now_ms() - source.now_ms()) / 1000
    tally = Tally(0, sum(source.measure(table) for table in TABLES), on_progress)
    with destination.transaction():
        differing = _compare(source, destination, tally)
    tally.finish()
    report = _report(source, destination, tally, source.messages(), began, ahead_s)
    return replace(report, differing=tuple(differing))


def give_up(source: Departure, destination: Arrival) -> Migration:
    """Ends a move that is under way: the file is the store, as it was."""
    began = monotonic_s()
    mark = source.mark
    if mark is None:
        raise Conflict(f"{source.path} is not on its way anywhere. Nothing was done.")
    destination.give_up(mark.move)
    source.give_up()
    return _report(source, destination, Tally(), source.messages(), began, 0.0)


class Tally:
    """Counts, and tells who wants to know."""

    def __init__(self, done: int = 0, whole: int = 0, on_progress: Progress | None = None) -> None:
        self.rows = 0
        # Of this run; what it went on from was copied before.
        self.bytes = 0
        self._done = done
        self._whole = whole
        self._on_progress = on_progress

    def add(self, count: int) -> None:
        """So many bytes more are done."""
        self._done += count
        if self._on_progress is not None:
            self._on_progress(min(self._done, self._whole), self._whole)

    def finish(self) -> None:
        """All is done, whatever was reckoned."""
        self.add(max(0, self._whole - self._done))


def _begin(source: Departure, destination: Arrival, mark: Mark) -> Mark:
    """Marks both sides, and answers how far the move has come."""
    with destination.transaction():
        begun = destination.begin(mark)
        if begun == mark and source.mark is not None and mark.destination != destination.shown:
            raise Conflict(
                f"{source.path} is on its way to {mark.destination}. Finish that, or give it up there first: "
                "`duly migrate --give-up`."
            )
        # First the file: a schema that is marked for a file that is not would be filled with what may still change.
        if source.mark is None:
            source.set_out(mark)
    return begun


# Copying


def _copy(source: Departure, destination: Arrival, mark: Mark, tally: Tally) -> None:
    """Copies what is not there yet. One batch is read while the one before it is stored."""
    batches = _batches(source, mark)
    with ThreadPoolExecutor(1, "duly-migrate") as reader:
        coming: Future[_Batch | None] = reader.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            after = replace(mark, table=batch.at, key=batch.key, bytes=mark.bytes + batch.bytes)
            destination.put(TABLES[batch.at], batch.rows, mark, after)
            mark = after
            tally.bytes += batch.bytes
            tally.add(batch.bytes)


class _Batch(msgspec.Struct):
    """Rows of one table, up to a key."""

    at: int
    key: Key
    rows: list[bytes]
    bytes: int


def _batches(source: Departure, mark: Mark) -> Iterator[_Batch]:
    for at in range(mark.table, len(TABLES)):
        batch = _Batch(at, (), [], 0)
        for key, row in _encoded(source, TABLES[at], mark.key if at == mark.table else None):
            batch.rows.append(row)
            batch.bytes += len(row)
            batch.key = key
            if batch.bytes >= _BATCH_BYTES or len(batch.rows) >= _BATCH_ROWS:
                yield batch
                batch = _Batch(at, (), [], 0)
        if batch.rows:
            yield batch


def _encoded(source: Departure, table: Table, after: Key | None = None) -> Iterator[tuple[Key, bytes]]:
    """A table's rows as they travel."""
    encode = encoder(table)
    for key, row in source.rows(table, after):
        try:
            yield key, encode(row)
        except (struct.error, TypeError) as error:
            raise StoreError(
                f"A row of table duly_{table.table} makes no sense (key {key}: {error}). Run `duly doctor`."
            ) from error


# Comparing


def _compare(source: Departure, destination: Arrival, tally: Tally) -> list[str]:
    """The tables that are not the same on both sides: each is read whole on both, at the same time."""
    differing = []
    with ThreadPoolExecutor(1, "duly-migrate") as reader:
        for name, tables in _by_table().items():
            there = reader.submit(_digest, source, tables)
            found = destination.digest(name, tables[0], tally.add)
            if not found.same_as(there.result()):
                differing.append(name)
            tally.rows += found.rows
    return differing


def _digest(source: Departure, tables: list[Table]) -> Digest:
    digest = Digest()
    for table in tables:
        for _, row in _encoded(source, table):
            digest.add(row)
    return digest


def _by_table() -> dict[str, list[Table]]:
    """What goes into each table of the destination."""
    found: dict[str, list[Table]] = {}
    for table in TABLES:
        found.setdefault(table.table, []).append(table)
    return found


def _report(
    source: Departure,
    destination: Arrival,
    tally: Tally,
    messages: int,
    began: float,
    ahead_s: float,
    *,
    resumed: bool = False,
) -> Migration:
    return Migration(
        source.path,
        destination.shown,
        tally.rows,
        messages,
        tally.bytes,
        monotonic_s() - began,
        tuple(source.left_behind),
        ahead_s,
        resumed,
    )
