"""publish, ack, nack, release, bury, move and cancel in the application's own transaction, of every library: they
count with its rows, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.rows import dict_row

import duly
import duly.aio

from .conftest import Application, Connection

MESSAGES = "abcdef"
UNTOUCHED = {**dict.fromkeys("abcd", "leased"), "e": "ready", "f": "ready"}
DONE = {"b": "retrying", "c": "ready", "d": "dead", "e": "waiting", "new": "ready"}

both = pytest.mark.parametrize("kept", [True, False], ids=["commit", "rollback"])


class Undo(Exception):
    """Leaves a block so that it is rolled back."""


def leave(*, kept: bool) -> None:
    if not kept:
        raise Undo


def begin(q: duly.Client) -> dict[str, duly.Delivery]:
    """Six messages, of which the first four are held."""
    q.publish("jobs", [duly.Message(b"x", id=name) for name in MESSAGES])
    return {delivery.id: delivery for delivery in q.claim("jobs", max_messages=4)}


def states(q: duly.Client) -> dict[str, str]:
    return {one.id: one.state for one in q.browse("jobs")}


def all_verbs(q: duly.Client, held: dict[str, duly.Delivery], tx: Any) -> None:
    assert q.publish("jobs", duly.Message(b"new", id="new"), tx=tx).ids == ["new"]
    assert q.ack([held["a"]], tx=tx) == duly.Settled(1)
    held["b"].nack(delay=60, reason="later", tx=tx)
    held["c"].release(tx=tx)
    held["d"].bury("bad", tx=tx)
    assert q.move("jobs", "e", due=3600, tx=tx) == {"e": "moved"}
    assert q.cancel("jobs", ["f", "none"], tx=tx) == {"f": "cancelled", "none": "not_found"}


def check(app: Application, q: duly.Client, held: dict[str, duly.Delivery], *, kept: bool, others: list[str]) -> None:
    assert app.orders() == sorted([*others, *(["row"] if kept else [])])
    assert states(q) == (DONE if kept else UNTOUCHED)
    # Of what was rolled back nothing is lost: it is held as before.
    assert q.ack(held.values()).done == (0 if kept else 4)
    assert app.ask("SELECT count(*) FROM duly.inbox") == [(0,)]
    assert app.ask("SELECT count(*) FROM duly.refused") == [(0,)]


# Each way gives the transaction and how to run a statement in it.
Entered = tuple[Any, Callable[[str], Any]]


@contextmanager
def psycopg_block(connection: Connection, *, kept: bool) -> Iterator[Entered]:
    with contextlib.suppress(Undo), connection.transaction():
        yield connection, lambda sql: connection.execute(sql.encode())
        leave(kept=kept)


@contextmanager
def autocommit(app: Application, kept: bool) -> Iterator[Entered]:
    with psycopg_block(app.connect(), kept=kept) as entered:
        yield entered


@contextmanager
def by_hand(app: Application, kept: bool) -> Iterator[Entered]:
    """Not autocommit: psycopg begins by itself, and what we ask may be the first."""
    connection = app.connect(autocommit=False)
    yield connection, lambda sql: connection.execute(sql.encode())
    connection.commit() if kept else connection.rollback()


@contextmanager
def savepoint(app: Application, kept: bool) -> Iterator[Entered]:
    connection = app.connect()
    with connection.transaction():
        connection.execute("INSERT INTO orders VALUES ('outer')")
        with psycopg_block(connection, kept=kept) as entered:
            yield entered


@contextmanager
def dict_rows(app: Application, kept: bool) -> Iterator[Entered]:
    with psycopg_block(app.connect(row_factory=dict_row), kept=kept) as entered:
        yield entered


@contextmanager
def client_cursor(app: Application, kept: bool) -> Iterator[Entered]:
    with psycopg_block(app.connect(cursor_factory=psycopg.ClientCursor), kept=kept) as entered:
        yield entered


@contextmanager
def raw_cursor(app: Application, kept: bool) -> Iterator[Entered]:
    with psycopg_block(app.connect(cursor_factory=psycopg.RawCursor), kept=kept) as entered:
        yield entered


@contextmanager
def pipeline(app: Application, kept: bool) -> Iterator[Entered]:
    connection = app.connect()
    with connection.pipeline(), psycopg_block(connection, kept=kept) as entered:
        yield entered


@contextmanager
def pipeline_inside(app: Application, kept: bool) -> Iterator[Entered]:
    connection = app.connect()
    with psycopg_block(connection, kept=kept) as entered, connection.pipeline():
        yield entered


@contextmanager
def repeatable_read(app: Application, kept: bool) -> Iterator[Entered]:
    connection = app.connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with psycopg_block(connection, kept=kept) as entered:
        yield entered


@contextmanager
def serializable(app: Application, kept: bool) -> Iterator[Entered]:
    connection = app.connect()
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    with psycopg_block(connection, kept=kept) as entered:
        yield entered


@contextmanager
def engine_of(app: Application, **settings: Any) -> Iterator[Any]:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    options = {"options": f"-c search_path={app.own} -c lock_timeout=2s"}
    engine = sqlalchemy.create_engine(sqlalchemy_url(app.dsn), connect_args=options, **settings)
    try:
        yield engine
    finally:
        engine.dispose()


def sqlalchemy_url(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg://")


def text(sql: str) -> Any:
    from sqlalchemy import text

    return text(sql)


@contextmanager
def sqlalchemy_connection(app: Application, kept: bool) -> Iterator[Entered]:
    with engine_of(app) as engine, contextlib.suppress(Undo), engine.begin() as connection:
        yield connection, lambda sql: connection.execute(text(sql))
        leave(kept=kept)


@contextmanager
def sqlalchemy_nested(app: Application, kept: bool) -> Iterator[Entered]:
    with engine_of(app) as engine, engine.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES ('outer')"))
        with contextlib.suppress(Undo), connection.begin_nested():
            yield connection, lambda sql: connection.execute(text(sql))
            leave(kept=kept)


@contextmanager
def sqlalchemy_session(app: Application, kept: bool) -> Iterator[Entered]:
    from sqlalchemy.orm import Session

    with engine_of(app) as engine, Session(engine) as session:
        yield session, lambda sql: session.execute(text(sql))
        session.commit() if kept else session.rollback()


@contextmanager
def sqlalchemy_session_nested(app: Application, kept: bool) -> Iterator[Entered]:
    from sqlalchemy.orm import Session

    with engine_of(app) as engine, Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders VALUES ('outer')"))
        with contextlib.suppress(Undo), session.begin_nested():
            yield session, lambda sql: session.execute(text(sql))
            leave(kept=kept)


@contextmanager
def sqlalchemy_scoped(app: Application, kept: bool) -> Iterator[Entered]:
    from sqlalchemy.orm import scoped_session, sessionmaker

    with engine_of(app) as engine:
        session = scoped_session(sessionmaker(engine))
        yield session, lambda sql: session.execute(text(sql))
        session.commit() if kept else session.rollback()
        session.remove()


def django_connection(app: Application) -> Any:
    """Django's `connection`, set up once in this process; on the application's schema."""
    django = pytest.importorskip("django")
    from django.conf import settings
    from django.db import connection

    if not settings.configured:
        parts = urlsplit(app.dsn)
        where = {"NAME": parts.path[1:], "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port}
        settings.configure(
            DATABASES={
                "default": {"ENGINE": "django.db.backends.postgresql", "PASSWORD": parts.password or "", **where},
                "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
            }
        )
        django.setup()
    with connection.cursor() as cursor:
        cursor.execute(f"SET search_path = {app.own}; SET lock_timeout = '2s'")
    return connection


@contextmanager
def django(app: Application, kept: bool) -> Iterator[Entered]:
    connection = django_connection(app)
    from django.db import transaction

    try:
        with contextlib.suppress(Undo), transaction.atomic():
            yield connection, lambda sql: _by_django(connection, sql)
            leave(kept=kept)
    finally:
        connection.close()


@contextmanager
def django_nested(app: Application, kept: bool) -> Iterator[Entered]:
    connection = django_connection(app)
    from django.db import connections, transaction

    try:
        with transaction.atomic():
            _by_django(connection, "INSERT INTO orders VALUES ('outer')")
            with contextlib.suppress(Undo), transaction.atomic():
                yield connections["default"], lambda sql: _by_django(connection, sql)
                leave(kept=kept)
    finally:
        connection.close()


def _by_django(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


WAYS: dict[str, Callable[[Application, bool], AbstractContextManager[Entered]]] = {
    way.__name__.replace("_", " "): way
    for way in (
        *(autocommit, by_hand, savepoint, dict_rows, client_cursor, raw_cursor, pipeline, pipeline_inside),
        *(repeatable_read, serializable),
        *(sqlalchemy_connection, sqlalchemy_nested, sqlalchemy_session, sqlalchemy_session_nested, sqlalchemy_scoped),
        *(django, django_nested),
    )
}
OUTER = {"savepoint", "sqlalchemy nested", "sqlalchemy session nested", "django nested"}


@both
@pytest.mark.parametrize("way", WAYS)
def test_every_verb_counts_with_the_rows(app: Application, q: duly.Client, way: str, kept: bool) -> None:
    held = begin(q)
    with WAYS[way](app, kept) as (tx, execute):
        all_verbs(q, held, tx)
        execute("INSERT INTO orders VALUES ('row')")
        assert states(q) == UNTOUCHED
    check(app, q, held, kept=kept, others=["outer"] if way in OUTER else [])


# asyncio


@asynccontextmanager
async def aio_psycopg(app: Application, kept: bool) -> AsyncIterator[Entered]:
    options = f"-c search_path={app.own} -c lock_timeout=2s"
    async with await psycopg.AsyncConnection.connect(app.dsn, autocommit=True, options=options) as connection:
        with contextlib.suppress(Undo):
            async with connection.transaction():
                yield connection, lambda sql: connection.execute(sql.encode())
                leave(kept=kept)


@asynccontextmanager
async def aio_psycopg_nested(app: Application, kept: bool) -> AsyncIterator[Entered]:
    options = f"-c search_path={app.own} -c lock_timeout=2s"
    async with await psycopg.AsyncConnection.connect(app.dsn, options=options, row_factory=dict_row) as connection:
        await connection.execute("INSERT INTO orders VALUES ('outer')")
        with contextlib.suppress(Undo):
            async with connection.transaction():
                yield connection, lambda sql: connection.execute(sql.encode())
                leave(kept=kept)


@asynccontextmanager
async def aio_engine(app: Application) -> AsyncIterator[Any]:
    pytest.importorskip("greenlet", reason="SQLAlchemy's asyncio needs greenlet")
    from sqlalchemy.ext.asyncio import create_async_engine

    options = {"options": f"-c search_path={app.own} -c lock_timeout=2s"}
    engine = create_async_engine(sqlalchemy_url(app.dsn), connect_args=options)
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def aio_connection(app: Application, kept: bool) -> AsyncIterator[Entered]:
    async with aio_engine(app) as engine:
        with contextlib.suppress(Undo):
            async with engine.begin() as connection:
                yield connection, lambda sql: connection.execute(text(sql))
                leave(kept=kept)


@asynccontextmanager
async def aio_unbegun_connection(app: Application, kept: bool) -> AsyncIterator[Entered]:
    """What we ask is the first statement on it."""
    async with aio_engine(app) as engine, engine.connect() as connection:
        yield connection, lambda sql: connection.execute(text(sql))
        await (connection.commit() if kept else connection.rollback())


@asynccontextmanager
async def aio_session(app: Application, kept: bool) -> AsyncIterator[Entered]:
    async with aio_engine(app) as engine:
        from sqlalchemy.ext.asyncio import AsyncSession

        async with AsyncSession(engine) as session:
            yield session, lambda sql: session.execute(text(sql))
            await (session.commit() if kept else session.rollback())


@asynccontextmanager
async def aio_session_nested(app: Application, kept: bool) -> AsyncIterator[Entered]:
    async with aio_engine(app) as engine:
        from sqlalchemy.ext.asyncio import AsyncSession

        async with AsyncSession(engine) as session, session.begin():
            await session.execute(text("INSERT INTO orders VALUES ('outer')"))
            with contextlib.suppress(Undo):
                async with session.begin_nested():
                    yield session, lambda sql: session.execute(text(sql))
                    leave(kept=kept)


AIO_WAYS: dict[str, Callable[[Application, bool], AbstractAsyncContextManager[Entered]]] = {
    way.__name__.removeprefix("aio_").replace("_", " "): way
    for way in (
        *(aio_psycopg, aio_psycopg_nested),
        *(aio_connection, aio_unbegun_connection, aio_session, aio_session_nested),
    )
}


async def all_verbs_awaited(q: duly.aio.Client, held: dict[str, duly.aio.Delivery], tx: Any) -> None:
    assert (await q.publish("jobs", duly.Message(b"new", id="new"), tx=tx)).ids == ["new"]
    assert (await q.ack([held["a"]], tx=tx)).done == 1
    await held["b"].nack(delay=60, reason="later", tx=tx)
    await held["c"].release(tx=tx)
    await held["d"].bury("bad", tx=tx)
    assert await q.move("jobs", "e", due=3600, tx=tx) == {"e": "moved"}
    assert await q.cancel("jobs", ["f", "none"], tx=tx) == {"f": "cancelled", "none": "not_found"}


@both
@pytest.mark.parametrize("way", AIO_WAYS)
def test_every_verb_counts_with_the_rows_in_asyncio(app: Application, q: duly.Client, way: str, kept: bool) -> None:
    q.publish("jobs", [duly.Message(b"x", id=name) for name in MESSAGES])

    async def main() -> None:
        async with duly.aio.connect(app.url) as aq:
            held = {delivery.id: delivery for delivery in await aq.claim("jobs", max_messages=4)}
            async with AIO_WAYS[way](app, kept) as (tx, execute):
                await all_verbs_awaited(aq, held, tx)
                await execute("INSERT INTO orders VALUES ('row')")
                assert states(q) == UNTOUCHED
            check(app, q, {name: one._plain for name, one in held.items()}, kept=kept, others=others)

    others = ["outer"] if "nested" in way else []
    asyncio.run(main())


def test_a_plain_connection_works_in_asyncio_too(app: Application, q: duly.Client) -> None:
    async def main() -> None:
        connection = app.connect()
        async with duly.aio.connect(app.url) as aq:
            with connection.transaction():
                await aq.publish("jobs", b"x", tx=connection)

    asyncio.run(main())
    assert len(q.claim("jobs")) == 1


def test_a_publish_whose_task_is_cancelled_stays_inside_its_transaction(app: Application, q: duly.Client) -> None:
    """The thread that does it is not left behind, to go on when the transaction is over and each statement commits."""

    async def main() -> None:
        connect = psycopg.AsyncConnection.connect
        async with duly.aio.connect(app.url) as aq, await connect(app.dsn, autocommit=True) as connection:
            for after in range(60):
                with contextlib.suppress(asyncio.CancelledError):
                    async with connection.transaction():
                        task = asyncio.ensure_future(aq.publish("jobs", b"x", tx=connection))
                        for _ in range(after):
                            await asyncio.sleep(0)
                        task.cancel()
                        await task
                        raise asyncio.CancelledError
            await asyncio.sleep(0.1)

    asyncio.run(main())
    assert len(q.browse("jobs")) == 0


def test_a_session_sees_what_it_did_and_goes_on_after_it(app: Application, q: duly.Client) -> None:
    """Duly uses the connection behind the session; whatever the session has not flushed stays the session's affair."""
    from sqlalchemy import Column, Text
    from sqlalchemy.orm import Session, registry

    mapper = registry()
    names = {"__tablename__": "orders", "id": Column(Text, primary_key=True)}
    Order: Any = mapper.mapped(type("Order", (), names))  # noqa: N806
    with engine_of(app) as engine, Session(engine) as session:
        session.add(Order(id="one"))
        q.publish("jobs", b"one", tx=session)
        assert session.get(Order, "one") is not None
        session.commit()
        session.add(Order(id="two"))
        q.publish("jobs", b"two", tx=session)
        session.rollback()
        q.publish("jobs", b"three", tx=session)
        session.commit()
    assert app.orders() == ["one"]
    assert sorted(q.claim("jobs").payloads) == [b"one", b"three"]
