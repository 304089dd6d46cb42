"""The application's own connection, whichever library it is of: one way to run a statement in its open transaction.

psycopg 3 (plain and asyncio), SQLAlchemy (Session, Connection and their asyncio kinds) and Django's connection are
known by what they are called, not imported: whoever passes one has it installed. A connection of psycopg's that
SQLAlchemy has is used directly: so all are looked at in one way, and no setting of a session changes what we get.

A connection that cannot do is refused before a statement fails on it, which would undo the application's transaction.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from typing import Any

import psycopg

from ...errors import InvalidArgument
from ..awaited import Awaited, is_asyncio

_NAMED = re.compile(r"(?<!:):([a-z_]+)")
_IDLE, _FAILED = psycopg.pq.TransactionStatus.IDLE, psycopg.pq.TransactionStatus.INERROR

# Connections on which Duly's tables were found: by connection, the schemas.
_known: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


class Guest:
    """An application's transaction. Statements have named values, as `:name`."""

    def __init__(self, tx: Any, schema: str) -> None:
        self._awaited = tx if isinstance(tx, Awaited) else None
        self._tx = tx.connection if isinstance(tx, Awaited) else tx
        self._kind = kind_of(self._tx)
        if self._kind is None:
            raise InvalidArgument(
                "tx must be your open transaction: a psycopg 3 connection, an SQLAlchemy Session or Connection, or "
                f"Django's connection; not {type(self._tx).__name__}."
            )
        if self._awaited is None and is_asyncio(self._tx):
            raise InvalidArgument("tx is an asyncio connection: use it with duly.aio, where this is awaited.")
        if self._kind == "sqlalchemy":
            self._unwrap()
        self._check_open()
        self._check_schema(schema)

    def _unwrap(self) -> None:
        """SQLAlchemy's connection, begun as its session would; and psycopg's behind it, where it is that."""
        session = self._tx
        if hasattr(session, "registry"):
            session = session.registry()
        if hasattr(session, "sync_session") or not hasattr(session, "dialect"):
            session = session.connection()
            if self._awaited is not None:
                session = self._awaited.done(session)
        self._tx = session
        if session.dialect.name != "postgresql":
            raise InvalidArgument(f"The transaction is on {session.dialect.name}; this store is on PostgreSQL.")
        if session.closed:
            raise InvalidArgument("The connection is closed.")
        if not session.in_transaction():
            begun = session.begin()
            if self._awaited is not None:
                self._awaited.done(_awaiting(begun))
        driver = getattr(session, "sync_connection", session).connection.driver_connection
        if kind_of(driver) == "psycopg":
            self._tx, self._kind = driver, "psycopg"

    def _check_open(self) -> None:
        if self._kind == "psycopg":
            self._check_psycopg()
        if self._kind == "django":
            if self._tx.vendor != "postgresql":
                raise InvalidArgument(f"The transaction is on {self._tx.vendor}; this store is on PostgreSQL.")
            if self._tx.get_autocommit() and not self._tx.in_atomic_block:
                raise InvalidArgument("There is no transaction open: use `with transaction.atomic():` around it.")
            if self._tx.needs_rollback:
                raise InvalidArgument("The transaction has failed: leave its atomic() block.")

    def _check_psycopg(self) -> None:
        if self._tx.closed:
            raise InvalidArgument("The connection is closed.")
        status = self._tx.info.transaction_status
        if status == _FAILED:
            raise InvalidArgument("The transaction has failed: roll it back, and begin another.")
        # In a pipeline a BEGIN may be under way.
        if self._tx.autocommit and status == _IDLE and not self._begun_in_pipeline():
            raise InvalidArgument(
                "The connection has no transaction open: what is published through it would be committed by itself. "
                "Use `with connection.transaction():` around it."
            )

    def _begun_in_pipeline(self) -> bool:
        if self._tx.info.pipeline_status == psycopg.pq.PipelineStatus.OFF:
            return False
        # An answer that was waited for tells how things are.
        self.execute("SELECT 1", {})
        return bool(self._tx.info.transaction_status != _IDLE)

    def _check_schema(self, schema: str) -> None:
        key = self._tx if self._kind == "psycopg" else None
        known = _known.setdefault(key, set()) if key is not None else set()
        if schema in known:
            return
        if not self.execute("SELECT to_regclass(:name) IS NOT NULL", {"name": f"{schema}.inbox"})[0][0]:
            raise InvalidArgument(
                f"The transaction is on another database than this store: there is no schema {schema!r} of Duly's."
            )
        known.add(schema)

    def execute(self, sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Runs a statement; its rows."""
        if self._kind == "sqlalchemy":
            return self._by_sqlalchemy(sql, values)
        answers = sql.lstrip().startswith("SELECT")
        text = _NAMED.sub(r"%(\1)s", sql.replace("%", "%%"))
        if self._kind == "django":
            with self._tx.cursor() as cursor:
                cursor.execute(text, dict(values))
                return [tuple(row) for row in cursor.fetchall()] if answers else []
        if self._awaited is not None and is_asyncio(self._tx):
            return self._awaited.done(self._by_async(text, values, answers))
        # Not the connection's own kind of cursor, which may want other placeholders.
        plain = psycopg.Cursor(self._tx, row_factory=psycopg.rows.tuple_row)
        plain.execute(text.encode(), dict(values))
        return plain.fetchall() if answers else []

    async def _by_async(self, text: str, values: Mapping[str, Any], answers: bool) -> list[tuple[Any, ...]]:
        cursor = psycopg.AsyncCursor(self._tx, row_factory=psycopg.rows.tuple_row)
        await cursor.execute(text.encode(), dict(values))
        return await cursor.fetchall() if answers else []

    def _by_sqlalchemy(self, sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        from sqlalchemy import text

        # A cast behind a name would be taken for a part of it.
        statement = text(re.sub(r":([a-z_]+)::([A-Z0-9]+)", r"CAST(:\1 AS \2)", sql).replace("::", r"\:\:"))
        found = self._tx.execute(statement, dict(values))
        if self._awaited is not None:
            found = self._awaited.done(found)
        return [tuple(row) for row in found] if found.returns_rows else []


async def _awaiting(begun: Any) -> None:
    await begun


def kind_of(tx: Any) -> str | None:
    """Which library a connection is of; None: none that is known."""
    for kind in type(tx).__mro__:
        package = kind.__module__.partition(".")[0]
        if package == "psycopg" and kind.__name__ in ("Connection", "AsyncConnection"):
            return "psycopg"
        if package == "sqlalchemy" and kind.__name__ in _SQLALCHEMY:
            return "sqlalchemy"
        if package == "django" and kind.__name__ in (
            "BaseDatabaseWrapper",
            "DefaultConnectionProxy",
            "ConnectionProxy",
        ):
            return "django"
    return None


_SQLALCHEMY = ("Session", "Connection", "AsyncSession", "AsyncConnection", "scoped_session", "async_scoped_session")
