"""Makes and upgrades the schema, under a lock: any number of brokers may start at once.

A migration that only adds (tables, columns with defaults, indexes, functions) leaves what was there as older brokers
know it: old and new work side by side while a deployment rolls. One that does not says so in `_WORKS_FROM`, and brokers
older than that are refused.
"""

from __future__ import annotations

import secrets
from typing import Any

import psycopg

from ...errors import IncompatibleStore
from .statements import migrations

SCHEMA = len(migrations())
# The newest migration that older brokers cannot work with.
_WORKS_FROM = 1
# PostgreSQL versions that are tested.
_SERVER_MIN = 150000
# An arbitrary number that other programs are unlikely to lock.
_LOCK = 0x64756C79


def prepare(connection: psycopg.Connection[Any], schema: str) -> tuple[str, int]:
    """Creates or upgrades the schema; answers the store's incarnation, and the number its locks go by."""
    if connection.info.server_version < _SERVER_MIN:
        raise IncompatibleStore(f"PostgreSQL {connection.info.server_version // 10000} is too old: 15 or newer.")
    found = _meta(connection, schema)
    if not _fits(found):
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            found = _migrate(connection, schema)
    space = connection.execute("SELECT %s::regnamespace::oid::bigint", (schema,)).fetchone()
    assert space is not None
    # As a signed number: that is what locks are named by.
    number = int(space[0])
    return found["incarnation"], number - 2**32 if number >= 2**31 else number


def _fits(found: dict[str, str]) -> bool:
    """Whether a store is as this Duly knows it, or newer and only more."""
    if not found.get("incarnation"):
        return False
    version = int(found.get("schema", 0))
    return version == SCHEMA or (version > SCHEMA and int(found.get("works_from", version)) <= SCHEMA)


def _meta(connection: psycopg.Connection[Any], schema: str) -> dict[str, str]:
    known = connection.execute("SELECT to_regclass(%s)", (f"{schema}.meta",)).fetchone()
    if known is None or known[0] is None:
        return {}
    return dict(connection.execute("SELECT key, value FROM meta").fetchall())


def _migrate(connection: psycopg.Connection[Any], schema: str) -> dict[str, str]:
    found = _meta(connection, schema)
    version = int(found.get("schema", 0))
    if _fits(found):
        return found
    if version > SCHEMA:
        raise IncompatibleStore(f"The store has schema {version}; this Duly knows {SCHEMA}. Use a newer Duly.")
    if not found:
        others = connection.execute(
            "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'", (schema,)
        ).fetchone()
        if others is not None and others[0]:
            raise IncompatibleStore(
                f"The schema {schema!r} holds tables that are not Duly's. Give another: postgresql://…?schema=NAME."
            )
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    for number, script in migrations():
        if number > version:
            connection.execute(script)
    found["incarnation"] = found.get("incarnation") or secrets.token_hex(8)
    facts = {"schema": str(SCHEMA), "works_from": str(_WORKS_FROM), "incarnation": found["incarnation"]}
    for key, value in facts.items():
        connection.execute(
            "INSERT INTO meta (key, value) VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, value),
        )
    return found
