"""The application's own connection, whichever library it is of: one way to run a statement in its open transaction.

psycopg 3 (plain and asyncio), SQLAlchemy (Session, Connection and their asyncio kinds) and Django's connection are
known by what they are called, not imported: whoever passes one has it installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import InvalidArgument
from ..awaited import Awaited

_NAMED = re.compile(r"(?<!:):([a-z_]+)")
_IDLE = 0


class Guest:
    """An application's transaction. Statements have named values, as `:name`."""

    def __init__(self, tx: Any) -> None:
        self._awaited = tx if isinstance(tx, Awaited) else None
        self._tx = tx.connection if isinstance(tx, Awaited) else tx
        self._kind = kind_of(self._tx)
        if self._kind is None:
            raise InvalidArgument(
                "tx must be your open transaction: a psycopg 3 connection, an SQLAlchemy Session or Connection, or "
                f"Django's connection; not {type(self._tx).__name__}."
            )
        self._check_open()

    def _check_open(self) -> None:
        if self._kind == "psycopg" and self._tx.autocommit and self._tx.info.transaction_status == _IDLE:
            raise InvalidArgument(
                "The connection has no transaction open: what is published through it would be committed by itself. "
                "Use `with connection.transaction():` around it."
            )
        if self._kind == "django" and self._tx.get_autocommit() and not self._tx.in_atomic_block:
            raise InvalidArgument("There is no transaction open: use `with transaction.atomic():` around it.")

    def execute(self, sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Runs a statement; its rows."""
        if self._kind == "sqlalchemy":
            return self._by_sqlalchemy(sql, values)
        text = _NAMED.sub(r"%(\1)s", sql.replace("%", "%%"))
        if self._kind == "django":
            with self._tx.cursor() as cursor:
                cursor.execute(text, dict(values))
                return [] if cursor.description is None else [tuple(row) for row in cursor.fetchall()]
        if self._awaited is not None:
            return self._awaited.done(self._by_async(text, values))
        cursor = self._tx.cursor(row_factory=_plain)
        cursor.execute(text, dict(values))
        return [] if cursor.description is None else list(cursor.fetchall())

    async def _by_async(self, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        cursor = self._tx.cursor(row_factory=_plain)
        await cursor.execute(text, dict(values))
        return [] if cursor.description is None else list(await cursor.fetchall())

    def _by_sqlalchemy(self, sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        from sqlalchemy import text

        # A cast behind a name would be taken for a part of it.
        statement = text(re.sub(r":([a-z_]+)::([A-Z0-9]+)", r"CAST(:\1 AS \2)", sql).replace("::", r"\:\:"))
        found = self._tx.execute(statement, dict(values))
        if self._awaited is not None:
            found = self._awaited.done(found)
        return [tuple(row) for row in found] if found.returns_rows else []


def kind_of(tx: Any) -> str | None:
    """Which library a connection is of; None: none that is known."""
    for kind in type(tx).__mro__:
        package = kind.__module__.partition(".")[0]
        if package == "psycopg" and kind.__name__ in ("Connection", "AsyncConnection"):
            return "psycopg"
        if package == "sqlalchemy" and kind.__name__ in ("Session", "Connection", "AsyncSession", "AsyncConnection"):
            return "sqlalchemy"
        if package == "django" and kind.__name__ in (
            "BaseDatabaseWrapper",
            "DefaultConnectionProxy",
            "ConnectionProxy",
        ):
            return "django"
    return None


def _plain(_: Any) -> Any:
    """Rows as tuples, whatever the connection makes of them."""
    return lambda values: tuple(values)
