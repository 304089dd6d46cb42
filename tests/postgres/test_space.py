"""Space goes back to the device whoever is at work, and nothing is lost by moving."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator

import psycopg
import pytest

import duly
from duly.store.postgres.compact import Table, count, move_apart, move_rows
from duly.store.postgres.space import MOVED
from duly.store.postgres.statements import queries
from tests import postgres_schemas
from tests.store.patience import Aside, eventually

from .test_doctor import Place

pytestmark = pytest.mark.skipif(postgres_schemas.why_not() is not None, reason=str(postgres_schemas.why_not()))


@pytest.fixture(params=postgres_schemas.VERSIONS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    url = postgres_schemas.schemas(request.param).take_unmade()
    opened = Place(url)
    yield opened
    opened.close()


def size(place: Place, table: str = "block") -> int:
    row = place.behind.execute("SELECT pg_table_size(%s::regclass)", (table,)).fetchone()
    assert row is not None
    return int(row[0])


def fill(place: Place, *, payload: int, each: int, times: int) -> None:
    """A log of blocks that lie in their rows, or outside of them."""
    place.q.create_topic("t", kind="log", retention=duly.Retention())
    for n in range(times):
        place.q.publish("t", [b"%06d" % n + bytes(payload)] * each)


def drop_all_but_the_last(place: Place, blocks: int) -> None:
    block = place.q.describe_topic("t").partitions[0]
    share = block.bytes * blocks // block.blocks
    place.q.update_topic("t", retention=duly.Retention(bytes=share))


def test_while_a_snapshot_is_held_nothing_grows_and_then_it_is_given_back(place: Place) -> None:
    fill(place, payload=100_000, each=10, times=20)
    full = size(place)
    with place.behind.transaction():
        place.behind.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        place.behind.execute("SELECT count(*) FROM block")
        place.q.delete_topic("t", force=True)
        with psycopg.connect(place.url.partition("?")[0], autocommit=True) as other:
            asked = f"SELECT count(*) FROM {place.schema}.block".encode()
            eventually(lambda: other.execute(asked).fetchone() == (0,))
        threading.Event().wait(2)
        assert size(place) < full * 1.1
    eventually(lambda: size(place) < full / 10, within_s=30)


@pytest.mark.parametrize(("payload", "each"), [(200, 1), (3000, 3)])
def test_what_is_left_at_the_end_of_a_table_moves_to_its_front(place: Place, payload: int, each: int) -> None:
    fill(place, payload=payload, each=each, times=4000)
    full = size(place)
    drop_all_but_the_last(place, 200)
    eventually(lambda: size(place) < full * 0.2, within_s=30)
    first = place.q.describe_topic("t").partitions[0].first_offset
    left = [message.payload[:6] for message in place.q.read("t", offset=first, max_messages=5000)]
    assert len(left) >= 150 * each
    assert left == [b"%06d" % n for n in range(4000) for _ in range(each)][-len(left) :]
    assert place.amiss() == []


def test_a_row_that_is_moved_can_be_deleted_meanwhile(place: Place) -> None:
    """Two move, over and over, what a third deletes: in the end nothing is there twice, and nothing is back."""
    place.behind.execute("CREATE TABLE thing (id BIGINT PRIMARY KEY, data BYTEA)")
    place.behind.execute("ALTER TABLE thing ALTER COLUMN data SET STORAGE EXTERNAL")
    place.behind.execute(
        "INSERT INTO thing SELECT n, decode(repeat('ab', (n % 2 * 3000 + 50)::INTEGER), 'hex')"
        "  FROM generate_series(1, 3000) AS n"
    )
    base, _, schema = place.url.rpartition("?schema=")
    stop = threading.Event()

    def move() -> int:
        moved = 0
        with psycopg.connect(base, autocommit=True) as connection:
            table = Table(connection, schema, "thing")
            while not stop.is_set():
                pages = size(place, f"{schema}.thing") // 8192
                for moves in (move_apart(connection, table, pages), move_rows(connection, table, pages)):
                    moved += sum(1 for _ in moves)
        return moved

    movers = [Aside(move), Aside(move)]
    draw = random.Random(7)
    gone = draw.sample(range(1, 3001), 1500)
    with psycopg.connect(base, autocommit=True, options=f"-c search_path={schema}") as connection:
        for at in range(0, 1500, 15):
            deleted = connection.execute("DELETE FROM thing WHERE id = ANY (%s)", (gone[at : at + 15],)).rowcount
            assert deleted == 15
        stop.set()
        assert all(mover.result() > 0 for mover in movers)
        rows = connection.execute("SELECT id, octet_length(data) FROM thing ORDER BY id").fetchall()
        assert rows == [(n, n % 2 * 3000 + 50) for n in range(1, 3001) if n not in set(gone)]
        holds = count(connection, Table(connection, schema, "thing"))
        assert holds.apart_bytes > 0
    place.behind.execute("DROP TABLE thing")


def test_rows_that_somebody_locks_are_never_moved() -> None:
    """Whoever finds a lease locked takes it for one that is being settled."""
    locking = [text for text in queries().values() if re.search(r"FOR (NO KEY )?(UPDATE|KEY SHARE|SHARE)", text)]
    locked = {table for text in locking for table in re.findall(r"(?:FROM|JOIN)\s+(\w+)", text)}
    assert "lease" in locked
    assert not locked & MOVED


def test_closing_does_not_wait_for_what_is_being_given_back(place: Place) -> None:
    fill(place, payload=100_000, each=10, times=10)
    place.q.delete_topic("t", force=True)
    closing = Aside(place.q.close)
    closing.result(5)
