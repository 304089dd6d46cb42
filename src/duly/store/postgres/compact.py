"""Moves what a table holds into the free room at its front, so that its end can be cut off (space.py).

A row is moved by an UPDATE that changes nothing: PostgreSQL writes it anew where there is room, and after a VACUUM it
looks for room from the front. Whoever wants to delete the row meanwhile waits for us, some milliseconds, and deletes
the new one; we wait for nobody (SKIP LOCKED), so there is no deadlock. Readers see one of the two, which are the
same.

    move_apart   what lies outside of rows (TOAST) is written anew, all of it: where it lies is not ours to know
    move_rows    the rows of the last pages. A row is written anew in its own page while there is room in it: so again
                 and again, until the page is full. That writes a page for every page that is given back
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from ...clock import monotonic_s

Connection = psycopg.Connection[tuple[Any, ...]]

PAGE_BYTES = 8192
# From here on PostgreSQL puts a value outside of its row, in pieces of which four fill a page, and leaves a pointer.
_LONG_BYTES, _PIECE_BYTES, _POINTER_BYTES = 1990, 1996, 18
_PIECES_A_PAGE = 4
_ROW_HEADER_BYTES = 28
_PAGES_A_STEP = 16
_BYTES_A_STEP = 1024 * 1024
# So often a row is written into its own page at most: what it takes to fill one with the smallest rows.
_TIMES_MAX = 300

_COLUMNS = """
SELECT attname, attlen
  FROM pg_attribute
 WHERE attrelid = %s::REGCLASS
   AND attnum > 0
   AND NOT attisdropped
 ORDER BY attnum
"""
_LONG = "octet_length({column}) > {long}"
_ROWS_OF_PAGES = "SELECT ctid::TEXT{more} FROM {table} WHERE ctid >= %s::TID AND ctid < %s::TID"
_MOVE = """
UPDATE {table} AS moved SET {change}
  FROM (SELECT ctid FROM {table} WHERE ctid = ANY (%s::TID[]) FOR UPDATE SKIP LOCKED) AS had
 WHERE moved.ctid = had.ctid
RETURNING moved.ctid::TEXT
"""


class Table:
    """A table's name and its columns: the first, which is in its key, and those of any length."""

    def __init__(self, connection: Connection, schema: str, name: str) -> None:
        self.name = sql.Identifier(schema, name)
        columns = connection.execute(_COLUMNS, (f"{schema}.{name}",)).fetchall()
        self.first = sql.Identifier(columns[0][0])
        self.any_length = [sql.Identifier(column) for column, length in columns if length < 0]
        self.fixed_bytes = sum(length for _, length in columns if length > 0)


class Holding(NamedTuple):
    """What the rows of a table need, and what lies outside of them."""

    rows_bytes: int
    apart_bytes: int


def count(connection: Connection, table: Table) -> Holding:
    """Looks at every row, and at nothing that lies outside of it."""
    inside = "CASE WHEN octet_length({0}) > {1} THEN {2} ELSE coalesce(octet_length({0}), 0) END"
    outside = "CASE WHEN octet_length({0}) > {1} THEN octet_length({0}) / {2} + 1 ELSE 0 END"
    asked = sql.SQL(
        "SELECT count(*) * {fixed} + coalesce(sum({inside}), 0)::BIGINT, coalesce(sum({outside}), 0)::BIGINT"
        "  FROM {table}"
    ).format(
        fixed=_ROW_HEADER_BYTES + table.fixed_bytes,
        inside=_sum_of(sql.SQL(inside).format(column, _LONG_BYTES, _POINTER_BYTES) for column in table.any_length),
        outside=_sum_of(sql.SQL(outside).format(column, _LONG_BYTES, _PIECE_BYTES) for column in table.any_length),
        table=table.name,
    )
    ((rows_bytes, pieces),) = connection.execute(asked)
    return Holding(rows_bytes, pieces * PAGE_BYTES // _PIECES_A_PAGE)


def _sum_of(terms: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(" + ").join([sql.Literal(0), *terms])


def move_apart(connection: Connection, table: Table, pages: int) -> Iterator[float]:
    """Writes anew whatever lies outside of its row, some at a time; yields how long each step took."""
    long = [sql.SQL(_LONG).format(column=column, long=_LONG_BYTES) for column in table.any_length]
    bytes_ = [sql.SQL("coalesce(octet_length({}), 0)").format(column) for column in table.any_length]
    # What is only copied as it is stays where it lies.
    anew = [sql.SQL("{0} = {0} || ''").format(column) for column in table.any_length]
    if not long:
        return
    found = sql.SQL(_ROWS_OF_PAGES + " AND ({long})").format(
        more=sql.SQL(", ") + sql.SQL(" + ").join(bytes_), table=table.name, long=sql.SQL(" OR ").join(long)
    )
    move = sql.SQL(_MOVE).format(table=table.name, change=sql.SQL(", ").join(anew))
    # The last page may have been added since they were counted.
    for page in range(0, pages + _PAGES_A_STEP, _PAGES_A_STEP):
        rows = connection.execute(found, _between(page, page + _PAGES_A_STEP)).fetchall()
        while rows:
            step: list[str] = []
            held = 0
            while rows and held < _BYTES_A_STEP:
                place, size = rows.pop()
                step.append(place)
                held += size
            began = monotonic_s()
            connection.execute(move, (step,))
            yield monotonic_s() - began


def move_rows(connection: Connection, table: Table, pages: int) -> Iterator[float]:
    """Moves the rows of the last pages to the front until there is no room any more; yields how long each step took."""
    found = sql.SQL(_ROWS_OF_PAGES).format(more=sql.SQL(""), table=table.name)
    move = sql.SQL(_MOVE).format(table=table.name, change=sql.SQL("{0} = moved.{0}").format(table.first))
    for low in range(pages - pages % _PAGES_A_STEP, 0, -_PAGES_A_STEP):
        began = monotonic_s()
        with connection.transaction():
            left = [place for (place,) in connection.execute(found, _between(low, low + _PAGES_A_STEP))]
            for _ in range(_TIMES_MAX):
                if not left:
                    break
                at = [place for (place,) in connection.execute(move, (left,))]
                if any(_page(place) >= low + _PAGES_A_STEP for place in at):
                    # There was no room before it.
                    return
                left = [place for place in at if _page(place) >= low]
        yield monotonic_s() - began


def _between(low: int, high: int) -> tuple[str, str]:
    return f"({low},0)", f"({high},0)"


def _page(place: str) -> int:
    """The page of a row's place, which reads (page,row)."""
    return int(place[1 : place.index(",")])
